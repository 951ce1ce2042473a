"""@ag-ui/client and openai for JavaScript (make front-ends installs both)."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.adapters.conftest import ANSWER, Deploy

NODE = Path(__file__).parent / "node"
pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE / "node_modules").is_dir(),
    reason="the clients for JavaScript are not installed (make front-ends)",
)
PNG = "iVBORw0KGgo="


@pytest.mark.parametrize(("version", "agent"), [("2.19.0", "flow-b"), ("3.4.0", "fc-openai_tutorial")])
async def test_conversations(deploy: Deploy, version: str, agent: str) -> None:
    rules = {"agents": {"rules": [{"agent": "conv-*", "memory": "gateway"}]}}
    async with deploy(version, rules, streams=version >= "3") as deployed:
        kept = "conv-d" if version < "3" else "conv-openai_tutorial"
        command = ["node", "conversations.mjs", deployed.url, agent, kept, PNG]
        process = await asyncio.create_subprocess_exec(*command, cwd=NODE, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        assert process.returncode == 0
        assert json.loads(output) == {
            "first": [ANSWER],
            "second": [ANSWER],
            "timeline": ["user", "assistant", "user", "assistant"],
            "restored": [["user", "remember"], ["assistant", ANSWER]],
            "error": "AgentNotFound",
            "chat": ANSWER,
            "streamed": ANSWER,
            "response": ANSWER,
            "continued": ANSWER,
            "models": True,
            "refused": [404, "model_not_found"],
        }
