"""Model groups, and what happens to them when models are registered at the same time.

A registration reads its model's group, and later writes the group's next version with the sequence number that it read.
Of several at once in one group only the first succeeds. A name without a group that a search can find gets a group of
its own (recorded: 2.19.0 `35`; the status of 3.x and the limit of tasks were tried on 3.6.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.simulator.documents import refused
from gateway.simulator.errors import Answer, Json, RestFailure
from gateway.simulator.memory import new_id
from gateway.simulator.settings import Settings
from gateway.simulator.store import INDEX, Store

MAX_TASKS = 10
"""Registrations that may run at once: `plugins.ml_commons.max_register_model_tasks_per_node`."""


class GroupRead(NamedTuple):
    """The group that a registration has read. id: "" if there is none yet. number: its sequence number."""

    id: str
    number: int


class ModelGroups(Store):
    """The model groups of a cluster."""

    def __init__(self, modern: bool, settings: Settings | None = None, refresh_seconds: float = 0.0) -> None:
        super().__init__(modern, settings, refresh_seconds)
        self._registering = 0

    def check_group(self, body: Mapping[str, Any]) -> None:
        """Check the registration of a model group."""
        if body.get("name") is None:
            raise refused("model group name is null")
        self._check_words(body, "Model group name", "Model group description")
        if taken := self._group_called(body["name"]):
            raise refused(f"The name you provided is already being used by a model group with ID: {taken}.")

    def register_group(self, body: Mapping[str, Any]) -> Json:
        """Register an empty model group. Return ``{"model_group_id": …}``."""
        return {"model_group_id": self._add_group(body), "status": "CREATED"}

    def group(self, group_id: str) -> Json:
        """Return the model group as GET shows it."""
        if group_id not in self.groups:
            raise _no_group(group_id)
        return self.groups[group_id]

    def delete_group(self, group_id: str) -> Json:
        """Remove a model group that has no models. A missing one is "not_found", with 200."""
        if self._found_by("model", {"term": {"model_group_id": group_id}}):
            reason = "Cannot delete the model group when it has associated model versions"
            raise RestFailure(409, "status_exception", reason)
        return self._delete("model_group", group_id)

    def end_model(self) -> None:
        """End what the registration of a model has begun by reading its group."""
        self._registering -= 1

    def _read_group(self, body: Mapping[str, Any]) -> GroupRead:
        """Read the group for a model's registration, which runs until `end_model`.

        Raises:
            RestFailure: 500 for a missing group, or for one registration more than `MAX_TASKS`.
        """
        group_id = body.get("model_group_id") or self._group_called(body["name"])
        if group_id and group_id not in self.groups:
            raise _empty_response(group_id)
        if self._registering == MAX_TASKS:
            if not group_id:
                self._add_group(body)
            raise RestFailure(500, "m_l_limit_exceeded_exception", "exceed max running task limit")
        self._registering += 1
        return GroupRead(group_id, self._numbers["model_group", group_id] if group_id else 0)

    def _next_version(self, body: Mapping[str, Any], read: GroupRead) -> tuple[str, int]:
        """Write the next version of the group that a model's registration has read. Return the group and the version.

        Raises:
            Answer: 409 (2.19: 500) if the group has changed since it was read; 500 if it was deleted.
        """
        group_id = read.id or self._add_group(body)
        if group_id not in self.groups:
            raise _empty_response(group_id)
        number = self._numbers["model_group", group_id]
        if read.id and number != read.number:
            raise _version_conflict(read, number, self.modern)
        self._writing("model_group", group_id)
        version = self.groups[group_id]["latest_version"] + 1
        self.groups[group_id] |= {"latest_version": version, "last_updated_time": self.millis()}
        return group_id, version

    def _group_called(self, name: str) -> str:
        """Return the id of the group with a name, as a search finds it; "" if there is none."""
        found = self.searchable("model_group").values()
        return next((document.id for document in found if document.source["name"] == name), "")

    def _add_group(self, body: Mapping[str, Any]) -> str:
        group_id, stamp = new_id(), self.millis()
        described = {name: body[name] for name in ("name", "description") if body.get(name) is not None}
        state = {"latest_version": 0, "access": "public", "created_time": stamp, "last_updated_time": stamp}
        self._writing("model_group", group_id)
        self.groups[group_id] = {**described, **state}
        return group_id


def _no_group(group_id: str) -> RestFailure:
    reason = f"Failed to find model group with the provided model group id: {group_id}"
    return RestFailure(404, "status_exception", reason)


def _empty_response(group_id: str) -> RestFailure:
    """Return the failure of a model's registration in a group that is not there (tried on 3.6.0)."""
    return RestFailure(500, "m_l_resource_not_found_exception", f"Model Group Response is empty for {group_id}")


def _version_conflict(read: GroupRead, number: int, modern: bool) -> Answer:
    """Return the failure of a registration whose group has changed since it read it. number: the group's now."""
    index = INDEX["model_group"]
    numbers = f"required seqNo [{read.number}], primary term [1]. current document has seqNo [{number}]"
    cause = {
        "type": "version_conflict_engine_exception",
        "reason": f"[{read.id}]: version conflict, {numbers} and primary term [1]",
        "index": index,
        "shard": "0",
        "index_uuid": "index-uuid-of-simulator",
    }
    reason = f"Failed to update data object in index {index}"
    if modern:
        reason = f"Document version conflict updating {read.id} in index {index}"
    status = 409 if modern else 500
    error = {"root_cause": [cause], "type": "status_exception", "reason": reason, "caused_by": cause}
    return Answer(status, {"error": error, "status": status})
