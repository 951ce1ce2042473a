"""Reads a request's JSON and converts parameters to strings as the cluster does (docs/evidence/facts.md, rule 2).

Maps are Java HashMaps, so keys are in hash order; on 2.19 nulls are dropped and ``< > & = '`` are
written ``\\u00xx``, on 3.x neither. Strings do not change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_SHORT = {'"': '\\"', "\\": "\\\\", "\t": "\\t", "\b": "\\b", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_PLAIN = {**{chr(c): f"\\u{c:04x}" for c in range(0x20)}, **_SHORT, "\u2028": "\\u2028", "\u2029": "\\u2029"}
_HTML = {**_PLAIN, **{char: f"\\u{ord(char):04x}" for char in "<>&='"}}
_PLAIN_TABLE = str.maketrans(_PLAIN)
_HTML_TABLE = str.maketrans(_HTML)


@lru_cache(maxsize=4096)
def _spread_hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value ^ value >> 16


def hash_order(pairs: list[tuple[str, Any]], buckets: int = 16) -> dict[str, Any]:
    """Return the pairs as a dict in the order of a Java HashMap that began with `buckets`."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("duplicate key")
    while len(unique) > buckets * 3 // 4:
        buckets *= 2
    return dict(sorted(unique.items(), key=lambda item: _spread_hash(item[0]) & (buckets - 1)))


def _no_constant(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=hash_order, parse_constant=_no_constant)
_ANSWER_DECODER = json.JSONDecoder(parse_int=float)


def read_body(text: str) -> Any:
    """Read the first JSON value of `text` strictly, as the REST layer does. Anything after it is ignored.

    Raises:
        ValueError: not JSON, or a duplicate key.
        RecursionError: nested too deeply.
    """
    return _DECODER.raw_decode(text.lstrip(" \t\r\n"))[0]


def read_answer(text: str) -> Any:
    """Read a model's answer as the cluster does: every number is a double.

    Raises:
        ValueError: not JSON.
    """
    return _ANSWER_DECODER.decode(text)


class RawJson(str):
    """JSON text that is written as it is."""

    __slots__ = ()


def to_json(value: Any, modern: bool) -> str:
    """Serialise `value` as the cluster does; a null in a map is dropped unless `modern` (3.x)."""
    parts: list[str] = []
    _write(value, modern, parts)
    return "".join(parts)


def as_text(value: Any, modern: bool) -> str:
    """Return a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else to_json(value, modern)


def quoted_inside(text: str, modern: bool) -> str:
    """Escape `text` for a JSON string as the serializer does (not as commons-text does)."""
    return text.translate(_PLAIN_TABLE if modern else _HTML_TABLE)


def to_parameters(values: Mapping[str, Any], modern: bool) -> dict[str, str | None]:
    """Return every parameter as a string: strings unchanged, anything else serialised (null becomes ``null``)."""
    return {name: as_text(value, modern) for name, value in values.items()}


def _write(value: Any, modern: bool, parts: list[str]) -> None:
    if isinstance(value, RawJson):
        parts.append(value)
    elif isinstance(value, str):
        parts.append(f'"{quoted_inside(value, modern)}"')
    elif isinstance(value, Mapping):
        members = [(name, item) for name, item in value.items() if modern or item is not None]
        parts.append("{")
        for position, (name, item) in enumerate(members):
            parts.append(f'{"," if position else ""}"{quoted_inside(name, modern)}":')
            _write(item, modern, parts)
        parts.append("}")
    elif isinstance(value, list):
        parts.append("[")
        for position, item in enumerate(value):
            parts.append("," if position else "")
            _write(item, modern, parts)
        parts.append("]")
    else:
        parts.append(_scalar(value))


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return java_double(value) if isinstance(value, float) else str(value)


def java_double(value: float) -> str:
    """Return a double as Java prints it: ``1.1``, ``100000.0``, ``1.0E30``."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a valid double value as per JSON specification.")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(value, "f") if "e" in repr(value) else repr(value)
        return text if "." in text else text + ".0"
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        mantissa, _, exponent = format(value, ".17e").partition("e")
        digits = repr(value).replace("-", "").replace(".", "").strip("0") or "0"
        mantissa = f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:] or '0'}"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
