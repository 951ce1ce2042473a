"""`agents.aliases`: an old id that runs a new agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from gateway.cli import run
from gateway.config.load import ConfigError, load
from tests.delivery.cases import IMAGE
from tests.execute.conftest import StartDeployment, start_deployment
from tests.wire import RecordingUpstream

__all__ = ["start_deployment"]

ML = "/_plugins/_ml"
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=A/20260101/eu-west-1/es/aws4_request, SignedHeaders=host"}


@pytest.mark.parametrize("sent_input", ["hello", [{"type": "text", "text": "and this?"}, IMAGE]])
async def test_the_old_id_runs_the_new_agent(
    start_gateway: Any, start_deployment: StartDeployment, sent_input: Any
) -> None:
    deployment = await start_deployment()
    new = deployment.agents["flow-h"]
    gateway = await start_gateway(deployment.simulator.url, None, {"agents": {"aliases": {"old": new, "old/2": new}}})
    url = f"http://127.0.0.1:{gateway.data_port}{ML}/agents"
    for id in ("old", "old%2F2", "%6fld", "old"):  # the last time without asking the cluster
        async with deployment.client.post(f"{url}/{id}/_execute", json={"input": sent_input}) as response:
            assert response.status == 200
            assert response.headers["X-MLC-Agent"] == new
            assert "X-MLC-Gateway-Delivery" in response.headers
    async with deployment.client.post(f"{url}/old/_execute", json={"parameters": {"question": "q"}}) as response:
        assert (response.status, response.headers["X-MLC-Agent"]) == (200, new)
    async with deployment.client.post(f"{url}/{new}/_execute", json={"input": sent_input}) as response:
        assert "X-MLC-Agent" not in response.headers
    assert len(deployment.simulator.received) == 6


async def test_only_the_id_in_the_target_differs(start_gateway: Any) -> None:
    async with RecordingUpstream() as upstream:
        rule = {"agent": "*", "memory": "cluster", "output": "legacy"}
        over = {"agents": {"aliases": {"old": "a/new?id"}, "rules": [rule]}}
        gateway = await start_gateway(upstream.url, None, over)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
            body = {"parameters": {"question": "q"}}
            for path in ("/_execute?pretty=true&x=%2F", "/_execute/stream", "/_execute/"):
                async with client.post(URL(f"{ML}/agents/old{path}", encoded=True), json=body) as response:
                    assert response.headers["X-MLC-Agent"] == "a/new%3Fid"
            async with client.get(f"{ML}/agents/old") as response:
                assert "X-MLC-Agent" not in response.headers
        lines = [message.line for message in upstream.requests]
        new = f"{ML}/agents/a%2Fnew%3Fid"
        assert lines == [
            f"POST {new}/_execute?pretty=true&x=%2F HTTP/1.1".encode(),
            f"POST {new}/_execute/stream HTTP/1.1".encode(),
            f"POST {new}/_execute/ HTTP/1.1".encode(),
            f"GET {ML}/agents/old HTTP/1.1".encode(),
        ]


async def test_a_signed_request_can_not_go_elsewhere(start_gateway: Any, start_deployment: StartDeployment) -> None:
    deployment = await start_deployment()
    gateway = await start_gateway(
        deployment.simulator.url, None, {"agents": {"aliases": {"old": deployment.agents["flow-h"]}}}
    )
    url = f"http://127.0.0.1:{gateway.data_port}{ML}/agents/old/_execute"
    async with deployment.client.post(url, json={"parameters": {"question": "q"}}, headers=SIGNED) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "SignatureConflict"
    assert deployment.simulator.received == []


@pytest.mark.parametrize("aliases", [{"a": "b", "b": "c"}, {"a": "a"}, {"a": "b", "b": "a"}])
def test_chains_and_loops_are_refused(aliases: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {"agents": {"aliases": aliases}})
    assert [problem.path for problem in caught.value.problems] == [
        f"agents.aliases.{old}" for old, new in aliases.items() if new in aliases
    ]


@pytest.mark.parametrize("value", ["", "with space", "é", 7])
def test_an_id_is_one(value: Any) -> None:
    with pytest.raises(ConfigError):
        load(None, {}, {"agents": {"aliases": {"old": value}}})


def test_check_config_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps({"agents": {"aliases": {"old": "new"}}}))
    assert run(["check-config", "-c", str(file)]) == 0
    shown = capsys.readouterr()
    assert "old: new" in shown.out
    new_form = shown.err.partition("The same as routes:\n")[2]
    file.write_text(new_form)
    [route] = load(file).agents.routes
    assert (route.agent, [target.agent for target in route.targets]) == ("old", ["new"])
