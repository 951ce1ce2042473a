"""The interface of a provider: the wire format of one LLM API.

A third party adds one with a class that implements `Provider` and an entry point in the group
``mlc_gateway.providers`` (see ``docs/extending.md``). Providers are pure: plain values in, plain values out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from gateway.errors import Problem
from gateway.notices import Notice
from gateway.unified.model import AgentInput


@dataclass(frozen=True, slots=True)
class MappingOptions:
    """What the operator chose for the mapping.

    roles: client role → one of system, user, assistant, tool (`gateway.unified.roles` has the rule).
    allow_prefill: a conversation may end with an assistant turn on Bedrock.
    """

    roles: Mapping[str, str] = field(default_factory=dict)
    allow_prefill: bool = False


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """A conversation in the provider's own words.

    messages: what stands under `Provider.messages_field`, as JSON data; inline media are tokens
        (`Base64.token`), so the data stay small.
    system: texts taken out of the conversation because the provider wants them apart ([] where it keeps
        them among the messages).
    notices: what was changed on the way and must be said (a mapped role, a cleaned tool id, …).
    """

    messages: list[dict[str, Any]]
    system: list[str]
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectorHints:
    """What a connector, model or agent says about its provider; "" where it says nothing.

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
    """What a claim rests on, strongest first. A stronger claim outweighs all weaker ones."""

    NAME = "a name"
    URL = "the connector's URL"
    TEMPLATE = "the connector's template"


@dataclass(frozen=True, slots=True)
class Claim:
    """A provider's statement that a connector speaks its format. reason: why, as a clause (``its URL ends in /x``)."""

    evidence: Evidence
    reason: str


class Inexpressible(Exception):
    """The provider has no way to say these blocks; one problem a block, each with its place and a code."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(f"[{p.place}] {p.reason}" for p in problems))
        self.problems = tuple(problems)


class Provider(ABC):
    """One wire format.

    name: ``bedrock/converse`` and the like. messages_field: the body's member that holds the turns.
    content_field: a turn's member that holds its parts.
    """

    name: ClassVar[str]
    messages_field: ClassVar[str]
    content_field: ClassVar[str]

    @abstractmethod
    def map(self, agent_input: AgentInput, options: MappingOptions) -> ProviderRequest:
        """The conversation as this provider's messages.

        Raises:
            Inexpressible: with every block the provider can't carry.
        """

    @abstractmethod
    def text_part(self, text: str) -> dict[str, Any]:
        """A text content part: ``{"text": …}`` or ``{"type": "text", "text": …}``."""

    @abstractmethod
    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """The body members that carry system text apart from the messages; {} when there is none."""

    @abstractmethod
    def canonical(self, messages: Any) -> Any:
        """The same messages in one normal form, so that two spellings the API treats alike compare equal.

        What is not a list of turns is returned as it is.
        """

    @abstractmethod
    def claims(self, connector: ConnectorHints) -> Claim | None:
        """Claim a connector whose URL or template shows this provider's format; None for any other connector.

        Claim by the URL wherever it identifies the API. Claim by the template only for what no other API has, and not
        where the URL is another API's. The registry compares names (`model_provider`, `llm_interface`) itself.
        """

    def required_members(self, messages: Sequence[Any]) -> frozenset[str]:
        """Body members that must be there for these messages to be taken (Bedrock: toolConfig for tool blocks)."""
        return frozenset()

    def fields(self, request: ProviderRequest) -> dict[str, Any]:
        """The body members of `request`: messages (or contents) and the system text."""
        return {**self.system_fields(request.system), self.messages_field: request.messages}
