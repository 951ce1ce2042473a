"""Strict base64, checked in slices so that a large payload is neither copied nor decoded whole."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator

import pybase64

from gateway.unified.jsonstrings import find
from gateway.unified.payloads import Payload

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
        raise ValueError(_fault(bytes(data)))
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


def _fault(data: bytes) -> str:
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
