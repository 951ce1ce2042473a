"""``mlc-gateway promote``: register a legacy agent as a unified one."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from gateway.agents.lookup import document_path
from gateway.cli.cluster import CredentialError, ask_credential, cluster_options, read_credential, rules_of
from gateway.cli.command import FILE, Command
from gateway.cli.output import fail, print_json
from gateway.config.load import ConfigError
from gateway.execute.build import check_rules
from gateway.migrate.connection import (
    ClusterError,
    ClusterOptions,
    ClusterUnreachable,
    Connected,
    answer_of,
    connect,
)
from gateway.migrate.display import call_json, next_command, request_line
from gateway.migrate.probe import QUESTION
from gateway.migrate.promote import (
    V2,
    NotPromoted,
    Obstacle,
    Promotion,
    connector_change,
    is_any_promoted,
    is_promoted,
    model_of,
    promotion,
    routes_of,
    undo_calls,
)
from gateway.migrate.reading import agent_ids, read_documents
from gateway.migrate.search import search_all
from gateway.migrate.steps import Call, undeploy

_EXAMPLES = """\
mlc-gateway promote --url http://127.0.0.1:9200 my-agent
mlc-gateway promote --url http://127.0.0.1:9200 my-agent --apply --credential-file credential.json
mlc-gateway promote -c config/gateway.yaml my-agent --type conversational_v2 --memory-container ID"""

_PATIENCE = 10.0
_PAUSE = 0.2


class _Left(Exception):
    """The promotion failed and could not be undone. calls: what removes the rest."""

    def __init__(self, message: str, calls: list[Call]) -> None:
        super().__init__(message)
        self.calls = calls


class _Failed(Exception):
    """The promotion failed and was undone."""


class _Options(msgspec.Struct, frozen=True):
    """The command's own options."""

    agent: str
    apply: bool
    json: bool
    type: str | None
    memory_container: str
    credential_file: Path | None
    probe: Literal["documents", "execute"]


@click.command("promote", cls=Command, examples=_EXAMPLES)
@click.argument(
    "agent",
    metavar="AGENT",
    help="Id, its beginning, or name of a legacy agent; write -- before one that starts with a dash.",
)
@click.option("--apply", is_flag=True, help="Register it. Without it, the call is only shown.")
@click.option("--json", is_flag=True, help="Print JSON.")
@click.option("--type", type=click.Choice((V2,)), help="Register as this type (default: the agent's own).")
@click.option("--memory-container", default="", metavar="ID", help=f"Memory container of a {V2} agent.")
@click.option("--credential-file", type=FILE, metavar="FILE", help="JSON: the LLM's credential.")
@click.option(
    "--probe",
    type=click.Choice(("documents", "execute")),
    default="documents",
    help="The check afterwards. documents: read the new agent (default). execute: also ask it a question; this calls "
    "the LLM, and the agent's tools may act.",
)
@cluster_options
def command(cluster: ClusterOptions, **options: Any) -> int:
    """Show how to register a legacy agent as a unified one, on a cluster of 3.5 or later.

    With --apply, register it. The legacy agent stays. The output says how clients can go on using its id.
    """
    chosen = _Options(**options)
    try:
        connected = connect(cluster)
        check_rules(connected.settings)
        return _run(connected, chosen)
    except NotPromoted as error:
        return fail("promote", 1, f"{error.obstacle.name}: {error}")
    except _Failed as error:
        return fail("promote", 3, f"failed, and everything is as it was before: {error}")
    except _Left as error:
        calls = map(request_line, error.calls)
        return fail("promote", 4, "\n  ".join([f"{error}; send these calls to remove the rest:", *calls]))
    except (ClusterError, ConfigError, CredentialError, OSError) as error:
        return fail("promote", 2, str(error))


def _run(cluster: Connected, options: _Options) -> int:
    listing = next_command(cluster.options, "agents")
    ids = agent_ids(cluster, [options.agent], is_any_promoted, listing)  # those have the names of the old ones
    if len(ids) > 1:
        raise ClusterError(f"{len(ids)} agents use {options.agent}: name one of them: {', '.join(ids)}")
    (agent_id,) = ids
    documents = read_documents(cluster, cluster.version, [agent_id], rules_of(cluster))
    existing, agent_type, container = _existing(cluster, agent_id, options)
    found = promotion(documents, agent_id, agent_type, container)
    if not options.apply:
        _show(found, existing, options.json)
        return 0
    if existing:
        new, made = existing, ""
    else:
        credential = (
            read_credential(options.credential_file) if options.credential_file else ask_credential(found.credential)
        )
        new = made = _register(cluster, found, credential)
    try:
        agent = _get(cluster, "agents", new)
    except ClusterError as error:
        raise ClusterError(f"{error}; {new} is registered, but not checked: run this again") from None
    _finish(cluster, found, new, agent, bool(made), options.probe)
    _report(found, new, agent, options.json, bool(made))
    return 0


def _show(found: Promotion, existing: str, as_json: bool) -> None:
    if as_json:
        report = {
            "agent": found.agent_id,
            "type": found.body["type"],
            "promoted": existing,
            "call": call_json(found.call),
            "credential": list(found.credential),
            "url": found.url,
            "system_role": found.system_role,
            "changes": list(found.changes),
        }
        print_json(report)
        return
    lines = [request_line(found.call), f"  with the credential: {', '.join(found.credential)}"]
    if found.url:
        lines.append(f"Then the URL of the new model's connector is set to {found.url}")
    if found.system_role:
        lines.append(
            f"Then the template of the new model's connector gets the system prompt as a {found.system_role} turn"
        )
    lines += ["What changes:", *(f"  - {change}" for change in found.changes)]
    end = "Nothing was changed. Run again with --apply to register the agent."
    if existing:
        end = f"An earlier run has registered it as {existing} (type {found.body['type']}). Nothing was changed."
    sys.stdout.write("\n".join([*lines, end, ""]))


def _existing(cluster: Connected, old: str, options: _Options) -> tuple[str, str, str]:
    """Return the id of the agent that an earlier run registered, or "", with the type and container to describe.

    So a second run does not register another, and without ``--type`` it describes the type that was registered. With
    ``--type`` only an agent of that type counts.
    """
    agents = dict(search_all(cluster, "agents"))
    wanted = [options.type or ""] if options.type else ["", V2]
    for agent_type in wanted:
        for id_, source in agents.items():
            if is_promoted(source, old, agent_type):
                memory = source.get("memory") or {}
                return id_, agent_type, str(memory.get("memory_container_id") or options.memory_container or "unknown")
    return "", options.type or "", options.memory_container


def _register(cluster: Connected, found: Promotion, credential: Mapping[str, str]) -> str:
    body = dict(found.body)
    body["model"] = {**body["model"], "credential": dict(credential)}
    try:
        status, answer = cluster.call("POST", found.call.path, body)
    except ClusterUnreachable as error:
        again = "run this again: it finds an agent that was registered" if error.maybe_sent else "nothing was sent"
        raise ClusterError(f"{error}; {again}") from None
    if status != 200 or not isinstance(answer.get("agent_id"), str):
        reason = answer_of(status, answer)
        for secret in filter(None, credential.values()):
            reason = reason.replace(secret, "***")
        raise NotPromoted(Obstacle.REGISTRATION_REFUSED, reason)
    agent_id: str = answer["agent_id"]
    return agent_id


def _finish(cluster: Connected, found: Promotion, new: str, agent: Mapping[str, Any], made: bool, probe: str) -> None:
    """Set the URL and the system turn of the new agent's connector, and probe the agent.

    agent: the new agent's document. made: this run registered it; it is removed if something fails.
    """
    model = model_of(agent)
    try:
        document = _get(cluster, "models", model)
        if change := connector_change(found, document):
            _require(cluster, Call("PUT", document_path("models", model), change))
            _require(cluster, undeploy([model]))  # if it is loaded, it goes on with the old connector
        if probe == "execute":
            _require(cluster, Call("POST", document_path("agents", new, "/_execute"), {"input": QUESTION}))
    except (ClusterError, NotPromoted) as error:
        if made:
            _remove(cluster, undo_calls(new, agent), error)
            raise _Failed(str(error)) from None
        raise


def _get(cluster: Connected, kind: str, id_: str) -> dict[str, Any]:
    return _require(cluster, Call("GET", document_path(kind, id_)))


def _require(cluster: Connected, call: Call) -> dict[str, Any]:
    status, answer = cluster.call(call.method, call.path, call.body)
    if status != 200:
        raise ClusterError(f"{call.method} {call.path}: {answer_of(status, answer)}")
    return answer


def _remove(cluster: Connected, calls: tuple[Call, ...], cause: ClusterError | NotPromoted) -> None:
    """Send the calls of `undo_calls`. A model that was just used is deployed, and undeploying takes a while."""
    *agents, undeploy, model = calls
    end = time.monotonic() + _PATIENCE
    error = next(filter(None, (_send(cluster, agent) for agent in agents)), "")
    while not error:
        _send(cluster, undeploy)
        error = _send(cluster, model)
        if not error:
            return
        if time.monotonic() < end:
            error = ""
            time.sleep(_PAUSE)
    left = [*(agent for agent in agents if not _is_gone(cluster, agent)), undeploy, model]
    raise _Left(f"{cause}; this could not be undone: {error}", left)


def _is_gone(cluster: Connected, call: Call) -> bool:
    """Return True if what `call` removes does not exist."""
    try:
        return cluster.call("GET", call.path)[0] == 404
    except ClusterUnreachable:
        return False


def _send(cluster: Connected, call: Call) -> str:
    """Send a call and return the cluster's error, or "" for success."""
    try:
        status, answer = cluster.call(call.method, call.path)
    except ClusterUnreachable as error:
        return str(error)
    return "" if status in (200, 404) else answer_of(status, answer)


def _report(found: Promotion, new: str, agent: Mapping[str, Any], as_json: bool, made: bool) -> None:
    back, model = undo_calls(new, agent), model_of(agent)
    rule = routes_of({found.agent_id: new})
    if as_json:
        report = {
            "agent": found.agent_id,
            "promoted": new,
            "model": model,
            "type": found.body["type"],
            "made": made,
            "route": {"agent": found.agent_id, "targets": [{"agent": new, "weight": 1}]},
            "changes": list(found.changes),
            "take_back": [call_json(call) for call in back],
        }
        print_json(report)
        return
    head = f"{found.agent_id} is {'now' if made else 'already'} registered as the unified agent {new} (model {model})."
    tail = ["To undo this, remove that route and send:", *(f"  {request_line(call)}" for call in back), ""]
    sys.stdout.write("\n".join([head, "What changes:", *(f"  - {change}" for change in found.changes), ""]))
    sys.stdout.write(
        f"With this in the gateway's settings, clients can go on using the old id:\n{rule}" + "\n".join(tail)
    )
