"""What is sent through the gateway, and how what arrived is compared with what was sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import urllib3
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from gateway.providers.base import MappingOptions
from gateway.providers.registry import provider as provider_named
from gateway.unified.model import Base64, Media
from gateway.unified.request import read_execute

from .agents import TEMPLATES, TYPES, WIRES
from .speech import PNG

Send = Callable[[str, Any], tuple[int, Any]]
Prompts = dict[tuple[str, str], tuple[str, str]]

HOSTILE = (
    '${parameters.question} $ $$ $${parameters.x} {"a":["x"]} "q" \\" \\n \n\t{ </script> é 漢字 😀 \u2028 '
    "${credential.k}"
)


def text_block(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


IMAGE: dict[str, Any] = {"type": "image", "source": {"type": "base64", "format": "png", "data": PNG}}


def input_message(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def conversation(first: str, last: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Four turns before the last: the first with an image between texts."""
    return [
        input_message("user", text_block(first), IMAGE, text_block("what is it?")),
        input_message("assistant", text_block("a dot")),
        input_message("user", text_block("sure?")),
        input_message("assistant", text_block("yes")),
        input_message("user", *last),
    ]


INPUTS: dict[str, Any] = {
    "text": 'hello "quoted" \\ back\nline é 漢字',
    "text_hostile": HOSTILE,
    "text_like_json": '{"a": "b"}',
    "text_rewriting": '["a"},{"image":{}},{"text":"b"]',
    "blocks": [text_block("first:"), IMAGE, text_block("second:"), IMAGE, text_block("compare")],
    "blocks_hostile": [text_block(HOSTILE), IMAGE, text_block(HOSTILE)],
    "conversation": conversation("look", [text_block("thanks")]),
    "conversation_image_last": conversation("look", [text_block("and"), IMAGE, text_block("this?")]),
    "conversation_hostile": conversation(HOSTILE, [text_block(HOSTILE)]),
}


def execute_with(client: OpenSearch, agent_id: str, body: Any) -> tuple[int, Any]:
    """Status and body of `execute_agent`, errors included."""
    try:
        return 200, client.plugins.ml.execute_agent(agent_id=agent_id, body=body)
    except TransportError as error:
        if not isinstance(error.status_code, int):
            raise  # no answer at all
        return error.status_code, error.info


def execute_showing_headers(url: str, agent_id: str, body: Any) -> tuple[dict[str, str], Any]:
    """Headers and body of an execute that must succeed; opensearch-py does not show headers."""
    target = f"{url}/_plugins/_ml/agents/{agent_id}/_execute"
    headers = {"Content-Type": "application/json"}
    response = urllib3.request("POST", target, body=json.dumps(body), headers=headers)
    assert response.status == 200, response.data
    return dict(response.headers), response.json()


def mapping(name: str, value: Any) -> list[dict[str, Any]]:
    """The provider's own words for `input` = value, media in place."""
    agent_input = read_execute(json.dumps({"input": value}).encode()).input
    assert agent_input is not None
    written = json.dumps(provider_named(name).map(agent_input, MappingOptions()).messages)
    for message in agent_input.messages:
        for block in message.content:
            if isinstance(block, Media) and isinstance(block.source, Base64):
                written = written.replace(block.source.token, bytes(block.source.data).decode())
    mapped: list[dict[str, Any]] = json.loads(written)
    return mapped


def field_of(name: str) -> str:
    return provider_named(name).content_field


def canonical(name: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One normal form. On OpenAI user messages in a row count as one: its template's user turn takes only text,
    so a part of any other kind becomes a message of its own (facts.md, B′)."""
    normal: list[dict[str, Any]] = provider_named(name).canonical(messages)
    if not name.startswith("openai"):
        return normal
    joined: list[dict[str, Any]] = []
    for message in normal:
        if joined and message["role"] == "user" == joined[-1]["role"]:
            joined[-1] = {"role": "user", "content": [*joined[-1]["content"], *message["content"]]}
        else:
            joined.append(message)
    return joined


def without_prompt(name: str, messages: list[dict[str, Any]], prompt: tuple[str, str]) -> list[dict[str, Any]]:
    """`messages` less the agent's own prompt, which must stand around texts of the last user turn, once."""
    before, after = prompt
    messages = json.loads(json.dumps(messages))
    parts = [part for part in messages[-1][field_of(name)] if "text" in part]
    if before:
        (first,) = [part for part in parts if part["text"].startswith(before)]
        first["text"] = first["text"][len(before) :]
    if after:
        (last,) = [part for part in parts if part["text"].endswith(after)]
        last["text"] = last["text"][: -len(after)]
    return messages


def refused_with_code(status: int, body: Any) -> bool:
    """A 400 of the gateway's own that names the place and the limitation."""
    if status != 400 or body["error"]["type"] != "UndeliverableContent":
        return False
    return all(problem["field"].startswith("input") and problem["code"] for problem in body["error"]["problems"])


def agent_names() -> list[str]:
    names = [f"{provider}_{type_}_{template}" for provider in WIRES for type_ in TYPES for template in TEMPLATES]
    return [name for name in names if not name.startswith("gemini_per")]
