"""Makes a recorded request one that can be sent again: media are put back, secrets and the rest are named."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from gateway.inspector.har import body_bytes
from gateway.observe.record import ExchangeRecord, HttpMessage

Medium = Callable[[str], "tuple[str, bytes] | None"]
"""Returns media type and bytes of a kept medium by its hash; see `SqliteStore.medium`."""

_MEDIA = re.compile(rb"\[MEDIA type=[^ \]]* length=[0-9]+ sha256=([0-9a-f]{64})\]")
_MAYBE_TEXT = re.compile(
    rb"\[MEDIA type=(?:text/[^ \]]*|application/octet-stream) length=[0-9]+ sha256=([0-9a-f]{64})\]"
)
_REDACTED = "[REDACTED "
_PER_HOP = frozenset({"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"})
_OF_BODY = frozenset({"content-length", "content-encoding", "host", "expect"})


class Repeatable(Struct, frozen=True):
    """A request to send. headers: end to end, without those of the body's framing and coding.

    secrets: names of headers that were redacted, and so left out. missing: why this is not the request that was
    recorded, one sentence each; empty: it is.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    secrets: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def repeatable(record: ExchangeRecord, medium: Medium) -> Repeatable:
    """Return the client's request, to be sent again."""
    headers: list[tuple[str, str]] = []
    secrets: list[str] = []
    for name, value in record.request.headers:
        if _REDACTED in value:
            secrets.append(name)
        elif name.lower() not in _PER_HOP and name.lower() not in _OF_BODY:
            headers.append((name, value))
    body = record.request.body
    missing: list[str] = []
    chunked = any(name.lower() == "transfer-encoding" for name, _ in record.request.headers)
    if body.omitted and (body.text is not None or body.size or chunked):
        missing.append(body.omitted)
    elif body.text is None and body.size:
        missing.append("The body of the request was not recorded (inspector.passthrough: bodies).")
    content = _with_media(body_bytes(body), medium, missing)
    if _REDACTED.encode() in content or _REDACTED in record.target:
        missing.append("Secrets in the request were redacted: write them in place of [REDACTED …].")
    return Repeatable(record.method, record.target, tuple(headers), content, tuple(secrets), tuple(missing))


def put_media_back(record: ExchangeRecord, medium: Medium) -> ExchangeRecord:
    """Return the exchange with the media that were kept in their places, as base64 text."""
    messages = {name: getattr(record, name) for name in ("request", "forwarded", "response", "answered")}
    return replace(record, **{name: _complete(one, medium) for name, one in messages.items() if one is not None})


def put_texts_back(content: bytes, medium: Medium) -> bytes:
    """Return a recorded body with what may be a text, and was kept, in its place as base64; media stay as hashes."""
    return _with_media(content, medium, [], _MAYBE_TEXT) if b"[MEDIA " in content else content


def _complete(message: HttpMessage, medium: Medium) -> HttpMessage:
    body = message.body
    if body.text is None or body.encoding:
        return message
    text = _with_media(body.text.encode("utf-8", "surrogatepass"), medium, []).decode("utf-8", "surrogatepass")
    return replace(message, body=replace(body, text=text))


def _with_media(content: bytes, medium: Medium, missing: list[str], marks: re.Pattern[bytes] = _MEDIA) -> bytes:
    """Return `content` with the base64 text of each medium in its place."""
    absent = 0

    def put_back(mark: re.Match[bytes]) -> bytes:
        nonlocal absent
        found = medium(mark[1].decode("ascii"))
        if found is None:
            absent += 1
            return mark[0]
        return b64encode(found[1])

    content = marks.sub(put_back, content)
    if absent:
        missing.append(
            f"{absent} media are missing: `inspector.media: keep` keeps them, `har export --media` writes them too."
        )
    return content
