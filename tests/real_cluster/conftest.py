"""One real cluster, one LLM endpoint and one set of agents for all tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from . import cluster
from .agents import Agent, Api, register_all
from .llm import LLM
from .unified import enabled, register_unified, unified_body


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
    """Agents registered with a `model` block: name → agent_id, named like ``v1_bedrock``, ``v2_gemini``, ``per_openai``."""
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
