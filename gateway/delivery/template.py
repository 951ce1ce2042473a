"""How a cluster fills in a connector's template: substitution, escaping, and which values count as JSON.

Three facts carry everything (FACTS.md, "Rules" 2–4 and "Rendering, in detail"; probed on 2.19 and 3.4):

- ``${parameters.x:-default}`` is substituted recursively by Apache commons-text's StringSubstitutor; an extra
  ``$`` before a placeholder makes it literal and is removed, once a pass.
- A parameter that parses as JSON, leniently, goes in raw; any other is JSON-escaped first.
- Connector parameters are never escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

PREFIX = "${parameters."
SUFFIX = "}"
DEFAULT_DELIMITER = ":-"

Lookup = Callable[[str], "str | None"]


class InfiniteLoop(Exception):
    """A placeholder leads back to itself; the cluster answers 500 "Infinite loop in property interpolation"."""


def substitute(template: str, values: Mapping[str, str] | Lookup, prefix: str = PREFIX) -> str:
    """`template` with every placeholder that has a value or a default replaced, recursively.

    A placeholder without either stays as it is. The walk mirrors StringSubstitutor: a value is scanned by
    itself, so a placeholder can't be formed across its borders; the scan then goes on behind it, but a ``$``
    that ends the value still escapes a placeholder that follows it.

    Raises:
        InfiniteLoop: a placeholder's value contains itself, directly or through others.
        RecursionError: placeholders lead to one another too many times for Python's stack.
    """
    lookup = values.get if isinstance(values, Mapping) else values
    return _substitute(template, lookup, prefix, [])


def _substitute(text: str, lookup: Lookup, prefix: str, open_names: list[str]) -> str:
    done = ""  # what has been rendered; only its last character matters to what follows
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
            # An escaped placeholder: drop the escaping `$`, keep the `$` of the prefix, look on behind it.
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
        name, delimiter, default = text[start + len(prefix) : end].partition(DEFAULT_DELIMITER)
        if name in open_names:
            raise InfiniteLoop(" -> ".join([*open_names, name]))
        value = lookup(name)
        if value is None and delimiter:
            value = default
        if value is None:
            # Unknown: left as it stands. The scan continues behind it.
            parts.append(text[pos : end + 1])
            done, pos = SUFFIX, end + 1
            continue
        if before:
            parts.append(before)
        open_names.append(name)
        rendered = _substitute(value, lookup, prefix, open_names)
        open_names.pop()
        if rendered:
            parts.append(rendered)
        done = rendered[-1:] or last
        pos = end + 1


class _Escapes(dict[int, str]):
    """Character → its escape, filled as characters come."""

    def __missing__(self, code: int) -> str:
        units = chr(code).encode("utf-16-be", "surrogatepass")
        escaped = "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
        self[code] = chr(code) if 0x20 <= code <= 0x7F else escaped
        return self[code]


_ESCAPES = _Escapes({ord(char): f"\\{letter}" for char, letter in zip('"\\/\b\f\n\r\t', '"\\/bfnrt', strict=True)})


def escape_json(text: str) -> str:
    """`text` as commons-text `escapeJson` writes it into a JSON string: ``/`` as ``\\/``, non-ASCII as ``\\uXXXX``."""
    return text.translate(_ESCAPES)


def may_be_json(text: str) -> bool:
    """Whether the cluster might take `text` for JSON and insert it raw.

    Its parser is lenient and not worth copying (FACTS.md): the first character above U+0020 decides whether it
    may be an object or an array; nothing else ever goes in raw. Opening brackets alone can't be either.
    """
    start = text.lstrip(BLANK)
    return start[:1] in ("{", "[") and bool(start.strip(BLANK + "{["))


BLANK = "".join(map(chr, range(0x21)))
