"""Requests that the cluster itself can't serve. Refused before anything is sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.agent_types import FLOW_TYPES
from gateway.mlcommons.agents import behaviour_of
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.sent_body import STREAM, has_streams, own_stream, stream_form
from gateway.unified.model import AgentInput, ConverseBlock, ToolResult, Url
from gateway.unified.roles import meaning_of

_OTHER_TYPE = "use an agent of type conversational, whose requests the gateway writes"
_SWITCH = 'PUT /_cluster/settings {"persistent":{"plugins.ml_commons.unified_agent_api_enabled":true}}'
_TOOL = '{"type":"VisualizationTool","name":"none","description":"Not available."}'


def refuse_cluster_limits(
    profile: AgentProfile, agent_input: AgentInput, params: Mapping[str, str], streaming: bool = False
) -> None:
    """Refuse a request that the cluster can't serve.

    params: the caller's own parameters. streaming: the request goes to the stream endpoint.

    Raises:
        UndeliverableContent: the agent can't stream, or a stream is asked for where there is none (STREAM_UNSUPPORTED);
            the agent has no tool or no memory and can't run without (TOOL_MISSING, MEMORY_MISSING);
            the API that a V2 agent needs is off (UNIFIED_API_OFF); the cluster can't read Gemini's responses to V2
            agents (ANSWER_NOT_READ: recorded on 3.6.0 and 3.8.0, 500 "parseToUnifiedMessage is not yet supported"); or
            it has no form for this media (MEDIA_KIND_UNSUPPORTED, MEDIA_SOURCE_UNSUPPORTED) or for two documents on
            Bedrock (COMBINATION_NOT_DELIVERABLE), for blocks of Bedrock's own on any API
            (NATIVE_BLOCK_UNSUPPORTED), or for a tool's answer without its call (TOOL_RESULT_MISSING): a 400 on 3.6.0.
    """
    problems = _v2_problems if profile.generation is Generation.UNIFIED_V2 else _agent_problems
    unstreamed = _stream_problem(profile, params, streaming)
    if found := [unstreamed] if unstreamed else list(problems(profile, agent_input, params)):
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


def _v2_problems(profile: AgentProfile, agent_input: AgentInput, _: Mapping[str, str]) -> Iterator[Problem]:
    if profile.unified_api is False:
        reason = f"{profile.type} agents need the cluster's unified agent API, which is off"
        yield Problem("input", reason, code="UNIFIED_API_OFF", help=f"an administrator runs: {_SWITCH}")
    elif profile.provider.startswith("gemini/"):
        reason = f"the cluster can't read Gemini's answers to {profile.type} agents"
        yield Problem("input", reason, code="ANSWER_NOT_READ", help="use an agent of type conversational")
    else:
        yield from _tool_problems(profile, agent_input)
        yield from _media_problems(profile, agent_input)
        for block in (block for message in agent_input.messages for block in message.content):
            if isinstance(block, ConverseBlock):
                reason = f"the cluster takes no {block.kind} blocks for agents of this type"
                other = f", or {_OTHER_TYPE}" if profile.provider.startswith("bedrock/") else ""
                expected = "text, image, document or video"
                help = f"leave the block out{other}"
                yield Problem(block.at, reason, expected, block.kind, "NATIVE_BLOCK_UNSUPPORTED", help)


def _media_problems(profile: AgentProfile, agent_input: AgentInput) -> Iterator[Problem]:
    """Yield the media that the cluster refuses, or sends in a form that the LLM refuses (run on 3.6.0 and 3.8.0)."""
    is_openai = profile.provider.startswith("openai/")
    kinds = ("image",) if is_openai else ("image", "document", "video")
    documents = 0
    for block in agent_input.media:
        received = f"{block.kind} ({block.format})"
        if block.kind not in kinds:
            reason = f"the cluster sends {'OpenAI ' if is_openai else ''}no {block.kind} blocks for agents of this type"
            expected = " or ".join(("text", *kinds))
            yield Problem(block.at, reason, expected, received, "MEDIA_KIND_UNSUPPORTED", _OTHER_TYPE)
        elif isinstance(block.source, Url) and (not is_openai or block.source.scheme not in ("http", "https")):
            reason = f"the cluster sends media by {block.source.scheme} URL in a form that this LLM refuses"
            help = f"send the data as base64, or {_OTHER_TYPE}"
            yield Problem(block.at, reason, "base64", block.source.scheme, "MEDIA_SOURCE_UNSUPPORTED", help)
        documents += block.kind == "document"
        if block.kind == "document" and not is_openai and documents > 1:
            reason = (
                "the cluster gives every document of these agents one name, and Bedrock refuses two of the same name"
            )
            yield Problem(block.at, reason, "one document", received, "COMBINATION_NOT_DELIVERABLE", _OTHER_TYPE)


def _tool_problems(profile: AgentProfile, agent_input: AgentInput) -> Iterator[Problem]:
    """Yield the messages of role `tool` without a call, which were read by another meaning (`agents.roles`)."""
    for message in agent_input.messages:
        is_tool = meaning_of(message).standard == "tool"  # these agents get roles as they were written
        if is_tool and not all(isinstance(block, ToolResult) for block in message.content):
            reason = f"{profile.type} agents get the role {message.role} as it is, and this message names no tool call"
            help = "name the call that the message answers, or give it the role user"
            yield Problem(
                message.at, reason, "a toolResult block, or toolCallId", "neither", "TOOL_RESULT_MISSING", help
            )


def _agent_problems(profile: AgentProfile, _: AgentInput, params: Mapping[str, str]) -> Iterator[Problem]:
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
