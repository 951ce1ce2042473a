"""The model endpoints refuse what their providers refuse, and respond in their formats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.simulator.llm import Call, LlmEndpoints, Reply
from gateway.simulator.predict import LlmReply, LlmRequest

CONVERSE = "http://llm/bedrock/model/m/converse"
INVOKE = "http://llm/bedrock/model/m/invoke"
OPENAI = "http://llm/openai/v1/chat/completions"
GEMINI = "http://llm/gemini/v1beta/models/m:generateContent"
PNG = "iVBORw0KGgo="


def post(endpoints: LlmEndpoints, url: str, body: Any, timeout: float = 10) -> LlmReply:
    return endpoints(LlmRequest(url, {}, body if isinstance(body, str) else json.dumps(body), timeout))


def converse(*turns: tuple[str, list[Any]], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns], **more}


TEXT = {"text": "hello"}
IMAGE = {"image": {"format": "png", "source": {"bytes": PNG}}}
DOCUMENT = {"document": {"format": "pdf", "name": "a report (1)", "source": {"bytes": PNG}}}
USE = {"toolUse": {"toolUseId": "t1", "name": "look", "input": {}}}
RESULT = {"toolResult": {"toolUseId": "t1", "content": [{"text": "seen"}], "status": None}}
TOOLS: Any = {"toolConfig": {"tools": [{"toolSpec": {}}]}}

CONVERSE_GOOD = [
    converse(("user", [TEXT, IMAGE, TEXT])),
    converse(("user", [TEXT]), ("assistant", [TEXT]), ("user", [DOCUMENT, TEXT]), system=[TEXT]),
    converse(("user", [TEXT]), ("assistant", [TEXT, USE]), ("user", [RESULT]), **TOOLS),
    converse(("user", [{"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://b/v.mp4"}}}}])),
]
CONVERSE_BAD = {
    "no messages": {},
    "empty messages": converse(),
    "unknown field": converse(("user", [TEXT]), model="m"),
    "starts with assistant": converse(("assistant", [TEXT])),
    "roles do not alternate": converse(("user", [TEXT]), ("user", [TEXT])),
    "assistant tail": converse(("user", [TEXT]), ("assistant", [TEXT])),
    "system role": converse(("user", [TEXT]), ("system", [TEXT]), ("user", [TEXT])),
    "empty content": converse(("user", [])),
    "string content": {"messages": [{"role": "user", "content": "hello"}]},
    "blank text": converse(("user", [{"text": " \n"}])),
    "two kinds in a block": converse(("user", [{**TEXT, **IMAGE}])),
    "unknown block": converse(("user", [{"picture": {}}])),
    "typed block": converse(("user", [{"type": "image", **IMAGE}])),
    "bad base64": converse(("user", [{"image": {"format": "png", "source": {"bytes": "%%"}}}])),
    "jpg": converse(("user", [{"image": {"format": "jpg", "source": {"bytes": PNG}}}])),
    "s3 as a string": converse(("user", [{"image": {"format": "png", "source": {"s3Location": "s3://b/x.png"}}}])),
    "image from the assistant": converse(("user", [TEXT]), ("assistant", [IMAGE]), ("user", [TEXT])),
    "document alone": converse(("user", [DOCUMENT])),
    "document name": converse(("user", [TEXT, {"document": {"name": "a.pdf", "source": {"bytes": PNG}}}])),
    "document name twice": converse(("user", [TEXT, DOCUMENT, DOCUMENT])),
    "tool use unanswered": converse(("user", [TEXT]), ("assistant", [USE]), ("user", [TEXT]), **TOOLS),
    "tool result unasked": converse(("user", [RESULT]), **TOOLS),
    "tools without toolConfig": converse(("user", [TEXT]), ("assistant", [USE]), ("user", [RESULT])),
    "no tools in toolConfig": converse(("user", [TEXT]), toolConfig={"tools": []}),
    "text after toolUse": converse(("user", [TEXT]), ("assistant", [USE, TEXT]), ("user", [RESULT]), **TOOLS),
    "too many images": converse(("user", [IMAGE] * 21)),
}


@pytest.mark.parametrize("body", CONVERSE_GOOD)
def test_converse_accepts(body: Any) -> None:
    endpoints = LlmEndpoints()
    reply = post(endpoints, CONVERSE, body)
    assert reply.status == 200, reply.body
    answer = json.loads(reply.body)
    assert answer["output"]["message"]["role"] == "assistant"
    assert answer["stopReason"] == "end_turn"
    assert endpoints.received == [body]


@pytest.mark.parametrize("body", CONVERSE_BAD.values(), ids=CONVERSE_BAD.keys())
def test_converse_refuses(body: Any) -> None:
    reply = post(LlmEndpoints(), CONVERSE, body)
    assert reply.status == 400
    assert set(json.loads(reply.body)) == {"message"}
    assert post(LlmEndpoints(strict=False), CONVERSE, body).status == 200


def chat(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": list(messages)}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWERED = {"role": "tool", "tool_call_id": "c1", "content": "seen"}
PART = {"type": "text", "text": "hello"}
OPENAI_GOOD = [
    chat({"role": "developer", "content": "be brief"}, {"role": "user", "content": "hello"}),
    chat(user(PART, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}})),
    chat(user(PART, {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}})),
    chat(user({"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}})),
    chat(user({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PNG}", "filename": "a.pdf"}})),
    chat({"role": "user", "content": "look"}, CALLING, ANSWERED),
]
OPENAI_BAD = {
    "no model": {"messages": [{"role": "user", "content": "hello"}]},
    "no messages": chat(),
    "unknown role": chat({"role": "model", "content": "hello"}),
    "unknown field": chat({"role": "user", "content": "hello", "parts": []}),
    "no content": chat({"role": "user"}),
    "empty content": chat(user()),
    "video": chat(user({"type": "video_url", "video_url": {"url": "https://example.org/v.mp4"}})),
    "image in a system message": chat({"role": "system", "content": [OPENAI_GOOD[1]["messages"][0]["content"][1]]}),
    "bad base64": chat(user({"type": "image_url", "image_url": {"url": "data:image/png;base64,%%"}})),
    "bmp": chat(user({"type": "image_url", "image_url": {"url": f"data:image/bmp;base64,{PNG}"}})),
    "csv file": chat(user({"type": "file", "file": {"file_data": f"data:text/csv;base64,{PNG}"}})),
    "tool call unanswered": chat({"role": "user", "content": "look"}, CALLING, {"role": "user", "content": "?"}),
    "tool result unasked": chat({"role": "user", "content": "look"}, ANSWERED),
    "arguments an object": chat(
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {"name": "look", "arguments": {}}}]}
    ),
    "empty tools": {**chat({"role": "user", "content": "hello"}), "tools": []},
}


@pytest.mark.parametrize("body", OPENAI_GOOD)
def test_openai_accepts(body: Any) -> None:
    reply = post(LlmEndpoints(), OPENAI, body)
    assert reply.status == 200, reply.body
    assert json.loads(reply.body)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("body", OPENAI_BAD.values(), ids=OPENAI_BAD.keys())
def test_openai_refuses(body: Any) -> None:
    reply = post(LlmEndpoints(), OPENAI, body)
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["type"] == "invalid_request_error"


def contents(*turns: tuple[str, list[Any]], **more: Any) -> dict[str, Any]:
    return {"contents": [{"role": role, "parts": parts} for role, parts in turns], **more}


ASKED = {"functionCall": {"name": "look", "args": {}}}
TOOL_RESULT = {"functionResponse": {"name": "look", "response": {"output": "seen"}}}
GEMINI_GOOD = [
    contents(("user", [TEXT, {"inlineData": {"mimeType": "image/png", "data": PNG}}])),
    contents(("user", [TEXT]), ("model", [ASKED]), ("user", [TOOL_RESULT]), systemInstruction={"parts": [TEXT]}),
    contents(("user", [{"fileData": {"mimeType": "video/mp4", "fileUri": "gs://b/v.mp4"}}])),
]
GEMINI_BAD = {
    "no contents": {},
    "empty parts": contents(("user", [])),
    "assistant role": contents(("user", [TEXT]), ("assistant", [TEXT]), ("user", [TEXT])),
    "model tail": contents(("user", [TEXT]), ("model", [TEXT])),
    "two kinds in a part": contents(("user", [{"text": "x", "inlineData": {"mimeType": "image/png", "data": PNG}}])),
    "gif": contents(("user", [{"inlineData": {"mimeType": "image/gif", "data": PNG}}])),
    "bare format": contents(("user", [{"inlineData": {"mimeType": "pdf", "data": PNG}}])),
    "base64 as a URI": contents(("user", [{"fileData": {"mimeType": "video/mp4", "fileUri": PNG}}])),
    "bad base64": contents(("user", [{"inlineData": {"mimeType": "image/png", "data": "%%"}}])),
    "response missing": contents(("user", [TEXT]), ("model", [ASKED]), ("user", [TEXT])),
    "response a string": contents(
        ("user", [TEXT]), ("model", [ASKED]), ("user", [{"functionResponse": {"name": "look", "response": "x"}}])
    ),
    "messages": {"messages": []},
}


@pytest.mark.parametrize("body", GEMINI_GOOD)
def test_gemini_accepts(body: Any) -> None:
    reply = post(LlmEndpoints(), GEMINI, body)
    assert reply.status == 200, reply.body
    assert json.loads(reply.body)["candidates"][0]["content"]["role"] == "model"


@pytest.mark.parametrize("body", GEMINI_BAD.values(), ids=GEMINI_BAD.keys())
def test_gemini_refuses(body: Any) -> None:
    reply = post(LlmEndpoints(), GEMINI, body)
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["status"] == "INVALID_ARGUMENT"


def test_invoke_answers_in_the_shape_asked_for() -> None:
    endpoints = LlmEndpoints()
    assert "completion" in json.loads(post(endpoints, INVOKE, {"prompt": "hello"}).body)
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, **anthropic(("user", [TYPED]))}
    assert "content" in json.loads(post(endpoints, INVOKE, body).body)
    for wrong in (
        {**body, "model": "m"},
        {**body, "anthropic_version": ANTHROPIC_VERSION},
        anthropic(("user", [TYPED])),
    ):
        assert post(endpoints, INVOKE, wrong).status == 400
    by_url = anthropic(("user", [{"type": "image", "source": {"type": "url", "url": "https://x/a.png"}}]))
    assert post(endpoints, INVOKE, {**body, **by_url}).status == 400
    assert post(endpoints, ANTHROPIC, {**ANTHROPIC_BASE, **by_url}).status == 200


ANTHROPIC = "http://llm/anthropic/v1/messages"
ANTHROPIC_VERSION = "2023-06-01"
ANTHROPIC_BASE = {"model": "m", "max_tokens": 9}
TYPED = {"type": "text", "text": "hello"}
TYPED_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
TYPED_USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
TYPED_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [TYPED, TYPED_IMAGE]}
DEFINED = {"tools": [{"name": "look", "input_schema": {"type": "object"}}]}


def anthropic(*turns: tuple[str, list[Any]], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns], **more}


def text_document(media_type: str = "text/plain", data: str = "a") -> dict[str, Any]:
    return {"type": "document", "source": {"type": "text", "media_type": media_type, "data": data}}


ANTHROPIC_GOOD = [
    anthropic(("user", [TYPED, TYPED_IMAGE]), system="Be brief."),
    anthropic(("user", [text_document()]), ("assistant", [TYPED]), ("user", [TYPED]), system=[TYPED]),
    anthropic(("user", [TYPED]), ("assistant", [TYPED, TYPED_USE]), ("user", [TYPED_RESULT, TYPED]), **DEFINED),
    {"messages": [{"role": "user", "content": "hello"}, {"role": "user", "content": "again"}]},
]
ANTHROPIC_BAD = {
    "no messages": anthropic(),
    "unknown field": anthropic(("user", [TYPED]), contents=[]),
    "system without type": anthropic(("user", [TYPED]), system=[TEXT]),
    "starts with assistant": anthropic(("assistant", [TYPED])),
    "ends with assistant": anthropic(("user", [TYPED]), ("assistant", [TYPED])),
    "role tool": anthropic(("user", [TYPED]), ("tool", [TYPED])),
    "Converse's text": anthropic(("user", [TEXT])),
    "blank text": anthropic(("user", [{"type": "text", "text": " "}])),
    "unknown member": anthropic(("user", [{**TYPED, "name": "x"}])),
    "image of the assistant": anthropic(("user", [TYPED]), ("assistant", [TYPED_IMAGE]), ("user", [TYPED])),
    "media type": anthropic(("user", [text_document("text/csv")])),
    "blank document": anthropic(("user", [text_document(data=" ")])),
    "http": anthropic(("user", [{"type": "image", "source": {"type": "url", "url": "http://x/a.png"}}])),
    "call without result": anthropic(("user", [TYPED]), ("assistant", [TYPED_USE]), ("user", [TYPED]), **DEFINED),
    "result without call": anthropic(("user", [TYPED_RESULT]), **DEFINED),
    "no tools": anthropic(("user", [TYPED]), ("assistant", [TYPED_USE]), ("user", [TYPED_RESULT])),
    "result late": anthropic(("user", [TYPED]), ("assistant", [TYPED_USE]), ("user", [TYPED, TYPED_RESULT]), **DEFINED),
    "text after call": anthropic(
        ("user", [TYPED]), ("assistant", [TYPED_USE, TYPED]), ("user", [TYPED_RESULT]), **DEFINED
    ),
    "failed with an image": anthropic(
        ("user", [TYPED]), ("assistant", [TYPED_USE]), ("user", [{**TYPED_RESULT, "is_error": True}]), **DEFINED
    ),
    "failed and empty": anthropic(
        ("user", [TYPED]),
        ("assistant", [TYPED_USE]),
        ("user", [{"type": "tool_result", "tool_use_id": "t1", "is_error": True}]),
        **DEFINED,
    ),
}


SONNET, LATER = "us.anthropic.claude-3-7-sonnet-20250219-v1:0", "us.anthropic.claude-opus-4-6-v1"
CONVERSE_ENDS = converse(("user", [TEXT]), ("assistant", [TEXT]))
INVOKE_ENDS = anthropic(("user", [TYPED]), ("assistant", [TYPED]), anthropic_version="bedrock-2023-05-31", max_tokens=9)
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize(
    ("url", "body", "thinks"),
    [
        (CONVERSE, CONVERSE_ENDS, {"additionalModelRequestFields": {"thinking": THINKING}}),
        (INVOKE, INVOKE_ENDS, {"thinking": THINKING}),
    ],
)
def test_only_some_models_continue_the_assistant(url: str, body: Any, thinks: dict[str, Any]) -> None:
    def status(model: str, body: Any) -> int:
        return post(LlmEndpoints(), url.replace("/m/", f"/{model}/"), body).status

    padded = json.dumps(body).replace("hello", "hello ")
    assert status(SONNET, body) == 200
    assert [status(LATER, body), status(SONNET, padded), status(SONNET, {**body, **thinks})] == [400] * 3


@pytest.mark.parametrize("body", ANTHROPIC_GOOD)
def test_anthropic_accepts(body: Any) -> None:
    endpoints = LlmEndpoints()
    answer = json.loads(post(endpoints, ANTHROPIC, {**ANTHROPIC_BASE, **body}).body)
    assert answer["content"][0]["text"]
    assert answer["type"] == "message"


@pytest.mark.parametrize("body", ANTHROPIC_BAD.values(), ids=ANTHROPIC_BAD)
def test_anthropic_refuses(body: Any) -> None:
    reply = post(LlmEndpoints(), ANTHROPIC, {**ANTHROPIC_BASE, **body})
    assert (reply.status, json.loads(reply.body)["error"]["type"]) == (400, "invalid_request_error")


COHERE = "http://llm/cohere/v2/chat"
SEEN = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}}
CALLED = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
LOOKED = {"role": "assistant", "tool_plan": "I look.", "tool_calls": [CALLED]}
FOUND = {"role": "tool", "tool_call_id": "t1", "content": [{"type": "document", "document": {"data": {"a": 1}}}]}
ASKED = {"role": "user", "content": "hello"}
COHERE_GOOD = [
    [ASKED],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [TYPED, SEEN]}],
    [ASKED, LOOKED, FOUND],
    [ASKED, LOOKED, {**FOUND, "content": "seen"}, {"role": "assistant", "content": [TYPED]}, ASKED],
]
COHERE_BAD = {
    "no messages": [],
    "role developer": [{"role": "developer", "content": "x"}, ASKED],
    "ends with assistant": [ASKED, {"role": "assistant", "content": "x"}],
    "call without result": [ASKED, LOOKED, ASKED],
    "result without call": [FOUND],
    "image in a result": [ASKED, LOOKED, {**FOUND, "content": [SEEN]}],
    "empty document": [ASKED, LOOKED, {**FOUND, "content": [{"type": "document", "document": {"data": {}}}]}],
    "a plan alone": [ASKED, {"role": "assistant", "tool_plan": "x", "content": "x"}, ASKED],
    "a file": [{"role": "user", "content": [{"type": "file", "file": {}}]}],
    "another detail": [
        {"role": "user", "content": [{**SEEN, "image_url": {"url": "https://x/a", "detail": "original"}}]}
    ],
    "s3": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "s3://b/a"}}]}],
}


@pytest.mark.parametrize("messages", COHERE_GOOD)
def test_cohere_accepts(messages: Any) -> None:
    endpoints = LlmEndpoints()
    answer = json.loads(post(endpoints, COHERE, {"model": "m", "stream": False, "messages": messages}).body)
    assert (answer["message"]["content"][0]["type"], answer["finish_reason"]) == ("text", "COMPLETE")
    endpoints.script([Call("look", {"where": "here"})])
    answer = json.loads(post(endpoints, COHERE, {"model": "m", "messages": messages}).body)
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == '{"where": "here"}'
    assert answer["finish_reason"] == "TOOL_CALL"


@pytest.mark.parametrize("messages", COHERE_BAD.values(), ids=COHERE_BAD)
def test_cohere_refuses(messages: Any) -> None:
    reply = post(LlmEndpoints(), COHERE, {"model": "m", "messages": messages})
    assert (reply.status, "message" in json.loads(reply.body)) == (400, True)


def test_follows_its_script_then_answers_as_ever() -> None:
    endpoints = LlmEndpoints()
    endpoints.script([Call("look", {"where": "here"}), "so it is", Reply(503, "busy")])
    calling = json.loads(post(endpoints, CONVERSE, CONVERSE_GOOD[0]).body)
    assert calling["output"]["message"]["content"][1]["toolUse"]["input"] == {"where": "here"}
    assert calling["stopReason"] == "tool_use"
    assert "so it is" in post(endpoints, OPENAI, OPENAI_GOOD[0]).body
    assert post(endpoints, GEMINI, GEMINI_GOOD[0]) == LlmReply(503, "busy")
    assert post(endpoints, GEMINI, GEMINI_GOOD[0]).status == 200
    endpoints.clear()
    assert endpoints.received == []


def test_fails_as_its_path_or_its_text_asks() -> None:
    endpoints = LlmEndpoints()
    good = CONVERSE_GOOD[0]
    assert post(endpoints, "http://llm/fail/429/x/converse", good).status == 429
    assert post(endpoints, "http://llm/status/503/x/converse", good).status == 503
    assert post(endpoints, "http://llm/garbage/converse", good).body == "plain text, no JSON"
    assert post(endpoints, "http://llm/empty/converse", good).body == "{}"
    assert post(endpoints, "http://llm/slow/6/x/converse", good, timeout=2).failure == "Read timed out"
    assert post(endpoints, "http://llm/slow/6/x/converse", good, timeout=7).status == 200
    assert post(endpoints, OPENAI, chat({"role": "user", "content": "FAIL500"})).status == 500
    assert post(endpoints, "http://llm/elsewhere", good).status == 404


def test_no_json_is_kept_as_text_and_refused() -> None:
    endpoints = LlmEndpoints()
    assert post(endpoints, CONVERSE, '{"messages":[{"role":"user"},]}').status == 400
    assert endpoints.received == ['{"messages":[{"role":"user"},]}']
