"""A legacy agent registered anew as a unified one, beside the old: the registration and what changes by it. Pure.

From the source of 3.6 and 3.8 and the recordings of both: of a `model` block the cluster makes a connector of its
own, with the provider's public URL and a template of its own, and turns function calling on. So the old connector's
other members are not sent, and neither is a prompt of the agent's: what the LLM gets is the system prompt (not with
OpenAI, whose template has no place for it), the conversation and the user's turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gateway.agents.documents import Document
from gateway.agents.recognition import provider_of
from gateway.delivery.template_change import NotOffered, members
from gateway.errors import UnresolvedAgent
from gateway.migrate.steps import Call
from gateway.migrate.upgrade import Documents
from gateway.mlcommons.agent_types import AgentType
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Connector
from gateway.mlcommons.template import substitute
from gateway.register.connectors import PROVIDERS, kind

SETTING = "plugins.ml_commons.unified_agent_api_enabled"
PROMOTED = "mlc_gateway_promoted_from"
"""The parameter of a promoted agent that holds the old agent's id, and by which it is found again."""

TYPES = (AgentType.CONVERSATIONAL, AgentType.PLANNER)
V2 = AgentType.CONVERSATIONAL_V2.value
_ML = "/_plugins/_ml/"

_SENT = {  # members of the request body that the cluster's own templates have (source, 3.6)
    "bedrock/converse": {"system", "messages", "toolConfig"},
    "openai/v1/chat/completions": {"model", "messages", "tools"},
    "gemini/v1beta/generatecontent": {"systemInstruction", "contents", "tools"},
}
_LIMITED = (3, 7)  # from here on the templates send `max_tokens`, 4096 by default (source)
_DROPPED = frozenset({"_llm_interface", "executor_agent_id", "mlc_gateway", "mlc_gateway_registration", PROMOTED})
_ANSWERS = frozenset({"response_filter", "prompt", "messages", "body"})
_PLACEHOLDER = re.compile(r"\$\{parameters\.([^}:]+)(?::-([^}]*))?\}")


class Obstacle(Enum):
    """Why an agent is not promoted; `docs/migration.md` says what to do about each."""

    CLUSTER_TOO_OLD = "the cluster has no such agents"
    UNIFIED_API_OFF = "the cluster's unified agent API is off"
    ALREADY_UNIFIED = "the agent is a unified one already"
    TYPE_NOT_UNIFIED = "agents of its type never use a model block"
    NO_MEMORY_CONTAINER = "a V2 agent needs a memory container"
    NO_LLM = "the agent calls no LLM"
    MODEL_UNKNOWN = "the connector does not tell provider and model"
    AGENT_UNREADABLE = "what stands behind the agent can't be read"
    REGISTRATION_REFUSED = "the cluster refused the registration"


class NotPromoted(Exception):
    """The agent can't be registered as a unified one; the message says why and what to do."""

    def __init__(self, obstacle: Obstacle, message: str) -> None:
        super().__init__(message)
        self.obstacle = obstacle


@dataclass(frozen=True, slots=True)
class Promotion:
    """What would be registered. body: without the credential. url: the LLM's own where it is not the public one.

    credential: the names it has. changes: what will be different, in words.
    """

    agent_id: str
    provider: str
    body: Mapping[str, Any]
    url: str
    credential: tuple[str, ...]
    changes: tuple[str, ...]

    @property
    def call(self) -> Call:
        """The registration, the credential left out."""
        return Call("POST", f"{_ML}agents/_register", dict(self.body))


def promotion(documents: Documents, agent_id: str, agent_type: str = "", container: str = "") -> Promotion:
    """The registration for a legacy agent.

    agent_type: `conversational_v2`, or "" for the agent's own. container: the memory container of a V2 agent.

    Raises:
        NotPromoted: the cluster or the agent's type does not allow it, or it can't be told what to register.
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
    if provider not in PROVIDERS or not model:
        known = ", ".join(PROVIDERS)
        raise NotPromoted(
            Obstacle.MODEL_UNKNOWN, f"the connector does not tell provider and model id; known are {known}"
        )
    region = connector.parameters.get("region", "us-east-1")
    url = _PLACEHOLDER.sub(lambda found: connector.parameters.get(found[1], found[2] or found[0]), connector.url)
    made = kind(provider)
    public = substitute(made.url, {"region": region, "model": model})
    body = _body(documents.agents[agent_id], profile, provider, model, agent_type, container)
    changes = tuple(_changes(profile, connector, provider, agent_type, documents.version))
    credential = (*made.credentials[0], *made.optional_credentials)
    return Promotion(agent_id, provider, body, "" if url == public else url, credential, changes)


def _require_unified(documents: Documents) -> None:
    if documents.version < (3, 5):
        version = ".".join(map(str, documents.version))
        reason = f"unified agents exist from 3.5 on, and this cluster is {version}: upgrade it first"
        raise NotPromoted(Obstacle.CLUSTER_TOO_OLD, reason)
    if documents.unified_api is False:
        call = f'PUT /_cluster/settings {{"persistent":{{"{SETTING}":true}}}}'
        raise NotPromoted(Obstacle.UNIFIED_API_OFF, f"the cluster's unified agent API is off; this turns it on: {call}")


def _require_legacy(profile: AgentProfile, agent_type: str, container: str) -> None:
    if profile.generation is not Generation.FUNCTION_CALLING:
        raise NotPromoted(Obstacle.ALREADY_UNIFIED, f"{profile.id} is a unified agent already")
    if profile.agent_type not in TYPES:
        reason = f"a {profile.type} agent runs its tools and never the model of a `model` block: leave it as it is"
        raise NotPromoted(Obstacle.TYPE_NOT_UNIFIED, f"{reason}, or register a conversational one")
    if agent_type == V2 and profile.agent_type is not AgentType.CONVERSATIONAL:
        raise NotPromoted(Obstacle.TYPE_NOT_UNIFIED, f"a {profile.type} agent can't become {V2}")
    if agent_type == V2 and profile.version < (3, 6):
        raise NotPromoted(Obstacle.CLUSTER_TOO_OLD, f"{V2} exists from 3.6 on")
    if agent_type == V2 and not container:
        raise NotPromoted(
            Obstacle.NO_MEMORY_CONTAINER, f"{V2} needs a memory container: name it by --memory-container ID"
        )
    if not profile.models:
        raise NotPromoted(Obstacle.NO_LLM, Obstacle.NO_LLM.value)


def _model_in_url(connector: Connector) -> str:
    found = re.search(r"/models?/([^/:$]+)[:/]", connector.url)
    return found[1] if found else ""


def _body(
    agent: Document, profile: AgentProfile, provider: str, model: str, agent_type: str, container: str
) -> dict[str, Any]:
    kept = ("name", "description", "app_type", "tools", "memory")
    body: dict[str, Any] = {name: agent[name] for name in kept if agent.get(name) is not None}
    body["type"] = agent_type or profile.type
    if agent_type == V2:
        body["memory"] = {"type": "agentic_memory", "memory_container_id": container}
    body["model"] = {
        "model_id": model,
        "model_provider": provider,
        "model_parameters": _model_parameters(profile, provider),
    }
    own = {name: value for name, value in profile.parameters.items() if name not in _DROPPED}
    body["parameters"] = {**own, PROMOTED: profile.id}
    return body


def _model_parameters(profile: AgentProfile, provider: str) -> dict[str, str]:
    connector = profile.models[0].connector.parameters
    names = ("region", "system_prompt", "max_tokens", "temperature", "top_p", "reasoning_effort")
    found = {name: connector[name] for name in names if name in connector}
    found |= {name: value for name, value in profile.llm_parameters.items() if name not in _ANSWERS}
    if provider == "bedrock/converse":
        found.setdefault("system_prompt", "You are a helpful assistant.")  # its template has no default on 3.5, 3.6
    return found


def _changes(
    profile: AgentProfile, connector: Connector, provider: str, agent_type: str, version: tuple[int, ...]
) -> Iterator[str]:
    if not profile.llm_interface:
        yield "tools are called by the LLM's own function calling, no longer by a prompt that explains them"
    prompt = profile.llm_parameters.get("prompt", profile.parameters.get("prompt", ""))
    if prompt.strip() not in ("", "${parameters.question}"):
        yield "the agent's own prompt is not sent: put what matters of it into system_prompt"
    if provider.startswith("openai/"):
        yield "no system prompt is sent: the cluster's template for OpenAI has no place for one"
    try:
        lost = sorted(members(connector.request_body).keys() - _SENT[provider])
    except NotOffered:
        lost = []
    if lost:
        yield f"members of the request body that are no longer sent as they were: {', '.join(lost)}"
    if version >= _LIMITED and "max_tokens" not in _model_parameters(profile, provider):
        yield "answers end at 4096 tokens, as no max_tokens is set"
    if provider == "bedrock/converse" and connector.protocol != "aws_sigv4":
        yield "requests are signed with SigV4, with AWS keys as the credential"
    if agent_type == V2:
        yield "answers have the unified form, `parameters.question` is refused, and old conversations are not found"
    else:
        yield "old conversations go on: a memory_id is valid for any agent of the cluster"
    if "executor_agent_id" in profile.parameters:
        yield "a new executor agent is made with it"


def redirected(model: Document, url: str) -> dict[str, Any]:
    """The body of `PUT models/{id}` that points the connector inside a model at `url` (FACTS.md, 3.5 and later)."""
    actions = [{**action, "url": url} for action in model["connector"]["actions"]]
    return {"connector": {"actions": actions}}


def taking_back(agent_id: str, model_id: str) -> tuple[Call, ...]:
    """The calls that remove a promoted agent and the model that the cluster made for it."""
    return (
        Call("DELETE", f"{_ML}agents/{agent_id}"),
        Call("POST", f"{_ML}models/{model_id}/_undeploy"),
        Call("DELETE", f"{_ML}models/{model_id}"),
    )


def alias_rule(old: str, new: str) -> str:
    """The gateway's settings by which clients keep the old id."""
    return f"agents:\n  aliases:\n    {old}: {new}\n"


def is_promoted(agent: Document, old: str) -> bool:
    """Whether an agent's document is that of `old`, promoted."""
    parameters = agent.get("parameters")
    return isinstance(parameters, Mapping) and parameters.get(PROMOTED) == old
