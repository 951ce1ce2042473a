from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.migrate.cleanup import Leftover, leftovers, remove
from gateway.register.documents import REGISTRATION_PARAMETER
from gateway.register.quick import QUICK_PARAMETER
from gateway.simulator.fixtures import CLASSIC, MODERN, connector_body
from gateway.simulator.settings import MCP_SWITCH
from tests.migrate.conftest import Command, Deployment, StartDeployment
from tests.migrate.test_connection import connected

TAG, OTHER = "0123456789abcdef" * 2, "f" * 32


@pytest.fixture(params=["2.19.0", "3.4.0"])
def deployment(request: pytest.FixtureRequest, start_deployment: StartDeployment) -> Deployment:
    return start_deployment(request.param)


def model(deployment: Deployment, description: str, **more: Any) -> str:
    """A deployed model with a connector inside it."""
    template = MODERN["bedrock_upgraded"] if deployment.version.startswith("3.") else CLASSIC["a"]
    connector = connector_body("x", template, deployment.cluster.llm_url)
    body = {"name": "made", "function_name": "remote", "description": description, "connector": connector, **more}
    made: str = deployment.cluster.core.resources.register_model(body, True)["model_id"]
    return made


def connector(deployment: Deployment, description: str) -> str:
    body = {**connector_body("mcp", CLASSIC["d"], deployment.cluster.llm_url), "description": description}
    made: str = deployment.cluster.core.resources.create_connector(body)["connector_id"]
    return made


def agent(deployment: Deployment, model_id: str, **parameters: Any) -> str:
    tool = {"type": "MLModelTool", "parameters": {"model_id": model_id, "prompt": "${parameters.question}"}}
    return deployment.register({"name": "made", "type": "flow", "tools": [tool], "parameters": parameters})


def age(deployment: Deployment, seconds: float = 3600) -> None:
    """Lets everything on the cluster be so much older."""
    resources = deployment.cluster.core.resources
    for documents in (resources.agents, resources.models, resources.groups, resources.connectors):
        for document in documents.values():
            for name in ("created_time", "last_updated_time"):
                if name in document:
                    document[name] -= int(seconds * 1000)


def group_of(deployment: Deployment, model_id: str) -> str:
    """The group that the cluster has made with a model. It has the model's description."""
    group_id: str = deployment.cluster.core.resources.models[model_id]["model_group_id"]
    return group_id


def left(deployment: Deployment, **options: Any) -> dict[str, str]:
    """Kind and id → why it is a leftover."""
    return {f"{one.kind} {one.id}": one.reason for one in leftovers(connected("--url", deployment.url), **options)}


def removed(deployment: Deployment, found: list[Leftover] | None = None) -> list[Leftover]:
    cluster = connected("--url", deployment.url)
    return list(remove(cluster, leftovers(cluster) if found is None else found, sleep=lambda _: None))


def everything(deployment: Deployment) -> set[str]:
    resources = deployment.cluster.core.resources
    return {*resources.agents, *resources.models, *resources.groups, *resources.connectors}


def test_a_cluster_without_leftovers(deployment: Deployment, command: Command) -> None:
    age(deployment)
    before = everything(deployment)
    assert left(deployment) == {}
    assert command("cleanup", "--url", deployment.url, "--apply")[:2] == (
        0,
        '{\n  "applied": true,\n  "leftovers": []\n}\n',
    )
    assert everything(deployment) == before


def test_what_is_tagged_and_unused_is_left_behind(deployment: Deployment) -> None:
    lonely, mcp = model(deployment, f"for an agent, mlc-gateway {TAG}"), connector(deployment, f"mlc-gateway {OTHER}")
    used = model(deployment, f"mlc-gateway {TAG}")
    used_mcp = connector(deployment, f"mlc-gateway {TAG}")
    if deployment.version.startswith("3."):
        deployment.cluster.core.settings.change({"persistent": {MCP_SWITCH: True}})
    parameters = {REGISTRATION_PARAMETER: TAG, "mcp_connectors": json.dumps([{"mcp_connector_id": used_mcp}])}
    agent(deployment, used, **parameters)
    for untagged in ("mlc-gateway", f"mlc-gateway {TAG[:-1]}", f"mlc-gateway {TAG} was here", f"xmlc-gateway {TAG}"):
        model(deployment, untagged)
        connector(deployment, untagged)
    by_model = connector(deployment, f"mlc-gateway {TAG}")
    deployment.cluster.core.resources.register_model(
        {"name": "mine", "function_name": "remote", "connector_id": by_model}, True
    )
    age(deployment)
    expected = {f"models {lonely}": "no agent uses it", f"connectors {mcp}": "no agent and no model uses it"}
    assert left(deployment) == expected
    before = everything(deployment)
    assert [(one.kind, one.id, one.tag, one.outcome) for one in removed(deployment)] == [
        ("models", lonely, TAG, "removed"),
        ("connectors", mcp, OTHER, "removed"),
    ]
    assert before - everything(deployment) == {lonely, mcp}
    assert left(deployment) == {}


def test_agents_without_their_model_and_of_quick_executes(deployment: Deployment) -> None:
    gone, quick_model, plain = (model(deployment, f"mlc-gateway {TAG}") for _ in range(3))
    broken = agent(deployment, gone, **{REGISTRATION_PARAMETER: TAG})
    quick = agent(deployment, quick_model, **{REGISTRATION_PARAMETER: OTHER, QUICK_PARAMETER: "true"})
    untagged = agent(deployment, gone)
    whole = agent(deployment, plain, **{REGISTRATION_PARAMETER: TAG})
    resources = deployment.cluster.core.resources
    resources.models.pop(gone)
    age(deployment)
    assert left(deployment) == {
        f"agents {broken}": f"its model {gone} does not exist any more",
        f"agents {quick}": "it was made for a quick execute",
        f"models {quick_model}": "no agent uses it",
    }
    assert {(one.id, one.outcome) for one in removed(deployment)} == {
        (id_, "removed") for id_ in (broken, quick, quick_model)
    }
    assert {untagged, whole} <= set(resources.agents)
    assert plain in resources.models


def test_what_is_young_may_belong_to_a_registration_under_way(deployment: Deployment) -> None:
    model_id = model(deployment, f"mlc-gateway {TAG}")
    both = {f"models {model_id}", f"model_groups {group_of(deployment, model_id)}"}
    assert left(deployment) == {}
    assert left(deployment, older_than=0).keys() == both
    age(deployment, 599)
    assert left(deployment) == {}
    age(deployment, 2)
    assert left(deployment).keys() == both


def test_a_model_group_goes_with_its_last_model(deployment: Deployment) -> None:
    groups = deployment.cluster.core.resources
    tagged = {"description": f"Model of an agent, mlc-gateway {TAG}"}
    empty = groups.register_group({"name": "empty", **tagged})["model_group_id"]
    shared = groups.register_group({"name": "shared", **tagged})["model_group_id"]
    groups.register_group({"name": "mine", "description": "a group of somebody else"})
    lonely = model(deployment, f"mlc-gateway {TAG}", name="lonely")
    model(deployment, f"mlc-gateway {TAG}", name="one of two", model_group_id=shared)
    model(deployment, "mine", name="two of two", model_group_id=shared)
    age(deployment)
    found = left(deployment)
    assert {key: reason for key, reason in found.items() if "group" in key} == {
        f"model_groups {empty}": "no model is in it",
        f"model_groups {group_of(deployment, lonely)}": "its models are leftovers",
    }
    before = everything(deployment)
    assert {one.outcome for one in removed(deployment)} == {"removed"}
    assert before - everything(deployment) == {key.partition(" ")[2] for key in found}
    assert shared in groups.groups


def test_a_model_group_stays_if_its_model_does(deployment: Deployment) -> None:
    model_id = model(deployment, f"mlc-gateway {TAG}")
    age(deployment)
    deployment.cluster.refusals[f"DELETE /_plugins/_ml/models/{model_id}"] = 403
    assert {one.kind: one.outcome for one in removed(deployment)} == {"models": "failed", "model_groups": "failed"}
    assert group_of(deployment, model_id) in deployment.cluster.core.resources.groups


def test_what_came_into_use_meanwhile_stays(deployment: Deployment) -> None:
    first, second, third = (model(deployment, f"mlc-gateway {TAG}") for _ in range(3))
    age(deployment)
    found = leftovers(connected("--url", deployment.url))
    assert {one.id for one in found} == {first, second, third, group_of(deployment, first)}
    agent(deployment, first)
    deployment.cluster.core.resources.models[second]["description"] = "mine now"
    outcomes = {one.id: one.outcome for one in removed(deployment, found)}
    assert outcomes == {first: "kept", second: "kept", third: "removed", group_of(deployment, first): "kept"}
    assert {first, second} <= set(deployment.cluster.core.resources.models)


def test_what_can_not_be_removed_is_told(deployment: Deployment, command: Command) -> None:
    model_id, mcp = model(deployment, f"mlc-gateway {TAG}"), connector(deployment, f"mlc-gateway {TAG}")
    age(deployment)
    deployment.cluster.refusals[f"DELETE /_plugins/_ml/connectors/{mcp}"] = 403
    status, out, err = command("cleanup", "--url", deployment.url, "--apply")
    found = {one["id"]: one for one in json.loads(out)["leftovers"]}
    assert (status, err) == (1, "")
    assert found[model_id]["outcome"] == "removed"
    assert (found[mcp]["outcome"], found[mcp]["error"][:4]) == ("failed", "403:")
    assert deployment.cluster.core.resources.connectors.get(mcp)


def test_what_was_removed_before_the_cluster_failed_is_told(deployment: Deployment, command: Command) -> None:
    removed, mcp = model(deployment, f"mlc-gateway {TAG}"), connector(deployment, f"mlc-gateway {TAG}")
    age(deployment)
    resources = deployment.cluster.core.resources

    def delete() -> dict[str, str]:
        deployment.cluster.refusals["POST /_plugins/_ml/agents/_search"] = 503
        resources.models.pop(removed)
        return {}

    deployment.cluster.refusals[f"DELETE /_plugins/_ml/models/{removed}"] = delete
    status, out, err = command("cleanup", "--url", deployment.url, "--apply")
    assert (status, mcp in resources.connectors) == (2, True)
    assert [(one["id"], one["outcome"]) for one in json.loads(out)["leftovers"]] == [(removed, "removed")]
    assert "The cluster could not search its agents: 503" in err


def test_without_apply_nothing_is_written(deployment: Deployment, command: Command) -> None:
    model_id = model(deployment, f"mlc-gateway {TAG}")
    age(deployment)
    before = everything(deployment)
    status, out, _ = command("cleanup", "--url", deployment.url)
    report = json.loads(out)
    assert (status, report["applied"]) == (0, False)
    one, group = report["leftovers"]
    assert (group["kind"], group["id"]) == ("model_groups", group_of(deployment, model_id))
    assert set(one) == {"kind", "id", "name", "tag", "age_seconds", "reason"}
    assert (one["kind"], one["id"], one["tag"]) == ("models", model_id, TAG)
    assert everything(deployment) == before
    assert not [call for call in deployment.cluster.calls if "_search" not in call and not call.startswith("GET ")]


@pytest.mark.parametrize("kind", ["agents", "models", "model_groups", "connectors"])
def test_what_can_not_be_searched_is_never_taken_for_unused(
    deployment: Deployment, command: Command, kind: str
) -> None:
    model(deployment, f"mlc-gateway {TAG}")
    age(deployment)
    deployment.cluster.refusals[f"POST /_plugins/_ml/{kind}/_search"] = 403
    before = everything(deployment)
    status, out, err = command("cleanup", "--url", deployment.url, "--apply")
    assert (status, out, everything(deployment)) == (2, "", before)
    assert f"cluster:admin/opensearch/ml/{kind}/search" in err


def test_a_bad_age_is_refused(command: Command) -> None:
    for minutes in ("-1", "soon", "inf", "nan"):
        status, out, err = command("cleanup", "--older-than", minutes)
        assert (status, out) == (2, "")
        assert "Invalid value for '--older-than'" in err
