from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.migrate.connection import ClusterRefused
from gateway.migrate.search import WINDOW, search_all
from tests.conftest import examples
from tests.migrate.conftest import Deployment, StartDeployment
from tests.migrate.test_connection import connected


class Index:
    """An index in memory: `rounds` are what others write before each search; refused: what a body must not hold.

    sorts: whether hits come in the order of their sequence numbers, with `sort` values.
    """

    def __init__(self, count: int, rounds: Any = (), sorts: bool = True, refused: str = "") -> None:
        self.documents = {f"a{number}": number for number in range(count)}
        self.next = count
        self.rounds = list(rounds)
        self.sorts = sorts
        self.refused = refused
        self.bodies: list[Mapping[str, Any]] = []

    def write(self, name: str) -> None:
        self.documents[name] = self.next
        self.next += 1

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        assert (method, path) == ("POST", "/_plugins/_ml/agents/_search")
        assert body is not None
        self.bodies.append(body)
        if self.rounds:
            for name in self.rounds.pop(0):
                if name.startswith("-"):
                    self.documents.pop(name[1:], None)
                else:
                    self.write(name)
        if self.refused and self.refused in body:
            return 400, {"error": {"reason": f"no [{self.refused}] here"}, "status": 400}
        start, size = body.get("from", 0), body.get("size", 10)
        if start + size > WINDOW:
            return 400, {"error": {"reason": "Result window is too large"}, "status": 400}
        (after,) = (body.get("search_after") or [-1]) if self.sorts else [-1]
        found = sorted(self.documents.items(), key=lambda item: item[1]) if self.sorts else self.documents.items()
        shown = [(name, number) for name, number in found if number > after][start : start + size]
        hits = [{"_id": name, "_source": {"n": n}, **({"sort": [n]} if self.sorts else {})} for name, n in shown]
        return 200, {"_shards": {"failed": 0}, "hits": {"total": {"value": len(self.documents)}, "hits": hits}}


def ids(index: Index, page: int = 7) -> list[str]:
    return [id_ for id_, _ in search_all(index, "agents", page=page)]


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 14, 15, 100])
@pytest.mark.parametrize("kind", [{}, {"sorts": False}, {"refused": "sort"}])
def test_every_page_is_read(count: int, kind: dict[str, Any]) -> None:
    assert ids(Index(count, **kind)) == [f"a{number}" for number in range(count)]


@examples(150)
@given(st.data())
def test_each_once_while_others_write(data: st.DataObject) -> None:
    """Documents that exist throughout are listed once, whatever is registered, changed or removed meanwhile."""
    count = data.draw(st.integers(0, 40))
    names = st.sampled_from([f"a{n}" for n in range(count)] + [f"new{n}" for n in range(9)])
    removed = st.sampled_from([f"-a{n}" for n in range(max(count, 1))])
    rounds = data.draw(st.lists(st.lists(st.one_of(names, removed), max_size=4), max_size=20))
    found = ids(Index(count, rounds))
    gone = {name[1:] for writes in rounds for name in writes if name.startswith("-")}
    assert len(found) == len(set(found))
    assert {f"a{n}" for n in range(count)} - gone <= set(found)


def test_a_document_that_becomes_visible_late_is_found() -> None:
    index = Index(20)
    hidden = index.documents.pop("a3")
    calls = index.call

    def later(method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        if len(index.bodies) == 2:
            index.documents["a3"] = hidden  # numbered below what was read already
        return calls(method, path, body)

    index.call = later  # type: ignore[method-assign]
    assert sorted(ids(index)) == sorted(f"a{number}" for number in range(20))


def test_more_than_can_be_shown_is_an_error_and_never_a_part() -> None:
    assert len(ids(Index(WINDOW, sorts=False), page=1000)) == WINDOW
    assert len(ids(Index(WINDOW + 500), page=1000)) == WINDOW + 500
    with pytest.raises(ClusterRefused, match="There are 10001 agents"):
        ids(Index(WINDOW + 1, sorts=False), page=1000)


class StubCluster:
    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        self.answer = status, answer

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        return self.answer


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (403, {"error": {"reason": "no permissions"}}, "grant it cluster:admin/opensearch/ml/agents/search"),
        (401, {}, "does not accept these credentials"),
        (400, {"error": "no handler found for uri [/_plugins/_ml/agents/_search]"}, "install the plugin"),
        (503, {"error": {"reason": "busy"}}, "could not search its agents: 503: busy"),
        (200, {}, "could not search its agents: 200"),
        (200, {"_shards": {"failed": 1}, "hits": {"hits": []}}, "failed on a shard"),
    ],
)
def test_refusals_say_what_to_do(status: int, answer: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterRefused) as raised:
        list(search_all(StubCluster(status, answer), "agents"))
    assert message in str(raised.value)


def test_no_index_yet_is_no_error() -> None:
    answer = {"error": {"type": "index_not_found_exception", "reason": "no such index [.plugins-ml-agent]"}}
    assert list(search_all(StubCluster(404, answer), "agents")) == []


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
def test_simulated_clusters(start_deployment: StartDeployment, version: str) -> None:
    deployment = start_deployment(version)
    cluster = connected("--url", deployment.url)
    deployment.cluster.requests.clear()
    for page in (1, 4, 10_000):
        found = sorted(id_ for id_, _ in search_all(cluster, "agents", page=page))
        assert found == sorted(deployment.cluster.core.resources.agents)
    sent = [json.loads(request.body) for request in deployment.cluster.requests]
    assert [body for body in sent if "from" in body] == []  # sorted, never by offset
    wanted = list(deployment.agents.values())[:3]
    named = dict(search_all(cluster, "agents", {"ids": {"values": wanted}}, page=2))
    assert sorted(named) == sorted(wanted)
    assert {source["name"] for source in named.values()} <= set(deployment.agents)


def test_on_a_simulated_cluster_what_is_changed_between_two_pages_is_told_once(deployment: Deployment) -> None:
    resources = deployment.cluster.core.resources
    models = list(resources.models)
    reading = search_all(connected("--url", deployment.url), "models", page=2)
    first = [next(reading)[0], next(reading)[0]]
    assert first == models[:2]
    resources.update_model(models[0], {"name": "again"})
    resources.update_model(models[2], {"name": "again"})
    rest = [id_ for id_, _ in reading]
    assert sorted([*first, *rest]) == sorted(models)
    assert rest[-1] == models[2]  # it moved to the end
