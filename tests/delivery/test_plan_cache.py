"""A plan reused for a plain text is the plan that would have been made for that very text."""

from __future__ import annotations

import ast
import gc
import weakref
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.delivery import plan_cache
from gateway.delivery.call_model import CallModelCache
from gateway.delivery.plain_chat import TextOnly
from gateway.delivery.plan import Plan, plan
from gateway.delivery.plan_cache import SPECIMEN, PlanCache, is_plain_text
from gateway.delivery.slots import PROBE, QUESTION
from gateway.errors import UndeliverableContent
from gateway.mlcommons.profile import AgentProfile
from gateway.notices import Notice
from gateway.providers import registry
from gateway.providers.base import MappingOptions
from gateway.unified.model import AgentInput, InputType, Message, Text
from tests.conftest import examples
from tests.delivery.simulated_cluster import cluster_of
from tests.docs.pages import GATEWAY
from tests.matrix import VERSIONS
from tests.strategies import hostile_text, spoken_text

AGENTS = [(version, name) for version in VERSIONS for name in sorted(cluster_of(version).agents)]
PARAMS: list[dict[str, str]] = [
    {},
    {},
    {"system_prompt": 'In "brief" $'},
    {"prompt": "<${parameters.question}>"},
    {"prompt": "$${parameters.x ${parameters.question}", "skip_validating_missing_parameters": "true"},
    {"prompt": "${parameters.question}}", "skip_validating_missing_parameters": "true"},
]
texts = hostile_text() | spoken_text() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


_caches: dict[int, PlanCache] = {}


@pytest.fixture(autouse=True)
def _no_plans_from_other_tests() -> None:
    """Each test plans for itself: some change how plans are made."""
    _caches.clear()


def plan_cached(profile: AgentProfile, *rest: Any) -> Plan:
    """A plan of the agent's own cache."""
    return _caches.setdefault(id(profile), PlanCache(profile)).plan(*rest)


def conversation(text: str, kind: InputType) -> AgentInput:
    at = {"text": "input", "content_blocks": "input[0].text", "messages": "input[0].content[0].text"}[kind.value]
    message = Message("user", (Text(text, at),), "input[0]" if kind is InputType.MESSAGES else "input")
    return AgentInput(kind, (message,))


def outcome(
    make: Any, version: str, name: str, agent_input: AgentInput, params: dict[str, str], remembered: Any = ()
) -> Any:
    profile = cluster_of(version).profile(name)
    provider = registry.provider(profile.provider) if profile.provider else TextOnly()
    try:
        return make(profile, provider, agent_input, params, MappingOptions(), "t1", remembered)
    except UndeliverableContent as error:
        return error.problems


@examples(200)
@given(st.sampled_from(AGENTS), texts.filter(str.strip), st.sampled_from(list(InputType)), st.sampled_from(PARAMS))
@example(AGENTS[0], "a :- b } c", InputType.TEXT, PARAMS[4])
@example(AGENTS[0], ' "quoted" \\ and\n\ttabbed, naïve 😀 [x] ', InputType.TEXT, {})
def test_a_reused_plan_is_the_plan_of_the_text(
    agent: tuple[str, str], text: str, kind: InputType, params: dict[str, str]
) -> None:
    assert outcome(plan_cached, *agent, conversation(text, kind), params) == outcome(
        plan, *agent, conversation(text, kind), params
    )


@pytest.mark.parametrize("agent", AGENTS, ids="-".join)
def test_every_agent_that_takes_text_takes_it_by_a_reused_plan(
    agent: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'He said: "100 % of /a\\b",\nthen naïvely 😀 left; why?'
    expected = outcome(plan, *agent, conversation(text, InputType.TEXT), {})
    assert outcome(plan_cached, *agent, conversation("first", InputType.TEXT), {}) is not None
    made: list[AgentInput] = []

    def counted(profile: Any, provider: Any, agent_input: AgentInput, *rest: Any) -> Plan:
        made.append(agent_input)
        return plan(profile, provider, agent_input, *rest)

    monkeypatch.setattr(plan_cache, "plan", counted)
    found = outcome(plan_cached, *agent, conversation(text, InputType.TEXT), {})
    assert found == expected
    assert made == ([] if isinstance(expected, Plan) else [conversation(text, InputType.TEXT)])


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n", "[1]", " \t[", "a $", "{", "}", "x:-y", f"a {QUESTION}", f"{PROBE} b", SPECIMEN],
)
def test_a_text_with_signs_is_not_plain(text: str) -> None:
    assert not is_plain_text(text)


@pytest.mark.parametrize(
    "text", ["a", "a [1] b", 'say "x"', "back\\slash", "tab\tnewline\n", "ünï 😀", "a: b - c", "\x7f"]
)
def test_any_other_text_is_plain(text: str) -> None:
    assert is_plain_text(text)


def test_remembered_turns_and_other_roles_are_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AgentInput] = []

    def noted(profile: Any, provider: Any, agent_input: AgentInput, *rest: Any) -> Plan:
        made.append(agent_input)
        return Plan("text", "", {}, "", None, (Notice("X", "y"),))

    monkeypatch.setattr(plan_cache, "plan", noted)
    one = conversation("hello", InputType.MESSAGES)
    other = replace(one, messages=(replace(one.messages[0], role="assistant"),))
    two = replace(one, messages=one.messages * 2)
    outcome(plan_cached, *AGENTS[0], one, {}, (("q", "a"),))
    outcome(plan_cached, *AGENTS[0], other, {})
    outcome(plan_cached, *AGENTS[0], two, {})
    assert made == [one, other, two]


@pytest.mark.usefixtures("small_heap")
def test_profiles_one_after_the_other_get_their_own_plans() -> None:
    provider = registry.provider("bedrock/converse")
    template = cluster_of("2.19.0").profile("flow-a")
    for number in range(20):
        (tool,) = template.tools
        prompt = {**tool.parameters, "prompt": f"Agent {number}: ${{parameters.question}}"}
        profile = replace(template, tools=(replace(tool, parameters=prompt),))
        plans = PlanCache(profile)
        for text in ("first", "second"):
            made = plans.plan(provider, conversation(text, InputType.MESSAGES), {}, MappingOptions(), "t1")
            assert made == plan(profile, provider, conversation(text, InputType.MESSAGES), {}, MappingOptions(), "t1")
        del profile, plans
        gc.collect()


def test_a_cache_is_freed_with_its_owner() -> None:
    plans = PlanCache(replace(cluster_of("2.19.0").profile("flow-a")))
    plans.plan(registry.provider("bedrock/converse"), conversation("hi", InputType.TEXT), {}, MappingOptions(), "t1")
    (call,) = plans._call_models._call_models
    freed = weakref.ref(plans), weakref.ref(call)
    del plans, call
    gc.collect()
    assert [found() for found in freed] == [None, None]


def test_nothing_is_kept_by_the_address_of_an_object() -> None:
    found = [
        f"{file.name}:{node.lineno}"
        for folder in ("agents", "delivery", "execute", "providers", "unified")
        for file in (GATEWAY / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"
    ]
    assert found == []


def test_a_cache_holds_a_bounded_number_of_plans() -> None:
    plans = PlanCache(cluster_of("2.19.0").profile("flow-a"))
    for number in range(3 * PlanCache.MAX_ENTRIES):
        params = {"memory_id": str(number)}
        plans.plan(
            registry.provider("bedrock/converse"), conversation("hi", InputType.TEXT), params, MappingOptions(), "t1"
        )
    assert len(plans._specimens) == PlanCache.MAX_ENTRIES
    assert len(plans._call_models._call_models) == CallModelCache.MAX_ENTRIES
