"""How the provider of an agent's LLM is recognised."""

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.agents.documents import Rule, connector_hints, provider_of, read_profile
from gateway.errors import UnresolvedAgent
from gateway.mlcommons.profile import Connector
from gateway.providers import registry
from gateway.providers.base import Claim, ConnectorHints
from gateway.providers.openai_chat import OpenAIChat

from .recorded import profile_of, unknown_agent


@pytest.mark.parametrize(
    ("version", "name", "provider", "source"),
    [
        ("2.19.0", "flow-a", "bedrock/converse", "connector"),
        ("2.19.0", "cflow-d", "bedrock/converse", "connector"),
        ("3.4.0", "br_per_tut", "bedrock/converse", "_llm_interface"),
        ("3.4.0", "oa_conv_up", "openai/v1/chat/completions", "_llm_interface"),
        ("3.4.0", "react_old", "openai/v1/chat/completions", "connector"),
        ("3.8.0", "v2_gemini", "gemini/v1beta/generatecontent", "model.model_provider"),
        ("3.8.0", "agui", "bedrock/converse", "model.model_provider"),
    ],
)
def test_provider_and_its_source(version: str, name: str, provider: str, source: str) -> None:
    profile = profile_of(version, name)
    assert (profile.provider, profile.provider_source) == (provider, source)


def test_a_rule_tells_the_provider_only_where_nothing_else_does() -> None:
    rules = [Rule("other*", "bedrock/converse"), Rule("min?", "gemini/v1beta/generatecontent"), Rule("*", "never")]
    profile = read_profile("id-1", *unknown_agent(), (2, 19, 0), rules)
    assert (profile.provider, profile.provider_source) == ("gemini/v1beta/generatecontent", "rule")
    recognised = profile_of("3.4.0", "react_old", rules=rules)
    assert (recognised.provider, recognised.provider_source) == ("openai/v1/chat/completions", "connector")


COHERE = (
    '{"model":"command-a-03-2025","messages":[{"role":"user","content":"${parameters.prompt}"}],'
    '"response_format":{"type":"text"},"frequency_penalty":0.1,"presence_penalty":0.1}'
)
COHERE_URLS = [
    "https://api.cohere.com/v2/chat",
    "https://bedrock-runtime.us-east-1.amazonaws.com/model/cohere.command-r-plus-v1:0/invoke",
]


def agent_with(url: str, body: str, tool_url: str = "") -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """An agent with an LLM at `url`, and an LLM tool at `tool_url`."""
    agent: dict[str, Any] = {"name": "mine", "type": "conversational", "llm": {"model_id": "m"}}
    if tool_url:
        agent["tools"] = [{"type": "MLModelTool", "parameters": {"model_id": "t"}}]

    def connector(url: str) -> dict[str, Any]:
        return {"protocol": "http", "actions": [{"action_type": "predict", "url": url, "request_body": body}]}

    models = {"m": {"connector_id": "c"}, "t": {"connector_id": "d"}}
    return agent, models, {"c": connector(url), "d": connector(tool_url)}


@pytest.mark.parametrize(("url", "provider"), list(zip(COHERE_URLS, ["cohere/v2/chat", ""], strict=True)))
def test_a_connector_of_coheres_is_not_taken_for_openai(url: str, provider: str) -> None:
    assert read_profile("id-1", *agent_with(url, COHERE), (2, 19, 0)).provider == provider
    profile = read_profile("id-1", *agent_with(url, COHERE), (2, 19, 0), [Rule("mine", "openai/v1/chat/completions")])
    assert profile.provider_source == ("connector" if provider else "rule")


def test_the_llm_of_a_tool_does_not_tell_the_provider_of_the_agents_llm() -> None:
    documents = agent_with(COHERE_URLS[1], COHERE, "https://api.openai.com/v1/chat/completions")
    assert read_profile("id-1", *documents, (2, 19, 0)).provider == ""


@pytest.fixture
def two_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second provider that claims every URL of chat completions."""

    class Acme(OpenAIChat):
        name = "acme/v1/chat"

        def claims(self, connector: ConnectorHints) -> Claim | None:
            claim = super().claims(connector)
            return replace(claim, reason="it is Acme's") if claim else None

    found = registry.Registry()
    found._providers[Acme.name] = Acme()
    monkeypatch.setattr(registry, "installed", lambda: found)


@pytest.mark.usefixtures("two_claims")
def test_a_connector_that_two_providers_claim_is_refused_with_both_names() -> None:
    documents = agent_with("https://x/v1/chat/completions", "{}")
    with pytest.raises(UnresolvedAgent) as refusal:
        read_profile("id-1", *documents, (2, 19, 0))
    (problem,) = refusal.value.problems
    assert (problem.place, problem.code) == ("connectors/c", "PROVIDER_AMBIGUOUS")
    assert problem.received == "acme/v1/chat, openai/v1/chat/completions"
    assert "'acme/v1/chat' (it is Acme's) and 'openai/v1/chat/completions' (its URL ends in" in problem.reason
    assert "`agents.rules[].provider`" in problem.help
    ruled = read_profile("id-1", *documents, (2, 19, 0), [Rule("mine", "openai/v1/chat/completions")])
    assert (ruled.provider, ruled.provider_source) == ("openai/v1/chat/completions", "rule")
    llm = ruled.llm
    assert llm is not None
    assert provider_of(llm.connector, "otherwise") == "otherwise"


def test_nothing_tells_the_provider() -> None:
    profile = read_profile("id-1", *unknown_agent(), (2, 19, 0), [Rule("mine", provider=None)])
    assert (profile.provider, profile.provider_source) == ("", "")


def test_hints_hold_the_url_with_known_parameters_filled_in() -> None:
    url = "https://${parameters.endpoint}/v1/${parameters.path:-chat/completions}?k=${parameters.later}"
    hints = connector_hints(Connector("c", "http", url, "{}", {"endpoint": "api.openai.com"}))
    assert hints.url == "https://api.openai.com/v1/chat/completions?k=${parameters.later}"
