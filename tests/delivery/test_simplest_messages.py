"""OpenAI's messages of one text have a string as content: DeepSeek's API and others take no array there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.delivery.plan import assume
from gateway.providers import registry
from gateway.providers.base import MappingOptions
from tests.delivery.cases import CASES, IMAGE, text, turn
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.delivery.unseen import UnseenCluster
from tests.matrix import conversation_of

TALK = [turn("system", "Be kind."), *CASES["conversation"].input]
OPENAI = registry.provider("openai/v1/chat/completions")


def contents(cluster: SimulatedCluster, agent: str, value: Any) -> list[Any]:
    sent = cluster.send(agent, {"input": value})
    assert sent.executed is not None, sent.error
    assert sent.executed.status == 200, sent.executed.body
    return [message.get("content") for message in json.loads(sent.executed.llm_bodies[0])["messages"]]


@pytest.mark.parametrize(
    ("version", "agent"),
    [
        ("2.19.0", "flow-b"),
        ("2.19.0", "bare-b"),
        ("3.4.0", "flow-openai_messages"),
        ("3.4.0", "fc-openai_upgraded"),
        ("3.4.0", "fc-openai_tutorial"),
        ("3.4.0", "flow-openai_tutorial"),
    ],
)
@pytest.mark.parametrize("case", ["plain text", "conversation", "system first", "tool call and result"])
def test_texts_are_strings(version: str, agent: str, case: str) -> None:
    sent = contents(cluster_of(version), agent, CASES[case].input)
    assert [content for content in sent if not isinstance(content, str | None)] in ([], [[text("sunny"), text("25 C")]])


def test_every_text_of_a_conversation_with_deepseek_is_a_string() -> None:
    assert all(isinstance(content, str) for content in contents(UnseenCluster("2.19.0"), "flow-deepseek", TALK))


def test_media_are_in_an_array() -> None:
    first, answer, last = contents(cluster_of("2.19.0"), "bare-b", [*CASES["images in history"].input])
    assert [part["type"] for part in first] == ["text", "image_url"]
    assert (answer, last) == ("A dot.", "Sure?")
    assert contents(cluster_of("2.19.0"), "bare-b", [text("a"), text("b"), IMAGE])[0][:2] == [text("a"), text("b")]


def test_texts_are_strings_without_a_proof() -> None:
    plan = assume(OPENAI, conversation_of(CASES["conversation"]), {}, MappingOptions(), "t1")
    assert [message["content"] for message in json.loads(plan.parameters["messages"])] == [
        "What is on the shelf?",
        "Three books.",
        "Which ones?",
    ]


def test_other_members_of_a_part_are_kept() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}
    assert OPENAI.simplest(message) == message
