"""The form of answers: which are converted to the unified form or get a session's id, and the conversion."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from gateway.agents.documents import rule_for
from gateway.config.schema import AgentRule, Settings
from gateway.execute.run_answer import MEMORY_ID, RunAnswer, read_answer
from gateway.memory.model import Usage
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.ports import Answer, AnswerStage, Forward

_Members = dict[str, msgspec.Raw]


def unified_answer(run: RunAnswer, memory_id: str) -> bytes:
    """Return the answer as V2 agents of 3.6 and later give it.

    ``{"stop_reason", "message": {"role", "content"}, "memory_id", "metrics": {"total_usage"}}``. `total_usage` has the
    counts that the cluster's answer reports, and is empty where it reports none. An answer that does not say why it
    ended has ended its turn. memory_id: "" to leave it out.
    """
    last = run.messages[-1] if run.messages else None
    content = list(last.content) if last is not None and last.role == "assistant" else [{"text": run.text or ""}]
    document = {
        "stop_reason": run.stop_reason or "end_turn",
        "message": {"role": "assistant", "content": content},
        **({MEMORY_ID: memory_id} if memory_id else {}),
        "metrics": {"total_usage": _counts(run.usage or Usage())},
    }
    return msgspec.json.encode(document)


def _counts(usage: Usage) -> dict[str, int]:
    counts = {"inputTokens": usage.input, "outputTokens": usage.output, "totalTokens": usage.total}
    return {name: count for name, count in counts.items() if count is not None}


def with_memory_id(body: bytes, memory_id: str) -> bytes:
    """Return an answer with this `memory_id`, or without any for "". All other values keep their bytes.

    In a legacy answer it is the output of that name, added as the first one if there is none; in a unified answer, the
    member. A body in neither form is returned as it is.
    """
    try:
        document = msgspec.json.decode(body, type=_Members)
        if "message" in document and not memory_id:
            document.pop(MEMORY_ID, None)
        elif "message" in document:
            document[MEMORY_ID] = _raw(memory_id)
        elif "inference_results" in document:
            document["inference_results"] = _with_output(document["inference_results"], memory_id)
        else:
            return body
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body
    return msgspec.json.encode(document)


def _with_output(written: msgspec.Raw, memory_id: str) -> msgspec.Raw:
    """Return `inference_results` with the id in the outputs of its first result, or without any."""
    results = msgspec.json.decode(written, type=list[msgspec.Raw])
    first = msgspec.json.decode(results[0], type=_Members) if results else {}
    if "output" not in first:
        return written
    outputs = msgspec.json.decode(first["output"], type=list[msgspec.Raw])
    place = next((i for i, output in enumerate(outputs) if _name(output) == MEMORY_ID), None)
    if not memory_id:
        outputs = [output for i, output in enumerate(outputs) if i != place]
    else:
        entry = _raw({"name": MEMORY_ID, "result": memory_id})
        outputs = [entry, *outputs] if place is None else [*outputs[:place], entry, *outputs[place + 1 :]]
    first["output"] = _raw(outputs)
    return _raw([_raw(first), *results[1:]])


def _name(output: msgspec.Raw) -> object:
    document = msgspec.json.decode(output)
    return document.get("name") if isinstance(document, dict) else None


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


_SMALL = 64 * 1024


class Outputs:
    """Converts answers by the rules of the operator and the marks of registrations."""

    def __init__(self, settings: Settings) -> None:
        self._rules = settings.agents.rules

    def rule(self, agent_id: str, name: str = "") -> AgentRule | None:
        """Return the operator's rule for an agent."""
        return rule_for(agent_id, name, self._rules)

    def converts(self, profile: AgentProfile) -> bool:
        """Return True if the agent's answers are converted. A V2 agent of the cluster answers in that form itself."""
        if profile.generation is Generation.UNIFIED_V2:
            return False
        rule = self.rule(profile.id, profile.name)
        if rule is None or rule.output == "auto":
            return profile.unified_output
        return rule.output == "unified"

    def write(self, profile: AgentProfile, run: RunAnswer, body: bytes, memory_id: str) -> bytes:
        """Return an answer with the id of its session. body: as the cluster sent it. run: what was read of it."""
        if run.text is None or not self.converts(profile):
            return with_memory_id(body, memory_id)
        return unified_answer(run, memory_id)

    def attach(self, profile: AgentProfile, forward: Forward) -> Forward:
        """Return `forward` with the conversion of its answer, if the agent's answers are converted."""
        return forward.through(Conversion(profile)) if self.converts(profile) else forward


class Conversion(AnswerStage):
    """Converts the answers of an agent to the unified form."""

    def __init__(self, profile: AgentProfile) -> None:
        self._profile = profile

    @override
    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        if answer.status >= 300 or streamed:
            return answer
        run = await run_here_if(len(answer.body) <= _SMALL, read_answer, self._profile, answer.body)
        return answer if run.text is None else replace(answer, body=unified_answer(run, run.memory_id))
