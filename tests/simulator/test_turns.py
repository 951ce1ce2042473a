"""What a conversation's memory gives to later turns (facts.md, "What memory keeps from turn to turn")."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.simulator.core import ClusterCore, Executed
from gateway.simulator.errors import NoAnswer
from gateway.simulator.fixtures import seed_core
from gateway.simulator.llm import LlmEndpoints

DNE = "_chat_history,_tools,_interactions,tool_configs"
IMAGE = '"},{"image":{"format":"png","source":{"bytes":"iVBORw0KGgo="}}},{"text":"'
MODERN = ("3.4.0", "3.6.0", "3.8.0")
UNIFIED = ("3.6.0", "3.8.0")
PLANNED = '{"steps":[],"result":"done"}'


class Conversation:
    """Turns of one agent in one memory, with a model that accepts any body and answers "done"."""

    def __init__(self, version: str, agent: str) -> None:
        self.llm = LlmEndpoints(strict=False)
        self.core = ClusterCore(version, self.llm)
        self.agent = seed_core(self.core)[agent]
        self.planner = "per-" in agent
        self.memory_id = ""

    def turn(self, question: str, **parameters: Any) -> Executed:
        self.llm.script([PLANNED if self.planner else "done"])
        if self.memory_id:
            parameters["memory_id"] = self.memory_id
        executed = self.core.execute(self.agent, {"parameters": {"question": question, **parameters}})
        if executed.status == 200:
            self.memory_id = executed.body["inference_results"][0]["output"][0]["result"]
        return executed

    def first_call(self, question: str, **parameters: Any) -> str:
        """Run a turn that succeeds and return its first LLM call."""
        executed = self.turn(question, **parameters)
        assert executed.status == 200, executed.body
        return executed.llm_bodies[0]

    def stored(self) -> list[tuple[str | None, str | None]]:
        return [(turn.input, turn.response) for turn in self.core.memory.earlier(self.memory_id, None)]


PASSES = {
    **{("3.x", "flow-bedrock_tutorial"): 1, ("3.x", "cflow-bedrock_tutorial"): 1},
    **{("3.x", "conv-bedrock_tutorial"): 9, ("3.x", "fc-bedrock_tutorial"): 8},
}
CASES = [(version, agent, number) for (_, agent), number in PASSES.items() for version in MODERN]


def coded(name: str, dollars: int, text: str) -> dict[str, str]:
    """Return the general form of a turn that carries raw text in a helper of its own."""
    raw = "${" if not dollars else "$" * dollars + "{"
    return {
        "question": f"${{parameters.{name}:-{text}}}",
        name: f"{raw}parameters.{name}s}}",
        f"{name}s": text + IMAGE,
        "no_escape_params": f"{DNE},{name}s",
    }


@pytest.mark.parametrize(("version", "agent", "passes"), CASES)
def test_as_many_dollars_as_passes(version: str, agent: str, passes: int) -> None:
    conversation = Conversation(version, agent)
    assert "iVBORw0KGgo=" in conversation.first_call(**coded("gw_a", passes, "look"))
    blocks = json.loads(conversation.first_call(**coded("gw_b", passes, "look")))["messages"][-1]["content"]
    assert {"format": "png", "source": {"bytes": "iVBORw0KGgo="}} in [block.get("image") for block in blocks]
    if passes > 1:  # the first pass knows all parameters, and what it inserts is escaped later
        (text,) = json.loads(conversation.first_call(**coded("gw_c", 1, "look")))["messages"][-1]["content"]
        assert "image" in text["text"]
    assert Conversation(version, agent).turn(**coded("gw_d", passes + 1, "look")).status == 400


@pytest.mark.parametrize(("version", "agent", "passes"), [case for case in CASES if "flow-" not in case[1][:5]])
def test_a_later_turn_reads_the_default(version: str, agent: str, passes: int) -> None:
    conversation = Conversation(version, agent)
    conversation.first_call(**coded("gw_a", passes, "look here"))
    later = conversation.first_call("and now?")
    assert "look here" in later
    assert "iVBORw0KGgo=" not in later
    assert "gw_a" not in later
    assert conversation.stored()[0] == ("${parameters.gw_a:-look here}", "done")


@pytest.mark.parametrize("version", UNIFIED)
@pytest.mark.parametrize("agent", ["v1-bedrock", "v1-openai", "v1-gemini"])
@pytest.mark.parametrize(
    ("dollars", "now", "later_same", "later"),
    [
        (1, "READ", "READ", "READ"),
        (2, "HELPER", "READ", "READ"),
        (3, "${parameters.gw_x:-READ}", "OTHER", "READ"),
        (4, "$${parameters.gw_x:-READ}", "${parameters.gw_x:-READ}", None),
    ],
)
def test_dollars_on_unified_agents(
    version: str, agent: str, dollars: int, now: str, later_same: str, later: str | None
) -> None:
    conversation = Conversation(version, agent)
    raw = {"no_escape_params": f"{DNE},gw_x", "skip_validating_missing_parameters": "true"}
    question = "$" * dollars + "{parameters.gw_x:-READ}"
    assert f'"{now}"' in conversation.first_call(question, gw_x="HELPER", **raw)
    assert f'"{later_same}"' in conversation.first_call("next", gw_x="OTHER", **raw)
    if later is None:
        assert conversation.turn("last").status == 400
    else:
        assert f'"{later}"' in conversation.first_call("last")


@pytest.mark.parametrize("version", MODERN)
@pytest.mark.parametrize("kind", ["conv", "fc", "cflow", "per"])
def test_a_failed_turn_is_replayed_on_3x(version: str, kind: str) -> None:
    conversation = Conversation(version, f"{kind}-bedrock_tutorial")
    conversation.first_call("one")
    failed = conversation.turn("two ${parameters.nope}")
    assert failed.status == 400
    failure = "Agent execution failed: Some parameter placeholder not filled in payload: nope"
    assert conversation.stored()[1] == ("two ${parameters.nope}", failure)
    assert conversation.turn("three").status == 400  # and so is every later turn
    assert conversation.turn("four", message_history_limit="0").status == 200


@pytest.mark.parametrize("version", UNIFIED)
def test_a_failed_turn_of_a_unified_agent_is_replayed_without_an_answer(version: str) -> None:
    conversation = Conversation(version, "v1-bedrock")
    conversation.first_call("one")
    assert conversation.turn("two ${parameters.nope}").status == 400
    assert conversation.stored()[1:] == [("two ${parameters.nope}", None)]
    body = json.loads(conversation.first_call("three", nope="filled"))
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "user"]
    assert body["messages"][2]["content"] == [{"text": "two filled"}]
    assert conversation.turn("four").status == 400


@pytest.mark.parametrize("agent", ["conv-d", "cflow-d"])
def test_a_failed_turn_is_not_replayed_on_2x(agent: str) -> None:
    conversation = Conversation("2.19.0", agent)
    conversation.first_call("one")
    assert conversation.turn("two ${parameters.nope}").status == 400
    later = conversation.first_call("three")
    assert "one" in later
    assert "two" not in later


@pytest.mark.parametrize("version", UNIFIED)
def test_the_history_of_a_unified_agent_counts_messages(version: str) -> None:
    conversation = Conversation(version, "v1-openai")
    for number in range(7):
        conversation.first_call(f"q{number}")
    assert len(json.loads(conversation.first_call("all"))["messages"]) == 11
    one = json.loads(conversation.first_call("one", message_history_limit="1"))["messages"]
    assert [message["role"] for message in one] == ["assistant", "user"]
    assert len(json.loads(conversation.first_call("no limit", message_history_limit="0"))["messages"]) == 19


@pytest.mark.parametrize("version", UNIFIED)
@pytest.mark.parametrize("agent", ["conv-bedrock_tutorial", "fc-openai_tutorial", "v1-gemini", "flow-openai_tutorial"])
def test_a_cycle_is_never_answered_by_conversational_agents(version: str, agent: str) -> None:
    question = "a ${parameters.question}"
    if agent.startswith("flow"):
        assert Conversation(version, agent).turn(question).status == 500
    else:
        with pytest.raises(NoAnswer):
            Conversation(version, agent).turn(question)
    assert Conversation("3.4.0", "fc-bedrock_tutorial").turn(question).status == 500


@pytest.mark.parametrize("version", UNIFIED)
def test_a_splice_at_the_end_leaves_an_empty_text(version: str) -> None:
    sent = {"gw_a": IMAGE, "no_escape_params": f"{DNE},gw_a"}
    body = Conversation(version, "v1-bedrock").first_call("look$${parameters.gw_a:-}", **sent)
    assert json.loads(body)["messages"][0]["content"][-1] == {"text": ""}
    plain = Conversation(version, "fc-bedrock_tutorial")
    raw = plain.first_call("look", prompt="look" + IMAGE, no_escape_params=f"{DNE},prompt")
    assert json.loads(raw)["messages"][0]["content"][-1] == {"text": ""}
