"""A simulated cluster without a network: behaviour that the recordings hardly show."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.simulator.core import VERSIONS, ClusterCore, Executed
from gateway.simulator.fixtures import seed_core
from gateway.simulator.llm import Call, LlmEndpoints
from gateway.simulator.predict import LlmReply
from tests.conftest import mostly_slow

ASK = {"parameters": {"question": 'say "hi"'}}
NEEDS_MORE = ("-a", "-b", "-e2", "-j", "_messages", "_contents")  # templates that `question` alone does not fill


class Seeded:
    """A seeded core with checking models."""

    def __init__(self, version: str) -> None:
        self.llm = LlmEndpoints()
        self.core = ClusterCore(version, self.llm)
        self.agents = seed_core(self.core)

    def execute(self, agent: str, **parameters: Any) -> Executed:
        return self.core.execute(self.agents[agent], {"parameters": parameters})


def output(executed: Executed) -> list[dict[str, Any]]:
    assert executed.status == 200, executed.body
    tensors: list[dict[str, Any]] = executed.body["inference_results"][0]["output"]
    return tensors


def memory_id(executed: Executed) -> str:
    return next(str(tensor["result"]) for tensor in output(executed) if tensor["name"] == "memory_id")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_seeded_agent_runs_against_checking_models(version: str) -> None:
    seeded = Seeded(version)
    assert len(seeded.agents) == {"2.19.0": 36, "3.4.0": 41}.get(version, 46)
    for name, agent_id in seeded.agents.items():
        executed = seeded.core.execute(agent_id, ASK)
        expected = 400 if name.endswith(NEEDS_MORE) else 200
        assert executed.status == expected, (name, executed.body)
        assert len(executed.llm_bodies) == (executed.status == 200), name


def test_unknown_version() -> None:
    with pytest.raises(ValueError, match=r"2\.19\.0, 3\.4\.0, 3\.6\.0, 3\.8\.0"):
        ClusterCore("1.0")


def test_no_agent_was_ever_registered() -> None:
    executed = ClusterCore("2.19.0").execute("x", ASK)
    assert (executed.status, executed.body["error"]["details"]) == (404, "Agent index not found")


def test_react_loop_carries_the_image_and_the_observation() -> None:
    seeded = Seeded("2.19.0")
    seeded.core.tool_outputs["CatIndexTool"] = 'books "and" ${parameters.question}'
    seeded.llm.script(['{"thought":"t","action":"CatIndexTool","action_input":"[]"}', '{"final_answer":"two books"}'])
    image = {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}}
    messages = [{"role": "user", "content": [{"text": "${parameters.prompt}"}, image]}]
    executed = seeded.execute("conv-a", question="how many?", messages=json.dumps(messages))
    assert output(executed)[-1]["dataAsMap"]["response"] == "two books"
    first, second = (json.loads(body)["messages"][0]["content"] for body in executed.llm_bodies)
    assert first[1] == second[1] == image
    assert "[output]" not in first[0]["text"]
    # The loop inserts a tool's output like any other text.
    assert '[output] books "and" how many?' in second[0]["text"]
    assert second[0]["text"].count("[question] how many?") == 1


@pytest.mark.parametrize("name", ["fc-bedrock_tutorial", "fc-openai_tutorial", "fc-openai_upgraded"])
def test_function_calling_answers_the_call(name: str) -> None:
    seeded = Seeded("3.4.0")
    seeded.llm.script([Call("ListIndexTool", {"indices": []}, id="call-7"), "two books"])
    executed = seeded.execute(name, question="how many?")
    assert output(executed)[-1]["dataAsMap"]["response"] == "two books"
    second = json.loads(executed.llm_bodies[1])["messages"]
    assert "call-7" in json.dumps(second[-2])
    assert "call-7" in json.dumps(second[-1])
    assert json.loads(executed.llm_bodies[0])["messages"] == second[:-2]


def test_a_react_agent_on_3x_leaves_a_null_where_interactions_stand() -> None:
    seeded = Seeded("3.4.0")
    seeded.llm.strict = False
    seeded.llm.script(['{"thought":"t","action":"ListIndexTool","action_input":"[]"}', '{"final_answer":"done"}'])
    executed = seeded.execute("conv-bedrock_tutorial", question="how many?")
    assert json.loads(executed.llm_bodies[1])["messages"][-1] is None


def test_the_loop_ends_when_the_model_never_does() -> None:
    for version, name, calls in (("2.19.0", "conv-d", 5), ("3.4.0", "fc-bedrock_tutorial", 3)):
        seeded = Seeded(version)
        tool = "CatIndexTool" if version == "2.19.0" else "ListIndexTool"
        step: Any = json.dumps({"thought": "again", "action": tool, "action_input": "[]"})
        seeded.llm.script([step if version == "2.19.0" else Call(tool, {}, id=f"c{n}") for n in range(9)])
        executed = seeded.execute(name, question="loop")
        assert executed.status == 200
        assert len(executed.llm_bodies) == calls


def test_planner_has_its_executor_run_a_step() -> None:
    seeded = Seeded("3.4.0")
    seeded.llm.script(['{"steps":["look it up"]}', "found it", '{"steps":[],"result":"all done"}'])
    executed = seeded.execute("per-bedrock_tutorial", question="plan this", prompt="ignored")
    assert output(executed)[-1]["dataAsMap"] == {"response": "all done"}
    planner, executor, again = (json.loads(body)["messages"][-1]["content"][0]["text"] for body in executed.llm_bodies)
    assert "[objective] plan this" in planner
    assert executor == "look it up"
    assert "found it" in again
    assert "ignored" not in planner


def test_a_planner_has_to_be_given_the_path_of_gemini_s_text() -> None:
    core = ClusterCore("3.6.0")
    planner = {"name": "p", "type": "plan_execute_and_reflect", "llm": {"model_id": "m"}}
    parameters = {"_llm_interface": "gemini/v1beta/generatecontent"}
    made = core.register_agent({**planner, "parameters": parameters})
    executed = core.execute(made["agent_id"], {"parameters": {"question": "q"}})
    details = "Unsupported llm interface: gemini/v1beta/generatecontent"
    assert (executed.status, executed.body["error"]["details"]) == (500, details)


def test_memory_replays_and_yields_to_a_limit_of_zero() -> None:
    seeded = Seeded("3.4.0")
    first = seeded.execute("fc-bedrock_tutorial", question='my name is Bob "B"')
    history = '{"role":"user","content":[{"text":"caller"}]}, {"role":"assistant","content":[{"text":"yes"}]}, '
    executed = seeded.execute("fc-bedrock_tutorial", question="who?", memory_id=memory_id(first), _chat_history=history)
    messages = json.loads(executed.llm_bodies[0])["messages"]
    assert [message["content"][0]["text"] for message in messages][::2] == ['my name is Bob "B"', "who?"]
    kept = {"memory_id": memory_id(first), "_chat_history": history, "message_history_limit": 0}
    executed = seeded.execute("fc-bedrock_tutorial", question="who?", **kept)
    assert json.loads(executed.llm_bodies[0])["messages"][0]["content"][0]["text"] == "caller"


def test_what_is_remembered_is_expanded_again() -> None:
    seeded = Seeded("2.19.0")
    skip = {"skip_validating_missing_parameters": "true"}
    first = seeded.execute("cflow-d", question="what is $${parameters.nope}?", **skip)
    executed = seeded.execute("cflow-d", question="and?", memory_id=memory_id(first))
    assert "what is ${parameters.nope}?" in json.loads(first.llm_bodies[0])["messages"][0]["content"][0]["text"]
    assert executed.status == 400  # the second turn doesn't skip the check


def test_a_tool_that_is_a_model_inherits_the_requests_parameters() -> None:
    seeded = Seeded("2.19.0")
    model = seeded.core.resources.agents[seeded.agents["conv-h"]]["llm"]["model_id"]
    own = {"model_id": model, "prompt": "Q: ${parameters.question}"}
    tool = {"type": "MLModelTool", "name": "ask", "parameters": own}
    llm = {"model_id": model, "parameters": {"response_filter": "$.output.message.content[0].text"}}
    body = {"name": "n", "type": "conversational", "llm": llm, "tools": [tool], "app_type": "a"}
    made = seeded.core.resources.register_agent({**body, "memory": {"type": "conversation_index"}})
    seeded.llm.script(['{"thought":"t","action":"ask","action_input":"inner"}', "inner answer", "outer answer"])
    messages = '[{"role":"user","content":[{"text":"literal"}]}]'
    executed = seeded.core.execute(made["agent_id"], {"parameters": {"question": "q", "messages": messages}})
    assert [json.loads(body)["messages"][0]["content"][0]["text"] for body in executed.llm_bodies] == ["literal"] * 3


@pytest.mark.parametrize(("version", "name"), [("3.4.0", "fc-bedrock_tutorial"), ("3.6.0", "conv-openai_tutorial")])
def test_a_conversational_agent_needs_no_memory_on_3x(version: str, name: str) -> None:
    seeded = Seeded(version)
    agent = seeded.core.resources.agents[seeded.agents[name]]
    del agent["memory"]
    executed = seeded.execute(name, question="hi")
    assert executed.status == 200, executed.body
    assert [tensor["name"] for tensor in output(executed)] == ["response"]


def test_a_conversational_agent_without_memory_is_a_500_on_2x() -> None:
    seeded = Seeded("2.19.0")
    del seeded.core.resources.agents[seeded.agents["conv-d"]]["memory"]
    executed = seeded.execute("conv-d", question="hi")
    assert (executed.status, executed.body["error"]["type"]) == (500, "NullPointerException")


def test_llm_failures_pass_with_their_status() -> None:
    core = ClusterCore("2.19.0", lambda request: LlmReply(429, "slow down"))
    executed = core.execute(seed_core(core)["flow-d"], ASK)
    assert executed.status == 429
    assert executed.body["error"]["details"] == "Error from remote service: slow down"


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    seeded = Seeded("2.19.0")
    executed = seeded.execute("flow-a", messages=[{"role": "user", "content": [{"text": "a\ud800b"}]}])
    assert json.loads(executed.llm_bodies[0])["messages"][0]["content"][0]["text"] == "a?b"


@pytest.mark.parametrize("version", mostly_slow(VERSIONS, 3))
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"parameters":{"question":"\xff"}}',
        b'{"parameters":{"question":1e999}}',
        b'{"parameters":{"question":NaN}}',
        b'{"parameters":{"question":' + b"[" * 990 + b"]" * 990 + b"}}",
        b'{"parameters":{"question":' + b"[" * 100_000,
        b"[" * 100_000,
        b'{"parameters":[]}',
        b'{"parameters":{"memory_id":"x","question":"q","message_history_limit":"many"}}',
        b'{"parameters":{"question":"${parameters."}}',
        b'{"parameters":{"question":"${parameters.}"}}',
    ],
)
def test_bad_bodies_are_answered(version: str, body: bytes) -> None:
    seeded = Seeded(version)
    for name in seeded.agents:
        executed = seeded.core.execute(seeded.agents[name], body)
        assert executed.status >= 400 or b"message_history_limit" in body or b"[[" in body, name
        assert "error" in executed.body or executed.status == 200


@pytest.mark.parametrize("version", VERSIONS)
def test_input_alone_is_for_unified_agents(version: str) -> None:
    seeded = Seeded(version)
    for name in seeded.agents:
        status = seeded.core.execute(seeded.agents[name], {"input": "hello"}).status
        expected = 200 if name.startswith("v1") else 500 if seeded.core.unified else 400
        assert status == expected, name


hostile = st.text() | st.text(alphabet='${}[]"\\:,parmetsqonx.- \n')


@given(
    st.sampled_from(["flow-d", "cflow-d", "conv-d", "flow-a", "conv-h", "flow-f"]),
    st.dictionaries(st.sampled_from(["question", "prompt", "messages", "chat_history", "x"]), hostile),
)
def test_any_parameters_are_answered_on_2x(name: str, parameters: dict[str, str]) -> None:
    executed = SEEDED["2.19.0"].execute(name, **parameters)
    assert executed.status in (200, 400, 500)
    assert executed.status != 200 or executed.llm_bodies


@given(
    st.sampled_from(["flow-bedrock_tutorial", "cflow-openai_upgraded", "conv-bedrock_tutorial", "fc-openai_tutorial"]),
    st.dictionaries(st.sampled_from(["question", "prompt", "body", "_chat_history", "no_escape_params"]), hostile),
)
def test_any_parameters_are_answered_on_3x(name: str, parameters: dict[str, str]) -> None:
    executed = SEEDED["3.4.0"].execute(name, **parameters)
    assert executed.status in (200, 400, 500)


SEEDED = {version: Seeded(version) for version in VERSIONS}
