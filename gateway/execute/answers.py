"""Reads an agent's answer, whole or streamed: text, messages, tokens, the id of the cluster's memory. Pure.

Forms by agent type and version: docs/internals/facts.md, "Answers and memory".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gateway.execute.answer_stream import StreamReader
from gateway.execute.legacy_outputs import OutputReader
from gateway.execute.run_answer import MEMORY_ID, RunAnswer, decode
from gateway.memory.model import Block, Message, Usage
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.record import Delivery
from gateway.observe.record import Usage as RecordedUsage
from gateway.policy.usage import Prices
from gateway.providers.responses import count, member, objects, text
from gateway.unified.blocks import NATIVE_KINDS
from gateway.unified.model import MEDIA_KINDS


def read_answer(profile: AgentProfile, body: bytes) -> RunAnswer:
    """Read the decoded body of an agent's answer. An answer in no known form gives a `RunAnswer` without text."""
    document = decode(body)
    if isinstance(member(document, "message"), dict):
        return _read_unified(document)
    outputs = member(document, "inference_results", 0, "output")
    if isinstance(outputs, list):
        reader = OutputReader(profile, hashlib.sha256(body).hexdigest()[:16])
        return reader.read(list(objects(outputs)))
    # Of a run in the background: {"task_id", "status", "response": {"memory_id"}}
    return RunAnswer(memory_id=text(member(document, "response", MEMORY_ID)))


def _read_unified(document: dict[str, Any]) -> RunAnswer:
    """Read ``{"stop_reason", "message", "memory_id", "metrics"}`` (V2 agents of 3.6 and later)."""
    content = list(objects(member(document, "message", "content")))
    blocks = [block for written in content for block in _known_blocks(written)]
    counts = member(document, "metrics", "total_usage")
    values = [count(member(counts, name)) for name in ("inputTokens", "outputTokens", "totalTokens")]
    usage = Usage(*values) if any(value is not None for value in values) else None
    return RunAnswer(
        text="".join(text(block.get("text")) for block in blocks),
        messages=(Message("assistant", tuple(blocks)),) if blocks else (),
        usage=usage,
        stop_reason=text(document.get("stop_reason")),
        memory_id=text(document.get(MEMORY_ID)),
        unknown=any(_is_unknown(written) for written in content),
    )


def _known_blocks(written: dict[str, Any]) -> Iterator[Block]:
    """Yield the content blocks in a written one, which may have members of the value null."""
    return ({kind: value} for kind, value in written.items() if _is_content(kind, value))


def _is_content(kind: str, value: Any) -> bool:
    match value:
        case str():
            return kind == "text" and bool(value)
        case {"name": str(name)} if kind == "toolUse":
            return bool(name)
        case {"toolUseId": str()} if kind == "toolResult":
            return True
        case {"format": str(), "source": {**source}} if kind in MEDIA_KINDS:
            return bool(source)
        case dict():
            return bool(value) and kind in NATIVE_KINDS
        case _:
            return False


def _is_unknown(written: dict[str, Any]) -> bool:
    """Return True for a block that holds something, of no known kind."""
    return any(written.values()) and not any(_known_blocks(written))


_PIECE = 64 * 1024
"""Bytes of a stream that are searched for the end of an event at a time: the search blocks all other threads."""
NOT_READ = AgentProfile("", "", "", (), Generation.TEXT)
"""Stands for an agent that can't be read."""


def read_usage(profile: AgentProfile | None, body: bytes, streaming: bool) -> Usage | None:
    """Return the tokens of all LLM calls of a run; None if its answer does not report them.

    profile: None if the agent can't be read. body: decoded; of an event stream, all of it. streaming: the answer may be
    an event stream.
    """
    profile = profile or NOT_READ
    if streaming and not body.lstrip().startswith(b"{"):
        reader = StreamReader(profile)
        for start in range(0, len(body), _PIECE):
            reader.feed(body[start : start + _PIECE])
        return reader.answer().usage
    return read_answer(profile, body).usage


def recorded_usage(delivery: Delivery, body: bytes, streaming: bool, prices: Prices) -> RecordedUsage | None:
    """Return what a run used and cost, for its record; None if that is not known. See `read_usage`."""
    profile = replace(NOT_READ, type=delivery.type, provider=delivery.provider)
    tokens = read_usage(profile, body, streaming)
    if tokens is None or tokens.input is None or tokens.output is None:
        return None
    cost = prices.cost(delivery.provider, delivery.model, tokens.input, tokens.output)
    return RecordedUsage(tokens.input, tokens.output, *(cost or ()))
