"""Every cell of the mapping tables in docs/evidence/providers.md, as whole documents.

The SDK of each provider checks them.

A golden file is one case for all providers. It holds `id`, `rule`, `input` as a client would write it, `options` when
not the defaults, and by provider either `expected` (the provider's body members) with `notices`, or `refused`; notices
and refusals as [place, code]. A provider whose rule is another one has a `rule` of its own.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.providers.anthropic_messages import AnthropicMessages, BedrockInvokeAnthropic
from gateway.providers.base import Inexpressible, MappingOptions, Provider
from gateway.providers.bedrock_converse import BedrockConverse
from gateway.providers.bedrock_nova import BedrockNova
from gateway.providers.cohere_chat import CohereChat
from gateway.providers.gemini import Gemini
from gateway.providers.openai_chat import OpenAIChat

from .mapping import fill, parse
from .sdk import anthropic, bedrock, cohere, gemini, openai

GOLDEN = Path(__file__).parents[1] / "golden"
PROVIDERS: dict[str, tuple[Provider, Any]] = {
    "anthropic_messages": (AnthropicMessages(), anthropic.check),
    "bedrock_invoke": (BedrockInvokeAnthropic(), anthropic.check_on_bedrock),
    "bedrock_converse": (BedrockConverse(), bedrock.check),
    "bedrock_nova": (BedrockNova(), bedrock.check_nova),
    "openai_chat": (OpenAIChat(), openai.check),
    "cohere_chat": (CohereChat(), cohere.check),
    "gemini": (Gemini(), gemini.check),
}
FILES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(GOLDEN.glob("*.json"))}
CASES: dict[str, dict[str, Any]] = {
    f"{name}/{stem}": {**file, **file["providers"][name], "provider": name}
    for name in PROVIDERS
    for stem, file in FILES.items()
    if name in file["providers"]
}


def test_each_file_is_named_after_its_case_and_cites_a_rule() -> None:
    assert [file["id"] for file in FILES.values()] == list(FILES)
    assert all(case["rule"] for case in CASES.values())
    assert {name for file in FILES.values() for name in file["providers"]} == PROVIDERS.keys()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_mapping(case: dict[str, Any]) -> None:
    provider, check = PROVIDERS[case["provider"]]
    agent_input = parse(case["input"])
    options = MappingOptions(**case.get("options", {}))
    if "refused" in case:
        with pytest.raises(Inexpressible) as refusal:
            provider.map(agent_input, options)
        assert [[p.place, p.code] for p in refusal.value.problems] == case["refused"]
        for problem in refusal.value.problems:
            assert all((problem.reason, problem.expected, problem.received, problem.help))
        return
    request = provider.map(agent_input, options)
    assert fill(provider.fields(request), agent_input) == case["expected"]
    assert [[n.place, n.code] for n in request.notices] == case["notices"]
    assert all(notice.reason for notice in request.notices)
    check(case["expected"])


@pytest.mark.parametrize("name", PROVIDERS)
def test_canonical_of_a_mapping_is_stable(name: str) -> None:
    provider, _ = PROVIDERS[name]
    mappings = {key: case["expected"] for key, case in CASES.items() if case["provider"] == name and "expected" in case}
    once = {key: provider.canonical(mapping[provider.messages_field]) for key, mapping in mappings.items()}
    assert {key: provider.canonical(messages) for key, messages in once.items()} == once


def test_every_provider_has_every_common_case() -> None:
    # These have the cases that differ from anthropic_messages and bedrock_converse.
    names = PROVIDERS.keys() - {"bedrock_invoke", "bedrock_nova"}
    common = FILES.keys() - {"document_names", "document_name_long", "document_names_history"}
    assert [stem for stem in common if names - FILES[stem]["providers"].keys()] == []
    assert len(common) > 70
