"""The request that goes to the cluster: small JSON with the inline media inserted without a copy; its `async`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from gateway.unified.model import AgentInput, Base64, Media, ToolResult
from gateway.unified.payloads import ExtractedBody, Payload, insert


def serialise(members: Mapping[str, Any], payloads: Mapping[str, Payload]) -> list[Payload]:
    """Return `members` as JSON in pieces, each token of `payloads` replaced by its bytes."""
    text = msgspec.json.encode(members)
    return insert(text, payloads) if payloads else [text]


def payloads_of(agent_input: AgentInput) -> dict[str, Payload]:
    """Map the token of every inline medium of the conversation to its base64 text."""
    return {source.token: source.data for source in _inline_sources(agent_input)}


def _inline_sources(agent_input: AgentInput) -> Iterator[Base64]:
    for message in agent_input.messages:
        for block in message.content:
            for part in block.content if isinstance(block, ToolResult) else (block,):
                if isinstance(part, Media) and isinstance(part.source, Base64):
                    yield part.source


def replace_members(
    extracted: ExtractedBody, changes: Mapping[str, Any], payloads: Mapping[str, Payload] | None = None
) -> list[Payload]:
    """Return the client's body with some members replaced, or removed where `changes` has None.

    payloads: bytes to insert for a token, in place of those of the client's body.
    """
    members = {**json.loads(extracted.text), **changes}
    present = {name: value for name, value in members.items() if value is not None}
    return serialise(present, {**extracted.blobs, **(payloads or {})})


def is_json(content_type: str) -> bool:
    """Return True if the cluster reads a body of this content type as JSON. The gateway reads no other."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type in ("application/json", "application/vnd.opensearch+json") or media_type.endswith("+json")


_SEPARATORS = re.compile("[;#]")


def read_async(target: str) -> str:
    """Return the value of ``async`` in the query of `target`; "false" if there is none.

    With any other value, even an empty one, the agent runs in the background. OpenSearch takes ``;`` for ``&``, and
    some versions end the query at ``#`` (docs/evidence/facts.md): values before and after them all count.
    """
    query = _SEPARATORS.sub("&", target.partition("?")[2])
    values = (value for name, value in parse_qsl(query, keep_blank_values=True) if name == "async")
    return next((value for value in values if value != "false"), "false")
