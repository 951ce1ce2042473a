"""Whether an agent can hand a call of the client's own tools to the client, and what to do if it can't. Pure.

A flow whose answer is the LLM's whole response can: its LLM is called once, and what it says is the answer. Every other
agent runs the tools it was registered with, and tells its LLM that any other tool failed (docs/evidence/facts.md,
"Tools of the client").
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from gateway.codes import Notice
from gateway.delivery.refusal import Upgrade
from gateway.delivery.search import Plan, Search
from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.agents.flow import selected_tools
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import FLOW_TYPES
from gateway.mlcommons.profile import AgentProfile, Parameters
from gateway.mlcommons.tool_types import MODEL_TOOL
from gateway.providers.base import Provider
from gateway.unified.model import AgentInput, ClientTools

TOOLS_LEFT_OUT, TOOLS_REQUIRED = "TOOLS_LEFT_OUT", "TOOLS_REQUIRED"
_CHANGES_ANSWER = ("response_filter", "response_field", "output_filter", "output_processors")
"""Parameters with which the answer of a tool is not the LLM's whole response."""
_NO_SLOT = "the template of its connector has no place for tools, or has tools of its own"
_HELP = "leave `tool_choice` out, so that the agent answers without the tools; or use a flow with one LLM tool"


def obstacle(profile: AgentProfile, params: Parameters) -> str:
    """Return why a call of the LLM's would not reach the client; "" if it would. params: the caller's own."""
    if profile.agent_type not in FLOW_TYPES:
        return f"an agent of type {profile.type} runs its own tools only"
    try:
        tools = selected_tools(profile, params)
    except RenderFailure as failure:
        return str(failure)
    callers = [tool for tool in tools if tool.calls_llm or tool.calls_unread_llm]
    if len(callers) != 1 or tools[-1] is not callers[0] or callers[0].type != MODEL_TOOL or callers[0].model is None:
        return f"the answer of this flow is not that of one {MODEL_TOOL}, which has to be its last tool"
    connector = callers[0].model.connector
    if connector.post_process:
        return "its connector has a post_process_function, so that the answer is not the LLM's whole response"
    values = (params, profile.parameters, callers[0].parameters, callers[0].config, connector.parameters)
    found = next((name for name in _CHANGES_ANSWER if any(name in one for one in values)), "")
    if found:
        return f"the parameter {found} takes a part out of the LLM's response, so that a call in it is lost"
    return ""


def with_client_tools(search: Search, agent_input: AgentInput, find: Callable[[AgentInput], Plan]) -> Plan:
    """Return the plan that declares the client's tools; else the one of `find` without them, with a notice.

    Raises:
        UndeliverableContent: as `find`; or the LLM must call one of the tools, which can't be declared.
    """
    assert agent_input.tools is not None
    reason = obstacle(search.profile, search.params) or _not_declared(search.provider, agent_input.tools)
    if not reason:
        with suppress(UndeliverableContent):
            found = search.first_proved(agent_input)
            if found is not None:
                return found
    plan = find(replace(agent_input, tools=None))
    help = _HELP
    if not reason and agent_input.tools.required:
        upgrade = Upgrade(search, for_tools=True)
        help = upgrade.text if upgrade.delivers(agent_input) else _HELP
    return replace(plan, notices=(*plan.notices, leave_out(agent_input.tools, reason or _NO_SLOT, help)))


def _not_declared(provider: Provider, tools: ClientTools) -> str:
    """Return why these tools can't be declared in the provider's format; "" if they can."""
    if not provider.tools_member:
        return "no declarations of tools are known for its LLM's format"
    limits = provider.capabilities
    refused = next((spec.name for spec in tools.specs if not limits.takes_tool_name(spec.name)), None)
    return "" if refused is None else f"{limits.label} does not accept the tool name {refused[:80]!r}"


def leave_out(tools: ClientTools, reason: str, help: str = _HELP) -> Notice:
    """Return the notice that the tools are left out.

    Raises:
        UndeliverableContent: the LLM must call one of them.
    """
    if tools.required:
        what = f"the LLM must call one of the client's tools, and they can't be declared to it: {reason}"
        raise UndeliverableContent.of([Problem("tool_choice", what, '"auto"', "a required call", TOOLS_REQUIRED, help)])
    return Notice(TOOLS_LEFT_OUT, f"the tools were left out: {reason}", "tools")
