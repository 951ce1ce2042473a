"""How much there is to read and to render of an agent, and the most that the gateway takes.

Anyone who may register an agent, a model or a connector writes its documents: they are as hostile as a client's body.
Here is what a document may hold; what a plan may cost is limited in `gateway.mlcommons.expansion`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gateway.errors import Problem, UnresolvedAgent
from gateway.mlcommons.profile import AgentProfile, Connector, Parameters
from gateway.mlcommons.template import PREFIX
from gateway.unified.limits import SMALL_TEXT

MOST_DOCUMENTS = 200
"""Documents that are read for one agent: its own, those of its models and connectors, and of the agents it runs."""
MOST_WEIGHT = 2_000_000
"""Of these documents, all together; see `weigh`."""
SMALL_WEIGHT = SMALL_TEXT
MOST_TOOLS = 1_000
"""Tools of one agent and of the agents it runs, with those that call nothing."""
_MOST_LEVELS = 100
_PER_VALUE = 16


class Size(NamedTuple):
    """What is rendered of an agent for one request.

    tools: all of them, with those of the agents it runs. calling: those that call a model, a connector or an agent.
    characters: of all texts; those of a model once for each
    tool that calls it. separators: commas, brackets and quotes in them, which is what makes JSON costly to read.
    placeholders: in all of them. nested: in parameters, which are inserted into templates and into each other.
    """

    tools: int = 0
    calling: int = 0
    characters: int = 0
    separators: int = 0
    placeholders: int = 0
    nested: int = 0

    def plus(self, other: Size) -> Size:
        """Return the sum."""
        return Size(*map(sum, zip(self, other, strict=True)))

    def exceeds(self, most: Size) -> bool:
        """Return True if any of the numbers is larger than in `most`."""
        return any(a > b for a, b in zip(self, most, strict=True))


MOST = Size(tools=MOST_TOOLS, calling=200, characters=1_000_000, separators=50_000, placeholders=2_000, nested=2_000)
_SMALL = Size(tools=100, calling=8, characters=SMALL_TEXT, separators=2_000, placeholders=32, nested=16)
"""Few nested placeholders, because two parameters that name two others each are doubled with every further one."""
_NAMES = (
    "too many tools, with those of the agents it runs",
    "too many tools that call a model, a connector or an agent",
    "too much text in its parameters, templates and tools",
    "too many JSON values in its parameters and templates",
    "too many placeholders in its parameters and templates",
    "too many placeholders in its parameters",
)


def size_of(profile: AgentProfile) -> Size:
    """Return the size of an agent; once it exceeds `MOST`, of a part that exceeds it too."""
    connectors: dict[str, Size] = {}  # by the id of the model, or of the connector where there is no model
    agents: dict[str, Size] = {}
    total = _of_parameters((profile.parameters, profile.llm_parameters))._replace(tools=len(profile.tools))
    if profile.llm is not None:
        total = total.plus(_of_connector(profile.llm.connector))
    for tool in profile.tools:
        if total.exceeds(MOST):
            break
        total = total.plus(_of_parameters((tool.parameters, tool.config)))
        if tool.target is not None or tool.agent is not None or tool.calls_unread_llm or tool.sends_one_text:
            total = total.plus(Size(calling=1))
        if (target := tool.target) is not None:
            key = target.id or f"connector {target.connector.id}"
            if key not in connectors:
                connectors[key] = _of_connector(target.connector)
            total = total.plus(connectors[key])
        if (agent := tool.agent) is not None:
            if agent.id not in agents:
                agents[agent.id] = size_of(agent)
            total = total.plus(agents[agent.id])
    return total


def is_small(profile: AgentProfile) -> bool:
    """Return True if the agent can be planned for on the event loop without a noticeable delay for other clients."""
    return not size_of(profile).exceeds(_SMALL)


def check_size(profile: AgentProfile) -> None:
    """Raise UnresolvedAgent if the agent exceeds `MOST`."""
    for name, number, most in zip(_NAMES, size_of(profile), MOST, strict=True):
        if number > most:
            raise too_large(f"agents/{profile.id}", f"the agent has {name}", f"at most {most}", f"at least {number}")


def too_large(place: str, reason: str, expected: str, received: str = "") -> UnresolvedAgent:
    """Return the error for an agent that is larger than the gateway reads."""
    help = "register an agent with fewer tools and shorter templates, or divide this one into several"
    problem = Problem(place, reason, expected, received, "AGENT_TOO_LARGE", help)
    error = UnresolvedAgent.of([problem])
    assert isinstance(error, UnresolvedAgent)
    return error


class Scale:
    """Counts and weighs the documents that are read for one agent. weight: of those so far."""

    def __init__(self, agent_id: str) -> None:
        self.weight = 0
        self._place = f"agents/{agent_id}"
        self._documents = self._tools = 0

    def before_document(self) -> None:
        """Raise UnresolvedAgent if no further document may be read."""
        self._documents += 1
        if self._documents > MOST_DOCUMENTS:
            reason = "the agent needs more models, connectors and agents than the gateway reads"
            raise too_large(self._place, reason, f"at most {MOST_DOCUMENTS} documents")

    def add(self, document: Mapping[str, Any]) -> None:
        """Weigh a document. Raise UnresolvedAgent if all of them have too many tools, or weigh too much."""
        tools = document.get("tools")
        self._tools += len(tools) if isinstance(tools, list) else 0
        if self._tools > MOST_TOOLS:
            raise too_large(self._place, f"the agent has {_NAMES[0]}", f"at most {MOST_TOOLS}", f"{self._tools}")
        self.weight += weigh(document, MOST_WEIGHT - self.weight)
        if self.weight > MOST_WEIGHT:
            reason = "the documents of the agent, its models and connectors are too large or nested too deeply"
            most = f"at most {MOST_WEIGHT} characters ({_PER_VALUE} for each value) and {_MOST_LEVELS} levels"
            raise too_large(self._place, reason, most)


def weigh(document: Any, most: int) -> int:
    """Return the characters of JSON data, and `_PER_VALUE` for each value. Counting stops above `most`.

    Data that is nested more than `_MOST_LEVELS` deep weighs more than `most`.
    """
    total = 0
    waiting = [(document, 1)]
    while waiting and total <= most:
        value, level = waiting.pop()
        total += _PER_VALUE
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, Mapping | list):
            if level > _MOST_LEVELS:
                return most + 1
            if isinstance(value, Mapping):
                total += sum(map(len, value))
                value = value.values()
            waiting += ((item, level + 1) for item in value)
    return total


def _of_connector(connector: Connector) -> Size:
    return _of_texts((connector.url, connector.request_body)).plus(_of_parameters((connector.parameters,)))


def _of_parameters(parameters: Iterable[Parameters]) -> Size:
    size = _of_texts(text for each in parameters for item in each.items() for text in item)
    return size._replace(nested=size.placeholders)


def _of_texts(texts: Iterable[str]) -> Size:
    text = "\n".join(texts)  # counted at once, as there may be many
    return Size(0, 0, len(text), sum(map(text.count, ',[{"')), text.count(PREFIX), 0)
