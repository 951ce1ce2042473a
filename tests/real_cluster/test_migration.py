"""`upgrade`, `rollback` and `promote` on a real 3.6.0: legacy calls reach the LLM as before, images arrive after."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import run
from gateway.migrate.promote import QUESTION, differences
from gateway.providers import registry

from .agents import WIRES, Api, agent_body, connect, register, request_body
from .conftest import Command
from .delivered import IMAGE, Send
from .llm import LLM, PLAN, Failure
from .unified import enabled

pytestmark = pytest.mark.real_cluster

_QUESTION = 'say "hi" \\ ${parameters.nowhere:-x} ü {a:1}'
_TIMES = ("created_time", "last_updated_time")
WAYS = ("standalone", "internal", "new connector")


def _model(api: Api, llm: LLM, provider: str, way: str) -> str:
    _, model_id = connect(api, llm.url, provider, "tutorial")
    if way != "internal":
        return model_id
    wire = WIRES[provider]
    action = {
        "action_type": "predict",
        "method": "POST",
        "url": llm.url + wire.path,
        "headers": wire.headers,
        "request_body": request_body(wire, "tutorial"),
    }
    connector = {
        "name": "inner",
        "version": 1,
        "protocol": wire.protocol,
        "parameters": wire.parameters,
        "credential": wire.credential,
        "actions": [action],
    }
    body = {"name": "inner", "function_name": "remote", "connector": connector}
    return str(api.must("POST", "/_plugins/_ml/models/_register?deploy=true", body)["model_id"])


def _asked(api: Api, llm: LLM, agent_id: str) -> list[Any]:
    llm.taken()
    llm.replies(PLAN)
    status, answer = api.execute(agent_id, {"parameters": {"question": _QUESTION}})
    assert status == 200, answer
    return llm.taken()


def _documents(api: Api, model_id: str) -> dict[str, Any]:
    """The connector behind a model, as GET shows it, times left out."""
    model = api.must("GET", f"/_plugins/_ml/models/{model_id}")
    found = model.get("connector") or api.must("GET", f"/_plugins/_ml/connectors/{model['connector_id']}")
    return {name: value for name, value in found.items() if name not in _TIMES}


# Where 3.x can splice nearly all arrives without an upgrade; a planner it does not help to media.
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("provider", "type_"), [("openai", "per"), ("bedrock", "per")])
def test_an_upgrade_and_back(
    api: Api, llm: LLM, command: Command, through: Send, tmp_path: Path, provider: str, way: str, type_: str
) -> None:
    wire = WIRES[provider]
    model_id = _model(api, llm, provider, way)
    agent_id = register(api, agent_body(f"migrate-{type_}", type_, wire, model_id))
    legacy, before = _asked(api, llm, agent_id), _documents(api, model_id)
    argv = ["upgrade", agent_id, "--apply", "--shared", "--backup-dir", str(tmp_path / "backups")]
    if way == "new connector":
        file = tmp_path / "credential.json"
        file.write_text(json.dumps(wire.credential))
        file.chmod(0o600)
        argv += ["--credential-file", str(file)]
    llm.replies(PLAN)
    status, shown = command(*argv, "--probe", "execute")
    assert status == 0, shown
    (backup,) = (tmp_path / "backups").glob("*.json")
    assert "${parameters.body}" in json.dumps(_documents(api, model_id)["actions"])
    llm.taken()  # the probe's
    assert _asked(api, llm, agent_id) == legacy
    llm.replies(PLAN)
    status, _ = through(agent_id, {"input": [{"type": "text", "text": "What is it?"}, IMAGE]})
    assert status == 200
    assert IMAGE["source"]["data"] in json.dumps(llm.taken())
    status, shown = command("rollback", str(backup))
    assert status == 0, shown
    after = _documents(api, model_id)
    if way != "new connector":
        assert "still has parameters that are not used any more (body)" in shown
        assert after["parameters"].pop("body")
    assert after == before
    assert _asked(api, llm, agent_id) == legacy
    status, _ = command("rollback", str(backup))
    assert status == 0


def test_where_all_arrives_already_nothing_is_offered(api: Api, llm: LLM, command: Command) -> None:
    _, model_id = connect(api, llm.url, "bedrock", "tutorial")
    agent_id = register(api, agent_body("spliced", "conv_tools", WIRES["bedrock"], model_id))
    status, shown = command("upgrade", agent_id)
    assert status == 0
    assert "NO_GAIN" in shown


def test_promoting_is_refused_while_the_unified_api_is_off(api: Api, llm: LLM, command: Command) -> None:
    _, model_id = connect(api, llm.url, "bedrock", "tutorial")
    agent_id = register(api, agent_body("legacy", "conv_tools", WIRES["bedrock"], model_id))
    status, shown = command("promote", agent_id)
    assert status == 1
    assert 'PUT /_cluster/settings {"persistent":{"plugins.ml_commons.unified_agent_api_enabled":true}}' in shown


CREDENTIALS = {
    "bedrock": {"access_key": "AK", "secret_key": "SK", "session_token": "ST"},
    "openai": {"openai_api_key": "sk"},
    "gemini": {"gemini_api_key": "g"},
}


_CHANGE = re.compile(r"the LLM request (?:gets|no longer has|has) (\S+): ")


def _first_call(api: Api, llm: LLM, agent_id: str, body: Any) -> Any:
    """What the LLM receives first; the agent's run must succeed."""
    llm.taken()
    status, answer = api.execute(agent_id, body)
    assert status == 200, answer
    return llm.taken()[0]


def _system_texts(provider: str, body: Any) -> list[str]:
    """The LLM's system text in a request; OpenAI's stands in messages."""
    parts = [*body.get("system", []), *body.get("systemInstruction", {}).get("parts", [])]
    turns = body["messages"] if provider == "openai" else []
    return [part["text"] for part in parts] + [t["content"] for t in turns if t["role"] in ("system", "developer")]


@pytest.mark.parametrize("type_", ["conv_tools", "conv_react"])
@pytest.mark.parametrize("provider", WIRES)
def test_promoting_a_legacy_agent(
    api: Api, llm: LLM, command: Command, tmp_path: Path, provider: str, type_: str
) -> None:
    _, model_id = connect(api, llm.url, provider, "tutorial")
    agent_id = register(api, agent_body(f"promote-{type_}", type_, WIRES[provider], model_id))
    old = _first_call(api, llm, agent_id, {"parameters": {"question": QUESTION}})
    file = tmp_path / "credential.json"
    file.write_text(json.dumps(CREDENTIALS[provider]))
    file.chmod(0o600)
    with enabled(api):
        status, shown = command("promote", agent_id)
        assert status == 0, shown
        assert "Nothing was changed" in shown
        argv = ["promote", agent_id, "--apply", "--credential-file", str(file), "--json"]
        status, shown = command(*argv, "--probe", "execute")
        assert status == 0, shown
        report = json.loads(shown)
        new = report["promoted"]
        got = _first_call(api, llm, new, {"input": QUESTION})
        assert QUESTION in json.dumps(got)
        different = differences(old, got, registry.provider(WIRES[provider].name))
        assert {found[1] for found in map(_CHANGE.match, report["changes"]) if found} == set(different)
        assert _system_texts(provider, got) == _system_texts(provider, old) != []
        agent = api.must("GET", f"/_plugins/_ml/agents/{new}")
        assert agent["model"]["model_provider"] == WIRES[provider].name
        assert report["route"]["targets"] == [{"agent": new, "weight": 1}]
        # Again: the same agent, and no second one.
        api.must("POST", "/.plugins-ml-agent/_refresh")
        status, shown = command(*argv)
        assert (status, json.loads(shown)["promoted"], json.loads(shown)["made"]) == (0, new, False)
        for call in report["take_back"]:
            api.must(call["method"], call["path"])
    assert api.call("GET", f"/_plugins/_ml/agents/{new}")[0] == 404
    assert api.call("GET", f"/_plugins/_ml/models/{report['model']}")[0] == 404


def test_promoting_to_v2(api: Api, llm: LLM, command: Command, tmp_path: Path, container: str) -> None:
    _, model_id = connect(api, llm.url, "bedrock", "tutorial")
    agent_id = register(api, agent_body("promote-v2", "conv_tools", WIRES["bedrock"], model_id))
    file = tmp_path / "credential.json"
    file.write_text(json.dumps(CREDENTIALS["bedrock"]))
    file.chmod(0o600)
    with enabled(api):
        status, shown = command(
            "promote", agent_id, "--apply", "--type", "conversational_v2", "--memory-container", container,
            "--credential-file", str(file), "--probe", "execute", "--json",
        )  # fmt: skip
        assert status == 0, shown
        agent = api.must("GET", f"/_plugins/_ml/agents/{json.loads(shown)['promoted']}")
    assert agent["type"].lower() == "conversational_v2"


def test_a_promotion_that_fails_leaves_nothing(api: Api, llm: LLM, command: Command, tmp_path: Path) -> None:
    _, model_id = connect(api, llm.url, "openai", "tutorial")
    agent_id = register(api, agent_body("promote-fails", "conv_tools", WIRES["openai"], model_id))
    file = tmp_path / "credential.json"
    file.write_text(json.dumps({"openai_api_key": "the-key-of-the-test"}))
    file.chmod(0o600)

    def ids(kind: str) -> set[str]:
        api.must("POST", f"/.plugins-ml-{kind}/_refresh")
        hits = api.must("POST", f"/_plugins/_ml/{kind}s/_search", {"query": {"match_all": {}}, "size": 10_000})
        return {hit["_id"] for hit in hits["hits"]["hits"]}

    before = ids("agent"), ids("model")
    llm.replies(*[Failure(400, {"message": "no such model"})] * 20)
    with enabled(api):
        status, shown = command("promote", agent_id, "--apply", "--credential-file", str(file), "--probe", "execute")
    assert status == 3, shown
    assert "the-key-of-the-test" not in shown
    assert (ids("agent"), ids("model")) == before


def test_cleanup_removes_an_empty_model_group(api: Api, real_cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    tag = "0123456789abcdef" * 2
    body = {"name": "left behind", "description": f"Model of an agent, mlc-gateway {tag}"}
    group = api.must("POST", "/_plugins/_ml/model_groups/_register", body)["model_group_id"]
    api.must("POST", "/.plugins-ml-model-group/_refresh")
    capsys.readouterr()
    assert run(["cleanup", "--url", real_cluster, "--older-than", "0", "--apply", "--json"]) == 0
    (found,) = [one for one in json.loads(capsys.readouterr().out)["leftovers"] if one["id"] == group]
    assert (found["kind"], found["outcome"]) == ("model_groups", "removed")
    assert api.call("GET", f"/_plugins/_ml/model_groups/{group}")[0] == 404
