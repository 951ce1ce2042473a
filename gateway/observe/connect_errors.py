"""Why a connection could not be made: the system's message without its error number."""

from __future__ import annotations

import os
import re
import socket
import ssl

_ERRNO = re.compile(r"\[Errno (\d+)\]")


def describe_connect_error(error: BaseException) -> str:
    """Return the reason in a few words, such as ``connection refused``; for several addresses, each reason once."""
    if isinstance(error, socket.gaierror):
        return f"name resolution failed: {_lower(error.strerror or str(error))}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed: {_lower(error.verify_message)}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {_lower((error.reason or str(error)).replace('_', ' '))}"
    if isinstance(error, TimeoutError) and not getattr(error, "errno", None):
        return "connection timed out"
    if isinstance(error, OSError) and error.errno:
        return _lower(os.strerror(error.errno))
    # asyncio joins the errors of several addresses in one text, without an errno.
    reasons = dict.fromkeys(_lower(os.strerror(int(number))) for number in _ERRNO.findall(str(error)))
    return ", ".join(reasons) or str(error) or type(error).__name__


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
