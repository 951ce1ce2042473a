"""The command `promote`: what it registers, what it prints, and what it takes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.migrate.promote import (
    PROMOTED,
    V2,
    routes_of,
    undo_calls,
)
from gateway.simulator.settings import UNIFIED_API
from tests.migrate.conftest import Command, Deployment, StartDeployment

AGENTS = "/_plugins/_ml/agents"
KEY = "the-key-of-the-test"


@pytest.fixture
def modern(start_deployment: StartDeployment) -> Deployment:
    """A cluster that says it is 3.6.0 with the unified API on, and accepts registrations."""
    deployment = start_deployment("3.4.0")
    root = {"cluster_name": "books", "version": {"number": "3.6.0", "distribution": "opensearch"}}
    deployment.cluster.refusals["GET /"] = lambda: root
    on = {"persistent": {"plugins": {"ml_commons": {"unified_agent_api_enabled": "true"}}}}
    deployment.cluster.refusals["GET /_cluster/settings"] = lambda: on
    return deployment


def _unified(deployment: Deployment) -> str:
    """An agent as the cluster makes it of a `model` block; its registration is the next one answered."""
    connector = {
        "name": "auto",
        "version": "1",
        "protocol": "http",
        "parameters": {"model": "gpt-4o"},
        "actions": [
            {
                "action_type": "predict",
                "method": "POST",
                "url": "https://api.openai.com/v1/chat/completions",
                "headers": {},
                "request_body": '{"model":"${parameters.model}","messages":[${parameters.body}]}',
            }
        ],
    }
    resources = deployment.cluster.core.resources
    model_id = resources.register_model({"name": "auto", "connector": connector}, False)["model_id"]
    agent_id: str = resources.register_agent(
        {
            "name": "new",
            "type": "conversational",
            "llm": {"model_id": model_id},
            "parameters": {PROMOTED: deployment.agents["fc-openai_tutorial"]},
        }
    )["agent_id"]
    return agent_id


def _credential(tmp_path: Path, **more: str) -> str:
    file = tmp_path / "credential.json"
    file.write_text(json.dumps({"openai_api_key": KEY, **more}))
    file.chmod(0o600)
    return str(file)


def _registering(deployment: Deployment, answer: dict[str, Any]) -> None:
    deployment.cluster.refusals[f"POST {AGENTS}/_register"] = lambda: answer


def test_by_default_only_shown(modern: Deployment, command: Command) -> None:
    modern.cluster.requests.clear()
    status, out, err = command("promote", "fc-openai_tutorial", "--url", modern.url)
    assert (status, err) == (0, "")
    assert f"POST {AGENTS}/_register {{" in out
    assert "with the credential: openai_api_key" in out
    assert f"is set to {modern.cluster.llm_url}/openai/v1/chat/completions" in out
    assert all(call.startswith("GET") or "_search" in call for call in modern.cluster.calls)


def test_applied_with_a_url_of_its_own(modern: Deployment, command: Command, tmp_path: Path) -> None:
    made: list[str] = []

    def registers() -> dict[str, str]:
        made.append(_unified(modern))
        return {"agent_id": made[-1]}

    modern.cluster.refusals[f"POST {AGENTS}/_register"] = registers
    argv = ("promote", "fc-openai_tutorial", "--apply", "--credential-file", _credential(tmp_path), "--url", modern.url)
    status, out, err = command(*argv)
    assert (status, err) == (0, "")
    assert KEY not in out
    old = modern.agents["fc-openai_tutorial"]
    assert routes_of({old: made[0]}) in out
    resources = modern.cluster.core.resources
    model_id = resources.agents[made[0]]["llm"]["model_id"]
    (action,) = resources.models[model_id]["connector"]["actions"]
    assert action["url"] == f"{modern.cluster.llm_url}/openai/v1/chat/completions"
    system = '{"role":"developer","content":"${parameters.system_prompt}"},'
    assert action["request_body"] == f'{{"model":"${{parameters.model}}","messages":[{system}${{parameters.body}}]}}'
    (sent,) = [json.loads(r.body) for r in modern.cluster.requests if r.path == f"{AGENTS}/_register"]
    assert sent["model"]["credential"] == {"openai_api_key": KEY}
    # Again, as after a lost answer: what was made is found and used.
    status, out, _ = command(*argv, "--json")
    report = json.loads(out)
    assert (status, report["promoted"], report["made"], len(made)) == (0, made[0], False, 1)
    for call in report["take_back"]:
        modern.cluster.refusals.clear()
        assert command_call(modern, call) == 200


def command_call(deployment: Deployment, call: dict[str, Any]) -> int:
    import urllib3

    status: int = urllib3.request(call["method"], deployment.url + call["path"]).status
    return status


def test_a_refused_registration_shows_no_credential(modern: Deployment, command: Command, tmp_path: Path) -> None:
    _registering(modern, {"error": {"reason": f"bad {KEY}"}})
    credential = _credential(tmp_path, session_token="")
    status, out, err = command(
        "promote", "fc-openai_tutorial", "--apply", "--credential-file", credential, "--url", modern.url
    )
    assert status == 1
    assert "REGISTRATION_REFUSED: 200: bad ***\n" in err
    assert KEY not in out + err


def test_what_fails_after_the_registration_is_taken_back(
    modern: Deployment, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = modern.cluster.core.resources
    before = set(resources.agents), set(resources.models)
    new = _unified(modern)
    model_id = resources.agents[new]["llm"]["model_id"]
    resources.agents[new]["parameters"] = {}  # not found as an earlier run's
    _registering(modern, {"agent_id": new})
    modern.cluster.refusals[f"POST {AGENTS}/{new}/_execute"] = 500
    argv = (
        "promote", "fc-openai_tutorial", "--apply", "--probe", "execute",
        "--credential-file", _credential(tmp_path), "--url", modern.url,
    )  # fmt: skip
    status, _, err = command(*argv)
    assert status == 3, err
    assert (set(resources.agents), set(resources.models)) == before
    # If it can't be undone, the message has the calls that undo it.
    new = _unified(modern)
    resources.agents[new]["parameters"] = {}
    model_id = resources.agents[new]["llm"]["model_id"]
    _registering(modern, {"agent_id": new})
    modern.cluster.refusals[f"POST {AGENTS}/{new}/_execute"] = 500
    modern.cluster.refusals[f"DELETE /_plugins/_ml/models/{model_id}"] = 403
    monkeypatch.setattr("gateway.cli.promote._PATIENCE", 0.0)
    status, _, err = command(*argv)
    assert status == 4
    assert f"DELETE /_plugins/_ml/models/{model_id}" in err


def test_a_planner_is_removed_with_its_executor(modern: Deployment, command: Command, tmp_path: Path) -> None:
    resources = modern.cluster.core.resources
    before = set(resources.agents), set(resources.models)
    conversational = _unified(modern)
    body = {**resources.agents.pop(conversational), "type": "plan_execute_and_reflect", "parameters": {}}
    new = resources.register_agent(body)["agent_id"]
    _registering(modern, {"agent_id": new})
    modern.cluster.refusals[f"POST {AGENTS}/{new}/_execute"] = 500
    status, _, err = command(
        "promote", "fc-openai_tutorial", "--apply", "--probe", "execute",
        "--credential-file", _credential(tmp_path), "--url", modern.url,
    )  # fmt: skip
    assert status == 3, err
    assert (set(resources.agents), set(resources.models)) == before


def test_a_promoted_agent_that_can_not_be_read_is_kept(modern: Deployment, command: Command, tmp_path: Path) -> None:
    new = _unified(modern)
    promoted = modern.cluster.core.resources.agents[new]["parameters"]
    modern.cluster.core.resources.agents[new]["parameters"] = {}  # not found as an earlier run's
    _registering(modern, {"agent_id": new})
    modern.cluster.refusals[f"GET {AGENTS}/{new}"] = 503
    argv = ("promote", "fc-openai_tutorial", "--apply", "--credential-file", _credential(tmp_path), "--url", modern.url)
    status, _, err = command(*argv)
    assert status == 2
    assert f"{new} is registered, but not checked: run this again" in err
    modern.cluster.core.resources.agents[new]["parameters"] = promoted
    del modern.cluster.refusals[f"GET {AGENTS}/{new}"]
    status, out, _ = command(*argv, "--json")
    assert (status, json.loads(out)["promoted"]) == (0, new)


def test_an_older_cluster_is_told_what_to_do(deployment: Deployment, command: Command) -> None:
    status, out, err = command("promote", "conv-d", "--url", deployment.url)
    assert (status, out) == (1, "")
    assert "CLUSTER_TOO_OLD: unified agents exist from 3.5 on, and this cluster is 2.19.0: upgrade it first" in err


def test_the_calls_that_take_it_back() -> None:
    agent = {"llm": {"model_id": "m"}, "parameters": {}}
    paths = [f"{call.method} {call.path}" for call in undo_calls("a", agent)]
    assert paths == [
        "DELETE /_plugins/_ml/agents/a",
        "POST /_plugins/_ml/models/m/_undeploy",
        "DELETE /_plugins/_ml/models/m",
    ]


def test_a_second_run_describes_the_type_that_was_registered(
    start_deployment: StartDeployment, command: Command, tmp_path: Path
) -> None:
    deployment = start_deployment("3.6.0")
    deployment.cluster.core.settings.change({"persistent": {UNIFIED_API: True}})
    name = next(name for name in deployment.agents if name.startswith("fc-openai"))
    given = ("--credential-file", _credential(tmp_path), "--url", deployment.url)
    v2 = ("--type", V2, "--memory-container", "container")
    status, out, err = command("promote", name, "--apply", *v2, *given, "--json")
    assert (status, err) == (0, "")
    first = json.loads(out)
    assert first["type"] == V2
    status, out, err = command("promote", name, "--apply", *given, "--json")
    assert (status, err) == (0, "")
    second = json.loads(out)
    assert (second["made"], second["promoted"], second["type"]) == (False, first["promoted"], V2)
    assert second["changes"] == first["changes"]
    status, out, _ = command("promote", name, "--url", deployment.url)
    assert f"An earlier run has registered it as {first['promoted']} (type {V2})." in out
    assert "with `input`" not in out
