"""Images, videos, documents and audio, and the spellings of their source.

{"type": "base64"|"url", "format", "data"}            the RFC's spelling
{"bytes": …}, {"s3Location": …}, {"location": …}      Bedrock Converse and Strands, `format` one level up
{"url": …}                                            the same, for media by any URL, as sessions are stored
{"type": "data"|"url", "value", "mimeType"}           AG-UI
{"type": "base64", "media_type", "data"}, {"type": "url", "url"}     Anthropic
image_url, input_audio, file                          OpenAI content parts
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pybase64

from gateway.unified import formats
from gateway.unified.jsonstrings import Unreadable, find
from gateway.unified.model import Base64, Media, MediaKind, Url
from gateway.unified.payloads import Payload
from gateway.unified.validate import Fields, Reading, did_you_mean, json_type, shorten

_SLICE = 1 << 20  # a multiple of 4: a slice is valid base64 by itself
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_WHITESPACE = b" \t\r\n\f\v"
_DATA_URL = re.compile(rb"data:([^,;\x00-\x1f\x7f-\xff]*)((?:;[^,;\x00-\x1f\x7f-\xff]*)*),", re.IGNORECASE)
_LONGEST_PREFIX = 512


def split_data_url(data: Payload) -> tuple[str | None, Payload]:
    """Return the MIME type of a ``data:`` URL and the data after its comma.

    The type is "" if the URL has none, and None for anything but a ``data:`` URL.

    Raises:
        ValueError: a `data:` URL whose content is not base64.
    """
    head = bytes(data[:_LONGEST_PREFIX]).lstrip(_WHITESPACE)
    match = _DATA_URL.match(head)
    if match is None:
        return None, data
    if not match[2].lower().endswith(b";base64"):
        raise ValueError("the data: URL is not base64 (no ;base64 before its comma)")
    leading = min(len(data), _LONGEST_PREFIX) - len(head)
    return match[1].decode().strip().lower(), data[leading + match.end() :]


def clean(data: Payload, whitespace: bytes = _WHITESPACE) -> Payload:
    """Return `data` as standard base64 with padding: `data` itself if possible, else a copy without `whitespace`.

    Raises:
        ValueError: it is empty or not base64; the message says where.
    """
    if not is_valid(data):
        # Joined from slices: one call for all of a large payload would keep other threads from running.
        data = b"".join(bytes(part).translate(None, whitespace) for part in _slices(data))
    if not data:
        raise ValueError("it is empty")
    if not is_valid(data):
        raise ValueError(_base64_fault(bytes(data)))
    return data


def is_valid(data: Payload) -> bool:
    """Return True if `data` is base64 of the standard alphabet with full padding."""
    if len(data) % 4:
        return False
    for start in range(0, len(data), _SLICE):
        chunk = data[start : start + _SLICE]
        try:
            decoded = pybase64.b64decode(chunk, validate=True)
        except (binascii.Error, ValueError):
            return False
        # Padding makes a slice decode to less; only the last one may have it.
        if len(decoded) != len(chunk) // 4 * 3 and start + _SLICE < len(data):
            return False
    return True


def _slices(data: Payload) -> Iterator[Payload]:
    return (data[start : start + _SLICE] for start in range(0, len(data), _SLICE))


def _base64_fault(data: bytes) -> str:
    """Describe the error in `data`, which is not valid."""
    strange = b""
    for part in _slices(data):
        if strange := bytes(part).translate(None, _ALPHABET):
            break
    if strange:
        where = find(data, strange[:1])
        if strange[:1] in b"-_":
            return f"it has {chr(strange[0])!r} at character {where}: the URL-safe alphabet, not the standard one"
        return f"character {where} is not in the alphabet"
    padding = find(data, b"=")
    if 0 <= padding < len(data) - 2 or (padding >= 0 and data[padding:].strip(b"=")):
        return f"padding at character {padding}, before the end"
    return f"{len(data)} characters are not a multiple of 4: padding is missing or the end is cut off"


SCHEMES = ("http", "https", "s3", "gs")
_AS_DATA = 'To send inline data, use a block with "source": {"type": "base64", "format": …, "data": <base64>}.'
EXPECTED = "an http, https, s3 or gs URL"
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")
_ACCOUNT = re.compile(r"[0-9]{12}")


def read_url(holder: Fields, name: str, schemes: tuple[str, ...]) -> str | None:
    """Return the URL in member `name` if its scheme is allowed and it has a host or a bucket and object."""
    expected = EXPECTED if schemes == SCHEMES else "an s3 URL"
    url = holder.string(name, expected)
    if url is None:
        return None
    fault = _fault(url, schemes)
    if not fault:
        return url
    help = _AS_DATA if url.lstrip()[:5].lower() == "data:" else ""
    # The query of a pre-signed URL is a secret.
    shown = f"data: URL of {len(url)} characters" if help else shorten(url.partition("?")[0])
    holder.problem(name, f"Not a URL the gateway can pass on: {fault}", expected, shown, help)
    return None


def _fault(url: str, schemes: tuple[str, ...]) -> str:
    if _FORBIDDEN.search(url):
        return "it has a space or control character"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in schemes:
        return f"its scheme is not one of {', '.join(schemes)}"
    if not host:
        return "it names no host" if parts.scheme in ("http", "https") else "it names no bucket"
    if parts.scheme in ("s3", "gs") and not parts.path.strip("/"):
        return "it names no object in the bucket"
    return ""


def read_bucket_owner(location: Fields) -> str | None:
    """Return the AWS account that owns the bucket of an s3 URL; None without one."""
    owner = location.string("bucketOwner", required=False)
    if owner is not None and not _ACCOUNT.fullmatch(owner):
        location.problem("bucketOwner", "Not an AWS account id", "12 digits", shorten(owner))
    return owner


_SOURCE_TYPES = ("base64", "url")
_TYPE_EXPECTED = '"base64" or "url"'
FORMAT_NAMES = ("format", "media_type", "mime_type", "mimeType", "mediaType")
_URL_NAMES = ("data", "url", "uri")
_URL_START = re.compile(rb"(https?|s3|gs)://", re.IGNORECASE)
_AS_URL = 'To send a URL, use a block with "source": {"type": "url", "format": …, "data": <URL>}.'


def read_typed(kind: MediaKind, block: Fields) -> Media | None:
    """``{"type": "image", "source": {…}}`` or ``{"type": "image", "image": {…}}``, of any kind."""
    member = block.one_of(("source", kind))
    if not member:
        block.require("source", f'"source" or "{kind}": an object with type, format and data')
        return None
    if member == "source":
        return read_body(kind, block, block.at)
    body = block.object(kind)
    return read_named(kind, body, block.at) if body else None


def read_named(kind: MediaKind, body: Fields, at: str) -> Media | None:
    """Read the object of a member such as ``"image"``; unknown members of it are problems."""
    media = read_body(kind, body, at)
    body.done()
    return media


def read_body(kind: MediaKind, body: Fields, at: str) -> Media | None:
    """Read a medium whose `body` has a `source` or is itself the source. at: the block's place."""
    name = _document_name(body) if kind == "document" else None
    source = body
    if body.has("source"):
        inner = body.object("source")
        if inner is None:
            return None
        source = inner
    found = _read_source(kind, source, body)
    if source is not body:
        source.done()
    if found is None:
        return None
    fmt, where = found
    return Media(kind, fmt, where, at, name)


DETAILS = ("auto", "low", "high", "original")
"""How closely a model looks at an image (OpenAI)."""


def read_image_url(part: Fields) -> Media | None:
    """Read OpenAI's ``image_url``: an object with `url`, or the URL itself."""
    written = part.get("image_url")
    holder, name = part, "image_url"
    if not isinstance(written, str):
        inner = part.object("image_url", "object with a url")
        if inner is None:
            return None
        holder, name = inner, "url"
    written = holder.string("detail", required=False)
    if written not in (None, *DETAILS):
        holder.problem("detail", 'Unknown "detail"', f"one of {', '.join(DETAILS)}", shorten(written or ""))
    detail = "" if written in (None, "auto") else written
    found = read_reference("image", holder, name)
    if holder is not part:
        holder.done()
    return Media("image", found[0], found[1], part.at, detail=detail or "") if found else None


def read_input_audio(part: Fields) -> Media | None:
    """Read OpenAI's ``input_audio``: `data` (base64) and `format`."""
    audio = part.object("input_audio", "object with data and format")
    if audio is None:
        return None
    found = read_base64("audio", audio, "data", audio)
    audio.done()
    return Media("audio", found[0], found[1], part.at) if found else None


def read_file(part: Fields) -> Media | None:
    """Read OpenAI's ``file``: `file_data` (a data: URL) and `filename`."""
    file = part.object("file", "object with file_data and filename")
    if file is None:
        return None
    name = file.name("filename", required=False)
    found = None
    if file.has("file_id"):
        file.problem(
            "file_id",
            '"file_id" names a file stored at a provider, which the gateway can\'t read',
            "file_data",
            "file_id",
        )
    else:
        found = read_reference("document", file, "file_data", name or "")
    file.done()
    return Media("document", found[0], found[1], part.at, name) if found else None


Found = tuple[str, Base64 | Url] | None


def _document_name(body: Fields) -> str | None:
    member = body.one_of(("name", "title"))
    return body.name(member) if member else None


def _read_source(kind: MediaKind, source: Fields, body: Fields) -> Found:
    if source.has("type"):
        return _read_source_of_type(kind, source, body)
    member = source.one_of(("bytes", "s3Location", "location", "url"))
    match member:
        case "url":
            return read_url_source(kind, source, body, SCHEMES)
        case "bytes":
            return read_base64(kind, source, "bytes", body)
        case "s3Location" | "location":
            return _read_s3(kind, source, member, body)
        case _:
            source.require("type", _TYPE_EXPECTED)
            _check_unknown(kind, source, body)
            return None


def _read_source_of_type(kind: MediaKind, source: Fields, body: Fields) -> Found:
    written = source.string("type", _TYPE_EXPECTED)
    match (written or "").lower():
        case "base64":
            return read_base64(kind, source, "data", source, body)
        case "data":
            return read_base64(kind, source, "value", source, body)
        case "url":
            names = _URL_NAMES if source.peek("value") is None else ("value",)
            return read_url_source(kind, source, body, SCHEMES, names)
        case "s3":
            return read_url_source(kind, source, body, ("s3",))
        case _:
            if written is not None:
                near = did_you_mean(written, _SOURCE_TYPES)
                source.problem("type", "Unsupported source type", _TYPE_EXPECTED, shorten(written), near)
            _check_unknown(kind, source, body)
            return None


def _check_unknown(kind: MediaKind, source: Fields, body: Fields) -> None:
    """Check what can be checked of a source of an unknown type: that it has a format and data."""
    _format(kind, source, body)
    if not source.one_of(("data", "url", "uri")):
        source.require("data", "base64 data or a URL")


def read_base64(kind: MediaKind, source: Fields, name: str, *format_holders: Fields) -> Found:
    """Read base64 data, or a ``data:`` URL, in member `name`; the first of `format_holders` with a format names it."""
    payload, mime = _payload(source, name)
    fmt = _format(kind, *format_holders, mime=mime, place=source.place(name))
    return (fmt, payload) if fmt and payload else None


def _payload(holder: Fields, name: str) -> tuple[Base64 | None, str]:
    """Return the base64 data in member `name`, and the MIME type of its ``data:`` prefix ("" without one)."""
    if not isinstance(holder.get(name), dict):
        return _base64(holder, name)
    wrapper = holder.object(name)
    assert wrapper is not None
    if wrapper.get("__bytes_encoded__") is not True:
        wrapper.problem(
            "__bytes_encoded__", 'An object in place of a base64 string needs "__bytes_encoded__": true', "true"
        )
    found = _base64(wrapper, "data")
    wrapper.done()
    return found


def _base64(holder: Fields, name: str) -> tuple[Base64 | None, str]:
    expected = "string of standard base64 with padding"
    written = holder.require(name, expected)
    if not isinstance(written, str):
        if written is not None:
            holder.problem(name, f'"{name}" has the wrong type', expected, json_type(written))
        return None, ""
    extracted = holder.reading.extracted
    is_lifted = written in extracted.blobs
    data: Payload = b""
    mime = None
    try:
        data = extracted.data(written) if is_lifted else written.encode()
        mime, content = split_data_url(data)
        # In a string without escapes, the only possible white space is a space.
        content = clean(content, b" ") if is_lifted and written not in extracted.escaped else clean(content)
    except ValueError as error:
        help = _AS_URL if _URL_START.match(bytes(data[:8])) else ""
        holder.problem(name, f"Not base64: {error}", expected, f"string of {len(data)} bytes", help)
        return None, mime or ""
    return Base64(content, written if is_lifted else extracted.new_token()), mime or ""


def read_reference(kind: MediaKind, holder: Fields, name: str, filename: str = "") -> Found:
    """Read a URL, which may be a ``data:`` URL, in a spelling without a member for the format."""
    written = holder.require(name, f"a data: URL, or {EXPECTED}")
    if written is None:
        return None
    if isinstance(written, str) and (
        name == "file_data" or _start(holder.reading, written).lower().startswith("data:")
    ):
        payload, mime = _payload(holder, name)
        fmt = formats.normalise(kind, mime) or formats.from_path(kind, filename)
        if payload and not fmt:
            holder.problem(name, f"Unknown {kind} format: no provider accepts it", _known(kind), shorten(mime))
        return (fmt, payload) if fmt and payload else None
    url = read_url(holder, name, SCHEMES)
    return (_format_of_url(kind, url), Url(url)) if url else None


def _format_of_url(kind: MediaKind, url: str) -> str:
    """Return the format that the end of a URL's path shows; "" if it shows none: not every provider needs it."""
    return formats.from_path(kind, urlsplit(url).path) or ""


def starts_as_url(holder: Fields, name: str) -> bool:
    """Return True if a member is text that begins as a URL, other than a ``data:`` URL."""
    written = holder.get(name)
    return isinstance(written, str) and _URL_START.match(_start(holder.reading, written).encode()) is not None


def _start(reading: Reading, written: str) -> str:
    """Return the first characters of a string, after white space."""
    if written not in reading.extracted.blobs:
        return written.lstrip()[:8]
    try:
        return bytes(reading.extracted.data(written)[:100]).decode("latin-1").lstrip()[:8]
    except Unreadable:
        return ""


def read_url_source(
    kind: MediaKind, source: Fields, body: Fields, schemes: tuple[str, ...], names: tuple[str, ...] = _URL_NAMES
) -> Found:
    """Read a URL. body: holds the format if `source` does not. names: of its member, where it has another name.

    Only unified input's own spelling, with `data`, requires a format. In clients' spellings it may be absent.
    """
    member = source.one_of(names) or "data"
    url = read_url(source, member, schemes)
    fmt: str | None
    if member != "data" and not any(holder.has(name) for holder in (source, body) for name in FORMAT_NAMES):
        fmt = _format_of_url(kind, url) if url else None
    else:
        fmt = _format(kind, source, body)
    owner = read_bucket_owner(source) if url and urlsplit(url).scheme == "s3" else None
    return (fmt, Url(url, owner)) if url and fmt is not None else None


def _read_s3(kind: MediaKind, source: Fields, member: str, body: Fields) -> Found:
    location = source.object(member)
    fmt = _format(kind, body)
    if location is None:
        return None
    if member == "location":
        written = location.string("type", '"s3"')
        if written is not None and written != "s3":
            location.problem("type", "Unsupported location type", '"s3"', shorten(written))
    url = read_url(location, "uri", ("s3",))
    owner = read_bucket_owner(location)
    location.done()
    return (fmt, Url(url, owner)) if url and fmt else None


def _format(kind: MediaKind, *holders: Fields, mime: str = "", place: str = "") -> str | None:
    """Return the normalised format in the first holder that has one, or of a ``data:`` URL's MIME type at `place`."""
    for holder in holders:
        member = holder.one_of(FORMAT_NAMES)
        if not member:
            continue
        written = holder.string(member, _known(kind))
        fmt = formats.normalise(kind, written) if written is not None else None
        if written is not None and fmt is None:
            holder.problem(member, f"Unknown {kind} format: no provider accepts it", _known(kind), shorten(written))
        if fmt and mime and formats.contradicts(kind, fmt, mime):
            reason = f"The data: URL has the type {shorten(mime)}, but the format is {fmt}"
            holder.reading.problems.add(place, reason, "the same format in both", shorten(mime))
            return None
        return fmt
    fmt = formats.normalise(kind, mime) if mime else None
    if fmt is None and mime:
        reason = f"Unknown {kind} format: no provider accepts it"
        holders[0].reading.problems.add(place, reason, _known(kind), shorten(mime))
    elif fmt is None:
        holders[0].require("format", _known(kind))
    return fmt


def _known(kind: MediaKind) -> str:
    return f"one of {', '.join(formats.FORMATS[kind])}"
