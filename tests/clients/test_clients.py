"""The OpenSearch clients as users have them, through the gateway to a simulated cluster and its LLMs."""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import AsyncOpenSearch, OpenSearch
from opensearchpy.exceptions import RequestError

from gateway.demo.arrival import map_turns
from gateway.providers import registry
from gateway.simulator.fixtures import FLOW_PROMPT
from tests.conftest import mostly_slow
from tests.delivery.cases import IMAGE
from tests.execute.conftest import Deployment, StartDeployment, start_deployment

__all__ = ["start_deployment"]

JS = Path(__file__).parent / "js"
BLOCKS = [{"type": "text", "text": "what is this? $ ${parameters.x}"}, IMAGE, {"type": "text", "text": 'and "this"?'}]
BODIES: list[dict[str, Any]] = [
    {"input": "hello, 世界 🙂"},
    {"input": BLOCKS},
    {
        "input": [
            {"role": "user", "content": BLOCKS[:2]},
            {"role": "assistant", "content": [{"type": "text", "text": "a dot"}]},
            {"role": "user", "content": [{"type": "text", "text": "which colour?"}]},
        ]
    },
]
KINDS = ["text", "content_blocks", "messages"]
AGENTS = [
    ("2.19.0", "flow-a", "bedrock/converse"),
    ("2.19.0", "flow-b", "openai/v1/chat/completions"),
    ("2.19.0", "flow-e2", "gemini/v1beta/generatecontent"),
    ("3.4.0", "flow-bedrock_upgraded", "bedrock/converse"),
    ("3.4.0", "flow-openai_upgraded", "openai/v1/chat/completions"),
]


def expected(provider_name: str, body: dict[str, Any]) -> list[Any]:
    """The provider's mapping of the body, with the agent's prompt around the last text."""
    provider = registry.provider(provider_name)
    turns = map_turns(provider, body)
    content = turns[-1][provider.content_field]
    last = max(index for index, part in enumerate(content) if "text" in part)
    content[last] = {**content[last], "text": FLOW_PROMPT.replace("${parameters.question}", content[last]["text"])}
    return [provider.simplest(turn) for turn in turns]


def got(deployment: Deployment, provider_name: str) -> list[list[Any]]:
    """The turns of each request the LLM received, without the agent's own system turns."""
    field = registry.provider(provider_name).messages_field
    return [
        [t for t in body[field] if t["role"] not in ("system", "developer")] for body in deployment.simulator.received
    ]


@pytest.mark.parametrize(("version", "agent", "provider"), AGENTS)
async def test_opensearch_py(start_deployment: StartDeployment, version: str, agent: str, provider: str) -> None:
    deployment = await start_deployment(version)

    def send() -> list[Any]:
        with OpenSearch(hosts=[deployment.url], max_retries=0) as client:
            return [client.plugins.ml.execute_agent(agent_id=deployment.agents[agent], body=body) for body in BODIES]

    answers = await asyncio.to_thread(send)
    assert [answer["inference_results"][0]["output"][0]["name"] for answer in answers] == ["response"] * 3
    assert got(deployment, provider) == [expected(provider, body) for body in BODIES]


@pytest.mark.parametrize(("version", "agent", "provider"), AGENTS)
async def test_opensearch_py_async(start_deployment: StartDeployment, version: str, agent: str, provider: str) -> None:
    deployment = await start_deployment(version)
    async with AsyncOpenSearch(hosts=[deployment.url], max_retries=0, http_compress=True) as client:
        for body in BODIES:
            await client.plugins.ml.execute_agent(agent_id=deployment.agents[agent], body=body)
    assert got(deployment, provider) == [expected(provider, body) for body in BODIES]


async def test_opensearch_py_reads_a_refusal(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment()
    async with AsyncOpenSearch(hosts=[deployment.url], max_retries=0) as client:
        with pytest.raises(RequestError) as refused:
            await client.plugins.ml.execute_agent(agent_id=deployment.agents["flow-d"], body=BODIES[1])
    assert (refused.value.status_code, refused.value.error) == (400, "UndeliverableContent")
    assert refused.value.info["error"]["problems"][0]["field"] == "input[1]"


async def test_the_rest_of_the_client_works_through_the_gateway(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment()
    async with AsyncOpenSearch(hosts=[deployment.url], max_retries=0) as client:
        assert (await client.info())["version"]["number"] == "2.19.0"
        agent = await client.plugins.ml.get_agent(agent_id=deployment.agents["flow-a"])
        assert agent["name"] == "flow-a"


@pytest.fixture(scope="session")
def node() -> str:
    """Node with opensearch-js beside the script, installed from the lock file once a run."""
    found, npm = shutil.which("node"), shutil.which("npm")
    if not (found and npm):
        pytest.skip("node and npm are needed to test opensearch-js")
    with (JS / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes that run the tests installs it
        if not (JS / "node_modules" / "@opensearch-project").is_dir():
            command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            subprocess.run(command, cwd=JS, check=True, capture_output=True, timeout=300)
    return found


async def execute_js(node: str, url: str, agent_id: str) -> list[dict[str, Any]]:
    pipe = asyncio.subprocess.PIPE
    script = await asyncio.create_subprocess_exec(node, "execute.mjs", cwd=JS, stdin=pipe, stdout=pipe, stderr=pipe)
    message = json.dumps({"url": url, "agent_id": agent_id, "bodies": BODIES}).encode()
    out, err = await asyncio.wait_for(script.communicate(message), 60)
    assert script.returncode == 0, err.decode()
    answers: list[dict[str, Any]] = json.loads(out)
    return answers


@pytest.mark.parametrize(("version", "agent", "provider"), mostly_slow(AGENTS, 3))
async def test_opensearch_js(
    node: str, start_deployment: StartDeployment, version: str, agent: str, provider: str
) -> None:
    deployment = await start_deployment(version)
    answers = await execute_js(node, deployment.url, deployment.agents[agent])
    assert [answer["status"] for answer in answers] == [200] * 3
    assert [answer["delivery"].rpartition("input=")[2] for answer in answers] == KINDS
    assert got(deployment, provider) == [expected(provider, body) for body in BODIES]


async def test_opensearch_js_reads_a_refusal(node: str, start_deployment: StartDeployment) -> None:
    deployment = await start_deployment()
    _, refused, _ = await execute_js(node, deployment.url, deployment.agents["flow-d"])
    assert (refused["status"], refused["answer"]["error"]["type"]) == (400, "UndeliverableContent")


def test_the_lock_file_names_no_host() -> None:
    lock = json.loads((JS / "package-lock.json").read_text())
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
    assert "://" not in json.dumps({name: {**p, "funding": None} for name, p in lock["packages"].items()})
