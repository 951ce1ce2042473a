"""Extracts long strings from a JSON body, so that a 50 MB image is neither copied nor decoded.

Every string of at least `threshold` bytes without a backslash is replaced by a short token. So is a string with
backslashes that is longer than a window, and sometimes a shorter one. The remaining text is small, and the rest of the
gateway works on it. A regular expression skips runs of short strings and `bytes.find` skips long ones, so Python code
runs at most once for every `threshold` bytes.

No call of C code gets more than a window or a stride of the body at a time, because such a call blocks all other
threads. The scan stops if more than `limits.text` bytes would remain.

A token must not occur anywhere else, or a client's text could be mistaken for it. So it contains a random number of 64
bits, chosen when the whole body is there, as a client cannot know it before.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gateway.unified.jsonstrings import WINDOW, decode_pieces, end_of_escaped, find, unescape
from gateway.unified.limits import SMALL_TEXT, ParseLimits, is_small, too_much_text

Payload = bytes | memoryview

THRESHOLD = 2048
TOKEN = re.compile(rb"gwb_[0-9a-f]{16}x[0-9]+x")


@dataclass(slots=True)
class ExtractedBody:
    """A body without its long strings.

    text: the remaining text, which is JSON if the body is. blobs: token → the string's bytes in the body (a view), in
    the order of the body. escaped: the tokens of strings with backslashes. limits: of the bytes that `restore`
    decodes.
    """

    text: bytes
    blobs: dict[str, memoryview]
    _prefix: str = field(default="", compare=False)
    escaped: frozenset[str] = frozenset()
    limits: ParseLimits = field(default=ParseLimits(), compare=False)
    _new_tokens: int = field(default=0)
    _restored: set[str] = field(default_factory=set, compare=False)
    _restored_bytes: int = field(default=0, compare=False)
    _unescaped: dict[str, bytes] = field(default_factory=dict, compare=False)

    @property
    def prefix(self) -> str:
        """The prefix of every token of this body. If nothing was extracted, it is chosen on first use."""
        if not self._prefix:
            self._prefix = _new_prefix()
        return self._prefix

    def new_token(self) -> str:
        """Return a new token for a payload that was not extracted, because it is short or has escapes."""
        self._new_tokens += 1
        return f"{self.prefix}{len(self.blobs) + self._new_tokens - 1}x"

    def restore(self, text: str) -> str:
        """Return the string that `text` replaces if it is a token, else `text` itself.

        Raises:
            Unreadable: the extracted string is not valid JSON text.
            BodyTooLarge: there is more text than the limits allow.
        """
        blob = self.blobs.get(text)
        if blob is None:
            return text
        if text not in self._restored:
            self._restored.add(text)
            self._restored_bytes += len(blob)
        if len(self.text) + self._restored_bytes > self.limits.text:
            raise too_much_text(self.limits.text)
        return "".join(decode_pieces(self.data(text), text not in self.escaped))

    @property
    def is_small(self) -> bool:
        """True if the text read so far, without payloads, is small (see `limits.is_small`)."""
        return self._restored_bytes + len(self.text) <= SMALL_TEXT and is_small(self.text)

    def data(self, token: str) -> Payload:
        """Return the bytes of an extracted string, unescaped.

        Raises:
            KeyError: `token` is unknown. Unreadable: an escape is not valid.
        """
        if token not in self.escaped:
            return self.blobs[token]
        found = self._unescaped.get(token)
        if found is None:
            found = self._unescaped[token] = unescape(self.blobs[token])
        return found

    def offset(self, position: int) -> int:
        """Return the position in the body of the byte at `position` in `text`."""
        tokens = (match[0].decode() for match in TOKEN.finditer(self.text, 0, position))
        return position + sum(len(self.blobs[token]) - len(token) for token in tokens if token in self.blobs)


def extract(body: bytes | bytearray, threshold: int = THRESHOLD, limits: ParseLimits | None = None) -> ExtractedBody:
    """Replace the long strings of `body` by tokens. A body that is not JSON is returned as it is.

    Args:
        body: the request body; a bytearray must not change while the result is used.
        threshold: the shortest string that is extracted, in bytes without the quotes; at least 1.
        limits: the default ones if it is None.

    Raises:
        BodyTooLarge: more text remains than the limits allow.
    """
    limits = limits or ParseLimits()
    spans = list(_long_strings(body, threshold, limits.text)) if _may_have_some(body, threshold, limits) else []
    if not spans:
        return ExtractedBody(bytes(body), {}, limits=limits)
    remaining = _remaining(body, spans)
    prefix = _new_prefix()
    view = memoryview(body)
    blobs = {f"{prefix}{index}x": view[start:end] for index, (start, end, _) in enumerate(spans)}
    escaped = frozenset(token for token, (_, _, escapes) in zip(blobs, spans, strict=True) if escapes)
    pieces = [remaining[0]]
    for token, piece in zip(blobs, remaining[1:], strict=True):
        pieces += (token.encode(), piece)
    return ExtractedBody(b"".join(pieces), blobs, prefix, escaped, limits)


def insert(text: bytes, payloads: Mapping[str, Payload]) -> list[Payload]:
    """Return `text` in pieces, with each token in `payloads` replaced by its payload, which is not copied.

    Join the pieces or write them one by one.
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


def _may_have_some(body: bytes | bytearray, threshold: int, limits: ParseLimits) -> bool:
    """Return False if it is plain that no string of `body` is extracted, as for most bodies."""
    if len(body) > limits.text or (len(body) > WINDOW and find(body, b"\\") >= 0):
        return True
    step = (threshold + 1) // 2  # a string of `threshold` bytes spans one of these parts
    return any(body.find(b'"', start, start + step) < 0 for start in range(0, len(body) - step + 1, step))


_Span = tuple[int, int, bool]
"""Start and end of a string, without the quotes, and whether it has backslashes."""


def _long_strings(body: bytes | bytearray, threshold: int, most: int) -> Iterator[_Span]:
    """Yield every string to extract. most: bytes that may remain."""
    # Strings whose part before the first backslash is short; anything may follow a backslash.
    short_strings = re.compile(rb'(?:[^"]*+"[^"\\]{0,%d}+(?:\\.[^"\\]*+)*")*[^"]*+' % (threshold - 1), re.DOTALL)
    extracted = position = 0
    while position < len(body):
        run = short_strings.match(body, position, position + WINDOW)
        assert run is not None
        position = run.end()
        if position - extracted > most:
            raise too_much_text(most)
        if position < len(body) and body[position] == _QUOTE:  # of a string that is long, or that ends after the window
            start = position + 1
            end, escapes = _end_of_string(body, start)
            if end < 0:
                break
            if end - start >= threshold:
                yield start, end, escapes
                extracted += end - start
            position = end + 1
    if len(body) - extracted > most:
        raise too_much_text(most)


_QUOTE = ord('"')


def _end_of_string(body: bytes | bytearray, start: int) -> tuple[int, bool]:
    """Return the end of the string that begins at `start`, -1 if it has none; and whether it has backslashes."""
    end = find(body, b'"', start)
    backslash = find(body, b"\\", start, end) if end >= 0 else -1
    if backslash < 0:
        return end, False
    return end_of_escaped(body, backslash), True


def _remaining(body: bytes | bytearray, spans: list[_Span]) -> list[bytes]:
    """Return the pieces of `body` before, between and after `spans`: one more than there are spans."""
    starts = [0, *(end for _, end, _ in spans)]
    ends = [*(start for start, _, _ in spans), len(body)]
    return [bytes(body[start:end]) for start, end in zip(starts, ends, strict=True)]


def _new_prefix() -> str:
    return f"gwb_{secrets.token_hex(8)}x"
