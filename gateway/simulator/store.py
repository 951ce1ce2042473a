"""Documents by id, and what `_search` finds of them: a write some time later than GET does."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from gateway.simulator.errors import Json, not_found
from gateway.simulator.fields import Document
from gateway.simulator.name_rules import check_words
from gateway.simulator.query import matcher
from gateway.simulator.settings import Settings

NODE = "node-1-of-the-simulator"
INDEX = {
    "agent": ".plugins-ml-agent",
    "model": ".plugins-ml-model",
    "model_group": ".plugins-ml-model-group",
    "connector": ".plugins-ml-connector",
}
_IN_MESSAGE = 10


class _Write(NamedTuple):
    """A recent write that `_search` may not find yet. before: the document it finds instead, None for none."""

    time: float
    kind: str
    id: str
    before: Document | None


class Store:
    """The documents of a cluster, by kind and id, and their indices.

    ``_search`` finds a write after `refresh_seconds`, GET at once. `clock` is the time for that.
    """

    def __init__(self, modern: bool, settings: Settings | None = None, refresh_seconds: float = 0.0) -> None:
        self.modern = modern
        self.settings = settings or Settings(modern)
        self.refresh_seconds = refresh_seconds
        self.clock: Callable[[], float] = time.monotonic
        self.connectors: dict[str, Json] = {}
        self.models: dict[str, Json] = {}
        self.groups: dict[str, Json] = {}
        self.agents: dict[str, Json] = {}
        self._fresh: list[_Write] = []
        self._written_so_far = dict.fromkeys(INDEX, 0)
        self._numbers: dict[tuple[str, str], int] = {}

    def searchable(self, kind: str) -> dict[str, Document]:
        """Return the documents of a kind as ``_search`` finds them now, by id: without credentials."""
        seen = {name: self._document(kind, name) for name in self._all_of(kind)}
        horizon = self.clock() - self.refresh_seconds
        self._fresh = [write for write in self._fresh if write.time > horizon]
        for write in reversed(self._fresh):
            if write.kind == kind and write.before is not None:
                seen[write.id] = write.before
            elif write.kind == kind:
                seen.pop(write.id, None)
        return deepcopy(seen)

    def current(self, kind: str) -> dict[str, Json]:
        """Return the documents of a kind as GET shows them now, by id."""
        return {name: self._shown(kind, name) for name in self._all_of(kind)}

    def millis(self) -> int:
        """Return the time as documents carry it."""
        return time.time_ns() // 1_000_000

    def _all_of(self, kind: str) -> dict[str, Json]:
        found = {"connector": self.connectors, "model": self.models, "model_group": self.groups, "agent": self.agents}
        return found[kind]

    def _shown(self, kind: str, name: str) -> Json:
        """Return a document as GET shows it."""
        return self._all_of(kind)[name]

    def _writing(self, kind: str, name: str) -> None:
        """Record that a document is about to change."""
        if self.refresh_seconds > 0:
            before = deepcopy(self._document(kind, name)) if name in self._all_of(kind) else None
            self._fresh.append(_Write(self.clock(), kind, name, before))
        self._count_write(kind, name)

    def _refresh(self, kind: str) -> None:
        """Let `_search` find all writes of a kind."""
        self._fresh = [write for write in self._fresh if write.kind != kind]

    def _count_write(self, kind: str, name: str) -> None:
        """Give the document the next sequence number of its index."""
        self._numbers[kind, name] = self._written_so_far[kind]
        self._written_so_far[kind] += 1

    def _document(self, kind: str, name: str) -> Document:
        if (kind, name) not in self._numbers:  # added without the API
            self._count_write(kind, name)
        return Document(kind, name, self._shown(kind, name), self._numbers[kind, name])

    def _found_by(self, kind: str, query: Json, among: Collection[str] | None = None) -> list[str]:
        """Return the ids that a search of the cluster's own finds, `among` some. It is as late as any search."""
        wanted = matcher(query)
        found = [one.id for one in self.searchable(kind).values() if wanted(one)]
        return [name for name in found if among is None or name in among][:_IN_MESSAGE]

    def _check_words(self, body: Mapping[str, Any], name: str, description: str) -> None:
        if self.modern:
            check_words(body, name, description)

    def _find(self, found: dict[str, Json], what: str, given: str) -> Json:
        if given not in found:
            raise not_found(what, given)
        return found[given]

    def _delete(self, kind: str, name: str) -> Json:
        self._writing(kind, name)
        known = self._all_of(kind).pop(name, None) is not None
        self._refresh(kind)
        return {**self._written(kind, name, "deleted" if known else "not_found"), "forced_refresh": True}

    def _written(self, kind: str, name: str, result: str) -> Json:
        shards = {"total": 1, "successful": 1, "failed": 0}
        ids = {"_index": INDEX[kind], "_id": name, "_version": 2, "_primary_term": 1}
        ids["_seq_no"] = self._numbers[kind, name]
        refreshed = {"forced_refresh": True} if self.modern else {}
        return {**ids, "result": result, **refreshed, "_shards": shards}


def without_credential(document: Json) -> Json:
    """Return a connector as GET shows it."""
    return {name: value for name, value in document.items() if name != "credential"}
