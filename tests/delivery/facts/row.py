"""A row of the recorded facts, and the turns in it in the providers' forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.delivery.cases import PNG

OLD, NEW = "2.19.0", "3.4.0"
SKIP = {"skip_validating_missing_parameters": "true"}
DNE = "_chat_history,_tools,_interactions,tool_configs"
FLOW = "You answer for the library.\n\nAsked: {}\n\nAnswer:"
CFLOW = "You answer for the library.\n\n{}\n\nAsked: {}\n\nAnswer:"

BEDROCK_IMAGE = {"image": {"format": "png", "source": {"bytes": PNG}}}
OPENAI_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
GEMINI_IMAGE = {"inlineData": {"mimeType": "image/png", "data": PNG}}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"text": text}]}


def gemini(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def openai(role: str, text: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}, *parts]}


@dataclass(frozen=True)
class Row:
    """A direct request and what came of it.

    turns: what the LLM received, None when the cluster failed with `status`; `${}` in them stands for the words of
    a prompt built into the cluster, which are not ours to know.
    """

    id: str
    agent: str
    parameters: Mapping[str, Any]
    turns: Any = None
    status: int = 200
    version: str = OLD
    says: str = ""
    pairs: tuple[tuple[str, str], ...] = field(default=())


PAST = [user({"text": "q1"}, BEDROCK_IMAGE), assistant("a1")]
TURNS = json.dumps([*PAST, user({"text": "${parameters.prompt}"}, BEDROCK_IMAGE)])
ARRAY = (
    ("a", "messages", lambda text: [user({"text": text})], lambda text: [user({"text": text}, BEDROCK_IMAGE)]),
    ("b", "messages", lambda text: [openai("user", text)], lambda text: [openai("user", text, OPENAI_IMAGE)]),
    ("e2", "contents", lambda w: [gemini("user", {"text": w})], lambda w: [gemini("user", {"text": w}, GEMINI_IMAGE)]),
    ("h", "messages", lambda text: [user({"text": text})], lambda text: [user({"text": text}, BEDROCK_IMAGE)]),
)
QUOTED = ("c", "d", "e", "f", "g", "i")


def quoted_turns(template: str, text: str) -> Any:
    """What the LLM gets from a template with the prompt inside quotes."""
    match template:
        case "c":
            return text
        case "e":
            return [gemini("user", {"text": text})]
        case "g":
            return [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": text}]
        case "i":
            return [user({"type": "text", "text": text})]
    return [user({"text": text})]
