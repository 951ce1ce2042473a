"""`mlc-gateway agents` on a real 3.6.0 with 300 mixed agents: what happens to each input is what the table promised."""

from __future__ import annotations

import itertools
import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import urllib3
from msgspec.structs import replace

from gateway.cli import run
from gateway.migrate.proof import KINDS
from tests.migrate.observed import Observed, observed_ability

from .agents import TEMPLATES, TYPES, WIRES, Api, agent_body, connect, connector_body, register
from .llm import LLM, PLAN
from .unified import enabled

pytestmark = [pytest.mark.real_cluster, pytest.mark.slow]

PREFIX = f"table-{secrets.token_hex(3)}"  # of this run: a cluster that is shared has others
PROMPTS = ("own", "other", "none", "memoryless")
OTHER_PROMPT = "You keep the library.\nAsked: ${parameters.question}\nIn brief:"
REACT_PROMPT = (
    "You keep the library.\n${parameters.chat_history}\nTools: ${parameters.tool_names}\n"
    "Asked: ${parameters.question}\nThoughts: ${parameters.scratchpad}"
)


def _inside(api: Api, llm_url: str, provider: str, template: str) -> str:
    """A model with its connector inside it; the model's id."""
    connector = connector_body(llm_url, provider, template)
    model = {"name": f"{PREFIX}_{provider}_{template}_inside", "function_name": "remote", "connector": connector}
    registered = api.must("POST", "/_plugins/_ml/models/_register?deploy=true", model)
    return str(registered["model_id"])


def _varied(body: dict[str, Any], type_: str, prompt: str) -> dict[str, Any]:
    """The agent with another prompt, with none, or without a memory."""
    body = json.loads(json.dumps(body))
    parameters = body["tools"][0]["parameters"] if type_ in ("flow", "cflow") else body["llm"]["parameters"]
    if prompt == "other":
        parameters["prompt"] = REACT_PROMPT if type_ == "conv_react" else OTHER_PROMPT
    elif prompt == "none":
        parameters.pop("prompt", None)
    elif prompt == "memoryless":
        body.pop("memory", None)
    return body


@dataclass(frozen=True)
class Group:
    """Agents whose LLM is an endpoint of their own: one execute at a time, and what it receives is that one's."""

    llm: LLM
    ids: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)


def _register_mixed(api: Api, group: Group, provider: str, template: str) -> None:
    """The agents of one provider and template: types × models (standalone, internal connector) × prompts."""
    group.models.append(connect(api, group.llm.url, provider, template)[1])
    group.models.append(_inside(api, group.llm.url, provider, template))
    for type_, model_id, prompt in itertools.product(TYPES, group.models, PROMPTS):
        if (provider, type_) == ("gemini", "per") or (type_, prompt) == ("flow", "memoryless"):
            continue  # 3.6 has no such interface; a flow has no memory to go without
        name = f"{PREFIX}-{len(group.ids)}-{provider}-{type_}-{template}-{prompt}"
        group.ids.append(register(api, _varied(agent_body(name, type_, WIRES[provider], model_id), type_, prompt)))


def _register_broken(api: Api, group: Group) -> None:
    """Agents that can't be read, call no LLM, or speak to one of an unknown format."""

    def add(name: str, *tools: dict[str, Any]) -> None:
        group.ids.append(register(api, {"name": f"{PREFIX}-{name}", "type": "flow", "tools": list(tools)}))

    def llm_tool(**parameters: str) -> dict[str, Any]:
        return {"type": "MLModelTool", "parameters": {"prompt": "${parameters.question}", **parameters}}

    add("no-such-model", llm_tool(model_id="nobody"))
    add("names-no-model", llm_tool())
    add("no-llm", {"type": "ListIndexTool"})
    odd = replace(WIRES["openai"], path="/generate", body='{"words":"${parameters.prompt}"}')
    group.models.append(connect(api, group.llm.url, "openai", "tutorial", odd)[1])
    add("odd", llm_tool(model_id=group.models[0]))


@pytest.fixture(scope="module")
def groups(api: Api) -> Iterator[list[Group]]:
    """At least 300 agents of all kinds, registered the old way; the last group is of the broken ones."""
    wanted = list(itertools.product(WIRES, TEMPLATES))
    with ExitStack() as running, ThreadPoolExecutor(len(wanted)) as pool:
        made = [Group(running.enter_context(LLM())) for _ in range(len(wanted) + 1)]
        for done in [pool.submit(_register_mixed, api, group, *one) for group, one in zip(made, wanted, strict=False)]:
            done.result()
        _register_broken(api, made[-1])
        assert sum(len(group.ids) for group in made) >= 300
        yield made


@pytest.fixture(scope="module")
def mixed(groups: list[Group]) -> list[str]:
    return [id_ for group in groups for id_ in group.ids]


def _table(capsys: pytest.CaptureFixture[str], url: str, *argv: str) -> dict[str, Any]:
    """The report as JSON, once it has been found that nothing is missing from it."""
    capsys.readouterr()
    status = run(["agents", "--url", url, *argv])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == (3 if report["summary"]["unreadable"] else 0)
    return report


@dataclass(frozen=True)
class Judge:
    """Executes agents through the gateway. llms: by model id; shared: the LLM of all other models."""

    gateway_url: str
    llms: Mapping[str, LLM]
    shared: LLM
    pool: urllib3.PoolManager = field(
        default_factory=lambda: urllib3.PoolManager(retries=False, timeout=60, maxsize=16)
    )

    def differences(self, report: dict[str, Any], ids: set[str]) -> list[tuple[Any, ...]]:
        """Every promise about the agents `ids` that does not hold: (agent, kind, promised, observed)."""
        by_llm = defaultdict(list)
        for agent in report["agents"]:
            if agent["id"] in ids:
                models = [model["id"] for model in agent.get("models", ())]
                by_llm[next((self.llms[id_] for id_ in models if id_ in self.llms), self.shared)].append(agent)
        assert sum(map(len, by_llm.values())) == len(ids)
        with ThreadPoolExecutor(len(by_llm)) as side_by_side:
            return [
                one for found in side_by_side.map(self._of_one_llm, *zip(*by_llm.items(), strict=True)) for one in found
            ]

    def _of_one_llm(self, llm: LLM, agents: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        differing = []
        for agent, kind in itertools.product(agents, KINDS):
            provider = agent["provider"]["name"] if agent["readable"] else ""

            def taken(planner: bool = agent["type"] == "plan_execute_and_reflect") -> list[Any]:
                received = llm.taken()
                llm.replies(*([PLAN] if planner else []))
                return received

            found = observed_ability(self._post, taken, agent["id"], kind, provider)
            if not _holds(agent, kind, found):
                differing.append((agent["name"], kind, agent.get("abilities", agent).get(kind), found))
        return differing

    def _post(self, path: str, body: Any) -> tuple[int, Any, Any]:
        headers = {"Content-Type": "application/json"}
        answer = self.pool.request("POST", self.gateway_url + path, body=json.dumps(body), headers=headers)
        return answer.status, json.loads(answer.data), answer.headers


def _holds(agent: dict[str, Any], kind: str, found: Observed) -> bool:
    if agent["readable"]:
        return bool(found == agent["abilities"][kind])
    return found.get("arrives") is False or (found.get("status", 0) >= 400 and not found["received"])


@pytest.fixture
def sampled(request: pytest.FixtureRequest) -> Callable[[Iterable[str]], set[str]]:
    """Picks the agents to execute: all, or every N-th with ``--sample N`` (`tests.sampling`)."""
    every: int = request.config.getoption("--sample", 1)
    return lambda ids: set(sorted(ids)[::every])


@pytest.fixture
def judge(gateway_url: str, groups: list[Group], llm: LLM) -> Judge:
    return Judge(gateway_url, {id_: group.llm for group in groups for id_ in group.models}, llm)


def test_each_promise_holds(
    api: Api,
    mixed: list[str],
    unified_agents: dict[str, str],
    judge: Judge,
    sampled: Callable[[Iterable[str]], set[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = _table(capsys, api.url)
    ids = [agent["id"] for agent in report["agents"]]
    assert len(ids) == len(set(ids))
    assert {*mixed, *unified_agents.values()} <= set(ids)
    # The cluster makes an agent of its own for every planner: those are listed, too, and judged by its name for it.
    children = {agent["id"] for agent in report["agents"] if agent["name"].startswith(PREFIX)}
    assert judge.differences(report, sampled(mixed) | {*unified_agents.values()} | sampled(children)) == []


def test_each_promise_holds_with_the_unified_api_on(
    api: Api,
    mixed: list[str],
    unified_agents: dict[str, str],
    judge: Judge,
    sampled: Callable[[Iterable[str]], set[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with enabled(Api(judge.gateway_url)):
        report = _table(capsys, api.url, "--", *mixed, *unified_agents.values())  # an id may start with a dash
        assert report["cluster"]["unified_api"] is True
        assert judge.differences(report, sampled(mixed) | {*unified_agents.values()}) == []


def test_pages_of_any_size_show_each_agent_once(api: Api, mixed: list[str]) -> None:
    from gateway.migrate.search import search_all
    from tests.migrate.test_connection import connected

    cluster = connected("--url", api.url)
    whole = [id_ for id_, _ in search_all(cluster, "agents")]
    assert set(mixed) <= set(whole)
    for page in (1, 7, 100, len(whole)):
        found = [id_ for id_, _ in search_all(cluster, "agents", page=page)]
        assert sorted(found) == sorted(whole)
