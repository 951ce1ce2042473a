"""Documents of agents, models and connectors that are costly to read or to plan for, or wrong in any way."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]
_URL = "https://api.openai.com/v1/chat/completions"
_TURN = '{"role":"user","content":"${parameters.prompt}"}'
_PROMPT = "${parameters.question}"


@dataclass(frozen=True)
class Documents:
    """What the cluster holds: one agent, and by id what it needs. others: agents that it runs."""

    agent: Document
    models: dict[str, Document] = field(default_factory=dict)
    connectors: dict[str, Document] = field(default_factory=dict)
    others: dict[str, Document] = field(default_factory=dict)

    def by_path(self, agent_id: str) -> dict[str, Document]:
        """Return the documents by the path that the gateway reads."""
        found = {f"agents/{agent_id}": self.agent}
        for kind, documents in (("agents", self.others), ("models", self.models), ("connectors", self.connectors)):
            found |= {f"{kind}/{id_}": document for id_, document in documents.items()}
        return {f"/_plugins/_ml/{path}": document for path, document in found.items()}

    def with_ids_of(self, agent_id: str) -> Documents:
        """Return the documents with ids that no other agent's have."""

        def named(documents: dict[str, Document]) -> dict[str, Document]:
            return {f"{agent_id}-{id_}": _renamed(document, agent_id) for id_, document in documents.items()}

        return Documents(_renamed(self.agent, agent_id), named(self.models), named(self.connectors), named(self.others))


def _renamed(value: Any, agent_id: str) -> Any:
    if isinstance(value, list):
        return [_renamed(item, agent_id) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: f"{agent_id}-{item}" if name in _IDS and isinstance(item, str) else _renamed(item, agent_id)
        for name, item in value.items()
    }


_IDS = ("model_id", "connector_id", "agent_id")


def connector(turns: str = _TURN, parameters: Document | None = None, rest: str = "", **members: Any) -> Document:
    """Return a connector. turns: the messages of its template. rest: what follows them there."""
    body = f'{{"model":"${{parameters.model}}","messages":[{turns}]{rest}}}'
    action = {"action_type": "predict", "method": "POST", "url": _URL, "request_body": body}
    return {
        "name": "c",
        "protocol": "http",
        "parameters": {"model": "gpt-4o", **(parameters or {})},
        "actions": [action],
        **members,
    }


def model(of: Document | None = None, **members: Any) -> Document:
    """Return a model with its connector inside."""
    return {"name": "m", "algorithm": "REMOTE", "connector": of or connector(), **members}


def tool(number: int = 0, type_: str = "MLModelTool", **parameters: Any) -> Document:
    """Return a tool that calls the model `m`."""
    return {
        "type": type_,
        "name": f"t{number}",
        "parameters": {"model_id": "m", "prompt": _PROMPT, **parameters},
    }


def flow(tools: Iterable[Document], of: Document | None = None, **members: Any) -> Documents:
    """Return a flow whose tools call one model. of: its connector."""
    return Documents({"name": "x", "type": "flow", "tools": list(tools), **members}, {"m": model(of)})


def chat(of: Document | None = None, **members: Any) -> Documents:
    """Return a conversational agent. of: its connector."""
    llm = {"model_id": "m", "parameters": {"prompt": _PROMPT}}
    return Documents({"name": "x", "type": "conversational", "llm": llm, **members}, {"m": model(of)})


def _names(size: int, name: str = "p") -> str:
    return " ".join(f"${{parameters.{name}{i}}}" for i in range(size))


def _values(size: int) -> Document:
    return {f"p{i}": "x" for i in range(size)}


def _chain(size: int, each: int = 1) -> Document:
    return {f"p{i}": f"${{parameters.p{i + 1}}}" * each for i in range(size)}


def _agents(size: int) -> Documents:
    """Return a flow that runs one other flow many times."""
    ran = flow(tool(i) for i in range(20))
    tools = ({"type": "AgentTool", "name": f"a{i}", "parameters": {"agent_id": "ran"}} for i in range(size))
    return Documents({"name": "x", "type": "flow", "tools": list(tools)}, ran.models, {}, {"ran": ran.agent})


def _distinct_models(size: int) -> Documents:
    """Return a flow each of whose tools calls a model of its own, with a connector of its own."""
    tools = [{"type": "MLModelTool", "name": f"t{i}", "parameters": {"model_id": f"m{i}"}} for i in range(size)]
    models = {f"m{i}": {"name": "m", "algorithm": "REMOTE", "connector_id": f"c{i}"} for i in range(size)}
    connectors = {f"c{i}": connector(_TURN.replace("prompt", "question")) for i in range(size)}
    return Documents({"name": "x", "type": "flow", "tools": tools}, models, connectors)


def _interface(size: int) -> Documents:
    names = [f"n{i}" for i in range(size)]
    members = {name: {"type": "string"} for name in names}
    schema = {"properties": {"parameters": {"required": names, "properties": members}}}
    found = flow([tool()])
    return Documents(found.agent, {"m": model(interface={"input": json.dumps(schema)})})


def _filled(size: int, filling: str) -> Documents:
    """Return a flow whose template has so many characters more."""
    return flow([tool()], connector(rest=f',"a":"{filling * size}"'))


def _list(size: int, item: str) -> Documents:
    return flow([tool()], connector(rest=f',"a":[{",".join([item] * size)}]'))


MAKERS: dict[str, Callable[[int], Documents]] = {
    "tools": lambda n: flow(tool(i) for i in range(n)),
    "tools of one name": lambda n: flow(tool() for _ in range(n)),
    "tools of a chat": lambda n: chat(tools=[tool(i) for i in range(n)]),
    "tools that call nothing": lambda n: flow([*(tool(i, "ListIndexTool") for i in range(5 * n)), tool(n)]),
    "tools with a text for a model": lambda n: flow([*(tool(i, "VectorDBTool") for i in range(n)), tool(n)]),
    "tools that plan": lambda n: flow(tool(i, "QueryPlanningTool") for i in range(n)),
    "tools that name the outputs of others": lambda n: flow(
        tool(i, prompt=f"{_PROMPT} ${{parameters.t{n - i}.output}}") for i in range(n)
    ),
    "tools with input": lambda n: flow(tool(i, input='{"a":"${parameters.question}"}') for i in range(n)),
    "models": _distinct_models,
    "agents that run agents": _agents,
    "parameters of tools": lambda n: flow([tool(0, **_values(10 * n))]),
    "parameters of a connector": lambda n: flow([tool()], connector(parameters=_values(10 * n))),
    "placeholders in a text": lambda n: flow(
        [tool()], connector(f'{_TURN},{{"role":"user","content":"{_names(n)}"}}', _values(n))
    ),
    "placeholders of one name": lambda n: _filled(10 * n, "${parameters.model}"),
    "placeholders without a value": lambda n: flow([tool()], connector(rest=f',"a":"{_names(n)}"')),
    "bare placeholders": lambda n: flow(
        [tool()], connector(_TURN + "".join(f",${{parameters.p{i}:-null}}" for i in range(n)))
    ),
    "placeholders in a prompt": lambda n: flow([tool(prompt=_PROMPT + _names(n), **_values(n))]),
    "placeholders in a chain": lambda n: flow([tool(prompt=_PROMPT + "${parameters.p0}", **_chain(n))]),
    "placeholders that double": lambda n: flow([tool(prompt=_PROMPT + "${parameters.p0}", **_chain(n, 2))]),
    "a long template": lambda n: _filled(1000 * n, "x"),
    "a template with many values": lambda n: _list(50 * n, "1"),
    "a template with many texts": lambda n: _list(50 * n, '"a"'),
    "a template with many objects": lambda n: _list(20 * n, '{"a":1}'),
    "a deep template": lambda n: flow([tool()], connector(rest=f',"a":{"[" * n}{"]" * n}')),
    "a long prompt": lambda n: flow([tool(prompt=_PROMPT + "x" * 1000 * n)]),
    "a long prompt in every tool": lambda n: flow(tool(i, prompt=_PROMPT + "x" * 2000) for i in range(n)),
    "a long template for every tool": lambda n: flow(
        (tool(i) for i in range(n)), connector(rest=f',"a":"{"x" * 2000}"')
    ),
    "headers": lambda n: flow([tool()], connector(headers={f"h{i}": "x" for i in range(100 * n)})),
    "actions": lambda n: flow([tool()], connector(actions=[{"action_type": "x"}] * 100 * n)),
    "required inputs": _interface,
    "the agent's parameters": lambda n: chat(parameters=_values(100 * n)),
    "a deep document": lambda n: chat(parameters={"a": _nested(n)}),
    "brackets in a text": lambda n: flow([tool(prompt="[" * 100 * n + _PROMPT)]),
    "dollar signs": lambda n: flow([tool(prompt="$" * 1000 * n + _PROMPT)]),
    "openings without an end": lambda n: _filled(10 * n, "${parameters."),
    "openings in a URL": lambda n: flow([tool()], _at(_URL + "${parameters." * 10 * n)),
    "models in a URL": lambda n: flow([tool()], _at(_URL + ".amazon.nova-" * 100 * n + "!")),
    "members of one name": lambda n: _filled(1, "x" * 10 + '","a":"x' * 10 * n),
}
"""Each returns documents that grow with its argument in one respect. 25 is an agent that works, with few exceptions."""

_HOSTILE: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, "", "x", [], {}, [[]], [None], "\ud800", "\0", '"}],"x":[', "\\", "$",
    "x" * 100_000, "${parameters." * 500, "${parameters.question}" * 300, "$" * 5000, "{" * 2000, '["' * 2000,
    "${parameters.a:-${parameters.b}}", "${parameters.prompt}", "flow", "conversational", "AgentTool", "ConnectorTool",
    list(range(3000)), [{}] * 2000, {f"k{i}": "${parameters.question}" for i in range(500)},
)  # fmt: skip


def mutated(rng: random.Random) -> Documents:
    """Return documents of any maker with a few changes at random places."""
    name = rng.choice(sorted(MAKERS))
    found = copy.deepcopy(MAKERS[name](rng.randint(1, 12)))
    for _ in range(rng.randint(1, 4)):
        whole = [found.agent, *found.models.values(), *found.connectors.values(), *found.others.values()]
        container, key = rng.choice(list(_places(rng.choice(whole))))
        match rng.randrange(5):
            case 0:
                del container[key]
            case 1:
                container[key] = [container[key]] * rng.choice((1, 2, 300))
            case 2 if isinstance(container[key], str):
                at = rng.randint(0, len(container[key]))
                container[key] = f"{container[key][:at]}{rng.choice(_TEXTS)}{container[key][at:]}"
            case 3:
                container[key] = _nested(rng.choice((5, 150)))
            case _:
                container[key] = copy.deepcopy(rng.choice(_HOSTILE))
    return found


_TEXTS = tuple(value for value in _HOSTILE if isinstance(value, str))


def _places(value: Any) -> Iterable[tuple[Any, Any]]:
    """Yield containers with each of their keys, 20 of each list; the document's own name comes first."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))[:20]
    for key, item in items:
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


def _at(url: str) -> Document:
    made = connector()
    made["actions"][0]["url"] = url
    return made


def _nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value
