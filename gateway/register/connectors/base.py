"""What every provider's connector has in common."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from gateway.register.specs import ModelSpec

SYSTEM_PROMPT = "You are a helpful assistant."
"""ML Commons' own default from 3.5 (FACTS.md, "Rendering, in detail")."""

_QUOTED = ("system_prompt", "reasoning_effort")
_HISTORY = "${parameters._chat_history:-}"
_INTERACTIONS = "${parameters._interactions:-}"
_TOOL_CONFIGS = "${parameters.tool_configs:-}"

_NOT_IN_NAMES = re.compile(r"[^\w\s.,!?():@\-/'\"]")
"""What ML Commons 3.x refuses in the names and descriptions of models and connectors (source, 3.6.0.0)."""


def compact(value: Any) -> str:
    """`value` as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_name(text: str) -> str:
    """`text` with a hyphen for every character that a name or description can't have."""
    return _NOT_IN_NAMES.sub("-", text)


class ConnectorKind(ABC):
    """One provider's connector, for function calling and in the prompt-engineered form.

    Both have a system slot (`system_prompt`) and one variable for the conversation, so that every input type can be
    delivered: `body` inside the messages array, beside what a function-calling agent adds of its own (FACTS.md,
    3.4.0, "Upgrade"); the whole array where the agent adds nothing (2.19.0, "The smallest upgrade").
    """

    provider: ClassVar[str]
    url: ClassVar[str]
    protocol: ClassVar[str] = "http"
    response_filter: ClassVar[str]
    """Where the answer's text stands, for what is not function calling."""
    array: ClassVar[str] = "messages"
    """The member, and the variable, that holds the whole conversation."""
    credentials: ClassVar[tuple[tuple[str, ...], ...]]
    """The sets of credential names that will do; the first is the usual one."""
    optional_credentials: ClassVar[tuple[str, ...]] = ()
    headers: ClassVar[Mapping[str, str]] = {}
    """Those that carry the credential."""
    fixed: ClassVar[Mapping[str, str]] = {}
    """Connector parameters of this provider's own, with their defaults."""
    lead: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Messages that stand before the conversation: the system slot, where the provider keeps it there."""
    user_turn: ClassVar[Mapping[str, Any]]
    """A user message that holds `${parameters.prompt}`."""

    @abstractmethod
    def template(self, conversation: str, spec: ModelSpec) -> str:
        """The request body around `conversation`: the text of the array, and of the tools behind it."""

    def sampling(self, spec: ModelSpec) -> dict[str, str]:
        """The parameters of this model that steer its choice of words, with their defaults."""
        return {"temperature": "1.0"}

    def left_out(self, spec: ModelSpec) -> tuple[str, ...]:
        """Parameters the client gave that are not sent, because the provider refuses them beside another one."""
        return ()

    def model_name(self, spec: ModelSpec) -> str:
        """The model's name as the connector's URL or body needs it."""
        return spec.model_id

    def parameters(self, spec: ModelSpec) -> dict[str, str]:
        """The connector's parameters, apart from the conversation.

        ML Commons puts a connector's own parameters in unescaped, so those inside quotes are escaped here; at
        execute time the agent's `llm.parameters` override them, and those it escapes (FACTS.md, "Rendering").
        """
        defaults = {"system_prompt": SYSTEM_PROMPT, "max_tokens": "4096", **self.fixed, **self.sampling(spec)}
        given = {name: compact(text)[1:-1] if name in _QUOTED else text for name, text in spec.parameters.items()}
        return {**defaults, **given, "model": self.model_name(spec)}

    def address(self, spec: ModelSpec) -> str:
        """Where the model answers."""
        if not spec.url:
            return self.url
        if urlsplit(spec.url).path.strip("/"):
            return spec.url
        path = self.url.partition("://")[2].partition("/")[2]
        return f"{spec.url.rstrip('/')}/{path}"

    def document(self, spec: ModelSpec, function_calling: bool, tools: bool = True) -> dict[str, Any]:
        """The connector as `POST /models/_register` takes it inside `connector`; credentials are revealed in it.

        tools: whether the agent has any. Without them the cluster would fill the slot of function calling with an
        empty list, which Bedrock and OpenAI refuse (FACTS.md, "Upstream defects").
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
