"""The use case that shows and deletes sessions on the cluster's memory paths, to the callers that they belong to.

Before it answers, it sends the cluster a read of a memory with the caller's credentials: who may not read memories
there gets the cluster's refusal. A session is looked up among the caller's own, so that a foreign one is as unknown as
one that does not exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qs

import msgspec

from gateway.config.schema import Settings
from gateway.errors import InvalidInput, MemoryUnavailable, Problem, SignatureConflict
from gateway.memory import rest
from gateway.memory.model import Session, SessionKey, StoredMessage
from gateway.memory.owner import agent_of, is_signed, knows_users, message_id, owner_of, read_message_id
from gateway.memory.reading import MOST_BYTES, read_range, read_turn, read_turns
from gateway.memory.rest import read_search
from gateway.memory.store import SessionNotFound, Store, StoreError, UnreadableSession
from gateway.memory.window import measure
from gateway.observe.logs import Logger
from gateway.ports import Answer, ClusterReader, ExecuteCall

_PAGE = 10
_MOST = 10_000
_LARGEST = MOST_BYTES
"""Bytes of messages after which a page ends, so that media of a long session are not all in memory at once."""
_AT_ONCE = 20
"""Messages that are loaded at a time where turns are read."""
_UNKNOWN = "/_plugins/_ml/memory/mlc-gateway"
"""A memory that no cluster has: its ids are chosen by the cluster and 20 characters long."""
_SIGNATURE = "X-Amz-Signature="
"""The query of a presigned URL has it."""
_REFUSED = (401, 403)
_UNAVAILABLE = "The gateway's store of sessions is not available: it can't be read, or takes no writes."
_UNREADABLE = "The gateway can't read what its store holds of this session."
_NOT_FOUND = {"memory": "Memory", "messages": "Memory", "session": "Memory", "search": "Memory"}

Credentials = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Returns those of a request's headers that identify the caller to the cluster."""


Delete = Callable[[SessionKey, Mapping[str, str]], Awaitable[bool]]
"""Deletes a session with the caller's credentials; returns whether it existed."""


class SessionResources:
    """The implementation of `gateway.ports.SessionHandler` on a store.

    delete: deletes a session with what the cluster has of it; None for `Store.delete`.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        cluster: ClusterReader,
        credentials: Credentials,
        log: Logger,
        delete: Delete | None = None,
    ) -> None:
        self._settings = settings.memory
        self._by_user = knows_users(settings)
        self._store = store
        self._cluster = cluster
        self._credentials = credentials
        self._log = log
        self._delete_session = delete or (lambda key, _: store.delete(key))

    async def __call__(self, resource: str, id: str, call: ExecuteCall) -> Answer:
        """See `gateway.ports.SessionHandler`.

        Raises:
            SignatureConflict: the client signed the request, so only the cluster can tell who sent it.
            InvalidInput: `max_results` or `next_token` is not a number, or a search is for too large messages.
            MemoryUnavailable, UpstreamUnavailable, UpstreamTimeout: the store or the cluster can't be used.
        """
        if is_signed(call.headers) or _SIGNATURE in call.raw_target:
            raise SignatureConflict(
                "The gateway answers this request itself and can't check its SigV4 signature.",
                help="Read sessions at the gateway's admin port, or with `mlc-gateway memory`.",
            )
        refusal = await self._refusal(call)
        if refusal is not None:
            return refusal
        try:
            return await self._answer(resource, id, call)
        except StoreError as error:  # whose text may name paths, hosts and accounts, which are no client's business
            self._log.error("store unavailable", reason=str(error), type=type(error).__name__)
            raise MemoryUnavailable(_UNREADABLE if isinstance(error, UnreadableSession) else _UNAVAILABLE) from error

    async def _answer(self, resource: str, id: str, call: ExecuteCall) -> Answer:
        session_id, number = (id, 0) if resource in _NOT_FOUND else read_message_id(id) or (id, 0)
        owner = await owner_of(call.headers, agent_of(session_id), self._settings, self._by_user)
        key = SessionKey(owner, session_id)
        document = None
        if owner.agent_id:
            if call.method == "DELETE":
                document = await self._delete(resource, key, self._credentials(call.headers))
            else:
                document = await self._show(resource, key, number, call)
        if document is None and resource == "search":
            document = rest.search_document((), 0)  # as the cluster answers a search without hits
        if document is None:
            return _json(404, rest.not_found(_NOT_FOUND.get(resource, "Message"), id))
        return _json(200, document)

    async def _show(self, resource: str, key: SessionKey, number: int, call: ExecuteCall) -> Any:
        """Return the response's body; None if there is no such session or message."""
        session = await self._store.session(key)
        if session is not None:
            with contextlib.suppress(SessionNotFound):  # it was deleted meanwhile
                return await self._document(resource, session, number, call)
        return None

    async def _delete(self, resource: str, key: SessionKey, headers: Mapping[str, str]) -> Any:
        """Delete the session. Return the response's body; None if there is no such session.

        The store is asked in any case: it finishes a deletion that has failed before.
        """
        if not await self._delete_session(key, headers):
            return None
        return {"success": True} if resource == "memory" else _deleted(key.id)

    async def _document(self, resource: str, session: Session, number: int, call: ExecuteCall) -> Any:
        """Return the response's body; None if there is no such message."""
        container_id = call.raw_target.split("/")[4]
        match resource:
            case "memory":
                return rest.memory_document(session, await read_turn(self._store, session.key, 1) or ())
            case "messages":
                return await self._messages(session, call.raw_target)
            case "search":
                return await self._search(session, container_id, call.body)
            case "session":
                return rest.session_document(container_id, session)
            case "working":
                stored = await self._message(session, number)
                return None if stored is None else rest.working_document(container_id, session, stored)
        turn = await read_turn(self._store, session.key, number)
        if turn is None:
            return None
        if resource == "message":
            return rest.message_document(session.key.id, turn)
        start, size = _page(call.raw_target)
        traces = rest.trace_documents(session.key.id, turn)
        return _listed("traces", traces[start : start + size], start + size, len(traces))

    async def _messages(self, session: Session, target: str) -> dict[str, Any]:
        start, size = _page(target)
        shown: list[dict[str, Any]] = []
        held = 0
        if size and start < session.turns:
            async with aclosing(read_turns(self._store, session.key, start + 1, min(2 * size, _AT_ONCE))) as turns:
                async for turn in turns:
                    shown.append(rest.message_document(session.key.id, turn))
                    held += sum(measure(stored.message)[0] for stored in turn)
                    if len(shown) == size or held > _LARGEST:
                        break
        return _listed("messages", shown, turn[0].turn if shown else start, session.turns)

    async def _search(self, session: Session, container_id: str, body: bytes) -> dict[str, Any]:
        """Return the messages that a search (`read_search`) asks for.

        Raises:
            InvalidInput: they are larger than 16 MiB.
        """
        search = read_search(body)
        total = session.messages
        if search is None or search.start >= total or not search.size:
            return rest.search_document((), total)
        end = min(search.start + search.size, total)
        first, before = (total - end, total - search.start) if search.newest_first else (search.start, end)
        found = await self._between(session.key, first, before)
        if search.newest_first:
            found.reverse()
        return rest.search_document(
            (
                (message_id(session.key.id, stored.seq + 1), rest.working_document(container_id, session, stored))
                for stored in found
            ),
            total,
        )

    async def _between(self, key: SessionKey, start: int, end: int) -> list[StoredMessage]:
        """Return the messages with a seq of `start` and more, and below `end`.

        Raises:
            InvalidInput: they are larger than 16 MiB.
        """
        found = await read_range(self._store, key, start, end, _LARGEST)
        if found and found[-1].seq < end - 1:
            problem = Problem("size", "the messages are larger than 16 MiB", f"at most {len(found)}")
            raise InvalidInput("[size] These messages are larger than 16 MiB: search for fewer.", [problem])
        return found

    async def _message(self, session: Session, number: int) -> StoredMessage | None:
        """Return message number `number`, from 1."""
        if not 0 < number <= session.messages:
            return None
        page = await self._store.load(session.key, before=number, limit=1)
        return page.messages[0] if page.messages else None

    async def _refusal(self, call: ExecuteCall) -> Answer | None:
        """Return the cluster's answer to a read of a memory if it refuses the caller; None if it does not.

        Raises:
            MemoryUnavailable: the answer does not tell, as the cluster is overloaded or fails.
        """
        response = await self._cluster.exchange("GET", _UNKNOWN, self._credentials(call.headers))
        if response.status >= 500 or response.status == 429:
            raise MemoryUnavailable(f"The cluster can't check who sends this request: it answers {response.status}.")
        if response.status not in _REFUSED:
            return None
        names = ("Content-Type", "WWW-Authenticate")
        headers = {name: response.headers[name] for name in names if name in response.headers}
        return Answer(response.status, headers, response.body)


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turn a store's errors into a response to an operator.

    Raises:
        MemoryUnavailable: the store raised a `StoreError`.
    """
    try:
        yield
    except StoreError as error:
        raise MemoryUnavailable(f"The store of sessions can't be used: {error}") from error


def _page(target: str) -> tuple[int, int]:
    """Return `next_token` and `max_results` of a target's query; by default 0 and 10, as on the cluster.

    Raises:
        InvalidInput: one is not a number, or too large.
    """
    query = parse_qs(target.partition("?")[2])
    found = []
    for name, default in (("next_token", 0), ("max_results", _PAGE)):
        value = query.get(name, [str(default)])[-1]
        if not (value.isascii() and value.isdigit() and len(value) < 10):
            problem = Problem(name, "is not a number", "0 or more", value[:100])
            raise InvalidInput(f"[{name}] is not a number of 0 or more.", [problem])
        found.append(int(value))
    return found[0], min(found[1], _MOST)


def _listed(name: str, shown: list[dict[str, Any]], end: int, total: int) -> dict[str, Any]:
    """Return a page of documents, and the `next_token` if there are more. end: where the next page begins."""
    return {name: shown, "next_token": end} if shown and end < total else {name: shown}


def _deleted(id: str) -> dict[str, Any]:
    return {"_index": "mlc-gateway", "_id": id, "result": "deleted"}


def _json(status: int, document: Any) -> Answer:
    return Answer(status, {}, msgspec.json.encode(document))
