"""Exchanges as HAR 1.2 and back (http://www.softwareishard.com/blog/har-12-spec/), from other programs too.

An entry is what the client sent and what it got. All else that is recorded of the exchange is in the entry's custom
field ``_mlc``, so that writing and reading give the same records. docs/operate/replay.md describes the fields.

HAR has no encoding for bodies of requests: a body that is not text is base64 in ``postData.text``, with
``"_encoding": "base64"`` beside it.
"""

from __future__ import annotations

import hashlib
import math
from base64 import b64encode
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from http.client import responses
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec.structs import replace

from gateway import __version__
from gateway.config.inspector import Inspector
from gateway.observe.media import Keep
from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from gateway.observe.secrets import Secrets, secret_members
from gateway.proxy.routes import route
from gateway.recording.records import MESSAGES, BodyMaker, make_redactor, summarized, without_secrets

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
    answer = record.answer
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
        post: dict[str, Any] = {
            "mimeType": record.request.header("content-type"),
            "params": [],
            "text": body.text or "",
        }
        request["postData"] = post | _custom(body)
    return request


def _url(record: ExchangeRecord) -> str:
    if not record.target.startswith("/"):
        return record.target
    host = record.request.header("host") or _UNKNOWN_HOST
    return f"{record.scheme}://{host}{record.target}"


def _response(status: int, answer: HttpMessage) -> dict[str, Any]:
    body = answer.body
    content: dict[str, Any] = {"size": _decoded_size(body), "mimeType": answer.header("content-type")}
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
        "redirectURL": answer.header("location"),
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


_LARGEST = 2**53
"""Numbers that programs exchange in JSON are smaller (RFC 8259, 6)."""


class InvalidHar(Exception):
    """A file is not HAR 1.2. The message names the place, what was expected, and what was found."""


def read_har(data: bytes) -> list[ExchangeRecord]:
    """Return the exchanges of a HAR file, in its order. Entries of other programs have no ``_mlc``.

    Raises:
        InvalidHar: it is not HAR, or an entry lacks what HAR requires.
    """
    try:
        document = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidHar(f"The file is not a JSON document: {error}") from None
    entries = _member(_member(document, "log", "", dict), "entries", "log", list)
    return [_record(entry, f"log.entries[{index}]") for index, entry in enumerate(entries)]


def _record(entry: Any, place: str) -> ExchangeRecord:
    if not isinstance(entry, dict):
        raise InvalidHar(f"{place} must be an object, not {type(entry).__name__}.")
    request, response = _member(entry, "request", place, dict), _member(entry, "response", place, dict)
    sent = HttpMessage(_headers(request, f"{place}.request"), _posted(request, f"{place}.request"))
    got = HttpMessage(_headers(response, f"{place}.response"), _content(response, f"{place}.response"))
    extension = entry.get(EXTENSION)
    if isinstance(extension, dict) and extension.get("version") == VERSION:
        return _own(extension, sent, got, place)
    return _foreign(entry, sent, got, place)


def _own(extension: dict[str, Any], sent: HttpMessage, got: HttpMessage, place: str) -> ExchangeRecord:
    """Return the record of an entry that the gateway wrote."""
    extra = dict(extension)
    answer = got if extra.pop("answer", True) else None
    del extra["version"]
    messages: dict[str, Any] = {"request": sent, "response": answer}
    if "response" in extra:
        messages |= {"response": extra.pop("response"), "answered": answer}
    try:
        return msgspec.convert({**extra, **msgspec.to_builtins(messages)}, ExchangeRecord)
    except msgspec.ValidationError as error:
        raise InvalidHar(f"{place}.{EXTENSION}: {error}") from None


def _foreign(entry: dict[str, Any], sent: HttpMessage, got: HttpMessage, place: str) -> ExchangeRecord:
    """Return the record of another program's entry."""
    method, url = (_member(entry["request"], name, f"{place}.request", str) for name in ("method", "url"))
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidHar(f"{place}.request.url must be a URL, not {url[:100]!r}.") from None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    found = route(method, parts.path)
    return ExchangeRecord(
        id=hashlib.sha256(msgspec.json.encode([place, entry])).hexdigest()[:16],
        started=_started(entry, place),
        seconds=_number(entry, "time", place) / 1000,
        method=method,
        target=target,
        intent=str(found.intent),
        status=int(_number(entry["response"], "status", f"{place}.response")),
        connection=_connection(entry.get("connection")),
        agent_id=found.id if found.kind == "agents" else "",
        user_agent=sent.header("user-agent"),
        request=sent,
        response=got,
        scheme="https" if parts.scheme == "https" else "http",
    )


def _connection(name: Any) -> int:
    """Return a number for another program's name of a connection, the same for the same name; 0 for none."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:12], 16) if isinstance(name, str) and name else 0


def _started(entry: dict[str, Any], place: str) -> float:
    text = _member(entry, "startedDateTime", place, str)
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        raise InvalidHar(f"{place}.startedDateTime must be a time in ISO 8601, not {text!r}.") from None


def _headers(message: dict[str, Any], place: str) -> tuple[tuple[str, str], ...]:
    found = message.get("headers", [])
    try:
        pairs = msgspec.convert(found, list[dict[str, Any]])
        return tuple((msgspec.convert(pair["name"], str), msgspec.convert(pair["value"], str)) for pair in pairs)
    except (msgspec.ValidationError, KeyError):
        raise InvalidHar(f"{place}.headers must be a list of objects with name and value.") from None


def _posted(request: dict[str, Any], place: str) -> Body:
    size = _size(request)
    post = request.get("postData")
    if not isinstance(post, dict):
        return Body(size)
    text = post.get("text", "")
    if not isinstance(text, str):
        raise InvalidHar(f"{place}.postData.text must be a string, not {type(text).__name__}.")
    encoding = _encoding(post.get("_encoding"))
    body = Body(size, text if post.get("_recorded", True) else None, encoding, str(post.get("_omitted", "")))
    return _checked(body, f"{place}.postData")


def _content(response: dict[str, Any], place: str) -> Body:
    content = response.get("content")
    size = _size(response)
    if not isinstance(content, dict):
        return Body(size)
    text = content.get("text")
    if text is not None and not isinstance(text, str):
        raise InvalidHar(f"{place}.content.text must be a string, not {type(text).__name__}.")
    encoding = _encoding(content.get("encoding"))
    return _checked(Body(size, text, encoding, str(content.get("_omitted", ""))), f"{place}.content")


def _encoding(name: Any) -> Literal["", "base64"]:
    return "base64" if name == "base64" else ""


def _checked(body: Body, place: str) -> Body:
    """Return the body with the size of its content if the file does not give its size (-1)."""
    try:
        content = body_bytes(body)
    except msgspec.ValidationError:
        raise InvalidHar(f"{place}.text is not base64, although its encoding says so.") from None
    return msgspec.structs.replace(body, size=len(content)) if body.size < 0 else body


def _size(message: dict[str, Any]) -> int:
    size = message.get("bodySize", -1)
    return size if isinstance(size, int) and abs(size) < _LARGEST else -1


def _number(value: dict[str, Any], name: str, place: str) -> float:
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < _LARGEST:
        raise InvalidHar(f"{place}.{name} must be a number, not {found!r}.")
    return found


def _member(value: Any, name: str, place: str, kind: type[dict[str, Any] | list[Any] | str]) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        where = f"{place}.{name}".lstrip(".")
        expected = {"dict": "an object", "list": "an array", "str": "a string"}[kind.__name__]
        raise InvalidHar(f"{where} must be {expected}. Is the file a HAR 1.2?")
    return found


class ImportedRecords:
    """Makes records of another program's. The gateway's own are redacted already, and stay as they are.

    keep: keeps the bytes of media; None if they are not kept.

    Raises:
        ConfigError: a path or an expression of the settings can't be used.
    """

    def __init__(self, settings: Inspector, keep: Keep) -> None:
        self._redactor = make_redactor(settings)
        self._bodies = BodyMaker(self._redactor, keep if settings.media == "keep" else None)

    def make(self, record: ExchangeRecord) -> ExchangeRecord:
        """Return the record without secrets and media."""
        found = Secrets(names=secret_members(record.target.encode("utf-8", "replace")))
        messages = {
            name: self._message(message, found) for name in MESSAGES if (message := getattr(record, name)) is not None
        }
        made = replace(
            record,
            target=self._redactor.target(record.target.encode("utf-8", "surrogatepass"), found),
            user_agent=self._redactor.text(record.user_agent, found),
            rendered=self._redactor.text(record.rendered, found),
            **messages,
        )
        self._bodies.forget()
        return summarized(without_secrets(made, found))

    def _message(self, message: HttpMessage, found: Secrets) -> HttpMessage:
        headers = tuple((name, self._redactor.header(name, value, found)) for name, value in message.headers)
        return HttpMessage(headers, self._body(message.body, found))

    def _body(self, body: Body, found: Secrets) -> Body:
        if not body.text:
            return body
        made = self._bodies.make((body_bytes(body),), (), found, body.size, cut=bool(body.omitted))
        return replace(made, omitted=made.omitted or body.omitted)
