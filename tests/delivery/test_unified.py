"""Unified agents on 3.6: what the gateway writes for a V1 agent, and where a V2 agent gets its system text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.delivery.trees import replace_texts
from gateway.errors import UndeliverableContent
from gateway.execute.rewrite import Rewrite, RewriteOptions, rewrite_input, rewrite_native
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Connector, Model, Tool
from gateway.mlcommons.rendering import first_call
from gateway.mlcommons.template import RuntimeValues
from gateway.providers import registry
from gateway.simulator.llm import LlmEndpoints
from gateway.unified.request import read_execute
from tests.delivery.cases import CALL, CASES, IMAGE, PNG, RESULT, text, turn
from tests.simulator.test_conversational_v2 import conversation, core_of, register

TURNS = "[${parameters._chat_history:-}${parameters.body}${parameters._interactions:-}]${parameters.tool_configs:-}"
# The connectors that the cluster makes, in short.
TEMPLATES = {
    "bedrock/converse": f'{{"system": [{{"text": "${{parameters.system_prompt}}"}}], "messages": {TURNS} }}',
    "openai/v1/chat/completions": f'{{"model":"${{parameters.model}}","messages":{TURNS}}}',
    "gemini/v1beta/generatecontent": (
        f'{{"systemInstruction":{{"parts":[{{"text":"${{parameters.system_prompt}}"}}]}},"contents":{TURNS}}}'
    ),
}
BEDROCK, OPENAI, GEMINI = TEMPLATES

TURN = "t1"


def agent(provider: str, generation: Generation, **parameters: str) -> AgentProfile:
    is_v2 = generation is Generation.UNIFIED_V2
    cluster = registry.provider(provider).cluster
    assert cluster is not None
    return AgentProfile(
        "a",
        "a",
        "conversational_v2" if is_v2 else "conversational",
        (3, 6, 0),
        generation,
        memory_type="agentic_memory" if is_v2 else "conversation_index",
        parameters={"_llm_interface": cluster.llm_interface, **parameters},
        llm=Model("m", Connector("", "http", "https://llm.invalid", TEMPLATES[provider], {"model": "m"})),
        llm_parameters={"system_prompt": "Be brief."},
        tools=(Tool("ListIndexTool", ""),) if is_v2 else (),
        model_provider=provider,
        provider=provider,
        unified_api=True,
    )


def rewritten(profile: AgentProfile, input: Any, **parameters: Any) -> Rewrite:
    request = read_execute(json.dumps({"input": input, "parameters": parameters}).encode())
    assert request.input is not None
    if profile.generation is Generation.UNIFIED_V2:
        return rewrite_native(profile, request, request.input, False, TURN, RewriteOptions())
    return rewrite_input(profile, request, request.input, RewriteOptions(), TURN)


def rendered(provider: str, input: Any) -> Any:
    """The first LLM call of a V1 agent."""
    profile = agent(provider, Generation.UNIFIED_V1)
    return first_call(profile, rewritten(profile, input).plan.parameters, RuntimeValues())


def turns(body: dict[str, Any]) -> list[Any]:
    found: list[Any] = body.get("messages") or body["contents"]
    return found


def texts(value: Any) -> Iterator[str]:
    for part in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from texts(part)
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        yield value["text"]


ASKED, CALLED = turn("user", "Weather?"), turn("assistant", CALL)
ANSWERED = turn("user", RESULT)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (ANSWERED, [{"toolResult": {"toolUseId": "t1", "content": [{"text": "sunny"}, {"text": "25 C"}]}}, "(end)"]),
        (turn("user", RESULT, text("And $ ${parameters.x}?")), ["toolResult", "And $ ${parameters.x}?"]),
        (turn("user", RESULT, text("This?"), IMAGE), ["toolResult", "This?", "image", "(end)"]),
    ],
)
def test_a_tool_result_comes_first_in_its_turn(last: Any, expected: list[Any]) -> None:
    messages = turns(rendered(BEDROCK, [ASKED, CALLED, last]))
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"] == [{"text": "Weather?"}]
    found = [part.get("text") or next(iter(part)) for part in messages[-1]["content"]]
    assert found == [part if isinstance(part, str) else "toolResult" for part in expected]
    assert messages[-1]["content"][0]["toolResult"]["content"] == [{"text": "sunny"}, {"text": "25 C"}]


def test_what_comes_before_the_last_turn_that_begins_with_text_is_history() -> None:
    earlier = [turn("user", IMAGE, text("This?")), turn("assistant", "A dot.")]
    messages = turns(rendered(BEDROCK, [*earlier, ASKED, CALLED, ANSWERED]))
    assert [next(iter(part)) for message in messages for part in message["content"]] == [
        "image", "text", "text", "text", "toolUse", "toolResult", "text",
    ]  # fmt: skip


def test_without_text_to_begin_with_the_result_is_text() -> None:
    messages = turns(rendered(BEDROCK, [turn("user", IMAGE), CALLED, ANSWERED]))
    assert [next(iter(part)) for message in messages for part in message["content"]][-2:] == ["text", "text"]
    assert json.loads(messages[-1]["content"][0]["text"])["toolResult"]["toolUseId"] == "t1"


def test_gemini_gets_the_tools_response_first_too() -> None:
    parts = turns(rendered(GEMINI, [ASKED, CALLED, ANSWERED]))[-1]["parts"]
    assert [next(iter(part)) for part in parts] == ["functionResponse", "text"]


@pytest.mark.parametrize("provider", TEMPLATES)
def test_no_text_is_blank(provider: str) -> None:
    sent = 0
    for case in CASES.values():
        if case.pairs or case.parameters:
            continue
        try:
            body = rendered(provider, case.input)
        except UndeliverableContent:
            continue
        sent += 1
        assert all(part.strip() for part in texts(body)), body
    assert sent > 25


# conversational_v2

SYSTEM, GO = turn("system", text("Speak French.")), turn("user", text("Go."))


def sent(profile: AgentProfile, input: Any, **parameters: Any) -> dict[str, Any]:
    body = rewritten(profile, input, **parameters).body
    assert body is not None
    found: dict[str, Any] = json.loads(b"".join(body))
    return found


@pytest.mark.parametrize("version", [(3, 6, 0), (3, 9, 0)])
def test_system_turns_become_the_parameter(version: tuple[int, ...]) -> None:
    profile = agent(BEDROCK, Generation.UNIFIED_V2)
    assert sent(profile, [SYSTEM, turn("developer", "And quickly."), GO], extra=5) == {
        "input": [GO],
        "parameters": {"extra": 5, "system_prompt": "Speak French.\n\nAnd quickly."},
    }


def test_a_system_prompt_that_was_registered_or_sent_stays_before_it() -> None:
    profile = agent(BEDROCK, Generation.UNIFIED_V2, system_prompt="You keep the library.")
    assert sent(profile, [SYSTEM, GO])["parameters"]["system_prompt"] == "You keep the library.\n\nSpeak French."
    body = sent(profile, [SYSTEM, GO], system_prompt="Say little.")
    assert body["parameters"]["system_prompt"] == "Say little.\n\nSpeak French."


def test_an_agent_that_can_not_be_called_is_named() -> None:
    with pytest.raises(UndeliverableContent) as refusal:  # JSON in the quotes of a text
        rewritten(agent(BEDROCK, Generation.UNIFIED_V2), [SYSTEM, GO], system_prompt={"brief": True})
    assert [(problem.place, problem.code) for problem in refusal.value.problems] == [("agents/a", "AGENT_NOT_CALLABLE")]


@pytest.mark.parametrize("hostile", ["$ ${parameters.question} $${parameters.x}", '{"a": 1}', "['x']"])
def test_hostile_system_text_renders_as_it_is(hostile: str) -> None:
    profile = agent(BEDROCK, Generation.UNIFIED_V2)
    body = sent(profile, [turn("system", hostile), GO])
    values = {**body["parameters"], "question": "x", "body": '{"role":"user","content":[{"text":"x"}]}'}
    assert first_call(profile, values, RuntimeValues())["system"] == [{"text": hostile}]


def test_a_later_system_turn_is_reported() -> None:
    notices = rewritten(agent(BEDROCK, Generation.UNIFIED_V2), [GO, SYSTEM, turn("user", "Now.")]).plan.notices
    assert [(notice.code, notice.place) for notice in notices] == [("SYSTEM_HOISTED", "input[1]")]
    assert rewritten(agent(BEDROCK, Generation.UNIFIED_V2), [SYSTEM, GO]).plan.notices == ()


@pytest.mark.parametrize(
    ("provider", "input"),
    [
        (OPENAI, [SYSTEM, GO]),  # which has no other place for it
        (BEDROCK, [GO]),
        (BEDROCK, "Go."),
        (BEDROCK, [text("Go."), IMAGE]),
    ],
)
def test_any_other_input_goes_as_it_came(provider: str, input: Any) -> None:
    assert rewritten(agent(provider, Generation.UNIFIED_V2), input).body is None


@pytest.mark.parametrize("provider", [BEDROCK, OPENAI])
def test_placeholders_in_the_arguments_of_a_call_arrive_on_this_turn_and_later(provider: str) -> None:
    arguments = {"${parameters.a}": ['say "${parameters.nope}" \\$${parameters.model}', "$", "${_chat_history.x}"]}
    rewrite = rewritten(agent(provider, Generation.UNIFIED_V2), [GO, *conversation(json.dumps(arguments))])
    assert rewrite.plan.notices == ()
    assert rewrite.body is not None
    core = core_of("3.6.0")
    agent_id = register(core, provider.partition("/")[0])
    status, answer, first = core.execute(agent_id, json.loads(b"".join(rewrite.body)))
    assert status == 200
    _, _, later = core.execute(agent_id, {"input": "next", "parameters": {"memory_id": answer["memory_id"]}})
    for body in (*first, *later):
        message = json.loads(body)["messages"][1]
        if provider == BEDROCK:
            found = message["content"][1]["toolUse"]["input"]
        else:
            found = json.loads(message["tool_calls"][0]["function"]["arguments"])
        assert found == arguments


T = {"type": "text", "text": "hi"}
IMAGE_AS_URL = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
CALLS = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"a": 1}}}]
CALLS_AS_TEXT = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}]
LISTER = ({"type": "ListIndexTool"},)
RESULT_MESSAGE = {"role": "tool", "toolCallId": "c1", "content": [{"type": "text", "text": "a dot"}]}


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([{"role": "user", "content": "hi"}], [{"role": "user", "content": [T]}]),
        ([{"role": "reviewer", "content": [{"text": "hi"}]}], [{"role": "user", "content": [text("[reviewer]: hi")]}]),
        ([{"text": "hi"}, IMAGE_AS_URL], [T, IMAGE]),
        ([{"type": "image", "source": {"type": "base64", "format": "PNG", "data": PNG}}], [IMAGE]),
        ([{"image": {"format": "png", "source": {"bytes": PNG}}}], [IMAGE]),
        ([{**IMAGE, "source": {**IMAGE["source"], "data": f"data:image/png;base64,{PNG}"}}], [IMAGE]),
        (
            [
                GO,
                {"role": "assistant", "content": None, "tool_calls": CALLS},
                {"role": "tool", "tool_call_id": "c1", "content": "a dot"},
            ],
            [GO, {"role": "assistant", "content": [], "toolCalls": CALLS_AS_TEXT}, RESULT_MESSAGE],
        ),
        (
            [
                GO,
                {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "look", "input": {"a": 1}}}]},
                {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "a dot"}]}}]},
            ],
            [GO, {"role": "assistant", "content": [], "toolCalls": CALLS_AS_TEXT}, RESULT_MESSAGE],
        ),
    ],
)
def test_every_spelling_is_sent_in_the_clusters_own(given: Any, expected: Any, big: bool) -> None:
    if big:  # strings of these lengths are taken out of the body; the image is longer than a text may be
        long = {PNG: "iVBORw0K" * 1_200_000, "a dot": "a dot " * 1000}
        given, expected = replace_texts(given, long), replace_texts(expected, long)
    profile = agent(BEDROCK, Generation.UNIFIED_V2)
    is_expected = sent(profile, given) == {"input": expected}
    assert is_expected  # a comparison of long texts would take minutes to report
    assert rewritten(profile, expected).body is None


def test_a_documents_name_is_reported_and_a_text_is_added() -> None:
    document = {"document": {"format": "pdf", "name": "report", "source": {"bytes": "JVBERi0x"}}}
    rewrite = rewritten(agent(BEDROCK, Generation.UNIFIED_V2), [{"role": "user", "content": [document]}])
    assert [(notice.code, notice.place) for notice in rewrite.plan.notices] == [
        ("NEUTRAL_TEXT_ADDED", "input[0].content[0]"),
        ("DOCUMENT_NAME_DROPPED", "input[0].content[0]"),
    ]


@pytest.mark.parametrize("id", ["call ${parameters.model}", "$${parameters.nope}", "${parameters.x"])
@pytest.mark.parametrize("provider", [BEDROCK, OPENAI])
def test_an_id_with_a_placeholder_is_the_same_in_call_and_result(provider: str, id: str) -> None:
    call, result = json.loads(json.dumps(conversation("{}")).replace("c1", id))
    rewrite = rewritten(agent(provider, Generation.UNIFIED_V2), [GO, call, result])
    assert [(notice.code, notice.place) for notice in rewrite.plan.notices] == [
        ("TOOL_ID_CLEANED", "input[1].toolCalls[0]"),
    ]
    sent_to_llm = received_strictly(provider, rewrite, [GO, call, result])
    if provider == BEDROCK:
        ids = [sent_to_llm[1]["content"][1]["toolUse"], sent_to_llm[2]["content"][0]["toolResult"]]
        assert ids[0]["toolUseId"] == ids[1]["toolUseId"]
    else:
        assert sent_to_llm[1]["tool_calls"][0]["id"] == sent_to_llm[2]["tool_call_id"]


@pytest.mark.parametrize("content", [{"content": []}, {"content": None}, {}])
@pytest.mark.parametrize("provider", [BEDROCK, OPENAI])
def test_a_turn_of_calls_alone_is_what_the_api_takes(provider: str, content: dict[str, Any]) -> None:
    call, result = conversation("{}")
    call = {"role": "assistant", "toolCalls": call["toolCalls"], **content}
    given = [GO, call, result]
    rewrite = rewritten(agent(provider, Generation.UNIFIED_V2), given)
    _, turn, _ = received_strictly(provider, rewrite, given)
    notices = [(notice.code, notice.place) for notice in rewrite.plan.notices]
    if provider == BEDROCK:
        assert turn["content"] == [{"toolUse": {"toolUseId": "c1", "name": "look", "input": {}}}]
        assert notices == []
    else:
        assert turn["content"] == [{"type": "text", "text": "(tool call)"}]
        assert notices == [("NEUTRAL_TEXT_ADDED", "input[1]")]


def received_strictly(provider: str, rewrite: Rewrite, given: list[Any], tools: Any = LISTER) -> list[Any]:
    """The messages that a V2 agent's LLM received, which checks them as its provider does. given: the client's."""
    core = core_of("3.6.0", LlmEndpoints(strict=True))
    agent_id = register(core, provider.partition("/")[0], tools=tools)
    body = {"input": given} if rewrite.body is None else json.loads(b"".join(rewrite.body))
    status, answer, received = core.execute(agent_id, body)
    assert status == 200, answer
    messages: list[Any] = json.loads(received[0])["messages"]
    return messages


def test_the_texts_of_a_tools_output_are_sent_as_one() -> None:
    """The cluster sends Bedrock the first part only."""
    function = {"name": "look_up", "arguments": '{"k":1}'}
    call = {"role": "assistant", "content": [], "toolCalls": [{"id": "c1", "type": "function", "function": function}]}
    many = {"role": "tool", "toolCallId": "c1", "content": [text("RES1"), text("RES2")]}
    failed_content = [{"json": {"code": 17}}, {"text": "disk full"}]
    failed = {"toolResult": {"toolUseId": "c1", "status": "error", "content": failed_content}}
    for result, expected in (
        (many, "RES1\nRES2"),
        ({"role": "user", "content": [failed]}, '(the tool failed)\n{"code": 17}\ndisk full'),
    ):
        given = [GO, call, result]
        rewrite = rewritten(agent(BEDROCK, Generation.UNIFIED_V2), given)
        *_, last = received_strictly(BEDROCK, rewrite, given)
        assert last["content"] == [{"toolResult": {"toolUseId": "c1", "content": [{"text": expected}]}}]


def codes(rewrite: Rewrite) -> list[str]:
    return [notice.code for notice in rewrite.plan.notices]


@pytest.mark.parametrize("provider", [BEDROCK, OPENAI])
def test_without_tools_bedrock_gets_tool_calls_as_text_and_openai_as_calls(provider: str) -> None:
    """Bedrock refuses calls without a `toolConfig`."""
    given = [GO, *conversation("{}")]
    rewrite = rewritten(replace(agent(provider, Generation.UNIFIED_V2), tools=()), given)
    _, turn, last = received_strictly(provider, rewrite, given, tools=[])
    if provider == BEDROCK:
        assert codes(rewrite) == ["TOOLS_AS_TEXT"]
        assert [list(part) for part in (*turn["content"], *last["content"])] == [["text"]] * 3
    else:
        assert codes(rewrite) == []
        assert turn["tool_calls"][0]["id"] == last["tool_call_id"]


@pytest.mark.parametrize("provider", [BEDROCK, OPENAI])
def test_what_the_cluster_sends_in_turns_of_their_own_is_text_on_bedrock(provider: str) -> None:
    """Bedrock refuses two turns of the user in a row."""
    call, result = conversation("{}")
    two_calls = {**call, "toolCalls": [*call["toolCalls"], {**call["toolCalls"][0], "id": "c2"}]}
    for given in ([GO, call, result, GO], [GO, two_calls, result, {**result, "toolCallId": "c2"}]):
        rewrite = rewritten(agent(provider, Generation.UNIFIED_V2), given)
        received_strictly(provider, rewrite, given)
        assert codes(rewrite) == (["TOOLS_AS_TEXT"] if provider == BEDROCK else [])


def test_an_image_in_a_tools_result_arrives_alone_or_is_refused() -> None:
    call, result = conversation("{}")
    alone = [GO, call, {**result, "content": [IMAGE]}]
    *_, last = received_strictly(BEDROCK, rewritten(agent(BEDROCK, Generation.UNIFIED_V2), alone), alone)
    [part] = last["content"]
    assert part["toolResult"]["content"] == [{"image": {"format": "png", "source": {"bytes": PNG}}}]
    beside = [GO, call, {**result, "content": [T, IMAGE]}]
    with pytest.raises(UndeliverableContent) as refusal:
        rewritten(agent(BEDROCK, Generation.UNIFIED_V2), beside)
    [problem] = refusal.value.problems
    assert (problem.place, problem.code) == ("input[2].content[1]", "TOOL_RESULT_CONTENT_UNSUPPORTED")
    moved = received_strictly(OPENAI, rewritten(agent(OPENAI, Generation.UNIFIED_V2), beside), beside)
    assert [message["role"] for message in moved] == ["user", "assistant", "tool", "user"]
