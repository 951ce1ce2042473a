"""Whether what was fetched is the format that the client named: by its content type, and by its first bytes."""

from __future__ import annotations

from gateway.media.unfetchable import Unfetchable
from gateway.unified.formats import FORMATS, MIME_ALIASES
from gateway.unified.magic import begins_as
from gateway.unified.model import MediaKind

_HEAD = 1024
_GENERIC = ("", "application/octet-stream", "binary/octet-stream")
"""Types that say nothing, as object stores give them; they do where the bytes tell the format."""

# Format → content types other than that of `FORMATS` that servers send for it.
_ALSO: dict[str, tuple[str, ...]] = {
    "aac": ("audio/aacp", "audio/x-aac"),
    "flac": ("application/x-flac",),
    "m4a": ("video/mp4",),
    "mka": ("audio/webm",),
    "mov": ("video/mp4",),
    "ogg": ("application/ogg", "video/ogg"),
    "opus": ("audio/ogg", "application/ogg"),
    "webm": ("video/webm", "audio/webm"),
    "x-aac": ("audio/aac", "audio/aacp"),
}
_TEXT = frozenset({"csv", "html", "txt", "md"})


def check(kind: MediaKind, fmt: str, content_type: str, data: bytes | bytearray) -> None:
    """Check that the response has the block's format.

    content_type: the response's header, "" for none. Raw audio (`pcm`) has no signature, so only its type is checked.

    Raises:
        Unfetchable: the type or the bytes are those of another format, or there are no bytes.
    """
    if not data:
        raise Unfetchable("the response is empty", fmt)
    media_type = content_type.partition(";")[0].strip().lower()
    if fmt in _TEXT:
        _check_text(fmt, media_type, data)
        return
    fits = begins_as(kind, fmt, bytes(data[:_HEAD]))
    wanted = FORMATS[kind][fmt]
    if MIME_ALIASES.get(media_type, media_type) not in (wanted, *_ALSO.get(fmt, ())) and (
        fits is None or media_type not in _GENERIC
    ):
        raise Unfetchable(
            "the response's content type does not match the block's format", wanted, media_type[:80] or "none"
        )
    if fits is False:
        raise Unfetchable("the response's content does not match the block's format", fmt, bytes(data[:8]).hex(" "))


def _check_text(fmt: str, media_type: str, data: bytes | bytearray) -> None:
    wanted = "text/*"
    if not MIME_ALIASES.get(media_type, media_type).startswith("text/"):
        raise Unfetchable(
            "the response's content type does not match the block's format", wanted, media_type[:80] or "none"
        )
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unfetchable(
            f"the response's content is not UTF-8 text: byte {error.start} is invalid", "UTF-8 text", fmt
        ) from None
