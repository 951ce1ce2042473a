"""Exchanges as HAR 1.2 and back (http://www.softwareishard.com/blog/har-12-spec/).

An entry is what the client sent and what it got. All else that is recorded of the exchange is in the entry's custom
field ``_mlc``, so that writing and reading give the same records. docs/operate/replay.md describes the fields.

HAR has no encoding for bodies of requests: a body that is not text is base64 in ``postData.text``, with
``"_encoding": "base64"`` beside it.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from http.client import responses
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from gateway import __version__
from gateway.observe.record import Body, ExchangeRecord, HttpMessage

EXTENSION = "_mlc"
VERSION = 1
_IN_ENTRY = ("request", "response", "answered")
_UNKNOWN_HOST = "cluster.invalid"
"""The host in the URL of a request without `Host`; the domain is reserved (RFC 6761, 6.4)."""


def write_har(records: Iterable[ExchangeRecord]) -> Iterator[bytes]:
    """Yield the JSON of a HAR file, entry by entry, in the order of `records`; nothing before the first is read."""
    creator = {"name": "mlc-gateway", "version": __version__}
    before = start = b'{"log": {"version": "1.2", "creator": %b, "entries": [\n' % msgspec.json.encode(creator)
    for record in records:
        yield before + msgspec.json.encode(entry_of(record))
        before = b",\n"
    yield (start if before is start else b"\n") + b"]}}\n"


def entry_of(record: ExchangeRecord) -> dict[str, Any]:
    """Return the HAR entry of an exchange."""
    answer = record.response if record.answered is None else record.answered
    extension = {name: value for name, value in msgspec.to_builtins(record).items() if name not in _IN_ENTRY}
    extension |= {"version": VERSION, "answer": answer is not None}
    if record.answered is not None and record.response is not None:
        extension["response"] = msgspec.to_builtins(record.response)
    elif record.answered is not None:
        extension["response"] = None
    timings = _timings(record)
    return {
        "startedDateTime": datetime.fromtimestamp(record.started, UTC).isoformat(timespec="milliseconds"),
        "time": sum(timings[name] for name in ("send", "wait", "receive")),
        "request": _request(record),
        "response": _response(record.status, answer or HttpMessage()),
        "cache": {},
        "timings": timings,
        "connection": f"{record.worker}-{record.connection}",
        EXTENSION: extension,
    }


def _timings(record: ExchangeRecord) -> dict[str, float]:
    """Return the phases in milliseconds; -1 for those that do not apply to a connection that was open."""
    total = _milliseconds(record.seconds)
    wait = total if record.waited is None else min(_milliseconds(record.waited), total)
    unknown = {"blocked": -1.0, "dns": -1.0, "connect": -1.0, "ssl": -1.0}
    return {**unknown, "send": 0.0, "wait": wait, "receive": total - wait}


def _milliseconds(seconds: float) -> float:
    return max(seconds, 0.0) * 1000 if math.isfinite(seconds) else 0.0


def _request(record: ExchangeRecord) -> dict[str, Any]:
    headers, body = record.request.headers, record.request.body
    query = record.target.partition("#")[0].partition("?")[2] if record.target.startswith("/") else ""
    request: dict[str, Any] = {
        "method": record.method,
        "url": _url(record),
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": _pairs(headers),
        "queryString": _pairs(parse_qsl(query, keep_blank_values=True)),
        "headersSize": -1,
        "bodySize": body.size,
    }
    if body != Body():
        post: dict[str, Any] = {"mimeType": _content_type(headers), "params": [], "text": body.text or ""}
        request["postData"] = post | _custom(body)
    return request


def _url(record: ExchangeRecord) -> str:
    if not record.target.startswith("/"):
        return record.target
    host = next((value for name, value in record.request.headers if name.lower() == "host"), "") or _UNKNOWN_HOST
    return f"{record.scheme}://{host}{record.target}"


def _response(status: int, answer: HttpMessage) -> dict[str, Any]:
    body = answer.body
    content: dict[str, Any] = {"size": _decoded_size(body), "mimeType": _content_type(answer.headers)}
    if body.text is not None:
        content["text"] = body.text
    if body.encoding:
        content["encoding"] = body.encoding
    if body.omitted:
        content["_omitted"] = body.omitted
    return {
        "status": status,
        "statusText": responses.get(status, ""),
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": _pairs(answer.headers),
        "content": content,
        "redirectURL": next((value for name, value in answer.headers if name.lower() == "location"), ""),
        "headersSize": -1,
        "bodySize": body.size,
    }


def _decoded_size(body: Body) -> int:
    """Return the size of the content without its coding; that of the recorded text if it is not known any more."""
    return body.size if body.text is None else len(body_bytes(body))


def body_bytes(body: Body) -> bytes:
    """Return the recorded content as bytes; b"" if it was not recorded."""
    if body.encoding == "base64":
        return msgspec.convert(body.text or "", bytes)
    return (body.text or "").encode("utf-8", "surrogatepass")


def text_body(content: bytes, size: int) -> Body:
    """Return the body with this content. size: of the bytes as they were sent."""
    try:
        return Body(size, content.decode())
    except UnicodeDecodeError:
        return Body(size, b64encode(content).decode("ascii"), "base64")


def _custom(body: Body) -> dict[str, Any]:
    """Return the custom fields of a request's body, which HAR has no fields for."""
    fields = {
        "_encoding": body.encoding,
        "_omitted": body.omitted,
        "_recorded": None if body.text is not None else False,
    }
    return {name: value for name, value in fields.items() if value not in ("", None)}


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in pairs]


def _content_type(headers: Iterable[tuple[str, str]]) -> str:
    return next((value for name, value in headers if name.lower() == "content-type"), "")
