"""The transition tables: from every state the end can be reached, and nothing leaves it."""

from __future__ import annotations

import pytest

from gateway.http1.state import (
    CLIENT,
    EXCHANGE,
    UPSTREAM,
    Client,
    ClientEvent,
    Exchange,
    ExchangeEvent,
    Transitions,
    UnexpectedEvent,
    Upstream,
    UpstreamEvent,
)

TABLES = {
    "client": (CLIENT, Client, Client.IDLE, Client.CLOSED, ClientEvent),
    "upstream": (UPSTREAM, Upstream, Upstream.CONNECTING, Upstream.CLOSED, UpstreamEvent),
    "exchange": (EXCHANGE, Exchange, Exchange.WAITING, Exchange.FINISHED, ExchangeEvent),
}


def _reachable(table: Transitions, start: object) -> set[object]:
    found, ahead = {start}, [start]
    while ahead:
        state = ahead.pop()
        for (before, _), after in table.items():
            if before is state and after not in found:
                found.add(after)
                ahead.append(after)
    return found


@pytest.mark.parametrize(("table", "states", "start", "end", "events"), TABLES.values(), ids=TABLES)
def test_every_state_is_reached_and_reaches_the_end(table, states, start, end, events) -> None:
    assert _reachable(table, start) == set(states)
    assert all(end in _reachable(table, state) for state in states)
    assert {after for (before, _), after in table.items() if before is end} <= {end}
    assert {event for _, event in table} == set(events)


@pytest.mark.parametrize(
    ("table", "state", "event"),
    [
        (CLIENT, Client.RESPONSE, ClientEvent.REQUEST_READ),  # a second request before the first one is finished
        (CLIENT, Client.BODY, ClientEvent.RESPONSE_SENT),  # the rest of the body would be read as a request
        (CLIENT, Client.CLOSED, ClientEvent.LOST),
        (UPSTREAM, Upstream.SENT, UpstreamEvent.REQUEST),  # two requests on one connection
        (UPSTREAM, Upstream.HEAD, UpstreamEvent.COMPLETE),  # an interim response is not the last
        (UPSTREAM, Upstream.CLOSED, UpstreamEvent.REQUEST),
        (EXCHANGE, Exchange.FINISHED, ExchangeEvent.FINISH),  # counted twice
        (EXCHANGE, Exchange.ANSWERED, ExchangeEvent.ANSWER),  # two heads to the client
        (EXCHANGE, Exchange.ANSWERED, ExchangeEvent.SEND),
    ],
)
def test_an_event_that_is_not_in_the_table_is_an_error(table: Transitions, state: object, event: object) -> None:
    with pytest.raises(UnexpectedEvent, match=event.name):
        table.on(event)[state]
