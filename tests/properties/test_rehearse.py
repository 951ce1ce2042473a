"""What a rehearsal says equals what is seen when both agents are really run, for every pair of fixture agents."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from functools import cache
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from typing_extensions import override

from gateway.migrate.recorded import Options, Reason, RecordedRun, read_run
from gateway.migrate.rehearse import Kind, Outcome, Rehearsal, RehearsedAgent, Verdict
from gateway.observe.media import shorten_media
from tests.conftest import examples, share
from tests.delivery.simulated_cluster import Pairs, SimulatedCluster, cluster_of
from tests.delivery.v2_agents import v2_cluster_of
from tests.matrix import V2_VERSION
from tests.properties.rehearsed import MEMORY, Real, real_differences, run_really
from tests.properties.test_delivery import SUPPRESSED, requests
from tests.strategies import hostile_text, spoken_text

OPTIONS = Options()
NOT_KNOWN = {Reason.LENIENT_JSON, Reason.OWN_WORD, Reason.TEXT_NOT_RECORDED, Reason.LLM_NOT_READ, Reason.TOO_LARGE}
"""Why these requests may not be judged: all else is in the record."""
CONTENT = {"media", "tool calls", "order"}
CLUSTERS: dict[str, SimulatedCluster] = {
    "2.19.0": cluster_of("2.19.0"),
    "3.8.0": cluster_of("3.8.0"),
    "V2": v2_cluster_of(V2_VERSION),
}
AGENTS = [(place, name) for place, cluster in CLUSTERS.items() for name in sorted(cluster.agents)]

REMEMBERING = [(place, name) for place, name in AGENTS if CLUSTERS[place].profile(name).memory_type]
_words = st.text("abcdefghij  äöü?.,'", min_size=1, max_size=30).filter(lambda text: bool(text.strip()))


class AskedOnce(RehearsedAgent):
    """An agent that is asked about a request once, though it is one of many pairs."""

    last: tuple[RecordedRun, str | None, Outcome] | None = None

    @override
    def outcome(self, run: RecordedRun, history: str | None = None, shape: Hashable = None) -> Outcome:
        if shape is not None:
            return super().outcome(run, history, shape)
        if self.last is None or self.last[0] is not run or self.last[1] != history:
            self.last = run, history, super().outcome(run, history)
        return self.last[2]


@cache
def rehearsed(place: str, name: str) -> RehearsedAgent:
    cluster = CLUSTERS[place]
    return AskedOnce(cluster.profile(name), cluster.core.resources.agent(cluster.agents[name]), OPTIONS)


@cache
def rehearsal(old: tuple[str, str], new: tuple[str, str]) -> Rehearsal:
    return Rehearsal(rehearsed(*old), rehearsed(*new))


@st.composite
def memories(draw: st.DrawFn) -> tuple[dict[str, Any], Pairs]:
    """A request that continues a conversation, and what its memory holds."""
    body = draw(st.builds(lambda text: {"parameters": {"question": text}}, _words | hostile_text()) | bodies())
    text = spoken_text().filter(lambda text: "${" not in text)  # with which any later call may fail
    pairs = draw(st.lists(st.tuples(text, text), max_size=2))
    return {**body, "parameters": {**body.get("parameters", {}), "memory_id": MEMORY}}, pairs


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A legacy or a unified request without a memory."""
    match draw(st.integers(0, 3)):
        case 0:
            return {"parameters": {"question": draw(_words)}}
        case 1:
            more = draw(st.sampled_from([{}, {"prompt": "<${parameters.question}>"}, {"system_prompt": "Say little."}]))
            return {"parameters": {"question": draw(hostile_text()), **more}}
        case 2:
            return {"input": draw(_words)}
    body: dict[str, Any] = draw(requests())[0]
    return body


def holds_for(
    pairs: Iterable[tuple[tuple[str, str], tuple[str, str]]], body: dict[str, Any], memory: Pairs | None = None
) -> None:
    data = json.dumps(body).encode()
    run = read_run("id", shorten_media(data), False, OPTIONS)
    known: dict[tuple[str, str], Real] = {}
    for old, new in pairs:
        verdict = rehearsal(old, new).judge(run)
        event(verdict.kind)
        for agent in (old, new):
            if agent not in known:
                known[agent] = run_really(CLUSTERS[agent[0]], agent[1], data, memory or ())
        if memory is not None and verdict.codes == (Reason.MEMORY_REPLAYED.name,):
            continue
        is_true(verdict, known[old], known[new], (old, new))


def is_true(verdict: Verdict, old: Real, new: Real, pair: Any) -> None:
    seen = (pair, verdict, old, new)
    match verdict.kind:
        case Kind.NOT_JUDGED:
            assert Reason[verdict.codes[0]] in NOT_KNOWN, seen
        case Kind.SAME:
            assert old.body is not None, seen
            assert real_differences(old, new) == set(), seen
        case Kind.DIFFERENT:
            assert old.body is not None, seen
            assert new.body is not None, seen
            names = set(verdict.differences)
            found = real_differences(old, new)
            if old.provider == new.provider:
                assert bool(names & CONTENT) == ("content" in found), (names, found, seen)
            assert names - CONTENT == found - {"content"}, (names, found, seen)
        case Kind.ARRIVES_NOW:
            assert old.body is None, seen
            assert new.body is not None, seen
        case Kind.REFUSED | Kind.REFUSED_BY_BOTH:
            assert (old.body is None) == (verdict.kind is Kind.REFUSED_BY_BOTH), seen
            assert new.body is None, seen
            assert verdict.codes == (new.codes or ("FAILS_ON_CLUSTER",)), seen


@examples(300, suppress_health_check=SUPPRESSED)
@given(st.lists(st.sampled_from(AGENTS), min_size=2, max_size=4), bodies())
def test_what_is_said_is_what_is_seen(agents: list[tuple[str, str]], body: dict[str, Any]) -> None:
    holds_for([(old, new) for old in agents for new in agents], body)


@examples(300, suppress_health_check=SUPPRESSED)
@given(st.lists(st.sampled_from(REMEMBERING), min_size=2, max_size=4), memories())
def test_what_is_said_of_a_conversation_is_what_is_seen(
    agents: list[tuple[str, str]], request: tuple[dict[str, Any], Pairs]
) -> None:
    body, memory = request
    holds_for([(old, new) for old in agents for new in agents], body, memory)


PARTS: dict[str, list[tuple[tuple[str, str], tuple[str, str]]]] = {
    f"{place}, part {part + 1} of {parts}": [
        (old, new)
        for number, old in enumerate(agent for agent in AGENTS if agent[0] == place)
        for new in AGENTS
        if number % parts == part and new[0] == place
    ]
    for place, parts in (("2.19.0", 2), ("3.8.0", 3), ("V2", 1))
    for part in range(parts)
}
"""The pairs of one cluster, in parts of a size for one test."""


ONE_TEMPLATE = {
    "input": [{"text": '"', "type": "text"}, {"text": "\ufeff", "type": "text"}],
    "parameters": {"system_prompt": "Say little.", "prompt": "<${parameters.question}>"},
}
"""Texts that would be delivered in another way if they were planned by themselves."""


@pytest.mark.slow(60)
@pytest.mark.parametrize("part", PARTS)
@settings(max_examples=2000 if share(100) == 100 else share(100), suppress_health_check=SUPPRESSED)
@given(body=bodies())
@example(body=ONE_TEMPLATE)
def test_what_is_said_of_every_pair_is_what_is_seen(part: str, body: dict[str, Any]) -> None:
    holds_for(PARTS[part], body)
