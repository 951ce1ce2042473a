"""`canonical`: spellings an API treats alike compare equal, and nothing makes it fail."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.anthropic_messages import AnthropicMessages
from gateway.providers.base import MappingOptions
from gateway.providers.bedrock_converse import BedrockConverse
from gateway.providers.cohere_chat import CohereChat
from gateway.providers.gemini import Gemini
from gateway.providers.openai_chat import OpenAIChat
from gateway.unified.model import AgentInput, InputType, Message, Text

PROVIDERS = [BedrockConverse(), OpenAIChat(), Gemini(), AnthropicMessages(), CohereChat()]
CONVERSATION = AgentInput(
    InputType.MESSAGES,
    tuple(Message(role, (Text("x", "input"),), "input") for role in ("user", "assistant", "user")),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "tool_calls", "function", "arguments", "parts"]), inner, max_size=3
        )
    ),
)


def openai(message: dict[str, Any]) -> Any:
    return OpenAIChat().canonical([message])


def test_openai_string_content_is_one_text_part() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert openai({"role": "user", "content": "hi"}) == [parts] == openai(parts)


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": arguments}}],
        **more,
    }


def test_openai_tool_calls() -> None:
    assert openai(call('{"a": 1, "b": 2}')) == openai(call('{"b":2,"a":1}', content=None))
    assert openai(call('{"a": 1}')) != openai(call('{"a": 2}'))
    assert openai(call("{")) == [call("{", content=None)]
    assert openai(call("[" * 100_000)) == [call("[" * 100_000, content=None)]


def test_cohere() -> None:
    def canonical(message: dict[str, Any]) -> Any:
        return CohereChat().canonical([message])

    assert canonical({"role": "user", "content": "hi"}) == canonical(
        {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    )
    assert canonical(call('{"a": 1}')) == canonical(call('{"a":1}', content=None))
    assert canonical(call('{"a": 1}', tool_plan="x")) != canonical(call('{"a": 1}', content="x"))
    assert CohereChat().canonical("${parameters.messages}") == "${parameters.messages}"


def test_openai_keeps_what_differs() -> None:
    assert openai({"role": "user", "content": "a"}) != openai({"role": "system", "content": "a"})
    assert openai({"role": "user", "content": "a"}) != openai({"role": "user", "content": "b"})


def test_gemini_role_may_be_left_out() -> None:
    with_role = [{"role": "user", "parts": [{"text": "x"}]}]
    assert Gemini().canonical([{"parts": [{"text": "x"}]}]) == with_role == Gemini().canonical(with_role)
    assert Gemini().canonical([{"role": "model", "parts": []}]) == [{"role": "model", "parts": []}]


def test_anthropic_string_content_is_one_text_part() -> None:
    text = [{"type": "text", "text": "hi"}]
    parts = {"role": "user", "content": text}
    canonical = AnthropicMessages().canonical
    assert canonical([{"role": "user", "content": "hi"}]) == [parts] == canonical([parts])
    result = {"type": "tool_result", "tool_use_id": "t1"}
    spelled = [{"role": "user", "content": [{**result, "content": "hi"}]}]
    assert canonical(spelled) == [{"role": "user", "content": [{**result, "content": text}]}]


def test_bedrock_has_one_spelling() -> None:
    messages = [{"role": "user", "content": [{"text": "x"}]}]
    assert BedrockConverse().canonical(messages) == messages


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda p: p.name)
@given(value=anything)
def test_total_and_stable(provider: Any, value: Any) -> None:
    once = provider.canonical(value)
    assert provider.canonical(once) == once
    if not isinstance(value, list):
        assert once == value


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda p: p.name)
def test_roles_and_texts_of_written_turns(provider: Any) -> None:
    messages = provider.map(CONVERSATION, MappingOptions(allow_prefill=True)).messages
    roles = [provider.role_of(message) for message in messages]
    assert roles == ["user", "assistant", "user"]
    for role, message in zip(roles, messages, strict=True):
        assert message[provider.content_field] == [provider.text_part("x", role)]


def test_a_role_that_is_no_string_or_left_out() -> None:
    assert Gemini().role_of({"parts": []}) == "user"
    assert AnthropicMessages().role_of({"content": []}) == ""
    assert [provider.role_of({"role": 1}) for provider in PROVIDERS] == [""] * len(PROVIDERS)
