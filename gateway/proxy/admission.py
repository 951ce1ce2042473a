"""Limits how many requests run at a time: in total and per client, with a bounded queue for each limit.

A request needs a slot of its client's, then a slot of the total. At its client's limit it waits in that client's queue,
which is at most as long as the limit itself; at the total limit it waits in the common queue. All queues together hold
at most `admission.queue` requests. So a client that sends too much fills its own queue and gets 429; only many clients
together fill the common queue, which means 503.

Every step takes constant time and needs no task. Without a limit, nothing is counted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from gateway.config.schema import Admission as AdmissionSettings
from gateway.config.schema import Settings
from gateway.errors import GatewayError, Overloaded, TooManyRequests

Then = Callable[[GatewayError | None], None]
"""Called once, later: with None when the request may run, or with the error that refuses it."""


class Timer(Protocol):
    """What `Later` returns, such as asyncio's TimerHandle."""

    def cancel(self) -> None:
        """Cancel the call."""


Later = Callable[[float, Callable[[], None]], Timer]


class Ticket:
    """A request's slot. admitted: the request may run. `leave` must be called when the request has ended."""

    __slots__ = ("_admission", "_client", "_line", "_then", "_timer", "admitted")

    def __init__(self, admission: Admission | None, client: _Client | None = None) -> None:
        self.admitted = True
        self._admission = admission
        self._client = client
        self._line: OrderedDict[Ticket, None] | None = None
        self._then: Then | None = None
        self._timer: Timer | None = None

    def leave(self) -> None:
        """Free the slot: the request has ended, or was dropped while it waited. May be called again."""
        if self._admission is not None:
            admission, self._admission = self._admission, None
            admission.left(self)

    def settle(self) -> Then | None:
        """End the wait. Return the callback, unless it has been called."""
        if self._timer is not None:
            self._timer.cancel()
        then, self._timer, self._then = self._then, None, None
        return then


class _Client:
    """A client with requests. held: slots that it uses. line: its requests that wait for a slot."""

    __slots__ = ("held", "key", "line")

    def __init__(self, key: str) -> None:
        self.key = key
        self.held = 0
        self.line: OrderedDict[Ticket, None] = OrderedDict()


_FREE = Ticket(None)


def _call_later(seconds: float, then: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, then)


def per_client_limit(settings: Settings) -> int:
    """Return the limit of one client's requests, 0 for none; see `admission.per_client`."""
    limit = settings.admission.per_client
    if limit != "auto":
        return limit
    distinguishable = settings.admission.client_header or settings.listen.trusted_proxies
    return max(1, settings.upstream.connections // 2) if distinguishable else 0


class Admission:
    """Counts the requests that run and those that wait.

    per_client: limit of one client's requests, 0 for none. later: calls a function after a number of seconds.
    """

    def __init__(self, settings: AdmissionSettings, per_client: int, later: Later = _call_later) -> None:
        self._settings = settings
        self._total = settings.total
        self._per_client = per_client
        self._later = later
        self._clients: dict[str, _Client] = {}
        self._line: OrderedDict[Ticket, None] = OrderedDict()
        self.limited = bool(settings.total or per_client)
        self.running = 0
        self.waiting = 0

    def enter(self, key: str, then: Then) -> Ticket:
        """Return a ticket for one request. If it is not admitted at once, `then` is called later.

        key: identifies the client.

        Raises:
            TooManyRequests, Overloaded: the queue is full too.
        """
        if not self.limited:
            return _FREE
        client = self._clients.get(key) or _Client(key)
        ticket = Ticket(self, client)
        if self._per_client and client.held >= self._per_client:
            if len(client.line) >= self._per_client or self.waiting >= self._settings.queue:
                raise self._refusal(TooManyRequests)
            self._wait(ticket, client.line, then)
        elif self._full():
            if self.waiting >= self._settings.queue:
                raise self._refusal(Overloaded)
            client.held += 1
            self._wait(ticket, self._line, then)
        else:
            client.held += 1
            self.running += 1
        self._clients[key] = client
        return ticket

    def left(self, ticket: Ticket) -> None:
        """Free the slot of `ticket`, running or waiting. Called by `Ticket.leave`."""
        if ticket._line is None:
            self.running -= 1
        ticket.settle()
        self._advance(self._release(ticket))

    def _full(self) -> bool:
        return bool(self._total) and self.running >= self._total

    def _wait(self, ticket: Ticket, line: OrderedDict[Ticket, None], then: Then) -> None:
        ticket.admitted = False
        ticket._then = then
        self._join(ticket, line)
        if seconds := self._settings.queue_seconds:
            ticket._timer = self._later(seconds, lambda: self._expire(ticket))

    def _join(self, ticket: Ticket, line: OrderedDict[Ticket, None]) -> None:
        line[ticket] = None
        ticket._line = line
        self.waiting += 1

    def _remove(self, ticket: Ticket) -> None:
        if ticket._line is not None:
            del ticket._line[ticket]
            ticket._line = None
            self.waiting -= 1

    def _expire(self, ticket: Ticket) -> None:
        assert ticket._client is not None
        kind = TooManyRequests if ticket._line is ticket._client.line else Overloaded
        ticket._admission = None
        self._advance(self._release(ticket))
        self._notify(ticket, self._refusal(kind))

    def _release(self, ticket: Ticket) -> _Client:
        """Remove `ticket` from its queue, and free its client's slot if it had one."""
        client = ticket._client
        assert client is not None
        if ticket._line is not client.line:
            client.held -= 1
        self._remove(ticket)
        return client

    def _advance(self, client: _Client) -> None:
        """Admit the requests for which there is a slot now, those in the common queue first."""
        ready: list[Ticket] = []
        while self._line and not self._full():
            self._run(next(iter(self._line)), ready)
        while client.line and client.held < self._per_client:
            ticket = next(iter(client.line))
            client.held += 1
            if self._full():
                self._remove(ticket)
                self._join(ticket, self._line)
            else:
                self._run(ticket, ready)
        if not client.held and not client.line:
            del self._clients[client.key]
        for ticket in ready:
            self._notify(ticket, None)

    def _run(self, ticket: Ticket, ready: list[Ticket]) -> None:
        self._remove(ticket)
        self.running += 1
        ticket.admitted = True
        ready.append(ticket)

    def _notify(self, ticket: Ticket, refusal: GatewayError | None) -> None:
        then = ticket.settle()
        if then is not None:
            then(refusal)

    def _refusal(self, kind: type[TooManyRequests] | type[Overloaded]) -> GatewayError:
        if kind is TooManyRequests:
            error: GatewayError = TooManyRequests(
                f"This client already has {_requests(self._per_client)}, which is its limit "
                "(setting admission.per_client). Try again later."
            )
        else:
            error = Overloaded(
                f"The gateway already has {_requests(self._total)}, which is its limit "
                "(setting admission.total). Try again later."
            )
        error.retry_after = self._settings.retry_after
        return error


def _requests(count: int) -> str:
    return "1 running request" if count == 1 else f"{count} running requests"
