"""Phoenix shows the gateway's traces. It has a virtual environment of its own: ``make phoenix``."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.delivery.cases import IMAGE
from tests.execute.conftest import StartDeployment, start_deployment
from tests.wire import reserved

__all__ = ["start_deployment"]

ROOT = Path(__file__).parents[2]
PHOENIX = ROOT / ".venv-phoenix/bin/phoenix"
PATIENCE = 120
"""Seconds for Phoenix to start, and to show what it got."""


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[str]:
    """Run Phoenix with a database of its own; return its address."""
    with reserved() as port, reserved() as grpc:
        environ = {
            **os.environ,
            "PHOENIX_WORKING_DIR": str(tmp_path),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(grpc),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen([PHOENIX, "serve"], env=environ, stdout=log, stderr=log, cwd=tmp_path)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(lambda: _get(f"{url}/v1/projects"), process)
            yield url
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _get(url: str) -> Any:
    try:
        with urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]
    except (OSError, HTTPError):
        return None


def _wait(ask: Any, process: subprocess.Popen[bytes] | None = None) -> Any:
    """Return the first true answer."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if answer := ask():
            return answer
        assert process is None or process.poll() is None
        time.sleep(0.2)
    pytest.fail("Phoenix did not answer in time")


@pytest.mark.skipif(not PHOENIX.exists(), reason="Phoenix is not installed (make phoenix)")
@pytest.mark.slow(60)
async def test_phoenix_shows_messages_media_and_refusals(start_deployment: StartDeployment, phoenix: str) -> None:
    traces = {"endpoint": f"{phoenix}/v1/traces", "messages": True, "service_name": "library"}
    deployment = await start_deployment(over={"telemetry": {"traces": traces}})
    question = [{"type": "text", "text": "What is this?"}, IMAGE]
    assert (await deployment.execute("flow-a", {"input": question})).status == 200
    assert (await deployment.execute("flow-d", {"input": question})).status == 400
    await deployment.gateway.stop()

    def ask() -> Any:
        spans = _get(f"{phoenix}/v1/projects/library/spans?limit=100") or []
        roots = {span["name"]: span for span in spans if span["parent_id"] is None}
        return (roots, spans) if len(roots) == 2 else None

    roots, spans = await asyncio.to_thread(_wait, ask)
    shown, refused = roots["invoke_agent flow-a"], roots["invoke_agent flow-d"]
    assert (shown["span_kind"], shown["status_code"]) == ("AGENT", "UNSET")
    assert {span["span_kind"] for span in spans} == {"AGENT", "CHAIN"}
    attributes = shown["attributes"]
    assert attributes["input.value"].startswith("What is this?\n[image/png sha256:")
    assert attributes["llm.input_messages.0.message.role"] == "user"
    assert attributes["llm.input_messages.0.message.content"] == "What is this?"
    assert attributes["llm.output_messages.0.message.role"] == "assistant"
    answer = attributes["llm.output_messages.0.message.content"]
    assert answer == attributes["output.value"] != ""
    assert attributes["llm.model_name"] == "claude-3"
    assert attributes["llm.provider"] == "aws"
    assert refused["status_code"] == "ERROR"
    assert "no place for media" in refused["status_message"]
    assert IMAGE["source"]["data"] not in json.dumps(spans)
