"""From parameters to the body of the LLM request, as a connector's predict action renders it.

Only `substitute` and `escape_json` are shared with the gateway's delivery. The rest is an independent implementation,
so that each checks the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.mlcommons.template import InfiniteLoop, escape_json, substitute
from gateway.simulator.errors import ExecuteFailure, illegal_argument
from gateway.simulator.lenient import is_json
from gateway.simulator.streams import CHAT, interface_of, is_streamed, with_stream
from gateway.simulator.values import quoted_inside

Parameters = dict[str, "str | None"]

INFINITE_LOOP = "Infinite loop in property interpolation of "

# The limit of a parser of 3.x; 2.19 accepted 600 levels (docs/evidence/facts.md, "Payload limits").
MAX_DEPTH = 255

_TO_STRING = re.compile(r"\$\{parameters\.(.+?)\.toString\(\)\}")
_NULL_DEFAULT = re.compile(r'"\$\{parameters\.(\w+):-null\}"')
_UNFILLED = re.compile(r"\$\{parameters\.([^}]+)\}")


def fill(template: str, values: Mapping[str, Any], prefix: str = "${parameters.") -> str:
    """Fill in the placeholders of `template`, recursively.

    Raises:
        ExecuteFailure: 500 IllegalStateException, "Infinite loop in property interpolation of …".
    """
    if prefix not in template:
        return template
    try:
        return substitute(template, values, prefix)
    except InfiniteLoop as loop:
        way = str(loop).rpartition(" -> ")[0].replace(" -> ", "->")
        details = f"{INFINITE_LOOP}{template}: {way}"
        raise ExecuteFailure(500, "IllegalStateException", details) from None


def escaped(parameters: Mapping[str, str | None], modern: bool) -> Parameters:
    """Prepare each parameter for the template: JSON as it is, anything else JSON-escaped.

    From 3.0, the parameters in `no_escape_params` are not escaped.
    """
    raw: set[str] = set()
    if modern:
        raw = {name.strip() for name in (parameters.get("no_escape_params") or "").split(",")}
    depth = MAX_DEPTH if modern else None
    return {
        name: value if value is None or name in raw or is_json(value, depth) else escape_json(value)
        for name, value in parameters.items()
    }


def payload(template: str, parameters: Parameters, modern: bool) -> str:
    """Render the body of the LLM request.

    Raises:
        ExecuteFailure: 400 "Invalid payload: …" or "Some parameter placeholder not filled in payload: …".
    """
    for name in _NULL_DEFAULT.findall(template):
        if parameters.get(name) is None:
            template = template.replace(f'"${{parameters.{name}:-null}}"', "null")
    _add_to_strings(parameters, modern)
    body = fill(template, parameters)
    if not is_json(body, MAX_DEPTH if modern else None):
        raise illegal_argument(f"Invalid payload: {body}")
    if is_streamed(parameters, modern) and interface_of(parameters) == CHAT:
        body = with_stream(body)
    if (parameters.get("skip_validating_missing_parameters") or "").lower() != "true":
        _check_filled(body)
    return body


def _add_to_strings(parameters: Parameters, modern: bool) -> None:
    for value in list(parameters.values()):
        if value is None or ".toString()}" not in value:
            continue
        for name in _TO_STRING.findall(value):
            named = parameters.get(name)
            if named is not None:
                parameters[f"{name}.toString()"] = quoted_inside(named, modern)


def _check_filled(body: str) -> None:
    if "${parameters" not in body:
        return
    names = ", ".join(_UNFILLED.findall(body))
    if not names:
        raise ExecuteFailure(500, "StringIndexOutOfBoundsException", "begin 0, end -2, length 0")
    raise illegal_argument(f"Some parameter placeholder not filled in payload: {names}")
