"""A conversation with media for an agent without any place for earlier turns arrives as one turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.delivery.cases import CALL, IMAGE, OTHER_IMAGE, RESULT, text, turn
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.delivery.unseen import UnseenCluster
from tests.oracle import Oracle, Outcome

TALK = [
    turn("user", IMAGE, text("This?")),
    turn("assistant", "A dot."),
    turn("user", text("And"), text("this?"), OTHER_IMAGE, text("Say.")),
]
TEXTS = ["Human:", "This?\nAssistant:A dot.\nHuman:And\nthis?", "Say."]


def received(cluster: SimulatedCluster, agent: str, messages: list[Any]) -> Any:
    """Return the body that the LLM got, after the input has arrived."""
    sent = cluster.send(agent, {"input": messages})
    verdict = Oracle(cluster).judge(agent, {}, (), sent)
    assert verdict.outcome is Outcome.ARRIVED, verdict
    assert "HISTORY_IN_QUESTION" in verdict.notices
    assert sent.executed is not None
    return json.loads(sent.executed.llm_bodies[0])


def test_the_media_stay_between_the_texts() -> None:
    (asked,) = received(UnseenCluster("2.19.0"), "flow-converse_content", TALK)["messages"]
    assert [part.get("text") for part in asked["content"]] == [TEXTS[0], None, TEXTS[1], None, TEXTS[2]]
    assert [part["image"]["format"] for part in asked["content"] if "image" in part] == ["png", "jpeg"]


def test_the_clusters_own_prompt_is_around_all_of_it() -> None:
    (asked,) = received(cluster_of("3.4.0"), "conv-gemini_text", TALK)["contents"]
    first, *_, last = (part["text"] for part in asked["parts"] if "text" in part)
    assert first.endswith(TEXTS[0])
    assert len(first) > len(TEXTS[0])
    assert last.startswith(TEXTS[2])
    assert len(last) > len(TEXTS[2])


def test_on_openai_it_is_a_run_of_the_users_messages() -> None:
    messages = received(UnseenCluster("3.4.0"), "chat-vllm", TALK)["messages"]
    assert {message["role"] for message in messages} == {"user"}


@pytest.mark.parametrize("agent", ["conv-gemini_text", "flow-gemini_text"])
def test_a_place_for_turns_and_a_conversation_of_texts_come_first(agent: str) -> None:
    talk = TALK if agent.startswith("flow") else [turn("user", "a"), turn("assistant", "b"), turn("user", "c")]
    sent = cluster_of("3.4.0").send(agent, {"input": talk})
    assert sent.rewritten is not None, sent.error
    assert "HISTORY_IN_QUESTION" not in [notice.code for notice in sent.rewritten.plan.notices]


def test_tool_calls_in_it_are_text() -> None:
    talk = [turn("user", text("Weather?"), IMAGE), turn("assistant", CALL), turn("user", RESULT), turn("user", "So?")]
    (asked,) = received(UnseenCluster("2.19.0"), "flow-converse_content", talk)["messages"]
    first, _, rest = asked["content"]
    assert first["text"] == "Human:Weather?"
    assert rest["text"].startswith('Assistant:{"toolUse":')


def test_the_agents_prompt_is_around_the_last_text_though_an_earlier_one_is_the_same() -> None:
    again = [turn("user", IMAGE, text("$"), OTHER_IMAGE), turn("assistant", "$"), turn("user", "$")]
    cluster, own = cluster_of("2.19.0"), {"prompt": "<${parameters.question}>"}
    sent = cluster.send("flow-content", {"input": again, "parameters": own})
    assert Oracle(cluster).judge("flow-content", own, (), sent).outcome is Outcome.ARRIVED
    assert sent.executed is not None
    (asked,) = json.loads(sent.executed.llm_bodies[0])["messages"]
    texts = [part["text"] for part in asked["content"] if "text" in part]
    assert texts == ["Human:", "$", "<Assistant:$\nHuman:$>"]
