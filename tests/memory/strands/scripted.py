"""An agent of Strands with a model that gives scripted answers. Needs strands-agents (``make strands``)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

from strands import Agent, tool
from strands.models import Model

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
USAGE = {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12}


class ScriptedModel(Model):
    """Answers with the contents of `script`, one after the other. received: the messages of each call.

    A text in the place of a content makes a guardrail replace the user's text by it.
    """

    def __init__(self, *script: list[dict[str, Any]] | str) -> None:
        self._script = list(script)
        self.received: list[list[dict[str, Any]]] = []

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        self.received.append(plain(messages))
        content = self._script.pop(0)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(content, str):
            yield {"redactContent": {"redactUserContentMessage": content}}
            content = [{"text": "I can't help with that."}]
        for block in content:
            for event in _events(block):
                yield event
        yield {"messageStop": {"stopReason": "tool_use" if "toolUse" in content[-1] else "end_turn"}}
        yield {"metadata": {"usage": USAGE, "metrics": {"latencyMs": 1}}}

    def update_config(self, **_: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def _events(block: dict[str, Any]) -> list[dict[str, Any]]:
    if "text" in block:
        start, delta = {}, {"text": block["text"]}
    else:
        call = block["toolUse"]
        start = {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}
        delta = {"toolUse": {"input": json.dumps(call["input"])}}
    return [
        {"contentBlockStart": {"start": start}},
        {"contentBlockDelta": {"delta": delta}},
        {"contentBlockStop": {}},
    ]


@tool
def count_cats(city: str) -> dict[str, Any]:
    """Count the cats of a city, and show one."""
    content = [{"text": f"3 in {city}"}, {"image": {"format": "png", "source": {"bytes": PNG}}}]
    return {"status": "success", "content": content}


def agent(model: ScriptedModel, manager: Any, agent_id: str = "support", **more: Any) -> Agent:
    """Return an agent with the tool `count_cats`, restored from the manager's session."""
    return Agent(
        model=model,
        tools=[count_cats],
        agent_id=agent_id,
        session_manager=manager,
        callback_handler=None,
        system_prompt="Be brief.",
        **more,
    )


def plain(messages: Any) -> list[dict[str, Any]]:
    """Return role and content of each message."""
    return [{"role": message["role"], "content": deepcopy(message["content"])} for message in messages]


def image() -> dict[str, Any]:
    return {"image": {"format": "png", "source": {"bytes": PNG}}}


def call(city: str, id_: str = "call-1") -> dict[str, Any]:
    return {"toolUse": {"toolUseId": id_, "name": "count_cats", "input": {"city": city}}}
