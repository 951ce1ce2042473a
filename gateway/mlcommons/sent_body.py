"""What a connector makes of a rendered body before it sends it (3.3 and later).

By the sources of 3.3.0 to 3.8.0; run on 3.6.0 and 3.8.0 (docs/evidence/facts.md, "From the rendered body to the one
that is sent"). The endpoint ``_execute/stream`` adds the parameter `stream` to each request. The connector goes by that
alone, so a streamed request is one that has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import AgentType
from gateway.mlcommons.profile import AgentProfile, Connector, Model

STREAM = "stream"
"""The parameter of a streamed request."""
_FIRST = (3, 3)
_STRUCTURED_OUTPUT = (3, 7)
_IMAGES_IN_STREAMS = (3, 5)
_GUARDRAIL = ("guardrailIdentifier", "guardrailVersion", "trace")
_STRUCTURED = re.compile(r"_(?:response_format|generationConfig|toolConfig)(?:_additions)?_json")
_PROCESSORS = "input_processors"
_NO_PROCESSORS = ("", "[]", "null")


class StreamForm(Enum):
    """How a connector streams. CHAT: it adds ``"stream": true``. CONVERSE: it makes a new request with AWS's SDK."""

    CHAT = "openai/v1/chat/completions"
    CONVERSE = "bedrock/converse/claude"


_PROTOCOLS = {"http": StreamForm.CHAT, "aws_sigv4": StreamForm.CONVERSE}


def has_streams(profile: AgentProfile) -> bool:
    """Return True if the cluster knows streams."""
    return not profile.version or profile.version >= _FIRST


def stream_form(profile: AgentProfile, params: Mapping[str, str]) -> StreamForm | None:
    """Return how the agent streams; None if it can't: the LLM is not called then, or its answer gets lost.

    params: the request's. Only conversational agents stream, and only those that call functions.
    """
    if profile.agent_type not in (AgentType.CONVERSATIONAL, AgentType.AG_UI) or profile.llm is None:
        return None
    return _form(profile.llm.connector, {**profile.llm_parameters, **profile.parameters, **params})


def has_processors(profile: AgentProfile, params: Mapping[str, str]) -> bool:
    """Return True if a connector of the agent's changes the body by processors, which are not rendered here."""
    return has_streams(profile) and any(map(_names_processors, (params, *_own_values(profile))))


def is_written_again(profile: AgentProfile, params: Mapping[str, str]) -> bool:
    """Return True if the cluster may read a rendered body and write it again before it looks for placeholders."""
    if not has_streams(profile):
        return False
    structures = any(_structures(profile, params, *_own_values(profile)))
    return STREAM in params or structures or has_processors(profile, params)


def own_stream(profile: AgentProfile) -> bool:
    """Return True if the agent or a connector has a parameter `stream`: only streamed runs are answered then."""
    return has_streams(profile) and any(STREAM in values for values in _own_values(profile))


def sent_body(model: Model, values: Mapping[str, str], profile: AgentProfile, text: str, body: Any) -> tuple[str, Any]:
    """Return the text in which the cluster looks for placeholders, and the body that it sends.

    text, body: as rendered.

    Raises:
        RenderFailure: the LLM is not called.
    """
    if not has_streams(profile):
        return text, body
    values = {**model.connector.parameters, **values}
    form = None
    if STREAM in values:
        form = _form(model.connector, values)
        if form is None:
            raise RenderFailure("the connector can't stream")
        if not isinstance(body, dict):
            raise RenderFailure("the body of a stream must be an object")
    if form is StreamForm.CHAT or _names_processors(values) or any(_structures(profile, values)):
        text = _written(body if form is None else {**body, STREAM: True})
        body = json.loads(text)
    return text, _converse(body, profile.version) if form is StreamForm.CONVERSE else body


def _own_values(profile: AgentProfile) -> Iterable[Mapping[str, str]]:
    yield profile.parameters
    yield profile.llm_parameters
    for tool in profile.tools:
        yield tool.parameters
        yield tool.config
    for model in profile.models:
        yield model.connector.parameters


def _names_processors(values: Mapping[str, str]) -> bool:
    return values.get(_PROCESSORS, "").strip() not in _NO_PROCESSORS


def _structures(profile: AgentProfile, *values: Mapping[str, str]) -> Iterable[str]:
    """Yield the parameters that a connector with structured output adds to the body (3.7 and later)."""
    if not profile.version or profile.version >= _STRUCTURED_OUTPUT:
        yield from (name for names in values for name in names if _STRUCTURED.fullmatch(name))


def _form(connector: Connector, values: Mapping[str, str]) -> StreamForm | None:
    interface = {**connector.parameters, **values}.get("_llm_interface", "").strip().lower()
    form = _PROTOCOLS.get(connector.protocol)
    return form if form is not None and form.value == interface else None


def _written(body: Any) -> str:
    """Return `body` as the cluster writes and sends it: UTF-8, in which half a surrogate pair is a question mark."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace").decode()


def _converse(body: dict[str, Any], version: tuple[int, ...]) -> dict[str, Any]:
    """Return the request to Converse that the cluster makes of `body`. It knows few members and drops all others.

    Raises:
        RenderFailure: a member that it needs is missing.
    """
    is_newer = not version or version >= _IMAGES_IN_STREAMS
    made: dict[str, Any] = {}
    try:
        if (system := body.get("system")) is not None:
            made["system"] = [{"text": block["text"]} for block in system if "text" in block]
        if (turns := body.get("messages")) is not None:
            made["messages"] = [
                {
                    "role": turn.get("role", "assistant"),
                    "content": [part for block in _blocks(turn) for part in _parts(block, is_newer)],
                }
                for turn in turns
            ]
        if (tools := (body.get("toolConfig") or {}).get("tools")) is not None:
            made["toolConfig"] = {
                "tools": [{"toolSpec": _spec(tool["toolSpec"])} for tool in tools if "toolSpec" in tool]
            }
        if is_newer and (guardrail := body.get("guardrailConfig")) is not None:
            kept = {name: guardrail[name] for name in _GUARDRAIL if name in guardrail}
            made["guardrailConfig"] = {**kept, "streamProcessingMode": "async"}
        return json.loads(_written(made))  # type: ignore[no-any-return]
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError):
        raise RenderFailure("the cluster can't make a stream's request of this body") from None


def _blocks(turn: Mapping[str, Any]) -> list[Any]:
    content = turn.get("content")
    return content if isinstance(content, list) else []


def _parts(block: Mapping[str, Any], has_images: bool) -> Iterable[dict[str, Any]]:
    if "text" in block:
        yield {"text": block["text"]}
    if has_images and "bytes" in block.get("image", {}).get("source", {}):
        image = block["image"]
        yield {"image": {"format": image.get("format", "png"), "source": {"bytes": image["source"]["bytes"]}}}
    if "toolResult" in block:
        result = block["toolResult"]
        content = result["content"]
        text = content if isinstance(content, str) else content[0]["text"] if content else ""
        yield {"toolResult": {"toolUseId": result["toolUseId"], "content": [{"text": text}]}}
    if "toolUse" in block:
        call = block["toolUse"]
        made = {"toolUseId": call["toolUseId"], "name": call["name"], "input": _document(call.get("input", {}))}
        yield {"toolUse": made}


def _spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"json": _document(spec["inputSchema"]["json"])}
    return {"name": spec["name"], "description": spec["description"], "inputSchema": schema}


def _document(value: Any) -> Any:
    """Return JSON data as a document of AWS's SDK: no null, and a double for each number beyond 32 bits."""
    match value:
        case dict():
            return {name: _document(item) for name, item in value.items()}
        case list():
            return [_document(item) for item in value]
        case None:
            return "null"
        case int() if not isinstance(value, bool) and not -(2**31) <= value < 2**31:
            return float(value)
    return value
