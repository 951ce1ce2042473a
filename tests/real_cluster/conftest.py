"""One real cluster, one LLM endpoint and one set of agents for all tests here."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch

from gateway.app import build
from gateway.cli import run
from gateway.config.load import load
from gateway.observe.logs import configure

from . import cluster
from .agents import Agent, Api, register_all
from .delivered import Prompts, Send, canonical, execute_with, field_of
from .llm import LLM, PLAN
from .speech import Execute, turns
from .unified import enabled, register_unified, unified_body

Command = Callable[..., tuple[int, str]]
"""Runs a command of the gateway's on the cluster: its exit code and what it prints."""


@pytest.fixture(scope="session")
def real_cluster(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of a running ML Commons 3.6.0; skips, with the reason, where this machine can't run one.

    With MLC_REQUIRE_CLUSTER set (CI does) a missing cluster is a failure instead.
    """
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", end="", flush=True)

    try:
        with cluster.session(say) as state:
            yield state["url"]
    except cluster.Unavailable as reason:
        if os.environ.get("MLC_REQUIRE_CLUSTER"):
            pytest.fail(str(reason), pytrace=False)
        pytest.skip(str(reason).splitlines()[0])


@pytest.fixture(autouse=True)
def ids_without_shared_words() -> None:
    """Wait for a minute, of each 70, in which ids may share a word (`cluster.seconds_of_shared_words`)."""
    time.sleep(cluster.seconds_of_shared_words(time.time()))


@pytest.fixture(scope="session")
def api(real_cluster: str) -> Api:
    return Api(real_cluster)


@pytest.fixture(scope="session")
def endpoint() -> Iterator[LLM]:
    with LLM() as running:
        yield running


@pytest.fixture
def llm(endpoint: LLM) -> LLM:
    """The LLM endpoint, with nothing received and nothing prepared."""
    endpoint.taken()
    return endpoint


@pytest.fixture(scope="session")
def agents(api: Api, endpoint: LLM) -> dict[str, Agent]:
    """Agents registered the old way, named like ``bedrock_flow_tutorial``."""
    return register_all(api, endpoint.url)


@pytest.fixture
def unified_on(api: Api) -> Iterator[None]:
    with enabled(api):
        yield


@pytest.fixture(scope="session")
def container(api: Api) -> str:
    """A memory container, which `conversational_v2` needs."""
    body = {"name": "tests", "configuration": {"index_prefix": "tests"}}
    container_id: str = api.must("POST", "/_plugins/_ml/memory_containers/_create", body)["memory_container_id"]
    return container_id


@pytest.fixture(scope="session")
def unified_agents(api: Api, endpoint: LLM, container: str) -> dict[str, str]:
    """Agents with a `model` block: name → agent_id; named like ``v1_bedrock``, ``v2_gemini``, ``per_openai``."""
    kinds = {"v1": ("conversational", None), "v2": ("conversational_v2", container)}
    kinds["per"] = ("plan_execute_and_reflect", None)
    registered = {}
    with enabled(api):
        for kind, (type_, memory) in kinds.items():
            for provider in ("bedrock", "openai", "gemini"):
                if (kind, provider) == ("per", "gemini"):
                    continue
                name = f"{kind}_{provider}"
                body = unified_body(name, type_, provider, memory, tools=kind != "v1")
                registered[name] = register_unified(api, endpoint.url, body)
    return registered


@pytest.fixture(scope="session")
def gateway_url(real_cluster: str) -> Iterator[str]:
    """A gateway before the real cluster, in a thread with a loop of its own."""
    listen = {"data_port": 0, "admin_port": 0, "shutdown_seconds": 2}
    settings = load(None, {}, {"listen": listen, "upstream": {"url": real_cluster}})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def on_loop(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result()

    gateway = build(settings, log=configure("error", "json"))
    on_loop(gateway.start())
    yield f"http://127.0.0.1:{gateway.data_port}"
    on_loop(gateway.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="session")
def through(gateway_url: str) -> Iterator[Send]:
    """Sends an execute body to an agent through the gateway, with opensearch-py."""
    with OpenSearch(gateway_url, timeout=20, max_retries=0) as client:
        yield lambda agent_id, body: execute_with(client, agent_id, body)


@pytest.fixture(scope="session")
def direct(real_cluster: str) -> Iterator[Send]:
    """The same, straight to the cluster."""
    with OpenSearch(real_cluster, timeout=20, max_retries=0) as client:
        yield lambda agent_id, body: execute_with(client, agent_id, body)


@pytest.fixture(scope="session")
def prompts(api: Api, agents: dict[str, Agent], endpoint: LLM) -> Prompts:
    """(provider, type) → what the agent puts before and behind a question, as a plain question shows it."""
    learned, mark = {}, "THE-QUESTION"
    for agent in agents.values():
        if agent.template != "tutorial":
            continue
        endpoint.taken()
        endpoint.replies(PLAN)
        api.execute(agent.agent_id, {"parameters": {"question": mark}})
        (turn,) = canonical(agent.provider, turns(endpoint.taken()[0]))
        (part,) = turn[field_of(agent.provider)]
        before, _, after = part["text"].partition(mark)
        learned[agent.provider, agent.type] = (before, after)
    return learned


@pytest.fixture
def execute(api: Api, agents: dict[str, Agent], llm: LLM) -> Execute:
    """Runs an agent by name with the given parameters: status, body, and what the LLM received."""

    def run(name: str, **parameters: Any) -> tuple[int, Any, list[dict[str, Any]]]:
        if "_per_" in name:
            llm.replies(PLAN)
        status, body = api.execute(agents[name].agent_id, {"parameters": parameters})
        return status, body, llm.taken()

    return run


@pytest.fixture
def command(real_cluster: str, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(name: str, target: str, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        status = run([name, "--url", real_cluster, *options, "--", target])  # an id may start with a dash
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    return call
