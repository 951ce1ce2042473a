"""How a cluster fills in a connector's template: substitution, escaping, and which values count as JSON.

It follows three rules (docs/evidence/facts.md, "Rules" 2–4 and "Rendering, in detail"; probed on 2.19 and 3.4):

- ``${parameters.x:-default}`` is substituted recursively by Apache commons-text's StringSubstitutor; an extra
  ``$`` before a placeholder makes it literal and is removed, once per pass.
- A parameter that a lenient parser reads as JSON is inserted raw; any other is JSON-escaped first.
- Connector parameters are never escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import msgspec

PREFIX = "${parameters."
SUFFIX = "}"
DEFAULT_DELIMITER = ":-"
UNFILLED = "${parameters"
"""What the cluster refuses in a rendered body, unless the request has `skip_validating_missing_parameters`."""

Lookup = Callable[[str], "str | None"]


class InfiniteLoop(Exception):
    """A placeholder leads back to itself; the cluster answers 500 "Infinite loop in property interpolation"."""


def substitute(
    template: str,
    values: Mapping[str, str] | Lookup,
    prefix: str = PREFIX,
    count: Callable[[int], None] | None = None,
) -> str:
    """Replace every placeholder that has a value or a default, recursively.

    Any other placeholder is left unchanged. The scan works like StringSubstitutor's: a value is scanned separately, so
    no placeholder can form across its ends. The scan then continues after it, but a ``$`` at the end of the value still
    escapes a placeholder that follows.

    count: called with the length of each value before it is expanded; it may raise. A few values that contain each
        other twice would expand to more than fits into memory.

    Raises:
        InfiniteLoop: a placeholder's value contains itself, directly or through others.
        RecursionError: placeholders are nested too deeply for Python's stack.
    """
    lookup = values.get if isinstance(values, Mapping) else values
    return _Substitution(lookup, prefix, count).expand(template)


class _Substitution:
    def __init__(self, lookup: Lookup, prefix: str, count: Callable[[int], None] | None) -> None:
        self._lookup = lookup
        self._prefix = prefix
        self._count = count
        self._open_names: list[str] = []

    def expand(self, text: str) -> str:
        prefix = self._prefix
        done = ""  # the last character that was rendered
        parts: list[str] = []
        pos = 0
        while True:
            start = text.find(prefix, pos)
            if start < 0:
                parts.append(text[pos:])
                return "".join(parts)
            before = text[pos:start]
            last = before[-1:] or done
            if last == "$":
                # An escaped placeholder: remove the escaping `$`, leave the `$` of the prefix, continue after it.
                if before:
                    parts.append(before[:-1])
                else:
                    parts[-1] = parts[-1][:-1]
                parts.append("$")
                done, pos = "", start + 1
                continue
            end = text.find(SUFFIX, start + len(prefix))
            if end < 0:
                parts.append(text[pos:])
                return "".join(parts)
            rendered = self._value(text[start + len(prefix) : end])
            if rendered is None:
                # Unknown: left unchanged. The scan continues after it.
                parts.append(text[pos : end + 1])
                done, pos = SUFFIX, end + 1
                continue
            if before:
                parts.append(before)
            if rendered:
                parts.append(rendered)
            done = rendered[-1:] or last
            pos = end + 1

    def _value(self, placeholder: str) -> str | None:
        name, delimiter, default = placeholder.partition(DEFAULT_DELIMITER)
        if name in self._open_names:
            raise InfiniteLoop(" -> ".join([*self._open_names, name]))
        value = self._lookup(name)
        if value is None and delimiter:
            value = default
        if value is None:
            return None
        if self._count is not None:
            self._count(len(value))
        self._open_names.append(name)
        rendered = self.expand(value)
        self._open_names.pop()
        return rendered


_NAME = re.compile(r"[^}:]*")


def placeholder_names(text: str, *, with_default: bool = True) -> Iterator[str]:
    """Yield the names of the placeholders in `text`, in order, in time proportional to its length.

    with_default: also of those that have a default.
    """
    start = text.find(PREFIX)
    while start >= 0:
        name_start = start + len(PREFIX)
        end = _NAME.match(text, name_start).end()  # type: ignore[union-attr]  # it matches anything
        has_default = text.startswith(DEFAULT_DELIMITER, end)
        if end == len(text) or (has_default and text.find(SUFFIX, end) < 0):
            return  # nor is there an end for any later placeholder
        if end > name_start and (has_default or text[end] == SUFFIX):
            if with_default or not has_default:
                yield text[name_start:end]
            end = text.find(SUFFIX, end)
        start = text.find(PREFIX, end)


class _Escapes(dict[int, str]):
    """Character → its escape, filled as characters come."""

    def __missing__(self, code: int) -> str:
        units = chr(code).encode("utf-16-be", "surrogatepass")
        escaped = "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
        self[code] = chr(code) if 0x20 <= code <= 0x7F else escaped
        return self[code]


_ESCAPES = _Escapes({ord(char): f"\\{letter}" for char, letter in zip('"\\/\b\f\n\r\t', '"\\/bfnrt', strict=True)})


_PIECE = 20_000  # characters


def escape_json(text: str) -> str:
    """Escape `text` as commons-text `escapeJson` does: ``/`` becomes ``\\/``, non-ASCII becomes ``\\uXXXX``."""
    if len(text) <= _PIECE:
        return text.translate(_ESCAPES)
    # In pieces, so that no call blocks other threads for more than a few milliseconds.
    return "".join(text[start : start + _PIECE].translate(_ESCAPES) for start in range(0, len(text), _PIECE))


def may_be_json(text: str) -> bool:
    """Return True if the cluster might take `text` for JSON and insert it raw.

    Only what may be an object or an array is inserted raw, and the first character above U+0020 decides that. The
    cluster's lenient parser is not copied (docs/evidence/facts.md). Opening brackets alone are never JSON.
    """
    start = text.lstrip(BLANK)
    return start[:1] in ("{", "[") and bool(start.strip(BLANK + "{["))


BLANK = "".join(map(chr, range(0x21)))


HOSTILE = 'x"}]},{"text":"\\ $ {y} \n[1]'
"""A worst case of a remembered turn or a tool's output: quotes, JSON, and signs that have a meaning in templates."""


class RuntimeValues(msgspec.Struct, frozen=True):
    """Run-time values the gateway can't know: what memory replays, None for nothing, and what earlier tools answer."""

    history: str | None = None
    tool_output: str = HOSTILE
