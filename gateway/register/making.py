"""Makes an agent: reads what the cluster supports, then makes connectors, model and agent."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from gateway.agents.cluster import read_setting, read_switch, read_unified_api, read_version
from gateway.agents.errors import LookupFailed, lookup_error
from gateway.config.schema import Secret
from gateway.errors import GatewayError, Problem, RegistrationFailed
from gateway.register.calls import LOST, Calls, Reply
from gateway.register.documents import agent_body, mcp_connector_body, model_body, model_group_body
from gateway.register.model_url import set_model_url, unknown_model
from gateway.register.specs import Registration
from gateway.register.steps import Steps, note_parts
from gateway.register.target import PLAN, Target, makes_model, sets_url

_PREFIX = "plugins.ml_commons."
_MCP_ENABLED = f"{_PREFIX}mcp_connector_enabled"
_TRUSTED = f"{_PREFIX}trusted_connector_endpoints_regex"
_SETTINGS = "/_cluster/settings?include_defaults=true&filter_path="
# Without `flat_settings`, as `gateway.agents.reader.SETTINGS_PATH`.
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
