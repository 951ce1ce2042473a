"""Reads a request's body, with the cluster's errors for each kind of bad body (07_errors)."""

from __future__ import annotations

from gateway.simulator.errors import Json, RestFailure
from gateway.simulator.values import read_body

_SOURCE = "[Source: REDACTED (`StreamReadFeature.INCLUDE_SOURCE_IN_LOCATION` disabled); line: 1, column: {}]"
_TOKENS = {"[": "START_ARRAY", '"': "VALUE_STRING", "n": "VALUE_NULL", "t": "VALUE_BOOLEAN", "f": "VALUE_BOOLEAN"}


def no_input(modern: bool) -> RestFailure:
    """Return the 500 for parameters that could not be read, which the cluster notices late."""
    local = "mlInput" if modern else "<local4>"
    reason = (
        'Cannot invoke "org.opensearch.ml.common.input.MLInput.setAlgorithm('
        f'org.opensearch.ml.common.FunctionName)" because "{local}" is null'
    )
    return RestFailure(500, "null_pointer_exception", reason)


def parse_object(body: bytes | str, modern: bool) -> Json:
    """Return the JSON object in a request's body. Anything after it is ignored.

    Raises:
        RestFailure: 400 or 500, as the cluster responds to each kind of bad body.
    """
    try:
        text = body.decode() if isinstance(body, bytes) else body
    except UnicodeDecodeError:
        raise _malformed("", modern) from None
    if not text.strip():
        raise RestFailure(400, "parse_exception", "request body is required")
    first = text.lstrip()[0]
    if first == "{":
        try:
            return read_body(text)  # type: ignore[no-any-return]
        except (ValueError, RecursionError):
            raise _malformed(text, modern) from None
    token = _TOKENS.get(first) or ("VALUE_NUMBER" if first in "-0123456789" else None)
    try:
        read_body(text)
    except (ValueError, RecursionError):
        token = None
    if token is None:
        raise _unrecognized(text.split()[0])
    reason = f"Failed to parse object: expecting token of type [START_OBJECT] but found [{token}]"
    raise RestFailure(400, "parsing_exception", reason, line=1, col=1)


def _unrecognized(word: str) -> RestFailure:
    expected = "was expecting (JSON String, Number, Array, Object or token 'null', 'true' or 'false')"
    reason = f"Unrecognized token '{word}': {expected}\n at {_SOURCE.format(len(word) + 1)}"
    return RestFailure(400, "json_parse_exception", reason)


def _malformed(text: str, modern: bool) -> RestFailure:
    """Return a 500 on 2.19, and a 400 on 3.x, with the position if the text ends too early."""
    if not modern:
        return no_input(modern)
    opened = _open_brackets(text)
    if not opened:
        return RestFailure(400, "json_parse_exception", f"Unexpected character\n at {_SOURCE.format(1)}")
    start = opened[-1]
    kind = "Object" if text[start] == "{" else "Array"
    reason = (
        f"Unexpected end-of-input: expected close marker for {kind} (start marker at "
        f"{_SOURCE.format(start + 1)})\n at {_SOURCE.format(len(text) + 1)}"
    )
    return RestFailure(400, "json_e_o_f_exception", reason)


def _open_brackets(text: str) -> list[int]:
    """Return the positions of the brackets that are not closed."""
    opened: list[int] = []
    quoted = escaped = False
    for position, char in enumerate(text):
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in "{[":
            opened.append(position)
        elif char in "}]" and opened:
            opened.pop()
    return opened
