"""Every cell of the mapping tables in docs/evidence/providers.md, as whole documents.

The SDK of each provider checks them.

A golden file holds `id`, `rule`, `input` as a client would write it, `options` when not the defaults, and either
`expected` (the provider's body members) with `notices`, or `refused`; notices and refusals as [place, code].
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
CASES = sorted(GOLDEN.glob("*/*.json"))


def read(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert case["id"] == path.stem
    assert case["rule"]
    return case


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_mapping(path: Path) -> None:
    case = read(path)
    provider, check = PROVIDERS[path.parent.name]
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


@pytest.mark.parametrize("path", [p for p in CASES if "expected" in read(p)], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_canonical_of_a_mapping_is_stable(path: Path) -> None:
    provider, _ = PROVIDERS[path.parent.name]
    once = provider.canonical(read(path)["expected"][provider.messages_field])
    assert provider.canonical(once) == once


def test_every_provider_has_every_common_case() -> None:
    # These have the cases that differ from anthropic_messages and bedrock_converse.
    names = PROVIDERS.keys() - {"bedrock_invoke", "bedrock_nova"}
    cases = {name: {path.stem for path in CASES if path.parent.name == name} for name in names}
    common = set.union(*cases.values()) - {"document_names", "document_name_long", "document_names_history"}
    assert [common - have for have in cases.values()] == [set()] * 5
    assert len(common) > 70
