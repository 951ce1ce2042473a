"""The writes of an upgrade as data: each call with its undo, its start state and its end state. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gateway.agents.documents import Document
from gateway.register.documents import TAG

MADE = "<the new connector>"
"""Placeholder in calls for the id of the new connector."""

MOVED = "mlc_gateway_moved_from"
"""The parameter of an agent's copy that holds its mark."""

_ML = "/_plugins/_ml/"
_MARK = re.compile(rf"(?:^|\W){TAG} ([0-9a-f]{{32}})$")
_CREDENTIAL = re.compile(r"\$\{credential\.([^}:]+)")
_TIMES = frozenset({"created_time", "last_updated_time"})
_DEPLOYED = re.compile(r"(PARTIALLY_)?DEPLOYED|DEPLOYING")

Kind = Literal["agents", "models", "model_groups", "connectors"]
Action = Literal["write", "create", "attach"]


class Call(msgspec.Struct, frozen=True):
    """One request of the REST API."""

    method: str
    path: str
    body: dict[str, Any] | None = None


class Step(msgspec.Struct, frozen=True):
    """One write, with its undo.

    place: what it changes, for `part`: ``connectors/ID``, ``models/ID/connector``, ``models/ID/connector_id``; "" for
        a new connector.
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
    """Return the part of the connector or model document at `place`, without times.

    ``models/ID/deployed`` is True if the document says that the model is deployed.
    """
    match place.split("/"):
        case ["connectors", _]:
            return {name: value for name, value in document.items() if name not in _TIMES}
        case ["models", _, "connector"]:
            inner = document.get("connector") or {}
            return {name: value for name, value in inner.items() if name not in _TIMES}
        case ["models", _, "deployed"]:
            return is_deployed(document)
    return document.get("connector_id")


def is_deployed(model: Document) -> bool:
    """Return True if the model's document says that it is deployed. Whether it is loaded, only its profile says."""
    return _DEPLOYED.fullmatch(str(model.get("model_state"))) is not None


def change_inside_model(key: str, old: Document, new: Document, added: Iterable[str]) -> Step:
    """Return the call that changes the connector inside the model at `key`. added: the new parameters."""
    do, undo = ({"connector": body} for body in _bodies(old, new, added))
    return _write(f"{key}/connector", _ML + key, do, undo, {"connector": old}, {"connector": new}, added)


def change_standalone(key: str, old: Document, new: Document, added: Iterable[str]) -> Step:
    """Return the call that changes the connector at `key`. added: the new parameters."""
    return _write(key, _ML + key, *_bodies(old, new, added), old, new, added)


def _bodies(old: Document, new: Document, added: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the bodies of the PUT that makes the change and of the one that undoes it."""
    do = {"parameters": {name: new["parameters"][name] for name in added}, "actions": new["actions"]}
    undo = {"actions": old["actions"], **({"parameters": old["parameters"]} if old.get("parameters") else {})}
    return do, undo


def _write(
    place: str, path: str, do: dict[str, Any], undo: dict[str, Any], old: Document, new: Document, added: Iterable[str]
) -> Step:
    before, after = part(place, old), part(place, new)
    left = {name: after["parameters"][name] for name in added}
    restored = {**before, "parameters": {**(before.get("parameters") or {}), **left}}
    return Step("write", Call("PUT", path, do), Call("PUT", path, undo), place, before, after, restored)


def swap(old_id: str, model: str, new: Document, tag: str) -> Iterator[Step]:
    """Yield the calls that create a new connector (without its credential) and make the model use it."""
    yield Step("create", create_connector(new, tag), Call("DELETE", f"{_ML}connectors/{MADE}"))
    place = f"models/{model}/connector_id"
    yield Step("attach", attach(model, MADE), attach(model, old_id), place, old_id, MADE, old_id)


def create_connector(document: Document, tag: str) -> Call:
    """Return the call that creates a connector like `document`, marked with `tag` and without a credential."""
    body = connector_body(document)
    body["description"] = f"{document.get('description', '')} {marker(tag)}".strip()
    if document.get("access"):
        body["access_mode"] = str(document["access"]).lower()
    if document.get("backend_roles") is not None:
        body["backend_roles"] = document["backend_roles"]
    return Call("POST", f"{_ML}connectors/_create", body)


def connector_body(document: Document) -> dict[str, Any]:
    """Return the members that make a connector like `document`, without description, access and credential."""
    copied = ("name", "version", "protocol", "url", "headers", "parameters", "actions", "client_config")
    return {name: document[name] for name in copied if document.get(name) is not None}


def attach(model: str, connector: str) -> Call:
    """Return the call that makes a model use a standalone connector."""
    return Call("PUT", f"{_ML}models/{model}", {"connector_id": connector})


def undeploy(models: Iterable[str]) -> Call:
    """Return the call that unloads models. The next request that uses one loads it again."""
    return Call("POST", f"{_ML}models/_undeploy", {"model_ids": list(models)})


def deploy(model: str) -> Call:
    """Return the call that deploys a model."""
    return Call("POST", f"{_ML}models/{model}/_deploy")


def all_calls(steps: Sequence[Step], models: Sequence[str], deployed: Iterable[str]) -> Iterator[Call]:
    """Yield the calls of an upgrade in their order: those of its steps, and those that make them take effect.

    models: those that the upgrade affects. deployed: those of them whose documents say so.
    """
    for step in steps:
        if step.place.startswith("connectors/"):
            yield undeploy(models)
        yield step.call
    yield undeploy(models)
    yield from map(deploy, deployed)


def marker(tag: str) -> str:
    """Return the end of the description of a connector that an upgrade creates, and of what a move copies."""
    return f"{TAG} {tag}"


def mark_of(kind: str, document: Document) -> str:
    """Return the mark of a document, "" without one."""
    if kind == "agents":
        parameters = document.get("parameters")
        return str(parameters.get(MOVED) or "") if isinstance(parameters, Mapping) else ""
    match = _MARK.search(str(document.get("description") or ""))
    return match[1] if match else ""


def without_mark(description: str) -> str:
    """Return a description without the mark at its end."""
    return _MARK.sub("", description).rstrip(" ,")


def credential_names(connector: Document) -> tuple[str, ...]:
    """Return the names in a connector's credential: those its actions refer to, or those its signature needs."""
    found = dict.fromkeys(_CREDENTIAL.findall(json.dumps(connector.get("actions"))))
    if found:
        return tuple(found)
    return ("access_key", "secret_key", "session_token") if connector.get("protocol") == "aws_sigv4" else ("key",)
