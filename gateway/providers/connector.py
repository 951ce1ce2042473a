"""The connector that a registration makes: what all providers' connectors have in common, and `ModelSpec`."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from gateway.config.schema import Secret

SYSTEM_PROMPT = "You are a helpful assistant."
"""ML Commons' own default from 3.5 (docs/evidence/facts.md, "Rendering, in detail")."""

_QUOTED = ("system_prompt", "reasoning_effort")
_HISTORY = "${parameters._chat_history:-}"
_INTERACTIONS = "${parameters._interactions:-}"
_TOOL_CONFIGS = "${parameters.tool_configs:-}"

_NOT_IN_NAMES = re.compile(r"[^\w\s.,!?():@\-/'\"]")
"""What ML Commons 3.x refuses in the names and descriptions of models and connectors (source, 3.6.0.0)."""


class ModelSpec(msgspec.Struct, frozen=True):
    """The `model` block of a registration.

    model_id: the provider's name for the model. provider: the provider's name, such as `bedrock/converse`.
    credential: by the names that the provider uses, never shown. parameters: `model_parameters`, each value as the
    string that ML Commons stores. url: where the model answers, "" for the provider's own address; without a path it
    is the host to put before the provider's path.
    """

    model_id: str
    provider: str
    credential: Mapping[str, Secret] = msgspec.field(default_factory=dict)
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)
    url: str = ""


def compact(value: Any) -> str:
    """Write `value` as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_name(text: str) -> str:
    """Replace every character that a name or description can't have with a hyphen."""
    return _NOT_IN_NAMES.sub("-", text)


class ConnectorTemplate(ABC):
    """One provider's connector, for function calling and for agents without it.

    Both forms have a system slot (`system_prompt`) and one variable for the conversation, so that every input type can
    be delivered. With function calling the variable is `body`, inside the messages array beside what the agent adds
    itself; without it the variable is the whole array (docs/evidence/facts.md, 3.4.0, "Upgrade", and 2.19.0, "The
    smallest upgrade of an old connector").
    """

    url: ClassVar[str]
    protocol: ClassVar[str] = "http"
    response_filter: ClassVar[str]
    """JSON path of the answer's text, for agents without function calling."""
    array: ClassVar[str] = "messages"
    """The member, and the variable, that holds the whole conversation."""
    credentials: ClassVar[tuple[tuple[str, ...], ...]]
    """The alternative sets of credential names; the first is the usual one."""
    optional_credentials: ClassVar[tuple[str, ...]] = ()
    headers: ClassVar[Mapping[str, str]] = {}
    """Headers in addition to the content type; they carry the credential."""
    fixed: ClassVar[Mapping[str, str]] = {}
    """Connector parameters that only this provider has, with their defaults."""
    lead: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Messages before the conversation: the system slot, where the provider has it there."""
    user_turn: ClassVar[Mapping[str, Any]]
    """A user message that holds `${parameters.prompt}`."""

    @abstractmethod
    def template(self, conversation: str, spec: ModelSpec) -> str:
        """Return the request body around `conversation`: the text of the array, and of the tools after it."""

    def sampling(self, spec: ModelSpec) -> dict[str, str]:
        """Return this model's sampling parameters with their defaults."""
        return {"temperature": "1.0"}

    def left_out(self, spec: ModelSpec) -> tuple[str, ...]:
        """Return the client's parameters that are not sent because the provider refuses them beside another one."""
        return ()

    def model_name(self, spec: ModelSpec) -> str:
        """Return the model's name as the connector's URL or body needs it."""
        return spec.model_id

    def parameters(self, spec: ModelSpec) -> dict[str, str]:
        """Return the connector's parameters, apart from the conversation.

        ML Commons inserts a connector's own parameters unescaped, so those inside quotes are escaped here. At execute
        time the agent's `llm.parameters` override them, and those it escapes (docs/evidence/facts.md, "Rendering").
        """
        defaults = {"system_prompt": SYSTEM_PROMPT, "max_tokens": "4096", **self.fixed, **self.sampling(spec)}
        given = {name: compact(text)[1:-1] if name in _QUOTED else text for name, text in spec.parameters.items()}
        return {**defaults, **given, "model": self.model_name(spec)}

    def address(self, spec: ModelSpec) -> str:
        """Return the URL where the model answers."""
        if not spec.url:
            return self.url
        if urlsplit(spec.url).path.strip("/"):
            return spec.url
        path = self.url.partition("://")[2].partition("/")[2]
        return f"{spec.url.rstrip('/')}/{path}"

    def document(self, spec: ModelSpec, function_calling: bool, tools: bool = True) -> dict[str, Any]:
        """Return the connector as `POST /models/_register` takes it inside `connector`, credentials in clear text.

        tools: whether the agent has any. Without tools the cluster would fill the slot of function calling with an
        empty list, which Bedrock and OpenAI refuse (docs/evidence/facts.md, "Upstream defects").
        """
        if function_calling:
            lead = "".join(f"{compact(message)}," for message in self.lead)
            conversation = f"[{lead}{_HISTORY}${{parameters.body}}{_INTERACTIONS}]{_TOOL_CONFIGS if tools else ''}"
            default = {"body": compact(self.user_turn)}
        else:
            conversation = f"${{parameters.{self.array}}}"
            default = {self.array: compact([*self.lead, self.user_turn])}
        return {
            "name": as_name(f"Auto-generated connector for {spec.model_id}"),
            "description": f"{spec.provider}, for an agent",
            "version": "1",
            "protocol": self.protocol,
            "parameters": {**self.parameters(spec), **default},
            "credential": {name: secret.reveal() for name, secret in spec.credential.items()},
            "actions": [
                {
                    "action_type": "predict",
                    "method": "POST",
                    "url": self.address(spec),
                    "headers": {"content-type": "application/json", **self.headers},
                    "request_body": self.template(conversation, spec),
                }
            ],
        }
