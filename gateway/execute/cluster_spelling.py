"""Whether the client wrote its `input` as the gateway would. Its bytes are sent as they came then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.mlcommons.memory_form import is_storable
from gateway.unified.payloads import ExtractedBody, Payload


def is_written(value: Any, expected: Any, extracted: ExtractedBody, payloads: Mapping[str, Payload]) -> bool:
    """Return True if `value`, a part of the client's request, has all that is in `expected`.

    The arguments of a tool call are JSON text, which may be written in any way.

    extracted: the request, which has the long strings of `value`. payloads: the inline media, whose tokens are in
    `expected`.
    """
    match expected:
        case dict():
            return isinstance(value, dict) and all(
                _is_arguments(value.get(name), extracted)
                if name == "arguments"
                else is_written(value.get(name), member, extracted, payloads)
                for name, member in expected.items()
            )
        case list():
            return (
                isinstance(value, list)
                and len(value) == len(expected)
                and all(is_written(*pair, extracted, payloads) for pair in zip(value, expected, strict=True))
            )
        case str() if isinstance(value, str):
            if (data := payloads.get(expected)) is None:
                return extracted.restore(value) == expected
            if value in extracted.blobs:  # without a prefix or white space it is shorter
                return value == expected and len(extracted.data(value)) == len(data)
            return value.encode() == bytes(data)
    return bool(value == expected)


def _is_arguments(value: Any, extracted: ExtractedBody) -> bool:
    return isinstance(value, str) and bool(value.strip()) and is_storable(extracted.restore(value))
