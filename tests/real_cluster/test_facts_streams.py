"""What a real 3.6.0 sends of a rendered body (facts.md, "From the rendered body to the one that is sent").

It has no transport for streams, but the parameter `stream` makes any run one: the LLM is called as for a stream.
"""

from __future__ import annotations

from typing import Any

import pytest
import urllib3

from .agents import Agent, Api
from .delivered import Send
from .llm import LLM
from .speech import DNE

pytestmark = pytest.mark.real_cluster

SKIP = {"skip_validating_missing_parameters": "true"}
ESCAPED = r'{"role":"user","content":"say \u0024{parameters.nosuch} \u003c \u0000 \u2028 \ud83d\ude00"}'
TEXT = "say ${parameters.nosuch} < \0 \u2028 😀"


@pytest.fixture
def impatient(api: Api) -> Api:
    """The cluster, for requests that are never answered."""
    hasty = Api(api.url)
    hasty._pool = urllib3.PoolManager(retries=False, timeout=5)
    return hasty


def run(api: Api, agents: dict[str, Agent], **parameters: Any) -> tuple[int, Any]:
    asked = {"question": "q", "body": ESCAPED, "no_escape_params": f"{DNE},body", **parameters}
    return api.execute(agents["openai_conv_tools_upgraded"].agent_id, {"parameters": asked})


def test_a_stream_looks_for_placeholders_in_the_body_that_it_has_written_again(
    api: Api, agents: dict[str, Agent], llm: LLM
) -> None:
    assert run(api, agents)[0] == 200
    assert llm.taken()[0]["messages"][-1]["content"] == TEXT
    status, answer = run(api, agents, stream="true")
    assert (status, llm.taken()) == (400, [])
    assert answer["error"]["details"] == "Some parameter placeholder not filled in payload: nosuch"


@pytest.mark.parametrize("value", ["true", "false"])
def test_with_the_flag_the_llm_gets_the_text_and_nobody_the_answer(
    impatient: Api, agents: dict[str, Agent], llm: LLM, value: str
) -> None:
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        run(impatient, agents, stream=value, **SKIP)
    (body,) = llm.taken()
    assert body["stream"] is True
    assert body["messages"][-1]["content"] == TEXT


@pytest.mark.parametrize("name", ["openai_conv_react_array", "openai_flow_tutorial"])
def test_an_agent_that_calls_no_functions_does_not_call_the_llm_for_a_stream(
    impatient: Api, agents: dict[str, Agent], llm: LLM, name: str
) -> None:
    messages = '[{"role":"user","content":"x"}]'
    parameters = {"question": "q", "messages": messages, "stream": "true"}
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        impatient.execute(agents[name].agent_id, {"parameters": parameters})
    assert llm.taken() == []


def test_processors_that_read_json_write_the_body_again(api: Api, agents: dict[str, Agent], llm: LLM) -> None:
    same = '[{"type":"jsonpath_filter","path":"$"}]'
    status, answer = run(api, agents, input_processors=same)
    assert (status, llm.taken()) == (400, [])
    assert answer["error"]["details"] == "Some parameter placeholder not filled in payload: nosuch"
    assert run(api, agents, input_processors=same, **SKIP)[0] == 200
    assert llm.taken()[0]["messages"][-1]["content"] == TEXT


def test_through_the_gateway(agents: dict[str, Agent], llm: LLM, through: Send) -> None:
    """A run that would never be answered is refused; a text arrives where processors write the body again."""
    agent = agents["openai_conv_tools_upgraded"].agent_id
    status, answer = through(agent, {"input": TEXT[:24], "parameters": {"stream": "true"}})
    assert (status, llm.taken()) == (400, [])
    (problem,) = answer["error"]["problems"]
    assert (problem["code"], problem["field"]) == ("STREAM_UNSUPPORTED", "parameters.stream")
    same = '[{"type":"jsonpath_filter","path":"$"}]'
    status, _ = through(agent, {"input": TEXT[:24], "parameters": {"input_processors": same}})
    assert status == 200
    assert llm.taken()[0]["messages"][-1]["content"] == TEXT[:24]
