"""What an agent or a model names on its cluster: agents, models, connectors, indices and other ids. Pure.

A parameter's name says what its value is: `model_id` and `embedding_model_id` name models, `index` and `index_name`
indices. Values that are filled in at run time (`${…}`), and patterns of indices, name nothing. JSON inside a text is
searched for such members, too: that is how the `input` of a tool and `mcp_connectors` are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from gateway.agents.documents import Document

Named = Literal["agents", "models", "connectors", "indices", "ids"]

OWN_PREFIX = "mlc_gateway"
"""How the names of parameters begin that the gateway writes into agents."""
EXECUTOR = "executor_agent_id"
"""The parameter of a planner that names the agent which runs its steps."""
_MEMBERS = ("llm", "tools", "parameters", "memory", "guardrails")
"""Members of agents and models that name other documents. An agent's `model` names the LLM as its provider does."""
_KINDS: tuple[tuple[re.Pattern[str], Named], ...] = (
    (re.compile(r"(\w*_)?agent_id"), "agents"),
    (re.compile(r"(\w*_)?model_id"), "models"),
    (re.compile(r"(\w*_)?connector_id"), "connectors"),
    (re.compile(r"index|index_name|indices|\w+_index"), "indices"),
    (re.compile(r"\w+_id"), "ids"),
)
_IN_TEXT = re.compile(
    r'\\*"(?P<name>(?:\w*_)?(?:agent|model|connector)_id|index|index_name)\\*"\s*:\s*\\*"(?P<id>[^"\\${}]+)\\*"'
)
_PLACEHOLDER = "${"


class Reference(NamedTuple):
    """What a document names. place: of it, such as ``agents/ID.tools[0].parameters.model_id``."""

    kind: Named
    id: str
    place: str


def references(place: str, document: Document) -> Iterator[Reference]:
    """Yield what an agent's or a model's document names, in its order. place: of the document, ``agents/ID``."""
    for member in _MEMBERS:
        for path, name, text in _texts(document.get(member), f"{place}.{member}", member):
            if not name.startswith(OWN_PREFIX):
                yield from (Reference(kind, id_, path) for kind, id_ in _named(name, text))


def with_ids(document: Document, new_ids: Mapping[tuple[Named, str], str]) -> dict[str, Any]:
    """Return a copy of an agent's or a model's document in which other ids are in place of those it names.

    new_ids: kind and old id → new id. Ids that are not in it stay.
    """

    def change(name: str, text: str) -> str:
        for kind, id_ in dict.fromkeys(_named(name, text)):
            new = new_ids.get((kind, id_), id_)
            if new != id_:
                text = re.sub(rf"(?<![\w.-]){re.escape(id_)}(?![\w.-])", lambda _, new=new: new, text)  # type: ignore[misc]
        return text

    return {name: _changed(value, name, change) if name in _MEMBERS else value for name, value in document.items()}


def kind_of(name: str) -> Named | None:
    """Return what the value of a parameter of this name is; None: nothing that is on the cluster."""
    last = name.rpartition(".")[2]  # `<tool>.model_id` is a parameter of that tool
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(last)), None)


def _named(name: str, text: str) -> Iterator[tuple[Named, str]]:
    """Yield kind and id of what a parameter's text names."""
    kind = kind_of(name)
    if kind == "indices":
        yield from (("indices", index) for index in _index_names(text))
    elif kind is not None:
        if text and _PLACEHOLDER not in text:
            yield kind, text
    else:
        for found in _IN_TEXT.finditer(text):
            inner = kind_of(found["name"])
            if inner == "indices":
                yield from (("indices", index) for index in _index_names(found["id"]))
            elif inner is not None:
                yield inner, found["id"]


def _index_names(text: str) -> Iterator[str]:
    """Yield the indices in a name, a list of names with commas, or a JSON list. Patterns are left out."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text.split(",")
    names = [str(name).strip() for name in value] if isinstance(value, list) else [text]
    yield from (name for name in names if name and _PLACEHOLDER not in name and not re.search(r'[*\s"{}]|^_', name))


def _texts(value: Any, path: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the parameter's name and the text of each text in JSON data."""
    match value:
        case str():
            yield path, name, value
        case Mapping():
            for member, inner in value.items():
                yield from _texts(inner, f"{path}.{member}", str(member))
        case list():
            for index, inner in enumerate(value):
                yield from _texts(inner, f"{path}[{index}]", name)


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in JSON data."""
    match value:
        case str():
            yield value
        case Mapping():
            for member in value.values():
                yield from texts_in(member)
        case list():
            for item in value:
                yield from texts_in(item)


def _changed(value: Any, name: str, change: Callable[[str, str], str]) -> Any:
    match value:
        case str():
            return value if name.startswith(OWN_PREFIX) else change(name, value)
        case Mapping():
            return {member: _changed(inner, str(member), change) for member, inner in value.items()}
        case list():
            return [_changed(inner, name, change) for inner in value]
    return value
