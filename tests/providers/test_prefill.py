"""Which models are known to continue an assistant turn."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from gateway.providers import recognition, registry

CLAUDE_3 = (
    "claude-3-haiku-20240307",
    "claude-3-5-sonnet-latest",
    "anthropic.claude-3-opus-20240229-v1:0",
    "us.anthropic.claude-3-7-sonnet-20250219-v1:0",
    "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-3-5-haiku-20241022-v1:0",
)
OTHERS = (
    "",
    "claude-3",
    "claude-2.1",
    "anthropic.claude-v2:1",
    "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    "anthropic.claude-opus-4-6-v1",
    "amazon.nova-pro-v1:0",
    "not-claude-3-7-sonnet-20250219",
    "claude-3-7-sonnet-20250219/other",
    "arn:aws:bedrock:us-east-1:1:application-inference-profile/abc",
)
NOVA = (
    "amazon.nova-pro-v1:0",
    "us.amazon.nova-2-lite-v1:0",
    "arn:aws:bedrock:us-east-1:1:inference-profile/eu.amazon.nova-micro-v1:0",
)
NOT_NOVA = ("", "amazon.nova-canvas-v1:0", "amazon.nova-sonic-v1:0", "amazon.titan-text-lite-v1", "my-amazon.nova-pro")
THINKING = {"type": "enabled", "budget_tokens": 2000}


@pytest.mark.parametrize("model", CLAUDE_3)
def test_claude_3_does(model: str) -> None:
    assert recognition.continues_assistant(model)


@pytest.mark.parametrize("model", OTHERS)
def test_no_other_model_is_known_to(model: str) -> None:
    assert not recognition.continues_assistant(model)


@pytest.mark.parametrize("model", NOVA)
def test_nova_does(model: str) -> None:
    assert recognition.takes_messages(model)
    url = f"https://bedrock.example/model/{quote(model, safe='')}/converse"
    assert registry.provider("bedrock").continues_assistant(url, {})


@pytest.mark.parametrize("model", NOT_NOVA)
def test_what_is_no_nova_model_that_takes_messages(model: str) -> None:
    assert not recognition.takes_messages(model)


@pytest.mark.parametrize(
    ("name", "url", "body", "thinks"),
    [
        (
            "amazon-nova/invoke",
            "https://bedrock.example/model/us.amazon.nova-2-lite-v1:0/invoke",
            {"messages": []},
            {"inferenceConfig": {"reasoningConfig": {"type": "enabled"}}},
        ),
        (
            "bedrock/converse",
            "https://bedrock.example/model/us.anthropic.claude-3-7-sonnet-20250219-v1%3A0/converse",
            {"messages": []},
            {"additionalModelRequestFields": {"thinking": THINKING}},
        ),
        (
            "bedrock-invoke/anthropic",
            "https://bedrock.example/model/anthropic.claude-3-7-sonnet-20250219-v1:0/invoke",
            {"messages": []},
            {"thinking": THINKING},
        ),
        (
            "anthropic/v1/messages",
            "https://api.example/v1/messages",
            {"model": "claude-3-7-sonnet-20250219"},
            {"thinking": THINKING},
        ),
    ],
)
def test_a_model_that_thinks_first_does_not(name: str, url: str, body: dict[str, Any], thinks: dict[str, Any]) -> None:
    provider = registry.provider(name)
    assert provider.continues_assistant(url, body)
    assert not provider.continues_assistant(url, {**body, **thinks})


@pytest.mark.parametrize("name", ["bedrock/converse", "bedrock-invoke/anthropic", "anthropic/v1/messages"])
def test_without_a_models_id_it_is_not_known(name: str) -> None:
    assert not registry.provider(name).continues_assistant("https://llm.example/converse", {})


def test_the_other_providers_need_no_such_model() -> None:
    names = {provider.name for provider in registry.providers() if provider.capabilities.assistant_last == "prefill"}
    assert names == {"amazon-nova/invoke", "bedrock/converse", "bedrock-invoke/anthropic", "anthropic/v1/messages"}
