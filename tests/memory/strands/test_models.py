"""Strands' models for Bedrock, OpenAI and Gemini take every session that the gateway wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("strands", reason="strands-agents is not installed (make strands)")

import boto3
from botocore.validate import ParamValidator
from google.genai import types as gemini_types
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter
from strands.models.bedrock import BedrockModel
from strands.models.gemini import GeminiModel
from strands.models.openai import OpenAIModel

from gateway.memory.model import Metadata, Turn
from tests.memory.conversations import assistant, tool_result, tool_use, turn, user
from tests.memory.strands.scripted import ScriptedModel
from tests.memory.strands.test_session_managers import IMAGE, Place, place, run  # noqa: F401  # a fixture

BYTES = IMAGE["image"]["source"]["bytes"]
URL = {"image": {"format": "png", "source": {"url": "https://example.org/cat.png"}}}
S3 = {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://bucket/cat.png"}}}}
DOCUMENT = {"document": {"format": "pdf", "source": {"bytes": BYTES}}}
NAMED = {"document": {"format": "pdf", "name": "Report", "source": {"bytes": BYTES}}}
VIDEO = {"video": {"format": "mp4", "source": {"bytes": BYTES}}}
AUDIO = {"audio": {"format": "wav", "source": {"bytes": BYTES}}}
NO_INPUT = {"toolUse": {"toolUseId": "2", "name": "now", "input": None}}
FAILED = Metadata(failed=True)

SESSIONS: dict[str, list[Turn]] = {
    "text": [turn(user("Hi"), assistant("Hello"))],
    "blank text": [turn(user("", " ", "Hi"), assistant(" "))],
    "nothing but blank text": [turn(user(""), assistant(""))],
    "image": [turn(user("Look:", IMAGE), assistant("A cat."))],
    "image by URL": [turn(user("Look:", URL), assistant("A cat."))],
    "image by URL alone": [turn(user(URL), assistant("A cat."))],
    "image in S3": [turn(user("Look:", S3), assistant("A cat."))],
    "documents with and without a name": [turn(user("Read:", DOCUMENT, NAMED, DOCUMENT), assistant("Done."))],
    "video and audio": [turn(user("Look:", VIDEO, AUDIO), assistant("A cat."))],
    "tool calls": [
        turn(
            user("How many?"),
            assistant("I look.", tool_use("1", city="Bonn"), NO_INPUT),
            user(
                tool_result("1", {"text": "2"}, {"json": {"n": [1, None]}}, IMAGE, URL, S3, DOCUMENT, {"text": ""}),
                {"toolResult": {"toolUseId": "2", "content": []}},
            ),
            assistant("Two."),
        )
    ],
    "reasoning and blocks of Bedrock": [
        turn(
            user({"guardContent": {"text": {"text": "Hi"}}}, {"cachePoint": {"type": "default"}}),
            assistant(
                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
                {"reasoningContent": {"redactedContent": BYTES}},
                {"citationsContent": {"content": [{"text": "As it "}, {"text": "says."}], "citations": []}},
                {"searchResult": {"title": "t", "source": "s", "content": [{"text": "x"}]}},
                "Hello",
            ),
        )
    ],
    "several messages of one role": [
        turn(user("One."), user(IMAGE), assistant(tool_use("1")), user(tool_result("1", {"text": "2"})), user("Well?"),
             assistant("Two."), assistant("Or three.")),
    ],
    "a turn that failed": [
        turn(user("Hi"), assistant("Hello")),
        turn(user("Lost?", metadata=FAILED)),
        turn(user("Again?"), assistant("Yes.")),
    ],
    "two turns that failed": [
        turn(user("Lost?", metadata=FAILED)),
        turn(user("Lost, too?", metadata=FAILED)),
        turn(user("Again?"), assistant("Yes.")),
    ],
}  # fmt: skip


@pytest.fixture(params=SESSIONS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def session(place: Place, name: str) -> list[Any]:  # noqa: F811
    """The messages that Strands restores of a session of the gateway's, with a new question."""
    for number, one in enumerate(SESSIONS[name]):
        place.append(one, number)
    model = ScriptedModel([{"text": "Fine."}])
    run(place, model, "And now?")
    [received] = model.received
    return received


def test_strands_goes_on_with_it_and_the_gateway_too(place: Place, session: list[Any], name: str) -> None:  # noqa: F811
    assert [message["role"] for message in session] == ["user", "assistant"] * (len(session) // 2) + ["user"]
    assert all(message["content"] for message in session)
    written = [message for one in SESSIONS[name] for message in one.messages]
    found = [stored.message for stored in place.load().messages]
    assert [(one.role, one.content) for one in found[: len(written)]] == [(one.role, one.content) for one in written]
    assert [one.content[0]["text"] for one in found[len(written) :]] == ["And now?", "Fine."]


def test_bedrock_takes_it(session: list[Any]) -> None:
    client = boto3.client("bedrock-runtime", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    model = BedrockModel(boto_session=boto3.Session(region_name="us-east-1"), model_id="anthropic.claude-v2")
    request = model.format_request(session)
    shape = client.meta.service_model.operation_model("Converse").input_shape
    report = ParamValidator().validate(request, shape)
    assert not report.has_errors(), report.generate_report()
    blocks = [block for message in request["messages"] for block in message["content"]]
    names = [block["document"]["name"] for block in blocks if "document" in block]
    assert len(set(names)) == len(names)
    assert all(block.get("text", "x").strip() for block in blocks)


def test_openai_takes_it(session: list[Any]) -> None:
    request = OpenAIModel(client_args={"api_key": "k"}, model_id="gpt-4o").format_request(session)
    TypeAdapter(list[ChatCompletionMessageParam]).validate_python(json.loads(json.dumps(request["messages"])))


def test_gemini_takes_it(session: list[Any]) -> None:
    model = GeminiModel(client_args={"api_key": "k"}, model_id="gemini-2.5-flash")
    for content in model._format_request_content(session):
        gemini_types.Content.model_validate(content.model_dump())
        assert content.parts
