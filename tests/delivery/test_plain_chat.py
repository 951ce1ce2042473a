"""Agents whose LLM's format is unknown get turns as role and text, where their template shows that it takes those."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.agents.documents import Rule
from gateway.delivery.plain_chat import TextOnly
from gateway.delivery.plan import Plan, plan
from gateway.errors import UndeliverableContent
from gateway.mlcommons.profile import AgentProfile
from gateway.providers.base import MappingOptions
from gateway.unified.request import read_execute
from tests.delivery.cases import CALL, IMAGE, text, turn
from tests.delivery.holdout import HoldoutCluster
from tests.delivery.simulated_cluster import cluster_of
from tests.oracle import Oracle, Outcome

OLD, NEW = "2.19.0", "3.4.0"
TALK = [turn("user", "What is on the shelf?"), turn("assistant", 'Three "books".'), turn("user", "Which ones?")]
CONTRACT = "Contract question: "
READER = {"role": "system", "content": "You read contracts."}


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


# id → version, agent, input, what the LLM gets, the codes of the notices
GOLDEN: dict[str, tuple[str, str, Any, list[dict[str, str]], list[str]]] = {
    "turns around the template's own": (
        NEW,
        "one-jamba",
        TALK,
        [
            READER,
            said("user", "What is on the shelf?"),
            said("assistant", 'Three "books".'),
            said("user", f"{CONTRACT}Which ones?"),
        ],
        ["FORMAT_GUESSED"],
    ),
    "one text needs no guess": (NEW, "one-jamba", "Which?", [READER, said("user", f"{CONTRACT}Which?")], []),
    "2.x has one text only": (
        OLD,
        "one-jamba",
        TALK,
        [
            READER,
            said("user", f'{CONTRACT}Human:What is on the shelf?\nAssistant:Three "books".\nHuman:Which ones?'),
        ],
        ["HISTORY_IN_QUESTION"],
    ),
    "an assistant's turn last is text": (
        NEW,
        "one-jamba",
        TALK[:2],
        [READER, said("user", f'{CONTRACT}Human:What is on the shelf?\nAssistant:Three "books".')],
        ["HISTORY_IN_QUESTION"],
    ),
    "several texts, and turns in a row, are one text": (
        NEW,
        "one-ollama_native",
        [turn("user", text("a "), text("b")), turn("assistant", text("c")), turn("user", "d"), turn("user", "e")],
        [said("user", "a\nb"), said("assistant", "c"), said("user", "d\ne")],
        ["TEXT_JOINED", "TEXT_JOINED", "FORMAT_GUESSED"],
    ),
    "tools as text": (
        NEW,
        "one-ollama_native",
        [turn("user", "a"), turn("assistant", CALL), turn("user", "b")],
        [
            said("user", "a"),
            said("assistant", json.dumps(CALL, ensure_ascii=False, separators=(",", ":"))),
            said("user", "b"),
        ],
        ["TOOLS_AS_TEXT", "FORMAT_GUESSED"],
    ),
    "system text is in the user's turn": (
        NEW,
        "one-ollama_native",
        [turn("system", "In brief."), *TALK],
        [
            said("user", "In brief.\nWhat is on the shelf?"),
            said("assistant", 'Three "books".'),
            said("user", "Which ones?"),
        ],
        ["SYSTEM_FOLDED", "FORMAT_GUESSED"],
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_what_the_llm_gets(case: str) -> None:
    version, agent, value, messages, notices = GOLDEN[case]
    cluster = HoldoutCluster(version)
    sent = cluster.send(agent, {"input": value})
    assert sent.executed is not None, sent.error
    assert sent.rewritten is not None
    (body,) = sent.executed.llm_bodies
    assert [said(one["role"], one["content"]) for one in json.loads(body)["messages"]] == messages
    assert sent.rewritten.plan.provider == ""
    assert [notice.code for notice in sent.rewritten.plan.notices] == notices
    assert Oracle(cluster).judge(agent, {}, (), sent).outcome is Outcome.ARRIVED


@pytest.mark.parametrize("agent", ["flow-mistral_messages"])
@pytest.mark.parametrize("value", ["Which?", TALK], ids=["text", "conversation"])
def test_all_messages_are_strings_with_the_agents_prompt_around_the_question(agent: str, value: Any) -> None:
    cluster = HoldoutCluster(OLD)
    sent = cluster.send(agent, {"input": value})
    assert sent.executed is not None, sent.error
    messages = json.loads(sent.executed.llm_bodies[0])["messages"]
    *earlier, last = messages
    assert earlier == ([said("user", "What is on the shelf?"), said("assistant", 'Three "books".')] * (value is TALK))
    assert last["role"] == "user"
    assert last["content"].startswith("\n\nHuman:You analyse data.")
    assert Oracle(cluster).judge(agent, {}, (), sent).outcome is Outcome.ARRIVED


def test_an_operators_rule_decides() -> None:
    cluster = HoldoutCluster(NEW)
    cluster.rules = (Rule("one-jamba", "openai/v1/chat/completions"),)
    sent = cluster.send("one-jamba", {"input": TALK})
    assert sent.rewritten is not None
    assert sent.rewritten.plan.provider == "openai/v1/chat/completions"
    assert [notice.code for notice in sent.rewritten.plan.notices] == []


@pytest.mark.parametrize(
    ("value", "place", "code", "help"),
    [
        (TALK[:2], "input[1]", "ASSISTANT_LAST", "End with a user turn."),
        (TALK[1:], "input[0]", "ASSISTANT_FIRST", "Start with a user turn."),
        (
            [*TALK, turn("user", IMAGE)],
            "input[3].content[0]",
            "PROVIDER_UNKNOWN",
            "name the agent's provider in a rule of the gateway's settings: `agents.rules[].provider`; that helps if "
            "its LLM takes the format of one; else send text only",
        ),
    ],
    ids=["assistant last", "assistant first", "media"],
)
def test_what_not_every_chat_api_takes_is_refused(value: Any, place: str, code: str, help: str) -> None:
    error = HoldoutCluster(OLD).send("flow-mistral_messages", {"input": value}).error
    assert error is not None
    assert [(problem.place, problem.code, problem.help) for problem in error.problems] == [(place, code, help)]


def with_template(template: str, **parameters: str) -> AgentProfile:
    """Return the profile of a flow whose LLM has no known format, with another template."""
    profile = cluster_of(NEW).profile("flow-openai_tutorial")
    (tool,) = profile.tools
    assert tool.model is not None
    connector = replace(
        tool.model.connector, url="https://llm.example/talk", request_body=template, parameters=parameters
    )
    tool = replace(tool, model=replace(tool.model, connector=connector))
    return replace(profile, provider="", tools=(tool,))


SHOWN = '{"messages":[%s{"role":"user","content":"${parameters.prompt}"}]}'
TEMPLATES = {
    "turns of strings": (SHOWN % "", {}, True),
    "with a system turn": (SHOWN % '{"role":"system","content":"${parameters.system_prompt}"},', {}, True),
    "all messages": ('{"messages":${parameters.messages}}', {}, True),
    "the agent's own strings": (
        '{"messages":${parameters.messages}}',
        {"messages": '[{"role":"user","content":"${parameters.prompt}"}]'},
        True,
    ),
    "the agent's own parts": (
        '{"messages":${parameters.messages}}',
        {"messages": '[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]'},
        False,
    ),
    "turns of parts": ('{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}', {}, False),
    "another role": (SHOWN % '{"role":"bot","content":"Hello."},', {}, False),
    "the question in a system turn": ('{"messages":[{"role":"system","content":"${parameters.prompt}"}]}', {}, False),
    "Nova's members": ('{"messages":${parameters.messages},"inferenceConfig":{"maxTokens":9}}', {}, False),
    "content in a variable": ('{"messages":[{"role":"user","content":${parameters.content}}]}', {}, False),
    "no messages": ('{"inputs":"${parameters.prompt}"}', {}, False),
}


def plan_of(profile: AgentProfile, value: Any) -> Plan:
    request = read_execute(json.dumps({"input": value}).encode())
    assert request.input is not None
    return plan(profile, TextOnly(), request.input, {}, MappingOptions(), "t1")


@pytest.mark.parametrize("name", TEMPLATES)
def test_which_templates_show_it(name: str) -> None:
    template, parameters, is_shown = TEMPLATES[name]
    profile = with_template(template, system_prompt="Be kind.", **parameters)
    try:
        codes = {notice.code for notice in plan_of(profile, TALK).notices}
    except UndeliverableContent:
        codes = set()
    assert ("FORMAT_GUESSED" in codes) == is_shown


@pytest.mark.parametrize("value", ["Which?", TALK], ids=["text", "conversation"])
def test_a_rule_is_advised_for_messages_of_another_format(value: Any) -> None:
    with pytest.raises(UndeliverableContent) as raised:
        plan_of(with_template(TEMPLATES["Nova's members"][0]), value)
    (problem,) = raised.value.problems
    assert (problem.place, problem.code) == ("input", "PROVIDER_UNKNOWN")
    assert problem.help.startswith("name the agent's provider in a rule of the gateway's settings")
    assert "bedrock/converse" in problem.help
