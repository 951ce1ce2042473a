"""The plain values that callers and providers exchange, and what a mapping finds.

`gateway.providers.base` exports them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from gateway.codes import Notice
from gateway.errors import Problem
from gateway.providers.capabilities import Capabilities
from gateway.unified.model import ClientTools


class MappingOptions(msgspec.Struct, frozen=True):
    """The operator's choices for the mapping.

    roles: client role → one of system, user, assistant, tool (`gateway.unified.roles` has the rule).
    allow_prefill: a conversation may end with an assistant turn where the provider's table has `prefill`.
    """

    roles: Mapping[str, str] = msgspec.field(default_factory=dict)
    allow_prefill: bool = False


class ProviderRequest(msgspec.Struct, frozen=True):
    """A conversation in the provider's format.

    messages: the value of `Provider.messages_field`, as JSON data. Inline media are tokens (`Base64.token`), so
        the data stay small.
    system: texts taken out of the conversation because the provider has a separate member for them ([] where it
        leaves them among the messages).
    notices: the changes to report (a mapped role, a cleaned tool id, …).
    tools: those of the client, to be declared beside the messages (`Provider.declare`); None without any.
    """

    messages: list[dict[str, Any]]
    system: list[str]
    notices: tuple[Notice, ...] = ()
    tools: ClientTools | None = None


class ConnectorHints(msgspec.Struct, frozen=True):
    """What a connector, model or agent states about its provider; "" where it states nothing.

    model_provider: agent `model.model_provider`. llm_interface: `_llm_interface`. url: the predict action's
    URL, its `${parameters.…}` filled in where known. service_name: connector `parameters.service_name`.
    request_body: the predict action's template.
    """

    model_provider: str = ""
    llm_interface: str = ""
    url: str = ""
    service_name: str = ""
    request_body: str = ""


class Evidence(Enum):
    """What a claim is based on, strongest first. A stronger claim outweighs all weaker ones."""

    NAME = "a name"
    URL = "the connector's URL"
    TEMPLATE = "the connector's template"


class Claim(msgspec.Struct, frozen=True):
    """A provider's statement that a connector uses its format. reason: why, as a clause (``its URL ends in /x``)."""

    evidence: Evidence
    reason: str


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call in an LLM's response. id: "" where the provider gave none. signature: as `ToolUse.signature`."""

    id: str
    name: str
    input: Any
    signature: str = ""


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one LLM call. `input_tokens` includes cached tokens."""

    input_tokens: int
    output_tokens: int


class LlmResponse(msgspec.Struct, frozen=True):
    """An LLM's response. text: its text parts joined, without reasoning. usage: None where it has none.

    stop_reason: as Bedrock Converse names it (``end_turn``, ``tool_use``, ``max_tokens``, ``content_filtered``, …), the
    API's own word for any other reason, "" where it has none.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    stop_reason: str = ""


class ClusterSupport(msgspec.Struct, frozen=True):
    """How ML Commons itself supports a provider: by function calling and in the `model` block of 3.5 and later.

    llm_interface: the `_llm_interface` of its function calling. since: the first release that has it.
    tool_config: what function calling writes for `${parameters.tool_configs}`.
    user_turn: the user's turn that a unified V1 agent makes of a text (recorded, 3.5 to 3.8); TEXT is its place.
    body_members: members of the request body in the cluster's own template for a `model` block.
    parameters: model parameters that this template needs, with a value for each.
    has_system_slot: the template has a place for the system prompt.
    calling_parameters: other parameters that function calling sets, with their values.
    v2: what a `conversational_v2` agent's `input` brings to the LLM; None if the cluster can't read its answers.
    """

    llm_interface: str
    since: tuple[int, int]
    tool_config: str
    user_turn: str
    body_members: frozenset[str]
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)
    has_system_slot: bool = True
    calling_parameters: Mapping[str, str] = msgspec.field(default_factory=dict)
    v2: Capabilities | None = None


class Inexpressible(Exception):
    """The provider has no form for these blocks; one problem a block, each with its place and a code."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(f"[{p.place}] {p.reason}" for p in problems))
        self.problems = tuple(problems)


class Findings(msgspec.Struct):
    """Collects problems and notices, so that a refusal names every block at once."""

    problems: list[Problem] = msgspec.field(default_factory=list)
    notices: list[Notice] = msgspec.field(default_factory=list)

    def refuse(self, code: str, place: str, reason: str, *, expected: str = "", received: str = "", help: str) -> None:
        """Add a problem: a block or turn that the provider can't carry."""
        self.problems.append(Problem(place, reason, expected, received, code, help))

    def note(self, code: str, place: str, reason: str) -> None:
        """Add a notice: a change that is reported to the client."""
        self.notices.append(Notice(code, reason, place))

    def raise_refusals(self) -> None:
        """Raise the refusals, if there are any.

        Raises:
            Inexpressible: something was refused.
        """
        if self.problems:
            raise Inexpressible(self.problems)
