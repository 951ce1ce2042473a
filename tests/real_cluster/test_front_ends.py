"""The adapters before a real 3.6.0: AG-UI and OpenAI's client hold conversations with images, on each kind of agent."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.adapters.conftest import Deployed
from tests.adapters.test_ag_ui import asks, run, user
from tests.adapters.test_other_clients import NODE, conversations, needs_node
from tests.adapters.verifier import replay
from tests.conftest import StartGateway

from .agents import WIRES, Agent
from .llm import LLM

pytestmark = pytest.mark.real_cluster

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8/5+hHgAHggJ/PchI7wAAAABJRU5ErkJggg=="
AGENTS = [f"{provider}_{kind}_upgraded" for provider in WIRES for kind in ("flow", "cflow", "conv_tools")]
HOSTILE = 'say ${parameters.nosuch} "q" \\ 漢'


class Real(Deployed):
    def __init__(self, url: str) -> None:
        self.url = url


@pytest.mark.parametrize("name", AGENTS)
async def test_a_conversation_with_an_image(
    real_cluster: str, agents: dict[str, Agent], llm: LLM, start_gateway: StartGateway, name: str
) -> None:
    over = {"listen": {"adapters_port": 0}, "agents": {"rules": [{"agent": "*", "memory": "gateway"}]}}
    gateway = await start_gateway(real_cluster, None, over)
    deployed, agent = Real(f"http://127.0.0.1:{gateway.adapters_port}"), agents[name].agent_id
    image = {"type": "image", "source": {"type": "data", "value": PNG, "mimeType": "image/png"}}
    llm.replies("A dot.", "Still a dot.")
    events = await run(deployed, agent, asks(user([image, {"type": "text", "text": HOSTILE}]), threadId=f"t-{name}"))
    assert replay(events)[-1]["content"] == "A dot."
    assert PNG in json.dumps(llm.taken()[-1])
    llm.replies("Still a dot.")
    events = await run(deployed, agent, asks(user("and now?"), threadId=f"t-{name}"))
    assert replay(events)[-1]["content"] == "Still a dot."
    assert PNG in json.dumps(llm.taken()[-1])
    (_, restored, _) = await run(deployed, agent, asks(threadId=f"t-{name}"))
    assert [message["role"] for message in restored["messages"]] == ["user", "assistant"] * 2
    assert llm.taken() == []
    talk: list[Any] = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]},
        {"role": "assistant", "content": "A dot."},
        {"role": "user", "content": HOSTILE},
    ]
    async with openai.AsyncOpenAI(base_url=f"{deployed.url}/v1", api_key="none", max_retries=0) as client:
        llm.replies("Yes.")
        answer = await client.chat.completions.create(model=agent, messages=talk)
        assert answer.choices[0].message.content == "Yes."
        assert PNG in json.dumps(llm.taken()[-1])
        llm.replies("Yes, indeed.")
        pieces = await client.chat.completions.create(model=agent, messages=talk, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in pieces]) == "Yes, indeed."
        assert agent in {model.id for model in (await client.models.list()).data}


@needs_node
async def test_ag_ui_and_openai_for_javascript(
    real_cluster: str, agents: dict[str, Agent], llm: LLM, start_gateway: StartGateway
) -> None:
    over = {"listen": {"adapters_port": 0}, "agents": {"rules": [{"agent": "*conv*", "memory": "gateway"}]}}
    gateway = await start_gateway(real_cluster, None, over)
    agent, kept = agents["openai_flow_upgraded"].agent_id, agents["openai_conv_tools_upgraded"].agent_id
    llm.replies(*["A dot."] * 7)
    url = f"http://127.0.0.1:{gateway.adapters_port}"
    found = await conversations("node", "conversations.mjs", url, agent, kept, PNG, cwd=NODE)
    assert found.pop("models") is False  # it lists names, and is asked for an id
    assert found == {
        "first": ["A dot."],
        "second": ["A dot."],
        "timeline": ["user", "assistant", "user", "assistant"],
        "restored": [["user", "remember"], ["assistant", "A dot."]],
        "error": "AgentNotFound",
        "chat": "A dot.",
        "streamed": "A dot.",
        "response": "A dot.",
        "continued": "A dot.",
        "refused": [404, "model_not_found"],
    }
    assert PNG in json.dumps(llm.taken()[0])
