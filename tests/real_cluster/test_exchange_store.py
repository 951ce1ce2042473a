"""The store of exchanges on a real cluster: its data stream, and what a reader finds there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from gateway.config.inspector import OpenSearchExchanges
from gateway.observe.logs import configure
from gateway.observe.record import Body, HttpMessage
from gateway.recording.sinks.opensearch import OpenSearchSink, document, template
from gateway.recording.store import StoreError
from tests.recording.sinks.store_conformance import FULL, numbered, with_body

from .agents import Api

pytestmark = pytest.mark.real_cluster
STREAM = "real-exchanges"
OpenSink = Callable[[], OpenSearchSink]
QUERIES: list[tuple[dict[str, Any], list[str]]] = [
    ({"term": {"agent_id": "a2"}}, ["full"]),
    ({"term": {"delivery.agent_name": "Räuber"}}, ["full"]),
    ({"term": {"delivery.type": "flow"}}, ["full"]),
    ({"term": {"delivery.provider": "bedrock/converse"}}, ["full"]),
    ({"term": {"delivery.strategy": "wrap"}}, ["full"]),
    ({"term": {"delivery.notices": "N_TWO"}}, ["full"]),
    ({"term": {"error.problems.code": "P_ONE"}}, ["full"]),
    ({"prefix": {"user_agent": "opensearch-py/"}}, ["full"]),
    ({"range": {"status": {"gte": 400, "lt": 500}}}, ["full"]),
    ({"range": {"usage.cost": {"gt": 0.4}}}, ["full"]),
    ({"range": {"@timestamp": {"lt": "1971-01-01", "format": "strict_date"}}}, ["1"]),
    ({"wildcard": {"target": "*/agents/a1/_execute"}}, ["1", "cat", "full", "nested"]),
    ({"match": {"request.body.text": "CAT"}}, ["cat"]),
    ({"match": {"request.body.text": "räuber"}}, ["nested"]),
    ({"match_phrase": {"request.body.text": "black cat"}}, ["cat"]),
    ({"match_phrase": {"request.body.text": "cat black"}}, []),
]
"""Queries for what the page filters by, and for words; the ids of the exchanges that they find."""


@pytest.fixture
def open_sink(api: Api) -> Iterator[OpenSink]:
    """Opens stores of the same data stream. It is deleted at the end."""
    settings = OpenSearchExchanges(url=api.url, stream=STREAM)
    yield lambda: OpenSearchSink(settings, configure("error", "json"))
    api.must("DELETE", f"/_data_stream/{STREAM}")
    api.must("DELETE", f"/_index_template/{STREAM}")


def search(api: Api, **body: Any) -> list[dict[str, Any]]:
    """Return the hits of a search, after a refresh."""
    api.must("POST", f"/{STREAM}/_refresh")
    hits: list[dict[str, Any]] = api.must("POST", f"/{STREAM}/_search", body)["hits"]["hits"]
    return hits


def ids(api: Api, query: dict[str, Any] | None = None) -> list[str]:
    return sorted(hit["_source"]["id"] for hit in search(api, query=query or {"match_all": {}}, size=1000))


def indices(api: Api) -> list[str]:
    [stream] = api.must("GET", f"/_data_stream/{STREAM}")["data_streams"]
    return [index["index_name"] for index in stream["indices"]]


def test_two_gateways_store_each_exchange_once(api: Api, open_sink: OpenSink) -> None:
    sinks = [open_sink(), open_sink()]
    for sink in sinks:
        sink.add([FULL, *numbered(1, 2)])
    for sink in sinks:
        sink.close()
        assert sink._lost == 0
    assert ids(api) == ["1", "2", "full"]
    [hit] = search(api, query={"term": {"id": "full"}})
    assert hit["_source"] == msgspec.json.decode(msgspec.json.encode(document(FULL)))
    [made] = api.must("GET", f"/_index_template/{STREAM}")["index_templates"]
    assert made["index_template"]["priority"] == 200
    mappings = api.must("GET", f"/{STREAM}/_mapping")[indices(api)[0]]["mappings"]
    assert set(mappings["properties"]) == set(template(STREAM)["template"]["mappings"]["properties"])


def test_a_reader_finds_exchanges(api: Api, open_sink: OpenSink) -> None:
    texts = {"cat": '{"input": "A black cat"}', "nested": '{"input": "{\\"question\\": \\"Räuber\\"}"}'}
    with closing(open_sink()) as sink:
        sink.add([FULL, *numbered(1), *(with_body(id_, text) for id_, text in texts.items())])
    assert [(query, ids(api, query)) for query, _ in QUERIES] == QUERIES


def test_pages_of_a_reader_have_every_exchange_once(api: Api, open_sink: OpenSink) -> None:
    with closing(open_sink()) as sink:
        sink.add([*numbered(*range(200)), *numbered(200, 201, 202)])
    found: list[str] = []
    after: dict[str, Any] = {}
    while page := search(api, size=70, sort=[{"@timestamp": "desc"}, {"id": "desc"}], **after):
        found += [hit["_source"]["id"] for hit in page]
        after = {"search_after": page[-1]["sort"]}
    assert found == [str(number) for number in reversed(range(203))]


def test_retention_deletes_whole_indices_under_a_gateway_that_writes(api: Api, open_sink: OpenSink) -> None:
    """What a policy for the data stream does: a new index, and later the deletion of the old one."""
    with closing(open_sink()) as sink:
        sink.add(numbered(1, 2))
    with closing(open_sink()) as sink:
        api.must("POST", f"/{STREAM}/_rollover")
        sink.add(numbered(3))
    old, _new = indices(api)
    assert ids(api) == ["1", "2", "3"]
    api.must("DELETE", f"/{old}")
    assert ids(api) == ["3"]


def test_a_stream_that_is_deleted_is_made_again(api: Api, open_sink: OpenSink) -> None:
    with closing(open_sink()) as sink:
        sink.add(numbered(1))
    sink = open_sink()
    sink._ready = True  # it has found the data stream
    api.must("DELETE", f"/_data_stream/{STREAM}")
    sink.add(numbered(2))
    sink.close()
    assert (ids(api), len(indices(api))) == (["2"], 1)


def test_documents_that_the_cluster_refuses_are_counted(api: Api, open_sink: OpenSink) -> None:
    refused = numbered(2, status=40_000)  # more than the mapping's `short`
    long = HttpMessage((("A", "x" * 40_000),), Body(40_000, "x" * 40_000))
    sink = open_sink()
    sink.add([*numbered(1), *refused, *numbered(3, request=long, target="/" + "x" * 40_000)])
    sink.close()
    with pytest.raises(StoreError, match="the cluster refused them: 400") as error:
        sink.add([])
    assert error.value.lost == 1
    assert ids(api) == ["1", "3"]
