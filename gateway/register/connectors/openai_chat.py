"""OpenAI chat completions, and whatever speaks the same at another address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.register.connectors.base import ConnectorKind
from gateway.register.specs import ModelSpec


class OpenaiChat(ConnectorKind):
    """`openai/v1/chat/completions`. With `reasoning_effort` no sampling parameter is sent (3.8.0.0 source)."""

    provider = "openai/v1/chat/completions"
    url = "https://api.openai.com/v1/chat/completions"
    response_filter = "$.choices[0].message.content"
    credentials = (("openai_api_key",),)

    headers: ClassVar[Mapping[str, str]] = {"Authorization": "Bearer ${credential.openai_api_key}"}
    lead: ClassVar[tuple[Mapping[str, Any], ...]] = ({"role": "system", "content": "${parameters.system_prompt}"},)
    user_turn: ClassVar[Mapping[str, Any]] = {"role": "user", "content": "${parameters.prompt}"}

    def sampling(self, spec: ModelSpec) -> dict[str, str]:
        """A temperature, unless it is a reasoning model."""
        return {} if "reasoning_effort" in spec.parameters else {"temperature": "1.0"}

    def left_out(self, spec: ModelSpec) -> tuple[str, ...]:
        """Temperature and `top_p` beside `reasoning_effort`."""
        if "reasoning_effort" not in spec.parameters:
            return ()
        return tuple(name for name in ("temperature", "top_p") if name in spec.parameters)

    def template(self, conversation: str, spec: ModelSpec) -> str:
        """The chat completion's body."""
        if "reasoning_effort" in spec.parameters:
            chosen = '"reasoning_effort":"${parameters.reasoning_effort}"'
        else:
            chosen = '"temperature":${parameters.temperature}'
            chosen += ',"top_p":${parameters.top_p}' if "top_p" in spec.parameters else ""
        return (
            f'{{"model":"${{parameters.model}}","messages":{conversation},'
            f'"max_completion_tokens":${{parameters.max_tokens}},{chosen}}}'
        )
