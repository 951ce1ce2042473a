"""Amazon's Signature Version 4, computed over a request exactly as it is sent. Pure: keys and time are handed in.

botocore's own signer takes a URL and a map of headers, so it can't be given a raw request target; this one takes the
bytes that go out. Known-answer tests hold it to botocore's `SigV4Auth` and to requests-aws4auth. Their rules:

- path: dot segments and empty segments go, then every byte that is not unreserved is percent-encoded, `%` included,
  so that what is encoded already is encoded twice (all services but S3);
- query: names and values are decoded, `+` is a space, then encoded and sorted; a name alone has an empty value;
- headers: `host`, `content-type` and all `x-amz-*` are signed. What proxies on the way may change (`content-length`
  among them, which OpenSearch Serverless refuses in a signature) is not.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote_from_bytes, unquote_to_bytes

RawHeader = tuple[bytes, bytes]

EMPTY_PAYLOAD = hashlib.sha256(b"").hexdigest()
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
"""In place of the body's hash where the body is not known before its end."""

_ALGORITHM = "AWS4-HMAC-SHA256"
_OURS = frozenset({b"authorization", b"x-amz-date", b"x-amz-content-sha256", b"x-amz-security-token"})
_ORIGIN = re.compile(rb"^[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")


@dataclass(frozen=True, slots=True)
class Keys:
    """What to sign with. token: "" for credentials without a session."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a derived key is good for: one day (``YYYYMMDD``), region and service."""

    date: str
    region: str
    service: str

    def __str__(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def derive(keys: Keys, scope: Scope) -> bytes:
    """The key that signs within `scope`."""
    key = b"AWS4" + keys.secret_key.encode()
    for part in (scope.date, scope.region, scope.service, "aws4_request"):
        key = _hmac(key, part.encode())
    return key


def payload_hash(body: Iterable[bytes | memoryview]) -> str:
    """SHA-256 of a body in pieces."""
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
    """The headers with a signature, and without whatever signature or credentials they carried.

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
    """The path, normalised and encoded once more. path: as sent, without the query."""
    kept: list[bytes] = []
    for segment in path.split(b"/"):
        if segment == b"..":
            del kept[-1:]
        elif segment and segment != b".":
            kept.append(segment)
    end = b"/" if kept and path.endswith(b"/") else b""
    return quote_from_bytes(b"/" + b"/".join(kept) + end, safe="/~").encode()


def canonical_query(query: bytes) -> bytes:
    """The query's parameters, decoded, encoded and sorted. query: as sent, without the question mark."""
    if not query:
        return b""
    pairs = (pair.partition(b"=") for pair in query.split(b"&") if pair)
    return "&".join(f"{name}={value}" for name, value in sorted((_recode(k), _recode(v)) for k, _, v in pairs)).encode()


def _recode(part: bytes) -> str:
    return quote_from_bytes(unquote_to_bytes(part.replace(b"+", b" ")), safe="~")


def _canonical_headers(headers: Sequence[RawHeader]) -> tuple[bytes, bytes]:
    """The signed headers, one a line, and their names joined by semicolons."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        name = name.lower()
        if name in (b"host", b"content-type") or name.startswith(b"x-amz-"):
            found.setdefault(name, []).append(b" ".join(value.split()))
    names = sorted(found)
    return b"\n".join(name + b":" + b",".join(found[name]) for name in names), b";".join(names)


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
