"""Reads a registration: strict JSON, then its rules. Every problem has its place, and none shows a credential. Pure.

The members of `model` are the RFC's (3.8.0.0 source, MLAgentModelSpec), and `url`. The names of credentials are those
of ML Commons' own connectors for these providers.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from gateway.config.schema import Secret
from gateway.errors import InvalidInput
from gateway.mlcommons.generations import AgentType
from gateway.providers import registry
from gateway.providers.connector import ModelSpec, as_name
from gateway.register.target import (
    CONVERSATION_INDEX,
    MCP_PROTOCOLS,
    MEMORIES,
    TYPES,
    V2,
    McpServer,
    Registration,
    own_mcp_connectors,
)
from gateway.unified.jsonstrings import WINDOW, find
from gateway.unified.jsontext import check, parse
from gateway.unified.limits import ParseLimits
from gateway.unified.payloads import extract
from gateway.unified.request import parameters_as_strings
from gateway.unified.validate import Fields, Problems, Reading, child, did_you_mean, json_type, shorten

_NEWER = re.compile(rb"agentic_memory|conversational(_|\\?/)v2|\\u", re.IGNORECASE)
"""What the body of every registration has that `read_newer` finds."""
_LONGEST = len(rb"conversational\/v2")


def concerns_gateway(body: bytes, limits: ParseLimits | None = None) -> bool:
    """Return True if a registration has a `model` or an `mcp` block. The cluster refuses a body that is not JSON.

    Raises:
        InvalidInput, BodyTooLarge: it may have one, but reading it costs more than the limits allow.
    """
    document = _parse(body, limits) if _may_concern(body) else None
    return document is not None and _has_parts(document)


def read_newer(body: bytes, limits: ParseLimits | None = None) -> Registration | None:
    """Read type and memory of a registration without `model` and `mcp` that asks for what older clusters lack.

    That is the type `conversational_v2`, or another memory than a `conversation_index`. None for any other body.

    Raises:
        InvalidInput, BodyTooLarge: it may be one, but reading it costs more than the limits allow.
    """
    document = _parse(body, limits) if _may_be_newer(body) else None
    if document is None or _has_parts(document):
        return None
    given, memory = document.get("type"), document.get("memory")
    type_ = AgentType.of(given) if isinstance(given, str) else None
    asked = memory.get("type") if isinstance(memory, dict) else None
    asked = asked.lower() if isinstance(asked, str) else ""
    if type_ is None or not (type_ == V2 or (asked in MEMORIES and asked != CONVERSATION_INDEX)):
        return None
    container = memory.get("memory_container_id") if isinstance(memory, dict) else None
    return Registration({"memory": {"type": asked, "memory_container_id": container}}, type=type_.value)


def read_registration(body: bytes, limits: ParseLimits | None = None) -> Registration | None:
    """Read the body of `POST /_plugins/_ml/agents/_register`; None if it has neither `model` nor `mcp`.

    limits: the default ones if it is None.

    Raises:
        BodyTooLarge: it has more text than the limits allow.
        InvalidInput: the body is not strict JSON, or invalid. Every problem has its place, and none shows a credential.
    """
    return _read(body, limits, _has_parts) if _may_concern(body) else None


def read_without_parts(body: bytes, limits: ParseLimits | None = None) -> Registration | None:
    """Read a registration without `model` and `mcp`; None if it has one of them.

    Raises:
        BodyTooLarge, InvalidInput: as `read_registration`.
    """
    return _read(body, limits, lambda document: not _has_parts(document))


def _read(
    body: bytes, limits: ParseLimits | None, concerns: Callable[[Mapping[str, Any]], bool]
) -> Registration | None:
    """Read a registration strictly; None if its document, as it was parsed, does not concern the caller."""
    limits = limits or ParseLimits()
    extracted = extract(body, limits=limits)
    problems = Problems(limits.problems)
    try:
        document = parse(extracted)
        if not concerns(document):
            return None
        check(document, extracted.text, problems, limits.depth)
        problems.check()
    except InvalidInput as error:
        raise InvalidInput.of([replace(problem, received="") for problem in error.problems]) from None
    reading = Reading(extracted)
    plain: dict[str, Any] = reading.plain(document, "")
    registration = read_document(reading, plain)
    reading.problems.check()
    return registration


def _parse(body: bytes, limits: ParseLimits | None) -> dict[str, Any] | None:
    """Return the document; None if it is not JSON.

    Raises:
        InvalidInput, BodyTooLarge: reading it costs more than the limits allow.
    """
    try:
        return parse(extract(body, limits=limits))
    except InvalidInput as error:
        if any(problem.code for problem in error.problems):
            raise
        return None


def _has_parts(document: Mapping[str, Any]) -> bool:
    return not (document.get("model") is None and document.get("mcp") is None)


def _may_be_newer(body: bytes) -> bool:
    """Search for `_NEWER` in windows, between which other threads can run."""
    return any(_NEWER.search(body, start, start + WINDOW + _LONGEST) for start in range(0, len(body), WINDOW))


def _may_concern(body: bytes) -> bool:
    """Return False if no key can be `model` or `mcp`, written plainly or with an escape.

    Such a body is forwarded; if it is not JSON, the cluster refuses it.
    """
    return any(find(body, name) >= 0 for name in (b'"model"', b'"mcp"', b"\\u"))


_TRANSPORTS = {
    "sse": "mcp_sse",
    "http": "mcp_streamable_http",
    "streamable_http": "mcp_streamable_http",
    "streamable-http": "mcp_streamable_http",
} | {name: name for name in MCP_PROTOCOLS}
_RESERVED = {"model", "body", "messages", "contents", "prompt", "service_name"}
_NUMBERS = {"temperature": (0.0, 2.0), "top_p": (0.0, 1.0)}
_PLAIN = re.compile(r'[^\s"\\$<>{}]+')
_REGION = re.compile(r"[a-z0-9-]+")
_CREDENTIAL_OF = re.compile(r"\$\{credential\.([^}]*)\}")


def read_document(reading: Reading, document: dict[str, Any]) -> Registration:
    """Read a registration, which is complete only if `reading` has no problems. document: without tokens."""
    fields = Fields(reading, document, "")
    fields.name("name")
    given = fields.string("type", required=False) or ""
    model = fields.object("model", required=False)
    if model and fields.has("llm"):
        help = "Remove `llm`: it is made from `model`."
        fields.problem("llm", '"llm" and "model" both name a model; give one of them', '"model" alone', "llm", help)
    _check_tools(fields)
    _check_memory(fields)
    _check_mcp_connectors(fields, fields.value("parameters", required=False) or {})
    rest = {name: value for name, value in document.items() if name not in ("model", "mcp") and value is not None}
    return Registration(rest, _model(model) if model else None, _mcp(fields), _type(fields, given), given)


def _type(fields: Fields, given: str) -> str:
    asked = AgentType.of(given) if given else AgentType.CONVERSATIONAL
    if asked is None:
        expected = f"one of {', '.join(TYPES)}"
        fields.problem("type", "Unknown agent type", expected, shorten(given), did_you_mean(given, TYPES))
    return (asked or AgentType.CONVERSATIONAL).value


def _model(fields: Fields) -> ModelSpec:
    model_id = fields.name("model_id") or ""
    if model_id and not _PLAIN.fullmatch(model_id):
        fields.problem("model_id", "Not a model's name", "text without spaces, quotes or braces", shorten(model_id))
    provider = _provider(fields)
    credential = _model_credential(fields, provider)
    parameters = _model_parameters(fields)
    url = fields.name("url", required=False) or ""
    if url:
        _check_url(fields, "url", url)
    fields.done()
    return ModelSpec(model_id, provider, credential, parameters, url)


def _provider(fields: Fields) -> str:
    known = list(registry.connectors())
    expected = f"one of {', '.join(known)}"
    given = fields.name("model_provider", expected) or ""
    if not given or given.lower() in known:
        return given.lower()
    near = difflib.get_close_matches(given.lower(), known, 1, 0.4)
    near = near or [name for name in known if name.partition("/")[0] == given.lower().partition("/")[0]]
    help = f"Did you mean {near[0]}?" if near else ""
    fields.problem("model_provider", "Unknown model provider", expected, shorten(given), help)
    return ""


def _model_credential(fields: Fields, provider: str) -> Mapping[str, Secret]:
    connector = registry.connectors().get(provider)
    ways = connector.credentials if connector else ()
    expected = " or ".join(" and ".join(way) for way in ways) or "object"
    credential = fields.object("credential", expected)
    if credential is None or connector is None:
        return {}
    optional = connector.optional_credentials
    known = [name for name in (*sum(ways, ()), *optional) if credential.has(name)]
    if not known:
        fields.problem("credential", "The credential is missing", expected, "nothing that this provider uses")
    else:
        way = next((way for way in ways if known[0] in way), ways[0])
        for name in way:
            credential.require(name, "non-empty string")
        for other in set(known) - set(way) - set(optional):
            credential.problem(other, f'Give either "{way[0]}" or "{other}", not both', expected, other)
    found = {name: Secret(text, name) for name in known if (text := credential.name(name))}
    credential.done()
    return found


def _model_parameters(fields: Fields) -> Mapping[str, str]:
    given = fields.value("model_parameters", required=False) or {}
    at = fields.place("model_parameters")
    add = fields.reading.problems.add
    parameters = parameters_as_strings({name: value for name, value in given.items() if value is not None})
    for name, text in parameters.items():
        place = child(at, name)
        if name in _RESERVED:
            add(place, f'"{name}" is set by the registration itself', "another parameter", name, "Remove it.")
        elif name in _NUMBERS:
            low, high = _NUMBERS[name]
            if not low <= _number(text) <= high:
                add(place, f'"{name}" is out of range', f"a number from {low:g} to {high:g}", shorten(text))
        elif name == "max_tokens" and not re.fullmatch(r"[1-9]\d{0,8}", text):
            add(place, '"max_tokens" is not a positive integer', "an integer above 0", shorten(text))
        elif name == "region" and not _REGION.fullmatch(text):
            add(place, '"region" is not the name of a region', "a region's name, such as us-east-1", shorten(text))
        elif name in ("system_prompt", "reasoning_effort") and not isinstance(given[name], str):
            add(place, f'"{name}" has the wrong type', "string", json_type(given[name]))
    return parameters


def _number(text: str) -> float:
    """Return the JSON number in `text`; NaN, which is outside every range, if it is not a number."""
    return float(text) if re.fullmatch(r"-?\d{1,20}(\.\d{1,20})?([eE][-+]?\d{1,2})?", text) else math.nan


def _check_url(fields: Fields, name: str, url: str) -> None:
    expected = "an http or https address without user and password"
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        good = False
    if not good or re.search(r"[\s\x00-\x20]", url):
        # Not shown: it may hold a password.
        fields.problem(name, f'"{name}" is not a valid address', expected, "another text")


def _check_tools(fields: Fields) -> None:
    names: set[str] = set()
    for index, tool in enumerate(fields.array("tools", "array of tools", required=False) or ()):
        place = child(fields.place("tools"), index)
        if not isinstance(tool, dict):
            fields.reading.problems.add(place, "Not a tool", 'an object with a "type"', json_type(tool))
            continue
        members = Fields(fields.reading, tool, place)
        type_ = members.name("type")
        name = members.name("name", required=False) or type_
        for member in ("parameters", "config", "attributes"):
            members.value(member, required=False)
        if name in names:
            members.problem("name", "Two tools have the same name", "a name of its own", shorten(name or ""))
        names.add(name or "")


def _check_memory(fields: Fields) -> None:
    memory = fields.object("memory", required=False)
    given = memory.name("type", required=False) if memory else None
    if memory and given and given.lower() not in MEMORIES:
        expected = f"one of {', '.join(MEMORIES)}"
        memory.problem("type", "Unknown type of memory", expected, shorten(given), did_you_mean(given, MEMORIES))


def _mcp(fields: Fields) -> tuple[McpServer, ...]:
    value = fields.get("mcp")
    if value is None:
        return ()
    many = isinstance(value, list)
    servers = []
    for index, item in enumerate(value if many else [value]):
        place = child("mcp", index) if many else "mcp"
        if isinstance(item, dict):
            servers.append(_server(Fields(fields.reading, item, place)))
        else:
            fields.reading.problems.add(place, "Not an MCP server", 'an object with a "url"', json_type(item))
    if value == []:
        fields.problem("mcp", '"mcp" names no server', "an MCP server, or a list of them", "empty array")
    return tuple(servers)


def _check_mcp_connectors(fields: Fields, parameters: Mapping[str, Any]) -> None:
    given = parameters.get("mcp_connectors")
    try:
        entries = own_mcp_connectors(parameters)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list):
        place = child(fields.place("parameters"), "mcp_connectors")
        expected = "an array of objects with mcp_connector_id, or its JSON text"
        fields.reading.problems.add(place, "Not a list of MCP connectors", expected, json_type(given))


def _server(fields: Fields) -> McpServer:
    url = fields.name("url") or ""
    if url:
        _check_url(fields, "url", url)
    name = fields.name("name", required=False) or "MCP server"
    if as_name(name) != name:
        fields.problem("name", "Not a connector's name", "letters, digits, spaces and .,!?():@-_/'\"", shorten(name))
    protocol = _protocol(fields)
    endpoint = fields.name(fields.one_of(("endpoint", "sse_endpoint")) or "endpoint", required=False) or ""
    if endpoint and not endpoint.startswith("/"):
        fields.problem("endpoint", "Not a path", "a path that begins with /", shorten(endpoint))
    values = fields.object("credential", required=False)
    names = list(fields.get("credential")) if values else []
    credential = {key: Secret(text, key) for key in names if values and (text := values.name(key))}
    headers = _headers(fields, set(names))
    tools = fields.one_of(("tools", "tool_filters")) or "tools"
    filters = fields.array(tools, "array of regular expressions", required=False) or []
    for index, item in enumerate(filters):
        if not isinstance(item, str) or not item.strip():
            place = child(fields.place(tools), index)
            fields.reading.problems.add(place, "Not a tool's name", "a regular expression", json_type(item))
    fields.done()
    return McpServer(name, url, protocol, endpoint, headers, credential, tuple(map(str, filters)))


def _protocol(fields: Fields) -> str:
    member = fields.one_of(("protocol", "transport"))
    if not member:
        return "mcp_sse"
    expected = f"one of {', '.join(_TRANSPORTS)}"
    given = fields.name(member, expected) or "mcp_sse"
    if given.lower() not in _TRANSPORTS:
        fields.problem(member, "Unknown MCP transport", expected, shorten(given), did_you_mean(given, _TRANSPORTS))
    return _TRANSPORTS.get(given.lower(), "mcp_sse")


def _headers(fields: Fields, credentials: set[str]) -> Mapping[str, str]:
    headers = fields.object("headers", required=False)
    if headers is None:
        return {}
    found: dict[str, str] = {}
    for name in fields.get("headers"):
        value = headers.string(name) or ""
        found[name] = value
        if re.search(r"[\r\n\x00]", name + value) or not name.strip():
            headers.problem(name, "Not a header", "a name and a value on one line", "another text")
        for unknown in set(_CREDENTIAL_OF.findall(value)) - credentials:
            headers.problem(name, f"There is no credential {shorten(unknown)}", "a member of `credential`")
    return found
