"""Connectors that an upgrade makes. A mark in the description finds one whose answer was lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.migrate.connection import answer_of
from gateway.migrate.connector_users import explain_if_unused, named_users
from gateway.migrate.search import search_all
from gateway.migrate.steps import Call, marker
from gateway.migrate.writer import StepFailed, Writer

_LAG = 5.0  # seconds until a search shows a write: one refresh, a second by default


def create(writer: Writer, call: Call, credential: Mapping[str, Any], tag: str) -> str:
    """Create a connector and return its id.

    Raises:
        StepFailed: the cluster refuses it. The message does not hold the credential.
    """
    status, answer = writer.send(Call(call.method, call.path, {**(call.body or {}), "credential": dict(credential)}))
    made = answer.get("connector_id")
    found = [str(made)] if made else [] if 400 <= status < 500 else find(writer, tag)
    if not found:
        reason = _without_secrets(answer_of(status, answer), credential) if status else "no answer"
        raise StepFailed(f"{call.method} {call.path}: {reason}")
    return found[0]


def find(writer: Writer, tag: str) -> list[str]:
    """Search for connectors with the mark. Wait for one, as a search lags by a refresh."""
    end = writer.clock.monotonic() + min(writer.patience, _LAG)
    while True:
        connectors = search_all(writer.cluster, "connectors")
        found = [id_ for id_, source in connectors if str(source.get("description", "")).endswith(marker(tag))]
        if found or writer.clock.monotonic() >= end:
            return found
        writer.pause()


def removal(connector: str) -> Call:
    """Return the call that deletes a connector."""
    return Call("DELETE", f"/_plugins/_ml/connectors/{connector}")


def remove(writer: Writer, connector: str) -> str:
    """Delete a connector. A missing one is fine.

    Return "", or why it stays although no model uses it: see `explain_if_unused`.

    Raises:
        StepFailed: the cluster refuses it for another reason.
        ClusterError: a model that the refusal names can't be read.
    """
    call = removal(connector)
    end = writer.clock.monotonic() + min(writer.patience, _LAG)
    while True:
        status, answer = writer.send(call)
        if status in (200, 404) or writer.cluster.call("GET", call.path)[0] == 404:
            return ""
        # The cluster may still find a model that names it, as its search lags.
        if writer.clock.monotonic() >= end:
            why = explain_if_unused(writer.cluster, connector, named_users(answer))
            if why:
                return why
            reason = answer_of(status, answer) if status else "no answer"
            raise StepFailed(f"{call.method} {call.path}: {reason}")
        writer.pause()


def _without_secrets(text: str, credential: Mapping[str, Any]) -> str:
    for secret in credential.values():
        text = text.replace(str(secret), "***") if secret else text
    return text
