"""Bedrock Converse: signed with SigV4 by the cluster, with keys or, on Amazon's service, a role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.register.connectors.base import ConnectorKind
from gateway.register.specs import ModelSpec


class BedrockConverse(ConnectorKind):
    """`bedrock/converse`. Of `temperature` and `top_p` the latter is sent: models refuse both (3.8.0.0 source)."""

    provider = "bedrock/converse"
    url = "https://bedrock-runtime.${parameters.region}.amazonaws.com/model/${parameters.model}/converse"
    protocol = "aws_sigv4"
    response_filter = "$.output.message.content[0].text"
    credentials = (("access_key", "secret_key"), ("roleArn",))
    optional_credentials = ("session_token",)

    fixed: ClassVar[Mapping[str, str]] = {"region": "us-east-1", "service_name": "bedrock"}
    user_turn: ClassVar[Mapping[str, Any]] = {"role": "user", "content": [{"text": "${parameters.prompt}"}]}

    def sampling(self, spec: ModelSpec) -> dict[str, str]:
        """A temperature, unless `top_p` was given."""
        return {} if "top_p" in spec.parameters else {"temperature": "1.0"}

    def left_out(self, spec: ModelSpec) -> tuple[str, ...]:
        """A temperature beside `top_p`."""
        return ("temperature",) if {"top_p", "temperature"} <= spec.parameters.keys() else ()

    def model_name(self, spec: ModelSpec) -> str:
        """The id, or ARN, whose slashes must not end the path segment."""
        return spec.model_id.replace("/", "%2F")

    def template(self, conversation: str, spec: ModelSpec) -> str:
        """Converse's body."""
        name, member = ("top_p", "topP") if "top_p" in spec.parameters else ("temperature", "temperature")
        return (
            f'{{"system":[{{"text":"${{parameters.system_prompt}}"}}],"messages":{conversation},'
            f'"inferenceConfig":{{"maxTokens":${{parameters.max_tokens}},"{member}":${{parameters.{name}}}}}}}'
        )
