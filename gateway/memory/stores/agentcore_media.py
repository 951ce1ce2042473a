"""Large media of messages, kept apart from them by content hash, in parts that AgentCore accepts.

AWS documents no greatest size of an event; one of 22 MB was refused with status 413
(https://github.com/aws/bedrock-agentcore-sdk-python/issues/646). The limits here are the gateway's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

from gateway.memory.model import Block, Message
from gateway.memory.store import UnreadableSession

LARGE = 1_000_000
"""Characters of base64 from which on a medium is kept apart."""
PART = 4_000_000
"""Characters in an event."""
BLOB_TYPE = "mlc-gateway.media"
_REFERENCE = "gatewayMedia"


def digest(data: str) -> str:
    """Return the hash that names a medium."""
    return sha256(data.encode()).hexdigest()


def large_media(message: Message) -> dict[str, str]:
    """Return a message's media that are kept apart, by their hashes."""
    sources = (source for block in message.content for source in _sources(block))
    return {digest(source["bytes"]): source["bytes"] for source in sources if _is_large(source)}


def parts(data: str) -> list[str]:
    """Return a medium in parts that an event can hold."""
    return [data[start : start + PART] for start in range(0, len(data), PART)]


def payload(name: str, number: int, part: str) -> list[dict[str, Any]]:
    """Return the payload of the event that holds part `number` of the medium with the hash `name`."""
    data = {"sha256": name, "part": number, "data": part}
    return [{"blob": {"blobType": BLOB_TYPE, "version": 1, "media": data}}]


def part_of(event_payload: list[dict[str, Any]], name: str, number: int) -> str:
    """Return the part that an event holds.

    Raises:
        UnreadableSession: it holds something else.
    """
    match event_payload:
        case [{"blob": {"blobType": "mlc-gateway.media", "version": 1, "media": {"data": str(data), **rest}}}]:
            if (rest.get("sha256"), rest.get("part")) == (name, number):
                return data
    raise UnreadableSession(f"part {number} of the medium {name} is not what was stored")


def with_references(message: Message, events: dict[str, list[str]]) -> Message:
    """Return `message` with the events of its media in place of these. events: by hash."""

    def replace(source: Block) -> Block:
        name = digest(source["bytes"])
        rest = {key: value for key, value in source.items() if key != "bytes"}
        return {**rest, _REFERENCE: {"sha256": name, "events": events[name]}}

    return _mapped(message, _is_large, replace)


def references(message: Message) -> dict[str, list[str]]:
    """Return the events of a message's media, by hash."""
    found = (source[_REFERENCE] for block in message.content for source in _sources(block) if _is_reference(source))
    return {reference["sha256"]: reference["events"] for reference in found}


def with_media(message: Message, media: dict[str, str]) -> Message:
    """Return `message` with its media in place of their references. media: by hash."""

    def replace(source: Block) -> Block:
        rest = {key: value for key, value in source.items() if key != _REFERENCE}
        return {**rest, "bytes": media[source[_REFERENCE]["sha256"]]}

    return _mapped(message, _is_reference, replace)


def _is_large(source: Block) -> bool:
    data = source.get("bytes")
    return isinstance(data, str) and len(data) >= LARGE


def _is_reference(source: Block) -> bool:
    match source.get(_REFERENCE):
        case {"sha256": str(), "events": list()}:
            return True
    return False


def _sources(value: Any) -> Iterator[Block]:
    """Find the sources of media, also in results of tools."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "source" and isinstance(inner, dict):
                yield inner
            else:
                yield from _sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sources(inner)


def _mapped(message: Message, applies: Callable[[Block], bool], replace: Callable[[Block], Block]) -> Message:
    def copy(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            if key == "source":
                return replace(value) if applies(value) else value
            return {name: copy(inner, name) for name, inner in value.items()}
        return [copy(inner) for inner in value] if isinstance(value, list) else value

    return Message(message.role, tuple(copy(block) for block in message.content), message.metadata)
