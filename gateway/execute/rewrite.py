"""The rewrite itself, without any I/O: an execute body and a profile in, the cluster's body out.

The gateway and the offline `mlc-gateway rewrite` both call this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.delivery.cluster_limits import refuse_cluster_limits
from gateway.delivery.describe import describe
from gateway.delivery.native import guard
from gateway.delivery.plan import Plan, Remembered, assume
from gateway.delivery.plan_cache import PlanCache
from gateway.delivery.textonly import TextOnly
from gateway.delivery.trees import replace_texts
from gateway.errors import UndeliverableContent
from gateway.execute.body import payloads_of, serialised, with_members
from gateway.mlcommons.generations import ABILITIES, Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.template import PREFIX
from gateway.notices import Notice
from gateway.providers import registry
from gateway.providers.base import MappingOptions, Provider
from gateway.unified.model import AgentInput
from gateway.unified.payloads import ExtractedBody, Payload
from gateway.unified.question import question_text
from gateway.unified.request import ExecuteRequest, parameters_as_strings

_PLACEHOLDER = re.compile(re.escape(PREFIX).encode())


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A request ready for the cluster. body: its pieces, None where the client's own bytes go as they came."""

    plan: Plan
    body: list[Payload] | None


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator chose. describe: replace media that can't be delivered by a note in words."""

    options: MappingOptions = field(default_factory=MappingOptions)
    describe: bool = False


def is_native(profile: AgentProfile, agent_input: AgentInput) -> bool:
    """Whether the agent takes this input itself, as far as its profile tells.

    A V1 agent takes text, but would expand placeholders in it; sent as a question, such text can be guarded.
    """
    if profile.unified_api is False or agent_input.type.value not in ABILITIES[profile.generation].native:
        return False
    return profile.generation is Generation.UNIFIED_V2 or PREFIX not in question_text(agent_input)


def native(
    profile: AgentProfile,
    request: ExecuteRequest,
    agent_input: AgentInput,
    streaming: bool,
    guards: Mapping[str, str] | None = None,
) -> Rewritten:
    """The client's own request, as it came where it can be.

    guards: parameters to send with it (`GUARDS`, when the agent's memory turns out to hold coded text).

    Changed are: `question` beside `input`, which goes, as not every version lets `input` win; placeholders in
    the input's texts, which the cluster would expand; and missing `parameters` on the stream endpoint, which
    wants them there (FACTS.md, 3.5 and later).

    Raises:
        UndeliverableContent: the cluster can't serve it (`refuse_cluster_limits`).
    """
    refuse_cluster_limits(profile, agent_input)
    extracted = request.extracted
    said, helpers = guard(_texts_restored(json.loads(extracted.text)["input"], extracted))
    helpers = {**(guards or {}), **helpers}
    notices = (Notice("MEMORY_HOLDS_CODE", "the agent's memory stores the text with references in it"),)
    told = Plan("native", profile.provider, {}, question_text(agent_input), None, notices if helpers else ())
    if not (helpers or request.has_question or (streaming and not request.parameters)):
        return Rewritten(told, None)
    own = {name: value for name, value in request.parameters.items() if name != "question"}
    parameters = {**own, **helpers}
    change = {"input": said, "parameters": parameters if parameters or streaming else None}
    return Rewritten(told, with_members(extracted, change))


def _texts_restored(value: Any, extracted: ExtractedBody) -> Any:
    """`value` with those long strings put back that hold a placeholder; all others stay tokens."""
    tokens = {token for token in extracted.blobs if _PLACEHOLDER.search(extracted.data(token))}
    return replace_texts(value, {token: extracted.restore(token) for token in tokens}) if tokens else value


def rewritten(
    profile: AgentProfile,
    request: ExecuteRequest,
    agent_input: AgentInput,
    policy: Policy,
    remembered: Remembered = (),
    plans: PlanCache | None = None,
) -> Rewritten:
    """The request that makes `agent_input` arrive at the agent's LLM.

    plans: those made for this `profile` before, to be reused.

    Raises:
        UndeliverableContent: it can't arrive whole; the problems say which part and why.
    """
    refuse_cluster_limits(profile, agent_input)
    plans = PlanCache(profile) if plans is None else plans
    assert plans.profile is profile
    provider = registry.provider(profile.provider) if profile.provider else TextOnly()
    params = parameters_as_strings(request.parameters)
    said = agent_input
    notices: tuple[Notice, ...] = ()
    while True:
        try:
            found = plans.plan(provider, said, params, policy.options, remembered)
            break
        except UndeliverableContent as refusal:
            if not policy.describe:
                raise
            said, more = describe(said, {problem.place for problem in refusal.problems})
            if not more:
                raise  # what is left to refuse is no medium
            notices += more
    if notices:
        found = replace(found, notices=(*found.notices, *notices))
    return Rewritten(found, _body(request, agent_input, found.parameters))


def rewritten_unproved(
    provider: Provider, request: ExecuteRequest, agent_input: AgentInput, policy: Policy
) -> Rewritten:
    """The request for an agent that can't be read, for the provider that the operator named.

    Raises:
        UndeliverableContent: the provider can't express the input.
    """
    found = assume(provider, agent_input, policy.options)
    return Rewritten(found, _body(request, agent_input, found.parameters))


def _body(request: ExecuteRequest, agent_input: AgentInput, parameters: Mapping[str, str]) -> list[Payload]:
    own = {name: value for name, value in request.parameters.items() if name != "question"}
    members: dict[str, Any] = {**request.other, "parameters": {**own, **parameters}}
    return serialised(members, payloads_of(agent_input))


def question_as_input(request: ExecuteRequest) -> list[Payload]:
    """A legacy request for an agent that takes only the unified input: its `question` as `input`."""
    rest = {name: value for name, value in request.parameters.items() if name != "question"}
    return with_members(request.extracted, {"input": request.parameters["question"], "parameters": rest or None})
