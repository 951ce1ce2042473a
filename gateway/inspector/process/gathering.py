"""Exchanges that wait to be recorded, encoded and kept in memory where the recorder reads them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.inspector.process.messages import ENCODER, READ_DELIVERY, Batch, Plan, Span
from gateway.inspector.process.own_memory import address_of
from gateway.inspector.stores.encoding import replace_surrogates
from gateway.observe.record import Delivery
from gateway.ports import Steps
from gateway.proxy.body_copy import BodyCopy, ResponseCopy
from gateway.proxy.capture import Captured, Data, Passed, Render

_LARGE = 16_384
"""Bytes from which a piece of a body is not encoded, but read where it is."""
_NUMBERED = 256
"""Most deliveries, and most renders, that keep their numbers."""


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


class _Indexes(dict[Any, Any]):
    """Indexes in a table, which grows with each object that it did not have. things: the table."""

    def __init__(self) -> None:
        super().__init__({None: None})
        self.things: list[Any] = []

    def __missing__(self, thing: object) -> int:
        index = self[thing] = len(self.things)
        self.things.append(thing)
        return index


class Gathering:
    """Exchanges in the form in which they are recorded. Implements `gateway.proxy.capture.Shared`.

    numbers: those of the other gathering too. count: of the exchanges. size: bytes that are kept for the recorder.
    """

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._pickled: dict[int, bytes] = {}
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._encode_object).encode
        self.clear()

    def clear(self) -> None:
        """Forget all exchanges."""
        self.count = self.size = 0
        self._lent: list[Data] = []
        """What the recorder reads, kept until it has been read."""
        self._chunks: list[Span] = []
        self.fields = _Indexes()
        self.heads = _Indexes()
        self._numbers_here = {id(None): 0}
        """Numbers of deliveries and renders of these exchanges, by `id`. They are kept, so no other object has it."""
        self._kept: list[object] = []
        self._deliveries: list[tuple[int, msgspec.Raw]] = []
        self._renders: list[tuple[int, bytes]] = []
        self._places: list[Span] = []

    def add(self, exchanges: Sequence[Captured | Passed]) -> list[Exception]:
        """Add exchanges, which were captured with this gathering, and belong to it from now on.

        It takes least time for some dozens. Return why single ones have no form as bytes; these are not added.
        """
        faults: list[Exception] = []
        items: list[Captured] = []
        lines: list[tuple[int, Passed]] = []
        for exchange in exchanges:
            if isinstance(exchange, tuple):
                lines.append((len(items), exchange))
                continue
            try:
                if (bodies := exchange.bodies) is not None:
                    self._lend_bodies(bodies)
            except Exception as error:
                faults.append(error)
            else:
                items.append(exchange)
        if not items and not lines:
            return faults
        try:
            self._chunks.append(self._write((items, lines)))
            self.count += len(items) + len(lines)
        except Exception:
            faults += self._add_apart(items, lines)
        return faults

    def _add_apart(self, items: list[Captured], lines: list[tuple[int, Passed]]) -> list[Exception]:
        """Add exchanges of which one or more have no form as bytes, without these. Return why."""
        faults: list[Exception] = []
        done = 0
        for before, line in [*lines, (len(items), None)]:
            chunks: list[object] = [([item], []) for item in items[done:before]]
            done = before
            for chunk in chunks if line is None else [*chunks, ([], [(0, line)])]:
                try:
                    self._chunks.append(self._write(chunk))
                    self.count += 1
                except Exception as error:
                    faults.append(error)
        return faults

    def planned(self, delivery: Delivery | None, render: Render | None) -> tuple[int, int]:
        """See `Shared`. None has the number 0."""
        number = self._numbers_here.get(id(delivery))
        if number is None:
            number = self._add_delivery(delivery)
        rendered = self._numbers_here.get(id(render))
        if rendered is None:
            rendered = self._add_render(render)
        return number, rendered

    def _write(self, values: object) -> Span:
        return self._lend(self._encoded(values))

    def _encoded(self, values: object) -> bytes:
        try:
            return self._encode(values)
        except UnicodeEncodeError:
            plain = msgspec.to_builtins(values, builtin_types=(bytes, memoryview), enc_hook=self._encode_object)
            return ENCODER.encode(replace_surrogates(plain))

    def _lend(self, data: Data) -> Span:
        """Keep bytes for the recorder. Return where they are."""
        self._lent.append(data)
        self.size += len(data)
        return address_of(data), len(data)

    def _encode_object(self, thing: Any) -> object:
        """Return the form of an object that MessagePack does not know."""
        kind = type(thing)
        if kind is ResponseCopy:
            head = self.heads[thing.head]
            return self._pieces(thing.pieces), thing.size, thing.complete, thing.limit, head, thing.decoded
        if kind is BodyCopy:
            return self._pieces(thing.pieces), thing.size, thing.complete, thing.limit
        if kind is Steps:
            return thing.taken
        if isinstance(thing, Mapping):
            return [(str(name), str(value)) for name, value in thing.items()]
        if isinstance(thing, str):
            return str(thing)  # of a subclass, such as a name of a multidict
        raise TypeError(f"{kind.__qualname__} has no form as bytes")

    def _lend_bodies(self, bodies: Any) -> None:
        """Put places where they are in place of large pieces of bodies."""
        request, sent, response = bodies.request, bodies.sent, bodies.response
        is_large = isinstance(request, bytes) and len(request) >= _LARGE
        if is_large:
            bodies.request = self._piece(request)
        if sent and (is_large or len(sent) > 1 or len(sent[0]) >= _LARGE):
            bodies.sent = self._sent(sent, request if is_large else b"")
        if type(response) is bytes and len(response) >= _LARGE:
            bodies.response = self._piece(response)

    def _add_delivery(self, delivery: Delivery | None) -> int:
        """Return the number of a delivery, which is in the tables from now on.

        Raises:
            TypeError, ValidationError: it has no form as bytes, or not the one that is read.
        """
        encoded = self._encoded(delivery)
        READ_DELIVERY(encoded)
        number = self._numbers_here[id(delivery)] = self._numbers.of(delivery)
        self._deliveries.append((number, msgspec.Raw(encoded)))
        self._kept.append(delivery)
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

    def _pieces(self, pieces: Sequence[Data]) -> Sequence[Data | int]:
        if len(pieces) == 1 and len(pieces[0]) < _LARGE:
            return pieces
        return [piece if len(piece) < _LARGE else self._piece(piece) for piece in pieces]

    def _piece(self, piece: Data) -> int:
        """Keep a piece of a body for the recorder. Return the index of its place."""
        self._places.append(self._lend(piece))
        return len(self._places) - 1

    def _sent(self, sent: Sequence[Data], request: bytes) -> list[Data | int]:
        """Return the pieces that were sent. Those that are parts of the request's body have places in it.

        request: the body, if it is kept.
        """
        found: list[Data | int] = []
        for part in sent:
            if request and isinstance(part, memoryview) and part.obj is request:
                self._places.append((address_of(part), len(part)))
                found.append(len(self._places) - 1)
            else:
                found += self._pieces([part])
        return found

    def finish(self) -> bytes:
        """Return the message that announces the exchanges."""
        fields = [(list(field.lines), field.length) for field in self.fields.things]
        heads = [head.raw for head in self.heads.things]
        tables = self._write((fields, heads, self._deliveries, self._renders, self._places))
        return ENCODER.encode(Batch(self._chunks, tables))

    def finish_plan(self, plan: Plan) -> bytes:
        """As `finish`, for what the process needs to know before the first exchanges."""
        return ENCODER.encode(Batch([], self._lend(pickle.dumps(plan))))
