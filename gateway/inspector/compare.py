"""Compares a response with the one that was recorded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec import Struct

from gateway.observe.record import Body, HttpMessage

NEW_IDS = ("memory_id", "parent_interaction_id", "parent_message_id", "session_id", "task_id")
"""Names of ids that a cluster makes for each run: of members, or of outputs of a legacy answer."""
IGNORED = (
    "headers.date",
    "headers.connection",
    "headers.content-length",
    "headers.content-encoding",
    "headers.keep-alive",
    "headers.transfer-encoding",
    "headers.x-mlc-*",
    "headers.x-opaque-id",
    "headers.x-request-id",
    "body.took",
    *(f"body.{name}" for name in NEW_IDS),
)
"""Fields that differ between two equal responses: times, ids, how the body was sent, what a gateway adds."""
_LONGEST = 200


class Difference(Struct, frozen=True):
    """A field that differs. field: ``status``, ``headers.<name>``, ``body`` or a path such as ``body.hits[0]._id``.

    expected, actual: the values, long ones cut; None for a field that is not there.
    """

    field: str
    expected: Any
    actual: Any


def differences(
    expected_status: int,
    expected: HttpMessage | None,
    actual_status: int,
    actual: HttpMessage,
    ignored: Sequence[str] = IGNORED,
) -> list[Difference]:
    """Return what differs, in the order of the message. ignored: globs on fields (`headers.*`, `body.*.id`).

    A body that was not recorded, or only in part, is not compared. JSON is compared by its values; names of headers
    without regard to case.
    """
    found: list[Difference] = []
    if expected_status != actual_status:
        found.append(Difference("status", expected_status, actual_status))
    if expected is not None:
        found += _headers(_joined(expected.headers), _joined(actual.headers))
        if expected.body.text is not None and not expected.body.omitted:
            found += _body(expected.body, actual.body)
    return [one for one in found if not any(fnmatchcase(one.field, pattern) for pattern in ignored)]


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers by name in lower case; the values of a repeated one are joined (RFC 9110, 5.3)."""
    joined: dict[str, str] = {}
    for name, value in pairs:
        lowered = name.lower()
        joined[lowered] = f"{joined[lowered]}, {value}" if lowered in joined else value
    return joined


def _headers(expected: dict[str, str], actual: dict[str, str]) -> Iterator[Difference]:
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            yield Difference(f"headers.{name}", expected.get(name), actual.get(name))


def _body(expected: Body, actual: Body) -> Iterator[Difference]:
    if (expected.text, expected.encoding) == (actual.text, actual.encoding):
        return
    if not expected.encoding and not actual.encoding:
        try:
            pair = [msgspec.json.decode(body.text or "") for body in (expected, actual)]
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            yield from _values("body", pair[0], pair[1])
            return
    yield Difference("body", _shortened(expected.text), _shortened(actual.text))


def _values(path: str, expected: Any, actual: Any) -> Iterator[Difference]:
    """Yield the differing leaves of two JSON values. 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if expected.get("name") == actual.get("name") in NEW_IDS:
            return
        for name in dict.fromkeys((*expected, *actual)):
            yield from _members(f"{path}.{name}", expected, actual, name)
    elif isinstance(expected, list) and isinstance(actual, list):
        first, second = dict(enumerate(expected)), dict(enumerate(actual))
        for index in range(max(len(first), len(second))):
            yield from _members(f"{path}[{index}]", first, second, index)
    elif expected != actual or isinstance(expected, bool) != isinstance(actual, bool):
        yield Difference(path, _shortened(expected), _shortened(actual))


def _members(path: str, expected: dict[Any, Any], actual: dict[Any, Any], name: Any) -> Iterator[Difference]:
    if name in expected and name in actual:
        yield from _values(path, expected[name], actual[name])
    else:
        yield Difference(path, _shortened(expected.get(name)), _shortened(actual.get(name)))


def _shortened(value: Any) -> Any:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
