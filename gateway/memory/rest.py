"""ML Commons' memory APIs for sessions of the gateway: shows and deletes them, for the callers that they belong to.

A session is a memory of the conversation API, whose messages are the session's turns: question and answer as text, and
all messages of the turn, in Strands' form, in ``additional_info.messages``. Tool calls are the turn's traces.
In the API of memory containers (OpenSearch 3.3 and later), a session is a session and each message a working memory.
The cluster's documents are in docs/evidence/facts.md, "Answers and memory" and "Memory containers".

Before the gateway answers, it sends the cluster a read of a memory with the caller's credentials: who may not read
memories there gets the cluster's refusal. A session is looked up among the caller's own, so that a foreign one is as
unknown as one that does not exist.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from gateway.config.schema import Settings
from gateway.errors import InvalidInput, MemoryUnavailable, Problem, SignatureConflict
from gateway.memory.model import PREFIX, Block, Message, Session, SessionKey, StoredMessage
from gateway.memory.owner import agent_of, is_signed, knows_users, message_id, owner_of, read_message_id
from gateway.memory.reading import MOST_BYTES, read_range, read_turn, read_turns
from gateway.memory.store import SessionNotFound, Store, StoreError, UnreadableSession
from gateway.memory.structured import structured
from gateway.memory.window import measure
from gateway.observe.logs import Logger
from gateway.ports import Answer, ClusterReader, ExecuteCall

Json = dict[str, Any]
_LONGEST_NAME = 256


def memory_document(session: Session, first: Sequence[StoredMessage]) -> Json:
    """Return the memory. first: the messages of the first turn, whose question is its name, as on the cluster."""
    return {
        "memory_id": session.key.id,
        "create_time": timestamp(session.created),
        "updated_time": timestamp(session.updated),
        "name": question_of(first)[:_LONGEST_NAME],
    }


def message_document(session_id: str, turn: Sequence[StoredMessage]) -> Json:
    """Return a turn as a message of the conversation API. It has no `response` if the run failed, as on the cluster."""
    document: Json = {
        "memory_id": session_id,
        "message_id": message_id(session_id, turn[0].turn),
        "create_time": timestamp(_created(turn)),
        "input": question_of(turn),
    }
    if answer := answer_of(turn):
        document["response"] = answer
    document["additional_info"] = {"messages": [message_as_json(stored.message) for stored in turn]}
    return document


def trace_documents(session_id: str, turn: Sequence[StoredMessage]) -> list[Json]:
    """Return the tool calls of a turn with their results, in their order, as traces of the turn's message."""
    results = {result.get("toolUseId"): result for stored in turn for result in _blocks(stored.message, "toolResult")}
    parent = message_id(session_id, turn[0].turn)
    traces: list[Json] = []
    for stored in turn:
        for use in _blocks(stored.message, "toolUse"):
            trace = {
                "memory_id": session_id,
                "message_id": f"{parent}-{len(traces) + 1}",
                "create_time": timestamp(stored.message.metadata.created),
                "input": json.dumps(use.get("input"), ensure_ascii=False),
                "origin": use.get("name", ""),
                "parent_message_id": parent,
                "trace_number": len(traces) + 1,
            }
            if (result := results.get(use.get("toolUseId"))) is not None:
                trace["response"] = _result_text(result)
            traces.append(trace)
    return traces


def session_document(container_id: str, session: Session) -> Json:
    """Return the session as a memory container's; times are milliseconds."""
    return {
        "memory_container_id": container_id,
        "created_time": round(session.created * 1000),
        "last_updated_time": round(session.updated * 1000),
        "namespace": {"agent_id": session.key.owner.agent_id},
    }


def working_document(container_id: str, session: Session, stored: StoredMessage) -> Json:
    """Return a message as a memory container's working memory, as agents of type ``conversational_v2`` store it.

    Blocks for which those agents have no form are texts of their JSON.
    """
    created = round(stored.message.metadata.created * 1000)
    shown = structured(stored.message)
    return {
        "memory_container_id": container_id,
        "payload_type": "conversational",
        "message_id": stored.seq,
        "structured_data_blob": {"message": shown},
        "namespace": {"agent_id": session.key.owner.agent_id, "session_id": session.key.id},
        "namespace_size": 2,
        "infer": False,
        "metadata": {"role": shown["role"], "type": "structured_message"},
        "created_time": created,
        "last_updated_time": created,
    }


def search_document(hits: Iterable[tuple[str, Json]], total: int) -> Json:
    """Return a search's answer. hits: id and source of each document that is shown. total: of all that match."""
    return {
        "took": 0,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {
            "total": {"value": total, "relation": "eq"},
            "max_score": None,
            "hits": [
                {"_index": "mlc-gateway", "_id": id, "_score": None, "_source": source, "sort": [source["message_id"]]}
                for id, source in hits
            ],
        },
    }


def not_found(kind: str, id: str) -> Json:
    """Return the cluster's error for a memory or message that it does not have. kind: Memory or Message."""
    cause = {"type": "resource_not_found_exception", "reason": f"{kind} [{id}] not found"}
    return {"error": {"root_cause": [cause], **cause}, "status": 404}


def question_of(turn: Sequence[StoredMessage]) -> str:
    """Return the texts of the user's messages, without those of tool results, a line for each."""
    texts = (text for stored in turn if stored.message.role == "user" for text in _texts(stored.message.content))
    return "\n".join(texts)


def answer_of(turn: Sequence[StoredMessage]) -> str:
    """Return the texts of the turn's last message if that is the assistant's, a line for each; "" if it is not."""
    last = turn[-1].message
    return "\n".join(_texts(last.content)) if last.role == "assistant" and not last.metadata.failed else ""


def message_as_json(message: Message) -> Json:
    """Return role, content and what is known of a message."""
    document: Json = {"role": message.role, "content": list(message.content)}
    if metadata := msgspec.to_builtins(message.metadata):
        document["metadata"] = metadata
    return document


def timestamp(seconds: float) -> str:
    """Return the time as the cluster writes it: ISO 8601, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _created(turn: Sequence[StoredMessage]) -> float:
    return turn[0].message.metadata.created


def _texts(content: Iterable[Block]) -> list[str]:
    return [block["text"] for block in content if isinstance(block.get("text"), str) and block["text"]]


def _blocks(message: Message, kind: str) -> list[Json]:
    return [block[kind] for block in message.content if isinstance(block.get(kind), dict)]


def _result_text(result: Json) -> str:
    """Return a tool result's texts, and its JSON as text."""
    content = result.get("content") or []
    shown = [json.dumps(part["json"], ensure_ascii=False) if "json" in part else part.get("text") for part in content]
    return "\n".join(text for text in shown if text)


LARGEST_BODY = 64 * 1024
"""Largest body that is looked at, in bytes."""
_MARK = PREFIX.encode()
"""A body without it is no search for a session of the gateway."""
_FIELD = "namespace.session_id"
_MEMBERS = {"query", "size", "from", "sort"}
_ORDERS = ("message_id", "created_time")
_MOST = 10_000
"""Most hits or documents of an answer (`index.max_result_window`)."""


class Search(NamedTuple):
    """A search for the messages of a session. start: the first of all that match. newest_first: as it is sorted."""

    session_id: str
    start: int = 0
    size: int = 10
    newest_first: bool = False


def find_session_id(body: bytes) -> str | None:
    """Return the id of the session that a search is for; None for a search that the cluster answers."""
    search = read_search(body) if len(body) <= LARGEST_BODY and _MARK in body else None
    return search.session_id if search is not None else None


def read_search(body: bytes) -> Search | None:
    """Return the search that `body` asks for; None if it is anything but all messages of one session of the gateway.

    It is a `term` or `match` of ``namespace.session_id``, alone or as the only clause of a `bool`, with `from`, `size`
    and a `sort` by ``message_id`` or ``created_time``.
    """
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if not isinstance(document, dict) or not document.keys() <= _MEMBERS:
        return None
    session_id = _session_id(document.get("query"))
    start, size = document.get("from", 0), document.get("size", 10)
    newest_first = _newest_first(document.get("sort", []))
    if session_id is None or newest_first is None or not _is_count(start) or not _is_count(size):
        return None
    return Search(session_id, start, size, newest_first)


def _session_id(query: Any) -> str | None:
    match query:
        case {"term": clause, **others} | {"match": clause, **others} if not others and isinstance(clause, dict):
            value = clause.get(_FIELD) if len(clause) == 1 else None
            if isinstance(value, dict) and len(value) == 1:
                value = value.get("value", value.get("query"))
            return value if isinstance(value, str) and value.startswith(PREFIX) else None
        case {"bool": {**clauses}, **others} if not others and len(clauses) == 1:
            found = clauses.get("filter", clauses.get("must"))
            if isinstance(found, list) and len(found) == 1:
                found = found[0]
            return _session_id(found) if isinstance(found, dict) and "bool" not in found else None
    return None


def _newest_first(sort: Any) -> bool | None:
    """Return True for a descending order, False for an ascending or none, None for any other sort."""
    match [sort] if isinstance(sort, dict | str) else sort:
        case []:
            return False
        case [str(name)] if name in _ORDERS:
            return False
        case [{**by}] if len(by) == 1 and next(iter(by)) in _ORDERS:
            order = next(iter(by.values()))
            order = order.get("order", "asc") if isinstance(order, dict) and order.keys() <= {"order"} else order
            return {"asc": False, "desc": True}.get(order) if isinstance(order, str) else None
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


_PAGE = 10
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
            document = search_document((), 0)  # as the cluster answers a search without hits
        if document is None:
            return _json(404, not_found(_NOT_FOUND.get(resource, "Message"), id))
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
        if resource == "memory":
            return {"success": True}
        return {"_index": "mlc-gateway", "_id": key.id, "result": "deleted"}

    async def _document(self, resource: str, session: Session, number: int, call: ExecuteCall) -> Any:
        """Return the response's body; None if there is no such message."""
        container_id = call.raw_target.split("/")[4]
        match resource:
            case "memory":
                return memory_document(session, await read_turn(self._store, session.key, 1) or ())
            case "messages":
                return await self._messages(session, call.raw_target)
            case "search":
                return await self._search(session, container_id, call.body)
            case "session":
                return session_document(container_id, session)
            case "working":
                stored = await self._message(session, number)
                return None if stored is None else working_document(container_id, session, stored)
        turn = await read_turn(self._store, session.key, number)
        if turn is None:
            return None
        if resource == "message":
            return message_document(session.key.id, turn)
        start, size = _page(call.raw_target)
        traces = trace_documents(session.key.id, turn)
        return _listed("traces", traces[start : start + size], start + size, len(traces))

    async def _messages(self, session: Session, target: str) -> dict[str, Any]:
        start, size = _page(target)
        shown: list[dict[str, Any]] = []
        held = 0
        if size and start < session.turns:
            async with aclosing(read_turns(self._store, session.key, start + 1, min(2 * size, _AT_ONCE))) as turns:
                async for turn in turns:
                    shown.append(message_document(session.key.id, turn))
                    held += sum(measure(stored.message)[0] for stored in turn)
                    if len(shown) == size or held > MOST_BYTES:
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
            return search_document((), total)
        end = min(search.start + search.size, total)
        first, before = (total - end, total - search.start) if search.newest_first else (search.start, end)
        found = await self._between(session.key, first, before)
        if search.newest_first:
            found.reverse()
        return search_document(
            (
                (message_id(session.key.id, stored.seq + 1), working_document(container_id, session, stored))
                for stored in found
            ),
            total,
        )

    async def _between(self, key: SessionKey, start: int, end: int) -> list[StoredMessage]:
        """Return the messages with a seq of `start` and more, and below `end`.

        Raises:
            InvalidInput: they are larger than 16 MiB.
        """
        found = await read_range(self._store, key, start, end, MOST_BYTES)
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


def _json(status: int, document: Any) -> Answer:
    return Answer(status, {}, msgspec.json.encode(document))
