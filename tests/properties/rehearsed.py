"""Really runs requests on simulated clusters, and names the differences of what the LLMs got.

Nothing is shared with `gateway.migrate.llm_call`: the bodies are read by the rules of `tests.wire_formats`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gateway.errors import GatewayError
from gateway.execute.rewrite import (
    Rewrite,
    RewriteOptions,
    is_native,
    move_question_to_input,
    rewrite_input,
    rewrite_native,
)
from gateway.execute.rewriter import new_turn_id
from gateway.execute.template_cache import TemplateCache
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.simulator.errors import NoAnswer
from gateway.simulator.llm import answer_any
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.unified.model import AgentInput
from gateway.unified.request import ExecuteRequest, read_execute
from tests.delivery.simulated_cluster import Pairs, SimulatedCluster
from tests.wire_formats import FORMATS, canonical, is_claude

MEMBERS = {"system", "systemInstruction", "system_instruction"}
TOOLS = {"tools", "toolConfig", "tool_choice", "toolChoice", "parallel_tool_calls"}
TEXT_MEMBERS = {"prompt", "inputs", "inputText", "input", "question", "text", "query"}


@dataclass(frozen=True)
class Real:
    """What became of a request. codes: of the gateway's refusal; None if it was sent. body: what the LLM got, None if
    the cluster failed before. notices: codes.
    """

    provider: str
    codes: tuple[str, ...] | None
    body: Any
    notices: frozenset[str] = frozenset()

    @cached_property
    def read(self) -> _Body:
        """The body in parts."""
        return _read(self)


MEMORY = "memory-of-the-test"
"""Stands for the id of a memory in a request."""


def run_really(cluster: SimulatedCluster, name: str, data: bytes, pairs: Pairs = ()) -> Real:
    """Run a request through the gateway's rewrite on the simulated cluster. pairs: what its memory holds."""
    profile, agent_id = cluster.profile(name), cluster.agents[name]
    if MEMORY.encode() in data:
        data = data.replace(MEMORY.encode(), cluster.remembering(pairs).encode())
    request = read_execute(data)
    notices: frozenset[str] = frozenset()
    if request.input is not None:
        try:
            sent = _rewrite(cluster, profile, request, request.input)
        except GatewayError as error:
            return Real(profile.provider, tuple(dict.fromkeys(problem.code for problem in error.problems)), None)
        data = data if sent.body is None else b"".join(sent.body)
        notices = frozenset(notice.code for notice in sent.plan.notices)
    elif profile.generation is Generation.UNIFIED_V2:
        data = b"".join(move_question_to_input(request))
    bodies: list[str] = []

    def answer(call: LlmRequest) -> LlmReply:
        bodies.append(call.body)
        return answer_any(call)

    cluster.core.llm = answer
    usual = cluster.core.tool_outputs[cluster.lister]
    cluster.core.tool_outputs[cluster.lister] = f"{usual} {cluster.lister}"  # no two tools answer the same
    try:
        with suppress(NoAnswer):
            cluster.core.execute(agent_id, data)
    finally:
        cluster.core.tool_outputs[cluster.lister] = usual
        cluster.forget()
    return Real(profile.provider, None, _body(bodies[0]) if bodies else None, notices)


_TEMPLATES: dict[tuple[int, str], TemplateCache] = {}
"""By the cluster's identity and the agent's id."""


def _rewrite(
    cluster: SimulatedCluster, profile: AgentProfile, request: ExecuteRequest, agent_input: AgentInput
) -> Rewrite:
    """Rewrite as the gateway does, which sends inputs of one shape by one template."""
    if is_native(profile, agent_input):
        return rewrite_native(profile, request, agent_input, False, new_turn_id(), RewriteOptions())

    def plan(given: AgentInput, turn_id: str) -> Rewrite:
        return rewrite_input(profile, request, given, RewriteOptions(), turn_id)

    templates = _TEMPLATES.setdefault((id(cluster), profile.id), TemplateCache(profile))
    return templates.rewrite(request, agent_input, False, new_turn_id, plan)


def _body(text: str) -> Any:
    """Return the body's JSON data, or its text where a cluster sends what is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def real_differences(old: Real, new: Real) -> set[str]:
    """Return the names of the differences of two LLM calls; ``content`` for what is neither text nor a member."""
    found = {f"+{code}" for code in new.notices - old.notices} | {f"-{code}" for code in old.notices - new.notices}
    if old.provider != new.provider:
        found.add("provider")
    before, after = old.read, new.read
    if before == after:
        return found
    if before.system != after.system:
        found.add("system text")
    for name in {**before.members, **after.members}.keys() - TOOLS:
        if before.members.get(name) != after.members.get(name):
            found.add("prompt" if name in TEXT_MEMBERS else name)
    if _tools(before, old.provider == new.provider) != _tools(after, old.provider == new.provider):
        found.add("tools")
    same_texts = Counter(before.texts) == Counter(after.texts)
    if not same_texts:
        found.add("prompt")
    is_parted = same_texts and before.conversation != after.conversation
    if old.provider == new.provider and (before.others != after.others or is_parted or not found - _codes(found)):
        found.add("content")
    return found


def _tools(body: _Body, same_form: bool) -> Any:
    """Return what declares tools. Between two providers, only whether there is any is compared."""
    tools = {name: value for name, value in body.members.items() if name in TOOLS}
    return tools if same_form else bool(tools)


def _codes(names: set[str]) -> set[str]:
    return {name for name in names if name[0] in "+-"}


@dataclass(frozen=True)
class _Body:
    system: list[str]
    texts: list[str]
    others: Counter[str]
    members: dict[str, Any]
    conversation: list[Any]
    turns: Any


def _read(real: Real) -> _Body:
    body, wire = real.body, FORMATS.get(real.provider)
    if not isinstance(body, dict):
        return _Body([], [], Counter(), {"body": body}, [], None)
    field = wire.messages if wire else next((name for name in ("messages", "contents") if name in body), "")
    turns = body.get(field)
    turns = canonical(wire, turns) if wire else turns
    system = list(_plain(body.get("system"))) + list(_plain((body.get("systemInstruction") or {}).get("parts")))
    texts: list[str] = []
    others: Counter[str] = Counter()
    for turn in turns or ():
        parts = turn.get("content") if "content" in turn else turn.get("parts")
        role = turn.get("role")
        if role in ("system", "developer"):
            system += list(_plain(parts))
        elif role == "tool":
            others[json.dumps([turn.get("tool_call_id"), parts], sort_keys=True)] += 1
        else:
            texts += list(_plain(parts))
            others.update(json.dumps(part, sort_keys=True) for part in parts or () if not _is_text(part))
        others.update(json.dumps(call, sort_keys=True) for call in turn.get("tool_calls") or ())
    apart = {field, *(MEMBERS if wire and (is_claude(wire) or real.provider != "openai/v1/chat/completions") else ())}
    members = {name: value for name, value in body.items() if name not in apart}
    conversation = [turn for turn in turns or () if turn.get("role") not in ("system", "developer")]
    return _Body(system, texts, others, members, conversation, turns)


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and "text" in part and part.keys() <= {"text", "type"})


def _plain(parts: Any) -> Iterator[str]:
    if isinstance(parts, str):
        yield parts
    elif isinstance(parts, list):
        yield from (part if isinstance(part, str) else part["text"] for part in parts if _is_text(part))
