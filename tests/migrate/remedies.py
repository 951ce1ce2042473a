"""What the help of each refusal says, as something that a test can do: changes of the request and of the settings.

A remedy is found by a part of the help. Those that change the agent's connector are in `test_remedies`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.execute.rewrite import RewriteOptions
from gateway.providers.base import MappingOptions
from tests.delivery.simulated_cluster import Pairs

USER, ASSISTANT, SYSTEM = "user", "assistant", ("system", "developer")
MEDIA = ("image", "document", "video", "audio")


class Attempt(msgspec.Struct, frozen=True):
    """A request: its `input`, the caller's own parameters, what memory holds, and the operator's choices.

    strict: the simulated LLM checks the request. It knows no model that continues assistant turns.
    """

    input: Any
    parameters: Mapping[str, Any]
    pairs: Pairs = ()
    policy: RewriteOptions = msgspec.field(default_factory=RewriteOptions)
    strict: bool = True

    @property
    def body(self) -> dict[str, Any]:
        return {"input": self.input, **({"parameters": dict(self.parameters)} if self.parameters else {})}


Remedy = Callable[[Attempt], Attempt]


def messages_of(value: Any) -> list[dict[str, Any]]:
    """The `input` as messages, each with a list of blocks."""
    if isinstance(value, str):
        value = [{"type": "text", "text": value}]
    if not any("role" in item for item in value):
        value = [{"role": USER, "content": value}]
    return [{**turn, "content": blocks_of(turn["content"])} for turn in value]


def blocks_of(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def end_with_a_user_turn(attempt: Attempt) -> Attempt:
    asking = {"role": USER, "content": [text("Go on.")]}
    return replace(attempt, input=[*messages_of(attempt.input), asking])


def tools_as_text(attempt: Attempt) -> Attempt:
    def written(block: dict[str, Any]) -> dict[str, Any]:
        return text(json.dumps(block)) if {"toolUse", "toolResult"} & block.keys() else block

    turns = messages_of(attempt.input)
    return replace(attempt, input=[{**turn, "content": [*map(written, turn["content"])]} for turn in turns])


def history_as_text(attempt: Attempt) -> Attempt:
    *earlier, last = messages_of(attempt.input)
    moved = [text(f"{turn['role']}: {block['text']}") for turn in earlier for block in turn["content"]]
    return replace(attempt, input=[*moved, *last["content"]])


def system_as_user_text(attempt: Attempt) -> Attempt:
    turns = messages_of(attempt.input)
    moved = [block for turn in turns if turn["role"] in SYSTEM for block in turn["content"]]
    first, *rest = (turn for turn in turns if turn["role"] not in SYSTEM)
    return replace(attempt, input=[{**first, "content": [*moved, *first["content"]]}, *rest])


def without_media(attempt: Attempt) -> Attempt:
    def is_media(block: Mapping[str, Any]) -> bool:
        return bool(block.get("type") in MEDIA or set(MEDIA) & block.keys())

    turns = []
    for turn in messages_of(attempt.input):
        left = [block for block in turn["content"] if not is_media(block)]
        turns.append({**turn, "content": left or [text("(left out)")]})
    return replace(attempt, input=turns)


def documents_as_text(attempt: Attempt) -> Attempt:
    words = base64.b64encode(b"What the document says.").decode()

    def converted(block: dict[str, Any]) -> dict[str, Any]:
        match block:
            case {"type": "document", "source": dict(source)}:
                return {**block, "source": {**source, "format": "txt", "data": words}}
            case {"document": dict(body)}:
                return {"document": {**body, "format": "txt", "source": {"bytes": words}}}
        return block

    turns = messages_of(attempt.input)
    return replace(attempt, input=[{**turn, "content": [*map(converted, turn["content"])]} for turn in turns])


def notes_for_media(attempt: Attempt) -> Attempt:
    return replace(attempt, policy=replace(attempt.policy, describe=True))


def allow_prefill(attempt: Attempt) -> Attempt:
    return replace(attempt, policy=RewriteOptions(MappingOptions(allow_prefill=True)), strict=False)


def new_memory(attempt: Attempt) -> Attempt:
    return replace(attempt, pairs=())


def text_only(attempt: Attempt) -> Attempt:
    return without_media(tools_as_text(attempt))


CHANGES: Mapping[str, Remedy] = {
    "end with a user turn": end_with_a_user_turn,
    "end the conversation with a user turn": end_with_a_user_turn,
    "send the earlier turns as text in the user turn": history_as_text,
    "put the system text into the user turn": system_as_user_text,
    "leave the media out": without_media,
    "convert the document to txt": documents_as_text,
    "agents.rules[].delivery: describe": notes_for_media,
    "set `agents.allow_prefill: true`": allow_prefill,
    "start a new memory": new_memory,
    "send text only": text_only,
}
"""By what the help says: the change of the request or of the gateway's settings."""
