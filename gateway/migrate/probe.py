"""The check of an upgrade after it is written and before it counts as done.

By default the documents are read again and the change is proved again with them. This costs nothing and changes
nothing. ``--probe template`` also proves that the models use the new template: each gets a request that sets only the
new parameter, to a placeholder that nothing fills. The new template then lacks that placeholder, the old one lacks
others, and the cluster refuses both before it calls the LLM, naming what is missing. A real question also proves that
the LLM answers, but it costs money, leaves a conversation in the agent's memory, and the agent's tools may act. So only
``--probe execute`` asks one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from gateway.agents.documents import Rule
from gateway.agents.lookup import document_path
from gateway.errors import UnresolvedAgent
from gateway.migrate.backup import Record
from gateway.migrate.connection import Cluster, answer_of
from gateway.migrate.reading import read_documents
from gateway.migrate.upgrade import effect
from gateway.mlcommons.profile import Connector
from gateway.mlcommons.template import PREFIX, SUFFIX

QUESTION = "Please answer with the word yes."


class ProbeFailed(Exception):
    """The cluster does not have the intended change. The message says what differs."""


def prove_again(cluster: Cluster, record: Record, rules: Iterable[Rule] = ()) -> None:
    """Read all agents of the upgrade and prove that legacy calls render as before and the new slot exists.

    Raises:
        ProbeFailed: a legacy call renders differently, or the slot is missing.
        ClusterError: a document can't be read.
    """
    agents = (*record.named, *record.others)
    now = read_documents(cluster, tuple(record.version), agents, rules)
    before = record.documents_before()
    # The agents are as they are now: their owners may have given them other models meanwhile.
    connectors, models = {**now.connectors, **before.connectors}, {**now.models, **before.models}
    before = replace(now, models=models, connectors=connectors)
    for agent_id in agents:
        if agent_id not in now.agents:
            continue  # removed meanwhile
        try:
            old, new = before.profile(agent_id), now.profile(agent_id)
        except UnresolvedAgent as error:
            raise ProbeFailed(error.reason) from None
        found = effect(old, new)
        if found.differing or found.lost:
            raise ProbeFailed(f"agent {agent_id} does not render as before: {(*found.differing, *found.lost)[0]}")
        slot = f"{PREFIX}{record.slot}"
        served = [model for model in new.models if model.id in record.models]
        if any(slot not in model.connector.request_body for model in served):
            raise ProbeFailed(f"the connector of agent {agent_id} does not have the new template")


def in_use(cluster: Cluster, record: Record) -> Iterator[str]:
    """Prove that each model uses the new template, and yield a line on each.

    Raises:
        ProbeFailed: a model uses the old template.
        ClusterError: the cluster did not answer.
    """
    before = record.documents_before()
    profiles = [before.profile(agent_id) for agent_id in (*record.named, *record.others)]
    connectors = {model.id: model.connector for profile in profiles for model in profile.models}
    for model in record.models:
        if model not in connectors or _fills_alone(connectors[model], record.slot) or _needs_more(record):
            yield f"models/{model}: can't be seen to use the new template, as the old one would call the LLM"
            continue
        name = f"gw_probe_{secrets.token_hex(8)}"
        parameters = {record.slot: f"{PREFIX}{name}{SUFFIX}"}
        status, answer = cluster.call("POST", document_path("models", model, "/_predict"), {"parameters": parameters})
        if name in str(answer):
            yield f"models/{model}: uses the new template"
        elif status == 400 and _UNFILLED in str(answer):
            raise ProbeFailed(f"model {model} uses the old template ({answer_of(status, answer)})")
        else:
            yield f"models/{model}: can't be seen to use the new template ({answer_of(status, answer)})"


def _fills_alone(connector: Connector, parameter: str) -> bool:
    """Return True if the template needs no parameter that a caller sets, except perhaps `parameter`."""
    return set(_NEEDED.findall(connector.request_body)) <= {parameter, *connector.parameters}


def _needs_more(record: Record) -> bool:
    """Return True if the new template needs parameters that a caller sets, besides the slot."""
    write = next(step for step in record.steps if step.action in ("write", "create"))
    new = write.after or write.call.body or {}
    bodies = [str(action.get("request_body", "")) for action in new.get("actions", ())]
    needed = {name for body in bodies for name in _NEEDED.findall(body)}
    return not needed <= {record.slot, *(new.get("parameters") or {})}


_NEEDED = re.compile(re.escape(PREFIX) + r"([^}:]+)\}")
_UNFILLED = "placeholder not filled"


def execute(cluster: Cluster, record: Record) -> None:
    """Ask the first agent a question, as a legacy caller does.

    Raises:
        ProbeFailed: the agent did not answer.
    """
    path = document_path("agents", record.named[0], "/_execute")
    status, answer = cluster.call("POST", path, {"parameters": {"question": QUESTION}})
    if status != 200:
        raise ProbeFailed(f"agent {record.named[0]} did not answer a question ({answer_of(status, answer)})")
