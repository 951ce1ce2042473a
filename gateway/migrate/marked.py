"""Documents that an upgrade or a move makes. A mark in each finds one whose answer was lost.

The mark of an agent is a parameter; of any other document, the end of its description.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.agents.lookup import document_path
from gateway.migrate.connection import Cluster, answer_of
from gateway.migrate.connector_users import explain_if_unused, named_users
from gateway.migrate.search import search_all
from gateway.migrate.steps import MOVED, Call, Kind, mark_of
from gateway.migrate.writer import StepFailed, Writer

_LAG = 5.0  # seconds until a search shows a write: one refresh, a second by default


class Refused(StepFailed):
    """The cluster refused to make a document, and has not made it."""


def create(writer: Writer, call: Call, credential: Mapping[str, Any], tag: str) -> str:
    """Create a connector and return its id.

    Raises:
        StepFailed: the cluster refuses it. The message does not hold the credential.
    """
    whole = Call(call.method, call.path, {**(call.body or {}), "credential": dict(credential)})
    return make(writer, "connectors", whole, tag, credential.values())


def make(writer: Writer, kind: Kind, call: Call, tag: str, secrets: Iterable[Any] = ()) -> str:
    """Make a document of `kind`, whose body holds the mark, and return its id. secrets: those in the body.

    Raises:
        StepFailed: the cluster refuses it. The message holds no secret.
    """
    status, answer = writer.send(call)
    made = answer.get(f"{kind.removesuffix('s')}_id")
    found = [str(made)] if made else [] if 400 <= status < 500 else find(writer, tag, kind)
    if not found:
        reason = _without_secrets(answer_of(status, answer), secrets) if status else "no answer"
        failure = Refused if 400 <= status < 500 else StepFailed
        raise failure(f"{call.method} {call.path}: {reason}")
    return found[0]


def find(writer: Writer, tag: str, kind: Kind = "connectors") -> list[str]:
    """Search for documents with the mark. Wait for one, as a search lags by a refresh."""
    end = writer.clock.monotonic() + min(writer.patience, _LAG)
    while True:
        found = find_all(writer.cluster, kind).get(tag, [])
        if found or writer.clock.monotonic() >= end:
            return found
        writer.pause()


def find_all(cluster: Cluster, kind: Kind) -> dict[str, list[str]]:
    """Return the ids of all documents of a kind that have a mark, by mark.

    Raises:
        ClusterError: they can't be searched.
    """
    found: dict[str, list[str]] = {}
    member = f"parameters.{MOVED}" if kind == "agents" else "description"
    for id_, source in search_all(cluster, kind, source=(member,)):
        if tag := mark_of(kind, source):
            found.setdefault(tag, []).append(id_)
    return found


def removal(id_: str, kind: Kind = "connectors") -> Call:
    """Return the call that deletes a document."""
    return Call("DELETE", document_path(kind, id_))


def remove(writer: Writer, id_: str, kind: Kind = "connectors") -> str:
    """Delete a document; a model is undeployed first. A missing one is fine.

    Return "", or why a connector stays although no model uses it: see `explain_if_unused`.

    Raises:
        StepFailed: the cluster refuses it for another reason.
        ClusterError: a model that the refusal names can't be read.
    """
    call = removal(id_, kind)
    end = writer.clock.monotonic() + min(writer.patience, _LAG)
    while True:
        if kind == "models":
            writer.send(Call("POST", document_path(kind, id_, "/_undeploy")))
        status, answer = writer.send(call)
        if status in (200, 404) or writer.cluster.call("GET", call.path)[0] == 404:
            return ""
        # The cluster may still find a model that names it, as its search lags; or a model may still be deployed.
        if writer.clock.monotonic() >= end:
            why = explain_if_unused(writer.cluster, id_, named_users(answer)) if kind == "connectors" else ""
            if why:
                return why
            reason = answer_of(status, answer) if status else "no answer"
            raise StepFailed(f"{call.method} {call.path}: {reason}")
        writer.pause()


def _without_secrets(text: str, secrets: Iterable[Any]) -> str:
    for secret in secrets:
        text = text.replace(str(secret), "***") if secret else text
    return text
