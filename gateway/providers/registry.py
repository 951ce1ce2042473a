"""Finds providers: the built-in ones, and those of third parties by entry points (``mlc_gateway.providers``).

An entry point's name is the provider's; its value is a class that implements `gateway.providers.base.Provider`. The
built-in providers are a table, so that adding one needs no new installation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from gateway.providers.base import Claim, ConnectorHints, ConnectorTemplate, Evidence, Provider

GROUP = "mlc_gateway.providers"

BUILT_IN = {
    "amazon-nova/invoke": "gateway.providers.bedrock_nova:BedrockNova",
    "anthropic/v1/messages": "gateway.providers.anthropic_messages:AnthropicMessages",
    "bedrock-invoke/anthropic": "gateway.providers.anthropic_messages:BedrockInvokeAnthropic",
    "bedrock/converse": "gateway.providers.bedrock_converse:BedrockConverse",
    "cohere/v2/chat": "gateway.providers.cohere_chat:CohereChat",
    "gemini/v1beta/generatecontent": "gateway.providers.gemini:Gemini",
    "openai/v1/chat/completions": "gateway.providers.openai_chat:OpenAIChat",
}
"""Name → class of each built-in provider."""


def installed_points() -> list[EntryPoint]:
    """Return the built-in providers first, then the entry points of installed packages by name."""
    built_in = [EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()]
    return [*built_in, *sorted(entry_points(group=GROUP), key=lambda point: point.name)]


class UnknownProvider(LookupError):
    """No provider has this name; the message lists the known ones."""


class BrokenProvider(LookupError):
    """An installed provider can't be used; the message names the entry point and the reason."""


class AmbiguousProvider(LookupError):
    """Several providers claim one connector; the message names each with its reason."""

    def __init__(self, claims: Mapping[str, Claim]) -> None:
        super().__init__(" and ".join(f"{name!r} ({claim.reason})" for name, claim in claims.items()))
        self.claims = dict(claims)


class Registry:
    """The providers of a set of entry points, loaded once. `broken` has those that can't be loaded.

    points: the first one of a name is used; by default `installed_points()`.
    """

    def __init__(self, points: Iterable[EntryPoint] | None = None) -> None:
        self._providers: dict[str, Provider] = {}
        self._broken: dict[str, str] = {}
        for point in installed_points() if points is None else points:
            self._load(point)

    def _load(self, point: EntryPoint) -> None:
        name = point.name.lower()
        try:
            factory = point.load()
            if not (isinstance(factory, type) and issubclass(factory, Provider)):
                raise TypeError("it is not a subclass of gateway.providers.base.Provider")
            provider = factory()
            if provider.name.lower() != name:
                raise TypeError(f"its name is {provider.name!r}, which is not that of the entry point")
            if name in self._providers and type(self._providers[name]) is not factory:
                raise TypeError("another entry point has the same name")
        except Exception as error:  # a third party's code may raise anything, and must not stop the gateway
            self._broken[name] = f"entry point {point.name!r} ({point.value}): {type(error).__name__}: {error}"
            return
        self._providers[name] = provider

    @property
    def broken(self) -> Mapping[str, str]:
        """Name → reason, of each provider that can't be used."""
        return dict(self._broken)

    def names(self) -> list[str]:
        """Return the names of all usable providers, sorted."""
        return sorted(self._providers)

    def providers(self) -> list[Provider]:
        """Return all usable providers, sorted by name."""
        return [self._providers[name] for name in self.names()]

    def provider(self, name: str) -> Provider:
        """Return the provider called `name`, in any case.

        The first part of a name is enough if only one provider has it (``bedrock``). A name may have more parts at its
        end (``bedrock/converse/claude``).

        Raises:
            BrokenProvider: it is installed, but can't be loaded.
            UnknownProvider: there is none.
        """
        if name in self._providers:
            return self._providers[name]
        wanted = name.strip().lower()
        known = self._providers.keys() | self._broken.keys()
        longer = max((n for n in known if f"{wanted}/".startswith(f"{n}/")), key=len, default="")
        shorter = [n for n in known if n.partition("/")[0] == wanted]
        found = longer or (shorter[0] if len(shorter) == 1 else "")
        if found in self._providers:
            return self._providers[found]
        if found:
            raise BrokenProvider(f"provider {found!r} can't be used: {self._broken[found]}")
        raise UnknownProvider(f"no provider {name!r}; known: {', '.join(self.names())}")

    def recognise(self, hints: ConnectorHints) -> str:
        """Return the name of the provider these hints identify, "" when they identify none.

        The strongest hint decides: `model_provider`, then `llm_interface` (``bedrock/converse/claude`` counts for
        ``bedrock/converse``), then each provider's own claim (`Provider.claims`), by URL before template.

        Raises:
            AmbiguousProvider: two providers have an equally strong claim.
        """
        for name in (hints.model_provider, hints.llm_interface):
            named = {p.name: Claim(Evidence.NAME, f"{name} is its name") for p in self.providers() if _has(p, name)}
            if named:
                return _only(named)
        claims = {p.name: claim for p in self.providers() if (claim := p.claims(hints)) is not None}
        for evidence in Evidence:
            strongest = {name: claim for name, claim in claims.items() if claim.evidence is evidence}
            if strongest:
                return _only(strongest)
        return ""


def _has(provider: Provider, name: str) -> bool:
    """Return True if `name` is the provider's name, the first part of it, or a longer name that starts with it."""
    name = name.strip().lower()
    return bool(name) and (name == provider.name.partition("/")[0] or f"{name}/".startswith(f"{provider.name}/"))


def _only(claims: Mapping[str, Claim]) -> str:
    if len(claims) > 1:
        raise AmbiguousProvider(claims)
    return next(iter(claims))


def connectors() -> dict[str, ConnectorTemplate]:
    """Return the connectors that a registration can make, by the provider's name."""
    return {found.name: found.connector for found in providers() if found.connector is not None}


@cache
def installed() -> Registry:
    """Return the registry of all installed providers; `installed.cache_clear()` makes the next call load them again."""
    return Registry()


def names() -> list[str]:
    """Return the names of all usable providers (`Registry.names`)."""
    return installed().names()


def providers() -> list[Provider]:
    """Return all usable providers (`Registry.providers`)."""
    return installed().providers()


def provider(name: str) -> Provider:
    """Return the provider called `name` (`Registry.provider`)."""
    return installed().provider(name)


def recognise(hints: ConnectorHints) -> str:
    """Return the name of the provider that these hints identify, or "" (`Registry.recognise`)."""
    return installed().recognise(hints)
