from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.migrate.cleanup import Leftover, leftovers, remove
from gateway.register.documents import REGISTRATION_PARAMETER
from gateway.register.quick import QUICK_PARAMETER
from gateway.simulator.fixtures import CLASSIC, MODERN, connector_body
from gateway.simulator.settings import MCP_SWITCH
from tests.migrate.conftest import Command, Place, StartPlace
from tests.migrate.test_connection import connected

TAG, OTHER = "0123456789abcdef" * 2, "f" * 32


@pytest.fixture(params=["2.19.0", "3.4.0"])
def place(request: pytest.FixtureRequest, start_place: StartPlace) -> Place:
    return start_place(request.param)


def model(place: Place, description: str, **more: Any) -> str:
    """A deployed model with a connector inside it."""
    template = MODERN["bedrock_upgraded"] if place.version.startswith("3.") else CLASSIC["a"]
    connector = connector_body("x", template, place.cluster.llm_url)
    body = {"name": "made", "function_name": "remote", "description": description, "connector": connector, **more}
    made: str = place.cluster.core.resources.register_model(body, True)["model_id"]
    return made


def connector(place: Place, description: str) -> str:
    body = {**connector_body("mcp", CLASSIC["d"], place.cluster.llm_url), "description": description}
    made: str = place.cluster.core.resources.create_connector(body)["connector_id"]
    return made


def agent(place: Place, model_id: str, **parameters: Any) -> str:
    tool = {"type": "MLModelTool", "parameters": {"model_id": model_id, "prompt": "${parameters.question}"}}
    return place.register({"name": "made", "type": "flow", "tools": [tool], "parameters": parameters})


def age(place: Place, seconds: float = 3600) -> None:
    """Lets everything on the cluster be so much older."""
    resources = place.cluster.core.resources
    for documents in (resources.agents, resources.models, resources.connectors):
        for document in documents.values():
            for name in ("created_time", "last_updated_time"):
                if name in document:
                    document[name] -= int(seconds * 1000)


def left(place: Place, **options: Any) -> dict[str, str]:
    """Kind and id → why it is a leftover."""
    return {f"{one.kind} {one.id}": one.reason for one in leftovers(connected("--url", place.url), **options)}


def removed(place: Place, found: list[Leftover] | None = None) -> list[Leftover]:
    cluster = connected("--url", place.url)
    return list(remove(cluster, leftovers(cluster) if found is None else found, sleep=lambda _: None))


def everything(place: Place) -> set[str]:
    resources = place.cluster.core.resources
    return {*resources.agents, *resources.models, *resources.connectors}


def test_a_cluster_without_leftovers(place: Place, command: Command) -> None:
    age(place)
    before = everything(place)
    assert left(place) == {}
    assert command("cleanup", "--url", place.url, "--apply")[:2] == (0, '{\n  "applied": true,\n  "leftovers": []\n}\n')
    assert everything(place) == before


def test_what_is_tagged_and_unused_is_left_behind(place: Place) -> None:
    lonely, mcp = model(place, f"for an agent, mlc-gateway {TAG}"), connector(place, f"mlc-gateway {OTHER}")
    used = model(place, f"mlc-gateway {TAG}")
    used_mcp = connector(place, f"mlc-gateway {TAG}")
    if place.version.startswith("3."):
        place.cluster.core.settings.change({"persistent": {MCP_SWITCH: True}})
    parameters = {REGISTRATION_PARAMETER: TAG, "mcp_connectors": json.dumps([{"mcp_connector_id": used_mcp}])}
    agent(place, used, **parameters)
    for untagged in ("mlc-gateway", f"mlc-gateway {TAG[:-1]}", f"mlc-gateway {TAG} was here", f"xmlc-gateway {TAG}"):
        model(place, untagged)
        connector(place, untagged)
    by_model = connector(place, f"mlc-gateway {TAG}")
    place.cluster.core.resources.register_model(
        {"name": "mine", "function_name": "remote", "connector_id": by_model}, True
    )
    age(place)
    expected = {f"models {lonely}": "no agent uses it", f"connectors {mcp}": "no agent and no model uses it"}
    assert left(place) == expected
    before = everything(place)
    assert [(one.kind, one.id, one.tag, one.outcome) for one in removed(place)] == [
        ("models", lonely, TAG, "removed"),
        ("connectors", mcp, OTHER, "removed"),
    ]
    assert before - everything(place) == {lonely, mcp}
    assert left(place) == {}


def test_agents_without_their_model_and_of_quick_executes(place: Place) -> None:
    gone, quick_model, plain = (model(place, f"mlc-gateway {TAG}") for _ in range(3))
    broken = agent(place, gone, **{REGISTRATION_PARAMETER: TAG})
    quick = agent(place, quick_model, **{REGISTRATION_PARAMETER: OTHER, QUICK_PARAMETER: "true"})
    untagged = agent(place, gone)
    whole = agent(place, plain, **{REGISTRATION_PARAMETER: TAG})
    resources = place.cluster.core.resources
    resources.models.pop(gone)
    age(place)
    assert left(place) == {
        f"agents {broken}": f"its model {gone} does not exist any more",
        f"agents {quick}": "it was made for a quick execute",
        f"models {quick_model}": "no agent uses it",
    }
    assert {(one.id, one.outcome) for one in removed(place)} == {
        (id_, "removed") for id_ in (broken, quick, quick_model)
    }
    assert {untagged, whole} <= set(resources.agents)
    assert plain in resources.models


def test_what_is_young_may_belong_to_a_registration_under_way(place: Place) -> None:
    model(place, f"mlc-gateway {TAG}")
    assert left(place) == {}
    assert len(left(place, older_than=0)) == 1
    age(place, 599)
    assert left(place) == {}
    age(place, 2)
    assert len(left(place)) == 1


def test_what_came_into_use_meanwhile_stays(place: Place) -> None:
    first, second, third = (model(place, f"mlc-gateway {TAG}") for _ in range(3))
    age(place)
    found = leftovers(connected("--url", place.url))
    assert {one.id for one in found} == {first, second, third}
    agent(place, first)
    place.cluster.core.resources.models[second]["description"] = "mine now"
    outcomes = {one.id: one.outcome for one in removed(place, found)}
    assert outcomes == {first: "kept", second: "kept", third: "removed"}
    assert {first, second} <= set(place.cluster.core.resources.models)


def test_what_can_not_be_removed_is_told(place: Place, command: Command) -> None:
    model_id, mcp = model(place, f"mlc-gateway {TAG}"), connector(place, f"mlc-gateway {TAG}")
    age(place)
    place.cluster.refusals[f"DELETE /_plugins/_ml/connectors/{mcp}"] = 403
    status, out, err = command("cleanup", "--url", place.url, "--apply")
    found = {one["id"]: one for one in json.loads(out)["leftovers"]}
    assert (status, err) == (1, "")
    assert found[model_id]["outcome"] == "removed"
    assert (found[mcp]["outcome"], found[mcp]["error"][:4]) == ("failed", "403:")
    assert place.cluster.core.resources.connectors.get(mcp)


def test_without_apply_nothing_is_written(place: Place, command: Command) -> None:
    model_id = model(place, f"mlc-gateway {TAG}")
    age(place)
    before = everything(place)
    status, out, _ = command("cleanup", "--url", place.url)
    report = json.loads(out)
    assert (status, report["applied"]) == (0, False)
    (one,) = report["leftovers"]
    assert set(one) == {"kind", "id", "name", "tag", "age_seconds", "reason"}
    assert (one["kind"], one["id"], one["tag"]) == ("models", model_id, TAG)
    assert everything(place) == before
    assert not [asked for asked in place.cluster.asked if "_search" not in asked and not asked.startswith("GET ")]


@pytest.mark.parametrize("kind", ["agents", "models", "connectors"])
def test_what_can_not_be_searched_is_never_taken_for_unused(place: Place, command: Command, kind: str) -> None:
    model(place, f"mlc-gateway {TAG}")
    age(place)
    place.cluster.refusals[f"POST /_plugins/_ml/{kind}/_search"] = 403
    before = everything(place)
    status, out, err = command("cleanup", "--url", place.url, "--apply")
    assert (status, out, everything(place)) == (2, "", before)
    assert f"cluster:admin/opensearch/ml/{kind}/search" in err


def test_a_bad_age_is_refused(command: Command) -> None:
    for minutes in ("-1", "soon", "inf", "nan"):
        status, out, err = command("cleanup", "--older-than", minutes)
        assert (status, out) == (2, "")
        assert "Invalid value for '--older-than'" in err
