"""Reads `tools` and `tool_choice`, which stand beside `input`: tools that the client runs itself.

{"name", "description", "parameters"}                          neutral; `input_schema` and `inputSchema` mean the same
{"type": "function", "function": {name, description, parameters, strict}}    OpenAI's chat completions
{"type": "function", "name", "description", "parameters", "strict"}          OpenAI's responses
{"toolSpec": {name, description, inputSchema: {"json": …}}}                  Converse
"""

from __future__ import annotations

from typing import Any

from gateway.unified.model import ClientTools, ToolSpec
from gateway.unified.validate import Fields, Reading, child, json_type, shorten

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
