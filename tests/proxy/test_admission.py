"""Caps and queues: the rules on timers of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.schema import Admission as Settings
from gateway.errors import GatewayError, Overloaded, TooManyRequests
from gateway.proxy.admission import Admission, Ticket, per_client_limit
from tests.conftest import examples, settings_for


@dataclass(eq=False)
class Timer:
    due: float
    then: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Desk:
    """An admission with timers that the test runs, and the result of each request."""

    over: dict[str, Any]
    results: dict[str, GatewayError | None] = field(default_factory=dict)
    tickets: dict[str, Ticket] = field(default_factory=dict)
    timers: list[Timer] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        settings = Settings(**{"per_client": 0, **self.over})
        self.admission = Admission(settings, settings.per_client, self._later)  # type: ignore[arg-type]

    def _later(self, seconds: float, then: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + seconds, then))
        return self.timers[-1]

    def ask(self, name: str) -> str:
        """One request; its client is the name's first letter. Return its immediate result."""
        try:
            ticket = self.admission.enter(name[0], lambda refusal: self.results.__setitem__(name, refusal))
        except GatewayError as refusal:
            return refusal.type
        self.tickets[name] = ticket
        return "runs" if ticket.admitted else "waits"

    def leave(self, name: str) -> None:
        self.tickets[name].leave()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for timer in [timer for timer in self.timers if timer.due <= self.now]:
            self.timers.remove(timer)
            if not timer.cancelled:
                timer.then()

    def running(self) -> set[str]:
        return {name for name, ticket in self.tickets.items() if ticket.admitted}


TOLD_APART = [{"admission": {"client_header": "X-Client"}}, {"listen": {"trusted_proxies": ["10.0.0.0/8"]}}]


@pytest.mark.parametrize("over", TOLD_APART, ids=["by header", "by proxies"])
def test_a_client_takes_half_of_the_connections_at_most_where_clients_can_be_told_apart(over: dict[str, Any]) -> None:
    assert per_client_limit(settings_for("http://c", over)) == 500


def test_users_behind_one_load_balancer_are_not_capped_together() -> None:
    assert per_client_limit(settings_for("http://c")) == 0


@pytest.mark.parametrize("limit", [0, 3])
def test_a_cap_that_is_set_counts_in_any_case(limit: int) -> None:
    for over in ({"admission": {}}, *TOLD_APART):
        admission = {**over.get("admission", {}), "per_client": limit}
        assert per_client_limit(settings_for("http://c", {**over, "admission": admission})) == limit


def test_without_caps_nothing_is_counted() -> None:
    desk = Desk({})
    assert [desk.ask(f"a{n}") for n in range(2000)] == ["runs"] * 2000
    desk.leave("a0")
    assert (desk.admission.limited, desk.admission.running) == (False, 0)


def test_the_cap_for_all_makes_the_next_wait_and_then_run_in_order() -> None:
    desk = Desk({"total": 2, "queue": 2})
    assert [desk.ask(name) for name in ("a", "b", "c", "d", "e")] == ["runs", "runs", "waits", "waits", "Overloaded"]
    assert desk.results == {}
    desk.leave("b")
    assert desk.results == {"c": None}
    desk.leave("a")
    assert desk.results == {"c": None, "d": None}
    for name in ("c", "d"):
        desk.leave(name)
    assert (desk.admission.running, desk.admission.waiting, desk.admission._clients) == (0, 0, {})


def test_a_client_at_its_cap_waits_for_its_own_and_others_go_by() -> None:
    desk = Desk({"per_client": 2})
    assert [desk.ask(f"a{n}") for n in range(5)] == ["runs", "runs", "waits", "waits", "TooManyRequests"]
    assert desk.ask("b0") == "runs"
    desk.leave("b0")
    assert desk.results == {}
    desk.leave("a1")
    assert desk.results == {"a2": None}


def test_a_flooding_client_never_fills_the_common_line() -> None:
    desk = Desk({"total": 3, "per_client": 2, "queue": 5})
    assert [desk.ask(f"a{n}") for n in range(6)] == ["runs"] * 2 + ["waits"] * 2 + ["TooManyRequests"] * 2
    assert [desk.ask(name) for name in ("b0", "b1", "b2")] == ["runs", "waits", "waits"]
    desk.leave("b0")  # b1 stands in the common line, b2 in that of b
    assert desk.results == {"b1": None}
    assert desk.ask("c0") == "waits"
    desk.leave("a0")  # b2 joined the common line when b0 left, before c0 came; a2 joins it now, behind c0
    assert desk.results == {"b1": None, "b2": None}
    desk.leave("b1")
    assert desk.results == {"b1": None, "b2": None, "c0": None}
    desk.leave("a1")
    assert desk.results == {"b1": None, "b2": None, "c0": None, "a2": None}


@pytest.mark.parametrize(
    ("over", "kind", "status"),
    [({"total": 1}, Overloaded, 503), ({"per_client": 1}, TooManyRequests, 429)],
    ids=["total", "per client"],
)
def test_whoever_waits_too_long_is_refused(over: dict[str, int], kind: type[GatewayError], status: int) -> None:
    desk = Desk({**over, "queue_seconds": 3.0, "retry_after": 7})
    assert [desk.ask("a0"), desk.ask("a1")] == ["runs", "waits"]
    desk.wait(2.9)
    assert desk.results == {}
    desk.wait(0.2)
    refusal = desk.results["a1"]
    assert isinstance(refusal, kind)
    assert (refusal.status, refusal.retry_after) == (status, 7)
    assert "already has 1 running request," in refusal.reason
    desk.leave("a1")
    desk.leave("a0")
    assert (desk.admission.running, desk.admission.waiting, desk.admission._clients) == (0, 0, {})


def test_without_a_queue_the_next_is_refused_at_once() -> None:
    desk = Desk({"total": 1, "per_client": 1, "queue": 0})
    assert [desk.ask("a0"), desk.ask("a1"), desk.ask("b0")] == ["runs", "TooManyRequests", "Overloaded"]


def test_waiting_has_no_end_where_none_is_set() -> None:
    desk = Desk({"total": 1, "queue_seconds": 0})
    desk.ask("a")
    assert desk.ask("b") == "waits"
    assert desk.timers == []


def test_whoever_goes_away_while_waiting_makes_room_and_is_told_nothing() -> None:
    desk = Desk({"total": 1, "per_client": 1, "queue": 2})
    assert [desk.ask(name) for name in ("a0", "a1", "b0", "c0")] == ["runs", "waits", "waits", "Overloaded"]
    desk.leave("b0")
    desk.leave("b0")
    desk.leave("a1")
    assert [desk.ask("c0"), desk.ask("d0")] == ["waits", "waits"]
    desk.wait(100)
    assert set(desk.results) == {"c0", "d0"}
    desk.leave("a0")
    assert desk.admission._clients == {}


def test_a_callback_may_leave_at_once() -> None:
    desk = Desk({"total": 1})
    desk.ask("a")
    second = desk.admission.enter("b", lambda _: second.leave())
    assert desk.ask("c") == "waits"
    desk.leave("a")
    assert desk.results == {"c": None}
    desk.leave("c")
    assert desk.admission.running == 0


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("abc")),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.floats(0, 3)),
    ),
    max_size=60,
)


@given(total=st.integers(0, 4), per_client=st.integers(0, 3), queue=st.integers(0, 4), steps=_STEPS)
@examples(100)
def test_caps_hold_nobody_is_forgotten_and_nothing_leaks(
    total: int, per_client: int, queue: int, steps: list[tuple[str, Any]]
) -> None:
    desk = Desk({"total": total, "per_client": per_client, "queue": queue, "queue_seconds": 2.0})
    here: list[str] = []
    gone: list[str] = []
    for number, (what, with_what) in enumerate(steps):
        if what == "ask":
            name = f"{with_what}{number}"
            if desk.ask(name) in ("runs", "waits"):
                here.append(name)
        elif what == "leave" and here:
            name = here.pop(with_what % len(here))
            desk.leave(name)
            desk.tickets.pop(name)
            gone.append(name)
        elif what == "wait":
            desk.wait(with_what)
        here = [name for name in here if not desk.results.get(name)]
        assert not any(desk.results.get(name) for name in gone)
        if not desk.admission.limited:
            continue
        running = {name for name in here if desk.tickets[name].admitted}
        waiting = set(here) - running
        assert (desk.admission.running, desk.admission.waiting) == (len(running), len(waiting))
        assert not total or len(running) <= total
        assert len(waiting) <= queue
        for client in "abc":
            its = sum(name[0] == client for name in running)
            assert not per_client or its <= per_client
            if any(name[0] == client for name in waiting):  # it waits for a reason
                assert (total and len(running) == total) or its == per_client
    for name in here:
        desk.leave(name)
    assert (desk.admission.running, desk.admission.waiting, desk.admission._clients) == (0, 0, {})
