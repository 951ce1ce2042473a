"""What people do with a cluster, written once for the sync and the async client.

A scenario is a generator: it yields a `Call` and is sent what the client returned, or None where it raised. It begins
and ends with a cluster that has none of its indices.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call of a client's method, not yet made."""

    path: tuple[str, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]

    def on(self, client: Any) -> Any:
        return reduce(getattr, self.path, client)(*self.args, **self.options)


class Calls:
    """Stands for a client: ``Calls().indices.create(index="x")`` is a `Call`."""

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Calls:
        return Calls((*self._path, name))

    def __call__(self, *args: Any, **options: Any) -> Call:
        return Call(self._path, args, options)


Steps = Generator[Call, Any, None]

DOCUMENTS = 10_000
BOOKS, COPY = "exact-books", "exact-copy"
MAPPING = {
    "settings": {"number_of_shards": 1, "number_of_replicas": 0},
    "mappings": {
        "properties": {
            "title": {"type": "text"},
            "n": {"type": "integer"},
            "kind": {"type": "keyword"},
            "published": {"type": "date"},
        }
    },
}
ODD_IDS = ["plain", "a/b", "a b", "50%", "é索引🙂", "a?b#c", "a;b=c", "a+b&c", "..", "x" * 400]
CATS = ("aliases", "allocation", "count", "health", "indices", "cluster_manager", "nodes", "plugins", "shards")
MORE_CATS = ("templates", "thread_pool", "segments")


def book(number: int) -> dict[str, Any]:
    return {
        "title": f'Bücher № {number} 🙂 \\ "q" \u2028',
        "n": number,
        "kind": f"k{number % 7}",
        "published": "2020-01-01",
    }


def bulk_lines(first: int, count: int) -> Iterator[dict[str, Any]]:
    for number in range(first, first + count):
        yield {"index": {"_index": BOOKS, "_id": str(number)}}
        yield book(number)


def documents(client: Calls) -> Steps:
    yield client.info()
    yield client.ping()
    yield client.indices.delete(index=f"{BOOKS},{COPY}", ignore_unavailable=True)
    yield client.indices.create(index=BOOKS, body=MAPPING)
    yield client.indices.create(index=BOOKS, body=MAPPING)  # 400
    yield client.indices.exists(index=BOOKS)
    yield client.indices.exists(index="exact-missing")
    for number, id in enumerate(ODD_IDS):
        yield client.index(index=BOOKS, id=id, body=book(number))
        yield client.get(index=BOOKS, id=id)
    yield client.create(index=BOOKS, id="plain", body=book(0))  # 409
    yield client.index(index=BOOKS, body=book(1))
    yield client.get_source(index=BOOKS, id="plain")
    yield client.exists(index=BOOKS, id="plain")
    yield client.exists(index=BOOKS, id="missing")
    yield client.get(index=BOOKS, id="missing")  # 404
    yield client.mget(index=BOOKS, body={"ids": ["plain", "missing", "a/b"]})
    yield client.update(index=BOOKS, id="plain", body={"doc": {"n": 7}})
    yield client.update(index=BOOKS, id="plain", body={"script": {"source": "ctx._source.n += 1"}})
    yield client.update(index=BOOKS, id="fresh", body={"doc": {"n": 1}, "doc_as_upsert": True})
    yield client.update(index=BOOKS, id="missing", body={"doc": {"n": 1}})  # 404
    yield client.index(index=BOOKS, id="plain", body=book(3), if_seq_no=0, if_primary_term=99)  # 409
    yield client.index(index=BOOKS, id="bad", body={"n": "no number"})  # 400
    yield client.delete(index=BOOKS, id="fresh")
    yield client.delete(index=BOOKS, id="fresh")  # 404
    yield client.bulk(body=list(bulk_lines(0, DOCUMENTS)), refresh=True, request_timeout=120)
    yield client.bulk(
        body=[{"create": {"_index": BOOKS, "_id": "1"}}, book(1), {"delete": {"_index": BOOKS, "_id": "2"}}]
    )
    yield client.bulk(body="no bulk\n")  # 400
    yield client.indices.refresh(index=BOOKS)


def searches(client: Calls) -> Steps:
    yield client.count(index=BOOKS)
    yield client.search(index=BOOKS, body={"query": {"match": {"title": "Bücher"}}, "size": 50, "sort": ["n"]})
    yield client.search(index=BOOKS, q="kind:k3", size=3, sort="n:asc", _source="n,kind")
    yield client.search(
        index=BOOKS, body={"query": {"terms": {"n": [1, 2, 3]}}, "size": 0, "aggs": {"k": {"terms": {"field": "kind"}}}}
    )
    yield client.search(index=BOOKS, body={"size": 10_000, "sort": ["n"], "_source": ["n", "title"]})
    yield client.search(index=f"{BOOKS},exact-missing", ignore_unavailable=True, size=1, sort="n:asc")
    yield client.search(index="exact-missing")  # 404
    yield client.search(index=BOOKS, body={"query": {"nonsense": {}}})  # 400
    yield client.search(index=BOOKS, body='{"query":')  # 400
    yield client.search_template(index=BOOKS, body={"source": {"query": {"term": {"n": "{{n}}"}}}, "params": {"n": 12}})
    yield client.explain(index=BOOKS, id="5", body={"query": {"term": {"n": 5}}})
    yield client.indices.validate_query(index=BOOKS, body={"query": {"term": {"n": 5}}}, explain=True)
    yield client.field_caps(index=BOOKS, fields="*")
    yield client.indices.analyze(body={"analyzer": "standard", "text": "Größe, 索引"})
    yield client.msearch(
        body=[
            {"index": BOOKS},
            {"size": 1, "sort": ["n"]},
            {"index": "exact-missing"},
            {},
            {"index": BOOKS},
            {"size": 0},
        ]
    )
    yield client.msearch(
        body=[{"index": BOOKS}, {"size": 1, "sort": ["n"]}, {"index": "exact-missing"}, {}, {}, {"query": {"x": {}}}]
    )
    page = yield client.search(index=BOOKS, scroll="1m", size=3000, sort="n:asc")
    while page["hits"]["hits"]:
        page = yield client.scroll(body={"scroll_id": page["_scroll_id"], "scroll": "1m"})
    yield client.clear_scroll(body={"scroll_id": [page["_scroll_id"]]})
    yield client.scroll(body={"scroll_id": "bad", "scroll": "1m"})  # 400
    pit = yield client.create_pit(index=BOOKS, keep_alive="1m")
    after = None
    for _ in range(3):
        body = {"size": 100, "pit": {"id": pit["pit_id"], "keep_alive": "1m"}, "sort": ["n"]}
        page = yield client.search(body=body | ({"search_after": after} if after else {}))
        after = page["hits"]["hits"][-1]["sort"]
    yield client.get_all_pits()
    yield client.delete_pit(body={"pit_id": [pit["pit_id"]]})


def by_query(client: Calls) -> Steps:
    body = {"query": {"range": {"n": {"lt": 500}}}, "script": {"source": "ctx._source.kind = 'u'"}}
    yield client.update_by_query(index=BOOKS, body=body, refresh=True)
    yield client.delete_by_query(index=BOOKS, body={"query": {"range": {"n": {"gte": 9_000}}}}, refresh=True)
    yield client.reindex(body={"source": {"index": BOOKS}, "dest": {"index": COPY}}, refresh=True)
    yield client.count(index=COPY)
    yield client.update_by_query(index="exact-missing")  # 404


def administration(client: Calls) -> Steps:
    template = {"index_patterns": ["exact-t*"], "template": {"settings": {"number_of_replicas": 0}}, "priority": 7}
    yield client.indices.put_index_template(name="exact-template", body=template)
    yield client.indices.get_index_template(name="exact-template")
    yield client.indices.exists_index_template(name="exact-template")
    yield client.indices.simulate_index_template(name="exact-t1")
    yield client.indices.delete_index_template(name="exact-template")
    yield client.indices.get_index_template(name="exact-template")  # 404
    yield client.indices.put_alias(index=BOOKS, name="exact-alias")
    yield client.indices.get_alias(name="exact-alias")
    yield client.indices.get_mapping(index=BOOKS)
    yield client.indices.put_mapping(index=BOOKS, body={"properties": {"more": {"type": "keyword"}}})
    yield client.indices.put_settings(index=BOOKS, body={"index": {"refresh_interval": "7s"}})
    yield client.indices.get_settings(index=BOOKS)
    yield client.indices.flush(index=BOOKS)
    yield client.indices.stats(index=BOOKS)
    yield client.indices.close(index=COPY)
    yield client.search(index=COPY)  # 400, closed
    yield client.indices.open(index=COPY)
    pipeline = {"processors": [{"set": {"field": "x", "value": "größe"}}]}
    yield client.ingest.put_pipeline(id="exact-pipeline", body=pipeline)
    yield client.ingest.simulate(id="exact-pipeline", body={"docs": [{"_source": {"a": 1}}]})
    yield client.ingest.get_pipeline(id="exact-pipeline")
    yield client.ingest.delete_pipeline(id="exact-pipeline")
    for name in CATS + MORE_CATS:
        yield getattr(client.cat, name)(v=True)
    yield client.cat.indices(index=BOOKS, h="index,docs.count,health", format="json")
    yield client.cat.count(index=BOOKS, h="count")
    yield client.cluster.health(index=BOOKS)
    yield client.cluster.state(metric="metadata", index=BOOKS)
    yield client.cluster.stats()
    yield client.cluster.put_settings(body={"transient": {"search.max_buckets": 4321}})
    yield client.cluster.get_settings()
    yield client.cluster.put_settings(body={"transient": {"search.max_buckets": None}})
    yield client.cluster.put_settings(body={"transient": {"no.such": 1}})  # 400
    yield client.cluster.allocation_explain()  # 400
    yield client.nodes.info()
    yield client.nodes.stats()
    yield client.tasks.list()
    yield client.transport.perform_request("GET", "/_no_such_api")  # 400
    yield client.transport.perform_request("DELETE", "/_search")  # 405
    yield client.transport.perform_request("POST", "/_plugins/_ml/agents/missing/_execute", body={"parameters": {}})
    yield client.transport.perform_request("GET", "/_plugins/_ml/agents/missing")  # 404
    yield client.indices.delete(index=f"{BOOKS},{COPY}")


def everything() -> Steps:
    for part in (documents, searches, by_query, administration):
        yield from part(Calls())
