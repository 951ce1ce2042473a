"""Copies in the cluster: the requests that delete them, attempts, and what is reported."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from typing import Any

import pytest
from multidict import CIMultiDict

from gateway.config.memory import Memory
from gateway.errors import UpstreamUnavailable
from gateway.memory.cluster_copies import ClusterCopies, copy_of, with_copy
from gateway.memory.model import Turn, as_failed
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import configure
from gateway.ports import UpstreamResponse
from tests.memory.conversations import assistant, key, turn, user
from tests.memory.in_memory_store import InMemoryStore

BOB = {"authorization": "bob"}
OWN = {"authorization": "the gateway"}
ML = "/_plugins/_ml"
Sent = tuple[str, str, Mapping[str, str], Any]


class Cluster:
    """Answers with the next of `answers`: a status, a status and a body, or an error; 200 after the last one."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[Sent] = []

    async def exchange(self, method: str, target: str, headers: Any, body: Any = (), *_: Any) -> UpstreamResponse:
        self.sent.append((method, target, dict(headers), json.loads(body[0]) if body else None))
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        status, document = answer if isinstance(answer, tuple) else (answer, {})
        return UpstreamResponse(status, CIMultiDict(), json.dumps(document).encode())

    async def get_json(self, path: str, headers: Any) -> Any:
        raise NotImplementedError


class Copies:
    """Copies of `cluster`, with what they counted, logged and waited for."""

    def __init__(self, cluster: Cluster, when: Any = "after_turn") -> None:
        self.counted: list[str] = []
        self.waited: list[float] = []
        self.lines = io.StringIO()
        log = configure("warning", "json", self.lines)
        self.copies = ClusterCopies(cluster, Memory(cluster_copies=when), OWN, log, self.counted.append, self._wait)

    async def _wait(self, seconds: float) -> None:
        self.waited.append(seconds)

    async def delete(self, copy: str) -> None:
        self.copies.after_turn(copy, BOB)
        await self.copies.ended()


def profile(memory_type: str, container: str = "") -> AgentProfile:
    generation = Generation.UNIFIED_V2
    return AgentProfile("a", "n", "t", (3, 6), generation, memory_type=memory_type, memory_container=container)


def test_a_copy_is_a_conversation_or_a_session_of_a_container() -> None:
    assert copy_of(profile("conversation_index"), "m1") == "memory/m1"
    assert copy_of(profile("agentic_memory", "c1"), "a/b") == "memory_containers/c1/a%2Fb"
    assert copy_of(profile(""), "m1") == copy_of(profile("conversation_index"), "") == ""


def test_a_turn_names_its_copy_with_its_last_message() -> None:
    for one in (turn(user("a"), assistant("b")), as_failed(turn(user("a")))):
        named = with_copy(one, "memory/m1")
        assert [message.metadata.cluster_copy for message in named.messages] == ["", "memory/m1"]
    assert with_copy(Turn("t", ()), "memory/m1") == Turn("t", ())


async def test_a_conversation_is_deleted() -> None:
    cluster = Cluster()
    copies = Copies(cluster)
    await copies.delete("memory/m1")
    assert cluster.sent == [("DELETE", f"{ML}/memory/m1", BOB, None)]
    assert copies.counted == ["deleted"]


async def test_messages_of_a_containers_session_are_deleted_before_it() -> None:
    cluster = Cluster()
    copies = Copies(cluster)
    await copies.delete("memory_containers/c1/a%2Fb")
    query = {"query": {"term": {"namespace.session_id": "a/b"}}}
    assert cluster.sent == [
        (
            "POST",
            f"{ML}/memory_containers/c1/memories/working/_delete_by_query",
            {**BOB, "Content-Type": "application/json"},
            query,
        ),
        ("DELETE", f"{ML}/memory_containers/c1/memories/sessions/a%2Fb", BOB, None),
    ]
    assert copies.counted == ["deleted"]


@pytest.mark.parametrize(
    "answers",
    [
        (503,),
        (429,),
        (UpstreamUnavailable("down"),),
        (500, 500, 500),
        (404,),
    ],
    ids=str,
)
async def test_what_passes_is_tried_again(answers: tuple[Any, ...]) -> None:
    cluster = Cluster(*answers)
    copies = Copies(cluster)
    await copies.delete("memory/m1")
    assert copies.counted == ["deleted"]
    assert copies.waited == [1.0, 5.0, 25.0][: 0 if answers == (404,) else len(answers)]


async def test_messages_that_changed_meanwhile_are_deleted_again() -> None:
    cluster = Cluster((200, {"deleted": 1, "version_conflicts": 1}))
    copies = Copies(cluster)
    await copies.delete("memory_containers/c1/s1")
    assert [sent[0] for sent in cluster.sent] == ["POST", "POST", "DELETE"]
    assert copies.counted == ["deleted"]


@pytest.mark.parametrize(("answers", "attempts"), [((403,), 1), ((500,) * 9, 4)])
async def test_what_can_not_be_deleted_is_reported(answers: tuple[int, ...], attempts: int) -> None:
    cluster = Cluster(*answers)
    copies = Copies(cluster)
    await copies.delete("memory/m1")
    assert (len(cluster.sent), copies.counted) == (attempts, ["left"])
    line = json.loads(copies.lines.getvalue())
    assert (line["event"], line["path"]) == ("conversation left in the cluster", f"{ML}/memory/m1")
    assert str(answers[0]) in line["reason"]


@pytest.mark.parametrize("headers", [BOB, None])
async def test_a_session_is_deleted_with_its_copies(headers: Any) -> None:
    store = InMemoryStore()
    for number, copy in enumerate(["memory/m1", "", "memory/m2"]):
        await store.append(key(), with_copy(turn(user("a"), assistant("b")), copy), number)
    cluster = Cluster()
    copies = Copies(cluster).copies
    assert await copies.delete_session(store, key(), headers) is True
    await copies.ended()
    assert [sent[1] for sent in cluster.sent] == [f"{ML}/memory/m1", f"{ML}/memory/m2"]
    assert {sent[2]["authorization"] for sent in cluster.sent} == {(headers or OWN)["authorization"]}
    assert await store.session(key()) is None
    assert await copies.delete_session(store, key(), headers) is False


async def test_a_gateway_that_ends_reports_what_it_leaves() -> None:
    waits = asyncio.Event()

    async def wait(_: float) -> None:
        waits.set()
        await asyncio.Event().wait()

    counted: list[str] = []
    log = configure("critical", "json")
    copies = ClusterCopies(Cluster(503), Memory(), OWN, log, counted.append, wait)
    copies.after_turn("memory/m1", BOB)
    await waits.wait()
    await copies.close(0)
    assert counted == ["left"]


@pytest.mark.parametrize(
    ("when", "is_stored", "sent"), [("with_session", True, 0), ("with_session", False, 1), ("keep", False, 0)]
)
async def test_the_copy_of_a_turn_that_no_session_holds_is_deleted_at_once(
    when: str, is_stored: bool, sent: int
) -> None:
    cluster = Cluster()
    copies = Copies(cluster, when).copies
    copies.after_turn("memory/m1", BOB, is_stored)
    await copies.ended()
    assert len(cluster.sent) == sent
