"""What may be shown of a request: secrets never, long payloads as their length and hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

SECRET_WORDS = ("authorization", "cookie", "password", "passwd", "secret", "token", "api_key", "api-key", "apikey")
LONGEST = 512

_HIDDEN = "[hidden]"


def is_secret(name: str) -> bool:
    """Whether a header, parameter or field of this name holds a secret."""
    lowered = name.lower()
    return any(word in lowered for word in SECRET_WORDS) or lowered.endswith("credential")


def shorten(data: str | bytes | bytearray | memoryview) -> str:
    """A long text or payload as its length and the start of its SHA-256, a short one as it is.

    Any bytes are shortened, as they are payload; text only beyond `LONGEST` characters.
    """
    if isinstance(data, str):
        if len(data) <= LONGEST:
            return data
        raw: bytes | bytearray | memoryview = data.encode("utf-8", "surrogatepass")
        return f"[{len(data)} characters, sha256 {hashlib.sha256(raw).hexdigest()[:12]}]"
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    return f"[{size} bytes, sha256 {hashlib.sha256(data).hexdigest()[:12]}]"


def redact(value: Any, name: str = "") -> Any:
    """`value` with every secret hidden and every payload shortened, at any depth. name: what it is called."""
    if name and is_secret(name) and value is not None and not isinstance(value, (bool, int, float)):
        return _HIDDEN
    match value:
        case str() | bytes() | bytearray() | memoryview():
            return shorten(value)
        case Mapping():
            return {key: redact(item, str(key)) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [redact(item) for item in value]
        case _:
            return value
