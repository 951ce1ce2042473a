"""One execute body for each kind of input, as a client writes it: the columns of the table. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

from gateway.providers import registry
from gateway.providers.capabilities import Capabilities
from gateway.unified.model import AgentInput, MediaKind
from gateway.unified.request import ExecuteRequest, read_execute

KINDS = ("text", "image", "document", "video", "turns", "system", "tools")

# Small files, or the start of one: whether media arrive does not depend on their content.
_FILES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "image": (
        ("png", "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="),
        ("jpeg", "/9j/4AAQSkZJRg=="),
    ),
    "document": (("pdf", "JVBERi0xLjQKJSVFT0YK"), ("txt", "SGVsbG8K")),
    "video": (("mp4", "AAAAGGZ0eXBtcDQyAAAAAG1wNDJpc29t"), ("mov", "AAAAFGZ0eXBxdCAgAAAAAHF0ICA=")),
}


def sample(kind: str, provider: str) -> Any:
    """Return the `input` of a kind of `KINDS`, with media in a format that `provider` ("" if unknown) takes."""
    match kind:
        case "text":
            return "What does it say?"
        case "image" | "document" | "video":
            return [{"type": "text", "text": "What does it say?"}, _medium(cast(MediaKind, kind), provider)]
        case "turns":
            return [_turn("user", "Hello"), _turn("assistant", "Hi"), _turn("user", "What does it say?")]
        case "system":
            return [_turn("system", "Be brief."), _turn("user", "What does it say?")]
        case "tools":
            return list(_tool_history())
    raise ValueError(f"no kind of input is called {kind!r}")


@cache
def request(kind: str, provider: str) -> tuple[ExecuteRequest, AgentInput]:
    """Return the sample, read as the gateway reads it."""
    read = read_execute(json.dumps({"input": sample(kind, provider)}).encode())
    assert read.input is not None
    return read, read.input


def _turn(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def _medium(kind: MediaKind, provider: str) -> dict[str, Any]:
    taken = _formats(kind, provider)
    formats = _FILES[kind]
    name, data = next((file for file in formats if file[0] in taken), formats[0])
    return {"type": kind, "source": {"type": "base64", "format": name, "data": data}}


def _formats(kind: MediaKind, provider: str) -> Sequence[str]:
    found = registry.provider(provider) if provider else None
    capabilities = getattr(found, "capabilities", None)  # a provider of a third party may have no such table
    return capabilities.media.get(kind, {}).get("base64", ()) if isinstance(capabilities, Capabilities) else ()


def _tool_history() -> Iterator[dict[str, Any]]:
    """Yield a conversation with a tool call, and a question at its end."""
    yield _turn("user", "How warm is it?")
    function = {"name": "warmth", "arguments": '{"city":"Paris"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    yield {"role": "assistant", "content": [{"type": "text", "text": "I'll look."}], "toolCalls": [call]}
    yield {"role": "tool", "toolCallId": "call_1", "content": [{"type": "text", "text": "20 degrees"}]}
    yield _turn("assistant", "20 degrees.")
    yield _turn("user", "What does it say?")
