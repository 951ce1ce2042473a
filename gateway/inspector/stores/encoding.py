"""Records as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gateway.observe.record import Body, ExchangeRecord, HttpMessage, Step

_ENCODER = msgspec.msgpack.Encoder()


class Content(Struct, frozen=True, omit_defaults=True):
    """What a `Row` leaves out of a record."""

    request: HttpMessage = HttpMessage()
    forwarded: HttpMessage | None = None
    rendered: str = ""
    response: HttpMessage | None = None
    answered: HttpMessage | None = None
    steps: tuple[Step, ...] = ()
    guardrails: tuple[dict[str, Any], ...] = ()


_HEAD = msgspec.msgpack.Decoder(ExchangeRecord)
_CONTENT = msgspec.msgpack.Decoder(Content)


def without_content(record: ExchangeRecord) -> ExchangeRecord:
    """Return the record without headers, texts of bodies, and steps."""
    return msgspec.structs.replace(
        record,
        request=_size_only(record.request),
        forwarded=record.forwarded and _size_only(record.forwarded),
        rendered="",
        response=record.response and _size_only(record.response),
        answered=record.answered and _size_only(record.answered),
        steps=(),
        guardrails=(),
    )


def _size_only(message: HttpMessage) -> HttpMessage:
    return HttpMessage(body=Body(message.body.size))


def encode(record: ExchangeRecord) -> tuple[bytes, bytes]:
    """Return a record as MessagePack: what a `Row` shows, and the rest.

    Raises:
        UnicodeEncodeError: a text has a surrogate; see `without_surrogates`.
    """
    content = Content(
        record.request,
        record.forwarded,
        record.rendered,
        record.response,
        record.answered,
        record.steps,
        record.guardrails,
    )
    return _ENCODER.encode(without_content(record)), _ENCODER.encode(content)


def decode_head(data: bytes) -> ExchangeRecord:
    """Return the record of a `Row`. Raises msgspec.DecodeError."""
    return _HEAD.decode(data)


def decode_content(data: bytes) -> Content:
    """Return the rest of a record. Raises msgspec.DecodeError."""
    return _CONTENT.decode(data)


def join(head: ExchangeRecord, content: Content) -> ExchangeRecord:
    """Return the whole record."""
    return msgspec.structs.replace(head, **msgspec.structs.asdict(content))


def without_surrogates(record: ExchangeRecord) -> ExchangeRecord:
    """Return the record with U+FFFD in place of surrogates, which have no UTF-8 form: bytes that were no UTF-8."""
    cleaned: ExchangeRecord = msgspec.convert(_clean(msgspec.to_builtins(record)), ExchangeRecord)
    return cleaned


def _clean(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case Mapping():
            return {_clean(key): _clean(each) for key, each in value.items()}
        case list() | tuple():
            return [_clean(each) for each in value]
    return value
