"""The bare variables of a template that take messages, found by probing.

A JSON probe is inserted for a variable, the call is rendered, and the probe's place in the body decides what the
variable takes. A variable is probed only where the template's text allows a JSON value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any, Protocol

import msgspec

from gateway.delivery.trees import Path, locate
from gateway.mlcommons.profile import Model
from gateway.mlcommons.template import DEFAULT_DELIMITER, PREFIX, SUFFIX
from gateway.providers.base import Provider

MARK = "GWPROBEWORDGW"
"""Starts every word that the planner inserts as a symbol. It has only letters, so nothing escapes it. Each text must be
searched for it, which is fastest for a long word of characters that are rare in text."""
QUESTION = f"{MARK}question"  # the user's text
PROBE = f"{MARK}probe"

_JSON_PROBE = json.dumps({PROBE: PROBE})
_HELPER = "gw_probe"

MOST_PROBED = 24
"""Variables of one template that are probed: each probe renders the whole template, so more would not be linear."""

# A quote, an escaped character, or the start of a placeholder.
_SIGN = re.compile(r'"|\\.|\$\{parameters\.', re.DOTALL)
# Bounded, as a long value may be compared at each of many placeholders.
_NUMBER = re.compile(r"\s{0,9}-?[0-9]{1,20}(\.[0-9]{1,20})?\s{0,9}")


class SlotKind(Enum):
    """The part of the provider's messages that a bare template variable takes."""

    ARRAY = "the whole array of messages"
    TURN = "the user's turn, or a run of turns in its place"
    CONTENT = "the content of the user's turn"
    HISTORY = "turns before the user's"


class Slot(msgspec.Struct, frozen=True):
    """A bare variable of the template. separator: what must follow each turn in a HISTORY slot (a comma)."""

    name: str
    takes: SlotKind
    separator: str = ""


class BareVariables(msgspec.Struct, frozen=True):
    """The variables of a template that are not inside quotes, by what can be put in their place.

    whole: a JSON value. before: a JSON value and a comma, before the elements that follow. A variable between two
    others may be in both sets. One that is a number now, as the value of a member (`"max_tokens": 8000`), is in none:
    no member for messages, nor for the content of a turn, has a number.
    """

    whole: frozenset[str]
    before: frozenset[str]

    @classmethod
    def of(cls, template: str, values: Mapping[str, str]) -> BareVariables:
        """Read the bare variables of `template`, and of the `values` that replace them."""
        whole: set[str] = set()
        before: set[str] = set()
        seen: set[str] = set()
        queue = [template]
        while queue:
            text = queue.pop()
            for name, previous, following in _bare_placeholders(text):
                is_number = previous == ":" and _NUMBER.fullmatch(values.get(name, "")) is not None
                if previous in ("", ":", "[", ",") and following in ("", ",", "]", "}") and not is_number:
                    whole.add(name)
                if previous in ("", "[", ",") and following not in (",", "]", "}", ":"):
                    before.add(name)
                if name not in seen:
                    seen.add(name)
                    queue.append(values.get(name, ""))
        return cls(frozenset(whole), frozenset(before))


def _bare_placeholders(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each placeholder outside quotes, and the characters before and after it.

    White space is skipped. A character is "" at the ends of `text` and where the neighbour is a placeholder, which may
    expand to anything.
    """
    places = list(_bare_places(text))
    for index, (start, end) in enumerate(places):
        left_end = places[index - 1][1] if index else 0
        right_start = places[index + 1][0] if index + 1 < len(places) else len(text)
        name = text[start + len(PREFIX) : end - len(SUFFIX)].partition(DEFAULT_DELIMITER)[0]
        yield name, text[left_end:start].rstrip()[-1:], text[end:right_start].lstrip()[:1]


def _bare_places(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each placeholder outside quotes, in time proportional to the length of `text`."""
    is_quoted = False
    sign = _SIGN.search(text)
    while sign is not None:
        end = sign.end()
        if sign[0] == '"':
            is_quoted = not is_quoted
        elif sign[0] == PREFIX:
            # The cluster ends a placeholder at the first closing brace, whatever is before it.
            end = text.find(SUFFIX, end) + len(SUFFIX)
            if end < len(SUFFIX):
                return  # nor is there an end for any later placeholder
            if not is_quoted:
                yield sign.start(), end
        sign = _SIGN.search(text, end)


class ProbedCall(Protocol):
    """An agent's first LLM call, as it is probed; see `gateway.delivery.call_model.CallModel`."""

    model: Model
    provider: Provider

    @property
    def base_parameters(self) -> dict[str, str]:
        """The parameters before any pass over the prompt."""

    def key(self, name: str) -> str:
        """Return the request parameter that sets `name` for this call alone."""

    def probe(self, parameters: Mapping[str, str]) -> Any:
        """Return the body rendered with `parameters`; None where the cluster fails."""


def find_slots(call: ProbedCall, names: Collection[str], known: Collection[Slot] = ()) -> list[Slot]:
    """Return the slots among `names`, the ones that take the whole array first. known: slots that are not probed."""
    bare = BareVariables.of(call.model.connector.request_body, call.base_parameters)
    by_name = {slot.name: slot for slot in known}
    to_probe = [name for name in names if name in by_name or name in bare.whole or name in bare.before][:MOST_PROBED]
    found = [slot for name in to_probe if (slot := by_name.get(name) or _probed(call, name, bare)) is not None]
    return sorted(found, key=lambda slot: list(SlotKind).index(slot.takes))


def _probed(call: ProbedCall, name: str, bare: BareVariables) -> Slot | None:
    takes = _whole(call, name) if name in bare.whole else None
    if takes is not None:
        return Slot(name, takes)
    return Slot(name, SlotKind.HISTORY, ",") if name in bare.before and _takes_earlier_turns(call, name) else None


def _whole(call: ProbedCall, name: str) -> SlotKind | None:
    """Return what `name` takes if a JSON value alone can replace it."""
    field, content = call.provider.messages_field, call.provider.content_field
    body = call.probe({"question": QUESTION, call.key(name): _JSON_PROBE})
    match next(locate(body, PROBE), None):
        case (str() as f, str()) if f == field:
            return SlotKind.ARRAY
        case (str() as f, int(), str()) if f == field:
            has_question = any(place[0] == field for place in locate(body, QUESTION))
            return SlotKind.HISTORY if has_question else SlotKind.TURN
        case (str() as f, int(), str() as c, str()) if f == field and c == content:
            return SlotKind.CONTENT
    return None


def _takes_earlier_turns(call: ProbedCall, name: str) -> bool:
    """Return True if a turn and a comma in place of `name` come before the user's turn."""
    field = call.provider.messages_field
    helper = f"{PREFIX}{_HELPER}}},"
    body = call.probe({"question": QUESTION, call.key(name): helper, _HELPER: _JSON_PROBE})
    match next(locate(body, PROBE), None):
        case (str() as f, int() as index, str()) if f == field:
            turn = next((place[1] for place in locate(body, QUESTION) if place[0] == field), None)
            return isinstance(turn, int) and index < turn
    return False


class SystemSlot(msgspec.Struct, frozen=True):
    """The quoted variable of the system text. path: its place in the body; before, after: the text around it there."""

    name: str
    path: Path
    before: str
    after: str


class QuestionPosition(msgspec.Struct, frozen=True):
    """Where the question is in a rendered call.

    body: the call rendered with `QUESTION`; messages: its turns in the provider's normal form.
    turn, part: the part that contains the question; text: that part's text with `QUESTION` in it.
    """

    body: dict[str, Any]
    messages: list[dict[str, Any]]
    turn: int
    part: int
    text: str

    @property
    def is_bare(self) -> bool:
        """True if the agent puts nothing around the question."""
        return self.text == QUESTION

    @property
    def is_blank(self) -> bool:
        """True if the agent puts nothing but white space around the question."""
        return not self.text.replace(QUESTION, "").strip()

    def has_own_parts(self, provider: Provider) -> bool:
        """Return True if the agent puts other parts beside the one with the question."""
        return len(self.messages[self.turn][provider.content_field]) > 1
