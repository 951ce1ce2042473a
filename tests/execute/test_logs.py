"""The debug log of a rewrite: every step, and never a secret or payload."""

from __future__ import annotations

import io
import json
from typing import Any

import aiohttp
import pytest

from gateway.app import build
from gateway.delivery import system_text
from gateway.observe.logs import configure
from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator
from tests.conftest import settings_for
from tests.delivery.cases import IMAGE

PAYLOAD = "QUJD" * 3000
BIG = {"type": "image", "source": {"type": "base64", "format": "png", "data": PAYLOAD}}


async def _logged(level: str, agent: str, body: Any, status: int | None = None) -> list[dict[str, Any]]:
    """Return the log of one request to `agent`. status: the expected status."""
    written = io.StringIO()
    async with Simulator("2.19.0") as simulator:
        agents = seed_core(simulator.core, simulator.llm_url)
        gateway = build(settings_for(simulator.url, {"logs": {"level": level}}), log=configure(level, "json", written))
        await gateway.start()
        headers = {"Authorization": "Basic c2VjcmV0OnNlY3JldA==", "X-Opaque-Id": "mine"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}", headers=headers) as client:
            answer = await client.post(f"/_plugins/_ml/agents/{agents[agent]}/_execute", json=body)
            await answer.read()
            assert status in (None, answer.status)
        await gateway.stop()
    text = written.getvalue()
    assert PAYLOAD[:64] not in text
    assert "c2VjcmV0" not in text
    return [json.loads(line) for line in text.splitlines()]


async def test_debug_tells_every_step_under_one_request_id() -> None:
    lines = await _logged("debug", "flow-a", {"input": [{"type": "text", "text": "hi"}, BIG]})
    steps = {line["step"]: line for line in lines if line["event"] == "step"}
    assert list(steps) == ["decoded", "profile", "planned"]
    assert steps["decoded"]["input"] == "content_blocks"
    assert (steps["profile"]["provider"], steps["profile"]["generation"]) == ("bedrock/converse", "text")
    assert steps["planned"]["strategy"] == "wrap"
    events = [line for line in lines if line["event"] in ("step", "request")]
    assert len({line["request_id"] for line in events}) == 1
    assert {line["opaque_id"] for line in events} == {"mine"}
    (request,) = [line for line in lines if line["event"] == "request"]
    assert (request["intent"], request["status"]) == ("execute", 200)


async def test_a_refusal_tells_input_type_provider_strategy_and_reason() -> None:
    lines = await _logged("info", "flow-d", {"input": [{"type": "text", "text": "hi"}, BIG]})
    refused = [line for line in lines if line["event"] == "input refused"]
    events = [(line["input"], line["provider"], line["strategy"], line["type"], line["codes"]) for line in refused]
    assert events == [("content_blocks", "bedrock/converse", "none", "UndeliverableContent", ["MEDIA_NEEDS_UPGRADE"])]
    assert "no place for media" in refused[0]["reason"]


async def test_both_spellings_leave_one_deprecation_warning() -> None:
    lines = await _logged("warning", "flow-a", {"input": "x", "parameters": {"question": "y"}})
    assert [(line["event"], line["level"]) for line in lines] == [("deprecated", "warning")]


async def test_short_payloads_are_not_told_either() -> None:
    lines = await _logged("debug", "flow-a", {"input": [{"type": "text", "text": "hi"}, IMAGE]})
    assert IMAGE["source"]["data"] not in json.dumps(lines)


@pytest.mark.parametrize("error", [TypeError("no such slot"), KeyError("slot")])
async def test_a_strategys_bug_is_an_internal_error_that_is_logged(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(self: object, body: object) -> None:
        raise error

    monkeypatch.setattr(system_text._Apply, "__call__", broken)
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    lines = await _logged("error", "flow-f", {"input": conversation}, 500)
    (line,) = [line for line in lines if line["event"] == "internal error"]
    assert type(error).__name__ in line["exception"]
