"""What the gateway's process and the recorder's tell each other, as MessagePack.

The gateway sends one `Batch` at a time, over a socket; the exchanges themselves are in shared memory. The recorder
answers with a `Report` when it is done with them. The gateway gathers the next ones meanwhile.
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
from gateway.proxy.routes import Intent

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


class Batch(Struct, array_like=True, frozen=True):
    """Where exchanges are. memory: which one. size: of it.

    chunks, tables: position and size of each list of `Item`, and of the `Tables`; of the `Plan` in the first message.
    """

    memory: int
    size: int
    chunks: list[tuple[int, int]]
    tables: tuple[int, int]


class Report(Struct, array_like=True, frozen=True):
    """What became of a batch. dropped: number of exchanges that are not recorded, by reason. faults: of sinks.

    failure: why the sinks could not be opened.
    """

    dropped: dict[str, int] = {}
    faults: dict[str, str] = {}
    failure: str = ""


Piece = bytes | tuple[int, int]
"""Bytes, or their position and size in the memory."""

ItemCopy = tuple[list[Piece], int, bool, int]
"""`gateway.proxy.body_copy.BodyCopy`: pieces, size, complete, limit."""


class ItemBodies(Struct, array_like=True, gc=False):
    """`gateway.proxy.capture.Bodies`. copy: of the request's body, if that was not read whole.

    response: with the index of its head, and whether it is decoded. delivery, render: numbers of such objects; 0: none.
    """

    request: Piece
    copy: ItemCopy | None
    chunk_lines: bool
    sent_head: bytes
    sent: list[Piece] | None
    response: tuple[ItemCopy, int, bool] | None
    relayed: list[Piece] | None
    delivery: int
    render: int
    read_at: float
    sent_at: float
    steps: list[tuple[str, float, float]] | None
    guardrails: list[dict[str, Any]]


class Item(Struct, array_like=True, gc=False):
    """`gateway.proxy.capture.Captured`. place: among all exchanges of the batch. size: bytes of the bodies.

    fields, head: indexes in the tables; -1 without a response. intent, kind, agent_id: the route. answer: status,
    header fields, body.
    """

    place: int
    size: int
    id: str
    fields: int
    method: bytes
    target: bytes
    minor: int
    intent: Intent
    kind: str
    agent_id: str
    connection: int
    client: str
    started: float
    ended: float
    status: int
    answered_at: float
    head: int
    answer: tuple[int, list[tuple[str, str]], bytes] | None
    error: CapturedError | None
    bodies: ItemBodies | None
    trace: TraceContext | None


LineItem = tuple[int, bytes, bytes, int, int, str, float, float, float, int, int, int]
"""`gateway.proxy.capture.Passed`, with indexes in the tables in place of the heads, and the place."""


class Tables(Struct, array_like=True, gc=False):
    """What exchanges of a batch have in common, and the requests that passed.

    fields: lines and length of each request's. heads: of responses, as received. deliveries, renders: with their
    numbers, which stay the same in later batches; a render is pickled.
    """

    fields: list[tuple[tuple[bytes, ...], int | None]]
    heads: list[bytes]
    deliveries: list[tuple[int, Delivery]]
    renders: list[tuple[int, bytes]]
    lines: list[LineItem]


ENCODER = msgspec.msgpack.Encoder()
READ_BATCH = msgspec.msgpack.Decoder(Batch).decode
READ_REPORT = msgspec.msgpack.Decoder(Report).decode
READ_ITEMS = msgspec.msgpack.Decoder(list[Item]).decode
READ_TABLES = msgspec.msgpack.Decoder(Tables).decode
