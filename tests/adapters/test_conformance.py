"""MCP's conformance suite and its client for JavaScript, as they are: `make front-ends` installs them, and runs this.

Scenarios call tools of fixed names. Agents answer with text, so those that want images, resources, prompts, logs or
questions to the user don't apply, nor do those of optional parts that the gateway does not declare.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.conftest import ANSWER, Deploy
from tests.adapters.test_listener import PORT, Broken, serving
from tests.adapters.test_mcp import PNG, over, tool
from tests.adapters.test_other_clients import conversations
from tests.conftest import StartGateway, settings_for
from tests.execute.stub_cluster import V1
from tests.execute.test_stream_watch import STREAM
from tests.wire import PATIENCE

FOLDER = Path(__file__).parent / "conformance"
COMMANDS = FOLDER / "node_modules/.bin"
pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not COMMANDS.is_dir(), reason="the suite is not installed (make front-ends)"
)

TOOLS = [
    tool("v1-openai", "test_simple_text", text="hi"),
    tool("v1-openai", "test_error_handling", text="FAIL429"),
    tool("v1-openai", "test_tool_with_progress", text="hi"),
]
NO_PROMPTS = {
    "sep-2549-prompts-list-caching-hints",
    "sep-2549-resources-list-caching-hints",
    "sep-2549-resources-templates-list-caching-hints",
}
"""The gateway has neither prompts nor resources, and says so: it answers that there is no such method."""
NO_CAPABILITY = {"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"}
"""They call a tool that needs a capability of the client. No agent does."""
SCENARIOS = [
    ("2025-06-18", "server-initialize", 3, set()),
    ("2025-06-18", "server-session-lifecycle", 1, set()),
    ("2025-06-18", "ping", 2, set()),
    ("2025-06-18", "tools-list", 2, set()),
    ("2025-06-18", "tools-call-simple-text", 2, set()),
    ("2025-06-18", "tools-call-error", 2, set()),
    ("2025-06-18", "tools-call-with-progress", 2, set()),
    ("2025-11-25", "server-initialize", 3, set()),
    ("2025-11-25", "server-session-lifecycle", 1, set()),
    ("2025-11-25", "ping", 2, set()),
    ("2025-11-25", "tools-list", 3, set()),
    ("2025-11-25", "tools-call-simple-text", 2, set()),
    ("2025-11-25", "tools-call-error", 2, set()),
    ("2025-11-25", "tools-call-with-progress", 2, set()),
    ("2025-11-25", "server-sse-multiple-streams", 2, set()),
    ("2025-11-25", "dns-rebinding-protection", 2, set()),
    ("2026-07-28", "server-stateless", 23, NO_CAPABILITY),
    ("2026-07-28", "tools-list", 4, set()),
    ("2026-07-28", "tools-call-simple-text", 2, set()),
    ("2026-07-28", "tools-call-error", 2, set()),
    ("2026-07-28", "tools-call-with-progress", 2, set()),
    ("2026-07-28", "server-sse-multiple-streams", 1, set()),
    ("2026-07-28", "dns-rebinding-protection", 2, set()),
    ("2026-07-28", "caching", 4, NO_PROMPTS),
    ("2026-07-28", "http-header-validation", 14, set()),
]
"""Revision, scenario, checks that pass, and those that don't."""


async def checks(folder: Path, url: str, revision: str, scenario: str) -> list[dict[str, Any]]:
    """Run a scenario, and return its checks."""
    options = ("--url", f"{url}/mcp", "--scenario", scenario, "--spec-version", revision, "-o", str(folder))
    process = await asyncio.create_subprocess_exec(
        COMMANDS / "conformance",
        "server",
        *options,
        env={**os.environ, "PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return read(folder, output.decode())


def read(folder: Path, output: str) -> list[dict[str, Any]]:
    files = list(folder.glob("*/checks.json"))
    assert files, output
    found: list[dict[str, Any]] = json.loads(files[0].read_text())
    return found


@pytest.mark.parametrize(
    ("revision", "scenario", "passed", "failed"), SCENARIOS, ids=[f"{one[0]}-{one[1]}" for one in SCENARIOS]
)
async def test_a_scenario_of_the_suite(
    deploy: Deploy, tmp_path: Path, revision: str, scenario: str, passed: int, failed: set[str]
) -> None:
    async with deploy("3.6.0", over(*TOOLS), streams=True) as deployed:
        listen = {"adapters_port": 0, "http": deployed.http_server}
        adapters = {"origins": [deployed.url, deployed.url.replace("127.0.0.1", "localhost")]}
        settings = settings_for(deployed.simulator.url, {**over(*TOOLS, adapters=adapters), "listen": listen})
        await deployed.gateway.reload(settings, deployed.gateway.log)
        found = await checks(tmp_path, deployed.url, revision, scenario)
    assert {check["id"] for check in found if check["status"] == "FAILURE"} == failed
    assert [check["status"] for check in found].count("SUCCESS") == passed
    assert not [check for check in found if check["status"] == "WARNING"]
    if scenario == "tools-call-simple-text":
        (result,) = [check["details"]["result"] for check in found if "result" in check.get("details", {})]
        assert (result["content"][0]["text"], result.get("isError", False)) == (ANSWER, False)


async def test_mcp_for_javascript(deploy: Deploy, start_gateway: StartGateway) -> None:
    broken = Broken()
    broken.waits, broken.size = True, len(STREAM) // 2
    tools = over(tool("flow-openai_messages"))
    async with deploy("3.6.0", tools) as deployed, serving(broken.answer) as url:
        gateway = await start_gateway(url, None, {**PORT, **over(tool(V1))})
        slow = f"http://127.0.0.1:{gateway.adapters_port}"
        found = await conversations("node", "client.mjs", deployed.url, PNG, slow, cwd=FOLDER)
        is_error, reason = found.pop("refused")
        assert is_error
        assert "`text` is missing" in reason
        assert found == {
            "tools": ["ask"],
            "content": [{"type": "text", "text": ANSWER}],
            "structured": ANSWER,
            "rises": True,
            "cancelled": "McpError",
        }
        assert f"data:image/png;base64,{PNG}" in json.dumps(deployed.asked)
        await asyncio.wait_for(broken.left.wait(), PATIENCE)
