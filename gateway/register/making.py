"""Makes an agent: reads what the cluster supports, then makes connectors, model and agent."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from gateway.agents.lookup import (
    LookupFailed,
    document_path,
    lookup_error,
    read_setting,
    read_switch,
    read_unified_api,
    read_version,
)
from gateway.config.schema import Secret
from gateway.errors import GatewayError, Problem, RegistrationFailed
from gateway.providers import registry
from gateway.providers.connector import ModelSpec
from gateway.register.calls import LOST, Calls, Reply, send_write
from gateway.register.documents import agent_body, mcp_connector_body, model_body, model_group_body
from gateway.register.parts import LEFT_BEHIND, ML, Made, retry_call
from gateway.register.steps import Steps, note_parts
from gateway.register.target import PLAN, Registration, Target, makes_model, sets_url

_PREFIX = "plugins.ml_commons."
_MCP_ENABLED = f"{_PREFIX}mcp_connector_enabled"
_TRUSTED = f"{_PREFIX}trusted_connector_endpoints_regex"
_SETTINGS = "/_cluster/settings?include_defaults=true&filter_path="
# Without `flat_settings`, as `gateway.agents.documents.SETTINGS_PATH`.
_SWITCHES = f"{_SETTINGS}*.{_PREFIX}unified_agent_api_enabled,*.{_MCP_ENABLED}"
_ENDPOINTS = f"{_SETTINGS}*.{_TRUSTED}"
_UNTRUSTED = re.compile(r"trusted connector endpoint regex(?:, URL is: *(\S+))?")
"""The cluster's error for an address that none of its expressions allows. It does not contain the address of an MCP
server (source, 2.19.0.0 and 3.6.0.0)."""


def secrets_of(registration: Registration) -> Iterable[Secret | str]:
    """Yield the secrets of a registration."""
    if registration.model is not None:
        yield from registration.model.credential.values()
    for server in registration.mcp:
        yield from server.credential.values()
        yield from server.headers.values()


async def read_target(calls: Calls) -> Target:
    """Read what the cluster supports. It is not cached: registrations are rare, and settings may have just changed.

    Raises:
        FailedLookup: the version can't be read. UpstreamUnavailable, UpstreamTimeout: there was no response.
    """
    root = await calls("GET", "/")
    version = read_version(root.document) if root.good else None
    if version is None and not root.good:
        raise lookup_error("cluster", "", root.status, root.document)
    if version is None:
        place = Problem(
            "cluster", "the response to GET / has no version of an OpenSearch distribution", "version.number", "none"
        )
        raise LookupFailed("the cluster does not show its OpenSearch version", root.status, place)
    if version < (3,):
        return Target(version, unified_api=False, mcp_enabled=False)
    settings = await calls("GET", _SWITCHES)
    if not settings.good:
        return Target(version)
    return Target(version, read_unified_api(settings.document), read_switch(settings.document, _MCP_ENABLED))


async def make_agent(
    calls: Calls, steps: Steps, registration: Registration, target: Target, noted: Mapping[str, str]
) -> Reply:
    """Make everything in a registration and return the response for the agent. noted: parameters for the agent.

    Raises:
        RegistrationFailed, UpstreamUnavailable, UpstreamTimeout: see `Steps`, which lists what was made until then.
    """
    connector_ids: list[str] = []
    model_id = ""
    try:
        for server in registration.mcp:
            connector = await steps.make("connectors", mcp_connector_body(server, steps.tag))
            connector_ids.append(str((connector.document or {})["connector_id"]))
        if makes_model(target, registration):
            group_id = await _make_group(steps, registration)
            model = await steps.make("models", model_body(registration, target, steps.tag, group_id))
            model_id = str((model.document or {})["model_id"])
        body = agent_body(registration, target, steps.tag, model_id, connector_ids)
        body["parameters"] = {**body["parameters"], **noted}
        reply = await steps.make("agents", body)
        await _finish(calls, steps, registration, target, model_id)
    except RegistrationFailed as failed:
        servers = registration.mcp[len(connector_ids) :]  # the first of them was refused, if there are any
        url = servers[0].url if servers else registration.model.url if registration.model else ""
        failed.hint = failed.hint or await _help_for(calls, failed.reason, url)
        raise
    return reply


async def _finish(calls: Calls, steps: Steps, registration: Registration, target: Target, model_id: str) -> None:
    """Note what the cluster made with the agent, and set the address of its model."""
    spec, agent = registration.model, steps.made[-1]
    if registration.type != PLAN and (spec is None or model_id):
        return
    noted = await note_parts(calls, steps)
    if spec is None or not sets_url(target, registration):
        return
    try:
        await set_model_url(calls, steps.turns, agent.id, spec)
    except GatewayError as error:
        if not noted and not await note_parts(calls, steps):
            error.problems = (*error.problems, unknown_model(agent, spec))
        raise


async def finish_other(
    calls: Calls, turns: asyncio.Semaphore, registration: Registration, target: Target, agent_id: str
) -> None:
    """Finish an agent of another attempt, which may have been stopped before it had set the address of the model.

    Raises:
        RegistrationFailed, UpstreamUnavailable, UpstreamTimeout: see `set_model_url`.
    """
    if registration.model is not None and sets_url(target, registration):
        await set_model_url(calls, turns, agent_id, registration.model)


async def _make_group(steps: Steps, registration: Registration) -> str:
    """Make the model's group and return its id; "" if the caller may not, so that the cluster chooses the group.

    Raises:
        RegistrationFailed, UpstreamUnavailable, UpstreamTimeout: see `Steps`.
    """
    try:
        group = await steps.make("model_groups", model_group_body(registration, steps.tag))
    except RegistrationFailed as failed:
        if failed.status != 403:
            raise
        return ""
    return str((group.document or {})["model_group_id"])


async def _help_for(calls: Calls, reason: str, url: str) -> str:
    """Return the call that allows an address which the cluster does not trust, "" for any other refusal.

    url: the address, if the refusal does not contain it.
    """
    untrusted = _UNTRUSTED.search(reason)
    if untrusted is None:
        return ""
    where = urlsplit(untrusted[1] or url)
    address = f"^{where.scheme}://{re.escape(where.netloc)}(/.*)?$"
    try:
        settings = await calls("GET", _ENDPOINTS)
        trusted = read_setting(settings.document, _TRUSTED) if settings.good else None
    except LOST:
        trusted = None
    call = json.dumps({"persistent": {_TRUSTED: [*(trusted or ()), address]}})
    more = "" if trusted else " The list takes the place of the one that is set: add to that one."
    return f"An administrator runs: PUT /_cluster/settings {call}{more}"


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
            return await send_write(calls, turns, "PUT", path, body)
        except LOST:
            continue
    return await send_write(calls, turns, "PUT", path, body)


def unknown_model(agent: Made, spec: ModelSpec) -> Problem:
    """Return the problem of a model that may be left behind, because its agent could not be read."""
    name = f"Auto-generated model for {spec.model_id}"
    reason = f"the model that the cluster made for {agent} may be left behind: the agent could not be read"
    return Problem("", reason, code=LEFT_BEHIND, help=f"POST {ML}/models/_search shows models called {name}.")
