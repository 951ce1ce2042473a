"""``mlc-gateway promote``: registers a legacy agent anew as a unified one, and says how clients keep its id."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.agents.lookup import document_path
from gateway.cli.upgrade import rules_of
from gateway.config.load import ConfigError
from gateway.execute.build import check_rules
from gateway.migrate.connection import ClusterError, ClusterUnreachable, Connected, answer_of, connect
from gateway.migrate.connection import add_arguments as add_cluster
from gateway.migrate.credential import CredentialError, asked, from_file
from gateway.migrate.display import call_json, request_line
from gateway.migrate.probe import QUESTION
from gateway.migrate.promote import (
    V2,
    NotPromoted,
    Obstacle,
    Promotion,
    alias_rule,
    is_promoted,
    promotion,
    redirected,
    taking_back,
)
from gateway.migrate.reading import agent_ids, read_documents
from gateway.migrate.search import search_all
from gateway.migrate.steps import Call

NAME = "promote"
HELP = (
    "Show, and with --apply do, the registration of a legacy agent as a unified one on a cluster of 3.5 or later. "
    "Exit 1 when it can't be promoted, 2 when an option is wrong or the cluster can't be worked with, 3 when it "
    "failed and was taken back, 4 when something of it is left."
)
EXAMPLES = """  mlc-gateway promote --url http://127.0.0.1:9200 my-agent
  mlc-gateway promote --url http://127.0.0.1:9200 my-agent --apply --credential-file credential.json
  mlc-gateway promote -c config/gateway.yaml my-agent --type conversational_v2 --memory-container ID"""

_PATIENCE = 10.0
_PAUSE = 0.2


class _Left(Exception):
    """Something is left behind; calls: what removes it."""

    def __init__(self, message: str, calls: list[Call]) -> None:
        super().__init__(message)
        self.calls = calls


class _Failed(Exception):
    """It failed, and nothing is left of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "agent", metavar="AGENT", help="id or name of a legacy agent (after -- where it starts with a dash)"
    )
    parser.add_argument("--apply", action="store_true", help="do it; without it, only show what would be done")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--type", choices=(V2,), default="", help="another type than the agent's own")
    parser.add_argument("--memory-container", default="", metavar="ID", help=f"memory container of a {V2} agent")
    parser.add_argument("--credential-file", type=Path, metavar="FILE", help="JSON: the LLM's credential")
    parser.add_argument(
        "--probe",
        choices=("documents", "execute"),
        default="documents",
        help="afterwards read the new agent, or also ask it a question: that calls the LLM, and its tools may act "
        "(documents)",
    )
    add_cluster(parser)


def run(args: argparse.Namespace) -> int:
    """Show or apply; the exit status as the command's help says."""
    try:
        cluster = connect(args)
        check_rules(cluster.settings)
        return _run(cluster, args)
    except NotPromoted as error:
        return _failed(1, f"{error.obstacle.name}: {error}")
    except _Failed as error:
        return _failed(3, f"failed, and nothing is left of it: {error}")
    except _Left as error:
        return _failed(4, "\n  ".join([f"{error}; this removes what is left:", *map(request_line, error.calls)]))
    except (ClusterError, ConfigError, CredentialError, OSError) as error:
        return _failed(2, str(error))


def _failed(status: int, message: str) -> int:
    sys.stderr.write(f"mlc-gateway promote: {message}\n")
    return status


def _run(cluster: Connected, args: argparse.Namespace) -> int:
    (agent_id,) = agent_ids(cluster, [args.agent])
    documents = read_documents(cluster, cluster.version, [agent_id], rules_of(cluster))
    found = promotion(documents, agent_id, args.type, args.memory_container)
    if not args.apply:
        _show(found, args.json)
        return 0
    existing = _existing(cluster, agent_id)
    if existing:
        new, made = existing, ""
    else:
        credential = from_file(args.credential_file) if args.credential_file else asked(found.credential)
        new = made = _registered(cluster, found, credential)
    model = _finished(cluster, found, new, made, args.probe)
    _report(found, new, model, args.json, bool(made))
    return 0


def _show(found: Promotion, as_json: bool) -> None:
    if as_json:
        report = {
            "agent": found.agent_id,
            "call": call_json(found.call),
            "credential": list(found.credential),
            "url": found.url,
            "changes": list(found.changes),
        }
        sys.stdout.write(json.dumps(report, ensure_ascii=False, indent=2) + "\n")
        return
    lines = [request_line(found.call), f"  with the credential: {', '.join(found.credential)}"]
    if found.url:
        lines.append(f"then the URL of the connector inside its model is set to {found.url}")
    lines += ["What changes:", *(f"  - {change}" for change in found.changes)]
    sys.stdout.write("\n".join([*lines, "Nothing was changed: --apply does it.", ""]))


def _existing(cluster: Connected, old: str) -> str:
    """The agent that an earlier run registered; so a second run, or one after a lost answer, makes no second one."""
    return next((id_ for id_, source in search_all(cluster, "agents") if is_promoted(source, old)), "")


def _registered(cluster: Connected, found: Promotion, credential: Mapping[str, str]) -> str:
    body = dict(found.body)
    body["model"] = {**body["model"], "credential": dict(credential)}
    try:
        status, answer = cluster.call("POST", found.call.path, body)
    except ClusterUnreachable as error:
        again = "run this again: an agent that was made is found and used" if error.maybe_sent else "nothing was sent"
        raise ClusterError(f"{error}; {again}") from None
    if status != 200 or not isinstance(answer.get("agent_id"), str):
        said = answer_of(status, answer)
        for secret in credential.values():
            said = said.replace(secret, "***")
        raise NotPromoted(Obstacle.REGISTRATION_REFUSED, said)
    agent_id: str = answer["agent_id"]
    return agent_id


def _finished(cluster: Connected, found: Promotion, new: str, made: str, probe: str) -> str:
    """Points the new agent's model at the right URL and probes; the model's id. Removes what this run `made` if not."""
    model = ""
    try:
        model = str((_get(cluster, "agents", new).get("llm") or {}).get("model_id") or "")
        document = _get(cluster, "models", model)
        if found.url and any(action["url"] != found.url for action in document["connector"]["actions"]):
            _require(cluster, Call("PUT", document_path("models", model), redirected(document, found.url)))
        if probe == "execute":
            _require(cluster, Call("POST", document_path("agents", new, "/_execute"), {"input": QUESTION}))
    except ClusterError as error:
        if made:
            _remove(cluster, taking_back(made, model), error)
            raise _Failed(str(error)) from None
        raise
    return model


def _get(cluster: Connected, kind: str, id_: str) -> dict[str, Any]:
    return _require(cluster, Call("GET", document_path(kind, id_)))


def _require(cluster: Connected, call: Call) -> dict[str, Any]:
    status, answer = cluster.call(call.method, call.path, call.body)
    if status != 200:
        raise ClusterError(f"{call.method} {call.path}: {answer_of(status, answer)}")
    return answer


def _remove(cluster: Connected, calls: tuple[Call, ...], cause: ClusterError) -> None:
    """Sends the calls of `taking_back`; a model that was just used is deployed, and undeploying takes a while."""
    agent, undeploy, model = calls
    end = time.monotonic() + _PATIENCE
    said = _sent(cluster, agent)
    while not said:
        _sent(cluster, undeploy)
        said = _sent(cluster, model)
        if not said:
            return
        if time.monotonic() < end:
            said = ""
            time.sleep(_PAUSE)
    left = [undeploy, model] if _is_gone(cluster, agent) else [agent, undeploy, model]
    raise _Left(f"{cause}; and it could not be taken back: {said}", left)


def _is_gone(cluster: Connected, call: Call) -> bool:
    """Whether what `call` removes is gone."""
    try:
        return cluster.call("GET", call.path)[0] == 404
    except ClusterUnreachable:
        return False


def _sent(cluster: Connected, call: Call) -> str:
    """What the cluster said against it; "" when it is done."""
    try:
        status, answer = cluster.call(call.method, call.path)
    except ClusterUnreachable as error:
        return str(error)
    return "" if status in (200, 404) else answer_of(status, answer)


def _report(found: Promotion, new: str, model: str, as_json: bool, made: bool) -> None:
    back = taking_back(new, model)
    rule = alias_rule(found.agent_id, new)
    if as_json:
        report = {
            "agent": found.agent_id,
            "promoted": new,
            "model": model,
            "made": made,
            "aliases": {found.agent_id: new},
            "changes": list(found.changes),
            "take_back": [call_json(call) for call in back],
        }
        sys.stdout.write(json.dumps(report, ensure_ascii=False, indent=2) + "\n")
        return
    head = f"{found.agent_id} is {'now' if made else 'already'} registered as the unified agent {new} (model {model})."
    tail = ["To take it back, remove that rule and send:", *(f"  {request_line(call)}" for call in back), ""]
    sys.stdout.write("\n".join([head, "What changes:", *(f"  - {change}" for change in found.changes), ""]))
    sys.stdout.write(f"Clients keep the old id with this in the gateway's settings:\n{rule}" + "\n".join(tail))
