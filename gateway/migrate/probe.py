"""How an upgrade is checked once it is written, before it counts as done.

By default the documents are read again, and the proof is done anew with what the cluster shows now: that costs
nothing and touches nothing. Asking the agent a real question proves more, that the LLM answers, but costs money,
leaves a conversation in its memory, and its tools may act: so only ``--probe execute`` does that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gateway.agents.lookup import document_path
from gateway.agents.rules import Rule
from gateway.errors import UnresolvedAgent
from gateway.migrate.backup import Record
from gateway.migrate.connection import Cluster, answer_of
from gateway.migrate.reading import read_documents
from gateway.migrate.upgrade import effect
from gateway.mlcommons.template import PREFIX

QUESTION = "Please answer with the word yes."


class ProbeFailed(Exception):
    """What stands in the cluster is not what was meant; the message says what differs."""


def prove_again(cluster: Cluster, record: Record, rules: Iterable[Rule] = ()) -> None:
    """Reads every agent the upgrade reaches and proves that legacy calls render as before, and the slot is there.

    Raises:
        ProbeFailed: not so.
        ClusterError: something can't be read.
    """
    agents = (*record.named, *record.others)
    now = read_documents(cluster, tuple(record.version), agents, rules)
    before = replace(record.as_read(), rules=now.rules, unified_api=now.unified_api)
    for agent_id in agents:
        if agent_id not in now.agents:
            continue  # removed meanwhile
        try:
            old, new = before.profile(agent_id), now.profile(agent_id)
        except UnresolvedAgent as error:
            raise ProbeFailed(error.reason) from None
        if before.agents[agent_id] != now.agents[agent_id]:
            old = replace(before, agents=now.agents).profile(agent_id)  # changed meanwhile, by its owner
        found = effect(old, new)
        if found.differing or found.lost:
            raise ProbeFailed(f"agent {agent_id} does not render as before: {(*found.differing, *found.lost)[0]}")
        slot = f"{PREFIX}{record.parameter}}}"
        served = [model for model in new.models if model.id in record.models]
        if any(slot not in model.connector.request_body for model in served):
            raise ProbeFailed(f"the connector behind agent {agent_id} does not show the new template")


def execute(cluster: Cluster, record: Record) -> None:
    """Asks the first agent a question, as a legacy caller does.

    Raises:
        ProbeFailed: it did not answer.
    """
    path = document_path("agents", record.named[0], "/_execute")
    status, answer = cluster.call("POST", path, {"parameters": {"question": QUESTION}})
    if status != 200:
        raise ProbeFailed(f"agent {record.named[0]} did not answer a question ({answer_of(status, answer)})")
