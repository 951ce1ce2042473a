"""The simulator reports the tokens of its models, so that usage and cost can be seen."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from gateway.app import build
from gateway.config.load import load
from gateway.observe.logs import configure
from gateway.simulator.fixtures import seed
from gateway.simulator.server import Simulator


async def ask(url: str, agent: str, body: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The outputs of a run's answer, and the gateway's header with its usage."""
    path = f"{url}/_plugins/_ml/agents/{agent}/_execute"
    async with aiohttp.ClientSession() as session, session.post(path, json=body) as response:
        document = await response.json()
        assert response.status == 200, document
        return document["inference_results"][0]["output"], response.headers.get("X-MLC-Gateway-Usage", "")


def reported(outputs: list[dict[str, Any]]) -> Any:
    return next((one["dataAsMap"] for one in outputs if one.get("name") == "token_usage"), None)


@pytest.mark.parametrize(("version", "reports"), [("3.4.0", False), ("3.6.0", True), ("3.8.0", True)])
async def test_agents_report_tokens_if_asked_from_3_6(version: str, reports: bool) -> None:
    async with Simulator(version) as simulator:
        agents = await seed(simulator.url)
        body = {"parameters": {"question": "hi", "include_token_usage": "true"}}
        outputs, _ = await ask(simulator.url, agents["fc-openai_tutorial"], body)
        found = reported(outputs)
        assert (found is not None) == reports
        if reports:
            (model,) = found["per_model_usage"]
            assert {name: model[name] for name in model if name != "model_id"} == {
                "call_count": 1, "input_tokens": 11, "output_tokens": 7, "total_tokens": 18,
            }  # fmt: skip
            assert [call["turn"] for call in found["per_turn_usage"]] == [1]
        assert (
            reported((await ask(simulator.url, agents["fc-openai_tutorial"], {"parameters": {"question": "hi"}}))[0])
            is None
        )


async def test_a_planner_counts_its_executor() -> None:
    async with Simulator("3.6.0") as simulator:
        agents = await seed(simulator.url)
        simulator.script(['{"steps": ["look"], "result": ""}', "seen", '{"steps": [], "result": "done"}'])
        body = {"parameters": {"question": "hi", "include_token_usage": "true"}}
        outputs, _ = await ask(simulator.url, agents["per-openai_tutorial"], body)
        found = reported(outputs)
        assert [call["turn"] for call in found["per_turn_usage"]] == [1, 2, 3]
        (model,) = found["per_model_usage"]
        assert (model["call_count"], model["input_tokens"], model["output_tokens"]) == (3, 33, 21)
        assert next(one["dataAsMap"]["response"] for one in outputs if one.get("name") == "response") == "done"


async def test_seeded_flow_agents_can_show_whole_responses_with_their_tokens() -> None:
    """As `python -m gateway.simulator --seed` registers them: the gateway then prices their runs."""
    async with Simulator("2.19.0") as simulator:
        settings = {
            "listen": {"data_port": 0, "admin_port": 0},
            "upstream": {"url": simulator.url},
            "policy": {"usage_header": True, "prices": [{"input": 3.0, "output": 15.0}]},
        }
        gateway = build(load(None, {}, settings), log=configure("error", "console"))
        await gateway.start()
        try:
            for whole, usage in ((False, "unknown"), (True, "input=11; output=7; cost=0.000138 USD")):
                agents = await seed(simulator.url, whole=whole)
                _, header = await ask(f"http://127.0.0.1:{gateway.data_port}", agents["flow-a"], {"input": "hi"})
                assert header.startswith(usage)
        finally:
            await gateway.stop()
