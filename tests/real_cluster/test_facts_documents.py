"""What the stores of sessions rely on: documents, and memory containers."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from .agents import Api

pytestmark = pytest.mark.real_cluster

INDEX = "facts-documents"
CONTAINERS = "/_plugins/_ml/memory_containers"


def bulk(api: Api, *lines: Any) -> list[int]:
    """Send operations on `INDEX`; return their statuses."""
    body = "".join(json.dumps(line) + "\n" for line in lines)
    items = api.must("POST", f"/{INDEX}/_bulk", body)["items"]
    return [result["status"] for item in items for result in item.values()]


@pytest.fixture
def index(api: Api) -> str:
    api.call("DELETE", f"/{INDEX}")
    mappings = {"dynamic": False, "properties": {"body": {"type": "object", "enabled": False}}}
    settings = {"index": {"refresh_interval": -1}}
    api.must("PUT", f"/{INDEX}", {"mappings": mappings, "settings": settings})
    return INDEX


def test_conditional_writes(api: Api, index: str) -> None:
    assert bulk(api, {"create": {"_id": "1"}}, {"by": "first"}, {"create": {"_id": "1"}}, {"by": "second"}) == [
        201,
        409,
    ]
    assert api.must("GET", f"/{index}/_doc/1")["_source"] == {"by": "first"}
    assert bulk(api, {"update": {"_id": "none"}}, {"doc": {}}) == [404]
    versions = {"_id": "2", "version_type": "external_gte"}
    statuses = [bulk(api, {"index": versions | {"version": version}}, {"v": version}) for version in (3, 3, 2, 4)]
    assert statuses == [[201], [200], [409], [200]]


def test_update_merges_objects(api: Api, index: str) -> None:
    bulk(api, {"index": {"_id": "1"}}, {"kind": "a", "body": {"turns": 1, "pinned": True}})
    bulk(api, {"update": {"_id": "1"}}, {"doc": {"body": {"turns": 2}}})
    assert api.must("GET", f"/{index}/_doc/1")["_source"] == {"kind": "a", "body": {"turns": 2, "pinned": True}}


def test_reads_by_id_see_what_searches_do_not(api: Api, index: str) -> None:
    bulk(api, {"index": {"_id": "1"}}, {"n": 1})
    assert api.must("POST", f"/{index}/_mget", {"ids": ["1", "2"]})["docs"][0]["_source"] == {"n": 1}
    assert api.must("POST", f"/{index}/_search", {})["hits"]["hits"] == []
    api.must("POST", f"/{index}/_refresh")
    assert len(api.must("POST", f"/{index}/_search", {})["hits"]["hits"]) == 1


def test_unindexed_object_comes_back_as_it_was_written(api: Api, index: str) -> None:
    body = '{"z":1.10,"a":{"":null,".":12345678901234567890123,"a..b":"\\ud83d"},"l":[[],{}]}'
    api.must("POST", f"/{index}/_bulk", '{"index":{"_id":"1"}}\n{"body":' + body + "}\n")
    [document] = api.must("POST", f"/{index}/_mget", {"ids": ["1"]})["docs"]
    assert json.dumps(document["_source"]["body"]) == json.dumps(json.loads(body))


def test_session_of_a_container_that_exists_is_left_as_it_is(api: Api, container: str) -> None:
    path = f"{CONTAINERS}/{container}/memories/sessions"
    id_ = uuid.uuid4().hex
    for status, summary in (("created", "first"), ("exists", "second")):
        answer = api.must("POST", path, {"session_id": id_, "summary": summary})
        assert answer == {"session_id": id_, "status": status}
    assert api.must("GET", f"{path}/{id_}")["summary"] == "first"


def test_values_of_a_working_memory_come_back(api: Api, container: str) -> None:
    blob = {"z": [None, 1.1, 1e22, 12345678901234567890123, "é🙂"], "a": {"": 1, ".": 2, "a..b": {"..": 3}}}
    body = {"structured_data_blob": blob, "payload_type": "data", "tags": {"own": "facts"}}
    path = f"{CONTAINERS}/{container}/memories"
    id_ = api.must("POST", path, body)["working_memory_id"]
    assert api.must("GET", f"{path}/working/{id_}")["structured_data_blob"] == blob
    [hit] = api.must("POST", f"{path}/working/_search", {"query": {"ids": {"values": [id_]}}})["hits"]["hits"]
    assert hit["_source"]["structured_data_blob"] == blob
    assert (
        api.must("POST", f"{path}/working/_delete_by_query", {"query": {"term": {"tags.own": "facts"}}})["deleted"] == 1
    )


def test_agentic_memory_that_is_off(api: Api) -> None:
    setting = "plugins.ml_commons.agentic_memory_enabled"
    api.must("PUT", "/_cluster/settings", {"persistent": {setting: False}})
    try:
        status, answer = api.call("POST", f"{CONTAINERS}/_create", {"name": "facts"})
    finally:
        api.must("PUT", "/_cluster/settings", {"persistent": {setting: None}})
    assert status == 403
    assert setting in answer["error"]["reason"]
