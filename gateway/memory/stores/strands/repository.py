"""Strands' `SessionRepository` over a store of the gateway, so that Strands' session managers keep sessions in it::

    with StrandsRepository(SqliteStore(Path("memory.sqlite3"))) as repository:
        manager = RepositorySessionManager("gws-0001", session_repository=repository)
        agent = Agent(agent_id="support", session_manager=manager)

A Strands agent in a Strands session is a session of the gateway with that agent as its owner, so that either continues
what the other began. Each message that Strands adds is a turn of its own, because Strands wants it stored at once.

A store has no place for what Strands keeps besides messages: the agent's state, its conversation manager's, and
messages that were changed after they were stored, as by a guardrail. They are JSON text in sessions of the same id
whose owner is ``strands-agent:<agent id>`` or ``strands-multi-agent:<id>``; the newest message there counts. The
gateway does not look there: it sees a message as it was first stored.

The package strands-agents is imported when a repository is made. Sessions are never held in memory.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import uuid
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, TypeVar

from gateway.memory.model import PREFIX, Message, Metadata, Owner, SessionKey, StoredMessage, Turn
from gateway.memory.store import NEWEST, SessionConflict, SessionNotFound, Store
from gateway.memory.stores.strands.mapping import Record, agent_record, from_record, to_record

_T = TypeVar("_T")

_SESSION_ID = re.compile(re.escape(PREFIX) + "[A-Za-z0-9_-]{1,96}")
_PAGE = 500
"""Messages that are loaded at a time."""


class StrandsRepository:
    """Keeps Strands' sessions in `store`, as those of one tenant and caller. It starts and closes the store.

    Every method blocks until the store has done its work, and raises Strands' `SessionException` or the store's errors.
    """

    def __init__(self, store: Store, tenant: str = "", caller: str = "") -> None:
        import_module("strands.session.session_repository").SessionRepository.register(type(self))
        self._types: Any = import_module("strands.types.session")
        self._error: Any = import_module("strands.types.exceptions").SessionException
        self._store = store
        self._tenant, self._caller = tenant, caller
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="strands-repository", daemon=True).start()
        self._run(store.start())

    def close(self) -> None:
        """Close the store."""
        self._run(self._store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def __enter__(self) -> StrandsRepository:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Sessions. A store knows them only by agent, so any is there, and none of its agents may be.

    def create_session(self, session: Any, **_: Any) -> Any:
        """Return `session`. It is stored with its first agent."""
        self._key(session.session_id, "")
        return session

    def read_session(self, session_id: str, **_: Any) -> Any:
        """Return the session."""
        self._key(session_id, "")
        return self._types.Session(session_id=session_id, session_type=self._types.SessionType.AGENT)

    # Agents

    def create_agent(self, session_id: str, session_agent: Any, **_: Any) -> None:
        """Store an agent's state."""
        self._run(self._change(self._agent_key(session_id, session_agent.agent_id), agent=session_agent.to_dict()))

    def read_agent(self, session_id: str, agent_id: str, **_: Any) -> Any:
        """Return an agent's state, or None if there is no such agent. It is empty if the gateway began the session."""
        return self._run(self._read_agent(session_id, agent_id))

    def update_agent(self, session_id: str, session_agent: Any, **_: Any) -> None:
        """Replace an agent's state."""
        previous = self.read_agent(session_id, session_agent.agent_id)
        if previous is None:
            raise self._error(f"There is no agent {session_agent.agent_id} in session {session_id}")
        session_agent.created_at = previous.created_at
        self.create_agent(session_id, session_agent)

    # Messages

    def create_message(self, session_id: str, agent_id: str, session_message: Any, **_: Any) -> None:
        """Append a message."""
        message, _turn = from_record(session_message.to_dict())
        self._run(self._append(self._key(session_id, agent_id), message, session_message.message_id))

    def read_message(self, session_id: str, agent_id: str, message_id: int, **_: Any) -> Any:
        """Return a message, or None if there is none of this number."""
        found = self.list_messages(session_id, agent_id, limit=1, offset=message_id)
        return found[0] if found else None

    def update_message(self, session_id: str, agent_id: str, session_message: Any, **_: Any) -> None:
        """Replace a message, for Strands only: the gateway sees it as it was."""
        previous = self.read_message(session_id, agent_id, session_message.message_id)
        if previous is None:
            raise self._error(f"There is no message {session_message.message_id} in session {session_id}")
        session_message.created_at = previous.created_at
        number = str(session_message.message_id)
        self._run(self._change(self._agent_key(session_id, agent_id), messages={number: session_message.to_dict()}))

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **_: Any
    ) -> list[Any]:
        """Return `limit` messages (None: all) from number `offset` on."""
        return self._run(self._list(session_id, agent_id, offset, NEWEST if limit is None else offset + limit))

    # Graphs and swarms of agents

    def create_multi_agent(self, session_id: str, multi_agent: Any, **_: Any) -> None:
        """Store the state of several agents that work together."""
        key = self._key(session_id, f"strands-multi-agent:{multi_agent.id}")
        self._run(self._change(key, state=multi_agent.serialize_state()))

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **_: Any) -> Record | None:
        """Return the state of several agents, or None."""
        key = self._key(session_id, f"strands-multi-agent:{multi_agent_id}")
        state: Record | None = self._run(self._read(key)).get("state")
        return state

    def update_multi_agent(self, session_id: str, multi_agent: Any, **_: Any) -> None:
        """Replace the state of several agents."""
        if self.read_multi_agent(session_id, multi_agent.id) is None:
            raise self._error(f"There is no multi-agent {multi_agent.id} in session {session_id}")
        self.create_multi_agent(session_id, multi_agent)

    # On the loop's thread

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _key(self, session_id: str, agent_id: str) -> SessionKey:
        if not _SESSION_ID.fullmatch(session_id):
            reason = f"A session id in the gateway's memory matches {_SESSION_ID.pattern}; {session_id!r} does not"
            raise ValueError(reason)
        return SessionKey(Owner(agent_id, self._tenant, self._caller), session_id)

    def _agent_key(self, session_id: str, agent_id: str) -> SessionKey:
        return self._key(session_id, f"strands-agent:{agent_id}")

    async def _read_agent(self, session_id: str, agent_id: str) -> Any:
        record = (await self._read(self._agent_key(session_id, agent_id))).get("agent")
        if record is None:
            session = await self._store.session(self._key(session_id, agent_id))
            if session is None:
                return None
            record = agent_record(agent_id, session.created)
        return self._types.SessionAgent.from_dict(record)

    async def _append(self, key: SessionKey, message: Message, number: int) -> None:
        session = await self._store.session(key)
        stored, turns = (session.messages, session.turns) if session else (0, 0)
        try:
            if stored != number:
                raise SessionConflict(f"it has {stored} messages", turns)
            await self._store.append(key, Turn(uuid.uuid4().hex, (message,)), turns)
        except SessionConflict as error:
            reason = (
                f"Message {number} can't be appended to session {key.id}, which another writer has changed: {error}"
            )
            raise self._error(reason) from error

    async def _list(self, session_id: str, agent_id: str, low: int, high: int) -> list[Any]:
        found: list[StoredMessage] = []
        more = low < high
        while more:
            try:
                page = await self._store.load(self._key(session_id, agent_id), high, min(_PAGE, high - low))
            except SessionNotFound:
                break
            found[:0] = [message for message in page.messages if message.seq >= low]
            more = page.more and page.messages[0].seq > low
            high = page.messages[0].seq if page.messages else low
        changed = (await self._read(self._agent_key(session_id, agent_id))).get("messages", {})
        records = (changed.get(str(one.seq)) or to_record(one.message, one.seq) for one in found)
        return [self._types.SessionMessage.from_dict(record) for record in records]

    # What stores have no place for

    async def _read(self, key: SessionKey) -> Record:
        """Return what was last written for `key`; empty if nothing was."""
        return (await self._read_turns(key))[0]

    async def _read_turns(self, key: SessionKey) -> tuple[Record, int]:
        """Return what was last written, and how often something was."""
        try:
            newest = (await self._store.load(key, limit=1)).messages[0]
        except SessionNotFound:
            return {}, 0
        record: Record = json.loads(newest.message.content[0]["text"])
        return record, newest.turn

    async def _change(self, key: SessionKey, **parts: Record) -> None:
        """Replace parts of what was last written; of ``messages`` only those that are given."""
        while True:
            record, turns = await self._read_turns(key)
            if "messages" in parts:
                parts["messages"] = {**record.get("messages", {}), **parts["messages"]}
            text = json.dumps({**record, **parts}, ensure_ascii=False)
            message = Message("user", ({"text": text},), Metadata(created=time.time()))
            try:
                await self._store.append(key, Turn(uuid.uuid4().hex, (message,)), turns)
                return
            except SessionConflict:
                continue  # another process has written meanwhile
