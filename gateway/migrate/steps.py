"""The writes of an upgrade as data: each call with its undo, its start state and its end state. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from gateway.agents.documents import Document
from gateway.register.documents import TAG

MADE = "<the new connector>"
"""Placeholder in calls for the id of the new connector."""

_ML = "/_plugins/_ml/"
_TIMES = frozenset({"created_time", "last_updated_time"})
_DEPLOYED = re.compile(r"(PARTIALLY_)?DEPLOYED|DEPLOYING")

Action = Literal["undeploy", "write", "deploy", "create", "attach"]


class Call(msgspec.Struct, frozen=True):
    """One request of the REST API."""

    method: str
    path: str
    body: dict[str, Any] | None = None


class Step(msgspec.Struct, frozen=True):
    """One write, with its undo.

    place: what it changes, for `part`: ``connectors/ID``, ``models/ID/connector``, ``models/ID/connector_id``,
        ``models/ID/deployed``; "" for a new connector.
    before, after: that part in the start state and the end state. restored: that part after the undo. A connector
        never loses an added parameter, as a PUT merges parameters (source, 2.19 and 3.6).
    """

    action: Action
    call: Call
    undo: Call
    place: str = ""
    before: Any = None
    after: Any = None
    restored: Any = None


def part(place: str, document: Document) -> Any:
    """Return the part of the connector or model document that a step at `place` changes, without times."""
    match place.split("/"):
        case ["connectors", _]:
            return {name: value for name, value in document.items() if name not in _TIMES}
        case ["models", _, "connector"]:
            inner = document.get("connector") or {}
            return {name: value for name, value in inner.items() if name not in _TIMES}
        case ["models", _, "deployed"]:
            return _DEPLOYED.fullmatch(str(document.get("model_state"))) is not None
    return document.get("connector_id")


def change_inside_model(key: str, old: Document, new: Document, name: str) -> Step:
    """Return the call that changes the connector inside the model at `key`. name: the new parameter."""
    do, undo = ({"connector": body} for body in _bodies(old, new, name))
    return _write(f"{key}/connector", _ML + key, do, undo, {"connector": old}, {"connector": new}, name)


def change_standalone(key: str, deployed: Sequence[str], old: Document, new: Document, name: str) -> Iterator[Step]:
    """Yield the calls that change the connector at `key`. deployed: those of its models that are."""
    yield from (_deployment("undeploy", model) for model in deployed)
    yield _write(key, _ML + key, *_bodies(old, new, name), old, new, name)
    yield from (_deployment("deploy", model) for model in deployed)


def _bodies(old: Document, new: Document, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the bodies of the PUT that makes the change and of the one that undoes it."""
    do = {"parameters": {name: new["parameters"][name]}, "actions": new["actions"]}
    undo = {"actions": old["actions"], **({"parameters": old["parameters"]} if old.get("parameters") else {})}
    return do, undo


def _write(
    place: str, path: str, do: dict[str, Any], undo: dict[str, Any], old: Document, new: Document, name: str
) -> Step:
    before, after = part(place, old), part(place, new)
    restored = {**before, "parameters": {**(before.get("parameters") or {}), name: after["parameters"][name]}}
    return Step("write", Call("PUT", path, do), Call("PUT", path, undo), place, before, after, restored)


def _deployment(action: Literal["undeploy", "deploy"], model: str) -> Step:
    calls = {name: Call("POST", f"{_ML}models/{model}/_{name}") for name in ("undeploy", "deploy")}
    wanted = action == "deploy"
    undo = calls["undeploy" if wanted else "deploy"]
    return Step(action, calls[action], undo, f"models/{model}/deployed", not wanted, wanted, not wanted)


def swap(old_id: str, model: str, new: Document, tag: str) -> Iterator[Step]:
    """Yield the calls that create a new connector (without its credential) and make the model use it."""
    copied = ("name", "version", "protocol", "parameters", "actions", "client_config", "backend_roles")
    body = {name: new[name] for name in copied if new.get(name) is not None}
    body["description"] = f"{new.get('description', '')} {marker(tag)}".strip()
    if new.get("access"):
        body["access_mode"] = str(new["access"]).lower()
    create = Call("POST", f"{_ML}connectors/_create", body)
    yield Step("create", create, Call("DELETE", f"{_ML}connectors/{MADE}"))
    path = f"{_ML}models/{model}"
    do, undo = Call("PUT", path, {"connector_id": MADE}), Call("PUT", path, {"connector_id": old_id})
    yield Step("attach", do, undo, f"models/{model}/connector_id", old_id, MADE, old_id)


def marker(tag: str) -> str:
    """Return the end of the description of a connector that an upgrade creates."""
    return f"{TAG} {tag}"
