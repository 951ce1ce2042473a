"""Writes the messages of one turn to AgentCore Memory. They are not part of the session before its record says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.memory.agentcore_mapping import Event, MappingForm, to_event
from gateway.memory.agentcore_metadata import MOST_ENTRIES, PREFIX, is_allowed
from gateway.memory.model import Message, SessionKey, Turn
from gateway.memory.store import TooLargeForStore, Unstorable
from gateway.memory.stores import agentcore_ids as ids
from gateway.memory.stores import agentcore_media as media
from gateway.memory.stores.agentcore_chain import OWN_ENTRIES, TURN_ID, labels
from gateway.memory.stores.agentcore_client import NewEvent, Operation
from gateway.memory.stores.agentcore_record import Entry

LARGEST_EVENT = 5_000_000
"""Characters of the JSON of an event's payload. AWS documents no limit; this one is the gateway's own."""

MEDIUM = PREFIX + "medium"
"""Event metadata: the attempt, the medium's hash, and the number of the part."""


class Writer:
    """Writes one turn in one attempt. after: the entry of the turn before; None for the first turn.

    events: actors and ids of the events written so far.
    """

    def __init__(
        self, form: MappingForm, call: Operation, key: SessionKey, turn: Turn, attempt: str, after: Entry | None
    ) -> None:
        self._form = form
        self._call = call
        self._key = key
        self._turn = turn
        self._attempt = attempt
        self._number = after.turns + 1 if after else 1
        self._root = after.last_event_id if after else ""
        uses = [block["toolUse"] for message in turn.messages for block in message.content if "toolUse" in block]
        self._tools = {str(use.get("toolUseId")): str(use.get("name")) for use in uses if isinstance(use, dict)}
        self._mapped_events: list[Event] = []
        self._media: dict[str, str] = {}
        self.events: list[tuple[str, str]] = []

    def prepare(self) -> None:
        """Map the messages. Takes long if they are large.

        Raises:
            TooLargeForStore, Unstorable: AgentCore can't keep one of them, the system text or the turn's id.
        """
        place = "id"
        try:
            if not is_allowed(TURN_ID, ids.to_metadata(self._turn.id)):
                raise Unstorable("the turn's id is too long for AgentCore", place)
            place = "system"
            if self._turn.system:
                self._turn.system.encode()
                _check_size(self._turn.system, "the system text takes")
            for number, message in enumerate(self._turn.messages):
                place = f"messages[{number}]"
                found = media.large_media(message)
                self._media |= found
                self._mapped_events.append(self._map(number, message, {name: [] for name in found}))
        except UnicodeEncodeError:
            raise Unstorable("the text has a lone surrogate, which is no character", place) from None
        except RecursionError:
            raise Unstorable("it is nested too deeply", place) from None

    async def write(self, timestamp: float) -> str:
        """Write all messages, the large media first, with this timestamp. Return the last one's id; "" for none."""
        if self._media:
            stored = {name: await self._write_medium(name, data, timestamp) for name, data in self._media.items()}
            self._mapped_events = await self._call.run(self._mapped, stored)
        last = ""
        for seq, event in enumerate(self._mapped_events):
            own = labels(self._number, self._attempt, seq, self._turn.id)
            branch = (self._attempt, self._root) if self._root else (None, None)
            last = await self._create(ids.MESSAGES, event.payload, timestamp, own, event.metadata, branch)
        return last

    def _mapped(self, stored: dict[str, list[str]]) -> list[Event]:
        return [self._map(number, message, stored) for number, message in enumerate(self._turn.messages)]

    def _map(self, number: int, message: Message, stored: dict[str, list[str]]) -> Event:
        place = f"messages[{number}]"
        if media.references(message):
            raise Unstorable("a source has the reserved member `gatewayMedia`", place)
        kept = media.with_references(message, stored) if stored else message
        event = to_event(kept, self._form, place, self._tools, MOST_ENTRIES - OWN_ENTRIES)
        _check_size(event.payload, f"{place} takes, besides its large media,")
        return event

    async def _write_medium(self, name: str, data: str, timestamp: float) -> list[str]:
        events: list[str] = []
        for number, part in enumerate(media.parts(data)):
            own = {MEDIUM: f"{self._attempt}/{name}/{number}"}
            events.append(await self._create(ids.MEDIA, media.payload(name, number, part), timestamp, own))
        return events

    async def _create(
        self,
        kind: str,
        payload: list[dict[str, Any]],
        timestamp: float,
        own: dict[str, str],
        metadata: Mapping[str, str] = MappingProxyType({}),
        branch: tuple[str | None, str | None] = (None, None),
    ) -> str:
        """Create an event. Return its id. own: metadata that no other event has."""
        actor, session = ids.actor(kind, self._key.owner), ids.session(self._key)
        token = ids.token(self._attempt, sorted(own.items()))
        event, repeated = await self._call.create(
            NewEvent(actor, session, payload, token, timestamp, {**metadata, **own}, *branch)
        )
        if repeated:
            event = await self._find(actor, session, branch[0], own)
        self.events.append((actor, event))
        return event

    async def _find(self, actor: str, session: str, branch: str | None, own: dict[str, str]) -> str:
        """Return the id of a written event. The service does not say what it answers to a repeated write."""
        attempt = 0
        while True:
            attempt += 1
            async for page in self._call.pages(actor, session, branch, payloads=False):
                for event in page:
                    if own.items() <= event.metadata.items():
                        return event.id
            await self._call.pause(attempt)


def _check_size(value: Any, what: str) -> None:
    size = len(json.dumps(value))
    if size > LARGEST_EVENT:
        raise TooLargeForStore(f"{what} {size:,} characters of JSON; the AgentCore store keeps up to {LARGEST_EVENT:,}")
