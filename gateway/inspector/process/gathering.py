"""Exchanges that wait to be recorded, gathered in shared memory."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gateway.http1.response_heads import ResponseHead
from gateway.inspector.process.messages import ENCODER, Batch, LineItem, Plan
from gateway.inspector.process.shared_memory import SharedMemory
from gateway.inspector.stores.encoding import replace_surrogates
from gateway.observe.record import Delivery
from gateway.proxy.body_copy import BodyCopy, ResponseCopy
from gateway.proxy.capture import Bodies, Captured, Data, FieldLines, Passed

_HEADER = b"\xdd\0\0\0\0"
"""MessagePack's beginning of an array; the last four bytes are its length."""
_CHUNK = 32_768
"""Bytes of exchanges that are copied to the memory at a time: few enough for the processor's caches."""
_LARGE = 16_384
"""Bytes from which a piece of a body is copied to the memory at once."""
_BEGINNING = 64
_NUMBERED = 256
"""Most deliveries, and most renders, that keep their numbers."""

_Object = TypeVar("_Object")


class Numbers:
    """Numbers of objects that many exchanges share. One that was dropped gets another number when it comes back."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._last = 0

    def of(self, thing: object) -> int:
        """Return the number of an object, from 1 on."""
        known = self._known.get(id(thing))  # the object is kept, so no other one has its id
        if known is None:
            if len(self._known) >= _NUMBERED:
                self._known.clear()
            self._last += 1
            known = self._known[id(thing)] = thing, self._last
        return known[1]


class Gathering:
    """Exchanges in one of two memories. index: which one. numbers: those of the other gathering too.

    count, size: of the exchanges, and bytes of their bodies.
    """

    def __init__(self, index: int, memory: SharedMemory, numbers: Numbers) -> None:
        self._index = index
        self._memory = memory
        self._numbers = numbers
        self._pickled: dict[int, bytes] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all exchanges."""
        self.count = self.size = 0
        self._position = 0
        self._items = bytearray(_HEADER)
        self._items_count = 0
        self._chunks: list[tuple[int, int]] = []
        self._fields: dict[FieldLines, int] = {}
        self._heads: dict[ResponseHead | None, int] = {None: -1}
        self._numbers_here = {id(None): 0}
        """Numbers of deliveries and renders of these exchanges, by `id`. They are kept, so no other object has it."""
        self._kept: list[object] = []
        self._deliveries: list[tuple[int, Delivery | None]] = []
        self._renders: list[tuple[int, bytes]] = []
        self._lines: list[LineItem] = []

    def add_passed(self, passed: Passed) -> None:
        """Add a request that passed unchanged."""
        fields, method, target, minor, connection, client, started, answered_at, ended, status, head = passed
        fields_at, head_at = self._places(fields, head)
        times = started, answered_at, ended
        self._lines.append((fields_at, method, target, minor, connection, client, *times, status, head_at, self.count))
        self.count += 1

    def add(self, captured: Captured, size: int) -> None:
        """Add an exchange. size: bytes of its bodies, as `Bodies.size`.

        Raises:
            OSError: there is no more memory.
        """
        fields, head, answer, route = captured.fields, captured.head, captured.answer, captured.route
        fields_at, head_at = self._places(fields, head)
        bodies = captured.bodies
        item = (
            self.count,
            size,
            captured.id,
            fields_at,
            captured.method,
            captured.target,
            captured.minor,
            route.intent,
            route.kind,
            route.id,
            captured.connection,
            captured.client,
            captured.started,
            captured.ended,
            captured.status,
            captured.answered_at,
            head_at,
            None if answer is None else (answer.status, _texts(answer.headers), answer.body),
            captured.error,
            None if bodies is None else self._bodies(bodies, size < _LARGE),
            captured.trace,
        )
        end = len(self._items)
        try:
            ENCODER.encode_into(item, self._items, -1)
        except UnicodeEncodeError:
            del self._items[end:]
            ENCODER.encode_into(_without_surrogates(item), self._items, -1)
        self._items_count += 1
        self.count += 1
        self.size += size
        if len(self._items) >= _CHUNK:
            self._end_chunk()

    def _end_chunk(self) -> None:
        """Copy the exchanges since the last chunk to the memory."""
        items, start = self._items, self._position
        items[1:5] = self._items_count.to_bytes(4, "big")
        self._position = self._memory.write(start, items)
        self._chunks.append((start, len(items)))
        del items[5:]
        self._items_count = 0

    def _places(self, fields: FieldLines, head: ResponseHead | None) -> tuple[int, int]:
        """Return the indexes in the tables of a request's header fields and of a response's head."""
        fields_at = self._fields.get(fields)
        if fields_at is None:
            fields_at = self._fields[fields] = len(self._fields)
        head_at = self._heads.get(head)
        return fields_at, self._add_head(head) if head_at is None else head_at

    def _add_head(self, head: ResponseHead | None) -> int:
        """Return the index that a response's head has from now on."""
        index = self._heads[head] = len(self._heads) - 1
        return index

    def _bodies(self, bodies: Bodies, is_small: bool) -> tuple[object, ...]:
        """Return `ItemBodies`. is_small: their pieces go into the item."""
        request, response, sent = bodies.request, bodies.response, bodies.sent
        delivery, render = bodies.delivery, bodies.render
        number = self._numbers_here.get(id(delivery))
        if number is None:
            number = self._add_delivery(delivery)
        rendered = self._numbers_here.get(id(render))
        if rendered is None:
            rendered = self._add_render(render)
        piece: object = request
        copy = None
        if isinstance(request, BodyCopy):
            piece, copy = b"", self._copy(request, is_small)
        elif not is_small:
            piece = self._piece(request)
        sent_pieces: Sequence[object] | None = sent
        if sent is not None and not is_small:
            sent_pieces = self._sent(sent, request, piece)
        steps, relayed = bodies.steps, bodies.relayed
        return (
            piece,
            copy,
            bodies.chunk_lines,
            bodies.sent_head,
            sent_pieces,
            None if response is None else self._response(response, is_small),
            relayed if is_small or relayed is None else self._pieces(relayed),
            number,
            rendered,
            bodies.read_at,
            bodies.sent_at,
            None if steps is None else steps.taken,
            bodies.guardrails,
        )

    def _response(self, response: ResponseCopy, is_small: bool) -> tuple[object, ...]:
        head_at = self._heads.get(response.head)
        if head_at is None:
            head_at = self._add_head(response.head)
        return self._copy(response, is_small), head_at, response.decoded

    def _add_delivery(self, delivery: Delivery | None) -> int:
        """Return the number of a delivery, which is in the tables from now on."""
        number = self._numbers_here[id(delivery)] = self._numbers.of(delivery)
        self._deliveries.append((number, delivery))
        return number

    def _add_render(self, render: object) -> int:
        """Return the number of what renders LLM calls, which is in the tables from now on."""
        number = self._numbers_here[id(render)] = self._numbers.of(render)
        self._renders.append((number, self._pickle(number, render)))
        self._kept.append(render)
        return number

    def _pickle(self, number: int, render: object) -> bytes:
        """Return what renders LLM calls as bytes; b"" if it has no such form."""
        known = self._pickled.get(number)
        if known is None:
            if len(self._pickled) >= _NUMBERED:
                self._pickled.clear()
            try:
                known = pickle.dumps(render)
            except Exception:  # of any class: those of a provider's own package
                known = b""
            self._pickled[number] = known
        return known

    def _copy(self, copy: BodyCopy, is_small: bool) -> tuple[object, ...]:
        """Return an `ItemCopy`."""
        return copy.pieces if is_small else self._pieces(copy.pieces), copy.size, copy.complete, copy.limit

    def _pieces(self, pieces: Iterable[Data]) -> list[object]:
        return [self._piece(piece) for piece in pieces]

    def _piece(self, piece: Data) -> Data | tuple[int, int]:
        """Return a piece of a body, or the place to which a large one is copied."""
        size = len(piece)
        if size < _LARGE:
            return piece
        position = self._position
        self._position = self._memory.write(position, piece)
        return position, size

    def _sent(self, sent: Sequence[Data], request: object, place: object) -> list[object]:
        """Return the pieces that were sent. Those that are parts of the request's body are not copied again.

        place: of the request's body.
        """
        if not isinstance(place, tuple) or not isinstance(request, bytes):
            return self._pieces(sent)
        found: list[object] = []
        for part in sent:
            at = _find_part(request, part) if isinstance(part, memoryview) and part.obj is request else -1
            found.append(self._piece(part) if at < 0 else (place[0] + at, len(part)))
        return found

    def finish(self) -> bytes:
        """Return the message that announces the exchanges, which are all in the memory now.

        Raises:
            OSError: there is no more memory.
        """
        if self._items_count:
            self._end_chunk()
        fields = [(list(field.lines), field.length) for field in self._fields]
        heads = [head.raw for head in self._heads if head is not None]
        tables = (fields, heads, self._deliveries, self._renders, self._lines)
        try:
            encoded = ENCODER.encode(tables)
        except UnicodeEncodeError:
            encoded = ENCODER.encode(_without_surrogates(tables))
        start = self._position
        end = self._memory.write(start, encoded)
        return ENCODER.encode(Batch(self._index, self._memory.size, self._chunks, (start, end - start)))

    def finish_plan(self, plan: Plan) -> bytes:
        """As `finish`, for what the process needs to know before the first exchanges."""
        size = self._memory.write(0, pickle.dumps(plan))
        return ENCODER.encode(Batch(self._index, self._memory.size, [], (0, size)))


def _texts(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return names and values as plain `str`: a multidict has names of a class of its own."""
    return [(str(name), str(value)) for name, value in headers.items()]


def _without_surrogates(values: tuple[object, ...]) -> Any:
    """Return values with U+FFFD in place of surrogates, which have no UTF-8 form."""
    return replace_surrogates(msgspec.to_builtins(values, builtin_types=(bytes, memoryview)))


def _find_part(whole: bytes, part: memoryview) -> int:
    """Return where `part` is in `whole`; -1 if it is not there, or a piece like its beginning is before it."""
    at = whole.find(part[:_BEGINNING])
    return at if at >= 0 and whole.startswith(part, at) else -1
