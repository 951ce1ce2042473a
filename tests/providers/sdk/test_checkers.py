"""The checkers themselves: bodies that each of them must reject, and one that it must take."""

from typing import Any

import pytest

from . import Rejected, anthropic, bedrock, cohere, gemini, openai

PNG = "iVBORw0KGgo="


def converse(*content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(content)}], **more}


def tool_use(**changes: Any) -> dict[str, Any]:
    return converse({"toolUse": {"toolUseId": "t1", "name": "f", "input": {}, **changes}}, role="assistant")


def image(format: str = "png", **source: Any) -> dict[str, Any]:
    return converse({"image": {"format": format, "source": source}})


def document(**changes: Any) -> dict[str, Any]:
    return converse({"document": {"format": "pdf", "name": "a", "source": {"bytes": PNG}, **changes}})


def result(*content: Any, **changes: Any) -> dict[str, Any]:
    return converse({"toolResult": {"toolUseId": "t1", "content": list(content), **changes}})


BEDROCK_BAD = {
    "unknown role": converse({"text": "x"}, role="tool"),
    "no role": {"messages": [{"content": [{"text": "x"}]}]},
    "content a string": {"messages": [{"role": "user", "content": "x"}]},
    "two members of a union": converse({"text": "x", "cachePoint": {"type": "default"}}),
    "empty block": converse({}),
    "unknown block": converse({"picture": {}}),
    "block with a type": converse({"type": "text", "text": "x"}),
    "text a number": converse({"text": 1}),
    "unknown member": converse({"text": "x"}, prompt="x"),
    "empty system text": converse({"text": "x"}, system=[{"text": ""}]),
    "system a string": converse({"text": "x"}, system="x"),
    "jpg": image("jpg", bytes=PNG),
    "no base64": image(bytes="not base64!"),
    "empty bytes": image(bytes=""),
    "s3Location a string": image(s3Location="s3://bucket/a.png"),
    "bad bucket": image(s3Location={"uri": "s3://Bad_Bucket/a.png"}),
    "https as s3": image(s3Location={"uri": "https://example.com/a.png"}),
    "bad owner": image(s3Location={"uri": "s3://bucket/a.png", "bucketOwner": "12"}),
    "two sources": image(bytes=PNG, s3Location={"uri": "s3://bucket/a.png"}),
    "a url source": image(url="https://example.com/a.png"),
    "avi": converse({"video": {"format": "avi", "source": {"bytes": PNG}}}),
    "document without name": converse({"document": {"format": "pdf", "source": {"bytes": PNG}}}),
    "document name too long": document(name="a" * 201),
    "document name empty": document(name=""),
    "document format": document(format="odt"),
    "tool id pattern": tool_use(toolUseId="a b"),
    "tool id too long": tool_use(toolUseId="a" * 65),
    "tool id empty": tool_use(toolUseId=""),
    "tool name pattern": tool_use(name="my.tool"),
    "tool without input": converse({"toolUse": {"toolUseId": "t1", "name": "f"}}, role="assistant"),
    "result status": result({"text": "x"}, status="failed"),
    "audio in a result": result({"audio": {"format": "mp3", "source": {"bytes": PNG}}}),
    "result content a string": converse({"toolResult": {"toolUseId": "t1", "content": "x"}}),
    "cache point type": converse({"cachePoint": {"type": "other"}}),
}


def chat(*content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(content), **more}]}


def call(**changes: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}", **changes}
    return {
        "messages": [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "t1", "type": "function", "function": function}],
            }
        ]
    }


TEXT = {"type": "text", "text": "x"}
OPENAI_BAD = {
    "no messages": {"messages": []},
    "unknown member": {**chat(TEXT), "system": "x"},
    "unknown role": chat(TEXT, role="model"),
    "no content": {"messages": [{"role": "user"}]},
    "empty content": chat(),
    "unknown key in a message": chat(TEXT, mood="good"),
    "unknown key in a part": chat({**TEXT, "x": 1}),
    "video part": chat({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}),
    "image in a tool message": chat(
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, role="tool", tool_call_id="t1"
    ),
    "image in a system message": chat(
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, role="system"
    ),
    "image of the assistant": chat(
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, role="assistant"
    ),
    "tool message without id": chat(TEXT, role="tool"),
    "Converse's text part": chat({"text": "x"}),
    "image url a string": chat({"type": "image_url", "image_url": "https://example.com/a.png"}),
    "image by s3": chat({"type": "image_url", "image_url": {"url": "s3://bucket/a.png"}}),
    "image as pdf": chat({"type": "image_url", "image_url": {"url": f"data:application/pdf;base64,{PNG}"}}),
    "image data broken": chat({"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}),
    "file url": chat({"type": "file", "file": {"file_url": "https://example.com/a.pdf"}}),
    "office file": chat({"type": "file", "file": {"file_data": f"data:application/msword;base64,{PNG}"}}),
    "bare file data": chat({"type": "file", "file": {"file_data": PNG, "filename": "a.pdf"}}),
    "audio format": chat({"type": "input_audio", "input_audio": {"data": PNG, "format": "ogg"}}),
    "audio as a data URL": chat(
        {"type": "input_audio", "input_audio": {"data": f"data:audio/mpeg;base64,{PNG}", "format": "mp3"}}
    ),
    "arguments an object": call(arguments={}),
    "arguments no JSON": call(arguments="{"),
    "arguments an array": call(arguments="[]"),
    "call without name": {"messages": [{"role": "assistant", "tool_calls": [{"id": "t", "type": "function"}]}]},
    "empty tool_calls": {"messages": [{"role": "assistant", "content": "x", "tool_calls": []}]},
    "assistant message without content": {"messages": [{"role": "assistant", "content": None}]},
}


def contents(*parts: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"contents": [{"role": role, "parts": list(parts)}], **more}


def response(**changes: Any) -> dict[str, Any]:
    return contents({"functionResponse": {"id": "t1", "name": "f", "response": {"output": 1}, **changes}})


GEMINI_BAD = {
    "no contents": {"contents": []},
    "messages": {"messages": []},
    "unknown member": contents({"text": "x"}, prompt="x"),
    "role system": contents({"text": "x"}, role="system"),
    "role tool": contents({"text": "x"}, role="tool"),
    "role assistant": contents({"text": "x"}, role="assistant"),
    "no parts": contents(),
    "empty part": contents({}),
    "two members of a oneof": contents({"text": "x", "inlineData": {"mimeType": "image/png", "data": PNG}}),
    "unknown part": contents({"image": {}}),
    "snake case": contents({"inline_data": {"mime_type": "image/png", "data": PNG}}),
    "text a number": contents({"text": 1}),
    "no base64": contents({"inlineData": {"mimeType": "image/png", "data": "@@"}}),
    "no data": contents({"inlineData": {"mimeType": "image/png"}}),
    "a format for a MIME type": contents({"inlineData": {"mimeType": "pdf", "data": PNG}}),
    "file by s3": contents({"fileData": {"mimeType": "image/png", "fileUri": "s3://bucket/a.png"}}),
    "base64 as fileUri": contents({"fileData": {"mimeType": "video/mp4", "fileUri": PNG}}),
    "response a string": response(response="x"),
    "response without name": response(name=""),
    "unknown member of a response": response(status="error"),
    "fileUri of a result": response(parts=[{"fileUri": "https://example.com/a.png"}]),
    "args a string": contents({"functionCall": {"name": "f", "args": "{}"}}, role="model"),
    "call without name": contents({"functionCall": {"args": {}}}, role="model"),
    "system a string": contents({"text": "x"}, systemInstruction="x"),
    "system without parts": contents({"text": "x"}, systemInstruction={"parts": []}),
}


def typed(*parts: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(parts)}], **more}


def typed_call(*results: Any, **changes: Any) -> dict[str, Any]:
    """A call, with `changes`, and the blocks of the turn after it."""
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {}, **changes}
    turns = [("user", [TEXT]), ("assistant", [use]), ("user", list(results))]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
DONE = {"type": "tool_result", "tool_use_id": "t1"}


def source(kind: str = "image", **members: str) -> dict[str, Any]:
    return typed({"type": kind, "source": members})


ANTHROPIC_BAD = {
    "no messages": {"messages": []},
    "unknown member": typed(TEXT, prompt="x"),
    "role system": typed(TEXT, role="system"),
    "assistant first": typed(TEXT, role="assistant"),
    "two user messages": {"messages": [{"role": "user", "content": "x"}] * 2},
    "no content": typed(),
    "unknown key in a part": typed({**TEXT, "x": 1}),
    "Converse's text part": typed({"text": "x"}),
    "blank text": typed({"type": "text", "text": " "}),
    "video": source("video", type="base64", media_type="video/mp4", data=PNG),
    "a format for a MIME type": source(type="base64", media_type="png", data=PNG),
    "no base64": source(type="base64", media_type="image/png", data="@@"),
    "s3": source(type="url", url="s3://bucket/a.png"),
    "csv as base64": source("document", type="base64", media_type="text/csv", data=PNG),
    "csv as text": source("document", type="text", media_type="text/csv", data="a"),
    "input a string": typed_call(DONE, input="{}"),
    "call without id": typed_call(DONE, id=None),
    "call of the user": typed({"type": "tool_use", "id": "t1", "name": "f", "input": {}}),
    "result late": typed_call(TEXT, DONE),
    "status": typed_call({**DONE, "status": "error"}),
    "JSON in a result": typed_call({**DONE, "content": [{"json": {}}]}),
    "failed and empty": typed_call({**DONE, "is_error": True}),
    "failed with an image": typed_call({**DONE, "content": [PICTURE], "is_error": True}),
    "system a part": typed(TEXT, system=TEXT),
}

SEEN = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
CALLED = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FOUND = {"type": "document", "document": {"data": {"a": 1}}}
COHERE_BAD = {
    "no messages": {"messages": []},
    "unknown member": {**chat(TEXT), "system": "x"},
    "role developer": chat(TEXT, role="developer"),
    "no content": {"messages": [{"role": "user"}]},
    "empty content": chat(),
    "unknown key in a message": chat(TEXT, name="x"),
    "unknown key in a part": chat({**TEXT, "x": 1}),
    "file part": chat({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PNG}"}}),
    "image in a tool message": chat(SEEN, role="tool", tool_call_id="t1"),
    "image in a system message": chat(SEEN, role="system"),
    "image of the assistant": chat(SEEN, role="assistant"),
    "image as pdf": chat({"type": "image_url", "image_url": {"url": f"data:application/pdf;base64,{PNG}"}}),
    "image by s3": chat({"type": "image_url", "image_url": {"url": "s3://bucket/a.png"}}),
    "original detail": chat({"type": "image_url", "image_url": {**SEEN["image_url"], "detail": "original"}}),  # type: ignore[dict-item]
    "document of a user": chat(FOUND),
    "document without data": chat({"type": "document", "document": {}}, role="tool", tool_call_id="t1"),
    "a document's data a list": chat({"type": "document", "document": {"data": [1]}}, role="tool", tool_call_id="t1"),
    "tool message without id": chat(TEXT, role="tool"),
    "nothing said": {"messages": [{"role": "assistant"}]},
    "a plan without calls": chat(TEXT, role="assistant", tool_plan="x"),
    "a plan in parts": {"messages": [{"role": "assistant", "tool_plan": [TEXT], "tool_calls": [CALLED]}]},
    "arguments an object": {
        "messages": [{"role": "assistant", "tool_calls": [{**CALLED, "function": {"name": "f", "arguments": {}}}]}]
    },
}

BAD = [
    *((cohere.check, name, body) for name, body in COHERE_BAD.items()),
    *((anthropic.check, name, body) for name, body in ANTHROPIC_BAD.items()),
    *((bedrock.check, name, body) for name, body in BEDROCK_BAD.items()),
    *((openai.check, name, body) for name, body in OPENAI_BAD.items()),
    *((gemini.check, name, body) for name, body in GEMINI_BAD.items()),
]


@pytest.mark.parametrize(
    ("check", "name", "body"), BAD, ids=[f"{c.__module__.rpartition('.')[2]}-{n}" for c, n, _ in BAD]
)
def test_rejected(check: Any, name: str, body: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        check(body)


def test_the_bodies_they_were_made_from_are_taken() -> None:
    """So that each of the above is rejected for its one fault."""
    for body in (
        chat(TEXT, SEEN),
        chat(TEXT, role="system"),
        chat(TEXT, role="assistant"),
        chat(TEXT, FOUND, role="tool", tool_call_id="t1"),
        {"messages": [{"role": "assistant", "tool_plan": "x", "tool_calls": [CALLED]}]},
    ):
        cohere.check(body)
    for body in (
        converse({"text": "x"}, system=[{"text": "x"}]),
        tool_use(),
        image(bytes=PNG),
        image(s3Location={"uri": "s3://bucket/a.png", "bucketOwner": "123456789012"}),
        document(),
        result({"text": "x"}, status="error"),
        converse({"cachePoint": {"type": "default"}}),
    ):
        bedrock.check(body)
    for body in (
        chat(TEXT),
        chat(TEXT, role="tool", tool_call_id="t1"),
        chat({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}),
        chat({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PNG}", "filename": "a.pdf"}}),
        chat({"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}}),
        call(),
    ):
        openai.check(body)
    for body in (
        typed(TEXT, PICTURE, system=[TEXT]),
        source(type="url", url="https://example.com/a.png"),
        source("document", type="text", media_type="text/plain", data="a"),
        typed_call({**DONE, "content": [TEXT, PICTURE]}, TEXT),
        typed_call({**DONE, "content": [TEXT], "is_error": True}),
    ):
        anthropic.check(body)
    with pytest.raises(Rejected):
        anthropic.check_on_bedrock(source(type="url", url="https://example.com/a.png"))
    for body in (
        contents({"text": "x"}, systemInstruction={"parts": [{"text": "x"}]}),
        contents({"inlineData": {"mimeType": "image/png", "data": PNG}}),
        contents({"fileData": {"mimeType": "image/png", "fileUri": "gs://bucket/a.png"}}),
        contents({"functionCall": {"name": "f", "args": {}}}, role="model"),
        response(parts=[{"inlineData": {"mimeType": "image/png", "data": PNG}}]),
    ):
        gemini.check(body)
