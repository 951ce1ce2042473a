"""Marks of ids: clients see an id of a cluster's memory as ``gwr-MARK-ID`` if not the route's own agent gave it.

So every gateway finds the target of a conversation by its id, without a store. The cluster never sees a mark. Two
answer stages put it before the ids of a target's cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from typing_extensions import override

from gateway.memory.model import PREFIX as SESSION
from gateway.mlcommons.memory_form import show_original_json
from gateway.offload import run_here_if
from gateway.ports import Answer, AnswerStage

PREFIX = "gwr-"
_MARKED = re.compile(r"gwr-([0-9a-f]{8})-([!-~]+)")
_ID = rb"gwr-([0-9a-f]{8})-(?!_[a-z_]+(?:/|\Z))([A-Za-z0-9_-]+)"
_PATHS = [
    (frozenset(methods.split()), re.compile(rb"/_plugins/_ml/" + path.replace(b"ID", _ID) + rb"/*"))
    for methods, path in (
        ("GET PUT DELETE", rb"memory/ID"),
        ("GET POST", rb"memory/ID/(?:messages|_search)"),
        ("GET PUT", rb"memory/message/ID"),
        ("GET", rb"memory/message/ID/traces"),
        ("GET PUT DELETE", rb"memory_containers/[A-Za-z0-9_-]+/memories/(?:sessions|working)/ID"),
        ("GET DELETE", rb"tasks/ID"),
    )
]
"""Methods and paths whose id may have a mark. Another cluster may get them with the gateway's own credentials, so there
are no others: not the path of an agent, say, nor an id that is a path itself, or the name of one (``_search``)."""
CONVERSATION = (
    "memory_id",
    "session_id",
    "parent_interaction_id",
    "parent_message_id",
    "executor_agent_memory_id",
    "executor_agent_parent_interaction_id",
    "regenerate_interaction_id",
)
"""Parameters with which a request goes on with a conversation."""
_IDS = (*CONVERSATION, "message_id", "task_id")
"""Parameters, outputs and members of the cluster that hold an id of its memory, or of a run in the background."""
_NAMED = frozenset(_IDS)

_STRING = re.compile(rb'(?<!\\)"(?=([^"\\]+)")')
"""The quote before a string of JSON. Also the one after a string, up to the next one, which is no id."""
_Members = dict[str, msgspec.Raw]


def split_mark(id: str) -> tuple[str, str]:
    """Return the mark of an id and the cluster's own id; ("", id) for one without a mark."""
    match = _MARKED.fullmatch(id)
    return (match[1], match[2]) if match else ("", id)


def marks_in(parameters: Mapping[str, Any]) -> frozenset[str]:
    """Return the marks of the ids among the parameters of a request."""
    ids = (parameters[name] for name in _IDS if isinstance(parameters.get(name), str))
    return frozenset(filter(None, (split_mark(id)[0] for id in ids)))


def parameters_of(body: bytes) -> Mapping[str, Any] | None:
    """Return the parameters of a request that breaks a rule of the gateway's, as the cluster may run it all the same.

    None: it can't be read as JSON.
    """
    document = _decode(body)
    if document is None:
        return None
    parameters = document.get("parameters") if isinstance(document, dict) else None
    return parameters if isinstance(parameters, dict) else {}


def without_marks(body: bytes) -> bytes:
    """Return a request's body with the ids in its `parameters` as their cluster knows them.

    All other values keep their bytes. body: a JSON object whose `parameters`, if any, is one.
    """
    document = msgspec.json.decode(body, type=_Members)
    parameters = msgspec.json.decode(document["parameters"], type=_Members)
    for name in _NAMED & parameters.keys():
        id = msgspec.json.decode(parameters[name])
        if isinstance(id, str):
            parameters[name] = msgspec.Raw(msgspec.json.encode(split_mark(id)[1]))
    document["parameters"] = msgspec.Raw(msgspec.json.encode(parameters))
    return msgspec.json.encode(document)


def split_path(method: str, target: bytes) -> tuple[str, bytes]:
    """Return the mark of the id in a raw path, and the path and query without it; ("", target) if there is none."""
    path, question, query = target.partition(b"?")
    for methods, pattern in _PATHS:
        match = pattern.fullmatch(path) if method in methods else None
        if match is not None:
            start = match.start(1) - len(PREFIX)
            return match[1].decode("ascii"), path[:start] + path[match.start(2) :] + question + query
    return "", target


def mark_run(body: bytes, mark: str) -> bytes:
    """Return the answer of a run, or one event of its stream, with the mark in its ids. It keeps all other bytes."""
    return _with_marks(body, _ids_of_run(_decode(body)), mark)


def mark_memory(body: bytes, mark: str) -> bytes:
    """Return the cluster's answer about a memory, its messages or a task with the mark in its ids."""
    return _with_marks(body, _ids_of_memory(_decode(body)), mark)


def _with_marks(body: bytes, ids: Iterable[str], mark: str) -> bytes:
    """Mark `ids` wherever they are a whole string of the JSON text. Within a string, a quote has a backslash."""
    found = {id.encode() for id in ids if id and not id.startswith((SESSION, PREFIX))}
    begin = f'"{PREFIX}{mark}-'.encode()
    return _STRING.sub(lambda match: begin if match[1] in found else b'"', body) if found else body


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _ids_of_run(document: Any) -> Iterator[str]:
    """Yield the ids of a whole answer (legacy, unified, or of a run in the background), or of an event's data."""
    if not isinstance(document, dict):
        return
    for part in (document, document.get("response")):
        yield from _own_ids(part)
        for result in _dicts(part.get("inference_results")) if isinstance(part, dict) else ():
            for output in _dicts(result.get("output")):
                if output.get("name") in _NAMED and isinstance(output.get("result"), str):
                    yield output["result"]


def _ids_of_memory(document: Any) -> Iterator[str]:
    """Yield the ids of a memory, a list of memories or messages, the hits of a search, or a task."""
    yield from _ids_of_run(document)
    if isinstance(document, dict):
        for value in document.values():
            for entry in _dicts(value):
                yield from _own_ids(entry)
        hits = document.get("hits")
        for hit in _dicts(hits.get("hits")) if isinstance(hits, dict) else ():
            yield hit["_id"] if isinstance(hit.get("_id"), str) else ""
            yield from _own_ids(hit.get("_source"))


def _own_ids(members: Any) -> Iterator[str]:
    if isinstance(members, dict):
        for holder in (members, members.get("namespace")):  # that of a memory container's document
            if isinstance(holder, dict):
                yield from (holder[name] for name in _IDS if isinstance(holder.get(name), str))


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


_LONGEST = 16 * 1024 * 1024


class MarkedStream:
    """An event stream whose ids get the mark, line by line. A line of more than 16 MiB is sent as it comes."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> bytes:
        """Return what is sent in place of a piece: the lines that it ends."""
        end = piece.rfind(b"\n") + 1
        if not end and self._size + len(piece) <= _LONGEST:
            self._rest.append(piece)
            self._size += len(piece)
            return b""
        end = end or len(piece)
        lines = b"".join((*self._rest, piece[:end]))
        self._rest = [piece[end:]]
        self._size = len(piece) - end
        return b"".join(map(self._marked, lines.splitlines(keepends=True)))

    def end(self) -> bytes:
        """Return the last line, if no newline ends it."""
        rest, self._rest = b"".join(self._rest), []
        return self._marked(rest)

    def _marked(self, line: bytes) -> bytes:
        if not line.startswith(b"data:") or b"_id" not in line:
            return line
        data = line[5:].strip()
        return line.replace(data, mark_run(data, self._mark), 1)


_SMALL = 64 * 1024
_READABLE = 1 << 20


class RunMarks(AnswerStage):
    """Marks the ids in the answer of a run. unmarked: called if it can't; returns the headers that say so."""

    def __init__(self, mark: str, unmarked: Callable[[], Mapping[str, str]]) -> None:
        self._mark = mark
        self._unmarked = unmarked
        self._stream = MarkedStream(mark)

    @override
    def feed(self, piece: bytes) -> bytes:
        return self._stream.feed(piece)

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        """See `AnswerStage`. An event stream that was held is marked line by line, like one that was relayed."""
        if streamed or answer.body.lstrip().startswith(b"data:"):
            return Answer(answer.status, answer.headers, self._stream.feed(answer.body) + self._stream.end())
        small = len(answer.body) <= _SMALL
        return Answer(answer.status, answer.headers, await run_here_if(small, mark_run, answer.body, self._mark))

    def leave(self) -> Mapping[str, str]:
        """See `AnswerStage`. The ids of an answer that can't be held stay without marks, so they lead nowhere."""
        return self._unmarked()


class MemoryMarks(AnswerStage):
    """Marks the ids in an answer about a memory, its messages or a task, and shows its turns as they were written.

    unmarked: see `RunMarks`. readable: called if it shows turns (`memory.readable`), returns the headers to add; None
    to leave them as they are.
    """

    def __init__(
        self,
        mark: str,
        unmarked: Callable[[], Mapping[str, str]],
        readable: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self._mark = mark
        self._unmarked = unmarked
        self._readable = readable

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        """See `AnswerStage`. As in a `MemoryRead`, a large answer keeps the gateway's form."""
        small = len(answer.body) <= _SMALL
        body = shown = await run_here_if(small, mark_memory, answer.body, self._mark)
        if self._readable is not None and answer.status == 200 and len(body) <= _READABLE:
            shown = show_original_json(body)
        added = self._readable() if self._readable is not None and shown != body else {}
        return Answer(answer.status, {**answer.headers, **added}, shown)

    def leave(self) -> Mapping[str, str]:
        """See `AnswerStage`, and `RunMarks`."""
        return self._unmarked()
