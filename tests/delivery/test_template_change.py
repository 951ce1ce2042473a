"""The smallest change of a template: what is made of each kind, what is left alone, and that only one span moves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.agents.documents import connector_hints
from gateway.delivery.slots import Slot, SlotKind
from gateway.delivery.template_change import Code, NotOffered, TemplateChange, command, find_change
from gateway.mlcommons.profile import Connector
from gateway.mlcommons.template import substitute
from gateway.providers import registry
from gateway.simulator.fixtures import CLASSIC, MODERN

TEMPLATES = {**CLASSIC, **MODERN}
BEDROCK = "http://127.0.0.1/model/m/converse"
OPENAI = "http://127.0.0.1/v1/chat/completions"
GEMINI = "http://127.0.0.1/v1beta/models/m:generateContent"
TOOLS_SLOT = "${parameters.declare_tools:-}"
TOOLS_MEMBER = ',"toolConfig":${parameters.declared_tools}'
TURN = '{"role":"user","content":[{"text":"${parameters.prompt}"}]}'


def _upgraded(body: str, url: str = BEDROCK, /, inserts_raw: bool = False, **parameters: str) -> TemplateChange:
    connector = Connector("c", "http", url, body, parameters)
    name = registry.recognise(connector_hints(connector))
    return find_change(connector, registry.provider(name) if name else None, inserts_raw)


def _of(name: str, inserts_raw: bool = False) -> TemplateChange:
    template = TEMPLATES[name]
    return _upgraded(template.body, template.url, inserts_raw, **template.parameters)


@pytest.mark.parametrize(
    ("name", "form", "parameter"),
    [
        ("d", "array", "messages"),
        ("e", "array", "contents"),
        ("f", "turn", "body"),
        ("g", "turn", "body"),
        ("bedrock_tutorial", "turn", "body"),
        ("openai_tutorial", "turn", "body"),
        ("gemini_text", "array", "contents"),
        ("i", "array", "messages"),
    ],
)
def test_a_template_with_text_slots_takes_messages_afterwards(name: str, form: str, parameter: str) -> None:
    change = _of(name)
    slot = Slot(parameter, {"array": SlotKind.ARRAY, "turn": SlotKind.TURN}[form])
    assert (change.form, change.slot, change.message_slots) == (form, parameter, (slot,))
    # Put back where it stood, the default gives the old template, sign by sign; the slot for tools is empty.
    old = change.request_body.replace(f"${{parameters.{parameter}}}", change.parameters[parameter])
    assert old.replace("${parameters.declare_tools:-}", "") == TEMPLATES[name].body


def test_the_upgrade_of_the_recordings() -> None:
    """2.19.0 10_upgrade: the body and the parameter that were sent to a real cluster."""
    change = _upgraded('{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}')
    body = f'{{"messages":${{parameters.messages}}{TOOLS_SLOT}}}'
    parameters = {"messages": f"[{TURN}]", "tools_member": TOOLS_MEMBER}
    assert change == TemplateChange("array", parameters, body, "messages", (Slot("messages", SlotKind.ARRAY),))


def test_the_upgrade_of_the_tutorial_connector_is_the_documented_one() -> None:
    """docs/evidence/facts.md, 3.4.0, "Upgrade"."""
    change = _of("bedrock_tutorial", inserts_raw=True)
    assert change.parameters == {"body": TURN}
    assert MODERN["bedrock_upgraded"].parameters["body"] == TURN
    assert change.request_body == MODERN["bedrock_upgraded"].body


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *((name, Code.ALREADY_UPGRADED) for name in ("b", "e2", "bedrock_upgraded", "openai_upgraded")),
        ("c", Code.TEXT_ENDPOINT),
    ],
)
def test_templates_that_are_left_alone(name: str, code: Code) -> None:
    with pytest.raises(NotOffered) as refused:
        _of(name, inserts_raw=True)
    assert refused.value.code is code


@pytest.mark.parametrize("name", ["a", "h", "anthropic_messages", "invoke_messages", "bedrock_messages"])
def test_a_template_that_takes_messages_gains_a_slot_for_tools_alone(name: str) -> None:
    change = _of(name)
    assert (change.form, change.slot, change.message_slots) == ("tools", "declare_tools", ())
    assert change.request_body.replace(TOOLS_SLOT, "") == TEMPLATES[name].body
    assert list(change.parameters) == ["tools_member"]


def test_a_slot_that_the_template_has_serves_for_tools() -> None:
    """On 2.x only the connector can write the member, as a request's parameter is escaped there."""
    change = _of("bedrock_upgraded")
    assert change == TemplateChange(
        "tools", {"tools_member": TOOLS_MEMBER}, MODERN["bedrock_upgraded"].body, "tool_configs", ()
    )
    with pytest.raises(NotOffered):
        _upgraded(change.request_body, BEDROCK, **MODERN["bedrock_upgraded"].parameters, **change.parameters)


@pytest.mark.parametrize(
    "body",
    [
        '{"messages":${parameters.messages},"toolConfig":${parameters.tools}}',
        '{"messages":${parameters.messages},"x":"${parameters.declare_tools}"}',
        '{"messages":${parameters.messages},"x":"${parameters.tools_member}"}',
    ],
)
def test_no_slot_for_tools_is_added_beside_another_one(body: str) -> None:
    with pytest.raises(NotOffered) as refused:
        _upgraded(body)
    assert refused.value.code is Code.ALREADY_UPGRADED


REFUSALS: dict[str, tuple[str, dict[str, str], Code]] = {
    "no messages": ('{"system":[]}', {}, Code.NO_MESSAGES),
    "messages are no array": ('{"messages":"${parameters.prompt}"}', {}, Code.NO_USER_TURN),
    "no placeholder": ('{"messages":[{"role":"user","content":[{"text":"hi"}]}]}', {}, Code.NO_USER_TURN),
    "nobody's turn": ('{"messages":[${parameters._chat_history:-}]}', {}, Code.NO_USER_TURN),
    "only an assistant": (
        '{"messages":[{"role":"assistant","content":[{"text":"${parameters.prompt}"}]}]}',
        {},
        Code.NO_USER_TURN,
    ),
    "two turns": (f'{{"messages":[{TURN},{TURN}]}}', {}, Code.TWO_USER_TURNS),
    "a turn in a variable": ('{"messages":[${parameters.turn}],"toolConfig":{}}', {}, Code.ALREADY_UPGRADED),
    "name is a parameter": (f'{{"messages":[{TURN}]}}', {"messages": "mine"}, Code.NAME_TAKEN),
    "name is used elsewhere": (f'{{"messages":[{TURN}],"x":"${{parameters.messages:-1}}"}}', {}, Code.NAME_TAKEN),
    "name is used by a parameter": (f'{{"messages":[{TURN}]}}', {"x": "${parameters.messages}"}, Code.NAME_TAKEN),
    "brackets": ('{"messages":[{"role":"user"', {}, Code.UNREADABLE_TEMPLATE),
    "quotes": ('{"messages":["', {}, Code.UNREADABLE_TEMPLATE),
    "a placeholder without end": ('{"messages":[${parameters.x', {}, Code.UNREADABLE_TEMPLATE),
    "empty": ("", {}, Code.NO_MESSAGES),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    body, parameters, code = REFUSALS[case]
    with pytest.raises(NotOffered) as refused:
        _upgraded(body, **parameters)
    assert refused.value.code is code
    assert refused.value.reason.startswith(code.value)


def test_what_a_rollback_left_behind_is_no_hindrance() -> None:
    change = _upgraded(f'{{"messages":[{TURN}]}}', messages=f"[{TURN}]")
    assert change.request_body == f'{{"messages":${{parameters.messages}}{TOOLS_SLOT}}}'


def test_fixed_turns_and_bare_numbers_beside_the_question_stay() -> None:
    body = (
        '{ "inferenceConfig" : {"maxTokens":${parameters.max_tokens:-500}},\n "messages" : [\n'
        '  {"role":"user","content":[{"text":"an \\"example\\", no {placeholder}"}]},\n'
        '  {"role":"assistant","content":[{"text":"ok ] }"}]},\n'
        '  {"content":[{"text":"Q: ${parameters.prompt:-"none"}"}],"role":"user"}\n ], "x":${parameters.y}}'
    )
    change = _upgraded(body)
    assert change.form == "turn"
    turn = '{"content":[{"text":"Q: ${parameters.prompt:-"none"}"}],"role":"user"}'
    assert change.parameters["body"] == turn
    assert change.request_body == f"{body[:-1].replace(turn, '${parameters.body}')}{TOOLS_SLOT}}}"


def test_geminis_turn_may_leave_out_its_role() -> None:
    change = _upgraded('{"contents":[{"parts":[{"text":"${parameters.prompt}"}]}]}', GEMINI)
    assert change.parameters["contents"] == '[{"parts":[{"text":"${parameters.prompt}"}]}]'


def test_content_in_a_variable_gains_earlier_turns() -> None:
    change = _upgraded('{"messages":[{"role":"user","content":${parameters.content}}]}')
    turns = '{"messages":[${parameters.earlier_turns:-}{"role":"user","content":${parameters.content}}]'
    parameters = {"content": '[{"text":"${parameters.prompt}"}]', "tools_member": TOOLS_MEMBER}
    slots = (Slot("content", SlotKind.CONTENT), Slot("earlier_turns", SlotKind.HISTORY, ","))
    assert change == TemplateChange("history", parameters, f"{turns}{TOOLS_SLOT}}}", "earlier_turns", slots)
    with pytest.raises(NotOffered) as refused:
        _upgraded('{"messages":[${parameters.turns:-}{"role":"user","content":${parameters.content}}],"toolConfig":{}}')
    assert refused.value.code is Code.ALREADY_UPGRADED


_TEXT = st.text(st.sampled_from('ab {}[]",:$\\\\\n'), max_size=12)


@given(_TEXT, _TEXT, st.lists(st.sampled_from(["${parameters._chat_history:-}", "{}", "${parameters.t}"]), max_size=3))
def test_a_change_only_moves_one_span(before: str, after: str, around: list[str]) -> None:
    """Whatever is around the user's turn, the new template with its default renders as the old one does."""
    turn: dict[str, Any] = {"role": "user", "content": [{"text": f"{before}${{parameters.prompt}}{after}"}]}
    body = '{"messages":[' + ",".join([*around, json.dumps(turn)]) + "]}"
    try:
        change = _upgraded(body)
    except NotOffered:
        return
    values = {"prompt": "hello"}
    connector = Connector("c", "http", BEDROCK, change.request_body, change.parameters)
    assert substitute(connector.request_body, {**connector.parameters, **values}) == substitute(body, values)


@given(_TEXT)
def test_any_text_is_read_or_refused(text: str) -> None:
    connector = replace(Connector("c", "http", BEDROCK, "", {}), request_body=text)
    with pytest.raises(NotOffered):
        find_change(connector, registry.provider("bedrock/converse"))


def test_a_template_that_is_nested_too_deep_is_left_alone() -> None:
    with pytest.raises(NotOffered) as raised:
        _upgraded('{"messages":' + "[" * 100_000 + "]" * 100_000 + "}")
    assert raised.value.code is Code.UNREADABLE_TEMPLATE


@pytest.mark.parametrize(("agent_id", "argument"), [("abc", "abc"), ("-abc", "-- -abc")])
def test_the_command_for_an_agent(agent_id: str, argument: str) -> None:
    assert command(agent_id) == f"mlc-gateway upgrade {argument}"


@pytest.mark.parametrize(("agent_id", "expected"), [("aB-1", "aB-1"), ("-aB1", "-- -aB1")])
def test_the_command_takes_an_id_that_begins_with_a_dash(agent_id: str, expected: str) -> None:
    assert command(agent_id) == f"mlc-gateway upgrade {expected}"
