"""The table's promises hold: every seeded agent is executed through a gateway with every kind of input."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.agents.documents import Rule
from gateway.cli.agents import ability_as_json
from gateway.config.schema import AgentRoute, Agents, RouteTarget
from gateway.delivery.advice import COMPLETES_TEXT
from gateway.migrate.assess import Assessment, abilities, assess, template_kind
from gateway.migrate.proof import KINDS, sample
from gateway.migrate.reading import scan
from gateway.mlcommons.generations import Generation
from gateway.providers import registry
from gateway.routing.table import read_routes
from gateway.simulator.fixtures import CLASSIC, MODERN, connector_body
from tests.migrate.conftest import Deployment, StartDeployment
from tests.migrate.observed import observed_ability, upgrade_command
from tests.migrate.test_connection import connected


def assessed(
    deployment: Deployment, *ids: str, rules: tuple[Rule, ...] = (), routes: Any = None
) -> dict[str, Assessment]:
    cluster = connected("--url", deployment.url)
    found = assess(scan(cluster, cluster.version, ids, rules), rules=rules, routes=routes or {})
    return {one.agent.name or one.agent.id: one for one in found}


@pytest.mark.parametrize("version", ["2.19.0", pytest.param("3.4.0", marks=pytest.mark.slow)])
def test_what_happens_is_what_the_table_promised(start_deployment: StartDeployment, version: str) -> None:
    deployment = start_deployment(version)
    table = assessed(deployment)
    for name, agent_id in deployment.agents.items():
        one = table[name]
        assert one.agent.profile is not None
        for kind in KINDS:
            found = observed_ability(
                deployment.post, deployment.take_received, agent_id, kind, one.agent.profile.provider
            )
            assert found == ability_as_json(one.abilities[kind]), (name, kind)


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
def test_an_upgrade_is_promised_where_it_gains(start_deployment: StartDeployment, version: str) -> None:
    for name, one in assessed(start_deployment(version)).items():
        gains = [set(remedy.gains) for remedy in one.remedies if remedy.kind == "upgrade"]
        arriving = {kind for kind, ability in one.abilities.items() if ability.arrives}
        assert len(gains) <= 1
        assert all(gain and not gain & arriving for gain in gains), name
        if name in ("flow-d", "conv-f"):
            assert "image" in gains[0]
            assert [remedy.action for remedy in one.remedies] == [upgrade_command(one.agent.id)]
        if name in ("flow-a", "flow-b", "fc-bedrock_upgraded", "per-bedrock_tutorial"):
            assert not gains


def test_models_and_their_connectors(deployment: Deployment) -> None:
    resources = deployment.cluster.core.resources
    connector = connector_body("x", CLASSIC["d"], deployment.cluster.llm_url)
    inside = resources.register_model({"name": "in", "function_name": "remote", "connector": connector}, True)
    tool = {"type": "MLModelTool", "parameters": {"model_id": inside["model_id"], "prompt": "${parameters.question}"}}
    deployment.register({"name": "inside", "type": "flow", "tools": [tool]})
    shared = resources.models[next(iter(resources.models))]["connector_id"]
    resources.register_model({"name": "two", "function_name": "remote", "connector_id": shared}, True)
    table = assessed(deployment)
    (own,) = table["inside"].models
    assert (own.id, own.connector_id, own.shared_by, own.template) == (inside["model_id"], "", 1, "text")
    (use,) = table["flow-a"].models
    assert (use.connector_id, use.shared_by, use.template) == (shared, 2, "messages")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "messages") for name in ("a", "b", "e2", "h", "bedrock_messages", "gemini_contents")),
        *((name, "text") for name in ("c", "d", "e", "f", "g", "i", "bedrock_tutorial", "openai_tutorial")),
        *((name, "turn") for name in ("bedrock_upgraded", "openai_upgraded")),
    ],
)
def test_template_kinds(deployment: Deployment, name: str, kind: str) -> None:
    template = {**CLASSIC, **MODERN}[name]
    one = assessed(deployment, deployment.agents["flow-a"])["flow-a"]
    (use,), profile = one.models, one.agent.profile
    assert profile is not None
    assert use.template == "messages"
    assert template_kind(replace(profile.models[0].connector, request_body=template.body)) == kind


def test_other_template_kinds(deployment: Deployment) -> None:
    profile = assessed(deployment, deployment.agents["flow-a"])["flow-a"].agent.profile
    assert profile is not None
    connector = profile.models[0].connector
    bodies = {
        "content": '{"messages":[{"role":"user","content":${parameters.content}}]}',
        "other": '{"x":${parameters.x}}',
    }
    for kind, body in bodies.items():
        assert template_kind(replace(connector, request_body=body)) == kind


def test_agents_that_differ_in_names_and_ids_only_are_judged_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = deployment.cluster.core.resources
    for number in range(30):
        connector = connector_body("x", CLASSIC["d"], deployment.cluster.llm_url)
        model = resources.register_model(
            {"name": f"m{number}", "function_name": "remote", "connector": connector}, True
        )
        tool = {"model_id": model["model_id"], "prompt": "Asked: ${parameters.question}"}
        tag = {"mlc_gateway_registration": f"{number:032x}"}
        body = {"name": f"same-{number}", "type": "flow", "tools": [{"type": "MLModelTool", "parameters": tool}]}
        deployment.register({**body, "parameters": tag})
    judged = []
    monkeypatch.setattr("gateway.migrate.assess.abilities", lambda *given: judged.append(given) or abilities(*given))
    table = assessed(deployment, *(id_ for id_, doc in resources.agents.items() if doc["name"].startswith("same-")))
    assert len(table) == 30
    assert len(judged) == 2  # as it is, and as an upgrade would make it
    assert {json.dumps({k: a.strategy or a.code for k, a in one.abilities.items()}) for one in table.values()} == {
        json.dumps({k: a.strategy or a.code for k, a in table["same-0"].abilities.items()})
    }
    assert {one.remedies[0].action for one in table.values()} == {
        upgrade_command(one.agent.id) for one in table.values()
    }


def test_a_rule_names_the_provider_and_describes(deployment: Deployment) -> None:
    agent_id = deployment.agents["flow-c"]
    without = assessed(deployment, agent_id)["flow-c"]
    assert without.abilities["image"].code == "PROVIDER_UNKNOWN"
    assert [(remedy.kind, remedy.action) for remedy in without.remedies] == [("agent", COMPLETES_TEXT)]
    described = assessed(deployment, deployment.agents["flow-d"], rules=(Rule("flow-d", None, "describe"),))["flow-d"]
    assert described.abilities["image"].arrives
    assert "MEDIA_DESCRIBED" in described.abilities["image"].notices


def test_routes_are_shown_at_both_ends(deployment: Deployment) -> None:
    old, new = deployment.agents["flow-d"], deployment.agents["flow-a"]
    targets = [RouteTarget(old, weight=3), RouteTarget(new, weight=1), RouteTarget("other", "new")]
    routes = read_routes(Agents(routes=[AgentRoute(old, targets)], aliases={"elsewhere": new}))
    table = assessed(deployment, routes=routes)
    assert (table["flow-d"].route, table["flow-d"].led_from) == (routes[old], ())
    assert (table["flow-a"].route, table["flow-a"].led_from) == (None, ("elsewhere", old))


def test_unified_agents(start_deployment: StartDeployment) -> None:
    deployment = start_deployment("3.4.0")
    profile = assessed(deployment)["fc-bedrock_upgraded"].agent.profile
    assert profile is not None
    later = replace(profile, version=(3, 6, 0))
    first = replace(later, generation=Generation.UNIFIED_V1, model_provider="bedrock/converse")
    second = replace(first, generation=Generation.UNIFIED_V2, type="conversational_v2")
    on, off = (abilities(replace(first, unified_api=api))["text"].strategy for api in (True, False))
    assert (on, off == "native", off == "") == ("native", False, False)
    assert {ability.strategy for ability in abilities(replace(second, unified_api=True)).values()} == {"native"}
    assert {ability.code for ability in abilities(replace(second, unified_api=False)).values()} == {"UNIFIED_API_OFF"}


@pytest.mark.parametrize("provider", ["", *registry.names()])
def test_samples_are_in_formats_the_provider_takes(provider: str) -> None:
    for kind in ("image", "document", "video"):
        source = sample(kind, provider)[1]["source"]
        if provider:
            taken = registry.provider(provider).capabilities.media.get(kind, {}).get("base64", ())  # type: ignore[attr-defined]
            assert not taken or source["format"] in taken
    with pytest.raises(ValueError, match="no kind of input"):
        sample("smell", provider)
