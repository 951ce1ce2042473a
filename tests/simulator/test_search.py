"""`_search` of agents, models and connectors, as real clusters answered it (2.19.0 recorded; 3.6.0 probed)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator.core import ClusterCore
from gateway.simulator.handlers import Request
from gateway.simulator.resources import NODE
from gateway.simulator.rest import Response, respond

ML = "/_plugins/_ml"
TAG = "0123456789abcdef0123456789abcdef"
RECORDED = Path(__file__).parent.parent / "recordings"


def ask(core: ClusterCore, method: str, path: str, body: Any = None) -> Response:
    text = b"" if body is None else json.dumps(body).encode()
    serve = respond(core, Request(method, path, {"content-type": "application/json"}, text))
    try:
        next(serve)
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


# Each as a real 3.6.0 answered it: how many of the three agents.
QUERIES: list[tuple[dict[str, Any], int]] = [
    ({"match_all": {}}, 3),
    ({"match_none": {}}, 0),
    ({"term": {"parameters.mlc_gateway_registration": TAG}}, 3),
    ({"term": {"parameters.mlc_gateway_registration": {"value": TAG}}}, 3),
    ({"term": {"parameters.mlc_gateway_registration.keyword": TAG}}, 0),
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
    ({"term": {"name.keyword": "zz Probe-Agent 1"}}, 1),
    ({"prefix": {"name.keyword": "zz"}}, 3),
    ({"term": {"name": "zz Probe-Agent 1"}}, 0),
    ({"term": {"name": "probe"}}, 3),
    ({"match": {"name": "PROBE nothing"}}, 3),
    ({"match": {"name": {"query": "zz nothing", "operator": "and"}}}, 0),
    ({"match_phrase": {"description": "Hello World"}}, 3),
    ({"match_phrase": {"description": "world hello"}}, 0),
    ({"term": {"description.keyword": "x"}}, 0),
    ({"match": {"description": "it's"}}, 3),
    ({"match": {"description": "it"}}, 0),
    ({"match": {"description": "e.g"}}, 3),
    ({"match": {"description": "3.14"}}, 3),
    ({"match": {"description": "a"}}, 0),
    ({"match": {"description": "a:b"}}, 3),
    ({"match": {"description": "foo"}}, 0),
    ({"match": {"description": "foo_bar"}}, 3),
    ({"match": {"description": "x/y-z"}}, 3),
    ({"term": {"app_type": "My App"}}, 0),
    ({"term": {"app_type": "app"}}, 3),
    ({"term": {"app_type.keyword": "My App"}}, 3),
    ({"term": {"type": "conversational"}}, 3),
    ({"term": {"type": "CONVERSATIONAL"}}, 0),
    ({"term": {"type": {"value": "CONVERSATIONAL", "case_insensitive": True}}}, 3),
    ({"terms": {"type": ["flow", "conversational"]}}, 3),
    ({"term": {"is_hidden": False}}, 3),
    ({"term": {"is_hidden": "false"}}, 3),
    ({"range": {"created_time": {"gte": 1001}}}, 2),
    ({"range": {"created_time": {"gt": 1000, "lt": 1002}}}, 1),
    ({"range": {"created_time": {"from": 1, "to": "1001"}}}, 2),
    ({"range": {"created_time": {"lte": "2020-01-01T00:00:00.000Z"}}}, 3),
    ({"range": {"created_time": {"gte": "now-1m"}}}, 0),
    ({"range": {"last_updated_time": {"gte": "now-1m", "lte": "now"}}}, 3),
    ({"range": {"llm.model_id": {"gte": "a"}}}, 0),
    ({"bool": {}}, 3),
    ({"bool": {"should": [{"term": {"type": "x"}}]}}, 0),
    ({"bool": {"must": {"term": {"type": "conversational"}}, "should": [{"term": {"type": "x"}}]}}, 3),
    ({"bool": {"filter": [{"exists": {"field": "llm"}}], "must_not": {"exists": {"field": "memory"}}}}, 3),
    ({"bool": {"should": [{"match_all": {}}, {"match_none": {}}], "minimum_should_match": 2}}, 0),
    ({"constant_score": {"filter": {"term": {"type": "flow"}}}}, 0),
]


@pytest.mark.parametrize(("query", "number"), QUERIES, ids=lambda value: json.dumps(value)[:70])
def test_finds_what_a_real_cluster_found(core: ClusterCore, query: dict[str, Any], number: int) -> None:
    assert len(found(core, query)) == number


def test_models_and_connectors_are_found(core: ClusterCore) -> None:
    (connector_id,) = core.resources.connectors
    with_connector, inner = core.resources.models
    assert found(core, {"match_phrase": {"description": f"mlc-gateway {TAG}"}}, "models") == [with_connector]
    assert found(core, {"match": {"description": "mlc-gateway"}}, "models") == [with_connector, inner]
    assert found(core, {"term": {"connector_id.keyword": connector_id}}, "models") == [with_connector]
    assert found(core, {"match": {"connector_id": connector_id}}, "models")[0] == with_connector
    assert found(core, {"term": {"connector.name.keyword": "conn"}}, "models") == [inner]
    assert found(core, {"term": {"model_state": "DEPLOYED"}}, "models") == [with_connector, inner]
    assert found(core, {"term": {"description": TAG}}, "connectors") == [connector_id]
    assert len(found(core, {"terms": {"llm.model_id": [with_connector, "x"]}})) == 3
    assert len(found(core, {"term": {"tools.parameters.model_id": inner}})) == 3
    assert found(core, {"ids": {"values": connector_id}}, "connectors") == [connector_id]


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
    """The recorded answers of 2.19.0, replayed up to their searches, hit by hit: keys of answer, hit and source."""
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
    """Registers a recorded document and gives it its recorded id and times."""
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
        made = resources.models.pop(resources.register_model(source, deploy=True)["model_id"])
        resources.models[hit["_id"]] = {**made, **times, "model_version": source["model_version"]}
        source["last_deployed_time"], source["planning_worker_nodes"] = source["last_updated_time"], [NODE]


def test_no_credential_is_ever_shown(core: ClusterCore) -> None:
    for kind in ("connectors", "models"):
        for shown in (None, True, False, ["credential", "connector.credential", "*"], "cred*"):
            body: dict[str, Any] = {"query": {"match_all": {}}} if shown is None else {"_source": shown}
            response = ask(core, "POST", f"{ML}/{kind}/_search", body)
            assert response.status == 200
            assert "secret" not in json.dumps(response.body)


def test_source_filters(core: ClusterCore) -> None:
    first, agent = next(iter(core.resources.agents.items()))

    def source(shown: Any) -> Any:
        body = {"query": {"ids": {"values": [first]}}, "_source": shown}
        return ask(core, "POST", f"{ML}/agents/_search", body).body["hits"]["hits"][0]["_source"]

    assert source(False) == source(True) == agent  # the plugin overrides both
    assert source("name") == {"name": agent["name"]}
    assert source(["na*", "llm.model_id"]) == {"name": agent["name"], "llm": {"model_id": agent["llm"]["model_id"]}}
    both = source({"includes": ["name", "llm"], "excludes": ["llm.parameters"]})
    assert both == {"name": agent["name"], "llm": {"model_id": agent["llm"]["model_id"]}}
    assert source({"excludes": ["tools"]}) == {name: value for name, value in agent.items() if name != "tools"}
    assert source(["nope"]) == {}


def test_pages_and_order(core: ClusterCore) -> None:
    one, two, three = core.resources.agents
    every: dict[str, Any] = {"match_all": {}}
    second: dict[str, Any] = {"sort": ["name.keyword"], "from": 1, "size": 1}
    assert found(core, every, sort=[{"created_time": "desc"}, {"_id": "asc"}]) == [three, two, one]
    assert found(core, every, sort=["_id"]) == sorted([one, two, three])
    assert found(core, every, sort=["name.keyword"], size=2) == [one, two]
    assert found(core, every, **second) == [two]
    assert found(core, every, sort=["name.keyword"], search_after=["zz Probe-Agent 0"]) == [two, three]
    assert found(core, every, sort={"created_time": {"order": "desc"}}, search_after=[1001]) == [one]
    assert found(core, every, sort=[{"nope": {"unmapped_type": "keyword"}}, {"created_time": "desc"}])[0] == three
    body: dict[str, Any] = {"sort": [{"created_time": "asc"}, {"_id": "asc"}], "size": 1, "_source": ["name"]}
    hits = ask(core, "POST", f"{ML}/agents/_search", body).body["hits"]
    ids = {"_index": ".plugins-ml-agent", "_id": one, "_version": 1, "_seq_no": 0, "_primary_term": 1}
    hit = {**ids, "_score": None, "_source": {"name": "zz Probe-Agent 0"}, "sort": [1000, one]}
    assert hits == {"total": {"value": 3, "relation": "eq"}, "max_score": None, "hits": [hit]}
    assert "total" not in ask(core, "POST", f"{ML}/agents/_search", {"track_total_hits": False}).body["hits"]


def test_a_document_that_is_written_again_moves_behind_all_others(core: ClusterCore) -> None:
    """Sorted by `_seq_no`, as a real 3.6.0 sorts; each index counts its own writes."""
    one, two = core.resources.models
    (connector,) = core.resources.connectors
    every: dict[str, Any] = {"match_all": {}}
    assert found(core, every, "models", sort=[{"_seq_no": "asc"}]) == [one, two]
    core.resources.update_model(one, {"name": "again"})
    body = {"query": every, "sort": [{"_seq_no": "asc"}]}
    hits = ask(core, "POST", f"{ML}/models/_search", body).body["hits"]["hits"]
    assert [(hit["_id"], hit["_seq_no"], hit["sort"]) for hit in hits] == [(two, 1, [1]), (one, 2, [2])]
    assert found(core, every, "models", sort=[{"_seq_no": "desc"}], search_after=[2]) == [two]
    assert found(core, {"term": {"_seq_no": 0}}, "connectors") == [connector]


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


def test_what_the_shards_refuse(core: ClusterCore) -> None:
    """500 for agents and models, a 400 with its shard for connectors."""
    window = "Result window is too large, from + size must be less than or equal to: [10000] but was [10001]."
    for body, told in (
        ({"size": 10001}, window),
        ({"from": 9999, "size": 2}, window),
        ({"search_after": [1]}, "Sort must contain at least one field."),
        ({"sort": ["_id"], "search_after": [1, "x"]}, "search_after has 2 value(s) but sort has 1."),
        ({"sort": ["name"]}, "Text fields are not optimised for operations"),
    ):
        for kind in ("agents", "models"):
            response = ask(core, "POST", f"{ML}/{kind}/_search", body)
            assert (response.status, response.body["error"]["type"]) == (500, "status_exception")
            assert reason(response).startswith(told)
        response = ask(core, "POST", f"{ML}/connectors/_search", body)
        assert (response.status, reason(response)) == (400, "all shards failed")
        assert response.body["error"]["root_cause"][0]["reason"].startswith(told)
    unknown = {"sort": ["nope"]}
    assert reason(ask(core, "POST", f"{ML}/agents/_search", unknown)) == "Fail to search agent"
    assert reason(ask(core, "POST", f"{ML}/models/_search", unknown)) == "Fail to search model version"
    dates = {"query": {"range": {"created_time": {"gte": "x"}}}}
    assert reason(ask(core, "POST", f"{ML}/agents/_search", dates)) == "Fail to search agent"


@pytest.mark.parametrize("name", ["scroll", "size", "from", "sort", "q", "preference", "routing"])
def test_parameters_of_a_search_in_the_url_are_unknown(core: ClusterCore, name: str) -> None:
    response = ask(core, "POST", f"{ML}/agents/_search?{name}=1m", {})
    words = f"request [{ML}/agents/_search] contains unrecognized parameter: [{name}]"
    assert (response.status, reason(response)) == (400, words)


def test_bad_bodies(core: ClusterCore) -> None:
    def told(body: Any) -> tuple[int, str]:
        response = ask(core, "POST", f"{ML}/agents/_search", body)
        return response.status, reason(response)

    assert told(None) == (400, "request body or source parameter is required")
    assert told({"nosuch": 1}) == (400, "Unknown key for a VALUE_NUMBER in [nosuch].")
    assert told({"scroll": "1m"}) == (400, "Unknown key for a VALUE_STRING in [scroll].")
    assert told({"query": {"nosuch": {}}}) == (400, "unknown query [nosuch]")
    assert told({"size": -1}) == (400, "[size] parameter cannot be negative, found [-1]")
    assert told({"query": {"exists": {}}}) == (400, "[exists] must be provided with a [field]")
    assert told({"query": {"term": {"a": ["b"]}}}) == (400, "[term] query does not support array of values")
    assert told({"query": {"terms": {"type": "flow"}}}) == (400, "[terms] query does not support [type]")
    assert told({"query": {"query_string": {"query": "x"}}})[0] == 501  # real, but not simulated
    assert told({"aggs": {}})[0] == 501


def test_a_point_in_time_of_the_index_works_in_the_body(core: ClusterCore) -> None:
    opened = ask(core, "POST", "/.plugins-ml-agent/_search/point_in_time?keep_alive=1m")
    point = opened.body["pit_id"]
    core.resources.register_agent({"name": "later", "type": "flow"})
    sought = {"pit": {"id": point, "keep_alive": "1m"}, "sort": ["created_time"]}
    response = ask(core, "POST", f"{ML}/agents/_search", sought)
    assert (response.body["pit_id"], len(response.body["hits"]["hits"])) == (point, 3)
    assert len(found(core, {"match_all": {}})) == 4
    closed = ask(core, "DELETE", "/_search/point_in_time", {"pit_id": [point]})
    assert closed.body == {"pits": [{"successful": True, "pit_id": point}]}
    assert ask(core, "POST", f"{ML}/agents/_search", sought).status == 500
    assert ask(core, "POST", "/.plugins-ml-agent/_search/point_in_time").status == 400
    assert ask(core, "POST", "/.plugins-ml-nope/_search/point_in_time?keep_alive=1m").status == 404


def test_a_write_is_searchable_after_the_refresh(core: ClusterCore) -> None:
    now = 100.0
    core.resources.clock = lambda: now
    core.resources.refresh_seconds = 2.0
    agent_id = core.resources.register_agent({"name": "new", "type": "flow"})["agent_id"]
    query = {"term": {"name.keyword": "new"}}
    assert core.resources.agent(agent_id)["name"] == "new"  # GET knows at once
    now = 101.9
    assert found(core, query) == []
    now = 102.0
    assert found(core, query) == [agent_id]
    core.resources.delete_agent(agent_id)
    assert found(core, query) == [agent_id]
    now = 104.0
    assert found(core, query) == []
    model_id = next(iter(core.resources.models))
    core.resources.update_model(model_id, {"name": "renamed"})
    assert found(core, {"term": {"name.keyword": "renamed"}}, "models") == []
    assert found(core, {"term": {"name.keyword": "model"}}, "models") == [model_id]
    now = 106.0
    assert found(core, {"term": {"name.keyword": "renamed"}}, "models") == [model_id]
