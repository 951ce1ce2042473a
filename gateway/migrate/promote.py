"""The registration of a legacy agent as a unified one, beside the old agent, and what it changes. Pure.

Source of 3.6 and 3.8, and recordings of both: the cluster turns a `model` block into a connector of its own, with the
provider's public URL and its own template, and turns function calling on. So neither the other members of the old
connector's request body nor the agent's own prompt are sent. The LLM gets the system prompt, the conversation and the
user's turn. OpenAI's template has no place for a system prompt: the new connector gets one if the agent sends one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from enum import Enum
from typing import Any

import msgspec

from gateway.agents.documents import Document, provider_of
from gateway.delivery.template_change import UnreadableTemplate, members
from gateway.errors import UnresolvedAgent
from gateway.migrate.proof import outcomes
from gateway.migrate.steps import Call
from gateway.migrate.upgrade import Documents
from gateway.mlcommons.generations import AgentType, Generation
from gateway.mlcommons.profile import MARKS, AgentProfile, Connector
from gateway.mlcommons.template import RuntimeValues, substitute
from gateway.providers import registry
from gateway.providers.base import ClusterSupport, ConnectorTemplate, Provider

SETTING = "plugins.ml_commons.unified_agent_api_enabled"
PROMOTED = "mlc_gateway_promoted_from"
"""Parameter of a promoted agent that holds the old agent's id. A later run finds the agent by it."""

TYPES = (AgentType.CONVERSATIONAL, AgentType.PLANNER)
V2 = AgentType.CONVERSATIONAL_V2.value
_ML = "/_plugins/_ml/"

_DROPPED = MARKS | {"_llm_interface", "executor_agent_id", "mlc_gateway", "mlc_gateway_registration", PROMOTED}
_SYSTEM_PROMPT = "system_prompt"
_ANSWERS = frozenset({"response_filter", "prompt", "messages", "body", _SYSTEM_PROMPT})
_GEMINI = "gemini/v1beta/generatecontent"
_ITERATIONS = "max_iteration"
_V2_ITERATIONS = "5"
_MESSAGES = re.compile(r'"messages"\s*:\s*\[')
_PLACEHOLDER = re.compile(r"\$\{parameters\.([^}:]+)(?::-([^}]*))?\}")


class Obstacle(Enum):
    """Why an agent can't be promoted. `docs/operate/upgrade.md` says what to do about each."""

    CLUSTER_TOO_OLD = "the cluster has no such agents"
    UNIFIED_API_OFF = "the cluster's unified agent API is off"
    ALREADY_UNIFIED = "the agent is already a unified one"
    TYPE_NOT_UNIFIED = "agents of its type never use a model block"
    NO_MEMORY_CONTAINER = "a V2 agent needs a memory container"
    NO_LLM = "the agent calls no LLM"
    MODEL_UNKNOWN = "the connector does not name a known provider and a model"
    PROVIDER_FAILS = "the cluster fails at every request of such an agent"
    AGENT_UNREADABLE = "the agent's model or connector can't be read"
    REGISTRATION_REFUSED = "the cluster refused the registration"


class NotPromoted(Exception):
    """The agent can't be registered as a unified one. The message says why and what to do."""

    def __init__(self, obstacle: Obstacle, message: str) -> None:
        super().__init__(message)
        self.obstacle = obstacle


class Promotion(msgspec.Struct, frozen=True):
    """A registration. body: without the credential. url: the LLM's address if it is not the provider's public one.

    system_role: the role of the system turn that the new connector's template gets; "" if it needs none.
    credential: its names. changes: what will be different, as sentences.
    """

    agent_id: str
    provider: str
    body: Mapping[str, Any]
    url: str
    system_role: str
    credential: tuple[str, ...]
    changes: tuple[str, ...]

    @property
    def call(self) -> Call:
        """Return the registration call, without the credential."""
        return Call("POST", f"{_ML}agents/_register", dict(self.body))


def promotion(documents: Documents, agent_id: str, agent_type: str = "", container: str = "") -> Promotion:
    """Build the registration for a legacy agent.

    agent_type: `conversational_v2`, or "" for the agent's own. container: the memory container of a V2 agent.

    Raises:
        NotPromoted: the cluster or the agent's type does not allow it, or its model is unknown.
    """
    _require_unified(documents)
    try:
        profile = documents.profile(agent_id)
    except UnresolvedAgent as error:
        raise NotPromoted(Obstacle.AGENT_UNREADABLE, error.reason) from None
    _require_legacy(profile, agent_type, container)
    connector = profile.models[0].connector
    provider = provider_of(connector, profile.provider)
    model = connector.parameters.get("model") or _model_in_url(connector)
    supported = {p.name: (p.cluster, p.connector) for p in registry.providers() if p.cluster and p.connector}
    if provider not in supported or not model:
        known = ", ".join(supported)
        raise NotPromoted(
            Obstacle.MODEL_UNKNOWN, f"the connector does not name a model id and a known provider ({known})"
        )
    if agent_type == V2 and provider == _GEMINI:
        reason = f"{V2} agents with Gemini answer every request with a 500 (parseToUnifiedMessage is not yet supported)"
        raise NotPromoted(Obstacle.PROVIDER_FAILS, f"{reason}: promote it without --type")
    region = connector.parameters.get("region", "us-east-1")
    url = _PLACEHOLDER.sub(lambda found: connector.parameters.get(found[1], found[2] or found[0]), connector.url)
    support, made = supported[provider]
    public = substitute(made.url, {"region": region, "model": model})
    role = "" if support.has_system_slot else system_role(profile, registry.provider(provider))
    system = _system_prompt(profile, registry.provider(provider), support) if support.has_system_slot or role else ""
    body = _body(documents.agents[agent_id], profile, (provider, support), model, agent_type, container, system)
    parameters = body["model"]["model_parameters"]
    is_v2 = agent_type == V2
    new = new_call(registry.provider(provider), support, model, parameters, system, role, documents.version, is_v2)
    changes = tuple(_changes(profile, registry.provider(provider), support, made, agent_type, new))
    credential = (*made.credentials[0], *made.optional_credentials)
    return Promotion(agent_id, provider, body, "" if url == public else url, role, credential, changes)


def _require_unified(documents: Documents) -> None:
    if documents.version < (3, 5):
        version = ".".join(map(str, documents.version))
        reason = f"unified agents exist from 3.5 on, and this cluster is {version}: upgrade it first"
        raise NotPromoted(Obstacle.CLUSTER_TOO_OLD, reason)
    if documents.unified_api is False:
        call = f'PUT /_cluster/settings {{"persistent":{{"{SETTING}":true}}}}'
        raise NotPromoted(Obstacle.UNIFIED_API_OFF, f"the cluster's unified agent API is off; turn it on with {call}")


def _require_legacy(profile: AgentProfile, agent_type: str, container: str) -> None:
    if profile.generation is not Generation.FUNCTION_CALLING:
        raise NotPromoted(Obstacle.ALREADY_UNIFIED, f"{profile.id} is already a unified agent")
    if profile.agent_type not in TYPES:
        reason = f"a {profile.type} agent runs its tools and never uses a `model` block: leave it unchanged"
        raise NotPromoted(Obstacle.TYPE_NOT_UNIFIED, f"{reason}, or register a conversational one")
    if agent_type == V2 and profile.agent_type is not AgentType.CONVERSATIONAL:
        raise NotPromoted(Obstacle.TYPE_NOT_UNIFIED, f"a {profile.type} agent can't become {V2}")
    if agent_type == V2 and profile.version < (3, 6):
        raise NotPromoted(Obstacle.CLUSTER_TOO_OLD, f"{V2} exists from 3.6 on")
    if agent_type == V2 and not container:
        raise NotPromoted(
            Obstacle.NO_MEMORY_CONTAINER, f"{V2} needs a memory container: name it with --memory-container ID"
        )
    if not profile.models:
        raise NotPromoted(Obstacle.NO_LLM, Obstacle.NO_LLM.value)


def _model_in_url(connector: Connector) -> str:
    found = re.search(r"/models?/([^/:$]+)[:/]", connector.url)
    return found[1] if found else ""


def _body(
    agent: Document,
    profile: AgentProfile,
    provider: tuple[str, ClusterSupport],
    model: str,
    agent_type: str,
    container: str,
    system: str,
) -> dict[str, Any]:
    copied = ("name", "description", "app_type", "tools", "memory")
    body: dict[str, Any] = {name: agent[name] for name in copied if agent.get(name) is not None}
    body["type"] = agent_type or profile.type
    if agent_type == V2:
        body["memory"] = {"type": "agentic_memory", "memory_container_id": container}
    parameters = _model_parameters(profile)
    own = {name: value for name, value in profile.parameters.items() if name not in _DROPPED}
    if system:
        # V2 agents ignore it among the model's parameters (recorded, 34_conversational_v2_more).
        (own if agent_type == V2 else parameters)[_SYSTEM_PROMPT] = system
    body["model"] = {"model_id": model, "model_provider": provider[0], "model_parameters": parameters}
    body["parameters"] = {**own, PROMOTED: profile.id}
    return body


def _system_prompt(profile: AgentProfile, provider: Provider, support: ClusterSupport) -> str:
    """Return the system prompt that keeps the LLM's system text as it is.

    It is the text that the LLM gets now, wherever it comes from: a parameter, or the connector's template.
    """
    given = [part.get(_SYSTEM_PROMPT) for part in (profile.llm_parameters, profile.parameters)]
    given.append(profile.models[0].connector.parameters.get(_SYSTEM_PROMPT))
    named = next(filter(None, given), "")
    return system_text(profile, provider) or named or support.parameters.get(_SYSTEM_PROMPT, "")


def _model_parameters(profile: AgentProfile) -> dict[str, str]:
    connector = profile.models[0].connector.parameters
    names = ("region", "max_tokens", "temperature", "top_p", "reasoning_effort")
    found = {name: connector[name] for name in names if name in connector}
    return found | {name: value for name, value in profile.llm_parameters.items() if name not in _ANSWERS}


def _changes(
    profile: AgentProfile,
    provider: Provider,
    support: ClusterSupport,
    made: ConnectorTemplate,
    agent_type: str,
    new: Mapping[str, Any],
) -> Iterator[str]:
    connector = profile.models[0].connector
    if profile.gateway_memory:
        yield "the cluster keeps what the agent remembers: the gateway's sessions are not continued"
    if profile.unified_output and agent_type != V2:
        yield "answers have the legacy form"
    if not profile.llm_interface:
        yield "tools are called through the LLM's function calling, and no longer explained in a prompt"
    prompt = profile.llm_parameters.get("prompt", profile.parameters.get("prompt", ""))
    if prompt.strip() not in ("", "${parameters.question}"):
        yield "the agent's own prompt is not sent: put its important parts into system_prompt"
    old = first_call(profile, provider)
    if old is None:
        yield "a question alone does not fill the connector's template, so the LLM's requests could not be compared"
        try:
            lost = sorted(members(connector.request_body).keys() - support.body_members)
        except UnreadableTemplate:
            lost = []
        if lost:
            yield f"these members of the request body are no longer sent as before: {', '.join(lost)}"
    else:
        yield from sentences(differences(old, new, provider))
    if made.protocol == "aws_sigv4" != connector.protocol:
        yield "requests are signed with SigV4, with AWS keys as the credential"
    if agent_type == V2:
        yield "answers have the unified form, and old conversations are not found"
        yield "the cluster itself refuses `parameters.question`: clients of the gateway can go on sending it"
        iterations = profile.llm_parameters.get(_ITERATIONS, profile.parameters.get(_ITERATIONS, _V2_ITERATIONS))
        if iterations != _V2_ITERATIONS:
            yield f"{_ITERATIONS} {iterations} is ignored, and {_V2_ITERATIONS} is used: send it with each request"
    elif not profile.gateway_memory:
        yield "old conversations continue: a memory_id is valid for any agent of the cluster"
    if "executor_agent_id" in profile.parameters:
        yield "a new executor agent is created with it"


def connector_change(found: Promotion, model: Document) -> dict[str, Any]:
    """Return the body of `PUT models/{id}` that gives the new connector its URL and system turn; {} if it needs none.

    model: the model that the cluster created for the promoted agent (docs/evidence/facts.md, 3.5 and later).

    Raises:
        NotPromoted: the connector's template has no list of messages in which a system turn could be.
    """
    actions = [dict(action) for action in model["connector"]["actions"]]
    for action in actions:
        action["url"] = found.url or action["url"]
        if found.system_role:
            action["request_body"] = _with_system_turn(str(action.get("request_body", "")), found.system_role)
    return {} if actions == list(model["connector"]["actions"]) else {"connector": {"actions": actions}}


def _with_system_turn(template: str, role: str) -> str:
    turn = f'{{"role":"{role}","content":"${{parameters.{_SYSTEM_PROMPT}}}"}},'
    if turn in template:
        return template
    written, count = _MESSAGES.subn(lambda opening: opening[0] + turn, template, count=1)
    if not count:
        reason = "the cluster's template has no list of messages, so the system prompt can't be sent"
        raise NotPromoted(Obstacle.REGISTRATION_REFUSED, reason)
    return written


def undo_calls(agent_id: str, agent: Document) -> tuple[Call, ...]:
    """Return the calls that remove a promoted agent, a planner's executor, and the model that the cluster created."""
    model_id = model_of(agent)
    executor_id = (agent.get("parameters") or {}).get("executor_agent_id")
    return (
        *(Call("DELETE", f"{_ML}agents/{id_}") for id_ in (agent_id, executor_id) if id_),
        Call("POST", f"{_ML}models/{model_id}/_undeploy"),
        Call("DELETE", f"{_ML}models/{model_id}"),
    )


def model_of(agent: Document) -> str:
    """Return the id of the model that the cluster created for a promoted agent."""
    return str((agent.get("llm") or {}).get("model_id") or "")


def routes_of(replaced: Mapping[str, str]) -> str:
    """Return the gateway's settings that let clients use old ids. replaced: old id → new id."""
    routes = (
        f"    - agent: {old}\n      targets:\n        - {{agent: {new}, weight: 1}}\n" for old, new in replaced.items()
    )
    return f"agents:\n  routes:\n{''.join(routes)}"


def is_any_promoted(agent: Document) -> bool:
    """Return True if the document is that of an agent after its promotion."""
    parameters = agent.get("parameters")
    return isinstance(parameters, Mapping) and PROMOTED in parameters


def is_promoted(agent: Document, old: str, agent_type: str) -> bool:
    """Return True if the document is that of `old` after its promotion. agent_type: `conversational_v2`, or ""."""
    is_v2 = str(agent.get("type", "")).lower() == V2
    return is_any_promoted(agent) and agent["parameters"][PROMOTED] == old and is_v2 == (agent_type == V2)


QUESTION = "What does it say?"
DEFAULT_SYSTEM = "You are a helpful assistant."
LIMITED = (3, 7)
"""The version from which the cluster's templates send limits."""

_OTHER = "How many pages are there?"
_BUILT_IN = "<built-in>"
_SYSTEM_ROLES = ("system", "developer")
_TOOLS = frozenset({"tools", "toolConfig", "parallel_tool_calls"})
_MAX_TOKENS, _TEMPERATURE = "4096", "1.0"
_LIMITS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bedrock/converse": (("inferenceConfig", "maxTokens"), ("inferenceConfig", "temperature")),
    "openai/v1/chat/completions": (("max_completion_tokens",), ("temperature",)),
    "gemini/v1beta/generatecontent": (("generationConfig", "maxOutputTokens"), ("generationConfig", "temperature")),
}
"""Where the templates send the longest answer and the temperature."""
_SHOWN = 60


def first_call(profile: AgentProfile, provider: Provider, question: str = QUESTION) -> dict[str, Any] | None:
    """Return the body of the agent's first LLM call for a question; None if it can't be rendered.

    A template that a question alone does not fill gets the messages, too.
    """
    turns = [_user_turn(provider, question)]
    for parameters in ({}, {provider.messages_field: json.dumps(turns)}):
        found = outcomes(profile, {"question": question, **parameters}, RuntimeValues(None, ""))
        text = found[0][0] if found else None
        body = None if text is None else json.loads(text)
        if isinstance(body, dict):
            return body
    return None


def _user_turn(provider: Provider, text: str) -> dict[str, Any]:
    return {"role": "user", provider.content_field: [provider.text_part(text)]}


def system_text(profile: AgentProfile, provider: Provider) -> str:
    """Return the system text of the first call; "" if there is none, it is built in, or it depends on the question."""
    found = [_system_texts(first_call(profile, provider, question), provider) for question in (QUESTION, _OTHER)]
    text = "\n\n".join(found[0])
    return "" if found[0] != found[1] or _BUILT_IN in text else text


def system_role(profile: AgentProfile, provider: Provider) -> str:
    """Return the role of the system turn with which the first call's messages begin; "" if they begin with another."""
    turns = _turns(first_call(profile, provider), provider)
    role: str = turns[0].get("role", "") if turns else ""
    return role if role in _SYSTEM_ROLES else ""


def _system_texts(body: Mapping[str, Any] | None, provider: Provider) -> list[str]:
    body = body or {}
    parts = [body.get(name) for name in provider.system_fields([""])]
    parts += [turn for turn in _turns(body, provider) if turn.get("role") in _SYSTEM_ROLES]
    return [value for part in parts for path, value in leaves(part) if path.endswith("text") and value]


def _turns(body: Mapping[str, Any] | None, provider: Provider) -> list[Any]:
    turns = provider.canonical((body or {}).get(provider.messages_field))
    return turns if isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns) else []


def new_call(
    provider: Provider,
    support: ClusterSupport,
    model: str,
    parameters: Mapping[str, str],
    system: str,
    role: str,
    version: tuple[int, ...],
    v2: bool,
) -> dict[str, Any]:
    """Return the body of the promoted agent's first call.

    parameters: `model_parameters`. system: its system prompt. role: of the system turn that its template gets, or "".
    """
    turn = _user_turn(provider, QUESTION) if v2 else json.loads(support.user_turn.replace("TEXT", QUESTION))
    body: dict[str, Any] = {provider.messages_field: [turn]}
    if support.has_system_slot:
        body |= provider.system_fields([system or DEFAULT_SYSTEM])
    elif role:
        body[provider.messages_field].insert(0, {"role": role, "content": system or DEFAULT_SYSTEM})
    if "model" in support.body_members:
        body["model"] = model
    if version >= LIMITED and provider.name in _LIMITS:
        tokens, temperature = _LIMITS[provider.name]
        _set(body, tokens, parameters.get("max_tokens", _MAX_TOKENS))
        _set(body, temperature, parameters.get("temperature", _TEMPERATURE))
    return body


def _set(body: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    *parents, last = path
    for name in parents:
        body = body.setdefault(name, {})
    body[last] = json.loads(value)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], provider: Provider) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ, by path: the old one and the new one, None where there is none.

    A turn is compared with the one that has its part in the other conversation. The index in a path counts the turns of
    both.
    """
    bodies = [_comparable(body, provider) for body in (old, new)]
    turns = [body[provider.messages_field] for body in bodies]
    if all(isinstance(one, list) for one in turns):
        for body, aligned in zip(bodies, zip(*_align(*turns), strict=True), strict=False):
            body[provider.messages_field] = list(aligned)
    before, after = (dict(leaves(body)) for body in bodies)
    return {
        path: (before.get(path), after.get(path)) for path in {**before, **after} if before.get(path) != after.get(path)
    }


def _comparable(body: Mapping[str, Any], provider: Provider) -> dict[str, Any]:
    """Return the body without its tools, and with the messages in the provider's normal form."""
    others = {name: value for name, value in body.items() if name not in _TOOLS}
    return {**others, provider.messages_field: provider.canonical(others.get(provider.messages_field))}


def _align(old: list[Any], new: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the turns of two conversations in pairs of the same role; None beside a turn that has no counterpart."""
    before, after = ([_part_of(turn) for turn in turns] for turns in (old, new))
    for tag, i, i_end, j, j_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from zip(old[i:i_end], new[j:j_end], strict=True)
        else:
            yield from ((turn, None) for turn in old[i:i_end])
            yield from ((None, turn) for turn in new[j:j_end])


def _part_of(turn: Any) -> str:
    role = str(turn.get("role")) if isinstance(turn, dict) else ""
    return "system" if role in _SYSTEM_ROLES else role


def sentences(found: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Yield a sentence for each difference."""
    for path, (before, after) in found.items():
        if before is None:
            yield f"the LLM request gets {path}: {_short(after)}"
        elif after is None:
            yield f"the LLM request no longer has {path}: {_short(before)}"
        else:
            yield f"the LLM request has {path}: {_short(after)} in place of {_short(before)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of every scalar and of every empty container in JSON data."""
    if isinstance(value, Mapping) and value:
        for name, member in value.items():
            yield from leaves(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    elif value is not None:
        yield path, value
