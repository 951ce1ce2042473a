"""Input that a unified agent accepts but its cluster can't process. Refused before anything is sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.unified.model import AgentInput, Media

_LAST_READ = (3, 8)
"""The last release whose sources and recordings show these limits. A later one may have fixed them."""
_NOT_TO_OPENAI = ("document", "video")
_SWITCH = 'PUT /_cluster/settings {"persistent":{"plugins.ml_commons.unified_agent_api_enabled":true}}'


def refuse_cluster_limits(profile: AgentProfile, agent_input: AgentInput) -> None:
    """Refuse input that the cluster can't process.

    Raises:
        UndeliverableContent: the API that a V2 agent needs is off (UNIFIED_API_OFF); the cluster can't read Gemini's
            responses to V2 agents (ANSWER_NOT_READ: recorded on 3.6.0 and 3.8.0, 500 "parseToUnifiedMessage is not yet
            supported"); or it has no form for this media on OpenAI (MEDIA_KIND_UNSUPPORTED: a 400 on 3.6.0).
    """
    if profile.generation is Generation.UNIFIED_V2 and (found := list(_problems(profile, agent_input))):
        raise UndeliverableContent.of(found)


def _problems(profile: AgentProfile, agent_input: AgentInput) -> Iterator[Problem]:
    if profile.unified_api is False:
        reason = f"{profile.type} agents need the cluster's unified agent API, which is off"
        yield Problem("input", reason, code="UNIFIED_API_OFF", help=f"an administrator runs: {_SWITCH}")
    elif profile.version[:2] > _LAST_READ:
        return
    elif profile.provider.startswith("gemini/"):
        reason = f"the cluster can't read Gemini's answers to {profile.type} agents"
        yield Problem("input", reason, code="ANSWER_NOT_READ", help="use an agent of type conversational")
    elif profile.provider.startswith("openai/"):
        for block in (block for message in agent_input.messages for block in message.content):
            if isinstance(block, Media) and block.kind in _NOT_TO_OPENAI:
                yield Problem(
                    block.at,
                    f"the cluster sends OpenAI no {block.kind} blocks for agents of this type",
                    "text or image",
                    f"{block.kind} ({block.format})",
                    "MEDIA_KIND_UNSUPPORTED",
                    "use an agent of type conversational, whose requests the gateway writes",
                )
