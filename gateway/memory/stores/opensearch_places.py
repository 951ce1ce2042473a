"""Where messages are written: a memory container, or the gateway's own index."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.config.memory import OpenSearchStore as Settings
from gateway.memory.store import StoreUnavailable
from gateway.memory.stores.opensearch_cluster import Cluster, ClusterError
from gateway.memory.stores.opensearch_container import (
    ContainerMessages,
    container_exists,
    delete_container,
    lacks_containers,
    make_container,
)
from gateway.memory.stores.opensearch_index import INDEX, IndexMessages, Messages, make_indices
from gateway.observe.logs import Logger

_CONTAINERS_SINCE = (3, 3)
_CLAIM = "container"
"""Id of the document that names the container, so that all gateways use the same one."""


class Places:
    """The places of a cluster. sessions: the index of heads and records; it also names the container."""

    def __init__(self, cluster: Cluster, settings: Settings, log: Logger) -> None:
        self.sessions = f"{settings.prefix}-memory-sessions"
        self._messages = f"{settings.prefix}-memory-messages"
        self._cluster = cluster
        self._settings = settings
        self._log = log

    async def choose(self) -> Messages:
        """Return the place for new messages, by `kind` and what the cluster has. Make the indices and the container.

        Raises:
            StoreUnavailable: the cluster has not what `kind` needs.
        """
        await make_indices(self._cluster, self.sessions, self._messages)
        kind = self._settings.kind
        if kind == "index" or (kind == "auto" and await self._version() < _CONTAINERS_SINCE):
            return self.at(INDEX)
        try:
            return self.at(await self._container())
        except ClusterError as error:
            if kind == "container":
                raise StoreUnavailable(
                    f"{error}. `memory.opensearch.kind: container` needs ML Commons 3.3 or later with "
                    "`plugins.ml_commons.agentic_memory_enabled`; `index` needs neither"
                ) from None
            if not lacks_containers(error):
                raise
            self._log.warning("memory kept in index", reason=str(error))
            return self.at(INDEX)

    def at(self, place: str) -> Messages:
        """Return the place that a record names."""
        if place == INDEX:
            return IndexMessages(self._cluster, self._messages)
        return ContainerMessages(self._cluster, place)

    async def all(self) -> set[str]:
        """Return the places where messages may be."""
        claimed = await self._claimed()
        return {INDEX, claimed} if claimed else {INDEX}

    async def _version(self) -> tuple[int, ...]:
        """Return the cluster's version, such as (3, 6, 0)."""
        answer = await self._cluster.call("GET", "/")
        try:
            number = answer["version"]["number"]
            return tuple(int(part) for part in number.split("-")[0].split("."))
        except (KeyError, TypeError, AttributeError, ValueError):
            reason = f"{self._cluster.url} does not say its version: name the `kind` in `memory.opensearch`"
            raise StoreUnavailable(reason) from None

    async def _container(self) -> str:
        """Return the id of the gateways' container; make it if there is none."""
        claim = await self._claim()
        if claim and await container_exists(self._cluster, _container_in(claim)):
            return _container_in(claim)
        made = await make_container(self._cluster, self._settings.prefix)
        place = {"_index": self.sessions, "_id": _CLAIM}
        action: dict[str, Any] = {"create": place}
        if claim:
            action = {"index": {**place, "if_seq_no": claim["_seq_no"], "if_primary_term": claim["_primary_term"]}}
        [status] = await self._cluster.write([(action, msgspec.json.encode({"kind": _CLAIM, "body": {"id": made}}))])
        if status == 409:  # another gateway was faster
            await delete_container(self._cluster, made)
            made = await self._claimed() or made
        return made

    async def _claimed(self) -> str:
        """Return the id of the container that the gateways use, "" if they use none."""
        claim = await self._claim()
        return _container_in(claim) if claim else ""

    async def _claim(self) -> dict[str, Any] | None:
        """Return the document that names the container, None if there is none."""
        return (await self._cluster.get_documents(self.sessions, [_CLAIM])).get(_CLAIM)


def _container_in(claim: dict[str, Any]) -> str:
    return str(claim["_source"]["body"]["id"])
