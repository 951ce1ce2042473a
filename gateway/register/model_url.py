"""Sets the address of a model that the cluster made from a `model` block, which has no member for it.

The connector inside the model has the vendor's address. It can be changed as soon as the agent is registered
(docs/internals/facts.md, "conversational_v2").
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gateway.agents.lookup import document_path
from gateway.errors import GatewayError, Problem, RegistrationFailed
from gateway.providers import registry
from gateway.providers.connector import ModelSpec
from gateway.register.busy import send
from gateway.register.calls import LOST, Calls, Reply
from gateway.register.parts import LEFT_BEHIND, ML, Made, retry_call

_TRIES = 3


def address_of(spec: ModelSpec) -> str:
    """Return the address of the model."""
    return registry.connectors()[spec.provider].address(spec)


async def set_model_url(calls: Calls, turns: asyncio.Semaphore, agent_id: str, spec: ModelSpec) -> None:
    """Let the model of an agent be called at its `url`, unless it is already.

    Raises:
        RegistrationFailed, UpstreamUnavailable, UpstreamTimeout: the model may still be called at the vendor's address.
    """
    agent = await _read(calls, Made("agents", agent_id))
    path = document_path("models", str((agent.get("llm") or {}).get("model_id") or ""))
    connector = (await _read(calls, Made("models", agent["llm"]["model_id"]))).get("connector") or {}
    actions = connector.get("actions") or ()
    changed = [{**action, "url": address_of(spec)} for action in actions]
    if changed == list(actions):
        return
    reply = await _put(calls, turns, path, {"connector": {"actions": changed}})
    if not reply.good:
        text = f"The cluster refused to set the address of the model: {reply.reason}"
        raise RegistrationFailed(text, reply.status, repeats=reply.reason)


async def _read(calls: Calls, made: Made) -> Mapping[str, Any]:
    shown = await retry_call(calls, "GET", document_path(made.kind, made.id))
    if isinstance(shown, GatewayError):
        raise shown
    if not shown.good or shown.document is None:
        text = f"The cluster refused to show the {made}, whose address is to be set: {shown.reason}"
        raise RegistrationFailed(text, shown.status, repeats=shown.reason)
    return shown.document


async def _put(calls: Calls, turns: asyncio.Semaphore, path: str, body: Mapping[str, Any]) -> Reply:
    """Send an idempotent change, again if its response is lost."""
    for _ in range(_TRIES - 1):
        try:
            return await send(calls, turns, "PUT", path, body)
        except LOST:
            continue
    return await send(calls, turns, "PUT", path, body)


def unknown_model(agent: Made, spec: ModelSpec) -> Problem:
    """Return the problem of a model that may be left behind, because its agent could not be read."""
    name = f"Auto-generated model for {spec.model_id}"
    reason = f"the model that the cluster made for {agent} may be left behind: the agent could not be read"
    return Problem("", reason, code=LEFT_BEHIND, help=f"POST {ML}/models/_search shows models called {name}.")
