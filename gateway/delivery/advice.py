"""What would let an agent take more kinds of input: one text for refusals, ``agents -v`` and ``upgrade``.

A refusal begins its `help` with the action of this advice, `agents` lists it as a remedy, and `upgrade` prints it where
no connector can be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gateway.delivery.template_change import (
    Code,
    NotOffered,
    TemplateChange,
    UnreadableTemplate,
    command,
    completes_text,
    find_change,
    members,
)
from gateway.mlcommons.agents import behaviour_of
from gateway.mlcommons.agents.flow import Flow, unread_llm
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import ABILITIES
from gateway.mlcommons.profile import AgentProfile, Connector, Model, Tool
from gateway.mlcommons.rendering import first_llm
from gateway.mlcommons.template import RuntimeValues
from gateway.providers import registry
from gateway.providers.base import Provider

NAME_PROVIDER = "name the agent's provider in a rule of the gateway's settings: `agents.rules[].provider`"
COMPLETES_TEXT = "send text only, or use an agent whose LLM takes messages"
NO_MESSAGES_HERE = "this agent's LLM completes a text, so no upgrade and no rule can help"
_NAME_IF = "that helps if its LLM takes the format of one; else send text only"
NAME_OR_TEXT = f"{NAME_PROVIDER}; {_NAME_IF}"


class Advice(NamedTuple):
    """What to do. kind: `upgrade` its connector, change a `rule` of the settings, use another `agent`; `none` helps.

    action: what to do, "" for nothing. why: an explanation, which follows the action. change, agent_id: of an upgrade;
    the agent whose connector it is, which may be one that a flow runs.
    """

    kind: Literal["upgrade", "rule", "agent", "none"]
    action: str = ""
    why: str = ""
    change: TemplateChange | None = None
    agent_id: str = ""

    @property
    def text(self) -> str:
        """The action and the explanation in a line."""
        return "; ".join(filter(None, (self.action, self.why)))


def advise(profile: AgentProfile, params: Mapping[str, str] | None = None, for_tools: bool = False) -> Advice:
    """Return what would let the agent take more. params: the caller's own parameters.

    for_tools: the client's tools need a place, too (`upgrade --for-tools`).
    """
    try:
        return _advise(profile, params or {}, for_tools)
    except RenderFailure:
        return Advice("none")  # the planner reports these parameters


def _advise(profile: AgentProfile, params: Mapping[str, str], for_tools: bool) -> Advice:
    """Do the work of `advise`. Raise RenderFailure if `params` rule out any call."""
    unread = unread_llm(profile, params)
    if unread is not None:
        return Advice("agent", use_another_agent(unread))
    if profile.provider_source == "rule" and (fault := rule_fault(profile)):
        return Advice("rule", CORRECT_RULE, fault)
    if not profile.provider:
        if any(completes_text(model.connector) for model in profile.models[:1]):
            return Advice("agent", COMPLETES_TEXT, NO_MESSAGES_HERE)
        return Advice("rule", NAME_PROVIDER, _NAME_IF)
    model, _ = first_llm(profile, params)
    if model is None:
        return Advice("none")
    try:
        raw = ABILITIES[profile.generation].raw_parameters
        change = find_change(model.connector, _provider(profile.provider), raw, for_tools)
    except NotOffered as refusal:
        if refusal.code is Code.TEXT_ENDPOINT:
            return Advice("agent", COMPLETES_TEXT, NO_MESSAGES_HERE)
        return Advice("none", "", f"{name_connector(model)} can't be upgraded: {refusal.reason}")
    owner = _owner(profile, params)
    return Advice(
        "upgrade",
        f"upgrade the agent with `{command(owner)}{' --for-tools' if for_tools else ''}`",
        f"it changes {name_connector(model)} so that the gateway can send {_SENT[change.form]} in the parameter "
        f"{change.slot}; requests without this parameter are not affected",
        change,
        owner,
    )


CORRECT_RULE = "correct the rule of the gateway's settings that names this agent's provider (`agents.rules[].provider`)"
_SENT = {
    "array": "the whole list of messages",
    "turn": "the user's turn",
    "history": "earlier turns",
    "tools": "the declarations of tools",
}


def rule_fault(profile: AgentProfile) -> str:
    """Return why the operator's rule on the agent's provider can't be right; "" if it can, or if there is none."""
    named = profile.rule_provider
    if not named:
        return ""
    provider = _provider(named)
    if provider is None:
        return f"the rule names {named}, which is not installed"
    if profile.provider_source != "rule":
        found = _provider(profile.provider)
        if found is None or found.name == provider.name:
            return ""
        source = _SOURCES.get(profile.provider_source, f"`{profile.provider_source}`")
        return f"the rule names {named}, but {source} shows {profile.provider}, which is used"
    field = provider.messages_field
    for model in profile.models[:1]:
        names = _members(model.connector)
        if names and field not in names:
            if completes_text(model.connector):
                return f"the rule names {named}, which takes messages, but the agent's LLM completes a text"
            return f"the rule names {named}, but the connector's template has no member `{field}`"
    return ""


_SOURCES = {"connector": "the connector"}


def _members(connector: Connector) -> frozenset[str]:
    """Return the names of the template's outermost members; none if it can't be read."""
    try:
        return frozenset(members(connector.request_body))
    except (UnreadableTemplate, RecursionError):
        return frozenset()


def _provider(name: str) -> Provider | None:
    try:
        return registry.provider(name)
    except (registry.UnknownProvider, registry.BrokenProvider):
        return None


def _owner(profile: AgentProfile, params: Mapping[str, str]) -> str:
    """Return the id of the agent that makes the first LLM call: this one, or one that it runs."""
    behaviour = behaviour_of(profile)
    if not isinstance(behaviour, Flow):
        return profile.id
    step = next(iter(behaviour.llm_steps(profile, params, RuntimeValues())), None)
    return profile.id if step is None else step.profile.id


def name_connector(model: Model) -> str:
    """Return how a text names the connector of `model`."""
    connector = f"connector {model.connector.id} of" if model.connector.id else "the connector inside"
    return f"{connector} model {model.id}"


def use_another_agent(unread: Tool) -> str:
    """Return what to do where the tool `unread` of a flow calls an LLM that is not read."""
    ran = {**unread.parameters, **unread.config}.get("agent_id", "")
    if ran:
        return f"send this input to the agent {ran}, which the flow's tool {unread.key} runs"
    return f"use an agent without the tool {unread.key}, whose LLM the gateway does not read"
