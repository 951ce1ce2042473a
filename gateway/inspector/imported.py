"""Redacts exchanges that another program recorded, before they are stored among the gateway's own."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.config.inspector import Inspector
from gateway.inspector.bodies import BodyMaker
from gateway.inspector.found_secrets import MESSAGES, without_secrets
from gateway.inspector.har import body_bytes
from gateway.inspector.records import make_redactor
from gateway.observe.media import Keep
from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from gateway.observe.secrets import Secrets, secret_members


class ImportedRecords:
    """Makes records of another program's. The gateway's own are redacted already, and stay as they are.

    keep: keeps the bytes of media; None if they are not kept.

    Raises:
        ConfigError: a path or an expression of the settings can't be used.
    """

    def __init__(self, settings: Inspector, keep: Keep) -> None:
        self._redactor = make_redactor(settings)
        self._bodies = BodyMaker(self._redactor, keep if settings.media == "keep" else None)

    def make(self, record: ExchangeRecord) -> ExchangeRecord:
        """Return the record without secrets and media."""
        found = Secrets(names=secret_members(record.target.encode("utf-8", "replace")))
        messages = {
            name: self._message(message, found) for name in MESSAGES if (message := getattr(record, name)) is not None
        }
        made = replace(
            record,
            target=self._redactor.target(record.target.encode("utf-8", "surrogatepass"), found),
            user_agent=self._redactor.text(record.user_agent, found),
            rendered=self._redactor.text(record.rendered, found),
            **messages,
        )
        self._bodies.forget()
        return without_secrets(made, found)

    def _message(self, message: HttpMessage, found: Secrets) -> HttpMessage:
        headers = tuple((name, self._redactor.header(name, value, found)) for name, value in message.headers)
        return HttpMessage(headers, self._body(message.body, found))

    def _body(self, body: Body, found: Secrets) -> Body:
        if not body.text:
            return body
        made = self._bodies.make((body_bytes(body),), (), found, body.size, cut=bool(body.omitted))
        return replace(made, omitted=made.omitted or body.omitted)
