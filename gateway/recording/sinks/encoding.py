"""Records as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gateway.observe.record import (
    Body,
    Delivery,
    ExchangeRecord,
    HttpMessage,
    RecordedError,
    Scheme,
    Step,
    Summary,
    TraceContext,
    Usage,
)

_ENCODER = msgspec.msgpack.Encoder()


class Content(Struct, frozen=True, array_like=True, gc=False):
    """What a `Row` leaves out of a record."""

    request: HttpMessage = HttpMessage()
    forwarded: HttpMessage | None = None
    rendered: str = ""
    response: HttpMessage | None = None
    answered: HttpMessage | None = None
    steps: tuple[Step, ...] = ()
    guardrails: tuple[dict[str, Any], ...] = ()


class _Head(Struct, frozen=True, array_like=True, gc=False):
    """What a `Row` shows of a record: by position, so that no names are stored. sizes: of the messages in `Content`."""

    id: str
    started: float
    seconds: float
    method: str
    target: str
    intent: str
    status: int
    worker: int
    connection: int
    client: str
    user_agent: str
    agent_id: str
    waited: float | None
    delivery: Delivery | None
    error: RecordedError | None
    usage: Usage | None
    conversation: str
    trace_id: str
    trace: TraceContext | None
    protocol: str
    sizes: tuple[int, int | None, int | None, int | None]
    scheme: Scheme = "http"
    summary: Summary | None = None
    route: str = ""
    cluster: str = ""
    mirror_of: str = ""


_SHOWN = [name for name in _Head.__struct_fields__ if name != "sizes"]
"""Fields of a record that a `Row` shows as they are."""
_HEAD = msgspec.msgpack.Decoder(_Head)
_CONTENT = msgspec.msgpack.Decoder(Content)


def _size_only(size: int) -> HttpMessage:
    return HttpMessage(body=Body(size))


def encode(record: ExchangeRecord) -> tuple[bytes, bytes]:
    """Return a record as MessagePack: what a `Row` shows, and the rest.

    Raises:
        UnicodeEncodeError: a text has a surrogate; see `without_surrogates`.
    """
    request, forwarded, response, answered = record.request, record.forwarded, record.response, record.answered
    sizes = request.body.size, _size(forwarded), _size(response), _size(answered)
    head = _Head(sizes=sizes, **{name: getattr(record, name) for name in _SHOWN})
    content = Content(request, forwarded, record.rendered, response, answered, record.steps, record.guardrails)
    return _ENCODER.encode(head), _ENCODER.encode(content)


def _size(message: HttpMessage | None) -> int | None:
    return None if message is None else message.body.size


def decode_head(data: bytes) -> ExchangeRecord:
    """Return the record of a `Row`. Raises msgspec.DecodeError."""
    head = msgspec.structs.asdict(_HEAD.decode(data))
    request, *others = head.pop("sizes")
    forwarded, response, answered = (None if size is None else _size_only(size) for size in others)
    return ExchangeRecord(
        **head, request=_size_only(request), forwarded=forwarded, response=response, answered=answered
    )


def decode_content(data: bytes) -> Content:
    """Return the rest of a record. Raises msgspec.DecodeError."""
    return _CONTENT.decode(data)


def join(head: ExchangeRecord, content: Content) -> ExchangeRecord:
    """Return the whole record."""
    return msgspec.structs.replace(head, **msgspec.structs.asdict(content))


def without_surrogates(record: ExchangeRecord) -> ExchangeRecord:
    """Return the record with U+FFFD in place of surrogates, which have no UTF-8 form: bytes that were no UTF-8."""
    cleaned: ExchangeRecord = msgspec.convert(replace_surrogates(msgspec.to_builtins(record)), ExchangeRecord)
    return cleaned


def replace_surrogates(value: Any) -> Any:
    """Return texts, and collections of them, with U+FFFD in place of surrogates."""
    match value:
        case str():
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case Mapping():
            return {replace_surrogates(key): replace_surrogates(each) for key, each in value.items()}
        case list() | tuple():
            return [replace_surrogates(each) for each in value]
    return value
