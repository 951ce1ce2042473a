"""The request body that goes to the cluster: small JSON with the inline media put in, uncopied."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.unified.model import AgentInput, Base64, Media, ToolResult
from gateway.unified.payloads import ExtractedBody, Payload, insert


def serialised(members: Mapping[str, Any], payloads: Mapping[str, Payload]) -> list[Payload]:
    """`members` as JSON in pieces, each token of `payloads` replaced by its bytes."""
    text = msgspec.json.encode(members)
    return insert(text, payloads) if payloads else [text]


def payloads_of(agent_input: AgentInput) -> dict[str, Payload]:
    """Token → base64 text of every inline medium of the conversation."""
    return {source.token: source.data for source in _sources(agent_input)}


def _sources(agent_input: AgentInput) -> Iterator[Base64]:
    for message in agent_input.messages:
        for block in message.content:
            for part in block.content if isinstance(block, ToolResult) else (block,):
                if isinstance(part, Media) and isinstance(part.source, Base64):
                    yield part.source


def with_members(extracted: ExtractedBody, change: Mapping[str, Any]) -> list[Payload]:
    """The client's own body with some members replaced, or dropped where `change` has None."""
    members = {**json.loads(extracted.text), **change}
    kept = {name: value for name, value in members.items() if value is not None}
    return serialised(kept, extracted.blobs)


def is_json(content_type: str) -> bool:
    """Whether the cluster reads the body as JSON: only then is it the gateway's to read."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type in ("application/json", "application/vnd.opensearch+json") or media_type.endswith("+json")
