"""Gemini v1beta generateContent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.register.connectors.base import ConnectorKind
from gateway.register.specs import ModelSpec


class Gemini(ConnectorKind):
    """`gemini/v1beta/generatecontent`."""

    provider = "gemini/v1beta/generatecontent"
    url = "https://generativelanguage.googleapis.com/v1beta/models/${parameters.model}:generateContent"
    response_filter = "$.candidates[0].content.parts[0].text"
    array = "contents"
    credentials = (("gemini_api_key",),)

    headers: ClassVar[Mapping[str, str]] = {"x-goog-api-key": "${credential.gemini_api_key}"}
    user_turn: ClassVar[Mapping[str, Any]] = {"role": "user", "parts": [{"text": "${parameters.prompt}"}]}

    def template(self, conversation: str, spec: ModelSpec) -> str:
        """generateContent's body."""
        top_p = ',"topP":${parameters.top_p}' if "top_p" in spec.parameters else ""
        return (
            f'{{"systemInstruction":{{"parts":[{{"text":"${{parameters.system_prompt}}"}}]}},"contents":{conversation},'
            f'"generationConfig":{{"maxOutputTokens":${{parameters.max_tokens}},'
            f'"temperature":${{parameters.temperature}}{top_p}}}}}'
        )
