"""`_search` of agents, models and connectors, as on real clusters (2.19.0 recorded; 3.6.0 probed)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator.core import ClusterCore
from gateway.simulator.handlers import Pause, Request
from gateway.simulator.rest import Response, respond
from gateway.simulator.store import NODE

ML = "/_plugins/_ml"
TAG = "0123456789abcdef0123456789abcdef"
RECORDED = Path(__file__).parent.parent / "recordings"


def ask(core: ClusterCore, method: str, path: str, body: Any = None) -> Response:
    text = b"" if body is None else json.dumps(body).encode()
    serve = respond(core, Request(method, path, {"content-type": "application/json"}, text))
    try:
        while isinstance(next(serve), Pause):
            pass
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a model was called")


def reason(response: Response) -> str:
    return str(response.body["error"]["reason"])


CONNECTOR = {
    "name": "conn",
    "version": "1",
    "protocol": "http",
    "description": f"zz mlc-gateway {TAG}",
    "parameters": {"model": "m"},
    "credential": {"key": "secret"},
    "actions": [{"action_type": "predict", "method": "POST", "url": "http://127.0.0.1:1/x", "request_body": "{}"}],
}


@pytest.fixture(params=["2.19.0", "3.4.0"])
def core(request: pytest.FixtureRequest) -> ClusterCore:
    """One connector, a model on it, a model with one inside, three agents; the clock is `core.resources.clock`."""
    core = ClusterCore(request.param)
    made = core.resources.create_connector(CONNECTOR)
    model = {"name": "model", "function_name": "remote", "description": f"Some words. mlc-gateway {TAG}", **made}
    inner = {"name": "inner", "function_name": "remote", "description": "mlc-gateway " + "f" * 32}
    core.resources.register_model(model, deploy=True)
    core.resources.register_model({**inner, "connector": CONNECTOR}, deploy=True)
    first, second = core.resources.models
    for number in range(3):
        agent_id = core.resources.register_agent(
            {
                "name": f"zz Probe-Agent {number}",
                "type": "conversational",
                "description": "it's e.g. 3.14 a:b foo_bar x/y-z hello world",
                "app_type": "My App",
                "llm": {"model_id": first, "parameters": {"n": 5}},
                "parameters": {"mlc_gateway_registration": TAG, "k": "v w", "deep": {"x": 1}},
                "tools": [{"type": "MLModelTool", "name": "t", "parameters": {"model_id": second}}],
            }
        )["agent_id"]
        core.resources.agents[agent_id]["created_time"] = 1000 + number
    return core


def found(core: ClusterCore, query: Any, kind: str = "agents", **more: Any) -> list[str]:
    response = ask(core, "POST", f"{ML}/{kind}/_search", {"query": query, **more})
    assert response.status == 200, response
    return [hit["_id"] for hit in response.body["hits"]["hits"]]


# The number of agents that a real 3.6.0 finds for each query.
QUERIES: list[tuple[dict[str, Any], int]] = [
    ({"match_all": {}}, 3),
    ({"term": {"parameters.mlc_gateway_registration": TAG}}, 3),
    ({"match": {"parameters.mlc_gateway_registration": TAG}}, 3),
    ({"term": {"parameters": TAG}}, 3),
    ({"term": {"parameters.k": "v"}}, 0),
    ({"term": {"parameters.k": "v w"}}, 3),
    ({"match": {"parameters.k": "v"}}, 0),
    ({"match_phrase": {"parameters.k": "v w"}}, 3),
    ({"term": {"parameters.deep": '{"x":1}'}}, 3),
    ({"term": {"llm.parameters.n": "5"}}, 3),
    ({"term": {"llm.parameters.n": 5}}, 3),
    ({"term": {"tools.type": "MLModelTool"}}, 3),
    ({"term": {"tools.parameters": "t"}}, 0),
    ({"term": {"tools": "MLModelTool"}}, 3),
    ({"exists": {"field": "parameters.mlc_gateway_registration"}}, 3),
    ({"exists": {"field": "parameters.nope"}}, 0),
    ({"exists": {"field": "parameters"}}, 3),
    ({"exists": {"field": "tools.parameters"}}, 0),
    ({"exists": {"field": "memory"}}, 0),
    ({"exists": {"field": "nope"}}, 0),
    ({"term": {"name": "zz Probe-Agent 1"}}, 0),
    ({"term": {"name": "probe"}}, 3),
    ({"match": {"name": "PROBE nothing"}}, 3),
    ({"match_phrase": {"description": "Hello World"}}, 3),
    ({"match_phrase": {"description": "world hello"}}, 0),
    ({"match": {"description": "it's"}}, 3),
    ({"match": {"description": "it"}}, 0),
    ({"match": {"description": "e.g"}}, 3),
    ({"match": {"description": "3.14"}}, 3),
    ({"match": {"description": "a"}}, 0),
    ({"match": {"description": "a:b"}}, 3),
    ({"match": {"description": "foo"}}, 0),
    ({"match": {"description": "foo_bar"}}, 3),
    ({"match": {"description": "x/y-z"}}, 3),
    ({"term": {"type": "conversational"}}, 3),
    ({"term": {"type": "CONVERSATIONAL"}}, 0),
    ({"term": {"is_hidden": False}}, 3),
    ({"term": {"is_hidden": "false"}}, 3),
    ({"bool": {"should": [{"term": {"type": "x"}}]}}, 0),
    ({"bool": {"should": [{"term": {"type": "x"}}, {"match_all": {}}]}}, 3),
]


@pytest.mark.parametrize(("query", "number"), QUERIES, ids=lambda value: json.dumps(value)[:70])
def test_finds_what_a_real_cluster_found(core: ClusterCore, query: dict[str, Any], number: int) -> None:
    assert len(found(core, query)) == number


def test_models_and_connectors_are_found(core: ClusterCore) -> None:
    (connector_id,) = core.resources.connectors
    with_connector, inner = core.resources.models
    assert found(core, {"match_phrase": {"description": f"mlc-gateway {TAG}"}}, "models") == [with_connector]
    assert found(core, {"match": {"description": "mlc-gateway"}}, "models") == [with_connector, inner]
    assert found(core, {"match": {"connector_id": connector_id}}, "models")[0] == with_connector
    assert found(core, {"term": {"model_state": "DEPLOYED"}}, "models") == [with_connector, inner]
    assert found(core, {"term": {"description": TAG}}, "connectors") == [connector_id]
    assert len(found(core, {"term": {"tools.parameters.model_id": inner}})) == 3
    assert found(core, {"ids": {"values": [connector_id]}}, "connectors") == [connector_id]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_whole_answer(core: ClusterCore, method: str) -> None:
    first = next(iter(core.resources.agents))
    body = {"query": {"ids": {"values": [first]}}}
    response = ask(core, method, f"{ML}/agents/_search", body)
    ids = {"_index": ".plugins-ml-agent", "_id": first, "_version": 1, "_seq_no": 0, "_primary_term": 1}
    assert response.body == {
        "took": 1,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {
            "total": {"value": 1, "relation": "eq"},
            "max_score": 1.0,
            "hits": [{**ids, "_score": 1.0, "_source": core.resources.agents[first]}],
        },
    }


@pytest.mark.parametrize("kind", ["agents", "models", "connectors"])
def test_hits_have_the_recorded_keys(kind: str) -> None:
    """The searches have the same keys in response, hit and source as those recorded on 2.19.0."""
    recorded = {}
    for line in (RECORDED / "2.19.0" / "03_get_back.jsonl").read_text().rstrip("\n").split("\n"):
        exchange = json.loads(line)
        recorded[exchange["name"]] = exchange["answer"]
    expected = recorded[f"search_{kind}_post"]
    core = ClusterCore("2.19.0")
    for hit in expected["hits"]["hits"]:
        _restore(core, kind, hit)
    actual = ask(core, "POST", f"{ML}/{kind}/_search", {"query": {"match_all": {}}, "size": 3}).body
    for hit in [*expected["hits"]["hits"], *actual["hits"]["hits"]]:
        for varying in ("_version", "_seq_no", "_primary_term"):
            assert isinstance(hit.pop(varying), int)
    expected["took"], expected["hits"]["total"]["value"] = 1, 3
    assert actual == expected


def _restore(core: ClusterCore, kind: str, hit: dict[str, Any]) -> None:
    """Register a recorded document with its recorded id and times."""
    source, resources = hit["_source"], core.resources
    times = {name: source[name] for name in ("created_time", "last_updated_time")}
    if kind == "agents":
        made = resources.agents.pop(resources.register_agent(source)["agent_id"])
        resources.agents[hit["_id"]] = {**made, **times}
    elif kind == "connectors":
        made = resources.connectors.pop(
            resources.create_connector({**source, "credential": {"key": "secret"}})["connector_id"]
        )
        resources.connectors[hit["_id"]] = {**made, **times}
    else:
        resources.connectors[source["connector_id"]] = dict(CONNECTOR)
        body = {name: value for name, value in source.items() if name != "model_group_id"}
        made = resources.models.pop(resources.register_model(body, deploy=True)["model_id"])
        recorded = {name: source[name] for name in ("model_version", "model_group_id")}
        resources.models[hit["_id"]] = {**made, **times, **recorded}
        resources.deploy_model(hit["_id"])
        source["last_deployed_time"], source["planning_worker_nodes"] = source["last_updated_time"], [NODE]


def test_no_credential_is_ever_shown(core: ClusterCore) -> None:
    for kind in ("connectors", "models"):
        for body in ({"query": {"match_all": {}}}, {"_source": ["credential", "connector.credential", "connector"]}):
            response = ask(core, "POST", f"{ML}/{kind}/_search", body)
            assert response.status == 200
            assert "secret" not in json.dumps(response.body)


def test_source_filter(core: ClusterCore) -> None:
    first, agent = next(iter(core.resources.agents.items()))

    def source(names: list[str]) -> Any:
        body = {"query": {"ids": {"values": [first]}}, "_source": names}
        return ask(core, "POST", f"{ML}/agents/_search", body).body["hits"]["hits"][0]["_source"]

    assert source(["name"]) == {"name": agent["name"]}
    assert source(["name", "llm.model_id"]) == {"name": agent["name"], "llm": {"model_id": agent["llm"]["model_id"]}}
    assert source(["nope"]) == {}


def test_pages(core: ClusterCore) -> None:
    one, two, three = core.resources.agents
    every: dict[str, Any] = {"match_all": {}}
    pages: list[dict[str, Any]] = [{"size": 2}, {"from": 2, "size": 2}]
    assert [found(core, every, **page) for page in pages] == [[one, two], [three]]
    assert found(core, every, sort=[{"_seq_no": "asc"}], search_after=[0]) == [two, three]
    body = {"sort": [{"_seq_no": "asc"}], "size": 1, "_source": ["name"], "track_total_hits": True}
    hits = ask(core, "POST", f"{ML}/agents/_search", body).body["hits"]
    ids = {"_index": ".plugins-ml-agent", "_id": one, "_version": 1, "_seq_no": 0, "_primary_term": 1}
    hit = {**ids, "_score": None, "_source": {"name": "zz Probe-Agent 0"}, "sort": [0]}
    assert hits == {"total": {"value": 3, "relation": "eq"}, "max_score": None, "hits": [hit]}


def test_a_document_that_is_written_again_moves_behind_all_others(core: ClusterCore) -> None:
    """Sorted by `_seq_no`, as a real 3.6.0 sorts; each index counts its own writes."""
    one, two = core.resources.models
    every: dict[str, Any] = {"match_all": {}}
    assert found(core, every, "models", sort=[{"_seq_no": "asc"}]) == [one, two]
    core.resources.update_model(one, {"name": "again"})
    body = {"query": every, "sort": [{"_seq_no": "asc"}]}
    hits = ask(core, "POST", f"{ML}/models/_search", body).body["hits"]["hits"]
    assert [(hit["_id"], hit["_seq_no"], hit["sort"]) for hit in hits] == [(two, 1, [1]), (one, 2, [2])]
    assert found(core, every, "models", sort=[{"_seq_no": "asc"}], search_after=[1]) == [one]


def test_until_the_refresh_a_document_has_the_number_of_its_write_before(core: ClusterCore) -> None:
    now = 100.0
    core.resources.clock = lambda: now
    core.resources.refresh_seconds = 2.0
    one, two = core.resources.models
    core.resources.update_model(one, {"name": "again"})
    in_order = {"sort": [{"_seq_no": "asc"}]}
    assert found(core, {"match_all": {}}, "models", **in_order) == [one, two]
    now = 102.0
    assert found(core, {"match_all": {}}, "models", **in_order) == [two, one]


@pytest.mark.parametrize("name", ["scroll", "size", "from", "sort", "q", "preference", "routing"])
def test_parameters_of_a_search_in_the_url_are_unknown(core: ClusterCore, name: str) -> None:
    response = ask(core, "POST", f"{ML}/agents/_search?{name}=1m", {})
    message = f"request [{ML}/agents/_search] contains unrecognized parameter: [{name}]"
    assert (response.status, reason(response)) == (400, message)


def test_an_empty_body(core: ClusterCore) -> None:
    response = ask(core, "POST", f"{ML}/agents/_search")
    assert (response.status, reason(response)) == (400, "request body or source parameter is required")


@pytest.mark.parametrize(
    "body",
    [
        {"aggs": {}},
        {"pit": {"id": "x"}},
        {"query": {"range": {"created_time": {"gte": 1}}}},
        {"query": {"bool": {"must": []}}},
        {"sort": ["_id"]},
        {"search_after": [1]},
        {"_source": "name"},
        {"size": 10_001},
    ],
    ids=json.dumps,
)
def test_what_is_not_simulated(core: ClusterCore, body: Any) -> None:
    assert ask(core, "POST", f"{ML}/agents/_search", body).status == 501


def test_a_write_is_searchable_after_the_refresh(core: ClusterCore) -> None:
    now = 100.0
    core.resources.clock = lambda: now
    core.resources.refresh_seconds = 2.0
    agent_id = core.resources.register_agent({"name": "new", "type": "flow"})["agent_id"]
    query = {"term": {"name": "new"}}
    assert core.resources.agent(agent_id)["name"] == "new"  # GET knows at once
    now = 101.9
    assert found(core, query) == []
    now = 102.0
    assert found(core, query) == [agent_id]
    core.resources.delete_agent(agent_id)
    assert found(core, query) == []  # forced_refresh
    model_id = next(iter(core.resources.models))
    core.resources.update_model(model_id, {"name": "renamed"})
    assert found(core, {"term": {"name": "renamed"}}, "models") == []
    assert found(core, {"term": {"name": "model"}}, "models") == [model_id]
    now = 106.0
    assert found(core, {"term": {"name": "renamed"}}, "models") == [model_id]
