"""What guardrails are shown of inputs and answers, and how their changes are written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from gateway.execute.body import replace_members
from gateway.execute.policy_handler import _changed_body
from gateway.policy.guardrails import NoContent, answer_content, input_content, write_changes
from gateway.unified.model import Base64, Media, Text, ToolResult
from gateway.unified.request import read_execute
from tests.conftest import examples
from tests.strategies import executes

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def shown(body: Any) -> dict[str, Any]:
    return input_content(read_execute(json.dumps(body).encode())).document


def test_every_block_is_shown_with_its_place() -> None:
    user = [
        {"type": "text", "text": "hi"},
        {"type": "image", "source": {"type": "base64", "format": "png", "data": PIXEL}},
        {"type": "image", "source": {"type": "url", "format": "png", "url": "https://a.example/x.png"}},
    ]
    call = {"toolUse": {"toolUseId": "t", "name": "find", "input": {"q": 1}}}
    result = {"toolResult": {"toolUseId": "t", "content": [{"text": "found"}, {"json": {"a": 1}}]}}
    messages = [
        {"role": "user", "content": user},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"cachePoint": {"type": "default"}}]},
        {"role": "user", "content": "as text"},
    ]
    at = "input[2].content[0]"
    assert shown({"input": messages, "parameters": {"question": "old", "mood": 1}}) == {
        "type": "messages",
        "parameters": {"mood": 1},
        "messages": [
            {
                "role": "user",
                "place": "input[0]",
                "content": [
                    {"type": "text", "text": "hi", "place": "input[0].content[0]"},
                    {
                        "type": "image",
                        "format": "png",
                        "source": {"type": "base64", "characters": len(PIXEL)},
                        "place": "input[0].content[1]",
                    },
                    {
                        "type": "image",
                        "format": "png",
                        "source": {"type": "url", "url": "https://a.example/x.png"},
                        "place": "input[0].content[2]",
                    },
                ],
            },
            {
                "role": "assistant",
                "place": "input[1]",
                "content": [
                    {"type": "tool_use", "id": "t", "name": "find", "input": {"q": 1}, "place": "input[1].content[0]"}
                ],
            },
            {
                "role": "user",
                "place": "input[2]",
                "content": [
                    {
                        "type": "tool_result",
                        "id": "t",
                        "is_error": False,
                        "content": [
                            {"type": "text", "text": "found", "place": f"{at}.toolResult.content[0]"},
                            {"type": "json", "value": {"a": 1}, "place": f"{at}.toolResult.content[1]"},
                        ],
                        "place": at,
                    },
                    {"type": "cachePoint", "value": {"type": "default"}, "place": "input[2].content[1]"},
                ],
            },
            {
                "role": "user",
                "place": "input[3]",
                "content": [{"type": "text", "text": "as text", "place": "input[3].content"}],
            },
        ],
    }


def test_a_question_is_shown_as_a_text() -> None:
    text = {"type": "text", "text": "hi", "place": "parameters.question"}
    message = {"role": "user", "place": "parameters.question", "content": [text]}
    assert shown({"parameters": {"question": "hi", "memory_id": "m"}}) == {
        "type": "question",
        "messages": [message],
        "parameters": {"memory_id": "m"},
    }
    assert shown({"parameters": {"text": "hi"}}) == {"type": "question", "messages": [], "parameters": {"text": "hi"}}


def test_the_tools_of_the_client_are_shown() -> None:
    tools = {"tools": [{"name": "f", "description": "card 4111"}], "tool_choice": "auto"}
    assert shown({"input": "hi", **tools}) == {
        "type": "text",
        "messages": [{"role": "user", "place": "input", "content": [{"type": "text", "text": "hi", "place": "input"}]}],
        "parameters": {},
        **tools,
    }


@pytest.mark.parametrize("body", [b"{}", b'{"parameters": {}}', b'{"parameters": {"question": 1, "question": "b"}}'])
def test_what_cannot_be_shown(body: bytes) -> None:
    with pytest.raises(NoContent):
        input_content(read_execute(body))


CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
INPUTS: list[Any] = [
    "one text",
    [{"type": "text", "text": "block"}, {"text": "bare"}],
    [{"role": "user", "content": "string"}, {"role": "user", "content": [{"type": "text", "text": "a" * 5000}]}],
    [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "toolCalls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "toolCallId": "t", "content": [{"type": "text", "text": "result"}]},
    ],
    [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "typed"}]}],
    [{"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": [{"text": "in a result"}]}}]}],
]


@pytest.mark.parametrize("value", INPUTS)
def test_every_text_can_be_changed_at_its_place(value: Any) -> None:
    request = read_execute(json.dumps({"input": value, "parameters": {"a": 1}}).encode())
    content = input_content(request)
    old = dict(content._texts)
    for number, place in enumerate(old):
        content.change(place, f'new "{number}" \\ \u00e9')
    written = write_changes(json.loads(request.extracted.text), content.changes)
    changed = read_execute(b"".join(replace_members(request.extracted, written)))
    again = input_content(changed)
    assert [block["text"] for block in again._texts.values()] == [f'new "{n}" \\ \u00e9' for n in range(len(old))]
    assert list(again._texts) == list(old)
    assert changed.parameters == {"a": 1}


def _marked(blocks: Any) -> Any:
    """The same blocks, each text replaced by its place."""
    marked = []
    for block in blocks:
        if isinstance(block, Text):
            block = replace(block, text=f"new {block.at}")
        elif isinstance(block, ToolResult):
            block = replace(block, content=tuple(_marked(block.content)))
        elif isinstance(block, Media) and isinstance(block.source, Base64):
            block = replace(block, source=bytes(block.source.data))  # without its token, which differs
        marked.append(block)
    return tuple(marked)


@given(executes())
@examples(100)
def test_in_every_spelling_only_texts_change(execute: Any) -> None:
    request = read_execute(execute[0])
    content = input_content(request)
    for place in content._texts:
        content.change(place, f"new {place}")
    changed = read_execute(_changed_body(request, content.changes))
    assert request.input is not None
    assert changed.input is not None
    expected = [(one.role, one.at, _marked(one.content)) for one in request.input.messages]
    assert [(one.role, one.at, _marked(one.content)) for one in changed.input.messages] == expected
    again = input_content(changed)
    assert {place: block["text"] for place, block in again._texts.items()} == content.changes
    assert (changed.parameters, changed.other) == (request.parameters, request.other)


def test_answers_are_shown_and_changed() -> None:
    outputs = [
        {"name": "memory_id", "result": "m"},
        {"name": "response", "dataAsMap": {"response": "one", "additional_info": {}}},
        {"name": "tool", "result": "two"},
        {"name": "data", "dataAsMap": {"a": 1}},
    ]
    document = {"inference_results": [{"output": outputs}]}
    content = answer_content(document)
    at = "inference_results[0].output"
    blocks = content.document["messages"][0]["content"]
    assert [(block["type"], block["place"]) for block in blocks] == [
        ("text", f"{at}[1].dataAsMap.response"),
        ("text", f"{at}[2].result"),
        ("json", f"{at}[3].dataAsMap"),
    ]
    content.change(f"{at}[1].dataAsMap.response", "1")
    content.change(f"{at}[2].result", "2")
    changed = write_changes(document, content.changes)["inference_results"][0]["output"]
    assert changed[1]["dataAsMap"] == {"response": "1", "additional_info": {}}
    assert changed[2] == {"name": "tool", "result": "2"}
    assert outputs[2]["result"] == "two"


@pytest.mark.parametrize("document", [None, [], {}, {"task_id": "t", "status": "RUNNING"}, {"message": "no"}])
def test_an_answer_that_cannot_be_shown(document: Any) -> None:
    with pytest.raises(NoContent):
        answer_content(document)
