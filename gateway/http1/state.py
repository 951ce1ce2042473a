"""The states of both kinds of connections and of an exchange, as transition tables.

Each table lists, per state, the events that may happen in it and the state that follows. Any other event raises
`UnexpectedEvent`: for example, an exchange cannot be finished twice, and a connection cannot take a second request
before the first one is finished. Everything that arrives within a state, such as the pieces of a body, is no event.

Those who move between states with each request keep states and moves as constants of their module: to look up a member
of an Enum takes longer than the move.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar


class _Member(Enum):
    """An enum whose members hash by identity, which is several times as fast as Enum's hash of the name."""

    __hash__ = object.__hash__


class UnexpectedEvent(Exception):
    """An event has no row for the current state: a fault of the code that reports the event."""


_State = TypeVar("_State", bound=_Member)
_Event = TypeVar("_Event", bound=_Member)


class Moves(dict[_State, _State]):
    """What one event does: the state to the next state. Raises UnexpectedEvent in any other state."""

    def __init__(self, event: _Member, moves: Mapping[_State, _State]) -> None:
        super().__init__(moves)
        self._event = event

    def __missing__(self, state: _State) -> _State:
        raise UnexpectedEvent(f"{self._event.name} in the state {state.name}")


class Transitions(dict[tuple[_State, _Event], _State]):
    """(state, event) to the next state."""

    def __init__(self, table: Mapping[_State, Mapping[_Event, _State]]) -> None:
        super().__init__({(state, event): after for state, row in table.items() for event, after in row.items()})

    def on(self, event: _Event) -> Moves[_State]:
        """Return the column of `event`: what a connection looks up, at the cost of one identity hash."""
        return Moves(event, {state: after for (state, each), after in self.items() if each is event})


class Client(_Member):
    """State of a client's connection: what the next bytes from the client are."""

    IDLE = "the first bytes of a request"
    HEAD = "the rest of a request's head"
    BODY = "more of a request's body"
    RESPONSE = "pipelined requests; a response is under way"
    PIPELINED = "pipelined requests; the next one is read in a later turn of the loop, or once the client reads again"
    TUNNEL = "another protocol's"
    CLOSING = "discarded: the last response is written, or the connection is cut"
    CLOSED = "none: the connection is gone"


class ClientEvent(_Member):
    """What happens on a client's connection."""

    HEAD_BEGAN = "the first bytes of a head arrived, and not all of it"
    HEAD_READ = "the head of a request with a body arrived"
    REQUEST_READ = "the request has arrived in full"
    RESPONSE_SENT = "the response is complete, the client reads, and nothing else is buffered"
    NEXT_BUFFERED = "the response is complete; the next request is buffered, or the client does not read"
    NEXT = "the buffered request is read, if there is one"
    SWITCHED = "the cluster accepted the upgrade to another protocol"
    LAST_SENT = "nothing more will be sent on this connection, or it is cut"
    LOST = "the transport is gone"


CLIENT: Transitions[Client, ClientEvent] = Transitions(
    {
        Client.IDLE: {
            ClientEvent.HEAD_BEGAN: Client.HEAD,
            ClientEvent.HEAD_READ: Client.BODY,
            ClientEvent.REQUEST_READ: Client.RESPONSE,
            ClientEvent.LAST_SENT: Client.CLOSING,
            ClientEvent.LOST: Client.CLOSED,
        },
        Client.HEAD: {
            ClientEvent.HEAD_READ: Client.BODY,
            ClientEvent.REQUEST_READ: Client.RESPONSE,
            ClientEvent.LAST_SENT: Client.CLOSING,
            ClientEvent.LOST: Client.CLOSED,
        },
        # A response that is complete before its request leaves bytes that nobody may take for a request.
        Client.BODY: {
            ClientEvent.REQUEST_READ: Client.RESPONSE,
            ClientEvent.LAST_SENT: Client.CLOSING,
            ClientEvent.LOST: Client.CLOSED,
        },
        Client.RESPONSE: {
            ClientEvent.RESPONSE_SENT: Client.IDLE,
            ClientEvent.NEXT_BUFFERED: Client.PIPELINED,
            ClientEvent.SWITCHED: Client.TUNNEL,  # only a request without a body may ask for an upgrade
            ClientEvent.LAST_SENT: Client.CLOSING,
            ClientEvent.LOST: Client.CLOSED,
        },
        Client.PIPELINED: {
            ClientEvent.NEXT: Client.IDLE,
            ClientEvent.LAST_SENT: Client.CLOSING,
            ClientEvent.LOST: Client.CLOSED,
        },
        Client.TUNNEL: {
            ClientEvent.LAST_SENT: Client.CLOSING,
            ClientEvent.LOST: Client.CLOSED,
        },
        Client.CLOSING: {
            ClientEvent.LAST_SENT: Client.CLOSING,  # cut while the client took in the last response
            ClientEvent.LOST: Client.CLOSED,
        },
        Client.CLOSED: {},
    }
)


class Upstream(_Member):
    """State of a connection to the cluster: how far the response is. The request may still be on its way."""

    CONNECTING = "there is no transport yet"
    IDLE = "connected, without a request"
    SENT = "a request is sent, or is being sent; nothing of the response has arrived"
    HEAD = "something of the response's head has arrived"
    BODY = "the response's head has been read"
    TUNNEL = "the connection speaks another protocol"
    CLOSED = "no request may use the connection any more"


class UpstreamEvent(_Member):
    """What happens on a connection to the cluster."""

    CONNECTED = "the transport is there"
    REQUEST = "a request begins"
    RESPONSE_BEGAN = "the first bytes of the response arrived"
    INTERIM = "a 1xx response other than 101 was read"
    HEAD_READ = "the head of the final response was read"
    SWITCHED = "the cluster accepted the upgrade to another protocol"
    COMPLETE = "the response is complete, and the connection can be used again"
    CLOSE = "the connection is closed or cut by the gateway"
    LOST = "the transport is gone"


UPSTREAM: Transitions[Upstream, UpstreamEvent] = Transitions(
    {
        Upstream.CONNECTING: {
            UpstreamEvent.CONNECTED: Upstream.IDLE,
        },
        Upstream.IDLE: {
            UpstreamEvent.REQUEST: Upstream.SENT,
            UpstreamEvent.CLOSE: Upstream.CLOSED,
            UpstreamEvent.LOST: Upstream.CLOSED,
        },
        Upstream.SENT: {
            UpstreamEvent.RESPONSE_BEGAN: Upstream.HEAD,
            UpstreamEvent.CLOSE: Upstream.CLOSED,
            UpstreamEvent.LOST: Upstream.CLOSED,
        },
        Upstream.HEAD: {
            UpstreamEvent.INTERIM: Upstream.HEAD,
            UpstreamEvent.HEAD_READ: Upstream.BODY,
            UpstreamEvent.SWITCHED: Upstream.TUNNEL,
            UpstreamEvent.CLOSE: Upstream.CLOSED,
            UpstreamEvent.LOST: Upstream.CLOSED,
        },
        Upstream.BODY: {
            UpstreamEvent.COMPLETE: Upstream.IDLE,
            UpstreamEvent.CLOSE: Upstream.CLOSED,
            UpstreamEvent.LOST: Upstream.CLOSED,
        },
        Upstream.TUNNEL: {
            UpstreamEvent.CLOSE: Upstream.CLOSED,
            UpstreamEvent.LOST: Upstream.CLOSED,
        },
        Upstream.CLOSED: {
            UpstreamEvent.CLOSE: Upstream.CLOSED,
            UpstreamEvent.LOST: Upstream.CLOSED,
        },
    }
)


class Exchange(_Member):
    """State of one request and its response, between the two connections."""

    WAITING = "nothing has gone to the cluster yet"
    SENT = "the request is with the upstream side; the client has nothing of a final response"
    ANSWERED = "the head of the cluster's response has gone to the client"
    TUNNEL = "both sides speak another protocol"
    FINISHED = "the exchange is over and counted"


class ExchangeEvent(_Member):
    """What happens to an exchange."""

    SEND = "the request is handed to the upstream side; a rewritten request may follow a refused one"
    ANSWER = "the head of the final response is written to the client"
    SWITCH = "a 101 is written to the client"
    FINISH = "the exchange ends, with a response, an error or without its client"


EXCHANGE: Transitions[Exchange, ExchangeEvent] = Transitions(
    {
        Exchange.WAITING: {
            ExchangeEvent.SEND: Exchange.SENT,
            ExchangeEvent.FINISH: Exchange.FINISHED,
        },
        Exchange.SENT: {
            ExchangeEvent.SEND: Exchange.SENT,
            ExchangeEvent.ANSWER: Exchange.ANSWERED,
            ExchangeEvent.SWITCH: Exchange.TUNNEL,
            ExchangeEvent.FINISH: Exchange.FINISHED,
        },
        Exchange.ANSWERED: {
            ExchangeEvent.FINISH: Exchange.FINISHED,
        },
        Exchange.TUNNEL: {
            ExchangeEvent.FINISH: Exchange.FINISHED,
        },
        Exchange.FINISHED: {},
    }
)
