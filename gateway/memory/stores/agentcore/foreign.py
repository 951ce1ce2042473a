"""Sessions that other programs keep in AgentCore Memory, as turns that a session of the gateway can have."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from gateway.config.memory import AgentCoreStore as Settings
from gateway.memory.model import Block, Message, Turn
from gateway.memory.store import StoreError, UnreadableSession
from gateway.memory.stores.agentcore.client import AgentCoreClient, Connect, StoredEvent
from gateway.memory.stores.agentcore.content import FOREIGN, UnknownContentType, text_of, to_json, value_of
from gateway.memory.stores.agentcore.mapping import SEQ, from_payload
from gateway.memory.stores.agentcore.turn import TURN
from gateway.memory.stores.strands.mapping import starts_turn

_MEMBERS = {"toolUse": ("toolUseId", "name", "input"), "toolResult": ("toolUseId", "status", "content")}
"""Members of tool calls and results that agents take."""
_MEDIA = {"image": "image", "video": "video", "audio": "audio"}
_DOCUMENT_FORMATS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}


class ForeignSession(Struct, frozen=True):
    """A session of another program. left_out: what of it the turns do not hold, and why; empty if they hold all."""

    turns: list[Turn]
    left_out: list[str]


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

    async def read(self, actor: str, session: str) -> ForeignSession:
        """Return a session: the turns of its last branch and of those that it grew from.

        Raises:
            UnreadableEvent: an event has a form that is not known.
            StoreError: there is no such session, or it is one of the gateway's own; or AgentCore failed.
        """
        events = await self._client.operation().events(actor, session)
        if not events:
            raise StoreError(f"the actor {actor} has no session {session}")
        if any(TURN in event.metadata for event in events):
            raise StoreError(f"the session {session} is the gateway's own: copy it with `mlc-gateway memory copy`")
        return to_session(events)


def to_session(events: Iterable[StoredEvent]) -> ForeignSession:
    """Return the session that these events hold, in whatever order. Pure.

    Raises:
        UnreadableEvent, UnreadableSession: an event has a form that is not known, or a branch an unknown root.
    """
    try:
        return _read(sorted(events, key=_order))
    except RecursionError:
        raise UnreadableSession("content of the session is nested too deeply") from None
    except (LookupError, TypeError, AttributeError) as error:
        raise UnreadableSession(f"a block of the session has an unknown form: {error!r}") from error


def _read(ordered: list[StoredEvent]) -> ForeignSession:
    line = _line(ordered)
    reading = _Reading()
    turns: list[tuple[str, list[Message]]] = []
    for event in line:
        for number, message in enumerate(from_payload(event.payload, event.metadata)):
            own = reading.message(message, event.timestamp)
            if not own.content:
                continue
            if starts_turn(own) or not turns:
                turns.append((f"agentcore-{event.id}-{number}", []))
            turns[-1][1].append(own)
    others = {event.branch for event in ordered} - {event.branch for event in line}
    left_out = [f"{len(others)} other branches"] if len(others) > 1 else ["another branch"] if others else []
    return ForeignSession([Turn(id, tuple(messages)) for id, messages in turns], left_out + reading.left_out)


def _line(ordered: list[StoredEvent]) -> list[StoredEvent]:
    """Return the events that lead to the newest one.

    Camunda's connectors write each turn but the first on a branch of its own, which begins after the last event of the
    turn before; a turn that was tried again leaves a branch that none continues. A root that is no longer there has
    expired: the session begins with what is left.
    """
    by_id = {event.id: number for number, event in enumerate(ordered)}
    roots = {event.branch: event.root for event in ordered if event.branch is not None and event.root}
    line: list[StoredEvent] = []
    end, branch, seen = len(ordered), ordered[-1].branch if ordered else None, set()
    while branch not in seen:
        seen.add(branch)
        line[:0] = [event for event in ordered[:end] if event.branch == branch]
        if branch is None:
            break
        if branch not in roots:
            raise UnreadableSession(f"the branch {branch} does not say after which event it begins")
        root = by_id.get(roots[branch] or "")
        if root is None:
            break
        end, branch = root + 1, ordered[root].branch
    return line


def _order(event: StoredEvent) -> tuple[float, int, str]:
    seq = event.metadata.get(SEQ, "")
    return event.timestamp, int(seq) if seq.isdecimal() else 0, event.id


class _Reading:
    """Brings messages of a session, in their order, into the form that agents take."""

    def __init__(self) -> None:
        self._calls = 0
        self._open: list[str] = []
        self.left_out: list[str] = []

    def message(self, message: Message, timestamp: float) -> Message:
        """Return a message with its event's time, if it has none, and without what agents refuse."""
        metadata = msgspec.structs.replace(message.metadata, created=message.metadata.created or timestamp)
        blocks = (self._with_id(taken) for block in message.content for taken in self._taken(block))
        return Message(message.role, tuple(own for block in blocks for own in block), metadata)

    def _taken(self, block: Block, of_tool: bool = False) -> list[Block]:
        """Return what an agent takes of a block: itself, a block in its place, or nothing."""
        text = text_of(block)
        if text is not None:
            return [block] if text.strip() else []
        if FOREIGN in block:
            own = _own(block[FOREIGN], of_tool)
            if own is None:
                kind, provider = block[FOREIGN].get("type"), str(block[FOREIGN].get("provider"))[:100]
                self.left_out.append(f"content of the type {kind} that only the provider {provider} reads")
            return [own] if own else []
        for kind, members in _MEMBERS.items():
            if isinstance(block.get(kind), dict):
                block = {kind: {name: block[kind][name] for name in members if name in block[kind]}}
        if "toolResult" in block:
            parts = [own for part in block["toolResult"]["content"] for own in self._taken(part, of_tool=True)]
            block = {"toolResult": {**block["toolResult"], "content": parts}}
        return [block]

    def _with_id(self, block: Block) -> list[Block]:
        """Return a tool's call or result with its id: older ones have none.

        The text of older tool messages has the results of all open calls: the first call gets it, and the others'
        results point to it.
        """
        if "toolUse" in block:
            self._calls += 1
            use = {**block["toolUse"], "toolUseId": block["toolUse"]["toolUseId"] or f"call_{self._calls}"}
            self._open.append(use["toolUseId"])
            return [{"toolUse": use}]
        if "toolResult" not in block:
            return [block]
        result = block["toolResult"]
        if result["toolUseId"]:
            self._open = [id for id in self._open if id != result["toolUseId"]]
            return [block]
        answered, self._open = self._open, []
        if not answered:
            return [block]
        pointer = [{"text": f"The result is part of the result of the call {answered[0]}."}]
        return [{"toolResult": {**result, "toolUseId": answered[0]}}] + [
            {"toolResult": {"toolUseId": id, "content": pointer}} for id in answered[1:]
        ]


def _own(content: Block, of_tool: bool) -> Block | None:
    """Return a content object of Camunda's as a block; None if no agent can take it."""
    match content:
        case {"type": "text", "text": str(text)}:
            return {"text": text}
        case {"type": "object"} if of_tool:
            return {"json": value_of(content)}
        case {"type": "document" | "object"}:
            return {"text": to_json(value_of(content))}
        case {"type": "blob", "blob": str(data), "mimeType": str(mime_type)}:
            return _medium(data, mime_type)
        case {"type": "reasoning", "payload": {"thinking": str(text), **rest}} | {
            "type": "reasoning",
            "text": str(text),
            **rest,
        }:
            signed = {"signature": rest["signature"]} if isinstance(rest.get("signature"), str) else {}
            return {"reasoningContent": {"reasoningText": {"text": text, **signed}}}
    return None


def _medium(data: str, mime_type: str) -> Block:
    main, _, sub = mime_type.partition(";")[0].strip().lower().partition("/")
    source = {"bytes": data}
    if main in _MEDIA:
        return {_MEDIA[main]: {"format": sub, "source": source}}
    known = _DOCUMENT_FORMATS.get(f"{main}/{sub}")
    if known is None:
        raise UnknownContentType(f"no block can hold content of type {mime_type[:100]!r}", "content.mimeType")
    return {"document": {"format": known, "name": "document", "source": source}}
