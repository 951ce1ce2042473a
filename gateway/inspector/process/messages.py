"""What the gateway's process and the recorder's tell each other, as MessagePack.

The gateway sends one `Batch` at a time, over a socket: the addresses of exchanges, which the recorder reads from the
gateway's memory (`own_memory`). It answers with a `Report` when it is done with them. The gateway gathers the next ones
meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from gateway.config.inspector import Inspector
from gateway.config.schema import Settings
from gateway.observe.record import Delivery, Scheme, TraceContext
from gateway.proxy.capture import CapturedError
from gateway.proxy.routes import Route

LONGEST = 1 << 17
"""Most bytes of a message on the socket: places of some 10,000 chunks."""


class Plan(NamedTuple):
    """What the recorder's process is to do. It is sent as a pickle, and holds the secrets of the settings.

    recorded: what is recorded for all sinks. worker: the id of the gateway's process. log: fields of each line of its
    log.
    """

    settings: Settings
    recorded: Inspector
    bodies: bool
    scheme: Scheme
    worker: int
    log: Mapping[str, Any]


Span = tuple[int, int]
"""Address and size in the memory of the gateway's process, in bytes."""


class Batch(Struct, array_like=True, frozen=True):
    """Where exchanges are.

    chunks: each a `Chunk`. tables: the `Tables`; the `Plan` in the first message.
    """

    chunks: list[Span]
    tables: Span


class Report(Struct, array_like=True, frozen=True):
    """What became of a batch. dropped: number of exchanges that are not recorded, by reason. faults: of sinks.

    failure: why the sinks could not be opened.
    """

    dropped: dict[str, int] = {}
    faults: dict[str, str] = {}
    failure: str = ""


Piece = bytes | int
"""Bytes, or the index of their place."""

ItemCopy = tuple[list[Piece], int, bool, int]
"""`gateway.proxy.body_copy.BodyCopy`: pieces, size, complete, limit."""

ItemResponse = tuple[list[Piece], int, bool, int, int, bool]
"""`gateway.proxy.body_copy.ResponseCopy`: as `ItemCopy`, the index of the head, decoded."""


class ItemBodies(Struct, array_like=True, gc=False):
    """`gateway.proxy.capture.Bodies`, which is encoded as it is. delivery, render: numbers in the tables, or none."""

    request: Piece | ItemCopy
    chunk_lines: bool
    sent_head: bytes
    sent: list[Piece] | None
    response: ItemResponse | Piece | None
    relayed: list[Piece] | None
    delivery: int | None
    render: int | None
    read_at: float
    sent_at: float
    steps: list[tuple[str, float, float]] | None
    guardrails: list[dict[str, Any]]


class ItemAnswer(Struct, gc=False):
    """`gateway.ports.Answer`."""

    status: int
    headers: dict[str, str] | list[tuple[str, str]]
    body: bytes


class Item(Struct, array_like=True, gc=False):
    """`gateway.proxy.capture.Captured`, which is encoded as it is. fields, head: indexes in the tables."""

    id: str
    fields: int
    method: bytes
    target: bytes
    minor: int
    route: Route
    connection: int
    client: str
    started: float
    ended: float
    status: int
    answered_at: float
    head: int | None
    answer: ItemAnswer | None
    error: CapturedError | None
    bodies: ItemBodies | None
    trace: TraceContext | None


LineItem = tuple[int, bytes, bytes, int, int, str, float, float, float, int, int | None]
"""`gateway.proxy.capture.Passed`, with indexes in the tables in place of the heads."""

Chunk = tuple[list[Item], list[tuple[int, LineItem]]]
"""Exchanges, and those of which only a line is recorded, each after the number of items before it."""


class Tables(Struct, array_like=True, gc=False):
    """What exchanges of a batch have in common.

    fields: lines and length of each request's. heads: of responses, as received. deliveries, renders: with their
    numbers, which stay the same in later batches; a render is pickled. places: of large pieces of bodies.
    """

    fields: list[tuple[tuple[bytes, ...], int | None]]
    heads: list[bytes]
    deliveries: list[tuple[int, Delivery]]
    renders: list[tuple[int, bytes]]
    places: list[Span]


ENCODER = msgspec.msgpack.Encoder()
READ_BATCH = msgspec.msgpack.Decoder(Batch).decode
READ_REPORT = msgspec.msgpack.Decoder(Report).decode
READ_CHUNK = msgspec.msgpack.Decoder(Chunk).decode
READ_CHUNK_APART = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], list[tuple[int, msgspec.Raw]]]).decode
READ_ITEM = msgspec.msgpack.Decoder(Item).decode
READ_LINE = msgspec.msgpack.Decoder(LineItem).decode
READ_DELIVERY = msgspec.msgpack.Decoder(Delivery).decode
READ_TABLES = msgspec.msgpack.Decoder(Tables).decode
