"""Where messages are written: a memory container, or the gateway's own index."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from gateway.config.memory import OpenSearchStore as Settings
from gateway.memory.store import StoreError, StoreUnavailable
from gateway.memory.stores.opensearch_cluster import BLOCKED, Cluster, ClusterError
from gateway.memory.stores.opensearch_container import (
    ContainerMessages,
    container_exists,
    delete_container,
    is_unfit,
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
        self._unfit_version = ""
        """The version of the cluster whose containers were tried, and don't serve."""
        self._proved = ("", "")
        """The container that serves, and the version of the cluster on which it was proved."""

    async def choose(self) -> Messages:
        """Return the place for new messages, by `kind` and what the cluster has. Make the indices and the container.

        Raises:
            StoreUnavailable: the cluster has not what `kind` needs.
        """
        await make_indices(self._cluster, self.sessions, self._messages)
        kind = self._settings.kind
        if kind == "index":
            return self.at(INDEX)
        version = await self._version()
        if kind == "auto" and not self._may_have_containers(version):
            return self.at(INDEX)
        try:
            return self.at(await self._container(version))
        except ClusterError as error:
            if kind == "container":
                raise StoreUnavailable(
                    f"{error}. `memory.opensearch.kind: container` needs ML Commons 3.3 or later with "
                    "`plugins.ml_commons.agentic_memory_enabled`, and containers that can be searched (docs/operate/"
                    "memory.md); `index` needs neither"
                ) from None
            if not is_unfit(error):
                raise
            if not lacks_containers(error):  # which an operator may change
                self._unfit_version = version
            self._log.warning("memory kept in index", reason=str(error))
            return self.at(INDEX)

    def at(self, place: str) -> Messages:
        """Return the place that a record names."""
        if place == INDEX:
            return IndexMessages(self._cluster, self._messages)
        return ContainerMessages(self._cluster, place)

    def is_unfit(self, place: str) -> bool:
        """Return whether the place is a container on a cluster whose containers were tried, and don't serve."""
        return place != INDEX and bool(self._unfit_version)

    async def all(self) -> set[str]:
        """Return the places where messages may be."""
        claimed = await self._claimed()
        return {INDEX, claimed} if claimed else {INDEX}

    def _may_have_containers(self, version: str) -> bool:
        return _numbers(version, self._cluster.url) >= _CONTAINERS_SINCE and version != self._unfit_version

    async def _version(self) -> str:
        """Return the cluster's version, such as ``3.6.0``; "" if it does not say."""
        answer = await self._cluster.call("GET", "/")
        version = answer.get("version")
        return str(version.get("number", "")) if isinstance(version, dict) else ""

    async def _container(self, version: str) -> str:
        """Return the id of the gateways' container; make it if there is none.

        It is proved by the first use of this store, and again on another version of the cluster.
        """
        claim = await self._claim()
        container = _container_in(claim) if claim else ""
        is_made = not container or not await container_exists(self._cluster, container)
        if not is_made and (container, version) == self._proved:
            return container
        if is_made:
            container = await make_container(self._cluster, self._settings.prefix)
        try:
            await ContainerMessages(self._cluster, container).prove()
        except StoreError as error:
            if not is_made and isinstance(error, ClusterError) and error.type == BLOCKED:
                return container  # it takes no writes at present, and its sessions can be read
            if is_made:
                with contextlib.suppress(StoreError):  # the first error counts
                    await delete_container(self._cluster, container)
            raise
        if is_made and not await self._write_claim(container, claim):  # another gateway was faster
            await delete_container(self._cluster, container)
            return await self._claimed() or container
        self._proved = (container, version)
        return container

    async def _write_claim(self, container: str, earlier: dict[str, Any] | None) -> bool:
        """Name the gateways' container. Return False if another gateway named one since `earlier` was read."""
        place = {"_index": self.sessions, "_id": _CLAIM}
        action: dict[str, Any] = {"create": place}
        if earlier:
            condition = {"if_seq_no": earlier["_seq_no"], "if_primary_term": earlier["_primary_term"]}
            action = {"index": {**place, **condition}}
        claim = msgspec.json.encode({"kind": _CLAIM, "body": {"id": container}})
        [status] = await self._cluster.write([(action, claim)])
        return status != 409

    async def _claimed(self) -> str:
        """Return the id of the container that the gateways use, "" if they use none."""
        claim = await self._claim()
        return _container_in(claim) if claim else ""

    async def _claim(self) -> dict[str, Any] | None:
        """Return the document that names the container, None if there is none."""
        return (await self._cluster.get_documents(self.sessions, [_CLAIM])).get(_CLAIM)


def _container_in(claim: dict[str, Any]) -> str:
    return str(claim["_source"]["body"]["id"])


def _numbers(version: str, url: str) -> tuple[int, ...]:
    """Return a version's numbers: (3, 6, 0).

    Raises:
        StoreUnavailable: it has none.
    """
    try:
        return tuple(int(part) for part in version.split("-")[0].split("."))
    except ValueError:
        raise StoreUnavailable(f"{url} does not say its version: name the `kind` in `memory.opensearch`") from None
