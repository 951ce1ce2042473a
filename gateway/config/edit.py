"""Edits `agents.routes` in the text of a settings file. What an edit does not name stays as it is, byte for byte.

The text is cut at the marks that PyYAML gives each node, so comments, anchors, quotes, spacing and line ends are never
written again. After each edit the whole text is read again: if it does not hold exactly the settings that were meant,
such as where an anchor is used elsewhere, the edit is refused.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import yaml

from gateway.config.schema import AgentRoute, RouteTarget
from gateway.config.yaml_text import Loader, parse_yaml

_BREAK = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]|\Z")
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
"""The anchor and the tag before a value."""
_DECIMALS = 6
"""Digits after the point that a weight keeps."""

_Change = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns the section `agents` as it is meant to be."""


class EditError(Exception):
    """The file can't be edited. The message says why, and what to do instead."""


class _Splice(NamedTuple):
    """Text to put in place of ``text[start:end]``."""

    start: int
    end: int
    text: str


def set_weights(text: str, route: str, weights: Mapping[str, float]) -> str:
    """Return the text with new weights of targets of the route of the agent `route`. Others keep theirs.

    weights: agent of the target → weight. A weight that has this value already is left as it is written.

    Raises:
        EditError: there is no such route or target in the text, or it can't be edited as a text.
    """
    place, node = _find_route(text, route)
    targets = _targets_of(text, node, place)
    splices, rest = [], dict(weights)
    for index, target in enumerate(targets.value):
        agent = _find(target, "agent")
        if agent is None or agent.value not in rest:
            continue
        weight = rest.pop(agent.value)
        current = _find(target, "weight")
        if current is not None and _is_number(current, weight):
            continue
        if text[target.start_mark.index] == "*":
            raise _shared(f"{place}.targets[{index}]")
        splices.append(_set_weight(text, target, agent, current, weight))
    if rest:
        known = ", ".join(agent.value for target in targets.value if (agent := _find(target, "agent")) is not None)
        raise EditError(f"{', '.join(rest)} is no target of the route of {route}, which has {known}")
    return _checked(text, _apply(text, splices), _on_routes(lambda all: _with_weights(all, route, weights)), route)


def put_route(text: str, route: AgentRoute) -> str:
    """Return the text with this route: in place of that of the same agent, or after the others.

    A route that is replaced loses its comments; `put_target` and `set_weights` keep them.

    Raises:
        EditError: the text can't be edited.
    """
    document = route_document(route)
    routes = _find(_find(_compose(text), "agents"), "routes")
    items = routes.value if isinstance(routes, yaml.SequenceNode) else []
    old = next((item for item in items if _agent_of(item) == route.agent), None)
    splice = _add_item(text, ("agents", "routes"), document) if old is None else _replace_item(text, old, document)
    return _checked(text, _apply(text, [splice]), _on_routes(lambda all: _put(all, document)), route.agent)


def put_target(text: str, route: str, target: RouteTarget) -> str:
    """Return the text with this target of the route of the agent `route`: in place of that of the same agent, or last.

    Raises:
        EditError: there is no such route in the text, or it can't be edited.
    """
    document = _target_document(target)
    place, node = _find_route(text, route)
    targets = _targets_of(text, node, place)
    old = next((item for item in targets.value if _agent_of(item) == target.agent), None)
    splice = _append(text, targets, document) if old is None else _replace_item(text, old, document)
    return _checked(text, _apply(text, [splice]), _on_targets(route, lambda targets: _put(targets, document)), route)


def remove_target(text: str, route: str, agent: str) -> str:
    """Return the text without a target of the route of the agent `route`, and without the comments in its lines.

    Raises:
        EditError: there is no such route or target, it is the only one, or the text can't be edited.
    """
    place, node = _find_route(text, route)
    targets = _targets_of(text, node, place)
    index = next((i for i, item in enumerate(targets.value) if _agent_of(item) == agent), None)
    if index is None:
        raise EditError(f"{agent} is no target of the route of {route}")
    if len(targets.value) == 1:
        raise EditError(f"{agent} is the only target of the route of {route}: remove the route")
    edited = _apply(text, _remove(text, node, "targets", index))
    return _checked(text, edited, _on_targets(route, lambda all: _without(all, agent)), route)


def remove_route(text: str, agent: str) -> str:
    """Return the text without the route of an agent, and without the comments in its lines.

    Raises:
        EditError: there is no such route, or the text can't be edited.
    """
    place, _ = _find_route(text, agent)
    agents = _find(_compose(text), "agents")
    edited = _apply(text, _remove(text, agents, "routes", int(place.partition("[")[2][:-1])))
    return _checked(text, edited, _on_routes(lambda all: _without(all, agent)), agent)


def replace_alias(text: str, route: AgentRoute) -> str:
    """Return the text with this route in place of the entry of `agents.aliases` for the same agent.

    Raises:
        EditError: there is no such entry, or the text can't be edited.
    """
    agents = _find(_compose(text), "agents")
    aliases = _find(agents, "aliases")
    entries = aliases.value if isinstance(aliases, yaml.MappingNode) else []
    index = next((i for i, (name, _) in enumerate(entries) if name.value == route.agent), None)
    if index is None:
        raise EditError(f"agents.aliases of the file has no entry for {route.agent}")
    for part, name in ((agents, "agents"), (aliases, "agents.aliases")):
        if text[part.start_mark.index] == "*":
            raise _shared(name)
    edited = _apply(text, _remove(text, agents, "aliases", index))
    return put_route(_checked(text, edited, lambda all: _without_alias(all, route.agent), route.agent), route)


def route_document(route: AgentRoute) -> dict[str, Any]:
    """Return a route as it is written into a file: without what has its default."""
    document = _without_defaults(route) | {"targets": list(map(_target_document, route.targets))}
    return {name: document[name] for name in ("agent", "targets", *document)}


def format_weight(weight: float) -> str:
    """Return a weight as it is written into a file: without an exponent and without zeros at the end."""
    return f"{weight:.{_DECIMALS}f}".rstrip("0").rstrip(".")


def _without_defaults(struct: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.structs.fields(struct)
    values = {field.name: getattr(struct, field.name) for field in fields}
    written = {field.name: values[field.name] for field in fields if values[field.name] != field.default}
    return {
        name: _without_defaults(value) if isinstance(value, msgspec.Struct) else value
        for name, value in written.items()
    }


def _target_document(target: RouteTarget) -> dict[str, Any]:
    document = _without_defaults(target)
    return {"agent": target.agent, **document, "weight": _number(target.weight)}


def _number(weight: float) -> int | float:
    rounded = round(float(weight), _DECIMALS)
    return int(rounded) if rounded.is_integer() else rounded


def _is_number(node: yaml.Node, weight: float) -> bool:
    try:
        return math.isclose(float(node.value), weight, abs_tol=0.1**_DECIMALS / 2)
    except (TypeError, ValueError):
        return False


class _Places(Loader):
    """Composes nodes with the marks of where they stand: those of an alias, not of its anchor."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            node = copy.copy(node)
            node.start_mark, node.end_mark = event.start_mark, event.end_mark
        return node


def _compose(text: str) -> yaml.Node | None:
    """Return the root.

    Raises:
        EditError: the text is not YAML.
    """
    try:
        root: yaml.Node | None = _Places(text).get_single_node()
    except yaml.YAMLError as error:
        raise EditError(f"the file can't be parsed: {' '.join(str(error).split())}") from None
    if root is not None and not isinstance(root, yaml.MappingNode) and text[root.start_mark.index :].strip():
        raise EditError("the file must hold a mapping of sections")
    return root


def _pair(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key and the value of a mapping; None: it has no such key of its own."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next(((name, value) for name, value in pairs if name.value == key), None)


def _find(node: yaml.Node | None, key: str) -> Any:
    pair = _pair(node, key)
    return pair[1] if pair is not None else None


def _agent_of(node: yaml.Node) -> str | None:
    value = _find(node, "agent")
    return value.value if isinstance(value, yaml.ScalarNode) else None


def _find_route(text: str, agent: str) -> tuple[str, yaml.MappingNode]:
    """Return the setting that a route is, and its node.

    Raises:
        EditError: the text has no route of this agent, or as an alias.
    """
    agents = _find(_compose(text), "agents")
    routes = _find(agents, "routes")
    for index, node in enumerate(routes.value if isinstance(routes, yaml.SequenceNode) else ()):
        if _agent_of(node) == agent:
            place = f"agents.routes[{index}]"
            for part, name in ((agents, "agents"), (routes, "agents.routes"), (node, place)):
                if text[part.start_mark.index] == "*":
                    raise _shared(name)
            return place, node
    raise EditError(f"agents.routes of the file has no route of the agent {agent}")


def _targets_of(text: str, node: yaml.Node, route: str) -> yaml.SequenceNode:
    """Return the list of targets of a route. route: its place."""
    value, place = _find(node, "targets"), f"{route}.targets"
    if not isinstance(value, yaml.SequenceNode):
        raise EditError(f"{place} comes from a merge key (<<) or is no list: write it out in the file, and try again")
    if text[value.start_mark.index] == "*":
        raise _shared(place)
    return value


def _shared(place: str) -> EditError:
    return EditError(f"{place} is an alias, whose value others share: write it out in the file, and try again")


def _set_weight(
    text: str, target: yaml.MappingNode, agent: yaml.Node, current: yaml.Node | None, weight: float
) -> _Splice:
    number = format_weight(weight)
    if current is not None:
        begin, end = current.start_mark.index, current.end_mark.index
        properties = _PROPERTIES.match(text, begin, end)
        begin = properties.end() if properties is not None else begin
        return _Splice(begin, end, number if begin < end else f" {number}")  # a space after `weight:`
    key, _ = next(pair for pair in target.value if pair[1] is agent)
    name = _quoted_like(text, key, "weight")
    if target.flow_style:
        at = agent.end_mark.index
        return _Splice(at, at, f", {name}: {number}")
    at = _line_end(text, _end(text, agent))
    return _Splice(at, at, f"{_line_break(text)}{' ' * key.start_mark.column}{name}: {number}")


def _quoted_like(text: str, key: yaml.Node, name: str) -> str:
    """Return the name of a new key, with quotes if the one beside it has some: the file may be JSON."""
    quote = text[key.start_mark.index]
    return f"{quote}{name}{quote}" if quote in "\"'" else name


def _add_item(text: str, path: Sequence[str], document: Mapping[str, Any]) -> _Splice:
    """Return the change that adds `document` to the list at `path`, which is made if the text has none."""
    node, value = _compose(text), None
    for depth, name in enumerate(path):
        pair = _pair(node, name)
        if pair is None:
            return _add_key(text, node, path[depth:], document, value)
        value, node = pair
        if text[node.start_mark.index : node.end_mark.index].startswith("*"):
            raise _shared(".".join(path[: depth + 1]))
        if isinstance(node, yaml.ScalarNode) and node.start_mark.index == node.end_mark.index:  # `agents:`
            lines = _nested(path[depth + 1 :], document, value.start_mark.column + 2)
            at = _line_end(text, value.end_mark.index)
            return _Splice(at, at, "".join(_line_break(text) + line for line in lines))
    if isinstance(node, yaml.SequenceNode) and not node.value and value is not None and _is_in_lines(text, value, node):
        lines = _nested((), document, value.start_mark.column + 2)
        colon, at = text.index(":", value.end_mark.index), _line_end(text, node.end_mark.index)
        comment = text[node.end_mark.index : at]
        return _Splice(colon + 1, at, comment + "".join(_line_break(text) + line for line in lines))
    return _append(text, node, document)


def _is_in_lines(text: str, key: yaml.Node, value: yaml.Node) -> bool:
    """Return True for ``key: []`` on lines of its own, so that items may follow as lines."""
    before = text[: key.start_mark.index]
    line = before[max(before.rfind(line_break) for line_break in "\r\n") + 1 :]
    return not line.strip() and text[key.end_mark.index : value.end_mark.index].strip(" :\r\n") == "[]"


def _add_key(
    text: str, node: yaml.Node | None, path: Sequence[str], document: Mapping[str, Any], key: yaml.Node | None
) -> _Splice:
    """Return the change that adds the keys `path` with `document` as the only item. key: that of `node`, None: root."""
    new = _line_break(text)
    if isinstance(node, yaml.MappingNode) and node.flow_style:
        at = text.index("{", node.start_mark.index) + 1
        value: Any = [document]
        for name in reversed(path):
            value = {name: value}
        return _Splice(at, at, _flow(value)[1:-1] + (", " if node.value else ""))
    if key is None or not isinstance(node, yaml.MappingNode):  # a section at the end, after all comments
        missing = new if text and not text.endswith(("\r", "\n")) else ""
        return _Splice(len(text), len(text), missing + "".join(line + new for line in _nested(path, document, 0)))
    at = _line_end(text, key.end_mark.index)  # as the first key, as comments may follow the last one
    lines = _nested(path, document, node.value[0][0].start_mark.column)
    return _Splice(at, at, "".join(new + line for line in lines))


def _append(text: str, sequence: yaml.Node | None, document: Mapping[str, Any]) -> _Splice:
    """Return the change that adds an item to the end of a list."""
    if not isinstance(sequence, yaml.SequenceNode):
        raise EditError("agents.routes of the file is no list")
    if sequence.flow_style:
        items = sequence.value
        at = _end(text, items[-1]) if items else text.index("[", sequence.start_mark.index) + 1
        return _Splice(at, at, (", " if items else "") + _flow(document))
    dash = sequence.start_mark.index
    if text[dash] != "-":  # an anchor stands there
        dash = text.rindex("-", dash, sequence.value[0].start_mark.index)
    column = dash - max(text.rfind(line_break, 0, dash) for line_break in "\r\n") - 1
    at = _line_end(text, _end(text, sequence))
    comment = re.compile(rf"(?:\r\n|\r|\n) {{{column + 1},}}#[^\r\n]*")  # about the last item
    while (match := comment.match(text, at)) is not None:
        at = match.end()
    lines = _lines(document) if "targets" in document else [f"- {_flow(document)}"]
    return _Splice(at, at, "".join(f"{_line_break(text)}{' ' * column}{line}" for line in lines))


def _replace_item(text: str, old: yaml.Node, document: Mapping[str, Any]) -> _Splice:
    start, end = old.start_mark.index, _end(text, old)
    is_flow = not isinstance(old, yaml.MappingNode) or old.flow_style or text[start] == "*" or "targets" not in document
    if is_flow:
        return _Splice(start, end, _flow(document))
    separator = _line_break(text) + " " * old.start_mark.column
    return _Splice(start, end, separator.join(line[2:] for line in _lines(document)))


def _remove(text: str, parent: yaml.Node | None, key: str, index: int) -> list[_Splice]:
    """Return the changes that remove an item of the list, or an entry of the mapping, with this key of `parent`."""
    pair = _pair(parent, key)
    assert pair is not None  # the caller has found the item
    name: yaml.Node = pair[0]
    collection: Any = pair[1]
    spans = [_span(text, item) for item in collection.value]
    start, end = spans[index]
    if collection.flow_style:
        if index:
            return [_Splice(spans[index - 1][1], end, "")]
        return [_Splice(start, spans[1][0] if len(spans) > 1 else end, "")]
    if isinstance(collection, yaml.SequenceNode):
        start = text.rindex("-", 0, start)
    first = max(text.rfind(line_break, 0, start) for line_break in "\r\n") + 1
    match = _BREAK.search(text, end)
    lines = _Splice(first, match.end() if match is not None else len(text), "")
    if len(spans) > 1:
        return [lines]
    at = text.index(":", name.end_mark.index) + 1
    return [_Splice(at, at, " []" if isinstance(collection, yaml.SequenceNode) else " {}"), lines]


def _span(text: str, item: Any) -> tuple[int, int]:
    """Return where an item of a list, or an entry of a mapping, starts and ends."""
    first, last = item if isinstance(item, tuple) else (item, item)
    return first.start_mark.index, _end(text, last)


def _nested(path: Sequence[str], document: Mapping[str, Any], column: int) -> list[str]:
    """Return the lines of `document` as the only item of the list at `path`."""
    keys = [f"{' ' * (column + 2 * depth)}{name}:" for depth, name in enumerate(path)]
    return [*keys, *(" " * (column + 2 * len(path)) + line for line in _lines(document))]


def _lines(document: Mapping[str, Any]) -> list[str]:
    """Return the lines of a route as an item of a list: a line for each target."""
    lines = []
    for name, value in document.items():
        if name == "targets":
            lines += [f"{name}:", *(f"  - {_flow(target)}" for target in value)]
        else:
            lines.append(f"{name}: {_flow(value)}")
    return [("  " if index else "- ") + line for index, line in enumerate(lines)]


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
    return text.removesuffix("\n...\n").strip()


def _end(text: str, node: yaml.Node) -> int:
    """Return where the text of a node ends, without the comments and empty lines after it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and text[node.start_mark.index] != "*":
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return len(text[: node.end_mark.index].rstrip())
    return int(node.end_mark.index)


def _line_end(text: str, index: int) -> int:
    match = _BREAK.search(text, index)
    return match.start() if match is not None else len(text)


def _line_break(text: str) -> str:
    """Return the first line break of the text."""
    match = _BREAK.search(text)
    return (match[0] if match is not None else "") or "\n"


def _apply(text: str, splices: Sequence[_Splice]) -> str:
    for splice in sorted(splices, reverse=True):
        text = text[: splice.start] + splice.text + text[splice.end :]
    return text


def _on_routes(change: Callable[[list[Any]], list[Any]]) -> _Change:
    return lambda agents: {**agents, "routes": change(agents.get("routes") or [])}


def _on_targets(route: str, change: Callable[[list[Any]], list[Any]]) -> _Change:
    return _on_routes(
        lambda all: [{**one, "targets": change(one["targets"])} if one["agent"] == route else one for one in all]
    )


def _with_weights(routes: list[Any], route: str, weights: Mapping[str, float]) -> list[Any]:
    def weighted(target: dict[str, Any]) -> dict[str, Any]:
        agent = target["agent"]
        return {**target, "weight": _number(weights[agent])} if agent in weights else target

    return [{**one, "targets": [*map(weighted, one["targets"])]} if one["agent"] == route else one for one in routes]


def _without(items: list[Any], agent: str) -> list[Any]:
    return [item for item in items if item["agent"] != agent]


def _without_alias(agents: dict[str, Any], agent: str) -> dict[str, Any]:
    return {**agents, "aliases": {old: new for old, new in agents["aliases"].items() if old != agent}}


def _put(items: Sequence[Any], document: Mapping[str, Any]) -> list[Any]:
    agents = [item["agent"] for item in items]
    if document["agent"] not in agents:
        return [*items, document]
    return [document if agent == document["agent"] else item for agent, item in zip(agents, items, strict=True)]


def _checked(old: str, new: str, change: _Change, agent: str) -> str:
    """Return `new` if it holds the settings of `old` with `change` applied to the section `agents`, and nothing else.

    Raises:
        EditError: it does not.
    """
    before = parse_yaml(old) or {}
    try:
        expected = {**before, "agents": change(before.get("agents") or {})}
        is_good = parse_yaml(new) == expected
    except (yaml.YAMLError, LookupError, TypeError, ValueError):
        is_good = False
    if not is_good:
        raise EditError(
            f"the route of {agent} can't be edited where it stands, as other parts of the file depend on how it is "
            "written (an anchor, a merge key or a tag): write it out, and try again"
        )
    return new
