"""Bodies as they are recorded: decoded, without media and secrets."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec

from gateway.errors import GatewayError
from gateway.observe.media import Keep, Known, shorten_media
from gateway.observe.record import Body
from gateway.observe.redaction import Redactor
from gateway.observe.secrets import Secrets, may_hold_secret
from gateway.proxy import content_coding
from gateway.proxy.capture import BodyCopy, without_chunk_lines

_CONTENT = 256 * 1024 * 1024
"""Most bytes of a content that is decoded to be recorded."""
_UNKNOWN_CODING = "Not recorded: its content coding can't be decoded."
_CUT_CODING = "Not recorded: its content coding can't be decoded, as it is cut."
_MAY_HOLD_SECRET = "Not recorded: it is not text, and may hold a secret."
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"PK\x03\x04")
"""First bytes of gzip, zstd, xz, bzip2 and zip. Such a body without `Content-Encoding` is not decompressed."""


class BodyMaker:
    """Makes bodies of records. keep: keeps the bytes of media; None if they are not kept."""

    def __init__(self, redactor: Redactor, keep: Keep | None) -> None:
        self._redactor = redactor
        self._keep = keep
        self._known: Known = []

    def forget(self) -> None:
        """Release the bodies of the exchange, whose record is made."""
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
