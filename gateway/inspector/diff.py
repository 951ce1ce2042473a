"""Compares two JSON documents, and reports where each value of the first went. Pure.

Bodies of agents hold JSON inside strings, and text inside prompts. Both are looked into: a string that is a JSON object
or list is read as such, and a text that is part of a longer string is found there.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence, Set
from typing import Any, Final, Literal, NamedTuple

from gateway.observe.media import MARK

Kind = Literal["same", "moved", "copied", "memory", "changed", "added", "removed"]
JSON: Final = None
"""The step of a path from a string into the JSON that it is."""
Path = tuple[str | int | None, ...]

Key = tuple[str, Any]
"""What makes two values equal."""
_BASE64 = re.compile(r"(?:data:[^,]{1,200};base64,)?([A-Za-z0-9+/]{4,1400}={0,2})")
"""A medium that is too small for a mark."""
_SHORT, _COPY = 3, 8
"""Shortest text, in characters, that is searched for in longer ones; and one whose second place is worth a note."""
_WRAPPING = 64
"""Most characters around a medium for the string to count as that medium (`data:image/png;base64,`)."""
_DEPTH = 64
_LABELS = ("type", "role", "format", "name")
"""Members whose values are short words of the API. They are only moved to members of the same name."""
_PAIRS, _LENGTH = 40_000, 50_000
"""Most pairs of texts that are searched in each other. A long text counts once more for each `_LENGTH` characters."""


class Number(str):
    """A number as it was written: 1.0 and 1 differ, and no digit is lost."""

    __slots__ = ()


class Medium(NamedTuple):
    """What is recorded of a medium. length: its bytes."""

    type: str
    length: int
    sha256: str


class Leaf(NamedTuple):
    """A string, number, boolean, null, or an empty object or list, and its place."""

    path: Path
    value: Any


class Change(NamedTuple):
    """What became of a value. before, after: None where there is none. inside: it is now part of a longer text."""

    kind: Kind
    before: Leaf | None
    after: Leaf | None
    inside: bool = False


def read(text: str) -> Any:
    """Return the document, with numbers as `Number`; the text itself if it is not JSON."""
    try:
        return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number)
    except (ValueError, RecursionError):
        return text


def inner(text: str) -> Any:
    """Return the object or list that a string holds as JSON; None if it holds none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    document = read(text)
    return document if isinstance(document, dict | list) and document else None


def describe_media(text: str) -> str:
    """Return a recorded text with its media as a person reads them: ``[image/png, 774 bytes, 7c25ab8b2a3e]``."""
    return MARK.sub(lambda found: f"[{found[1] or 'medium'}, {found[2]} bytes, {found[3][:12]}]", text)


def media(text: str) -> Iterator[Medium]:
    """Yield the media that a recorded text refers to."""
    for found in MARK.finditer(text):
        yield Medium(found[1], int(found[2]), found[3])


def leaves(document: Any, path: Path = ()) -> Iterator[Leaf]:
    """Yield the leaves of a document in its order."""
    within: Any = document
    if isinstance(document, str) and not isinstance(document, Number):
        within = inner(document)
        if within is not None:
            path = (*path, JSON)
    if len(path) < _DEPTH and isinstance(within, dict) and within:
        for name, value in within.items():
            yield from leaves(value, (*path, name))
    elif len(path) < _DEPTH and isinstance(within, list) and within:
        for index, value in enumerate(within):
            yield from leaves(value, (*path, index))
    else:
        yield Leaf(path, document)


def show(path: Path) -> str:
    """Return a path as a person writes it: ``parameters.messages»[0].text``; ``»`` leads into a string of JSON."""
    text = ""
    for step in path:
        match step:
            case None:
                text += "»"
            case int():
                text += f"[{step}]"
            case _:
                text += f".{step}" if text and text[-1] != "»" else step
    return text


def at(document: Any, path: Sequence[str | int | None]) -> Any:
    """Return the value at a path.

    Raises:
        LookupError: there is none.
    """
    for step in path:
        if step is JSON and isinstance(document, str) and (found := inner(document)) is not None:
            document = found
        elif isinstance(document, dict) or (isinstance(document, list) and isinstance(step, int)):
            document = document[step]  # type: ignore[index]
        else:
            raise LookupError(show(tuple(path)))
    return document


def compare(before: Any, after: Any, remembered: Set[Key] = frozenset()) -> list[Change]:
    """Return what became of each leaf of `before`, in its order, then the leaves that only `after` has, in its order.

    moved: the same value is elsewhere. copied: a second place of a value that is still, or again, there. changed: the
    same place has another value. memory: it is part of an item that holds something of `remembered`, and nothing of
    `before`. remembered: the keys (`key_of`) of the texts of earlier runs.
    """
    return _Comparison(list(leaves(before)), list(leaves(after)), remembered).changes()


class _Comparison:
    def __init__(self, old: list[Leaf], new: list[Leaf], remembered: Set[Key]) -> None:
        self._old, self._new = old, new
        self._found: dict[int, Change] = {}
        self._memory = self._find_memory(remembered) if remembered else frozenset()
        self._used: set[int] = set(self._memory)

    def changes(self) -> list[Change]:
        self._match_in_place()
        self._match_elsewhere()
        self._match_inside()
        self._match_changed()
        for number, leaf in enumerate(self._old):
            self._found.setdefault(number, Change("removed", leaf, None))
        first = [self._found[number] for number in range(len(self._old))]
        return [*first, *self._additions()]

    def _find_memory(self, remembered: Set[Key]) -> frozenset[int]:
        """Return the numbers of new leaves that are part of remembered items: of a list, or JSON in a string."""
        own = {key_of(leaf.value) for leaf in self._old if _is_text(leaf)}
        items: dict[Path, list[int]] = defaultdict(list)
        for number, leaf in enumerate(self._new):
            for end, step in enumerate(leaf.path, 1):
                if step is JSON or isinstance(step, int):
                    items[leaf.path[:end]].append(number)
        found: set[int] = set()
        for numbers in items.values():
            keys = {key_of(self._new[number].value) for number in numbers if _is_text(self._new[number])}
            if keys & remembered and not keys & own:
                found.update(numbers)
        return frozenset(found)

    def _match_in_place(self) -> None:
        places = {leaf.path: number for number, leaf in enumerate(self._new) if number not in self._used}
        for number, leaf in enumerate(self._old):
            other = places.get(leaf.path)
            if other is not None and key_of(self._new[other].value) == key_of(leaf.value):
                self._take(number, other, "same")

    def _match_elsewhere(self) -> None:
        """Match equal values, first those whose members have the same name, which all values but texts must have."""
        for only_name in (True, False):
            free: dict[Any, deque[int]] = defaultdict(deque)
            for number, leaf in enumerate(self._new):
                if number not in self._used:
                    name = _name(leaf.path) if only_name else ""
                    free[key_of(leaf.value), name].append(number)
                    if _is_text(leaf) and len(leaf.value) >= _COPY:  # a document that is sent as its text
                        free[_hashed(leaf.value.encode("utf-8", "surrogatepass")), name].append(number)
            for number, leaf in enumerate(self._old):
                if number in self._found or not (only_name or _is_text(leaf)):
                    continue
                candidates = free.get((key_of(leaf.value), _name(leaf.path) if only_name else ""))
                while candidates:
                    place = candidates.popleft()
                    if place not in self._used:
                        self._take(number, place, "moved")
                        break

    def _match_inside(self) -> None:
        texts = [
            (number, leaf.value, _without_media(leaf.value)) for number, leaf in enumerate(self._new) if _is_text(leaf)
        ]
        pairs, cost = _PAIRS, sum(1 + len(text) // _LENGTH for _, _, text in texts)
        for number, leaf in enumerate(self._old):
            if number in self._found or not _is_text(leaf) or (pairs := pairs - cost) < 0:
                continue
            medium = _marked(leaf.value)
            forms = [f"sha256={medium}]"] if medium else _forms(leaf.value)
            found = (
                other for other, whole, text in texts if any(form in (whole if medium else text) for form in forms)
            )
            place = next(found, None)
            if place is not None:
                self._found[number] = Change("moved", leaf, self._new[place], inside=True)
                self._used.add(place)

    def _match_changed(self) -> None:
        places = {leaf.path: number for number, leaf in enumerate(self._new) if number not in self._used}
        for number, leaf in enumerate(self._old):
            if number not in self._found and leaf.path in places:
                self._take(number, places[leaf.path], "changed")

    def _additions(self) -> Iterator[Change]:
        origins = {key_of(leaf.value): leaf for leaf in self._old if _is_text(leaf) and len(leaf.value) >= _COPY}
        for number, leaf in enumerate(self._new):
            if number not in self._used:
                origin = origins.get(key_of(leaf.value))
                yield Change("copied" if origin else "added", origin, leaf)
            elif number in self._memory:
                yield Change("memory", None, leaf)

    def _take(self, number: int, other: int, kind: Kind) -> None:
        self._found[number] = Change(kind, self._old[number], self._new[other])
        self._used.add(other)


def key_of(value: Any) -> Key:
    """Return what makes two leaves equal: a medium's hash, else type and value.

    The hash is the same for a medium's mark, its base64 and its data URL, so that small media, which have no mark, are
    found too. A word that happens to be base64 is equal only to itself, as before.
    """
    if isinstance(value, str) and not isinstance(value, Number):
        if medium := _marked(value):
            return "medium", medium
        found = _BASE64.fullmatch(value)
        if found is not None and len(found[1]) % 4 == 0:
            return _hashed(binascii.a2b_base64(found[1]))
    return type(value).__name__, repr(value) if isinstance(value, dict | list) else value


def _hashed(data: bytes) -> Key:
    return "medium", hashlib.sha256(data).hexdigest()


def _marked(text: str) -> str:
    """Return the hash of the medium whose mark a text is; "" if it is none."""
    found = MARK.search(text)
    return found[3] if found and len(text) - len(found[0]) <= _WRAPPING else ""


def _without_media(text: str) -> str:
    return MARK.sub("[MEDIA]", text)


def is_label(path: Path) -> bool:
    """Return True for the place of a short word of the API."""
    return _name(path) in _LABELS


def _is_text(leaf: Leaf) -> bool:
    value = leaf.value
    is_text = isinstance(value, str) and not isinstance(value, Number) and len(value) >= _SHORT
    return is_text and not is_label(leaf.path)


def _name(path: Path) -> str:
    return next((step for step in reversed(path) if isinstance(step, str)), "")


def _forms(text: str) -> list[str]:
    """Return the text as it may stand in a longer one: as it is, and escaped for JSON once or twice."""
    found = _BASE64.fullmatch(text)
    forms = [text, found[1]] if found is not None and found[1] != text else [text]  # a data URL
    for ensure_ascii in (True, False):
        once = json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
        forms += [once, json.dumps(once, ensure_ascii=ensure_ascii)[1:-1]]
    return list(dict.fromkeys(forms))
