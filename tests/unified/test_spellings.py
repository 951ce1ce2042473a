"""Each spelling and its whole decoded model. One-block cases have the place `input[0]`."""

import json
from typing import Any

import pytest

from gateway.errors import InvalidInput
from gateway.unified.model import (
    AgentInput,
    Base64,
    ContentBlock,
    ConverseBlock,
    InputType,
    Json,
    Media,
    Message,
    Text,
    ToolResult,
    ToolUse,
    Url,
)
from gateway.unified.request import read_execute

DATA = "AAECAwQFBgc="  # of no known format


def read(value: Any, ascii_only: bool = True) -> AgentInput:
    agent_input = read_execute(json.dumps({"input": value}, ensure_ascii=ascii_only).encode()).input
    assert agent_input is not None
    return agent_input


INLINE = Base64(DATA.encode(), "")


def image(fmt: str, source: Any, kind: Any = "image", name: str | None = None, at: str = "input[0]") -> Media:
    return Media(kind, fmt, source, at, name)


S3 = Url("s3://bucket/a.png")
HTTPS = Url("https://example.com/a.png")
OWNED = Url("s3://bucket/a.png", "123456789012")
NAMED_S3 = {"uri": "s3://bucket/a.png", "bucketOwner": "123456789012"}

# The `source` of the expected model.
MEDIA: dict[str, tuple[dict[str, Any], str, str, Any, str | None]] = {
    "responses, image": ({"type": "input_image", "image_url": HTTPS.url}, "image", "png", HTTPS, None),
    "responses, inline": (
        {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"}, "image", "png", INLINE, None),
    "responses, file": (
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"},
        "document", "pdf", INLINE, "a.pdf"),
    "langchain": (
        {"type": "image", "source_type": "base64", "mime_type": "image/png", "data": DATA},
        "image", "png", INLINE, None),
    "langchain, url": (
        {"type": "image", "source_type": "url", "url": HTTPS.url}, "image", "png", HTTPS, None),
    "langchain 1.0": ({"type": "audio", "base64": DATA, "mime_type": "audio/wav"}, "audio", "wav", INLINE, None),
    "langchain, file": (
        {"type": "file", "data": DATA, "mime_type": "application/pdf", "filename": "a"},
        "document", "pdf", INLINE, "a"),
    "vercel": ({"type": "image", "image": DATA, "mediaType": "image/png"}, "image", "png", INLINE, None),
    "vercel, data url": ({"type": "image", "image": f"data:image/png;base64,{DATA}"}, "image", "png", INLINE, None),
    "vercel, url": ({"type": "image", "image": HTTPS.url}, "image", "png", HTTPS, None),
    "vercel, file": ({"type": "file", "data": HTTPS.url, "mediaType": "image/png"}, "image", "png", HTTPS, None),
    "ag-ui": (
        {"type": "image", "source": {"type": "data", "value": DATA, "mimeType": "image/png"}},
        "image", "png", INLINE, None),
    "ag-ui, url": (
        {"type": "image", "source": {"type": "url", "value": HTTPS.url, "mimeType": "image/png"}},
        "image", "png", HTTPS, None),
    "ag-ui, binary": ({"type": "binary", "mimeType": "video/mp4", "data": DATA}, "video", "mp4", INLINE, None),
    "gemini": ({"inlineData": {"mimeType": "image/png", "data": DATA}}, "image", "png", INLINE, None),
    "gemini, file": (
        {"file_data": {"mime_type": "image/png", "file_uri": HTTPS.url}}, "image", "png", HTTPS, None),
    "seeds, source": (
        {"type": "image", "source": {"type": "base64", "format": "png", "data": DATA}}, "image", "png", INLINE, None),
    "seeds, source url": (
        {"type": "image", "source": {"type": "url", "format": "png", "data": HTTPS.url}}, "image", "png", HTTPS, None),
    "seeds, image": (
        {"type": "image", "image": {"type": "base64", "format": "png", "data": DATA}}, "image", "png", INLINE, None),
    "seeds, video": (
        {"type": "video", "video": {"type": "base64", "format": "mp4", "data": DATA}}, "video", "mp4", INLINE, None),
    "seeds, document": (
        {"type": "document", "document": {"type": "base64", "format": "pdf", "data": DATA}},
        "document", "pdf", INLINE, None),
    "audio": (
        {"type": "audio", "source": {"type": "base64", "format": "wav", "data": DATA}}, "audio", "wav", INLINE, None),
    "seeds, no type": ({"image": {"type": "url", "format": "png", "data": HTTPS.url}}, "image", "png", HTTPS, None),
    "source type s3": (
        {"type": "image", "source": {"type": "s3", "format": "png", "data": S3.url}}, "image", "png", S3, None),
    "s3 url with owner": (
        {"type": "image", "source": {"type": "url", "format": "png", "data": S3.url, "bucketOwner": "123456789012"}},
        "image", "png", OWNED, None),
    "gs url": (
        {"type": "image", "source": {"type": "url", "format": "png", "data": "gs://b/a"}},
        "image", "png", Url("gs://b/a"), None),
    "converse bytes": ({"image": {"format": "png", "source": {"bytes": DATA}}}, "image", "png", INLINE, None),
    "converse bytes with a type": (
        {"type": "image", "image": {"format": "png", "source": {"bytes": DATA}}}, "image", "png", INLINE, None),
    "strands encoded bytes": (
        {"image": {"format": "png", "source": {"bytes": {"__bytes_encoded__": True, "data": DATA}}}},
        "image", "png", INLINE, None),
    "converse s3Location": (
        {"image": {"format": "png", "source": {"s3Location": NAMED_S3}}}, "image", "png", OWNED, None),
    "strands location": (
        {"image": {"format": "png", "source": {"location": {"type": "s3", "uri": S3.url}}}}, "image", "png", S3, None),
    "document name": (
        {"document": {"format": "pdf", "name": "a b.pdf", "source": {"bytes": DATA}}},
        "document", "pdf", INLINE, "a b.pdf"),
    "document name, typed": (
        {"type": "document", "name": "a", "source": {"type": "base64", "format": "pdf", "data": DATA}},
        "document", "pdf", INLINE, "a"),
    "anthropic base64": (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        "image", "png", INLINE, None),
    "anthropic url": (
        {"type": "image", "source": {"type": "url", "url": "https://h/a.JPG?x=1"}},
        "image", "jpeg", Url("https://h/a.JPG?x=1"), None),
    "anthropic document": (
        {"type": "document", "title": "T",
         "source": {"type": "base64", "media_type": "application/pdf", "data": DATA}},
        "document", "pdf", INLINE, "T"),
    "openai image_url, data": (
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}", "detail": "auto"}},
        "image", "png", INLINE, None),
    "openai image_url, data after white space": (
        {"type": "image_url", "image_url": f"\n data:image/png;base64,{DATA}"}, "image", "png", INLINE, None),
    "openai image_url, https": (
        {"type": "image_url", "image_url": {"url": HTTPS.url}}, "image", "png", HTTPS, None),
    "openai image_url, string": ({"type": "image_url", "image_url": HTTPS.url}, "image", "png", HTTPS, None),
    "openai input_audio": (
        {"type": "input_audio", "input_audio": {"data": DATA, "format": "mp3"}}, "audio", "mp3", INLINE, None),
    "openai file": (
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{DATA}", "filename": "a.pdf"}},
        "document", "pdf", INLINE, "a.pdf"),
    "openai file, format from its name": (
        {"type": "file", "file": {"file_data": DATA, "filename": "notes.md"}}, "document", "md", INLINE, "notes.md"),
    "format jpg": (
        {"type": "image", "source": {"type": "base64", "format": "JPG", "data": DATA}}, "image", "jpeg", INLINE, None),
    "format markdown": (
        {"type": "document", "source": {"type": "base64", "format": "markdown", "data": DATA}},
        "document", "md", INLINE, None),
    "format htm": (
        {"type": "document", "source": {"type": "base64", "format": "htm", "data": DATA}},
        "document", "html", INLINE, None),
    "format 3gp": (
        {"type": "video", "source": {"type": "base64", "format": "3gp", "data": DATA}},
        "video", "three_gp", INLINE, None),
    "format as MIME type": (
        {"type": "document", "source": {"type": "base64", "format": "text/plain; charset=utf-8", "data": DATA}},
        "document", "txt", INLINE, None),
    "data: prefix": (
        {"type": "image", "source": {"type": "base64", "data": f"data:image/png;base64,{DATA}"}},
        "image", "png", INLINE, None),
    "data: prefix and format": (
        {"type": "image", "source": {"type": "base64", "format": "jpg", "data": f"DATA:image/jpeg;BASE64,{DATA}"}},
        "image", "jpeg", INLINE, None),
    "data: prefix without a MIME type": (
        {"type": "image", "source": {"type": "base64", "format": "png", "data": f"data:;base64,{DATA}"}},
        "image", "png", INLINE, None),
    "whitespace": (
        {"type": "image", "source": {"type": "base64", "format": "png", "data": " AAEC\r\nAwQF\tBgc=\n"}},
        "image", "png", INLINE, None),
    "null members": (
        {"type": "image", "text": None, "source": {"type": "base64", "format": "png", "data": DATA, "url": None}},
        "image", "png", INLINE, None),
}  # fmt: skip


@pytest.mark.parametrize("case", MEDIA)
def test_media(case: str) -> None:
    block, kind, fmt, source, name = MEDIA[case]
    expected = image(fmt, source, kind, name)
    assert read([block]) == AgentInput(InputType.CONTENT_BLOCKS, (Message("user", (expected,), "input"),))


BLOCKS: dict[str, tuple[dict[str, Any], ContentBlock]] = {
    "text": ({"type": "text", "text": " a\n"}, Text(" a\n", "input[0]")),
    "text without a type": ({"text": "a"}, Text("a", "input[0]")),
    "toolUse": (
        {"toolUse": {"toolUseId": "t1", "name": "f", "input": {"a": [1, None]}}},
        ToolUse("t1", "f", {"a": [1, None]}, "input[0]"),
    ),
    "toolUse with a type": (
        {"type": "toolUse", "toolUse": {"toolUseId": "t1", "name": "f", "input": {}}},
        ToolUse("t1", "f", {}, "input[0]"),
    ),
    "toolUse without an id": ({"toolUse": {"name": "f", "input": {}}}, ToolUse("", "f", {}, "input[0]")),
    "tool_use": ({"type": "tool_use", "id": "t1", "name": "f", "input": {}}, ToolUse("t1", "f", {}, "input[0]")),
    "toolResult": (
        {"toolResult": {"toolUseId": "t1", "status": "error", "content": [{"text": "no"}, {"json": [{"a": 1}]}]}},
        ToolResult(
            "t1",
            (
                Text("no", "input[0].toolResult.content[0]"),
                Json([{"a": 1}], "input[0].toolResult.content[1]"),
            ),
            True,
            "input[0]",
        ),
    ),
    "toolResult with media": (
        {
            "toolResult": {
                "toolUseId": "t1",
                "content": [{"video": {"format": "mp4", "source": {"s3Location": NAMED_S3}}}],
            }
        },
        ToolResult("t1", (Media("video", "mp4", OWNED, "input[0].toolResult.content[0]"),), False, "input[0]"),
    ),
    "tool_result": (
        {"type": "tool_result", "tool_use_id": "t1", "content": "ok", "is_error": False},
        ToolResult("t1", (Text("ok", "input[0].content"),), False, "input[0]"),
    ),
    "reasoningContent": (
        {"reasoningContent": {"redactedContent": {"__bytes_encoded__": True, "data": "QQ=="}}},
        ConverseBlock("reasoningContent", {"redactedContent": "QQ=="}, "input[0]"),
    ),
    "cachePoint": ({"cachePoint": {"type": "default"}}, ConverseBlock("cachePoint", {"type": "default"}, "input[0]")),
    "guardContent": (
        {"guardContent": {"text": {"text": "a"}}},
        ConverseBlock("guardContent", {"text": {"text": "a"}}, "input[0]"),
    ),
    "citationsContent": (
        {"citationsContent": {"content": [{"text": "a"}]}},
        ConverseBlock("citationsContent", {"content": [{"text": "a"}]}, "input[0]"),
    ),
    "searchResult": (
        {"searchResult": {"source": "s", "title": "t", "content": [{"text": "a"}]}},
        ConverseBlock("searchResult", {"source": "s", "title": "t", "content": [{"text": "a"}]}, "input[0]"),
    ),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_blocks(case: str) -> None:
    block, expected = BLOCKS[case]
    assert read([block]) == AgentInput(InputType.CONTENT_BLOCKS, (Message("user", (expected,), "input"),))


CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Pa\\"ris"}'}}
USE = {"city": 'Pa"ris'}
MESSAGES: dict[str, tuple[dict[str, Any], Message]] = {
    "content is a string": (
        {"role": "user", "content": "a"}, Message("user", (Text("a", "input[0].content"),), "input[0]")),
    "content is an array": (
        {"role": "reviewer", "content": [{"text": "a"}, {"type": "text", "text": "b"}]},
        Message("reviewer", (Text("a", "input[0].content[0]"), Text("b", "input[0].content[1]")), "input[0]")),
    "toolCalls": (
        {"role": "assistant", "content": [{"type": "text", "text": "checking"}], "toolCalls": [CALL]},
        Message(
            "assistant",
            (Text("checking", "input[0].content[0]"), ToolUse("c1", "get_weather", USE, "input[0].toolCalls[0]")),
            "input[0]")),
    "toolCalls without content": (
        {"role": "assistant", "toolCalls": [CALL]},
        Message("assistant", (ToolUse("c1", "get_weather", USE, "input[0].toolCalls[0]"),), "input[0]")),
    "toolCalls, content null": (
        {"role": "assistant", "content": None, "toolCalls": [CALL]},
        Message("assistant", (ToolUse("c1", "get_weather", USE, "input[0].toolCalls[0]"),), "input[0]")),
    "toolCalls, content empty": (
        {"role": "assistant", "content": [], "toolCalls": [CALL]},
        Message("assistant", (ToolUse("c1", "get_weather", USE, "input[0].toolCalls[0]"),), "input[0]")),
    "toolCalls, content blank": (
        {"role": "assistant", "content": "", "toolCalls": [CALL]},
        Message("assistant", (ToolUse("c1", "get_weather", USE, "input[0].toolCalls[0]"),), "input[0]")),
    "arguments an object, no id, no type": (
        {"role": "assistant", "toolCalls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        Message("assistant", (ToolUse("", "f", {"a": 1}, "input[0].toolCalls[0]"),), "input[0]")),
    "arguments empty": (
        {"role": "assistant", "toolCalls": [{"function": {"name": "f", "arguments": ""}}]},
        Message("assistant", (ToolUse("", "f", {}, "input[0].toolCalls[0]"),), "input[0]")),
    "tool_calls as the openai SDK dumps them": (
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None,
         "function_call": None, "tool_calls": [CALL]},
        Message("assistant", (ToolUse("c1", "get_weather", USE, "input[0].tool_calls[0]"),), "input[0]")),
    "no tool calls": (
        {"role": "assistant", "content": "a", "tool_calls": []},
        Message("assistant", (Text("a", "input[0].content"),), "input[0]")),
    "toolCallId": (
        {"role": "tool", "toolCallId": "c1", "content": [{"type": "text", "text": "sunny"}, {"text": "25C"}]},
        Message(
            "tool",
            (ToolResult(
                "c1", (Text("sunny", "input[0].content[0]"), Text("25C", "input[0].content[1]")), False, "input[0]"),),
            "input[0]")),
    "tool_call_id with a name": (
        {"role": "tool", "tool_call_id": "c1", "name": "get_weather", "content": "sunny"},
        Message(
            "tool",
            (ToolResult("c1", (Text("sunny", "input[0].content"),), False, "input[0]", "get_weather"),),
            "input[0]")),
    "a tool message of results": (
        {"role": "tool", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "a"}]}}]},
        Message(
            "tool",
            (ToolResult(
                "c1", (Text("a", "input[0].content[0].toolResult.content[0]"),), False, "input[0].content[0]"),),
            "input[0]")),
    "bookkeeping": (
        {"role": "user", "content": "a", "id": "1", "message_id": 3, "tracking_id": "t", "metadata": {"k": "v"},
         "created_at": "now", "updated_at": "now", "type": "message"},
        Message("user", (Text("a", "input[0].content"),), "input[0]")),
}  # fmt: skip


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(case: str) -> None:
    message, expected = MESSAGES[case]
    assert read([message]) == AgentInput(InputType.MESSAGES, (expected,))


@pytest.mark.parametrize("text", ["hi", " ${parameters.question} \n\"'😀", '{"a":1}', "x" * 5000, "é" * 3000])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_text_arrives_exactly(text: str, ascii_only: bool) -> None:
    expected = AgentInput(InputType.TEXT, (Message("user", (Text(text, "input"),), "input"),))
    assert read(text, ascii_only) == expected


def test_order_and_roles_are_kept() -> None:
    roles = ["user", "system", "user", "Reviewer Nº 2", "assistant", "user"]
    read_roles = [message.role for message in read([{"role": role, "content": "x"} for role in roles]).messages]
    assert read_roles == roles


def test_long_data_is_a_view_and_short_data_a_copy() -> None:
    long = "AAAA" * 1000
    value = [
        {"type": "image", "source": {"type": "base64", "format": "png", "data": long}},
        {"type": "image", "source": {"type": "base64", "format": "png", "data": DATA}},
        {"type": "image", "source": {"type": "base64", "data": f"data:image/png;base64,{long}"}},
    ]
    request = read_execute(json.dumps({"input": value}).encode())
    prefix = request.extracted.prefix
    assert request.input is not None
    sources = [block.source for block in request.input.messages[0].content if isinstance(block, Media)]
    assert sources == [
        Base64(long.encode(), f"{prefix}0x"),
        Base64(DATA.encode(), f"{prefix}2x"),
        Base64(long.encode(), f"{prefix}1x"),
    ]
    assert [type(source.data) for source in sources if isinstance(source, Base64)] == [memoryview, bytes, memoryview]


def test_long_strings_come_back_where_they_are_text() -> None:
    long = "x" * 5000
    value = [
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "f", "input": {long: [long]}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": [{"json": {"a": long}}]}}]},
        {"role": long, "content": [{"guardContent": {"text": long}}]},
    ]
    content = [message.content[0] for message in read(value).messages]
    assert content == [
        ToolUse("t", "f", {long: [long]}, "input[0].content[0]"),
        ToolResult(
            "t", (Json({"a": long}, "input[1].content[0].toolResult.content[0]"),), False, "input[1].content[0]"
        ),
        ConverseBlock("guardContent", {"text": long}, "input[2].content[0]"),
    ]
    assert read(value).messages[2].role == long


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ({"type": "input_text", "text": "hi"}, Text("hi", "input[0]")),
        ({"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}, Text("hi", "input[0]")),
        (
            {"type": "tool-call", "toolCallId": "c", "toolName": "f", "input": {"a": 1}},
            ToolUse("c", "f", {"a": 1}, "input[0]"),
        ),
        (
            {
                "type": "tool-result",
                "toolCallId": "c",
                "toolName": "f",
                "output": {"type": "error-text", "value": "no"},
            },
            ToolResult("c", (Text("no", "input[0].output.value"),), True, "input[0]", "f"),
        ),
        (
            {"type": "tool-result", "toolCallId": "c", "output": {"type": "json", "value": [1]}},
            ToolResult("c", (Json([1], "input[0].output.value"),), False, "input[0]", ""),
        ),
    ],
)
def test_texts_and_tools_of_other_libraries(block: Any, kind: ContentBlock) -> None:
    assert read([block]).messages[0].content == (kind,)


@pytest.mark.parametrize("content", [None, "", []])
@pytest.mark.parametrize(
    "result",
    [
        lambda content: {"role": "tool", "toolCallId": "c", **content},
        lambda content: {"role": "tool", "tool_call_id": "c", **content},
        lambda content: {"role": "user", "content": [{"toolResult": {"toolUseId": "c", **content}}]},
        lambda content: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", **content}]},
    ],
)
def test_an_empty_result_of_a_tool_is_an_empty_text(result: Any, content: Any) -> None:
    for written in ({"content": content}, {}):
        (block,) = read([result(written)]).messages[0].content
        assert isinstance(block, ToolResult)
        assert [part.text for part in block.content if isinstance(part, Text)] == [""]
        assert len(block.content) == 1


BARE = Url("https://example.com/render?of=a.png")


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": BARE.url}}, "image"),
        ({"type": "image_url", "image_url": BARE.url}, "image"),
        ({"type": "input_image", "image_url": BARE.url}, "image"),
        ({"type": "input_file", "file_url": BARE.url}, "document"),
        ({"type": "image", "source": {"type": "url", "url": BARE.url}}, "image"),
        ({"type": "document", "source": {"type": "url", "url": BARE.url}}, "document"),
        ({"type": "image", "source": {"type": "url", "value": BARE.url}}, "image"),
        ({"type": "image", "url": BARE.url}, "image"),
        ({"type": "image", "image": BARE.url}, "image"),
        ({"image": {"source": {"url": BARE.url}}}, "image"),
        ({"fileData": {"fileUri": BARE.url}}, "document"),
    ],
)
def test_a_url_need_not_show_its_format(block: Any, kind: Any) -> None:
    assert list(read([block]).media) == [Media(kind, "", BARE, "input[0]")]


def test_vercels_url_may_have_a_type() -> None:
    block = {"type": "image", "image": BARE.url, "mediaType": "image/webp"}
    assert list(read([block]).media) == [image("webp", BARE)]


FUNCTION = {"name": "f", "arguments": "{}"}
OF_CALLS = [
    {"extra_content": {"google": {"thought_signature": "c2ln"}}},
    {"provider_specific_fields": {"thought_signature": "c2ln"}},
    {"function": {**FUNCTION, "provider_specific_fields": {"thought_signature": "c2ln"}}},
    {"thought_signature": "c2ln"},
    {"thoughtSignature": "c2ln"},
    {"thoughtSignature": "c2ln", "extra_content": {"google": {"thought_signature": "c2ln"}}},
]
SIGNED_BLOCKS = [
    {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"},
    {"function_call": {"name": "f", "args": {}}, "thought_signature": "c2ln"},
    {"toolUse": {"name": "f", "input": {}, "reasoningSignature": "c2ln"}},
    {"type": "tool_use", "name": "f", "input": {}, "thoughtSignature": "c2ln"},
    *(
        {"type": "tool-call", "toolName": "f", "input": {}, "providerOptions": {name: {"thoughtSignature": "c2ln"}}}
        for name in ("google", "vertex")
    ),
]


@pytest.mark.parametrize(
    "message",
    [
        *(
            {"role": "assistant", "tool_calls": [{"type": "function", "function": FUNCTION, **more}]}
            for more in OF_CALLS
        ),
        *({"role": "assistant", "content": [block]} for block in SIGNED_BLOCKS),
    ],
)
def test_the_signature_of_a_call_in_every_spelling(message: Any) -> None:
    (use,) = read([message]).messages[0].content
    assert isinstance(use, ToolUse)
    assert (use.name, use.input, use.signature) == ("f", {}, "c2ln")


def test_a_call_with_two_signatures_is_refused() -> None:
    call = {"function": FUNCTION, "thoughtSignature": "a", "extra_content": {"google": {"thought_signature": "b"}}}
    with pytest.raises(InvalidInput) as refused:
        read([{"role": "assistant", "tool_calls": [call]}])
    assert [problem.reason for problem in refused.value.problems] == ["The call has two signatures"]


@pytest.mark.parametrize("name", ["thoughtSignature", "thought_signature"])
def test_a_text_may_have_a_signature(name: str) -> None:
    assert read([{"text": "hi", name: "c2ln"}]).messages[0].content == (Text("hi", "input[0]", "c2ln"),)


@pytest.mark.parametrize(
    ("response", "content", "failed"),
    [
        ({"output": "sunny"}, Text("sunny", "input[0].functionResponse.response"), False),
        ({"output": [1]}, Json([1], "input[0].functionResponse.response"), False),
        ({"error": "no"}, Text("no", "input[0].functionResponse.response"), True),
        ({"error": "no", "code": 7}, Json({"error": "no", "code": 7}, "input[0].functionResponse.response"), False),
        ({"output": ""}, Text("", "input[0].functionResponse.response"), False),
        ({}, Json({}, "input[0].functionResponse.response"), False),
    ],
)
def test_geminis_results(response: Any, content: Any, failed: bool) -> None:
    for id in ({}, {"id": "c1"}):
        (block,) = read([{"functionResponse": {"name": "f", "response": response, **id}}]).messages[0].content
        assert block == ToolResult(id.get("id", ""), (content,), failed, "input[0]", "f")


def test_detail_is_read() -> None:
    for block in (
        {"type": "image_url", "image_url": {"url": HTTPS.url, "detail": "high"}},
        {"type": "input_image", "image_url": HTTPS.url, "detail": "high"},
    ):
        (media,) = read([block]).media
        assert media.detail == "high"


@pytest.mark.parametrize(
    ("options", "place"),
    [({"openai": {"itemId": "x"}}, "providerOptions.openai"), ({"google": {"more": 1}}, "providerOptions.google.more")],
)
def test_options_of_a_call_that_no_provider_gets_are_refused(options: Any, place: str) -> None:
    call = {"type": "tool-call", "toolCallId": "c", "toolName": "f", "input": {}, "providerOptions": options}
    with pytest.raises(InvalidInput) as refused:
        read([call])
    assert [problem.place for problem in refused.value.problems] == [f"input[0].{place}"]
