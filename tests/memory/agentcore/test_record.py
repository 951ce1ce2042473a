"""The record of a session: which of its entries count, and what is refused."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest

from gateway.memory.store import UnreadableSession
from gateway.memory.stores.agentcore.client import StoredEvent
from gateway.memory.stores.agentcore.record import (
    Entry,
    Pin,
    actor,
    from_metadata,
    read,
    session,
    to_metadata,
    to_payload,
)
from gateway.memory.stores.agentcore.turn import Chain, labels
from tests.memory.conformance.base import OWNERS
from tests.memory.conversations import key


def entry(id_: str, parent: str, index: int, **more: Any) -> Entry:
    return Entry(id_, parent, index, "turn", key(), first="a", turns=index + 1, time=float(index), **more)


def stored(*data: Entry | Pin) -> list[StoredEvent]:
    return [StoredEvent(f"{n}#0", 0.0, to_payload(one), {}) for n, one in enumerate(data)]


A, B, C, D = entry("a", "", 0), entry("b", "a", 1), entry("c", "b", 2), entry("d", "c", 3)


def _name(order: tuple[Entry, ...]) -> str:
    return "".join(one.id for one in order)


@pytest.mark.parametrize("order", list(permutations([A, B, C])), ids=_name)
def test_last_entry_is_found_in_any_order(order: tuple[Entry, ...]) -> None:
    record = read(stored(*order))
    assert record.head == C
    assert [record.at(index) for index in range(4)] == [A, B, C, None]


@pytest.mark.parametrize("order", list(permutations([A, B, entry("z", "a", 1), C, entry("y", "z", 2)])), ids=_name)
def test_all_readers_agree_on_one_of_two_chains(order: tuple[Entry, ...]) -> None:
    assert read(stored(*order)).chain == [A, B, C]


def test_older_entries_may_be_gone() -> None:
    assert read(stored(D, C)).head == D
    assert read(stored(D, A)).head == D
    assert read([]).head is None


def test_entries_of_another_session_do_not_count() -> None:
    other = msgspec.structs.replace(B, key=key("other"))
    assert read(stored(A, other), key()).head == A


def test_latest_pin_of_the_session_counts() -> None:
    pins = Pin("a", 1, False), Pin("a", 0, True), Pin("old", 7, True)
    record = read(stored(A, *pins))
    assert record.session is not None
    assert not record.session.pinned
    assert record.superseded() == ["2#0", "3#0"]


def test_pin_outlives_its_event() -> None:
    record = read(stored(A, entry("b", "a", 1, pin_index=3, pinned=True)))
    assert record.session is not None
    assert record.session.pinned


@pytest.mark.parametrize(
    "payload",
    [
        [{"conversational": {"role": "USER", "content": {"text": "a"}}}],
        [{"blob": {"blobType": "mlc-gateway.session", "version": 2, "data": {}}}],
        [{"blob": {"blobType": "mlc-gateway.session", "version": 1, "data": {"id": "a"}}}],
        [{"blob": {"blobType": "mlc-gateway.pin", "version": 1, "data": {"index": "1"}}}],
    ],
    ids=["another writer", "later version", "incomplete entry", "malformed pin"],
)
def test_what_is_no_record_is_refused(payload: list[dict[str, Any]]) -> None:
    with pytest.raises(UnreadableSession):
        read([StoredEvent("1#0", 0.0, payload, {})])


# The chain of turns


def message(id_: str, turn: int, attempt: str, seq: int, root: str = "") -> StoredEvent:
    return StoredEvent(id_, 0.0, [], labels(turn, attempt, seq, f"turn {turn}"), attempt, root or None)


HEAD = Entry("x", "", 1, "turn", key(), turns=2, messages=4, branch_name="x", last_event_id="4#x")
FIRST = [message("1#a", 1, "a", 0), message("2#a", 1, "a", 1)]
SECOND = [message("3#x", 2, "x", 0, "2#a"), message("4#x", 2, "x", 1, "2#a")]
OTHERS = [message("3#y", 2, "y", 0, "2#a"), message("1#b", 1, "b", 0), StoredEvent("0#c", 0.0, [], {})]


@pytest.mark.parametrize("start", range(5))
def test_chain_is_complete_as_soon_as_the_wanted_messages_are_there(start: int) -> None:
    chain = Chain(HEAD, start)
    chain.add([*OTHERS, *SECOND])
    assert chain.complete == (start >= 2)
    chain.add(FIRST)
    assert chain.complete
    wanted = [found.event.id for found in chain.found if found.seq >= start]
    assert wanted == ["1#a", "2#a", "3#x", "4#x"][start:]


@pytest.mark.parametrize("missing", range(4))
def test_missing_event_is_noticed(missing: int) -> None:
    events = [*FIRST, *SECOND]
    del events[missing]
    chain = Chain(HEAD, 0)
    chain.add(events)
    assert not chain.complete
    assert chain.missing == ("2#a" if missing < 2 else "4#x")


def test_more_messages_than_the_record_says_are_refused() -> None:
    with pytest.raises(UnreadableSession, match="more messages"):
        Chain(msgspec.structs.replace(HEAD, messages=3), 0).add([*FIRST, *SECOND])


# Names


def test_each_owner_has_an_actor_of_its_own() -> None:
    for kind in ("mlc", "mlcrec", "mlcmed"):
        names = [actor(kind, owner) for owner in OWNERS]
        assert len(set(names)) == len(OWNERS)
        assert all(name.startswith(f"{kind}-") and len(name) <= 255 for name in names)


def test_names_are_escaped() -> None:
    assert actor("mlc", key(agent_id="A-1_b", tenant="t/ü").owner) == "mlc-A-1_5Fb__t_2F_C3_BC__"
    assert session(key("a_B-1")) == "gws-a_B-1"
    assert to_metadata("turn ü~=%/") == "turn=20=C3=BC=7E=3D=25=2F"
    assert from_metadata(to_metadata("turn ü~=%/")) == "turn ü~=%/"
