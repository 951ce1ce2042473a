"""Model groups, and what happens to them when models are registered at the same time.

A registration reads its model's group, and later writes the group's next version with the sequence number that it read.
Of several at once in one group only the first succeeds. A name without a group that a search can find gets a group of
its own (recorded: 2.19.0 `35`; the status of 3.x and the limit of tasks were tried on 3.6.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.simulator.errors import Answer, Json, RestFailure

INDEX_NAME = ".plugins-ml-model-group"
MAX_TASKS = 10
"""Registrations that may run at once: `plugins.ml_commons.max_register_model_tasks_per_node`."""


class GroupRead(NamedTuple):
    """The group that a registration has read. id: "" if there is none yet. number: its sequence number."""

    id: str
    number: int


def group_document(body: Mapping[str, Any], stamp: int) -> Json:
    """Return a new group as it is stored. body: that of ``model_groups/_register``, or of its first model."""
    described = {name: body[name] for name in ("name", "description") if body.get(name) is not None}
    return {**described, "latest_version": 0, "access": "public", "created_time": stamp, "last_updated_time": stamp}


def name_taken(group_id: str) -> RestFailure:
    """Return the 400 for a group whose name another group has."""
    reason = f"The name you provided is already being used by a model group with ID: {group_id}."
    return RestFailure(400, "illegal_argument_exception", reason)


def no_group(group_id: str) -> RestFailure:
    """Return the 404 for a group that is not there."""
    reason = f"Failed to find model group with the provided model group id: {group_id}"
    return RestFailure(404, "status_exception", reason)


def has_models() -> RestFailure:
    """Return the 409 for the deletion of a group that is not empty."""
    return RestFailure(409, "status_exception", "Cannot delete the model group when it has associated model versions")


def too_many_tasks() -> RestFailure:
    """Return the 500 for one registration more than `MAX_TASKS`."""
    return RestFailure(500, "m_l_limit_exceeded_exception", "exceed max running task limit")


def version_conflict(read: GroupRead, number: int, modern: bool) -> Answer:
    """Return the failure of a registration whose group has changed since it read it. number: the group's now."""
    numbers = f"required seqNo [{read.number}], primary term [1]. current document has seqNo [{number}]"
    cause = {
        "type": "version_conflict_engine_exception",
        "reason": f"[{read.id}]: version conflict, {numbers} and primary term [1]",
        "index": INDEX_NAME,
        "shard": "0",
        "index_uuid": "index-uuid-of-simulator",
    }
    status = 409 if modern else 500
    reason = f"Failed to update data object in index {INDEX_NAME}"
    if modern:
        reason = f"Document version conflict updating {read.id} in index {INDEX_NAME}"
    error = {"root_cause": [cause], "type": "status_exception", "reason": reason, "caused_by": cause}
    return Answer(status, {"error": error, "status": status})
