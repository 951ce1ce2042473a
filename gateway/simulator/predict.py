"""One call of a model through its connector: render, send, read the answer.

The runners are generators: they yield an `LlmRequest` and are sent the `LlmReply`. A streamed run yields the pieces of
its answer, too. Nothing here does any I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.simulator import jsonpath
from gateway.simulator.errors import ExecuteFailure, illegal_argument
from gateway.simulator.lenient import is_json
from gateway.simulator.render import Parameters, escaped, fill, payload
from gateway.simulator.streams import (
    CHAT,
    NO_STREAM,
    Piece,
    StreamEnded,
    can_stream,
    chat_pieces,
    converse_pieces,
    converse_request,
    interface_of,
    is_streamed,
)
from gateway.simulator.values import read_answer

Tensor = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """A connector's request. body: text, not necessarily JSON."""

    url: str
    headers: Mapping[str, str]
    body: str
    timeout: float = 30_000.0
    """Timeout in seconds: the connector's `client_config.read_timeout`."""


@dataclass(frozen=True, slots=True)
class LlmReply:
    """The response. failure: the text after "Error communicating …" if there was none."""

    status: int
    body: str
    failure: str | None = None


Run = Generator[LlmRequest | Piece, LlmReply, Any]


def predict(
    connector: Mapping[str, Any],
    parameters: Mapping[str, str | None],
    modern: bool,
    type_: str = "PREDICT",
    unified: bool = False,
) -> Run:
    """Call what the connector's action of this type calls, and return the data map of its answer.

    Raises:
        ExecuteFailure: the template could not be rendered, or the model failed.
        StreamEnded: the model failed in a streamed run.
    """
    action = next((action for action in connector["actions"] if action["action_type"].upper() == type_), None)
    if action is None:
        raise illegal_argument(f"no {type_} action found")
    given = escaped(parameters, modern)
    values: Parameters = {**(connector.get("parameters") or {}), **given}
    body = payload(action.get("request_body") or "", values, modern)
    streamed = is_streamed(values, modern)
    if streamed and not can_stream(connector, values):
        yield Piece(NO_STREAM, is_last=True)
        raise StreamEnded
    if streamed and interface_of(values) != CHAT:
        body = converse_request(body, has_images=unified)
    secrets = {f"credential.{name}": value for name, value in (connector.get("credential") or {}).items()}
    reply = yield LlmRequest(
        url=fill(action["url"], values),
        headers={name: fill(value, secrets, "${") for name, value in (action.get("headers") or {}).items()},
        body=_on_the_wire(body),
        timeout=float((connector.get("client_config") or {}).get("read_timeout") or 30_000),
    )
    if not streamed:
        return data_map(reply, values.get("response_filter"))
    ids = (values.get("memory_id") or "", values.get("parent_interaction_id") or "")
    try:
        _check(reply)
    except ExecuteFailure as failure:
        yield Piece(failure.details, is_last=True)
        raise StreamEnded from None
    is_chat = interface_of(values) == CHAT
    pieces, answer = chat_pieces(reply.body) if is_chat else converse_pieces(json.loads(reply.body))
    for piece in pieces:
        yield Piece(piece, False, *ids)
    return answer


def _on_the_wire(body: str) -> str:
    """Return `body` as UTF-8, with each lone surrogate replaced by a question mark."""
    if body.isascii():
        return body
    joined = body.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return joined.encode("utf-8", "replace").decode()


def _check(reply: LlmReply) -> None:
    """Raise ExecuteFailure if the model failed."""
    if reply.failure is not None:
        details = f"Error communicating with remote model: {reply.failure}"
        raise ExecuteFailure(500, "OpenSearchStatusException", details)
    if reply.status >= 300:
        details = f"Error from remote service: {reply.body}"
        raise ExecuteFailure(reply.status, "OpenSearchStatusException", details)


def data_map(reply: LlmReply, response_filter: str | None) -> dict[str, Any]:
    """Return the answer as a map: filtered, and wrapped as ``{"response": …}`` unless it is a JSON object already."""
    _check(reply)
    if response_filter is None:
        answer = _parsed(reply.body, read_answer)
        return answer if isinstance(answer, dict) else {"response": answer}
    # The filter uses another parser, which does not convert integers to doubles.
    found = jsonpath.read(_parsed(reply.body, json.loads), response_filter)
    inner = _lenient(found) if isinstance(found, str) and is_json(found) else found
    return inner if isinstance(found, str) and isinstance(inner, dict) else {"response": inner}


def _parsed(body: str, reader: Callable[[str], Any]) -> Any:
    try:
        return reader(body)
    except ValueError:
        parts = body.split(maxsplit=1)
        column = len(parts[0]) + 2 if parts else 1
        details = (
            "Use JsonReader.setStrictness(Strictness.LENIENT) to accept malformed JSON at line 1 column "
            f"{column} path $\nSee https://github.com/google/gson/blob/main/Troubleshooting.md#malformed-json"
        )
        raise ExecuteFailure(500, "MalformedJsonException", details) from None


def _lenient(text: str) -> Any:
    """Parse a filtered answer that looks like JSON. A text that only the lenient parser accepts remains text."""
    try:
        return read_answer(text)
    except ValueError:
        return text
