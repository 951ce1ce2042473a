"""Compares what an agent's LLM gets with what that of its copy gets, for one request of each kind. Pure.

The requests are rendered for both as `mlc-gateway rehearse` renders recorded ones (`gateway.migrate.rehearse`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.agents.documents import Document
from gateway.errors import UnresolvedAgent
from gateway.migrate.assess import TYPES
from gateway.migrate.proof import KINDS, sample
from gateway.migrate.recorded import Options, read_run
from gateway.migrate.rehearse import Kind, Rehearsal, RehearsedAgent, Verdict
from gateway.migrate.upgrade import Documents

QUESTION = "question"
"""The kind of a request without `input`."""
_GOOD = (Kind.SAME, Kind.ARRIVES_NOW, Kind.REFUSED_BY_BOTH)


class Check(msgspec.Struct, frozen=True):
    """What becomes of one kind of request. request: `QUESTION`, or a kind of `input`."""

    request: str
    verdict: Verdict

    @property
    def is_same(self) -> bool:
        """True if the copy takes this kind as well as the old agent does."""
        return self.verdict.kind in _GOOD

    @property
    def is_lost(self) -> bool:
        """True if only the old agent takes this kind."""
        return self.verdict.kind is Kind.REFUSED


def check_copy(old: tuple[Documents, str], new: tuple[Documents, str], options: Options) -> tuple[Check, ...]:
    """Compare an agent with its copy. old, new: the documents of a cluster, and the agent's id."""
    rehearsal = Rehearsal(rehearsed_agent(*old, options), rehearsed_agent(*new, options))
    provider = _provider(*old)
    bodies = _requests(provider)
    return tuple(Check(kind, rehearsal.judge(read_run(kind, body, False, options))) for kind, body in bodies)


def _requests(provider: str) -> Iterator[tuple[str, bytes]]:
    yield QUESTION, json.dumps({"parameters": {"question": sample("text", provider)}}).encode()
    for kind in KINDS:
        yield kind, json.dumps({"input": sample(kind, provider)}).encode()


def _provider(documents: Documents, agent_id: str) -> str:
    try:
        return documents.profile(agent_id).provider
    except UnresolvedAgent:
        return ""


def rehearsed_agent(documents: Documents, agent_id: str, options: Options) -> RehearsedAgent:
    """Return an agent whose LLM calls are rendered; if it can't be read, it says so for each request."""
    document: Document = documents.agents[agent_id]
    try:
        profile = documents.profile(agent_id)
        if profile.agent_type not in TYPES:
            raise UnresolvedAgent(f"the gateway does not know how agents of type {profile.type} take their input")
    except UnresolvedAgent as error:
        return RehearsedAgent(None, document, options, error.reason)
    return RehearsedAgent(profile, document, options)


def as_json(check: Check) -> Mapping[str, Any]:
    """Return a check as JSON data."""
    verdict = check.verdict
    return {
        "request": check.request,
        "result": verdict.kind.value,
        "differences": list(verdict.differences),
        "codes": list(verdict.codes),
        "reason": verdict.reason,
        "help": verdict.help,
    }
