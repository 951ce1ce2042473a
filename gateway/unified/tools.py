"""Tool calls, their results, and `tools` and `tool_choice` beside `input`: tools that the client runs itself.

{"toolUse": {toolUseId, name, input}}, {"toolResult": {toolUseId, content, status?}}      Strands, Converse
{"type": "tool_use", id, name, input}, {"type": "tool_result", tool_use_id, content}      Anthropic
message members toolCalls, toolCallId (ML Commons) or tool_calls, tool_call_id (OpenAI)

{"name", "description", "parameters"}                          neutral; `input_schema` and `inputSchema` mean the same
{"type": "function", "function": {name, description, parameters, strict}}    OpenAI's chat completions
{"type": "function", "name", "description", "parameters", "strict"}          OpenAI's responses
{"toolSpec": {name, description, inputSchema: {"json": …}}}                  Converse
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.unified.jsontext import decode_text
from gateway.unified.model import ClientTools, Json, Media, Text, ToolResult, ToolSpec, ToolUse
from gateway.unified.validate import Fields, Reading, child, json_type, shorten

ResultContent = Text | Json | Media
ReadContent = Callable[[Reading, Any, str], list[ResultContent]]


SIGNATURES = ("reasoningSignature", "thoughtSignature", "thought_signature")
"""Names of a signature: Strands', Gemini's, and Gemini's in snake case."""


def read_signature(holder: Fields) -> str:
    """Return the signature that is a member of `holder`; "" if there is none."""
    if all(holder.peek(name) is None for name in SIGNATURES):
        return ""  # so that errors about other members don't list these
    member = holder.one_of(SIGNATURES)
    return (holder.string(member) or "") if member else ""


def read_tool_use(block: Fields) -> ToolUse | None:
    """Read ``{"toolUse": {…}}``."""
    body = block.object("toolUse")
    if body is None:
        return None
    use = _tool_use(body, "toolUseId", block.at)
    body.done()
    return use


def read_typed_tool_use(block: Fields) -> ToolUse | None:
    """Read ``{"type": "tool_use", …}``."""
    return _tool_use(block, "id", block.at)


def _tool_use(body: Fields, id_name: str, at: str) -> ToolUse | None:
    id = body.name(id_name, required=False)
    name = body.name("name")
    arguments = body.value("input")
    signature = read_signature(body)
    return ToolUse(id or "", name, arguments, at, signature) if name and arguments is not None else None


def read_tool_result(block: Fields, read_content: ReadContent) -> ToolResult | None:
    """Read ``{"toolResult": {…}}``. read_content: reads the blocks in it."""
    body = block.object("toolResult")
    if body is None:
        return None
    id = body.name("toolUseId")
    status = body.string("status", required=False)
    if status not in (None, "success", "error"):
        body.problem("status", "Unknown status", '"success" or "error"', shorten(status or ""))
    result = _tool_result(body, id, status == "error", block.at, read_content)
    body.done()
    return result


def read_typed_tool_result(block: Fields, read_content: ReadContent) -> ToolResult | None:
    """Read ``{"type": "tool_result", …}``."""
    id = block.name("tool_use_id")
    failed = block.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        block.problem("is_error", '"is_error" has the wrong type', "boolean", json_type(failed))
    return _tool_result(block, id, failed is True, block.at, read_content)


def read_tool_message(message: Fields, id_name: str, read_content: ReadContent) -> ToolResult | None:
    """Read a message of role ``tool``: its content is the result, its `name` is the tool's."""
    id = message.name(id_name)
    name = message.name("name", required=False)
    return _tool_result(message, id, False, message.at, read_content, name or "")


def _tool_result(
    body: Fields, id: str | None, failed: bool, at: str, read_content: ReadContent, name: str = ""
) -> ToolResult | None:
    written = body.get("content")
    place = body.place("content")
    content = [Text("", place)] if written in (None, []) else read_content(body.reading, written, place)
    return ToolResult(id, tuple(content), failed, at, name) if id else None


def read_tool_calls(message: Fields, name: str) -> list[ToolUse]:
    """Read the calls in a message's ``toolCalls`` or ``tool_calls``."""
    uses = []
    calls = message.array(name) or []
    message.reading.add_items(len(calls), message.place(name))
    for index, item in enumerate(calls):
        at = child(message.place(name), index)
        if not isinstance(item, dict):
            message.reading.problems.add(at, "Not a tool call", "object with id, type and function", json_type(item))
            continue
        call = Fields(message.reading, item, at)
        use = _tool_call(call)
        call.done(frozenset({"index"}))
        if use:
            uses.append(use)
    return uses


def _tool_call(call: Fields) -> ToolUse | None:
    id = call.name("id", required=False)
    written = call.string("type", '"function"', required=False)
    if written not in (None, "function"):
        call.problem("type", "Unsupported type of tool call", '"function"', shorten(written or ""))
    function = call.object("function", "object with name and arguments")
    if function is None:
        return None
    name = function.name("name")
    arguments = _arguments(function)
    signature = _call_signature(call, function)
    function.done()
    return ToolUse(id or "", name, arguments, call.at, signature) if name and arguments is not None else None


def _call_signature(call: Fields, function: Fields) -> str:
    """Return the signature of a call, "" without one, from one of these places.

    extra_content.google.thought_signature: Google's own OpenAI API. provider_specific_fields.thought_signature, of the
    call or its function: LiteLLM. A member of the call: other clients.
    """
    given = {
        read_signature(call),
        read_nested(call, ("extra_content", "google", "thought_signature")),
        *(read_nested(fields, ("provider_specific_fields", "thought_signature")) for fields in (call, function)),
    } - {""}
    if len(given) > 1:
        call.reading.problems.add(call.at, "The call has two signatures", "one signature", "two that differ")
    return min(given, default="")


def read_nested(holder: Fields, path: tuple[str, ...]) -> str:
    """Return the string at a path of members, "" if there is none.

    Any other member of the objects on the path is a problem.
    """
    name, *rest = path
    if not rest:
        return holder.string(name, required=False) or ""
    inner = holder.object(name, required=False)
    if inner is None:
        return ""
    found = read_nested(inner, tuple(rest))
    inner.done()
    return found


def _arguments(function: Fields) -> dict[str, Any] | None:
    """Read the arguments: an object or its JSON text. The empty string means no arguments."""
    expected = "a JSON object, or a string that holds one"
    written = function.require("arguments", expected)
    if isinstance(written, dict):
        return function.value("arguments")
    if not isinstance(written, str):
        if written is not None:
            function.problem("arguments", '"arguments" has the wrong type', expected, json_type(written))
        return None
    text = function.string("arguments") or ""
    if not text.strip():
        return {}
    known = len(function.reading.problems)
    value = decode_text(text, function.place("arguments"), function.reading)
    if isinstance(value, dict):
        return value
    if len(function.reading.problems) == known:
        function.problem("arguments", "The arguments are not an object", expected, json_type(value))
    return None


MEMBERS = ("tools", "tool_choice")
_SCHEMAS = ("parameters", "input_schema", "inputSchema")
_TYPES = (None, "function", "custom")
_NO_INPUT = {"type": "object", "properties": {}}
"""The schema of a tool that names none."""
_MODES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_CHOICE = '"auto", "none", "required", or an object that names one of the tools'


def read_client_tools(reading: Reading, members: dict[str, Any]) -> ClientTools | None:
    """Return the tools; None if there are none, or the LLM is to call none. members: of the request's body."""
    written = members.get("tools")
    if written is not None and not isinstance(written, list):
        reading.problems.add("tools", '"tools" has the wrong type', "array of tools", json_type(written))
        return None
    items = written or []
    reading.add_items(len(items), "tools")
    specs: dict[str, ToolSpec] = {}
    for index, item in enumerate(items):
        at = child("tools", index)
        spec = _read_tool(reading, item, at)
        if spec is not None and specs.setdefault(spec.name, spec) is not spec:
            reading.problems.add(at, "Two tools have the same name", "a name for each tool", shorten(spec.name))
    mode, only = _read_choice(reading, members.get("tool_choice"), specs)
    return ClientTools(tuple(specs.values()), mode == "required", only) if specs and mode != "none" else None


def _read_tool(reading: Reading, item: Any, at: str) -> ToolSpec | None:
    if not isinstance(item, dict):
        reading.problems.add(at, "Not a tool", "object with name, description and parameters", json_type(item))
        return None
    tool = Fields(reading, item, at)
    if tool.peek("toolSpec") is not None:
        body, is_converse = tool.object("toolSpec"), True
    else:
        is_converse = False
        written = tool.get("type")
        if written not in _TYPES:
            received = shorten(written) if isinstance(written, str) else json_type(written)
            help = "Leave it out: the agent's LLM can only call functions that the client runs."
            tool.problem("type", "Unsupported type of tool", '"function"', received, help)
            return None
        body = tool.object("function") if tool.peek("function") is not None else tool
    if body is None:
        return None
    spec = _read_spec(body, is_converse)
    body.done()
    if body is not tool:
        tool.done()
    return spec


def _read_spec(body: Fields, is_converse: bool) -> ToolSpec | None:
    name = body.name("name")
    description = body.string("description", required=False) or ""
    strict = body.get("strict")
    if strict is not None and not isinstance(strict, bool):
        body.problem("strict", '"strict" has the wrong type', "boolean", json_type(strict))
    member = body.one_of(_SCHEMAS)
    if is_converse and member:
        container = body.object(member)
        schema = container.value("json") if container is not None else None
        if container is not None:
            container.done()
    else:
        schema = body.value(member) if member else dict(_NO_INPUT)
    return ToolSpec(name, description, schema, strict is True) if name and schema is not None else None


def _read_choice(reading: Reading, choice: Any, specs: dict[str, ToolSpec]) -> tuple[str, str]:
    """Return the mode (auto, none or required), and the only tool to call, "" for any."""
    mode: Any = choice
    only: Any = ""
    if isinstance(choice, dict):
        function = choice.get("function")
        only = (function if isinstance(function, dict) else choice).get("name", "")
        mode = "required" if only else choice.get("type")
    if mode is None:
        return "auto", ""
    known = _MODES.get(mode) if isinstance(mode, str) else None
    if known is None or not isinstance(only, str):
        received = shorten(choice) if isinstance(choice, str) else json_type(choice)
        reading.problems.add("tool_choice", "Unknown choice of a tool", _CHOICE, received)
        return "auto", ""
    if (only and only not in specs) or (known == "required" and not specs):
        wrong = "The choice names a tool that is not there" if only else "A tool has to be called, and there are none"
        expected = "one of the names in tools" if specs else '"tools" beside it'
        reading.problems.add("tool_choice", wrong, expected, shorten(only or known))
    return known, only
