"""Removes the secrets that were found in the texts of an exchange from its other texts."""

from __future__ import annotations

import msgspec

from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from gateway.observe.secrets import Secrets

MESSAGES = ("request", "forwarded", "response", "answered")


def without_secrets(record: ExchangeRecord, found: Secrets) -> ExchangeRecord:
    """Return the record without the secrets of any of its texts in any other."""
    changes: dict[str, HttpMessage | str] = {
        name: hidden
        for name in ("target", "user_agent", "rendered")
        if (hidden := found.hide(text := getattr(record, name))) != text
    }
    for name in MESSAGES:
        message: HttpMessage | None = getattr(record, name)
        if message is not None:
            headers = tuple([(key, found.hide(value)) for key, value in message.headers])
            body = _hide(message.body, found)
            if body is not message.body or headers != message.headers:
                changes[name] = HttpMessage(headers, body)
    return msgspec.structs.replace(record, **changes) if changes else record


def _hide(body: Body, found: Secrets) -> Body:
    if not body.text or body.encoding:
        return body
    hidden = found.hide(body.text)
    return body if hidden is body.text else msgspec.structs.replace(body, text=hidden)
