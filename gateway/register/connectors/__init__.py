"""The connectors the gateway makes, one module a provider; `kind` finds one by the provider's name. Pure."""

from __future__ import annotations

from gateway.register.connectors.base import ConnectorKind
from gateway.register.connectors.bedrock_converse import BedrockConverse
from gateway.register.connectors.gemini import Gemini
from gateway.register.connectors.openai_chat import OpenaiChat

_KINDS: dict[str, ConnectorKind] = {k.provider: k for k in (BedrockConverse(), Gemini(), OpenaiChat())}

PROVIDERS = tuple(_KINDS)
"""The values of `model_provider`."""


def kind(provider: str) -> ConnectorKind:
    """The connector of a provider (a name in `PROVIDERS`).

    Raises:
        KeyError: there is none.
    """
    return _KINDS[provider]
