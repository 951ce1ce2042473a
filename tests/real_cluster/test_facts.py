"""What a legacy agent takes on a real 3.6.0 (facts.md, "3.0 to 3.4" and "Rendering, in detail"), without the gateway.

The letters are FACTS' request forms. "Arrives" is judged on the whole conversation the LLM endpoint received.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .agents import WIRES, Agent, Api
from .llm import LLM, PLAN
from .speech import (
    DNE,
    PNG,
    PROVIDERS,
    Execute,
    cflow_prompt,
    dumps,
    escaped,
    flow_prompt,
    history,
    image,
    message,
    past,
    prompted,
    text,
    turns,
    with_tools,
)

pytestmark = pytest.mark.real_cluster


def arrived(result: tuple[int, Any, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The conversation of the only LLM call of a run that succeeded."""
    status, body, received = result
    assert (status, len(received)) == (200, 1), body
    return turns(received[0])


def refused(result: tuple[int, Any, list[dict[str, Any]]], status: int, reason: str) -> None:
    """The run failed with this status, with `reason` in its body, and the LLM was not called."""
    got, body, received = result
    assert (got, received) == (status, []), body
    assert reason in str(body)


def splice(provider: str) -> str:
    """Form B's prompt: an image between two texts, as the inside of a JSON string."""
    return f'what? \\"q\\""}},{dumps(image(provider))},{{"text":"(end)'


def spliced(provider: str) -> list[dict[str, Any]]:
    return [text(provider, 'what? "q"'), image(provider), text(provider, "(end)")]


def memory_of(body: Any) -> str:
    """The memory_id a run answered with."""
    memory_id: str = next(out["result"] for out in body["inference_results"][0]["output"] if out["name"] == "memory_id")
    return memory_id


# --- the 3.4 table: conversational with `_llm_interface`


@pytest.mark.parametrize("template", ["tutorial", "upgraded"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_conversational_A_text(execute: Execute, provider: str, template: str) -> None:
    question = 'hello "quoted" \\ back\nline é 漢字 😀'
    result = execute(f"{provider}_conv_tools_{template}", question=question)
    assert arrived(result) == [prompted(provider, question)]


@pytest.mark.parametrize("template", ["tutorial", "upgraded"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_conversational_A_safe_text_that_looks_like_json_and_placeholders(
    execute: Execute, provider: str, template: str
) -> None:
    question = '{"a": 1} ${parameters.model} $$ "q"'
    prompt = {"prompt": escaped(question), "no_escape_params": f"{DNE},prompt"}
    result = execute(f"{provider}_conv_tools_{template}", question="q", **prompt)
    assert arrived(result) == [prompted(provider, question)]


@pytest.mark.parametrize("provider", ["bedrock", "gemini"])
def test_conversational_tutorial_B_image_between_texts(execute: Execute, provider: str) -> None:
    prompt = {"prompt": splice(provider), "no_escape_params": f"{DNE},prompt"}
    result = execute(f"{provider}_conv_tools_tutorial", question="q", **prompt)
    assert arrived(result) == [message(provider, "user", *spliced(provider))]


@pytest.mark.parametrize("provider", ["bedrock", "gemini"])
def test_conversational_tutorial_B_last_block_must_be_text(execute: Execute, provider: str) -> None:
    prompt = f'what?"}},{dumps(image(provider))}'
    result = execute(f"{provider}_conv_tools_tutorial", question="q", prompt=prompt, no_escape_params=f"{DNE},prompt")
    refused(result, 400, "Invalid payload")


@pytest.mark.parametrize("turns_before", [past, with_tools])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_conversational_tutorial_C_many_turns(
    execute: Execute, provider: str, turns_before: Callable[[str], list[dict[str, Any]]]
) -> None:
    before = turns_before(provider)
    result = execute(f"{provider}_conv_tools_tutorial", question='last "turn"', _chat_history=history(before))
    assert arrived(result) == [*before, prompted(provider, 'last "turn"')]


@pytest.mark.parametrize("provider", ["bedrock", "gemini"])
def test_conversational_tutorial_C_and_B_many_turns_image_last(execute: Execute, provider: str) -> None:
    sent = {"_chat_history": history(past(provider)), "prompt": splice(provider), "no_escape_params": f"{DNE},prompt"}
    result = execute(f"{provider}_conv_tools_tutorial", question="q", **sent)
    assert arrived(result) == [*past(provider), message(provider, "user", *spliced(provider))]


def test_conversational_openai_tutorial_D_image_as_a_message_before(execute: Execute) -> None:
    whole = message("openai", "user", text("openai", "look"), image("openai"))
    result = execute("openai_conv_tools_tutorial", question="see above", _chat_history=history([whole]))
    assert arrived(result) == [whole, prompted("openai", "see above")]


def test_conversational_openai_tutorial_B_prime_adds_a_user_message(execute: Execute) -> None:
    whole = message("openai", "user", image("openai"))
    prompt = f'a"}},{dumps(whole)},{{"role":"user","content":"end'
    result = execute("openai_conv_tools_tutorial", question="q", prompt=prompt, no_escape_params=f"{DNE},prompt")
    assert arrived(result) == [prompted("openai", "a"), whole, prompted("openai", "end")]


def test_conversational_openai_tutorial_string_content_role_last(execute: Execute) -> None:
    parts = [text("openai", "t"), image("openai")]
    prompt = f't1"}},{{"content":{dumps(parts)},"role":"user'
    result = execute("openai_conv_tools_tutorial", question="q", prompt=prompt, no_escape_params=f"{DNE},prompt")
    assert arrived(result) == [prompted("openai", "t1"), message("openai", "user", *parts)]


@pytest.mark.parametrize("kind", ["conv_tools", "flow", "cflow"])
@pytest.mark.parametrize("as_text", [False, True], ids=["object", "string"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_upgraded_E_one_turn_with_images(execute: Execute, provider: str, as_text: bool, kind: str) -> None:
    turn = message(provider, "user", *spliced(provider))
    result = execute(f"{provider}_{kind}_upgraded", question="q", body=dumps(turn) if as_text else turn)
    assert arrived(result) == [turn]


@pytest.mark.parametrize(("kind", "raw"), [("conv_tools", f"{DNE},body"), ("flow", "body"), ("cflow", "body")])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_upgraded_F_many_turns_with_images_and_tools(execute: Execute, provider: str, kind: str, raw: str) -> None:
    turns_sent = [*with_tools(provider), message(provider, "user", *spliced(provider))]
    body = ",".join(map(dumps, turns_sent))
    result = execute(f"{provider}_{kind}_upgraded", question="q", body=body, no_escape_params=raw)
    assert arrived(result) == turns_sent


# --- flow and conversational_flow with an MLModelTool


@pytest.mark.parametrize("template", ["tutorial", "upgraded"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_flow_A_text_inside_the_tools_own_prompt(execute: Execute, provider: str, template: str) -> None:
    question = 'hello "quoted" \\ back\nline é 漢字'
    assert arrived(execute(f"{provider}_flow_{template}", question=question)) == [
        prompted(provider, flow_prompt(question))
    ]
    assert arrived(execute(f"{provider}_cflow_{template}", question=question)) == [
        prompted(provider, cflow_prompt(question))
    ]


@pytest.mark.parametrize("kind", ["flow", "cflow"])
@pytest.mark.parametrize("provider", ["bedrock", "gemini"])
def test_flow_tutorial_B_needs_no_DNE(execute: Execute, provider: str, kind: str) -> None:
    prompt = {"prompt": splice(provider), "no_escape_params": "prompt"}
    result = execute(f"{provider}_{kind}_tutorial", question="q", **prompt)
    assert arrived(result) == [message(provider, "user", *spliced(provider))]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_flow_tutorial_C_needs_no_escape_params(execute: Execute, provider: str) -> None:
    before = {"_chat_history": history(past(provider))}
    result = execute(f"{provider}_flow_tutorial", question="q", **before, no_escape_params="_chat_history")
    assert arrived(result) == [*past(provider), prompted(provider, flow_prompt("q"))]
    refused(execute(f"{provider}_flow_tutorial", question="q", **before), 400, "Invalid payload")


# --- plan_execute_and_reflect


@pytest.mark.parametrize("template", ["tutorial", "upgraded"])
@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_plan_execute_and_reflect_A_text_even_json(execute: Execute, provider: str, template: str) -> None:
    for question in ('do "it"', '{"a":1}'):
        (turn,) = arrived(execute(f"{provider}_per_{template}", question=question))
        content = turn["content"] if provider == "openai" else turn["content"][0]["text"]
        assert question in content


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_plan_execute_and_reflect_tutorial_ignores_prompt(execute: Execute, provider: str) -> None:
    (turn,) = arrived(execute(f"{provider}_per_tutorial", question="the-question", prompt="the-prompt"))
    assert "the-question" in dumps(turn)
    assert "the-prompt" not in dumps(turn)


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_plan_execute_and_reflect_tutorial_text_turns_through_helper_parameters(
    execute: Execute, provider: str
) -> None:
    helpers = {f"gw_h{i}": dumps(one) for i, one in enumerate(past(provider))}
    slots = "".join(f"${{parameters.{name}}}," for name in helpers)
    result = execute(f"{provider}_per_tutorial", question="q", _chat_history=slots, **helpers)
    assert arrived(result)[:-1] == past(provider)
    bare = execute(f"{provider}_per_tutorial", question="q", _chat_history=history(past(provider)))
    refused(bare, 400, "Invalid payload")


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_plan_execute_and_reflect_upgraded_G_reaches_the_planner_never_the_executor(
    api: Api, agents: dict[str, Agent], llm: LLM, provider: str
) -> None:
    parts = [text(provider, "${parameters.prompt}"), image(provider)]
    llm.replies('{"steps": ["the only step"], "result": ""}', "step done", PLAN)
    parameters = {"question": "the-question", "body": dumps(message(provider, "user", *parts))}
    status, answer = api.execute(agents[f"{provider}_per_upgraded"].agent_id, {"parameters": parameters})
    planner, executor, reflector = llm.taken()
    assert status == 200, answer
    for call in (planner, reflector):
        assert "the-question" in dumps(turns(call))
        assert PNG in dumps(turns(call))
    assert turns(executor) == [prompted(provider, "the only step")]


def test_plan_execute_and_reflect_has_no_gemini(api: Api, agents: dict[str, Agent]) -> None:
    model_id = agents["gemini_conv_tools_tutorial"].documents["agent"]["llm"]["model_id"]
    body = {"name": "per", "type": "plan_execute_and_reflect", "llm": {"model_id": model_id}}
    interface = {"_llm_interface": WIRES["gemini"].interface}
    made = api.must("POST", "/_plugins/_ml/agents/_register", body | {"parameters": interface})
    status, answer = api.execute(made["agent_id"], {"parameters": {"question": "q"}})
    assert (status, answer["error"]["details"]) == (500, "Unsupported llm interface: gemini/v1beta/generatecontent")


# --- conversational without `_llm_interface` (ReAct, with a built-in prompt of its own)


@pytest.mark.parametrize("provider", ["bedrock", "gemini"])
def test_conversational_without_interface_deferred_splice(execute: Execute, provider: str) -> None:
    gap = f'"}},{dumps(image(provider))},{{"text":"'
    sent = {"question": "first$${parameters.gw_s0}second", "gw_s0": gap, "no_escape_params": "gw_s0"}
    (turn,) = arrived(execute(f"{provider}_conv_react_tutorial", **sent))
    before, between, after = turn["parts" if provider == "gemini" else "content"]
    assert between == image(provider)
    assert before["text"].endswith("first")
    assert after["text"].startswith("second")


def test_conversational_without_interface_openai_deferred_splice(execute: Execute) -> None:
    whole = message("openai", "user", image("openai"))
    gap = f'"}},{dumps(whole)},{{"role":"user","content":"'
    sent = {"question": "first$${parameters.gw_s0}second", "gw_s0": gap, "no_escape_params": "gw_s0"}
    before, between, after = arrived(execute("openai_conv_react_tutorial", **sent))
    assert between == whole
    assert before["content"].endswith("first")
    assert after["content"].startswith("second")


@pytest.mark.parametrize("kind", ["flow", "cflow", "conv_react", "conv_tools"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_whole_array_wrap_keeps_the_agents_own_prompt(execute: Execute, provider: str, kind: str) -> None:
    mine = message(provider, "user", text(provider, "${parameters.prompt}"), image(provider))
    array = {WIRES[provider].messages: dumps([*past(provider), mine])}
    result = execute(f"{provider}_{kind}_array", question="the-question", **array)
    *before, last = arrived(result)
    prompt, picture = last["parts" if provider == "gemini" else "content"]
    assert before == past(provider)
    assert picture == image(provider)
    assert "the-question" in prompt["text"]
    assert (prompt["text"] == "the-question") == (kind == "conv_tools")


@pytest.mark.parametrize("kind", ["flow", "cflow", "conv_react", "conv_tools"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_whole_array_question_alone_is_refused(execute: Execute, provider: str, kind: str) -> None:
    refused(execute(f"{provider}_{kind}_array", question="q"), 400, "Invalid payload")
