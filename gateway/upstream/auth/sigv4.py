"""Amazon's Signature Version 4 for a request exactly as it is sent. Pure: keys and time are arguments.

botocore's own signer takes a URL and a map of headers, not a raw request target; this one takes the bytes that are
sent. Known-answer tests compare it with botocore's `SigV4Auth` and with requests-aws4auth. Their rules:

- path: dot segments and empty segments are removed, then every byte that is not unreserved is percent-encoded, also
  `%`, so that encoded bytes are encoded twice (all services except S3);
- query: names and values are decoded, `+` is a space, then encoded and sorted; a name without `=` has an empty value;
- headers: `host`, `content-type` and all `x-amz-*` are signed. Headers that proxies may change are not; OpenSearch
  Serverless refuses `content-length` in a signature.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

RawHeader = tuple[bytes, bytes]

EMPTY_PAYLOAD = hashlib.sha256(b"").hexdigest()
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
"""Replaces the hash of a body that is streamed."""

_ALGORITHM = "AWS4-HMAC-SHA256"
_OURS = frozenset({b"authorization", b"x-amz-date", b"x-amz-content-sha256", b"x-amz-security-token"})
_ORIGIN = re.compile(rb"^[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys to sign with. token: "" for credentials without a session."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


class Scope(msgspec.Struct, frozen=True):
    """The scope of a derived key: one day (``YYYYMMDD``), region and service."""

    date: str
    region: str
    service: str

    def __str__(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def derive(keys: Keys, scope: Scope) -> bytes:
    """Derive the key for `scope`."""
    key = b"AWS4" + keys.secret_key.encode()
    for part in (scope.date, scope.region, scope.service, "aws4_request"):
        key = _hmac(key, part.encode())
    return key


def payload_hash(body: Iterable[bytes | memoryview]) -> str:
    """Return the SHA-256 of a body in pieces, in hexadecimal."""
    digest = hashlib.sha256()
    for piece in body:
        digest.update(piece)
    return digest.hexdigest()


def signed(
    method: bytes,
    raw_target: bytes,
    headers: Iterable[RawHeader],
    payload: str,
    keys: Keys,
    scope: Scope,
    key: bytes,
    timestamp: str,
) -> list[RawHeader]:
    """Return the headers with a signature, without any signature or credentials that they had.

    raw_target: as in the request line. payload: the body's hash, or `UNSIGNED_PAYLOAD`. key: `derive(keys, scope)`.
    timestamp: ``YYYYMMDDTHHMMSSZ``, on the day of `scope`.
    """
    onward = [header for header in headers if header[0].lower() not in _OURS]
    onward.append((b"X-Amz-Date", timestamp.encode()))
    onward.append((b"X-Amz-Content-SHA256", payload.encode()))
    if keys.token:
        onward.append((b"X-Amz-Security-Token", keys.token.encode()))
    lines, names = _canonical_headers(onward)
    path, _, query = _ORIGIN.sub(b"", raw_target).partition(b"?")
    request = b"\n".join(
        (method.upper(), canonical_path(path), canonical_query(query), lines, b"", names, payload.encode())
    )
    text = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{hashlib.sha256(request).hexdigest()}"
    signature = _hmac(key, text.encode()).hex()
    credential = f"Credential={keys.access_key}/{scope}, SignedHeaders={names.decode('latin-1')}"
    onward.append((b"Authorization", f"{_ALGORITHM} {credential}, Signature={signature}".encode("latin-1")))
    return onward


def canonical_path(path: bytes) -> bytes:
    """Return the path, normalised and encoded again. path: as sent, without the query."""
    segments: list[bytes] = []
    for segment in path.split(b"/"):
        if segment == b"..":
            del segments[-1:]
        elif segment and segment != b".":
            segments.append(segment)
    end = b"/" if segments and path.endswith(b"/") else b""
    return quote_from_bytes(b"/" + b"/".join(segments) + end, safe="/~").encode()


def canonical_query(query: bytes) -> bytes:
    """Return the query's parameters, encoded uniformly and sorted. query: as sent, without the question mark."""
    if not query:
        return b""
    pairs = (pair.partition(b"=") for pair in query.split(b"&") if pair)
    return "&".join(f"{name}={value}" for name, value in sorted((_recode(k), _recode(v)) for k, _, v in pairs)).encode()


def _recode(part: bytes) -> str:
    return quote_from_bytes(unquote_to_bytes(part.replace(b"+", b" ")), safe="~")


def _canonical_headers(headers: Sequence[RawHeader]) -> tuple[bytes, bytes]:
    """Return the signed headers, one per line, and their names joined by semicolons."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        name = name.lower()
        if name in (b"host", b"content-type") or name.startswith(b"x-amz-"):
            found.setdefault(name, []).append(b" ".join(value.split()))
    names = sorted(found)
    return b"\n".join(name + b":" + b",".join(found[name]) for name in names), b";".join(names)


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
