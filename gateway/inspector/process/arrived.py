"""Exchanges as the recorder's process gets them, read from the memory of the gateway's process."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from multidict import CIMultiDict

from gateway.http1.response_heads import ResponseHead
from gateway.http1.rules import HeadLimits
from gateway.inspector.process.messages import (
    READ_CHUNK,
    READ_CHUNK_APART,
    READ_ITEM,
    READ_LINE,
    READ_TABLES,
    Batch,
    Item,
    ItemBodies,
    ItemResponse,
    LineItem,
    Piece,
    Tables,
)
from gateway.inspector.process.own_memory import MemoryGone, read_memory
from gateway.inspector.writer import Waiting
from gateway.observe.record import Delivery
from gateway.ports import Answer, Steps
from gateway.proxy.body_copy import BodyCopy, ResponseCopy
from gateway.proxy.capture import Bodies, Captured, Data, FieldLines, Passed, Render
from gateway.recent import Recent

_SHARED = 512
"""Most response heads, deliveries and renders that are kept: more than the gateway's process keeps numbers of."""

_Copy = TypeVar("_Copy", bound=BodyCopy)


class SentFields(NamedTuple):
    """See `FieldLines`."""

    lines: tuple[bytes, ...]
    length: int | None


class BatchReader:
    """Reads batches. limits: of responses. memory: a descriptor of the memory where they are.

    note_fault: called with why an exchange can't be read.
    """

    def __init__(self, limits: HeadLimits, memory: int, note_fault: Callable[[Exception], None]) -> None:
        self._limits = limits
        self._note_fault = note_fault
        self._read = partial(read_memory, memory)
        self._heads: Recent[ResponseHead] = Recent(_SHARED)
        self._deliveries: Recent[Delivery] = Recent(_SHARED)
        self._renders: Recent[tuple[Render | None]] = Recent(_SHARED)

    def read(self, batch: Batch) -> Iterator[Waiting]:
        """Yield the exchanges of a batch, in their order, some at a time.

        Raises:
            MemoryGone: the gateway's process has died.
        """
        one = _Batch(self, READ_TABLES(self._read(*batch.tables)), self._read)
        for chunk in batch.chunks:
            data = self._read(*chunk)
            try:
                waiting = one.exchanges(*READ_CHUNK(data))
            except MemoryGone:
                raise
            except Exception:
                waiting = self._read_apart(one, data)
            yield waiting

    def _read_apart(self, one: _Batch, data: bytes) -> Waiting:
        """Return the exchanges of a chunk of which one or more can't be read, without these."""
        waiting: Waiting = deque()
        items, lines = READ_CHUNK_APART(data)
        done = 0
        for before, line in [*lines, (len(items), None)]:
            reads = [partial(_read_item, one, item) for item in items[done:before]]
            done = before
            for read in reads if line is None else [*reads, partial(_read_line, one, line)]:
                try:
                    waiting += read()
                except MemoryGone:
                    raise
                except Exception as error:
                    self._note_fault(error)
        return waiting

    def head(self, raw: bytes) -> ResponseHead:
        """Return a response's head; the same object for the same bytes."""
        return self._heads.get(raw, lambda: ResponseHead(raw, self._limits))

    def delivery(self, number: int, delivery: Delivery) -> Delivery:
        """Return a delivery; the same object for the same number."""
        return self._deliveries.get(number, lambda: delivery)

    def render(self, number: int, pickled: bytes) -> Render | None:
        """Return what renders LLM calls."""
        return self._renders.get(number, lambda: (_unpickled(pickled),))[0]


def _read_item(one: _Batch, data: msgspec.Raw) -> Waiting:
    return one.exchanges([READ_ITEM(data)], [])


def _read_line(one: _Batch, data: msgspec.Raw) -> Waiting:
    return one.exchanges([], [(0, READ_LINE(data))])


class _Batch:
    """One batch that is read. read: returns the bytes of a place."""

    def __init__(self, reader: BatchReader, tables: Tables, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._places = tables.places
        self._fields: list[FieldLines] = [SentFields(*fields) for fields in tables.fields]
        self._heads = tables.heads
        self._read_head = reader.head
        self._deliveries: dict[int | None, Delivery] = {
            number: reader.delivery(number, delivery) for number, delivery in tables.deliveries
        }
        self._renders: dict[int | None, Render | None] = {
            number: reader.render(number, pickled) for number, pickled in tables.renders
        }

    def exchanges(self, items: list[Item], lines: list[tuple[int, LineItem]]) -> Waiting:
        """Return the exchanges of a chunk in their order."""
        waiting: Waiting = deque()
        done = 0
        for before, line in lines:
            waiting += map(self.sized, items[done:before])
            waiting.append(self.passed(line))
            done = before
        waiting += map(self.sized, items[done:])
        return waiting

    def head(self, index: int) -> ResponseHead:
        return self._read_head(self._heads[index])

    def sized(self, item: Item) -> tuple[Captured, int]:
        captured = self.captured(item)
        return captured, captured.bodies.size if captured.bodies is not None else 0

    def passed(self, line: tuple[Any, ...]) -> Passed:
        fields, *values, head = line
        return self._fields[fields], *values, None if head is None else self.head(head)

    def captured(self, item: Item) -> Captured:
        answer = item.answer
        return Captured(
            item.id,
            self._fields[item.fields],
            item.method,
            item.target,
            item.minor,
            item.route,
            item.connection,
            item.client,
            item.started,
            item.ended,
            item.status,
            item.answered_at,
            None if item.head is None else self.head(item.head),
            None if answer is None else Answer(answer.status, CIMultiDict(answer.headers), answer.body),
            item.error,
            None if item.bodies is None else self._bodies(item.bodies),
            item.trace,
        )

    def _bodies(self, bodies: ItemBodies) -> Bodies:
        steps = None
        if bodies.steps is not None:
            steps = Steps(bodies.read_at)
            steps.taken = bodies.steps
        request = self._copy(*bodies.request) if isinstance(bodies.request, tuple) else self._piece(bodies.request)
        return Bodies(
            request,
            bodies.chunk_lines,
            bodies.sent_head,
            None if bodies.sent is None else self._sent(bodies.sent, bodies.request, request),
            self._response(bodies.response),
            None if bodies.relayed is None else self._pieces(bodies.relayed),
            self._deliveries.get(bodies.delivery),
            self._renders.get(bodies.render),
            bodies.read_at,
            bodies.sent_at,
            steps,
            bodies.guardrails,
        )

    def _copy(self, pieces: list[Piece], size: int, complete: bool, limit: int) -> BodyCopy:
        return _fill(BodyCopy(limit), self._pieces(pieces), size, complete)

    def _response(self, response: ItemResponse | Piece | None) -> ResponseCopy | bytes | None:
        if not isinstance(response, tuple):
            return None if response is None else self._piece(response)
        pieces, size, complete, limit, head, decoded = response
        copy = ResponseCopy(limit, self.head(head), decoded, b"", complete)
        return _fill(copy, self._pieces(pieces), size, complete)

    def _pieces(self, pieces: Sequence[Piece]) -> list[bytes]:
        return [self._piece(piece) for piece in pieces]

    def _piece(self, piece: Piece) -> bytes:
        return self._read(*self._places[piece]) if isinstance(piece, int) else piece

    def _sent(self, sent: Sequence[Piece], place: object, request: object) -> list[Data]:
        """Return the pieces that were sent; those that are parts of the request's body as views of it.

        place: of the request's body, if that is large.
        """
        if not isinstance(place, int) or not isinstance(request, bytes):
            return list(self._pieces(sent))
        start, length = self._places[place]
        view = memoryview(request)
        found: list[Data] = []
        for piece in sent:
            at, size = self._places[piece] if isinstance(piece, int) else (-1, 0)
            if start <= at and at + size <= start + length:
                found.append(view[at - start : at - start + size])
            else:
                found.append(self._piece(piece))
        return found


def _unpickled(pickled: bytes) -> Render | None:
    """Return what renders LLM calls; None if it can't be read. The gateway's process wrote it."""
    with suppress(Exception):
        return pickle.loads(pickled) if pickled else None
    return None


def _fill(copy: _Copy, pieces: list[bytes], size: int, complete: bool) -> _Copy:
    copy.pieces, copy.size, copy.complete = pieces, size, complete
    return copy
