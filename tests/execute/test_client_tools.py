"""Tools of the client through the gateway: a call is in the answer in each of its forms, and so are the notices."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from gateway.simulator.fixtures import seed_core
from gateway.simulator.llm import Call
from gateway.simulator.server import Simulator
from tests.conftest import StartGateway

TOOL = {"name": "warmth", "description": "Now.", "parameters": {"type": "object", "properties": {}}}
ASKED = {"input": "How warm is Paris?", "tools": [TOOL], "tool_choice": "required"}
USE = {"toolUse": {"toolUseId": "call_1", "name": "warmth", "input": {"city": "Paris"}}}


async def test_a_call_is_in_the_answer(start_gateway: StartGateway) -> None:
    async with Simulator("3.6.0") as simulator:
        seeded = seed_core(simulator.core, simulator.llm_url)
        flow = simulator.core.resources.agent(seeded["flow-openai_tutorial"])
        for tool in flow["tools"]:
            tool["parameters"].pop("response_filter")
        body = {"name": "raw", "type": "flow", "tools": flow["tools"]}
        agent = simulator.core.resources.register_agent(body)["agent_id"]
        other = seeded["fc-openai_tutorial"]
        rules = {"agents": {"rules": [{"agent": "*", "output": "unified"}]}}
        gateway = await start_gateway(simulator.url, None, rules)

        async def post(path: str, body: Any) -> tuple[int, str, str]:
            async with client.post(f"/_plugins/_ml/agents/{path}", json=body) as response:
                return response.status, response.headers.get("X-MLC-Gateway-Notice", ""), await response.text()

        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
            simulator.script([Call("warmth", {"city": "Paris"}, text="")])
            status, notices, text = await post(f"{agent}/_execute", ASKED)
            answer = json.loads(text)
            assert (status, answer["stop_reason"], notices) == (200, "tool_use", "")
            (use,) = answer["message"]["content"]
            assert use["toolUse"] | {"toolUseId": "call_1"} == USE["toolUse"]
            assert simulator.received[-1]["tools"] == [{"type": "function", "function": TOOL}]
            simulator.script([Call("warmth", {"city": "Paris"}, text="")])
            status, notices, text = await post(f"{agent}/_execute/stream", ASKED)
            assert (status, notices) == (200, "STREAM_IN_ONE_PIECE")
            assert '\\"name\\":\\"warmth\\"' in text
            assert '"stop_reason":"tool_use"' in text.replace(" ", "")
            status, notices, _ = await post(f"{other}/_execute", {**ASKED, "tool_choice": "auto"})
            assert (status, "TOOLS_LEFT_OUT" in notices) == (200, True)
            assert "warmth" not in json.dumps(simulator.received[-1])
            known = len(simulator.received)
            status, _, text = await post(f"{other}/_execute", ASKED)
            assert (status, json.loads(text)["error"]["problems"][0]["code"]) == (400, "TOOLS_REQUIRED")
            assert len(simulator.received) == known
