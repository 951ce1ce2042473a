"""`mlc-gateway agents` on a real 3.6.0 with 300 mixed agents: what happens to each input is what the table promised."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3

from gateway.cli import run
from gateway.migrate.samples import KINDS
from tests.migrate.promise import Happened, happened

from .agents import TEMPLATES, TYPES, WIRES, Api, Wire, agent_body, connect, register, request_body
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
    wire = WIRES[provider]
    action = {
        "action_type": "predict",
        "method": "POST",
        "url": llm_url + wire.path,
        "headers": wire.headers,
        "request_body": request_body(wire, template),
    }
    connector = {
        "name": f"{PREFIX}_{provider}_{template}",
        "version": 1,
        "protocol": wire.protocol,
        "parameters": wire.parameters | ({"body": wire.turn} if template == "upgraded" else {}),
        "credential": wire.credential,
        "actions": [action],
    }
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


def _broken(api: Api, llm_url: str) -> Iterator[str]:
    """Agents that can't be read, call no LLM, or speak to one of an unknown format."""

    def flow(name: str, **parameters: str) -> str:
        tool = {"type": "MLModelTool", "parameters": {"prompt": "${parameters.question}", **parameters}}
        return register(api, {"name": f"{PREFIX}-{name}", "type": "flow", "tools": [tool]})

    yield flow("no-such-model", model_id="nobody")
    yield flow("names-no-model")
    yield register(api, {"name": f"{PREFIX}-no-llm", "type": "flow", "tools": [{"type": "ListIndexTool"}]})
    plain = WIRES["openai"]
    odd = Wire(**{**vars(plain), "path": "/generate", "body": '{"words":"${parameters.prompt}"}'})
    yield flow("odd", model_id=connect(api, llm_url, "openai", "tutorial", odd)[1])


@pytest.fixture(scope="module")
def mixed(api: Api, endpoint: LLM) -> list[str]:
    """The ids of at least 300 agents of all kinds, registered the old way."""
    made: list[str] = []
    for provider, template in itertools.product(WIRES, TEMPLATES):
        models = (connect(api, endpoint.url, provider, template)[1], _inside(api, endpoint.url, provider, template))
        for type_, model_id, prompt in itertools.product(TYPES, models, PROMPTS):
            if (provider, type_) == ("gemini", "per") or (type_, prompt) == ("flow", "memoryless"):
                continue  # 3.6 has no such interface; a flow has no memory to go without
            name = f"{PREFIX}-{len(made)}-{provider}-{type_}-{template}-{prompt}"
            made.append(register(api, _varied(agent_body(name, type_, WIRES[provider], model_id), type_, prompt)))
    made += _broken(api, endpoint.url)
    assert len(made) >= 300
    return made


def _table(capsys: pytest.CaptureFixture[str], url: str, *argv: str) -> dict[str, Any]:
    """The report as JSON, once it has been found that nothing is missing from it."""
    capsys.readouterr()
    status = run(["agents", "--url", url, *argv])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == (3 if report["summary"]["unreadable"] else 0)
    return report


def _differences(report: dict[str, Any], ids: set[str], gateway_url: str, llm: LLM) -> list[tuple[Any, ...]]:
    """Every promise about the agents `ids` that was not kept: (agent, kind, promised, happened)."""
    pool = urllib3.PoolManager(retries=False, timeout=60)

    def post(path: str, body: Any) -> tuple[int, Any, Any]:
        headers = {"Content-Type": "application/json"}
        answer = pool.request("POST", gateway_url + path, body=json.dumps(body), headers=headers)
        return answer.status, json.loads(answer.data), answer.headers

    differing = []
    for agent in report["agents"]:
        if agent["id"] not in ids:
            continue
        for kind in KINDS:
            llm.taken()
            provider = agent["provider"]["name"] if agent["readable"] else ""

            def taken(planner: bool = agent["type"] == "plan_execute_and_reflect") -> list[Any]:
                received = llm.taken()
                llm.replies(*([PLAN] if planner else []))
                return received

            found = happened(post, taken, agent["id"], kind, provider)
            if not _kept(agent, kind, found):
                differing.append((agent["name"], kind, agent.get("abilities", agent).get(kind), found))
    return differing


def _kept(agent: dict[str, Any], kind: str, found: Happened) -> bool:
    if not agent["readable"]:
        return found.get("arrives") is False or found.get("status", 0) >= 400
    promised = agent["abilities"][kind]
    if agent["generation"] == "unified_v2" and not promised["arrives"]:  # the cluster itself refuses
        return not found.get("arrives") and not found.get("received")
    return bool(found == promised)


def test_each_promise_is_kept(
    api: Api, mixed: list[str], unified_agents: dict[str, str], gateway_url: str, llm: LLM, capsys: Any
) -> None:
    report = _table(capsys, api.url)
    ids = [agent["id"] for agent in report["agents"]]
    assert len(ids) == len(set(ids))
    assert {*mixed, *unified_agents.values()} <= set(ids)
    # The cluster makes an agent of its own for every planner: those are listed, too, and judged by its name for it.
    children = {agent["id"] for agent in report["agents"] if agent["name"].startswith(PREFIX)}
    ours = {*mixed, *unified_agents.values(), *children}
    assert _differences(report, ours, gateway_url, llm) == []


def test_each_promise_is_kept_with_the_unified_api_on(
    api: Api, mixed: list[str], unified_agents: dict[str, str], gateway_url: str, llm: LLM, capsys: Any
) -> None:
    some = mixed[::9]
    with enabled(Api(gateway_url)):
        report = _table(capsys, api.url, *some, *unified_agents.values())
        assert report["cluster"]["unified_api"] is True
        assert _differences(report, {*some, *unified_agents.values()}, gateway_url, llm) == []


def test_pages_of_any_size_show_each_agent_once(api: Api, mixed: list[str]) -> None:
    from gateway.migrate.search import search_all
    from tests.migrate.test_connection import connected

    cluster = connected("--url", api.url)
    whole = [id_ for id_, _ in search_all(cluster, "agents")]
    assert set(mixed) <= set(whole)
    for page in (1, 7, 100, len(whole)):
        found = [id_ for id_, _ in search_all(cluster, "agents", page=page)]
        assert sorted(found) == sorted(whole)
