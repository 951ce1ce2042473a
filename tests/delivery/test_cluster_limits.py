"""Input that a unified agent's cluster can't serve is refused before it is sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.delivery.refusal import refuse_cluster_limits
from gateway.errors import UndeliverableContent
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Tool
from gateway.unified.request import read_execute

V2 = AgentProfile("a", "a", "conversational_v2", (3, 6, 0), Generation.UNIFIED_V2, unified_api=True)
PDF = {"type": "document", "source": {"type": "base64", "format": "pdf", "data": "JVBERi0="}}
TEXT = {"type": "text", "text": "hello"}


TOOL = Tool("VisualizationTool", "none")
CONVERSATIONAL = AgentProfile(
    "a", "a", "conversational", (3, 6, 0), Generation.FUNCTION_CALLING, memory_type="conversation_index"
)
CALLING = {"_llm_interface": "bedrock/converse/claude"}


def refused(profile: AgentProfile, *blocks: Any, **params: str) -> list[tuple[str, str]]:
    conversation = read_execute(msgspec.json.encode({"input": blocks})).input
    assert conversation is not None
    try:
        refuse_cluster_limits(profile, params)
    except UndeliverableContent as error:
        return [(problem.place, problem.code) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("changes", "blocks", "expected"),
    [
        ({"provider": "bedrock/converse"}, [TEXT, PDF], []),
        ({"provider": "bedrock/converse", "unified_api": False}, [TEXT], [("input", "UNIFIED_API_OFF")]),
        ({"provider": "bedrock/converse", "unified_api": None}, [TEXT], []),
        ({"provider": "gemini/v1beta/generatecontent"}, [TEXT], [("input", "ANSWER_NOT_READ")]),
        ({"provider": "gemini/v1beta/generatecontent", "version": (3, 9, 0)}, [TEXT], [("input", "ANSWER_NOT_READ")]),
        (
            {"provider": "gemini/v1beta/generatecontent", "generation": Generation.UNIFIED_V1, "parameters": CALLING},
            [TEXT],
            [],
        ),
    ],
)
def test_what_the_cluster_cannot_serve(changes: dict[str, Any], blocks: list[Any], expected: list[Any]) -> None:
    assert refused(replace(V2, **changes), *blocks) == expected


def test_tool_result_last_for_gemini() -> None:
    """The cluster would call the LLM and then answer 500 (34_conversational_v2_more)."""
    call = {
        "role": "assistant",
        "toolCalls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    result = {"role": "tool", "toolCallId": "1", "content": [TEXT]}
    profile = replace(V2, provider="gemini/v1beta/generatecontent")
    assert refused(profile, {"role": "user", "content": [TEXT]}, call, result) == [("input", "ANSWER_NOT_READ")]


NO_TOOL, NO_MEMORY = ("agents/a.tools", "TOOL_MISSING"), ("agents/a.memory", "MEMORY_MISSING")
OLD = {"version": (2, 19, 0), "generation": Generation.TEXT}


@pytest.mark.parametrize(
    ("changes", "params", "expected"),
    [
        ({}, {}, [NO_TOOL]),
        (OLD, {}, [NO_TOOL]),
        (OLD | {"parameters": CALLING}, {}, [NO_TOOL]),
        (OLD | {"tools": (TOOL,)}, {}, []),
        (OLD | {"tools": (TOOL,), "memory_type": ""}, {}, [NO_MEMORY]),
        (OLD | {"memory_type": ""}, {}, [NO_TOOL, NO_MEMORY]),
        ({"tools": (TOOL,)}, {}, []),
        ({"tools": (TOOL,), "memory_type": ""}, {}, []),
        ({"tools": (TOOL,)}, {"selected_tools": "[]"}, [("parameters.selected_tools", "TOOL_MISSING")]),
        ({"tools": (TOOL,)}, {"selected_tools": '["none"]'}, []),
        ({"tools": (TOOL,)}, {"selected_tools": "none"}, []),  # reported when the request is planned
        ({"parameters": CALLING}, {}, []),
        ({}, CALLING, []),
        ({"version": (9, 0, 0)}, {}, [NO_TOOL]),  # as on the newest version that is known
        ({"type": "plan_execute_and_reflect"}, {}, []),
        ({"type": "flow"}, {}, [NO_TOOL]),
        ({"type": "conversational_flow"} | OLD, {}, [NO_TOOL]),
        ({"type": "flow", "tools": (TOOL,), "memory_type": ""} | OLD, {}, []),
        (
            {"type": "conversational_v2", "generation": Generation.UNIFIED_V2, "provider": "bedrock/converse"},
            {},
            [],
        ),
    ],
)
def test_an_agent_that_cannot_run(changes: dict[str, Any], params: dict[str, str], expected: list[Any]) -> None:
    """Facts, "Agents without tools, and registrations at once"."""
    assert refused(replace(CONVERSATIONAL, **changes), TEXT, **params) == expected


@pytest.mark.parametrize(
    ("changes", "params", "help"),
    [
        ({}, {}, "register the agent again with a tool that it won't need: {"),
        ({"type": "flow"}, {}, "register the agent again with an MLModelTool that names the model"),
        ({"tools": (TOOL,)}, {"selected_tools": "[]"}, "name at least one of none"),
    ],
)
def test_the_remedy_of_an_agent_without_tools(changes: dict[str, Any], params: dict[str, str], help: str) -> None:
    conversation = read_execute(b'{"input":"hello"}').input
    assert conversation is not None
    with pytest.raises(UndeliverableContent) as refusal:
        refuse_cluster_limits(replace(CONVERSATIONAL, **changes), params)
    assert refusal.value.problems[0].help.startswith(help)
