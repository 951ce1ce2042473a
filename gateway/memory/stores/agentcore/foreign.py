"""Reads sessions that other programs keep in a memory of AgentCore: Camunda's connectors, AWS's plug-in for Strands."""

from __future__ import annotations

import msgspec

from gateway.config.memory import AgentCoreStore as Settings
from gateway.memory.model import Block, Message, Turn
from gateway.memory.store import StoreError
from gateway.memory.stores.agentcore.chain import TURN
from gateway.memory.stores.agentcore.client import AgentCoreClient, Connect, StoredEvent
from gateway.memory.stores.agentcore.envelope import SEQ
from gateway.memory.stores.agentcore.mapping import from_event
from gateway.memory.stores.strands.mapping import starts_turn

_MEMBERS = {"toolUse": ("toolUseId", "name", "input"), "toolResult": ("toolUseId", "status", "content")}
"""Members of tool calls and results that agents take."""


class ForeignSessions:
    """Sessions of other programs. connect: makes boto3's client."""

    def __init__(self, settings: Settings, connect: Connect | None = None) -> None:
        self._client = AgentCoreClient(settings, connect)

    async def close(self) -> None:
        """Release everything."""
        await self._client.close()

    async def names(self, actor: str) -> list[str]:
        """Return the ids of an actor's sessions."""
        return await self._client.operation().sessions(actor)

    async def turns(self, actor: str, session: str) -> list[Turn]:
        """Return the turns of a session, in the order of time: of its main line, without other branches.

        Raises:
            UnreadableEvent: an event has a form that is not known.
            StoreError: there is no such session, or it is one of the gateway's own; or AgentCore failed.
        """
        events = await self._client.operation().events(actor, session)
        if not events:
            raise StoreError(f"the actor {actor} has no session {session}")
        if any(TURN in event.metadata for event in events):
            raise StoreError(f"the session {session} is the gateway's own: copy it with `mlc-gateway memory copy`")
        turns: list[tuple[str, list[Message]]] = []
        for event in sorted((event for event in events if event.branch is None), key=_order):
            for number, message in enumerate(from_event(event.payload, event.metadata)):
                if starts_turn(message) or not turns:
                    turns.append((f"agentcore-{event.id}-{number}", []))
                turns[-1][1].append(_own(message, event.timestamp))
        return [Turn(id_, tuple(messages)) for id_, messages in turns]


def _order(event: StoredEvent) -> tuple[float, int, str]:
    seq = event.metadata.get(SEQ, "")
    return event.timestamp, int(seq) if seq.isdecimal() else 0, event.id


def _own(message: Message, timestamp: float) -> Message:
    """Return a message with its event's time, if it has none, and without members that agents refuse."""
    metadata = msgspec.structs.replace(message.metadata, created=message.metadata.created or timestamp)
    return Message(message.role, tuple(_plain(block) for block in message.content), metadata)


def _plain(block: Block) -> Block:
    for kind, members in _MEMBERS.items():
        if isinstance(block.get(kind), dict):
            return {kind: {name: block[kind][name] for name in members if name in block[kind]}}
    return block
