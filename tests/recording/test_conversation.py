"""What a recorded run says, as a person reads it."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.observe.media import shorten_media
from gateway.observe.record import Body, Delivery, ExchangeRecord, HttpMessage, RecordedError, Summary
from gateway.recording.conversation import (
    LONGEST,
    Attachment,
    Call,
    Conversation,
    Message,
    Result,
    Text,
    one_line,
    read_run,
    summarize,
)
from tests.recording.records import get, record

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4
HASH = hashlib.sha256(PICTURE).hexdigest()
BASE64 = base64.b64encode(PICTURE).decode()
IMAGE = Attachment("image", "image/png", len(PICTURE), HASH)


CALL = {
    "choices": [
        {
            "finish_reason": "tool_calls",
            "message": {
                "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
            },
        }
    ]
}


def http(document: Any) -> HttpMessage:
    """Return a message as it is recorded, with marks in place of media."""
    text = document if isinstance(document, str) else json.dumps(document)
    shortened = shorten_media(text.encode()).decode()
    return HttpMessage((), Body(len(text), shortened))


def asked(document: Any) -> tuple[Message, ...]:
    return read_run(record(request=http(document))).asked


def answered(document: Any, **values: Any) -> Conversation:
    delivery = Delivery("a", "conversational", provider="openai/v1/chat/completions")
    return read_run(record(**{"response": http(document), "delivery": delivery, **values}))


def legacy(*outputs: dict[str, Any]) -> dict[str, Any]:
    return {"inference_results": [{"output": list(outputs)}]}


ASKED = {
    "legacy": ({"parameters": {"question": "Why?"}}, (Message("user", (Text("Why?"),)),)),
    "text": ({"input": "Why?"}, (Message("user", (Text("Why?"),)),)),
    "blocks": (
        {
            "input": [
                {"type": "text", "text": "What is this?"},
                {"type": "image", "source": {"type": "base64", "format": "png", "data": BASE64}},
            ]
        },
        (Message("user", (Text("What is this?"), IMAGE)),),
    ),
    "Bedrock's blocks": (
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"text": "This?"}, {"image": {"format": "png", "source": {"bytes": BASE64}}}],
                }
            ]
        },
        (Message("user", (Text("This?"), IMAGE)),),
    ),
    "OpenAI's blocks": (
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}}],
                }
            ]
        },
        (Message("user", (IMAGE,)),),
    ),
    "a URL": (
        {
            "input": [
                {"type": "image", "source": {"type": "url", "format": "png", "data": "s3://b/cat.png"}},
                {"type": "text", "text": "?"},
            ]
        },
        (Message("user", (Attachment("image", url="s3://b/cat.png"), Text("?"))),),
    ),
    "a tool": (
        {
            "input": [
                {"role": "user", "content": [{"text": "Weather?"}]},
                {
                    "role": "assistant",
                    "content": [{"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Rome"}}}],
                },
                {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "sunny"}]}}]},
            ]
        },
        (
            Message("user", (Text("Weather?"),)),
            Message("assistant", (Call("t1", "weather", '{"city":"Rome"}'),)),
            Message("user", (Result("t1", "sunny"),)),
        ),
    ),
    "an input that breaks a rule": (
        {"input": [{"type": "text", "text": "What?"}, {"type": "hologram", "data": BASE64}]},
        (Message("user", (Text("What?"), IMAGE)),),
    ),
    "no JSON": ("{", ()),
    "nothing": ({}, ()),
}


@pytest.mark.parametrize(("document", "expected"), ASKED.values(), ids=ASKED)
def test_what_was_asked(document: Any, expected: tuple[Message, ...]) -> None:
    assert asked(document) == expected


def test_base64_in_a_text_is_named() -> None:
    assert asked({"input": f"Which data is {BASE64}?"}) == (
        Message("user", (Text("Which data is [image/png, 1032 bytes]?"),)),
    )


def test_a_small_image_without_a_mark_is_an_attachment() -> None:
    gif = base64.b64encode(b"GIF89a\x01\x00\x01\x00\x00\x00\x00;").decode()
    (message,) = asked({"input": [{"type": "image", "source": {"type": "base64", "format": "gif", "data": gif}}]})
    assert message.parts == (Attachment("image", "image/gif", 14),)


ANSWERED: dict[str, tuple[Any, tuple[Message, ...], str]] = {
    "an output": (legacy({"name": "response", "result": "Because."}), (Message("assistant", (Text("Because."),)),), ""),
    "a unified message": (
        {"stop_reason": "end_turn", "message": {"role": "assistant", "content": [{"text": "Because."}]}},
        (Message("assistant", (Text("Because."),)),),
        "",
    ),
    "steps of a verbose agent": (
        legacy(
            {"name": "memory_id", "result": "m"},
            {
                "name": "response",
                "dataAsMap": {"response": json.dumps(CALL)},
            },
            {"name": "response", "dataAsMap": {"response": "sunny"}},
            {"name": "response", "dataAsMap": {"response": "It is sunny."}},
        ),
        (
            Message("assistant", (Call("t1", "weather", "{}"),)),
            Message("user", (Result("t1", "sunny"),)),
            Message("assistant", (Text("It is sunny."),)),
        ),
        "",
    ),
    "in the background": (
        {"task_id": "t7", "status": "RUNNING"},
        (Message("assistant", (Text("The run goes on in the background, as task t7."),)),),
        "",
    ),
    "no known form": ({"x": 1}, (), ""),
}


@pytest.mark.parametrize(("document", "said", "failure"), ANSWERED.values(), ids=ANSWERED)
def test_what_was_answered(document: Any, said: tuple[Message, ...], failure: str) -> None:
    run = answered(document)
    assert (run.answered, run.failure) == (said, failure)


def events(*documents: Any) -> str:
    return "".join(f"data: {json.dumps(one)}\n\n" for one in documents)


def piece(content: str, is_last: bool = False) -> dict[str, Any]:
    return legacy({"name": "response", "dataAsMap": {"content": content, "is_last": is_last}})


def test_a_stream_is_read_and_one_that_breaks_off_says_so() -> None:
    whole = answered(events(piece("It is "), piece("sunny."), piece("", True)), intent="execute_stream")
    assert (whole.answered, whole.failure) == ((Message("assistant", (Text("It is sunny."),)),), "")
    cut = answered(events(piece("It is "), piece("sun")), intent="execute_stream")
    assert cut.answered == (Message("assistant", (Text("It is sun"),)),)
    assert cut.failure == "The stream broke off before the agent had ended its answer."
    failed = answered(events(piece("Well"), {"error": {"type": "x", "reason": "no model"}}), intent="execute_stream")
    assert failed.failure == "no model"
    assert (whole.broken, cut.broken, failed.broken) == (False, True, True)
    one = record(intent="execute_stream", response=HttpMessage(body=Body(9, events(piece("It is")))))
    assert summarize(one) == Summary(
        "Hello", "The stream broke off before the agent had ended its answer.", broken=True
    )


FAILED: dict[str, tuple[ExchangeRecord, str]] = {
    "the gateway": (record(status=400, error=RecordedError("E", "[input] no")), "[input] no"),
    "cut": (record(status=0), "The response was cut, or the client was gone."),
    "the cluster": (
        get(
            "/none/_search",
            '{"error":{"type":"index_not_found_exception","reason":"no such index [none]"}}',
            status=404,
        ),
        "The cluster answered 404: no such index [none]",
    ),
    "a proxy": (get("/", "Bad gateway", status=502), "The cluster answered 502: Bad gateway"),
    "a root cause": (
        get("/", '{"error":{"root_cause":[{"reason":"the root"}]}}', status=400),
        "The cluster answered 400: the root",
    ),
    "a body that is not recorded": (
        replace(
            get("/", status=404), response=HttpMessage(body=Body(9, omitted="Not recorded (inspector.passthrough)."))
        ),
        "The cluster answered 404. Not recorded (inspector.passthrough).",
    ),
    "nothing": (get("/"), ""),
}


@pytest.mark.parametrize(("one", "failure"), FAILED.values(), ids=FAILED)
def test_why_it_failed_in_words(one: ExchangeRecord, failure: str) -> None:
    assert read_run(one).failure == failure


def test_the_summary_of_a_run() -> None:
    document = {
        "input": [
            {"type": "text", "text": "What\n  is this?"},
            {"type": "image", "source": {"type": "base64", "format": "png", "data": BASE64}},
        ]
    }
    one = record(request=http(document), response=http(legacy({"name": "response", "result": "A cat.\nIt sleeps."})))
    assert summarize(one) == Summary("What is this?", "A cat. It sleeps.", HASH, 1)
    assert summarize(replace(one, status=400, error=RecordedError("E", "No place."))) == Summary(
        "What is this?", "No place.", HASH, 1
    )
    assert summarize(get("/")) is None


def test_the_summary_of_a_registration() -> None:
    one = record(
        intent="register",
        request=http({"name": "guide", "type": "flow"}),
        response=http({"agent_id": "x1"}),
    )
    assert summarize(one) == Summary("Register guide", "Made agent x1")
    assert summarize(replace(one, status=400, error=RecordedError("E", "No model."))) == Summary(
        "Register guide", "No model."
    )


def test_a_summary_is_cut_and_has_no_marks() -> None:
    line = one_line("word " * 1000)
    assert len(line) == LONGEST
    assert line.endswith("…")
    assert one_line(f"a [MEDIA type=image/png length=3 sha256={HASH}] b") == "a [image/png] b"


def test_bodies_that_are_too_large_are_not_read() -> None:
    large = http({"input": "x " * 500_001})
    assert read_run(record(request=large)).asked == ()
    run = read_run(record(response=http(legacy({"name": "response", "result": "x " * 500_001}))))
    assert run.failure == "The answer is too large to be read here: see the response."
