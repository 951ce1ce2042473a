"""A refusal, ``agents -v`` and ``upgrade`` give the same advice, for every agent of the fixtures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.agents.documents import Rule
from gateway.delivery.advice import COMPLETES_TEXT, CORRECT_RULE, NAME_PROVIDER
from gateway.errors import first_remedy
from gateway.migrate.assess import Assessment, assess, check_providers
from gateway.migrate.proof import KINDS, sample
from gateway.migrate.reading import read_documents, scan
from gateway.migrate.upgrade import Offer, Refused, offers
from tests.migrate.conftest import Command, Deployment, StartDeployment
from tests.migrate.observed import upgrade_command
from tests.migrate.test_connection import connected

LIMITS = {
    *("COMBINATION_NOT_DELIVERABLE", "HISTORY_NEEDS_UPGRADE", "MEDIA_NEEDS_UPGRADE", "NATIVE_BLOCK_NEEDS_UPGRADE"),
    *("AGENT_NOT_CALLABLE", "PROVIDER_UNKNOWN", "SYSTEM_NEEDS_SLOT", "TEXT_NOT_SAFE", "TOOLS_NEED_UPGRADE"),
}
"""The codes of what the agent or its connector lacks. Others are of the LLM's API, which no advice here changes."""


def refusals(deployment: Deployment, one: Assessment) -> dict[str, list[dict[str, Any]]]:
    """Kind of input → the problems with which the gateway refuses it, of those that the agent is to blame for."""
    assert one.agent.profile is not None
    found = {}
    for kind in KINDS:
        body = {"input": sample(kind, one.agent.profile.provider)}
        status, answer, _ = deployment.post(f"/_plugins/_ml/agents/{one.agent.id}/_execute", body)
        problems = answer["error"]["problems"] if status == 400 else []
        if lacking := [problem for problem in problems if problem["code"] in LIMITS]:
            found[kind] = lacking
    return found


def offer_of(deployment: Deployment, agent_id: str, rules: tuple[Rule, ...] = ()) -> Offer | Refused:
    cluster = connected("--url", deployment.url)
    (found,) = offers(read_documents(cluster, cluster.version, [agent_id], rules), [agent_id], "0" * 32)
    return found


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param(
            "2.19.0",
            {"upgrade the agent with `mlc-gateway upgrade ID`", COMPLETES_TEXT},
            marks=pytest.mark.slow,
        ),
        pytest.param("3.4.0", {"send system_prompt in `parameters`"}, marks=pytest.mark.slow(20)),
        pytest.param("3.6.0", set(), marks=pytest.mark.slow(20)),
    ],
)
def test_the_three_agree(start_deployment: StartDeployment, version: str, expected: set[str]) -> None:
    deployment = start_deployment(version)
    cluster = connected("--url", deployment.url)
    table = assess(scan(cluster, cluster.version))
    seen = set()
    for one in table:
        remedies = {remedy.kind: remedy for remedy in one.remedies}
        offer = offer_of(deployment, one.agent.id)
        gained = (
            next((e.gained for e in offer.effects if e.agent_id == one.agent.id), ())
            if isinstance(offer, Offer)
            else ()
        )
        promised = remedies["upgrade"].gains if "upgrade" in remedies else ()
        assert set(promised) == set(gained), one.agent.name
        others = [remedy.action for kind, remedy in remedies.items() if kind in ("rule", "agent")]
        if isinstance(offer, Refused):
            assert others in ([], [offer.advice]), one.agent.name
        for kind, problems in refusals(deployment, one).items():
            for problem in problems:
                first = first_remedy(problem["help"])
                upgrade = f"upgrade the agent with `{upgrade_command(one.agent.id)}`"
                assert (first == upgrade) == (kind in promised), (one.agent.name, kind, problem)
                assert not others or first == others[0], (one.agent.name, kind, problem)
                if others:
                    assert isinstance(offer, Refused)
                    assert offer.advice == others[0]
                seen.add(first.replace(one.agent.id, "ID"))
    assert expected <= {text.replace("-- ", "") for text in seen}


def test_an_agent_that_completes_text_is_not_told_to_name_a_provider(deployment: Deployment, command: Command) -> None:
    agent = deployment.agents["flow-c"]
    _, agents, _ = command("agents", "--url", deployment.url, "--json", "--", agent)
    _, upgrade, _ = command("upgrade", "--url", deployment.url, "--", agent)
    answer = deployment.post(f"/_plugins/_ml/agents/{agent}/_execute", {"input": sample("image", "")})[1]
    shown = [json.loads(agents)["agents"][0]["remedies"][0]["action"], upgrade, answer["error"]["reason"]]
    assert [COMPLETES_TEXT.lower() in " ".join(text.lower().split()) for text in shown] == [True] * 3
    assert "agents.rules" not in json.dumps([shown, answer])


WRONG = {
    "contradicts": (
        "flow-d",
        "openai/v1/chat/completions",
        "the rule names openai/v1/chat/completions, but the connector shows bedrock/converse, which is used",
    ),
    "completes text": (
        "flow-c",
        "bedrock/converse",
        "the rule names bedrock/converse, which takes messages, but the agent's LLM completes a text",
    ),
    "another member": (
        "flow-own",
        "gemini/v1beta/generatecontent",
        "the rule names gemini/v1beta/generatecontent, but the connector's template has no member `contents`",
    ),
}


def with_own(deployment: Deployment) -> None:
    """Register flow-own, whose LLM has a format that no provider claims."""
    resources = deployment.cluster.core.resources
    action = {
        "action_type": "predict",
        "method": "POST",
        "url": f"{deployment.cluster.llm_url}/own/chat",
        "request_body": '{"messages":[{"role":"user","content":"${parameters.prompt}"}]}',
    }
    connector = {"name": "own", "version": "1", "protocol": "http", "parameters": {}, "actions": [action]}
    model = resources.register_model({"name": "own", "function_name": "remote", "connector": connector}, True)
    tool = {"model_id": model["model_id"], "prompt": "${parameters.question}"}
    deployment.agents["flow-own"] = deployment.register(
        {"name": "flow-own", "type": "flow", "tools": [{"type": "MLModelTool", "parameters": tool}]}
    )


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_can_not_be_right_is_reported_everywhere(
    start_deployment: StartDeployment, command: Command, tmp_path: Path, name: str
) -> None:
    agent, provider, fault = WRONG[name]
    deployment = start_deployment("2.19.0")
    with_own(deployment)
    rule = {"agent": agent, "provider": provider}
    file = tmp_path / "gateway.yaml"
    settings = {
        "upstream": {"url": deployment.url},
        "agents": {"rules": [{"agent": "none", "provider": "gemini"}, rule]},
    }
    file.write_text(yaml.safe_dump(settings))
    status, out, err = command("check-config", "-c", str(file), "--cluster")
    assert (status, out) == (2, "")
    assert err == f"agents.rules[1].provider: {fault} (agent {agent}); got {provider!r}\n"
    assert command("check-config", "-c", str(file))[0] == 0
    _, agents, _ = command("agents", "-c", str(file), "--json", "--", deployment.agents[agent])
    actions = [remedy["action"] for remedy in json.loads(agents)["agents"][0]["remedies"] if remedy["kind"] == "rule"]
    assert actions == [f"{CORRECT_RULE}: {fault}"]
    answer = deployment.refused_by({"agents": {"rules": [rule]}}, agent, sample("image", ""))
    assert all(fault in problem["help"] for problem in answer["error"]["problems"])


def test_agents_of_routes_are_compared_with_those_of_their_clusters(
    start_deployment: StartDeployment, command: Command, tmp_path: Path
) -> None:
    """A name, which `move` and `shift` take, is none of the ids that requests name."""
    old, new = start_deployment("2.19.0"), start_deployment("3.8.0")
    file = tmp_path / "gateway.yaml"
    agent, copy = old.agents["flow-b"], new.agents["flow-openai_messages"]

    def check(route: str, *targets: str) -> tuple[int, str]:
        """Return the exit code and what is wrong. targets: the one on `upstream`, and the one on `new`."""
        here, there = targets
        both = [{"agent": here, "weight": 1}, {"agent": there, "cluster": "new"}]
        settings = {
            "upstream": {"url": old.url},
            "clusters": {"new": {"url": new.url}},
            "agents": {"routes": [{"agent": route, "targets": both}]},
        }
        file.write_text(yaml.safe_dump(settings))
        status, _, err = command("check-config", "-c", str(file), "--cluster", "--changed")
        return status, err

    assert check(agent, agent, copy) == (0, "")
    assert check("id-of-an-agent-that-is-gone", agent, copy) == (0, "")
    place = "agents.routes[0]"
    assert check("flow-b", agent, copy) == (
        2,
        f"{place}.agent: is not a whole id of an agent; got 'flow-b'; allowed: {agent}\n",
    )
    assert check(agent, agent, "flow-openai_messages") == (
        2,
        f"{place}.targets[1].agent: is not a whole id of an agent; got 'flow-openai_messages'; allowed: {copy}\n",
    )
    assert check(agent, copy, "nobody") == (
        2,
        f"{place}.targets[0].agent: is no agent of upstream; got {copy!r}\n"
        f"{place}.targets[1].agent: is no agent of clusters.new; got 'nobody'\n",
    )


def test_a_rule_that_is_right_is_not_reported(
    start_deployment: StartDeployment, command: Command, tmp_path: Path
) -> None:
    deployment = start_deployment("2.19.0")
    with_own(deployment)
    file = tmp_path / "gateway.yaml"
    rules = [{"agent": "flow-own", "provider": "openai"}, {"agent": "flow-d", "provider": "bedrock"}]
    file.write_text(yaml.safe_dump({"upstream": {"url": deployment.url}, "agents": {"rules": rules}}))
    status, out, err = command("check-config", "-c", str(file), "--cluster")
    assert (status, err) == (0, "")
    assert "provider: openai" in out
    unread = tmp_path / "unread.yaml"
    unread.write_text("upstream: {url: 'http://127.0.0.1:1'}")
    assert command("check-config", "-c", str(unread), "--cluster")[0] == 2


def test_an_agent_without_a_known_provider_is_told_to_name_one(start_deployment: StartDeployment) -> None:
    deployment = start_deployment("2.19.0")
    with_own(deployment)
    agent = deployment.agents["flow-own"]
    cluster = connected("--url", deployment.url)
    (one,) = assess(scan(cluster, cluster.version, [agent]))
    assert [remedy.action for remedy in one.remedies] == [NAME_PROVIDER]
    found = offer_of(deployment, agent)
    assert isinstance(found, Refused)
    assert found.advice == NAME_PROVIDER
    problems = refusals(deployment, one)["image"]
    assert [first_remedy(problem["help"]) for problem in problems] == [NAME_PROVIDER]


def test_many_agents_of_one_rule_are_one_problem(deployment: Deployment) -> None:
    cluster = connected("--url", deployment.url)
    rules = (Rule("*-a", "openai"), Rule("*-d", "openai"))
    found = check_providers(scan(cluster, cluster.version, rules=rules).agents, rules)
    assert [problem.path for problem in found] == ["agents.rules[0].provider", "agents.rules[1].provider"]
    assert "(agents cflow-a, conv-a, flow-a)" in str(found[0])


def test_a_flow_that_runs_another_agent_is_told_to_upgrade_that_one(start_deployment: StartDeployment) -> None:
    deployment = start_deployment("2.19.0")
    inner = deployment.agents["flow-d"]
    tool = {"type": "AgentTool", "name": "inner", "parameters": {"agent_id": inner}}
    outer = deployment.register({"name": "outer", "type": "flow", "tools": [tool]})
    cluster = connected("--url", deployment.url)
    (one,) = assess(scan(cluster, cluster.version, [outer]))
    assert [remedy.action for remedy in one.remedies] == [upgrade_command(inner)]
    problems = refusals(deployment, one)["image"]
    expected = f"upgrade the agent with `{upgrade_command(inner)}`"
    assert {first_remedy(problem["help"]) for problem in problems} == {expected}
