"""Conversation memory, and the ``/_plugins/_ml/memory`` API.

It stores only the texts of a turn: question and answer (docs/evidence/facts.md, "Answers and memory").
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.simulator.errors import ExecuteFailure, RestFailure

Json = dict[str, Any]
_SHORTEST_WORD = 5


def new_id() -> str:
    """Return an id of twenty characters like the cluster's, without short words between dashes.

    The cluster takes connectors whose ids share a word for each other (docs/evidence/facts.md, "Deploy states and
    connector changes"). That must not happen by chance. Nor does an id begin with a dash, as an option does.
    """
    made = secrets.token_urlsafe(15)
    return new_id() if min(map(len, made.split("-"))) < _SHORTEST_WORD else made


def now() -> str:
    """Return the time as memory documents carry it."""
    seconds, nanos = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanos:09d}Z"


@dataclass
class Message:
    """One turn, or (with `trace_number`) one step of a turn."""

    memory_id: str
    input: str | None
    response: str | None = None
    origin: str | None = None
    prompt_template: str | None = None
    additional_info: Json | None = None
    parent_message_id: str | None = None
    trace_number: int | None = None
    message_id: str = field(default_factory=new_id)
    create_time: str = field(default_factory=now)
    updated_time: str = field(default_factory=now)

    def document(self, modern: bool) -> Json:
        """Return the message as the API shows it: empty fields left out."""
        shown = {
            "memory_id": self.memory_id,
            "message_id": self.message_id,
            "create_time": self.create_time,
            "updated_time": self.updated_time if modern else None,
            "input": self.input,
            "prompt_template": self.prompt_template or None,
            "response": self.response or None,
            "origin": self.origin or None,
            "additional_info": self.additional_info,
            "parent_message_id": self.parent_message_id,
            "trace_number": self.trace_number,
        }
        return {name: value for name, value in shown.items() if value is not None}


@dataclass
class Memory:
    """A conversation."""

    name: str | None
    additional_info: Json | None = None
    memory_id: str = field(default_factory=new_id)
    create_time: str = field(default_factory=now)
    updated_time: str = field(default_factory=now)
    messages: dict[str, Message] = field(default_factory=dict)
    traces: dict[str, Message] = field(default_factory=dict)

    def document(self) -> Json:
        """Return the memory as the API shows it."""
        shown = {
            "memory_id": self.memory_id,
            "create_time": self.create_time,
            "updated_time": self.updated_time,
            "name": self.name,
            "additional_info": self.additional_info,
        }
        return {name: value for name, value in shown.items() if value is not None}


class MemoryStore:
    """The memories of a cluster."""

    def __init__(self, modern: bool) -> None:
        self.modern = modern
        self.memories: dict[str, Memory] = {}
        self._owner: dict[str, Memory] = {}

    # For the agents.

    def create(self, name: str | None, additional_info: Json | None = None) -> Memory:
        """Return a new, empty memory."""
        memory = Memory(name, additional_info)
        self.memories[memory.memory_id] = memory
        return memory

    def begin(self, memory_id: str | None, question: str) -> Message:
        """Return the message of a new turn, not answered yet, in the named memory or (no name) in a new one.

        Raises:
            ExecuteFailure: 404, no such memory.
        """
        memory = self.memories.get(memory_id) if memory_id else self.create(question)
        if memory is None:
            raise ExecuteFailure(404, "ResourceNotFoundException", f"Memory [{memory_id}] not found")
        return self.add(memory, Message(memory.memory_id, question))

    def add(self, memory: Memory, message: Message) -> Message:
        """Store a turn, or a trace of one."""
        (memory.messages if message.trace_number is None else memory.traces)[message.message_id] = message
        self._owner[message.message_id] = memory
        memory.updated_time = now()
        return message

    def earlier(self, memory_id: str, running: str | None) -> list[Message]:
        """Return all turns of a memory, oldest first, without the `running` turn."""
        memory = self.memories.get(memory_id)
        return [turn for turn in memory.messages.values() if turn.message_id != running] if memory else []

    def history(self, memory_id: str, limit: int, running: str | None) -> list[Message]:
        """Return the answered turns among the last `limit`, oldest first, without the `running` turn."""
        turns = self.earlier(memory_id, running)[-limit:] if limit > 0 else []
        return [turn for turn in turns if turn.response]

    def answer(self, message_id: str | None, response: str | None, additional_info: Json | None = None) -> None:
        """Write the answer into its turn."""
        message = self.find(message_id)
        if message is not None:
            message.response = response
            message.additional_info = additional_info
            message.updated_time = self._owner[message.message_id].updated_time = now()

    def trace(self, parent: str | None, number: int, question: str | None, response: str, origin: str) -> None:
        """Store one step of a turn."""
        memory = self._owner.get(parent or "")
        if memory is not None:
            step = Message(memory.memory_id, question, response, origin, parent_message_id=parent, trace_number=number)
            self.add(memory, step)

    def find(self, message_id: str | None) -> Message | None:
        """Return the turn with this id."""
        memory = self._owner.get(message_id or "")
        return memory.messages.get(message_id or "") if memory else None

    def forget(self, message_id: str) -> None:
        """Remove a turn and its traces."""
        memory = self._owner.pop(message_id, None)
        if memory is not None:
            memory.messages.pop(message_id, None)
            memory.traces = {k: step for k, step in memory.traces.items() if step.parent_message_id != message_id}

    # For the API.

    def get(self, memory_id: str) -> Memory:
        """Return the memory.

        Raises:
            RestFailure: 404.
        """
        if memory_id not in self.memories:
            raise RestFailure(404, "resource_not_found_exception", f"Memory [{memory_id}] not found")
        return self.memories[memory_id]

    def message(self, message_id: str) -> Message:
        """Return the turn.

        Raises:
            RestFailure: 404.
        """
        message = self.find(message_id)
        if message is None:
            raise RestFailure(404, "resource_not_found_exception", f"Message [{message_id}] not found")
        return message

    def traces_of(self, message_id: str) -> list[Message]:
        """Return the steps of a turn, the last first.

        Raises:
            RestFailure: 404.
        """
        memory = self._owner[self.message(message_id).message_id]
        return [step for step in reversed(memory.traces.values()) if step.parent_message_id == message_id]

    def newest(self) -> list[Memory]:
        """Return all memories, most recently used first."""
        return sorted(self.memories.values(), key=lambda memory: memory.updated_time, reverse=True)

    def delete(self, memory_id: str) -> None:
        """Remove a memory; one that isn't there is no error.

        The messages go with it.
        """
        memory = self.memories.pop(memory_id, None)
        for message_id in [*memory.messages, *memory.traces] if memory else ():
            self._owner.pop(message_id, None)


def page(items: list[Any], query: Mapping[str, str]) -> tuple[list[Any], int | None]:
    """Return one page of `items` by ``max_results`` (10) and ``next_token`` (0), and the next page's token if full."""
    size = int(query.get("max_results", 10))
    start = int(query.get("next_token", 0))
    found = items[start : start + size]
    return found, start + len(found) if len(found) == size else None
