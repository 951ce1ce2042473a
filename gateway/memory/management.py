"""What operators do with sessions, on the admin port and with ``mlc-gateway memory``: find, list, export.

An operator sees the sessions of all owners, and names one by its id alone if no other owner has a session of that id.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from gateway.memory.model import Owner, Session, SessionKey, SessionPage, StoredMessage
from gateway.memory.reading import read_messages, read_sessions
from gateway.memory.rest import message_as_json, timestamp
from gateway.memory.store import SessionNotFound, Store, StoreError

_MOST_NAMED = 10


class AmbiguousSession(StoreError):
    """Several owners have a session of this id, or several ids begin as it does."""


class OwnerFilter(Struct, frozen=True):
    """Which owners' sessions are meant. None: any; "" is the one tenant, or the callers without credentials."""

    agent_id: str | None = None
    tenant: str | None = None
    caller: str | None = None

    def owner(self) -> Owner | None:
        """Return the owner, if there can be only one."""
        if self.agent_id is None or self.tenant is None or self.caller is None:
            return None
        return Owner(self.agent_id, self.tenant, self.caller)

    def matches(self, owner: Owner) -> bool:
        """Return True if sessions of `owner` are meant."""
        pairs = ((self.agent_id, owner.agent_id), (self.tenant, owner.tenant), (self.caller, owner.caller))
        return all(wanted is None or wanted == found for wanted, found in pairs)


async def list_sessions(store: Store, wanted: OwnerFilter, after: str = "", limit: int = 100) -> SessionPage:
    """Return a page of the sessions that are `wanted`, the last updated first.

    A page may be shorter than `limit`, or empty, before the last one: its `next` is "" only at the end.
    """
    page = await store.sessions(wanted.owner(), after, limit)
    return SessionPage(tuple(one for one in page.sessions if wanted.matches(one.key.owner)), page.next)


async def select_sessions(store: Store, wanted: OwnerFilter) -> AsyncGenerator[Session, None]:
    """Yield all sessions that are `wanted`, the last updated first."""
    async for session in read_sessions(store, wanted.owner()):
        if wanted.matches(session.key.owner):
            yield session


async def complete_owner(store: Store, wanted: OwnerFilter) -> OwnerFilter:
    """Return the filter with whole ids where it has a beginning that only one agent, or one caller, has.

    An id that an agent or caller has stays as it is, and so does one that none begins with.

    Raises:
        AmbiguousSession: several agents or callers begin so.
    """
    if not wanted.agent_id and not wanted.caller:
        return wanted
    async with aclosing(select_sessions(store, wanted)) as exact:
        if await anext(exact, None) is not None:
            return wanted
    owners = [session.key.owner async for session in select_sessions(store, OwnerFilter(tenant=wanted.tenant))]
    agents, callers = ({getattr(owner, name) for owner in owners} for name in ("agent_id", "caller"))
    return OwnerFilter(
        _complete("agents", wanted.agent_id, agents), wanted.tenant, _complete("callers", wanted.caller, callers)
    )


def _complete(what: str, given: str | None, known: set[str]) -> str | None:
    found = sorted(id for id in known if given and id.startswith(given))
    if given in known or not found:
        return given
    if len(found) > 1:
        raise AmbiguousSession(f"{len(found)} {what} begin with {given}: {', '.join(found)}.")
    return found[0]


async def find_session(
    store: Store,
    id: str,
    wanted: OwnerFilter = OwnerFilter(),  # noqa: B008  # immutable
    begins: bool = False,
) -> Session:
    """Return the session `id` of the owners that are `wanted`.

    Unless there can be only one owner, all sessions of the store are looked through. begins: `id`, and those of
    `wanted`, may be the beginning of one.

    Raises:
        SessionNotFound: there is none.
        AmbiguousSession: several of these owners have one, or several ids begin so.
    """
    if begins:
        wanted = await complete_owner(store, wanted)
    if (owner := wanted.owner()) is not None:
        found = [await store.session(SessionKey(owner, id))]
    else:
        found = [one async for one in select_sessions(store, wanted) if one.key.id == id]
    sessions = [one for one in found if one is not None]
    if begins and not sessions:
        sessions = [one async for one in select_sessions(store, wanted) if one.key.id.startswith(id)]
        if len(ids := {one.key.id for one in sessions}) > 1:
            raise AmbiguousSession(f"{len(ids)} sessions begin with {id}; give more of the id of one: {_few(ids)}.")
    if not sessions:
        raise SessionNotFound(f"There is no session {id}.")
    if len(sessions) > 1:
        owners = "; ".join(
            f"agent {key.owner.agent_id}, tenant {key.owner.tenant!r}, caller {key.owner.caller!r}"
            for key in (one.key for one in sessions)
        )
        raise AmbiguousSession(f"{len(sessions)} owners have a session {id}; name one of them: {owners}.")
    return sessions[0]


def _few(ids: Collection[str]) -> str:
    shown = sorted(ids)[:_MOST_NAMED]
    return ", ".join(shown) + (f" and {len(ids) - len(shown)} more" if len(ids) > len(shown) else "")


def session_as_json(session: Session) -> dict[str, Any]:
    """Return what is known about a session. Times are ISO 8601."""
    owner = session.key.owner
    return {
        "id": session.key.id,
        "agent_id": owner.agent_id,
        "tenant": owner.tenant,
        "caller": owner.caller,
        "turns": session.turns,
        "messages": session.messages,
        "created": timestamp(session.created),
        "updated": timestamp(session.updated),
        "pinned": session.pinned,
        "system": session.system,
    }


def stored_as_json(stored: StoredMessage) -> dict[str, Any]:
    """Return a message with its place in the session."""
    place = {"seq": stored.seq, "turn": stored.turn, "turn_id": stored.turn_id}
    return {**place, **message_as_json(stored.message)}


async def export_lines(store: Store, session: Session) -> AsyncGenerator[bytes, None]:
    """Yield a session as JSON lines: first ``{"session": {…}}``, then ``{"message": {…}}`` for each message.

    Raises:
        SessionNotFound: it was deleted. UnreadableSession: as `Store.load`.
    """
    now = await store.session(session.key)
    if now is None:
        raise SessionNotFound(f"There is no session {session.key.id}.")
    yield msgspec.json.encode({"session": session_as_json(now)}) + b"\n"
    async for stored in read_messages(store, now.key):
        yield msgspec.json.encode({"message": stored_as_json(stored)}) + b"\n"
