"""The commonest request, ``{"input": "<a plain text>"}`` to an agent that was asked before, decided on the spot.

What goes to the cluster for such a text differs from what goes for another only where the text stands: a text
that neither JSON escapes nor the planner looks into (`is_plain_text`) is written byte for byte as it came, however
deep it is nested. So one body, made in the usual way for a specimen, serves for all of them.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gateway.agents.profile import AgentProfile
from gateway.delivery.plan import Plan
from gateway.delivery.reuse import WORDS, is_plain_text
from gateway.execute.ports import Forward

SPECIMEN = "\uf8f3"  # of Unicode's private use area, so that no agent's own words have it
SPECIMEN_BODY = f'{{"input":"{SPECIMEN}"}}'.encode()

_SPECIMEN = SPECIMEN.encode()
# Strict JSON of one member whose text has no escapes; anything else is read in the usual way.
_START = re.compile(rb'[ \t\r\n]*+\{[ \t\r\n]*+"input"[ \t\r\n]*+:[ \t\r\n]*+"')
_END = re.compile(rb'"[ \t\r\n]*+\}[ \t\r\n]*+')
_SPECIAL = bytes(range(0x20)) + b'"\\${}'
_QUESTION, _PROBE, _FLAT = (word.encode() for word in WORDS)
_JSON = frozenset({b"application/json", b"application/json; charset=utf-8"})
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Ready:
    """What is sent to an agent for a plain text. pieces: the body, cut where the text stands."""

    profile: AgentProfile
    plan: Plan
    pieces: list[bytes]
    response_headers: Mapping[str, str]

    def forward(self, text: bytes) -> Forward:
        """What to send for `text`."""
        return Forward([text.join(self.pieces)], self.response_headers)


class PlainTexts:
    """What is ready, by profile; what was learnt first goes first."""

    def __init__(self) -> None:
        self._ready: OrderedDict[int, Ready] = OrderedDict()

    def get(self, profile: AgentProfile) -> Ready | None:
        """What is ready for the agent; None when nothing has been learnt of this very profile."""
        ready = self._ready.get(id(profile))
        return ready if ready is not None and ready.profile is profile else None

    def learn(self, profile: AgentProfile, plan: Plan, forward: Forward) -> None:
        """Keep what was made of `SPECIMEN_BODY`."""
        body = b"".join(forward.body or ())
        if body.count(_SPECIMEN):
            self._ready[id(profile)] = Ready(profile, plan, body.split(_SPECIMEN), forward.response_headers)
            if len(self._ready) > _MOST:
                self._ready.popitem(last=False)


def text_of(body: bytes) -> bytes | None:
    """The plain text that is all of an execute body; None for any other body."""
    start = _START.match(body)
    end = body.rfind(b'"')
    if start is None or end <= start.end() or not _END.fullmatch(body, end):
        return None
    text = body[start.end() : end]
    if len(text.translate(None, _SPECIAL)) < len(text) or (b":" in text and b":-" in text):
        return None
    if (
        _QUESTION in text
        or _PROBE in text
        or _FLAT in text
        or text[:1] in b" ["
        or not (text.isascii() or _is_plain(text))
    ):
        return None
    return text


def _is_plain(text: bytes) -> bool:
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        return False
    return is_plain_text(decoded) and bool(decoded.strip()) and SPECIMEN not in decoded


def headers_of(lines: Iterable[bytes], wanted: Collection[bytes]) -> dict[str, str] | None:
    """The fields of a JSON request that are `wanted`, names in lower case.

    None where they take a closer look: another content, a field that stands there twice, a signature.
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
