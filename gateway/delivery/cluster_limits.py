"""Requests that the cluster itself can't serve. Refused before anything is sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.agents import behaviour_of
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import FLOW_TYPES, Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.sent_body import STREAM, has_streams, own_stream, stream_form
from gateway.providers import registry

_SWITCH = 'PUT /_cluster/settings {"persistent":{"plugins.ml_commons.unified_agent_api_enabled":true}}'
_TOOL = '{"type":"VisualizationTool","name":"none","description":"Not available."}'


def refuse_cluster_limits(profile: AgentProfile, params: Mapping[str, str], streaming: bool = False) -> None:
    """Refuse a request that the cluster can't serve.

    params: the caller's own parameters. streaming: the request goes to the stream endpoint.

    Raises:
        UndeliverableContent: the agent can't stream, or a stream is asked for where there is none (STREAM_UNSUPPORTED);
            the agent has no tool or no memory and can't run without (TOOL_MISSING, MEMORY_MISSING);
            the API that a V2 agent needs is off (UNIFIED_API_OFF); the cluster can't read Gemini's responses to V2
            agents (ANSWER_NOT_READ: recorded on 3.6.0 and 3.8.0, 500 "parseToUnifiedMessage is not yet supported").
            What else it does not bring to the LLM is found in `gateway.delivery.native`.
    """
    problems = _v2_problems if profile.generation is Generation.UNIFIED_V2 else _agent_problems
    unstreamed = _stream_problem(profile, params, streaming)
    if found := [unstreamed] if unstreamed else list(problems(profile, params)):
        raise UndeliverableContent.of(found)


def _stream_problem(profile: AgentProfile, params: Mapping[str, str], streaming: bool) -> Problem | None:
    """Return why the agent can't stream, or why a run without a stream would not be answered (run on 3.6.0, 3.8.0)."""
    if not has_streams(profile):
        return None
    code = "STREAM_UNSUPPORTED"
    if streaming and stream_form(profile, params) is None:
        reason = (
            "the cluster can't stream this agent's answer: only conversational agents that call functions stream, and "
            "only with OpenAI chat completions over http or Bedrock Converse over aws_sigv4"
        )
        help = "send the request to `_execute`, without a stream"
        return Problem("_execute/stream", reason, "an agent that streams", profile.type, code, help)
    if not streaming and STREAM in params:
        reason = "with this parameter the cluster streams the LLM's answer to nobody, and never answers the request"
        help = "leave it out, or send the request to `_execute/stream`"
        return Problem(f"parameters.{STREAM}", reason, "no such parameter", params[STREAM], code, help)
    if not streaming and own_stream(profile):
        reason = "a connector or the agent has a parameter `stream`, with which the cluster never answers a request"
        help = "remove that parameter from the connector or the agent"
        return Problem(f"agents/{profile.id}", reason, "no parameter `stream`", STREAM, code, help)
    return None


def _v2_problems(profile: AgentProfile, _: Mapping[str, str]) -> Iterator[Problem]:
    if profile.unified_api is False:
        reason = f"{profile.type} agents need the cluster's unified agent API, which is off"
        yield Problem("input", reason, code="UNIFIED_API_OFF", help=f"an administrator runs: {_SWITCH}")
    elif not _reads_answers(profile.provider):
        of = profile.provider or "an unknown provider"
        reason = f"the cluster can't read the answers of {of} to {profile.type} agents"
        yield Problem("input", reason, code="ANSWER_NOT_READ", help="use an agent of type conversational")


def _reads_answers(provider: str) -> bool:
    """Return True if the cluster reads this provider's answers to V2 agents."""
    try:
        support = registry.provider(provider).cluster
    except (registry.UnknownProvider, registry.BrokenProvider):
        return False
    return support is not None and support.v2 is not None


def _agent_problems(profile: AgentProfile, params: Mapping[str, str]) -> Iterator[Problem]:
    try:
        lacking = behaviour_of(profile).lacks(profile, params)
    except RenderFailure:
        return  # reported when the request is planned
    for requirement in lacking:
        yield _tool_missing(profile, params) if requirement == "tool" else _memory_missing(profile)


def _memory_missing(profile: AgentProfile) -> Problem:
    reason = f"on OpenSearch 2, an agent of type {profile.type} fails without memory"
    help = 'register the agent again with "memory": {"type": "conversation_index"}'
    return Problem(f"agents/{profile.id}.memory", reason, "a memory", "none", "MEMORY_MISSING", help)


def _tool_missing(profile: AgentProfile, params: Mapping[str, str]) -> Problem:
    if profile.tools:
        place, received = "parameters.selected_tools", params["selected_tools"]
        help = "name at least one of " + ", ".join(tool.key for tool in profile.tools)
    else:
        place, received = f"agents/{profile.id}.tools", "none"
        is_flow = profile.agent_type in FLOW_TYPES
        tool = "an MLModelTool that names the model" if is_flow else f"a tool that it won't need: {_TOOL}"
        help = f"register the agent again with {tool}"
    reason = f"an agent of type {profile.type} can't run without a tool"
    return Problem(place, reason, "at least one tool", received, "TOOL_MISSING", help)
