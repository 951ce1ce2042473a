"""The names of the differences between two LLM calls, of one API and of two."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.migrate.llm_call import LlmCall, differences

BEDROCK, OPENAI, GEMINI = "bedrock/converse", "openai/v1/chat/completions", "gemini/v1beta/generatecontent"
CLAUDE = "anthropic/v1/messages"
TOKEN = "gwb_0123456789abcdefx0x"


def _bedrock(*turns: Any, **members: Any) -> dict[str, Any]:
    return {"messages": list(turns), **members}


def _user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def _assistant(*parts: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(parts)}


ASKED = _user({"text": "Hello"})
IMAGE = {"image": {"format": "png", "source": {"bytes": TOKEN}}}
CALL = {"toolUse": {"toolUseId": "1", "name": "count", "input": {"of": "books"}}}
RESULT = {"toolResult": {"toolUseId": "1", "content": [{"text": "20"}]}}
SYSTEM = [{"text": "Be brief."}]

OF_ONE_API = [
    ("the same", _bedrock(ASKED), _bedrock(ASKED), ()),
    ("another spelling", _bedrock(ASKED), _bedrock({"role": "user", "content": [{"text": "Hello"}]}), ()),
    ("system text", _bedrock(ASKED, system=SYSTEM), _bedrock(ASKED), ("system text",)),
    ("a text", _bedrock(ASKED), _bedrock(_user({"text": "Hello!"})), ("prompt",)),
    ("one text of two", _bedrock(_user({"text": "a"}, {"text": "b"})), _bedrock(_user({"text": "a\nb"})), ("prompt",)),
    ("order of parts", _bedrock(_user({"text": "a"}, IMAGE)), _bedrock(_user(IMAGE, {"text": "a"})), ("order",)),
    ("turns are joined", _bedrock(ASKED, ASKED), _bedrock(_user({"text": "Hello"}, {"text": "Hello"})), ("order",)),
    ("no image", _bedrock(_user({"text": "a"}, IMAGE)), _bedrock(_user({"text": "a"})), ("media",)),
    ("tool calls", _bedrock(_assistant(CALL), _user(RESULT)), _bedrock(_assistant(CALL)), ("tool calls",)),
    ("tools", _bedrock(ASKED, toolConfig={"tools": [1]}), _bedrock(ASKED), ("tools",)),
    (
        "other members, by their names",
        _bedrock(ASKED, inferenceConfig={"maxTokens": 100}),
        _bedrock(ASKED, inferenceConfig={"maxTokens": 200}, performanceConfig={}),
        ("inferenceConfig", "performanceConfig"),
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "names"), [case[1:] for case in OF_ONE_API], ids=[case[0] for case in OF_ONE_API]
)
def test_what_differs_for_one_api(old: Any, new: Any, names: tuple[str, ...]) -> None:
    assert differences(LlmCall.read(BEDROCK, old), LlmCall.read(BEDROCK, new)) == names
    assert sorted(differences(LlmCall.read(BEDROCK, new), LlmCall.read(BEDROCK, old))) == sorted(names)


def test_a_system_turn_at_another_place_is_another_order() -> None:
    system, asked = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}
    old, new = (LlmCall.read(OPENAI, {"messages": list(turns)}) for turns in ((system, asked), (asked, system)))
    assert differences(old, new) == ("order",)


BODIES: dict[str, dict[str, Any]] = {
    BEDROCK: _bedrock(_user({"text": "How many?"}, IMAGE), _assistant(CALL), _user(RESULT), system=SYSTEM),
    OPENAI: {
        "messages": [
            {"role": "system", "content": "Be brief."},
            _user(
                {"type": "text", "text": "How many?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{TOKEN}"}},
            ),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "count", "arguments": '{"of": "books"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "20"},
        ]
    },
    GEMINI: {
        "systemInstruction": {"parts": SYSTEM},
        "contents": [
            {
                "role": "user",
                "parts": [{"text": "How many?"}, {"inlineData": {"mimeType": "image/png", "data": TOKEN}}],
            },
            {"role": "model", "parts": [{"functionCall": {"name": "count", "args": {"of": "books"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "count", "response": {"result": "20"}}}]},
        ],
    },
    CLAUDE: {
        "system": "Be brief.",
        "messages": [
            _user(
                {"type": "text", "text": "How many?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": TOKEN}},
            ),
            _assistant({"type": "tool_use", "id": "1", "name": "count", "input": {"of": "books"}}),
            _user({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "20"}]}),
        ],
    },
}
"""One conversation, with a system text, an image, a call and its result, as each API takes it."""


@pytest.mark.parametrize("new", BODIES)
@pytest.mark.parametrize("old", BODIES)
def test_one_conversation_in_the_forms_of_two_apis_differs_by_the_provider_alone(old: str, new: str) -> None:
    found = differences(LlmCall.read(old, BODIES[old]), LlmCall.read(new, BODIES[new]))
    assert found == (() if old == new else ("provider",))


def test_a_lost_image_is_seen_between_two_apis() -> None:
    without = {"contents": [{"role": "user", "parts": [{"text": "How many?"}]}, *BODIES[GEMINI]["contents"][1:]]}
    new = LlmCall.read(GEMINI, {**without, "systemInstruction": {"parts": SYSTEM}})
    assert differences(LlmCall.read(BEDROCK, BODIES[BEDROCK]), new) == ("provider", "media")


def test_notices_have_signs() -> None:
    old, new = (LlmCall.read(BEDROCK, _bedrock(ASKED), frozenset(codes)) for codes in (["A", "B"], ["B", "C"]))
    assert differences(old, new) == ("+C", "-A")


def test_bodies_of_no_known_format_are_compared_by_their_members() -> None:
    old = LlmCall.read("", {"prompt": "Human: a", "max_tokens": 10})
    assert differences(old, LlmCall.read("", {"prompt": "Human: b", "max_tokens": 20})) == ("max_tokens", "prompt")
    assert differences(old, LlmCall.read("", "text")) == ("body", "max_tokens", "prompt")
