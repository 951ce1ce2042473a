"""Which provider an agent's LLM uses, from its profile. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gateway.agents.rules import Rule, rule_for
from gateway.errors import Problem, UndeliverableContent, UnresolvedAgent
from gateway.mlcommons.expansion import RenderFailure, expand
from gateway.mlcommons.profile import AgentProfile, Connector
from gateway.providers.base import ConnectorHints


def with_provider(profile: AgentProfile, rules: tuple[Rule, ...]) -> AgentProfile:
    """Return the profile with its provider: from the agent, its first LLM's connector, or a rule of the operator.

    Raises:
        UnresolvedAgent: several providers claim the agent's LLM, and no rule names one.
    """
    from gateway.providers import registry  # imported here, so that reading documents does not load every provider

    # Only the model that the agent calls first: another tool's connector says nothing about that call's format.
    hints = [
        ("model.model_provider", ConnectorHints(model_provider=profile.model_provider)),
        ("_llm_interface", ConnectorHints(llm_interface=profile.llm_interface)),
        *(("connector", connector_hints(model.connector)) for model in profile.models[:1]),
    ]
    rule = rule_for(profile.id, profile.name, rules)
    for source, hint in hints:
        try:
            provider = registry.recognise(hint)
        except registry.AmbiguousProvider as ambiguous:
            if rule is not None and rule.provider:
                break
            raise UnresolvedAgent.of([_ambiguous(profile, source, ambiguous.claims, str(ambiguous))]) from None
        if provider:
            return replace(profile, provider=provider, provider_source=source)
    if rule is not None and rule.provider:
        return replace(profile, provider=rule.provider, provider_source="rule")
    return profile


def _ambiguous(profile: AgentProfile, source: str, names: Iterable[str], claims: str) -> Problem:
    if source == "connector":
        model = profile.models[0]
        place = f"connectors/{model.connector.id}" if model.connector.id else f"models/{model.id}.connector"
    else:
        place = f"agents/{profile.id}.{source if source.startswith('model.') else f'parameters.{source}'}"
    return Problem(
        place,
        f"several providers claim this agent's LLM: {claims}",
        "one provider",
        ", ".join(names),
        "PROVIDER_AMBIGUOUS",
        "name the agent's provider in a rule of the gateway's settings: `agents.rules[].provider`",
    )


def provider_of(connector: Connector, otherwise: str = "") -> str:
    """Return the only provider that claims `connector`; `otherwise` if there is none, or several."""
    from gateway.providers import registry  # as above

    try:
        return registry.recognise(connector_hints(connector)) or otherwise
    except registry.AmbiguousProvider:
        return otherwise


def connector_hints(connector: Connector) -> ConnectorHints:
    """Return a connector's hints about its provider, with the known parameters of its URL filled in."""
    try:
        url = expand(connector.url, connector.parameters)
    except (RenderFailure, UndeliverableContent):
        url = connector.url
    return ConnectorHints(
        url=url,
        service_name=connector.parameters.get("service_name", ""),
        request_body=connector.request_body,
    )
