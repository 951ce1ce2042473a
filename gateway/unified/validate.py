"""Tools for validation: they collect every problem with its place, and report every unknown member."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.errors import InvalidInput, Problem
from gateway.unified.jsonstrings import Unreadable
from gateway.unified.limits import PLACEHOLDER, ParseLimits, too_many_items, too_many_values
from gateway.unified.payloads import ExtractedBody
from gateway.unified.roles import NO_ROLES

_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_SHOWN = 60  # characters of a client's string or key shown in an error


class Problems:
    """Problems in the order found. Reading stops if there are more than `limit`.

    This limits the work for a body full of mistakes, and the size of the response.
    """

    def __init__(self, limit: int = ParseLimits().problems) -> None:
        self._found: list[Problem] = []
        self._limit = limit

    def __len__(self) -> int:
        return len(self._found)

    def add(self, place: str, reason: str, expected: str = "", received: str = "", help: str = "") -> None:
        """Add a problem; the arguments are those of `gateway.errors.Problem`.

        Raises:
            InvalidInput: the limit is exceeded.
        """
        if len(self._found) >= self._limit:
            more = "Too many problems: the rest of the input was not checked"
            raise InvalidInput.of([*self._found, Problem(place, more)])
        self._found.append(Problem(place, reason, expected, received, help=help))

    def all(self) -> list[Problem]:
        """Return all problems."""
        return list(self._found)

    def check(self) -> None:
        """Raise if there are problems.

        Raises:
            InvalidInput: with all problems.
        """
        if self._found:
            raise InvalidInput.of(self.all())


def child(place: str, key: str | int) -> str:
    """Return the place of a member or item of `place`: ``input[1].source``, ``parameters["a b"]``."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    if len(key) > _SHOWN:
        return f"{place}[{shorten(key)}]"
    if (key.isascii() and key.isidentifier()) or _PLAIN_KEY.fullmatch(key):
        return f"{place}.{key}" if place else key
    return f"{place}[{json.dumps(key)}]"


def json_type(value: Any) -> str:
    """Return the JSON name of a decoded value's type."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


def shorten(text: str) -> str:
    """Return `text` quoted as in JSON, cut after 60 characters."""
    if len(text) <= _SHOWN:
        return json.dumps(text)
    return f"{json.dumps(text[:_SHOWN])}… ({len(text)} characters)"


def did_you_mean(given: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return `Did you mean "image"?` for the one of `names` that looks most like `given`; `otherwise` if none does."""
    spelled = {name.lower(): name for name in names}
    near = difflib.get_close_matches(given[:_SHOWN].lower(), spelled, 1, 0.75)
    return f'Did you mean "{spelled[near[0]]}"?' if near else otherwise


class Reading:
    """One pass over a decoded body: its problems, its extracted strings, and how much of the limits is used up.

    roles: client role → standard role, as the operator mapped them (`gateway.unified.roles`).
    """

    def __init__(self, extracted: ExtractedBody, roles: Mapping[str, str] = NO_ROLES) -> None:
        self.extracted = extracted
        self.roles = roles
        self.limits = extracted.limits
        self.problems = Problems(self.limits.problems)
        self.placeholders = 0
        self._values = 0
        self._items = 0

    @property
    def values_left(self) -> int:
        """Number of values that strings with JSON may still have, within the limits of the body."""
        return self.limits.values - self._values

    def add_values(self, count: int, place: str) -> None:
        """Count `count` values that are about to be read from a string at `place`.

        Raises:
            InvalidInput: the limits are exceeded.
        """
        self._values += count
        if self._values > self.limits.values:
            raise too_many_values(self.limits.values, place)

    def add_placeholders(self, text: str, place: str) -> None:
        """Count the placeholders in `text`, each as a value.

        Raises:
            InvalidInput: the limits are exceeded.
        """
        if "$" in text and PLACEHOLDER in text:  # one sign is found far more quickly than a word
            count = text.count(PLACEHOLDER)
            self.placeholders += count
            self.add_values(count, place)

    def add_items(self, count: int, place: str) -> None:
        """Count `count` messages, content blocks or tool calls that are about to be read at `place`.

        Raises:
            InvalidInput: the limits are exceeded.
        """
        self._items += count
        if self._items > self.limits.items:
            raise too_many_items(self.limits.items, self._items, place)

    def is_as_written(self, value: str) -> bool:
        """Return True if `text` would return `value` itself, and count nothing."""
        return value not in self.extracted.blobs and PLACEHOLDER not in value

    def text(self, value: str, place: str) -> str:
        """Return `value`, or the extracted string it replaces; "" and a problem if that is not text.

        Raises:
            InvalidInput: it has more placeholders than the limits allow.
        """
        try:
            text = self.extracted.restore(value)
            self.add_placeholders(text, place)
            return text
        except Unreadable as error:
            self.problems.add(place, f"Invalid string: {error}", "valid JSON text in UTF-8")
            return ""

    def plain(self, value: Any, place: str) -> Any:
        """Return `value` with every extracted string in it restored."""
        if not self.extracted.blobs:
            return value
        match value:
            case str():
                return self.text(value, place)
            case list():
                return [self.plain(item, child(place, index)) for index, item in enumerate(value)]
            case dict():
                return {key: self.plain(item, child(place, key)) for key, item in value.items()}
            case _:
                return value


class Fields:
    """The members of an object, read by name. A member that is never read is a problem, so none is dropped silently.

    `null` counts as absent.
    """

    def __init__(self, reading: Reading, members: dict[str, Any], at: str) -> None:
        self.reading = reading
        self.at = at
        self._members = members
        self._known: dict[str, None] = {}

    def place(self, name: str) -> str:
        """Return the place of member `name`."""
        return child(self.at, name)

    def problem(self, name: str, reason: str, expected: str = "", received: str = "", help: str = "") -> None:
        """Add a problem with member `name`."""
        self.reading.problems.add(self.place(name), reason, expected, received, help)

    def peek(self, name: str) -> Any:
        """Return the member or None, without reading it."""
        return self._members.get(name)

    def get(self, name: str) -> Any:
        """Return the member or None. Extracted strings are still tokens."""
        self._known[name] = None
        return self._members.get(name)

    def has(self, name: str) -> bool:
        """Return True if the member is present and not null."""
        return self.get(name) is not None

    def require(self, name: str, expected: str) -> Any:
        """Return the member, or None and a problem."""
        value = self.get(name)
        if value is None:
            self.problem(name, f'Missing "{name}"', expected, "null" if name in self._members else "nothing")
        return value

    def one_of(self, names: tuple[str, ...]) -> str:
        """Return the spelling of a member that is present, "" if none is; more than one is a problem."""
        present = [name for name in names if self.has(name)]
        for other in present[1:]:
            self.problem(
                other, f'"{present[0]}" and "{other}" mean the same; give one of them', f'"{present[0]}" alone', other
            )
        return present[0] if present else ""

    def _typed(self, name: str, kind: type, expected: str, required: bool) -> Any:
        value = self.require(name, expected) if required else self.get(name)
        if value is None or isinstance(value, kind):
            return value
        self.problem(name, f'"{name}" has the wrong type', expected, json_type(value))
        return None

    def string(self, name: str, expected: str = "string", required: bool = True) -> str | None:
        """Return the member's text; None if it is absent, None and a problem if it is not a string."""
        value: str | None = self._typed(name, str, expected, required)
        if value is None or self.reading.is_as_written(value):
            return value
        return self.reading.text(value, self.place(name))

    def name(self, name: str, expected: str = "non-empty string", required: bool = True) -> str | None:
        """Return the member's text, which must not be blank."""
        value = self.string(name, expected, required)
        if value is not None and not value.strip():
            self.problem(name, f'"{name}" is empty', expected, shorten(value))
            return None
        return value

    def object(self, name: str, expected: str = "object", required: bool = True) -> Fields | None:
        """Return the member's own members."""
        value = self._typed(name, dict, expected, required)
        return None if value is None else Fields(self.reading, value, self.place(name))

    def value(self, name: str, required: bool = True) -> dict[str, Any] | None:
        """Return the member, an object, as plain data with extracted strings restored."""
        value = self._typed(name, dict, "object", required)
        return None if value is None else self.reading.plain(value, self.place(name))

    def array(self, name: str, expected: str = "array", required: bool = True) -> list[Any] | None:
        """Return the member's items."""
        items: list[Any] | None = self._typed(name, list, expected, required)
        return items

    def done(self, harmless: frozenset[str] = frozenset()) -> None:
        """Add a problem for every member that was not read, unless it is empty or `harmless`."""
        for name, value in self._members.items():
            if name not in self._known and name not in harmless and value is not None and value != []:
                self.problem(
                    name,
                    f"Unknown member {shorten(name)}: it would not reach the model",
                    f"one of {', '.join(self._known)}",
                    json_type(value),
                    did_you_mean(name, [one for one in self._known if one not in self._members], "Remove it."),
                )
