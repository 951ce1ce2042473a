"""Providers are found by entry point: ours, a third party's, and a broken one that must not stop the rest."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.providers import registry
from gateway.providers.base import ConnectorHints, MappingOptions
from gateway.providers.bedrock_converse import BedrockConverse
from gateway.providers.registry import GROUP, AmbiguousProvider, BrokenProvider, Registry, UnknownProvider

from .mapping import parse

OURS = [
    "amazon-nova/invoke",
    "anthropic/v1/messages",
    "bedrock-invoke/anthropic",
    "bedrock/converse",
    "cohere/v2/chat",
    "gemini/v1beta/generatecontent",
    "openai/v1/chat/completions",
]

ACME = '''
from gateway.providers.base import Capabilities, Claim, Evidence, Provider
from gateway.unified.model import Text


class Acme(Provider):
    """A provider that takes lines."""

    name = "acme/v1/lines"
    messages_field = "lines"
    content_field = "spoken"
    capabilities = Capabilities("Acme", media={}, tool_media={})

    def write(self, turns, findings):
        return [
            {"who": turn.role, "spoken": [self.text_part(b.text) for b in turn.content if isinstance(b, Text)]}
            for turn in turns
        ]

    def text_part(self, text, role="user"):
        return {"line": text}

    def system_fields(self, texts):
        return {}

    def canonical(self, messages):
        return messages

    def claims(self, connector):
        if connector.url.endswith(("/lines", "/chat/completions")):
            return Claim(Evidence.URL, "its URL is Acme's")
        return Claim(Evidence.TEMPLATE, "it has lines") if '"contents"' in connector.request_body else None
'''


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path, as an installed package is: a module and its dist-info."""
    info = tmp_path / "acme_provider-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-provider\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nacme/v1/lines = acme_provider:Acme\n")
    (tmp_path / "acme_provider.py").write_text(ACME)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_provider", raising=False)
    registry.installed.cache_clear()
    yield tmp_path
    registry.installed.cache_clear()
    sys.modules.pop("acme_provider", None)


def test_a_third_party_adds_a_provider_with_one_class_and_an_entry_point(third_party: Path) -> None:
    assert registry.names() == sorted(["acme/v1/lines", *OURS])
    assert [provider.name for provider in registry.providers()] == registry.names()
    acme = registry.provider("ACME")
    assert acme.fields(acme.map(parse("hi"), MappingOptions())) == {
        "lines": [{"who": "user", "spoken": [{"line": "hi"}]}]
    }
    assert registry.recognise(ConnectorHints(url="https://acme.example/v1/lines")) == "acme/v1/lines"
    assert (
        registry.recognise(ConnectorHints(model_provider="openai/v1/chat/completions")) == "openai/v1/chat/completions"
    )


@pytest.mark.usefixtures("third_party")
def test_two_providers_that_claim_one_connector_are_both_named() -> None:
    gemini = '{"contents":[{"parts":[{"text":"x"}]}]}'
    url = ConnectorHints(url="https://x/v1/chat/completions", request_body=gemini)
    with pytest.raises(AmbiguousProvider) as error:
        registry.recognise(url)
    assert str(error.value) == (
        "'acme/v1/lines' (its URL is Acme's) and 'openai/v1/chat/completions' (its URL ends in /chat/completions)"
    )
    with pytest.raises(AmbiguousProvider, match=r"'acme/v1/lines' \(it has lines\) and 'gemini"):
        registry.recognise(ConnectorHints(request_body=gemini))
    # A stronger claim needs no second opinion.
    assert registry.recognise(replace(url, url="https://x/m:generateContent")) == "gemini/v1beta/generatecontent"
    assert registry.recognise(replace(url, llm_interface="bedrock/converse/claude")) == "bedrock/converse"
    assert registry.recognise(replace(url, model_provider="acme")) == "acme/v1/lines"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import no_such_module_of_acme", "ModuleNotFoundError"),
        ("Other = 1", "AttributeError"),
        ("class Acme: pass", "not a subclass"),
        ("Acme = 1", "not a subclass"),
        ("from gateway.providers.base import Provider\nclass Acme(Provider): pass", "abstract"),
        ("from gateway.providers.gemini import Gemini as Acme", "its name is 'gemini/v1beta/generatecontent'"),
    ],
)
def test_a_broken_third_party_says_why_and_stops_nobody(third_party: Path, source: str, reason: str) -> None:
    (third_party / "acme_provider.py").write_text(source)
    assert registry.names() == OURS
    assert registry.recognise(ConnectorHints(model_provider="bedrock/converse")) == "bedrock/converse"
    with pytest.raises(BrokenProvider, match=r"acme/v1/lines.*acme_provider:Acme") as error:
        registry.provider("acme")
    assert reason in str(error.value)
    assert reason in registry.installed().broken["acme/v1/lines"]


def test_two_entry_points_of_one_name() -> None:
    ours = EntryPoint("bedrock/converse", "gateway.providers.bedrock_converse:BedrockConverse", GROUP)
    found = Registry([ours, ours])
    assert found.names() == ["bedrock/converse"]
    assert found.broken == {}


@pytest.mark.parametrize(
    "name",
    [
        "bedrock/converse",
        "bedrock",
        "BEDROCK",
        " Bedrock/Converse ",
        "bedrock/converse/claude",
        "bedrock/converse/deepseek_r1",
    ],
)
def test_names_and_aliases(name: str) -> None:
    assert isinstance(registry.provider(name), BedrockConverse)


def test_aliases_of_the_others() -> None:
    assert registry.provider("OpenAI").name == "openai/v1/chat/completions"
    assert registry.provider("gemini").name == "gemini/v1beta/generatecontent"
    assert registry.provider("anthropic").name == "anthropic/v1/messages"
    assert registry.provider("cohere").name == "cohere/v2/chat"
    assert registry.provider("bedrock-invoke").name == "bedrock-invoke/anthropic"
    assert registry.provider("amazon-nova").name == "amazon-nova/invoke"


def test_the_built_in_providers_need_no_installed_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    assert Registry().names() == OURS == sorted(registry.BUILT_IN)
    assert Registry().broken == {}


def test_metadata_of_an_older_installation_that_lists_the_built_in_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    old = [EntryPoint(name, value, GROUP) for name, value in registry.BUILT_IN.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: old)
    assert (Registry().names(), Registry().broken) == (OURS, {})


def test_a_third_party_does_not_replace_a_built_in_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = EntryPoint("bedrock/converse", "tests.providers.test_registry:Other", GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [taken])
    found = Registry()
    assert type(found.provider("bedrock")) is BedrockConverse
    assert "another entry point has the same name" in found.broken["bedrock/converse"]


class Other(BedrockConverse):
    """A third party's provider under a built-in name."""


@pytest.mark.parametrize("name", ["", "mistral", "bedrock/invoke", "bedrock/conversed", "open"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownProvider) as error:
        registry.provider(name)
    assert str(error.value) == f"no provider {name!r}; known: {', '.join(OURS)}"
