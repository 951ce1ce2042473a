"""Why a connection could not be made: the system's message without its error number, or http for https."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
from urllib.parse import urlsplit

NO_TLS = re.compile(r"wrong version number|record layer failure|http request", re.IGNORECASE)
"""OpenSSL's reasons for an answer that is not TLS, with spaces for underscores."""
_ERRNO = re.compile(r"\[Errno (\d+)\]")


def describe_connect_error(error: BaseException) -> str:
    """Return the reason in a few words, such as ``connection refused``; for several addresses, each reason once."""
    error = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error  # aiohttp's wrappers
    if isinstance(error, socket.gaierror):
        return f"name resolution failed: {_lower(error.strerror or str(error))}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed: {_lower(error.verify_message)}"
    if isinstance(error, ssl.SSLError) and is_no_tls(error):
        return "TLS failed: the server speaks no TLS"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {_lower((error.reason or str(error)).replace('_', ' '))}"
    if isinstance(error, TimeoutError) and not getattr(error, "errno", None):
        return "connection timed out"
    if isinstance(error, OSError) and error.errno:
        return _lower(os.strerror(error.errno))
    # asyncio joins the errors of several addresses in one text, without an errno.
    reasons = dict.fromkeys(_lower(os.strerror(int(number))) for number in _ERRNO.findall(str(error)))
    return ", ".join(reasons) or str(error) or type(error).__name__


def is_no_tls(error: ssl.SSLError) -> bool:
    """Return True if the server's answer is not TLS."""
    return NO_TLS.fullmatch((error.reason or "").replace("_", " ")) is not None


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


SECONDS = 2.0
"""For each of the two attempts to talk to the server."""


def name_wrong_scheme(url: str) -> str:
    """Return a sentence if the server at `url` speaks the scheme that `url` has not, and not the one it has; else "".

    Connects to the server without checking its certificate, and sends it nothing of a user's. A server that speaks the
    scheme of `url` gets one connection, with nothing that it would complain about. May block for `SECONDS` twice.
    """
    try:
        parts = urlsplit(url)
        place = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return ""
    if parts.scheme == "http" and _plain_answer(place)[9:12] in (b"", b"400") and _speaks_tls(place):
        return f"The server speaks TLS: write https:// in place of http:// ({_replaced(url, 'https')})."
    if parts.scheme == "https" and not _speaks_tls(place) and _plain_answer(place):
        return f"The server speaks no TLS: write http:// in place of https:// ({_replaced(url, 'http')})."
    return ""


def _replaced(url: str, scheme: str) -> str:
    return scheme + url[url.index("://") :].rstrip("/")


def _speaks_tls(place: tuple[str, int]) -> bool:
    """Return True if a TLS handshake succeeds, or ends with an alert, such as for a missing client certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(place, SECONDS) as plain, context.wrap_socket(plain, server_hostname=place[0]):
            return True
    except ssl.SSLError as error:
        return not is_no_tls(error) and not isinstance(error, ssl.SSLEOFError)
    except (OSError, ValueError):
        return False


def _plain_answer(place: tuple[str, int]) -> bytes:
    """Return how the server's answer to a request without TLS begins; b"" if it is no HTTP/1.

    Some TLS servers answer so, too: with 400.
    """
    request = b"HEAD / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError, UnicodeError), socket.create_connection(place, SECONDS) as plain:
        plain.sendall(request % place[0].encode("idna"))
        answer = plain.recv(64)
        if answer.startswith(b"HTTP/1."):
            return answer
    return b""
