"""Bodies as they are recorded: decoded, without media and secrets."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec

from gateway.errors import GatewayError
from gateway.observe.media import Keep, Known, shorten_media
from gateway.observe.record import Body
from gateway.observe.redaction import Redactor
from gateway.observe.secrets import Secrets, is_secret_name, may_hold_secret
from gateway.proxy import content_coding
from gateway.proxy.body_copy import BodyCopy, without_chunk_lines

_CONTENT = 256 * 1024 * 1024
"""Most bytes of a content that is decoded to be recorded."""
_UNKNOWN_CODING = "Not recorded: its content coding can't be decoded."
_CUT_CODING = "Not recorded: its content coding can't be decoded, as it is cut."
_MAY_HOLD_SECRET = "Not recorded: it is not text, and may hold a secret."
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"PK\x03\x04")
"""First bytes of gzip, zstd, xz, bzip2 and zip. Such a body without `Content-Encoding` is not decompressed."""
_SHORT = 4096
"""Longest body, in bytes, in which a medium is recognised by the name before it."""
_UNPLAIN = (b"earer ", b"asic ", b"-----B", b"<", b"$", b"curl", b"Curl", b"CURL")
"""Parts of texts that may hold a secret without a name before a colon."""
_UNPLAIN_NAMES = frozenset({b"data", b"bytes", b"url", b"value", b"values"})
"""Names of media, and of values that may have a name beside them."""
_KNOWN_NAMES = 10_000


class BodyMaker:
    """Makes bodies of records. keep: keeps the bytes of media; None if they are not kept."""

    def __init__(self, redactor: Redactor, keep: Keep | None) -> None:
        self._redactor = redactor
        self._keep = keep
        self._plain: dict[bytes, bool] = {}
        self._known: Known = []
        self._checked: tuple[bytes | memoryview, bool] = b"", True
        """The content that was checked last, and whether it is plain."""

    def forget(self) -> None:
        """Release the bodies of the exchange, whose record is made."""
        self._checked = b"", True
        if self._known:
            self._known = []

    def copied(self, copy: BodyCopy, chunk_lines: bool, codings: Sequence[str], found: Secrets) -> Body:
        """Return a copied body, which may be cut. chunk_lines: the copy has them."""
        content = without_chunk_lines(copy.pieces) if chunk_lines else b"".join(copy.pieces)
        if copy.is_whole:
            return self.make((content,), codings, found, copy.size)
        body = self.make((content,), codings, found, copy.size, cut=True)
        if body.omitted:
            return body
        if copy.size > copy.limit:
            omitted = f"Cut: {copy.size} bytes came, and the first {copy.limit} were recorded."
        else:
            omitted = "Cut: the rest did not arrive."
        return msgspec.structs.replace(body, omitted=omitted)

    def make(
        self,
        pieces: Sequence[bytes | memoryview],
        codings: Sequence[str],
        found: Secrets,
        size: int = -1,
        cut: bool = False,
    ) -> Body:
        """Return a body. pieces: of the body in its content coding; no medium reaches from one into the next.

        size: to report; -1: that of the pieces.

        """
        if size < 0:
            size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if codings and size:
            try:
                pieces = [content_coding.decompress_whole(b"".join(pieces), codings, _CONTENT)]
            except GatewayError:
                return Body(size, omitted=_CUT_CODING if cut else _UNKNOWN_CODING)
        if not found.names and len(pieces) == 1 and self.is_plain(pieces[0]):
            try:
                return Body(size, str(pieces[0], "utf-8"))
            except UnicodeDecodeError:
                pass
        content = self._without_media(pieces)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            if not (cut and error.end == len(content)):
                return self._binary(content, size, found)
            text = content[: error.start].decode()
        if "\0" in text and may_hold_secret(text.replace("\0", "")):  # UTF-16, which the cluster reads as well
            return Body(size, omitted=_MAY_HOLD_SECRET)
        return Body(size, self._redactor.text(text, found))

    def is_plain(self, content: bytes | memoryview) -> bool:
        """Return True if a short body can have neither secrets nor media: JSON whose names are known to be harmless.

        Each colon follows a name, in strings of JSON too, and there are no assignments or authorization schemes.
        """
        if content is not self._checked[0]:
            self._checked = content, self._has_plain_names(content)
        return self._checked[1]

    def _has_plain_names(self, content: bytes | memoryview) -> bool:
        if len(content) > _SHORT or isinstance(content, memoryview) or self._redactor.has_rules or b"=" in content:
            return False
        # `rfind` takes a third of the time of `in` for a text that is not there.
        for word in _UNPLAIN:
            if content.rfind(word) >= 0:
                return False
        escapes = 2 if b"\\" in content else 0
        if escapes and b"\\u" in content:
            return False
        plain = self._plain
        parts = content.split(b":")
        parts.pop()
        if not parts and content[:1] == b"[":  # a list may have the name of a header before its value
            return False
        for part in parts:
            quote = part.rfind(b'"', 0, -1)
            name = part[quote - escapes :] if quote > escapes else part[quote:]
            if not (plain[name] if name in plain else self._is_plain_name(name)):
                return False
        return True

    def _is_plain_name(self, token: bytes) -> bool:
        """Return True for the token of a harmless name, with the two bytes before it if there are escapes."""
        plain = _read_name(token)
        lowered = plain.lower()
        is_harmless = lowered not in _UNPLAIN_NAMES and b"header" not in lowered
        known = bool(plain) and is_harmless and not is_secret_name(plain.decode("utf-8", "replace"))
        if len(self._plain) < _KNOWN_NAMES:
            self._plain[token] = known
        return known

    def _without_media(self, pieces: Sequence[bytes | memoryview]) -> bytes:
        if len(pieces) == 1:
            return shorten_media(pieces[0], keep=self._keep, known=self._known)
        out: list[bytes] = []
        for piece in pieces:
            out.append(shorten_media(piece, out[-1] if out else b"", self._keep, self._known))
        return b"".join(out)

    def _binary(self, content: bytes, size: int, found: Secrets) -> Body:
        """Return a body that is not text, unless it may hold a secret, which could not be removed."""
        if content.startswith(_COMPRESSED):
            return Body(size, omitted=_MAY_HOLD_SECRET)
        text = content.decode("latin-1").replace("\0", "")
        if may_hold_secret(text) or self._redactor.text(text, found) != text or found.hide(text) != text:
            return Body(size, omitted=_MAY_HOLD_SECRET)
        return Body(size, base64.b64encode(content).decode("ascii"), "base64")


def _read_name(token: bytes) -> bytes:
    r"""Return the name in ``"name"``, or in JSON in a string, ``\"name\"``; b"" if it is none, or has other escapes."""
    if not token.endswith(b'"'):
        return b""
    before, quote, name = token[:-1].rpartition(b'"')
    is_nested = name.endswith(b"\\")
    if not quote or is_nested != before.endswith(b"\\") or before == b"\\\\":
        return b""
    name = name[:-1] if is_nested else name
    return b"" if b"\\" in name else name
