"""The fast path: ``{"input": "<a plain text>"}`` to an agent that was run before, the most frequent request.

The bodies for two such texts differ only in the text itself: a text that JSON does not escape and that the planner
does not look into (`is_plain_text`) is written byte for byte as it came, at any depth of nesting. So the fast path
makes one body for a specimen in the usual way, and replaces the specimen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from gateway.agents.lookup import AUTH_HEADERS
from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.config.schema import Settings
from gateway.delivery.plan import Plan
from gateway.delivery.plan_cache import is_plain_text
from gateway.execute.reporter import Reporter
from gateway.execute.response_headers import delivery_headers
from gateway.execute.rewriter import Rewriter
from gateway.mlcommons.profile import AgentProfile
from gateway.ports import Forward
from gateway.unified.budget import SMALL_TEXT
from gateway.unified.request import read_execute

SPECIMEN = "\uf8f3"
"""From Unicode's private use area, so that no agent's own text contains it."""
SPECIMEN_BODY = f'{{"input":"{SPECIMEN}"}}'.encode()

_SPECIMEN = SPECIMEN.encode()
_BACKSLASH = ord("\\")
_JSON = frozenset({b"application/json", b"application/json; charset=utf-8"})
_IDENTITY_HEADERS = frozenset(name.encode() for name in AUTH_HEADERS)


class _TextBody(msgspec.Struct, forbid_unknown_fields=True):
    input: str


_DECODER = msgspec.json.Decoder(_TextBody)


@dataclass(frozen=True, slots=True)
class PreparedBody:
    """The body for any plain text. pieces: the body, cut at each place of the text."""

    plan: Plan
    pieces: list[bytes]
    response_headers: Mapping[str, str]

    def forward(self, text: bytes) -> Forward:
        """Return what to send for `text`."""
        return Forward([text.join(self.pieces)], self.response_headers)


class FastPath:
    """One agent's prepared body. The resolver's entry holds it together with the profile, and drops both together.

    prepared: None until a body has been prepared.
    """

    def __init__(self, _: AgentProfile) -> None:
        self.prepared: PreparedBody | None = None

    def learn(self, plan: Plan, forward: Forward) -> None:
        """Store the body that was made of `SPECIMEN_BODY`."""
        body = b"".join(forward.body or ())
        if body.count(_SPECIMEN):
            self.prepared = PreparedBody(plan, body.split(_SPECIMEN), forward.response_headers)


class PlainTextHandler:
    """Answers plain texts from prepared bodies; the implementation of `gateway.ports.FastHandler`."""

    def __init__(self, settings: Settings, resolver: Resolver, rewriter: Rewriter, reporter: Reporter) -> None:
        self._answers = settings.answers
        self._resolver = resolver
        self._rewriter = rewriter
        self._reporter = reporter
        self._enabled = settings.logs.level != "debug"  # at debug level, every step of every rewrite is logged

    def caller(self, lines: Iterable[bytes]) -> bytes:
        """See `gateway.ports.FastHandler`."""
        headers = read_headers(lines, _IDENTITY_HEADERS) if self._enabled else None
        return b"" if headers is None else self._resolver.caller(headers)

    def try_fast(self, agent_id: str, caller: bytes, body: bytes) -> Forward | None:
        """See `gateway.ports.FastHandler`."""
        agent = self._resolver.peek(agent_id, caller)
        prepared = agent.derive(FastPath).prepared if agent is not None else None
        text = read_plain_text(body) if prepared is not None else None
        if prepared is None or text is None:
            return None
        self._reporter.count(prepared.plan)
        return prepared.forward(text)

    def learn(self, agent: ResolvedAgent, body: bytes) -> None:
        """Prepare a body for `agent` if it has none yet, and `body`, which was just delivered, holds a plain text."""
        if agent.derive(FastPath).prepared is not None or read_plain_text(body) is None:
            return
        request = read_execute(SPECIMEN_BODY)
        assert request.input is not None
        rewrite = self._rewriter.rewrite(agent, request, request.input)
        headers = delivery_headers(self._answers, rewrite.plan, request.input.type.value, both_sent=False)
        agent.derive(FastPath).learn(rewrite.plan, Forward(rewrite.body, headers))


def read_plain_text(body: bytes) -> bytes | None:
    """Return the plain text that is all of a small execute body; None for any other body."""
    if len(body) > SMALL_TEXT:
        return None
    try:
        text = _DECODER.decode(body).input
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # Four quotes belong to one name and one text, so no member occurs twice. Without escapes the text is as it came.
    if body.count(b'"') != 4 or _BACKSLASH in body:
        return None
    if not text or text[0] == " " or not is_plain_text(text) or text.isspace() or SPECIMEN in text:
        return None
    return text.encode()


def read_headers(lines: Iterable[bytes], wanted: Collection[bytes]) -> dict[str, str] | None:
    """Return the `wanted` fields of a JSON request, names in lower case.

    None where the fast path can't be used: another content type, a content-encoding, a repeated field, a signature.
    """
    found: dict[str, str] = {}
    is_json = False
    for line in lines:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name == b"content-type":
            is_json = not is_json and value.strip().lower() in _JSON
        elif name == b"content-encoding":
            return None
        elif name in wanted:
            if name.decode() in found or b"AWS4-" in value:
                return None
            found[name.decode()] = value.strip().decode("utf-8", "surrogateescape")
    return found if is_json else None
