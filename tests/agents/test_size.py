"""What an agent's documents may hold: each limit is a refusal, and the work for what is taken grows linearly."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import weakref
from collections.abc import Mapping
from typing import Any

import pytest

from bench.attacks.documents import MAKERS, Document, Documents, chat, connector, flow, mutated, tool
from gateway.agents.documents import read_profile
from gateway.agents.resolver import Resolver
from gateway.agents.size import MOST_WEIGHT, is_small, weigh
from gateway.delivery.plain_chat import NAME_OR_TEXT, TextOnly
from gateway.delivery.plan import plan
from gateway.errors import GatewayError, UndeliverableContent, UnresolvedAgent
from gateway.execute.rewrite import Rewrite, RewriteOptions, rewrite_input
from gateway.execute.template_cache import TemplateCache
from gateway.mlcommons import expansion
from gateway.mlcommons.expansion import MOST_WORK, Work
from gateway.providers import registry
from gateway.providers.base import MappingOptions
from gateway.unified.model import AgentInput, InputType, Message, Text
from gateway.unified.request import read_execute
from tests.conftest import mostly_slow, share

from .conftest import ML, Clock

VERSION = {"version": {"number": "2.19.0", "distribution": "opensearch"}}
ASKED = AgentInput(InputType.TEXT, (Message("user", (Text("hello", "input"),), "input"),))
TALKED = AgentInput(
    InputType.MESSAGES,
    tuple(
        Message(role, (Text(text, f"input[{i}].content[0]"),), f"input[{i}]")
        for i, (role, text) in enumerate([("system", "be"), ("user", "a"), ("assistant", "b"), ("user", "c")])
    ),
)
CODED = AgentInput(InputType.TEXT, (Message("user", (Text("['x ${parameters.a}", "input"),), "input"),))


class Held(dict[str, Any]):
    """A document to which there can be weak references."""


class Lookup:
    """Shows documents of the agent `a`. held: those that were shown and are still in memory."""

    def __init__(self, documents: Documents) -> None:
        self.documents: Mapping[str, Document] = {**documents.by_path("a"), "/": VERSION}
        self.held: list[weakref.ref[Held]] = []
        self.asked: list[str] = []

    async def get_json(self, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        self.asked.append(path)
        if path not in self.documents:
            return 404, Held(error={"reason": "none"})
        document = Held(self.documents[path])
        self.held.append(weakref.ref(document))
        return 200, document


def resolver_of(documents: Documents) -> tuple[Resolver, Lookup]:
    lookup = Lookup(documents)
    return Resolver(lookup, clock=Clock()), lookup


def plain(size: int) -> Documents:
    return flow([tool()], description="x" * size)


LARGEST: dict[str, tuple[str, int, int, str]] = {
    # maker, the size that is taken, the size that is not, what the refusal says
    "tools that call": ("tools", 200, 201, "too many tools that call a model"),
    "tools": ("tools that call nothing", 199, 200, "too many tools, with those of the agents it runs"),
    "tools of agents": ("agents that run agents", 9, 10, "too many tools that call a model"),
    "documents": ("models", 99, 100, "needs more models, connectors and agents"),
    "text": ("a long template", 999, 1001, "too much text"),
    "values": ("a template with many values", 990, 1001, "too many JSON values"),
    "placeholders": ("placeholders of one name", 199, 201, "too many placeholders in its parameters and templates"),
    "levels": ("a deep document", 96, 99, "nested too deeply"),
}


@pytest.mark.parametrize(("maker", "taken", "refused", "reason"), LARGEST.values(), ids=LARGEST)
async def test_the_largest_agent_of_each_kind(maker: str, taken: int, refused: int, reason: str) -> None:
    resolver, _ = resolver_of(MAKERS[maker](taken))
    assert (await resolver.profile("a", {})).id == "a"
    resolver, _ = resolver_of(MAKERS[maker](refused))
    with pytest.raises(UnresolvedAgent, match=reason) as error:
        await resolver.agent("a", {})
    (problem,) = error.value.problems
    assert (problem.place, problem.code) == ("agents/a", "AGENT_TOO_LARGE")
    assert problem.expected.startswith("at most ")
    assert problem.help


async def test_documents_that_weigh_too_much() -> None:
    resolver, _ = resolver_of(plain(MOST_WEIGHT - 2000))
    assert (await resolver.profile("a", {})).id == "a"
    resolver, _ = resolver_of(plain(MOST_WEIGHT))
    with pytest.raises(UnresolvedAgent, match="too large or nested too deeply"):
        await resolver.agent("a", {})


def test_weighing_stops() -> None:
    assert weigh({"a": ["x", 1, None]}, 1000) == 5 * 16 + 2
    assert weigh([1] * 1_000_000, 100) <= 116


async def test_a_refusal_is_cached_like_a_plan() -> None:
    resolver, lookup = resolver_of(MAKERS["tools"](300))
    for _ in range(3):
        with pytest.raises(UnresolvedAgent, match="too many tools"):
            await resolver.agent("a", {})
    assert lookup.asked.count(f"{ML}agents/a") == 1
    lookup.documents = {**MAKERS["tools"](200).by_path("a"), "/": VERSION}
    resolver.invalidate("models", "any")
    assert (await resolver.profile("a", {})).id == "a"
    assert resolver.peek("a", resolver.caller({})) is not None


async def test_a_refusal_ends_with_its_time() -> None:
    lookup, clock = Lookup(MAKERS["tools"](300)), Clock()
    resolver = Resolver(lookup, ttl=3.0, clock=clock)
    with pytest.raises(UnresolvedAgent):
        await resolver.agent("a", {})
    assert resolver.peek("a", resolver.caller({})) is None
    lookup.documents = {**MAKERS["tools"](1).by_path("a"), "/": VERSION}
    clock.now += 3
    assert (await resolver.profile("a", {})).id == "a"


async def test_an_agent_that_is_missing_is_looked_for_again() -> None:
    resolver, lookup = resolver_of(flow([tool()]))
    shown, lookup.documents = lookup.documents, {}
    with pytest.raises(GatewayError):
        await resolver.agent("a", {})
    lookup.documents = shown
    assert (await resolver.profile("a", {})).id == "a"


REFUSED = {
    "too large": MAKERS["tools"](300),
    "too heavy": plain(MOST_WEIGHT),
    "not readable": flow([tool()], type=["flow"]),
    "a model that is missing": Documents(flow([tool()]).agent),
    "no connector": Documents(flow([tool()]).agent, {"m": {"name": "m"}}),
    "no actions": flow([tool()], connector(actions=[])),
}


@pytest.mark.parametrize("documents", REFUSED.values(), ids=REFUSED)
async def test_no_cycle_holds_a_document_of_a_refused_agent(documents: Documents, small_heap: None) -> None:
    resolver, lookup = resolver_of(documents)
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(UnresolvedAgent):
                await resolver.agent("a", {})
            resolver.invalidate("agents")
        assert lookup.held
        assert [held() for held in lookup.held if held() is not None] == []
    finally:
        gc.enable()


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """The work of each plan: what was spent, and not what was left."""
    made: list[Work] = []

    class Counted(Work):
        def __init__(self, units: int) -> None:
            super().__init__(units)
            made.append(self)

    monkeypatch.setattr(expansion, "Work", Counted)
    monkeypatch.setattr(expansion, "_RENDERINGS", 0)  # so that nothing is allowed for the client's own texts
    return made


def profile_of(documents: Documents) -> Any:
    return read_profile(
        "a", documents.agent, documents.models, documents.connectors, (2, 19, 0), others=documents.others
    )


def plan_for(documents: Documents, asked: AgentInput) -> None:
    profile = profile_of(documents)
    provider = registry.provider(profile.provider) if profile.provider else TextOnly(NAME_OR_TEXT)
    plan(profile, provider, asked, {}, MappingOptions(), "t1")


def spent(documents: Documents, asked: AgentInput, works: list[Work]) -> int:
    works.clear()
    with contextlib.suppress(UnresolvedAgent, UndeliverableContent):
        plan_for(documents, asked)
    return sum(MOST_WORK - max(0, work.left) for work in works)


BOUNDED = {"placeholders that double", "tools that name the outputs of others"}
"""What is only bounded: a few values that contain each other; and each tool that is passed what all others answered."""


@pytest.mark.parametrize("maker", mostly_slow(sorted(MAKERS.keys() - BOUNDED), 4))
def test_the_work_grows_no_faster_than_the_documents(maker: str, works: list[Work]) -> None:
    for asked in (ASKED, TALKED, CODED):
        counts = [spent(MAKERS[maker](size), asked, works) for size in (24, 48, 96, 192)]
        usual = spent(MAKERS[maker](1), asked, works)
        for before, now in itertools.pairwise(counts):
            assert now <= 2.5 * before + usual, counts


@pytest.mark.parametrize("maker", sorted(BOUNDED))
def test_what_may_grow_faster_costs_no_more_than_a_constant(maker: str, works: list[Work]) -> None:
    assert max(spent(MAKERS[maker](size), ASKED, works) for size in (10, 40, 190)) < MOST_WORK // 10


def test_a_plan_that_is_too_much_work_is_refused_once(works: list[Work]) -> None:
    bare = "".join(f",${{parameters.p{i}:-null}}" for i in range(24))
    turn = '{"role":"user","content":"${parameters.prompt}"}'
    large = flow([tool()], connector(turn + bare, rest=f',"a":"{"x" * 900_000}","b":[{"1," * 40_000}1]'))
    profile = profile_of(large)
    templates = TemplateCache(profile)
    request = read_execute(b'{"input":"a"}')
    assert request.input is not None

    def planned(asked: AgentInput, turn_id: str) -> Rewrite:
        return rewrite_input(profile, request, asked, RewriteOptions(), turn_id)

    for _ in range(2):
        with pytest.raises(UndeliverableContent, match="too large together") as error:
            templates.rewrite(request, request.input, False, lambda: "t1", planned)
        assert [problem.code for problem in error.value.problems] == ["AGENT_TOO_LARGE"]
    assert len(works) == 1


@pytest.mark.parametrize(("note", "most"), [("", 64), ("x" * 100_000, 8)], ids=["small", "large"])
def test_fewer_templates_are_kept_of_an_agent_with_large_documents(note: str, most: int) -> None:
    profile = profile_of(flow([tool(note=note)]))
    templates, planned = TemplateCache(profile), []

    def sent(number: int) -> None:
        """Send a request with parameters of its own, and so of a shape of its own."""
        request = read_execute(b'{"input":"a","parameters":{"b":"%d"}}' % number)
        assert request.input is not None

        def planning(asked: AgentInput, turn_id: str) -> Rewrite:
            planned.append(number)
            return rewrite_input(profile, request, asked, RewriteOptions(), turn_id)

        templates.rewrite(request, request.input, False, lambda: "t1", planning)

    for number in [*range(most), *range(most), most, 0]:
        sent(number)
    assert planned == [*range(most + 1), 0]


@pytest.mark.parametrize("seed", range(8))
def test_documents_with_random_changes_are_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(share(5000) // 8 + 1):
        documents = mutated(rng)
        try:
            profile = profile_of(documents)
            is_small(profile)
            for asked in (ASKED, TALKED):
                plan_for(documents, asked)
        except (UnresolvedAgent, UndeliverableContent):
            pass


def test_a_chat_of_usual_size_is_planned_on_the_loop() -> None:
    assert is_small(profile_of(chat(tools=[tool(i) for i in range(3)])))
    assert not is_small(profile_of(MAKERS["tools"](40)))
