"""The documents of ML Commons' memory APIs for sessions of the gateway: plain values in, plain values out.

A session is a memory of the conversation API, whose messages are the session's turns: question and answer as text, and
all messages of the turn, in Strands' form, in ``additional_info.messages``. Tool calls are the turn's traces.
In the API of memory containers (OpenSearch 3.3 and later), a session is a session and each message a working memory.

The cluster's documents are in docs/evidence/facts.md, "Answers and memory" and "Memory containers".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from gateway.memory.model import PREFIX, Block, Message, Session, StoredMessage
from gateway.memory.owner import message_id
from gateway.memory.structured import structured

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
_LARGEST = 10_000
"""Largest window of a search (`index.max_result_window`)."""


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
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
