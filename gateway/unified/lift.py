"""Long strings taken out of a JSON body, so that a 50 MB image is neither copied nor decoded.

Every string of at least `threshold` bytes without a backslash leaves the body, and a short token takes its place.
What is left is small, and everything after works on it. The walk jumps from string to string: a regular
expression passes over runs of short strings, `bytes.find` over long ones, and Python sees at most one string
for every `threshold` bytes.

A token must not occur anywhere else, or a client's text could be taken for it. Its middle is a digest of what is
left of the body: text that spells a token, with or without JSON escapes, would have to contain its own digest.
The lifted strings have no escapes, so for them a plain search is enough; and as every token has an underscore,
which base64 has not, a search for that one byte is enough for most of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

Payload = bytes | memoryview

THRESHOLD = 2048
TOKEN = re.compile(rb"gwb_[0-9a-f]{16}x[0-9]+x[0-9]+x")
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")


class Unreadable(ValueError):
    """A lifted string is not text: invalid UTF-8, or a raw control character, which JSON forbids."""


@dataclass(slots=True)
class Lifted:
    """A body without its long strings.

    text: what is left, JSON if the body was. blobs: token → the string's bytes (a view on the body), in the
    order in which they stood.
    """

    text: bytes
    blobs: dict[str, memoryview]
    _prefix: str = field(default="", compare=False)
    _minted: int = field(default=0)

    @property
    def prefix(self) -> str:
        """What every token of this body begins with; where nothing was lifted, made when it is first asked for."""
        if not self._prefix:
            self._prefix = _unused_prefix(self.text, [], [self.text])
        return self._prefix

    def mint(self) -> str:
        """A new token for a payload that was not lifted, because it is short or was written with escapes."""
        self._minted += 1
        return f"{self.prefix}{len(self.blobs) + self._minted - 1}x"

    def restore(self, text: str) -> str:
        """The string that `text` stands for, if it is a token; else `text` itself.

        Raises:
            Unreadable: the lifted string is not valid JSON text.
        """
        blob = self.blobs.get(text)
        if blob is None:
            return text
        try:
            restored = str(blob, "utf-8")
        except UnicodeDecodeError as error:
            raise Unreadable(f"invalid UTF-8 at byte {error.start} of the string") from None
        control = _CONTROL.search(restored)
        if control:
            raise Unreadable(f"unescaped control character at character {control.start()} of the string")
        return restored

    def offset(self, position: int) -> int:
        """Where the byte at `position` of `text` stood in the body."""
        tokens = (match[0].decode() for match in TOKEN.finditer(self.text, 0, position))
        return position + sum(len(self.blobs[token]) - len(token) for token in tokens if token in self.blobs)


def lift(body: bytes | bytearray, threshold: int = THRESHOLD) -> Lifted:
    """`body` with its long strings replaced by tokens. Never fails: what is not JSON comes back as it is.

    Args:
        body: the request body; a bytearray must not change as long as the result is used.
        threshold: the shortest string that is lifted, in bytes without the quotes; at least 1.
    """
    spans = _long_strings(body, threshold) if len(body) > threshold else []
    if not spans:
        return Lifted(bytes(body), {})
    kept = _kept(body, spans)
    prefix = _unused_prefix(body, spans, kept)
    view = memoryview(body)
    blobs = {f"{prefix}{index}x": view[start:end] for index, (start, end) in enumerate(spans)}
    pieces = [kept[0]]
    for token, piece in zip(blobs, kept[1:], strict=True):
        pieces += (token.encode(), piece)
    return Lifted(b"".join(pieces), blobs, prefix)


def put_back(text: bytes, payloads: Mapping[str, Payload]) -> list[Payload]:
    """`text` cut at the tokens that `payloads` knows, each replaced by its payload, uncopied.

    Joining the pieces gives the whole; a server can also write them one by one.
    """
    pieces: list[Payload] = []
    done = 0
    for match in TOKEN.finditer(text):
        payload = payloads.get(match[0].decode())
        if payload is not None:
            pieces += (text[done : match.start()], payload)
            done = match.end()
    pieces.append(text[done:])
    return pieces


def _long_strings(body: bytes | bytearray, threshold: int) -> list[tuple[int, int]]:
    """Start and end (without the quotes) of every string to lift."""
    # Strings whose first stretch without a backslash is short; anything may follow a backslash.
    short_strings = re.compile(rb'(?:[^"]*+"[^"\\]{0,%d}+(?:\\.[^"\\]*+)*+")*+[^"]*+' % (threshold - 1), re.DOTALL)
    spans = []
    position = 0
    while (run := short_strings.match(body, position)) and run.end() < len(body):
        start = run.end() + 1
        end = body.find(b'"', start)
        if end < 0:
            break
        if end - start >= threshold and body.find(b"\\", start, end) < 0:
            spans.append((start, end))
            position = end + 1
        elif rest := _REST_OF_STRING.match(body, start):
            position = rest.end()
        else:
            break
    return spans


def _kept(body: bytes | bytearray, spans: list[tuple[int, int]]) -> list[bytes]:
    """The stretches of `body` before, between and behind `spans`: one more than there are spans."""
    starts = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), len(body)]
    return [bytes(body[start:end]) for start, end in zip(starts, ends, strict=True)]


def _unused_prefix(body: bytes | bytearray, spans: list[tuple[int, int]], kept: list[bytes]) -> str:
    digest = blake2b(digest_size=8)
    for piece in kept:
        digest.update(piece)
    # None of these bytes is a quote, so what occurs in the body occurs in one stretch or one string of it.
    suspects = [(start, end) for start, end in spans if body.find(b"_", start, end) >= 0]

    def is_unused(prefix: bytes) -> bool:
        return not (
            any(prefix in piece for piece in kept) or any(body.find(prefix, start, end) >= 0 for start, end in suspects)
        )

    prefixes = (f"gwb_{digest.hexdigest()}x{nonce}x" for nonce in count())
    return next(prefix for prefix in prefixes if is_unused(prefix.encode()))
