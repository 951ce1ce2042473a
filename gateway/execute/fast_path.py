"""The commonest request, ``{"input": "<a plain text>"}`` to an agent that was asked before, decided on the spot.

What goes to the cluster for such a text differs from what goes for another only where the text stands: a text
that neither JSON escapes nor the planner looks into (`is_plain_text`) is written byte for byte as it came, however
deep it is nested. So one body, made in the usual way for a specimen, serves for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from gateway.delivery.plan import Plan
from gateway.delivery.plan_cache import is_plain_text
from gateway.mlcommons.profile import AgentProfile
from gateway.ports import Forward
from gateway.unified.budget import SMALL_TEXT

SPECIMEN = "\uf8f3"  # of Unicode's private use area, so that no agent's own words have it
SPECIMEN_BODY = f'{{"input":"{SPECIMEN}"}}'.encode()

_SPECIMEN = SPECIMEN.encode()
_BACKSLASH = ord("\\")
_JSON = frozenset({b"application/json", b"application/json; charset=utf-8"})


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    input: str


_DECODER = msgspec.json.Decoder(_Said)


@dataclass(frozen=True, slots=True)
class PreparedBody:
    """What is sent to an agent for a plain text. pieces: the body, cut where the text stands."""

    plan: Plan
    pieces: list[bytes]
    response_headers: Mapping[str, str]

    def forward(self, text: bytes) -> Forward:
        """What to send for `text`."""
        return Forward([text.join(self.pieces)], self.response_headers)


class FastPath:
    """One agent's ready answer for plain texts. Its owner keeps it beside the profile and drops the two together.

    ready: None until something has been learnt.
    """

    def __init__(self, _: AgentProfile) -> None:
        self.ready: PreparedBody | None = None

    def learn(self, plan: Plan, forward: Forward) -> None:
        """Keep what was made of `SPECIMEN_BODY`."""
        body = b"".join(forward.body or ())
        if body.count(_SPECIMEN):
            self.ready = PreparedBody(plan, body.split(_SPECIMEN), forward.response_headers)


def text_of(body: bytes) -> bytes | None:
    """The plain text that is all of a small execute body; None for any other body."""
    if len(body) > SMALL_TEXT:
        return None
    try:
        said = _DECODER.decode(body).input
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # Four quotes are those of one name and one text: no member stands there twice. No escapes: the text is as it came.
    if body.count(b'"') != 4 or _BACKSLASH in body:
        return None
    if not said or said[0] == " " or not is_plain_text(said) or said.isspace() or SPECIMEN in said:
        return None
    return said.encode()


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
