"""What an agent's answer says about its run, and the messages that it adds to the conversation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gateway.memory.model import Block, Message, Metadata, Usage

MEMORY_ID = "memory_id"
"""The output, or the member, with the id of the cluster's memory."""

_FAILED_TOOL = "Failed to run the tool "


class RunAnswer(Struct, frozen=True):
    """What an answer says about the run of an agent.

    text: of the final answer; None if it can't be read, or there is none.
    messages: what the run added to the conversation: calls and results of tools, as far as the answer shows them, then
        the final answer. A message's metadata has the token counts of its own LLM call.
    usage: tokens of all LLM calls of the run; None unless the answer reports them all.
    stop_reason: ``end_turn`` and the like, as V2 agents name it; "" if the answer does not say.
    memory_id: of the cluster's memory, "" for none.
    failed: the answer reports an error, or it is a stream that ends too soon.
    unknown: it has content blocks of a kind that is not known, which are not in `messages`.
    """

    text: str | None = None
    messages: tuple[Message, ...] = ()
    usage: Usage | None = None
    stop_reason: str = ""
    memory_id: str = ""
    failed: bool = False
    unknown: bool = False


def decode(body: bytes | str) -> Any:
    """Return the JSON value in `body`; None if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def assistant(reply: str, uses: Sequence[Block] = (), usage: Usage | None = None) -> tuple[Message, ...]:
    """Return the assistant's message; no message if it would be empty."""
    content = (*([{"text": reply}] if reply else ()), *uses)
    return (Message("assistant", content, Metadata(usage=usage)),) if content else ()


def tool_result(use: Block, output: str) -> Message:
    """Return the message with a tool's output. use: the body of the ``toolUse`` block."""
    status = "error" if output.startswith(f"{_FAILED_TOOL}{use['name']} ") else "success"
    content = [{"text": output}]
    return Message("user", ({"toolResult": {"toolUseId": use["toolUseId"], "status": status, "content": content}},))
