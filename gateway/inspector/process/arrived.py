"""Exchanges as the recorder's process gets them, read from shared memory."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from multidict import CIMultiDict

from gateway.http1.response_heads import ResponseHead
from gateway.http1.rules import HeadLimits
from gateway.inspector.process.messages import READ_ITEMS, READ_TABLES, Batch, Item, ItemBodies, ItemCopy, Piece, Tables
from gateway.inspector.writer import Waiting
from gateway.observe.record import Delivery
from gateway.ports import Answer, Steps
from gateway.proxy.body_copy import BodyCopy, ResponseCopy
from gateway.proxy.capture import Bodies, Captured, Data, FieldLines
from gateway.proxy.routes import Route
from gateway.recent import Recent

_SHARED = 512
"""Most response heads, deliveries and renders that are kept: more than the gateway's process keeps numbers of."""

_Copy = TypeVar("_Copy", bound=BodyCopy)


class SentFields(NamedTuple):
    """See `FieldLines`."""

    lines: tuple[bytes, ...]
    length: int | None


class BatchReader:
    """Reads batches. limits: of responses."""

    def __init__(self, limits: HeadLimits) -> None:
        self._limits = limits
        self._heads: Recent[ResponseHead] = Recent(_SHARED)
        self._deliveries: Recent[Delivery] = Recent(_SHARED)
        self._renders: Recent[tuple[Callable[[str], str] | None]] = Recent(_SHARED)

    def read(self, batch: Batch, memory: memoryview) -> Iterator[Waiting]:
        """Yield the exchanges of a batch, in their order, some at a time. They hold no references to the memory."""
        start, size = batch.tables
        tables = READ_TABLES(memory[start : start + size])
        one = _Batch(self, tables, memory)
        lines = deque(tables.lines)
        for start, size in batch.chunks:
            waiting: Waiting = deque()
            for item in READ_ITEMS(memory[start : start + size]):
                while lines and lines[0][-1] < item.place:
                    waiting.append(one.passed(lines.popleft()))
                waiting.append((one.captured(item), item.size))
            yield waiting
        yield deque(map(one.passed, lines))

    def head(self, raw: bytes) -> ResponseHead:
        """Return a response's head; the same object for the same bytes."""
        return self._heads.get(raw, lambda: ResponseHead(raw, self._limits))

    def delivery(self, number: int, delivery: Delivery) -> Delivery:
        """Return a delivery; the same object for the same number."""
        return self._deliveries.get(number, lambda: delivery)

    def render(self, number: int, pickled: bytes) -> Callable[[str], str] | None:
        """Return what renders LLM calls."""
        return self._renders.get(number, lambda: (pickle.loads(pickled) if pickled else None,))[0]  # ours


class _Batch:
    """One batch that is read."""

    def __init__(self, reader: BatchReader, tables: Tables, memory: memoryview) -> None:
        self._memory = memory
        self._fields: list[FieldLines] = [SentFields(*fields) for fields in tables.fields]
        self._heads: list[ResponseHead | None] = [*map(reader.head, tables.heads), None]
        """The last one is found by the index -1."""
        self._deliveries = {number: reader.delivery(number, delivery) for number, delivery in tables.deliveries}
        self._renders = {number: reader.render(number, pickled) for number, pickled in tables.renders}

    def passed(self, line: tuple) -> tuple:  # type: ignore[type-arg]
        fields, method, target, minor, connection, client, started, answered_at, ended, status, head, _ = line
        times = started, answered_at, ended
        return self._fields[fields], method, target, minor, connection, client, *times, status, self._heads[head]

    def captured(self, item: Item) -> Captured:
        answer, head = item.answer, self._heads[item.head]
        return Captured(
            item.id,
            self._fields[item.fields],
            item.method,
            item.target,
            item.minor,
            Route(item.intent, item.kind, item.agent_id),
            item.connection,
            item.client,
            item.started,
            item.ended,
            item.status,
            item.answered_at,
            head,
            None if answer is None else Answer(answer[0], CIMultiDict(answer[1]), answer[2]),
            item.error,
            None if item.bodies is None else self._bodies(item.bodies),
            item.trace,
        )

    def _bodies(self, bodies: ItemBodies) -> Bodies:
        steps = None
        if bodies.steps is not None:
            steps = Steps(bodies.read_at)
            steps.taken = bodies.steps
        request: bytes | BodyCopy
        if bodies.copy is None:
            request = self._piece(bodies.request)
            sent = None if bodies.sent is None else self._sent(bodies.sent, bodies.request, request)
        else:
            request = self._copy(BodyCopy, bodies.copy)
            sent = None if bodies.sent is None else list(self._pieces(bodies.sent))
        response = None
        if bodies.response is not None:
            copy, head, decoded = bodies.response
            response = self._copy(ResponseCopy, copy)
            response.head, response.decoded = self._heads[head], decoded
        return Bodies(
            request,
            bodies.chunk_lines,
            bodies.sent_head,
            sent,
            response,
            None if bodies.relayed is None else self._pieces(bodies.relayed),
            self._deliveries.get(bodies.delivery),
            self._renders.get(bodies.render),
            bodies.read_at,
            bodies.sent_at,
            steps,
            bodies.guardrails,
        )

    def _copy(self, kind: type[_Copy], item: ItemCopy) -> _Copy:
        pieces, size, complete, limit = item
        copy = kind(limit)
        copy.pieces = self._pieces(pieces)
        copy.size, copy.complete = size, complete
        return copy

    def _pieces(self, pieces: Sequence[Piece]) -> list[bytes]:
        return [self._piece(piece) for piece in pieces]

    def _piece(self, piece: Piece) -> bytes:
        if isinstance(piece, bytes):
            return piece
        position, size = piece
        return bytes(self._memory[position : position + size])

    def _sent(self, sent: Sequence[Piece], whole: Piece, request: bytes) -> list[Data]:
        """Return the pieces that were sent; those that are parts of the request's body as views of it."""
        if isinstance(whole, bytes):
            return list(self._pieces(sent))
        start, view = whole[0], memoryview(request)
        found: list[Data] = []
        for piece in sent:
            if isinstance(piece, tuple) and start <= piece[0] and sum(piece) <= start + len(request):
                found.append(view[piece[0] - start : sum(piece) - start])
            else:
                found.append(self._piece(piece))
        return found
