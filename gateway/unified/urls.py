"""URLs of media: which ones the gateway passes on."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from gateway.unified.validate import Fields, shorten

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
