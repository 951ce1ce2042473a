"""The tools of the client beside `input`: every spelling, and every mistake at its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import InvalidInput
from gateway.unified.model import ClientTools, ToolSpec
from gateway.unified.request import read_execute

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
F = ToolSpec("f", "does it", SCHEMA)
G = ToolSpec("g", "", {"type": "object", "properties": {}})
NEUTRAL = {"name": "f", "description": "does it", "parameters": SCHEMA}


def read(**beside: Any) -> ClientTools | None:
    request = read_execute(json.dumps({"input": "hi", **beside}).encode())
    assert request.input is not None
    assert not request.other
    return request.input.tools


@pytest.mark.parametrize(
    "tool",
    [
        NEUTRAL,
        {"name": "f", "description": "does it", "input_schema": SCHEMA},
        {"name": "f", "description": "does it", "inputSchema": SCHEMA, "type": "custom"},
        {"type": "function", "function": NEUTRAL},
        {"type": "function", **NEUTRAL, "strict": False},
        {"type": "function", "function": {**NEUTRAL, "strict": None}},
        {"toolSpec": {"name": "f", "description": "does it", "inputSchema": {"json": SCHEMA}}},
    ],
)
def test_each_spelling(tool: Any) -> None:
    assert read(tools=[tool, {"name": "g"}]) == ClientTools((F, G))


def test_strict() -> None:
    found = read(tools=[{**NEUTRAL, "strict": True}])
    assert found is not None
    assert found.specs[0].strict


@pytest.mark.parametrize(
    ("choice", "required", "only"),
    [
        (None, False, ""),
        ("auto", False, ""),
        ({"type": "auto"}, False, ""),
        ("required", True, ""),
        ("any", True, ""),
        ({"type": "any"}, True, ""),
        ({"type": "function", "function": {"name": "f"}}, True, "f"),
        ({"type": "function", "name": "f"}, True, "f"),
        ({"type": "tool", "name": "f"}, True, "f"),
        ({"name": "f"}, True, "f"),
    ],
)
def test_each_choice(choice: Any, required: bool, only: str) -> None:
    assert read(tools=[NEUTRAL], tool_choice=choice) == ClientTools((F,), required, only)


@pytest.mark.parametrize(
    "beside", [{}, {"tools": []}, {"tools": None}, {"tools": [NEUTRAL], "tool_choice": "none"}, {"tool_choice": "auto"}]
)
def test_no_tools(beside: Any) -> None:
    assert read(**beside) is None


@pytest.mark.parametrize(
    ("beside", "place"),
    [
        ({"tools": {"name": "f"}}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"description": "d"}]}, "tools[0].name"),
        ({"tools": [{"name": " "}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "description": 1}]}, "tools[0].description"),
        ({"tools": [{"name": "f", "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{"name": "f", "parameters": {}, "input_schema": {}}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [{"name": "f", "x": 1}]}, "tools[0].x"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}, "x": 1}]}, "tools[0].x"),
        ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools[0].function.x"),
        ({"tools": [{"toolSpec": {"name": "f", "inputSchema": SCHEMA}}]}, "tools[0].toolSpec.inputSchema.json"),
        ({"tools": [NEUTRAL, NEUTRAL]}, "tools[1]"),
        ({"tools": [NEUTRAL], "tool_choice": "g"}, "tool_choice"),
        ({"tools": [NEUTRAL], "tool_choice": {"name": "g"}}, "tool_choice"),
        ({"tools": [NEUTRAL], "tool_choice": {"name": 1}}, "tool_choice"),
        ({"tools": [NEUTRAL], "tool_choice": 1}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_mistakes(beside: Any, place: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read(**beside)
    assert raised.value.problems[0].place == place


def test_a_legacy_body_is_not_read() -> None:
    request = read_execute(b'{"parameters": {"question": "hi"}, "tools": 1}')
    assert request.other == {"tools": 1}
    assert not request.offered


def test_long_texts_are_whole() -> None:
    """Long strings are taken out of the body while it is read."""
    text, request = "long ${a} " * 4000, {"name": "f"}
    found = read(tools=[{**request, "description": text, "parameters": {"description": text}}])
    assert found == ClientTools((ToolSpec("f", text, {"description": text}),))
