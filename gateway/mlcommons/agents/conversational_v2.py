"""Unified agents of the second generation (`conversational_v2`, 3.6 and later), which take all of `input`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.mlcommons.agents.base import AgentBehaviour
from gateway.mlcommons.agents.conversational import with_tools
from gateway.mlcommons.agents.flow import selected_tools
from gateway.mlcommons.expansion import expand
from gateway.mlcommons.profile import AgentProfile, overlay
from gateway.mlcommons.template import RuntimeValues

_DEFAULT_SYSTEM = "You are a helpful assistant"
_MODEL_IGNORED = ("system_prompt", "max_iteration")
"""Members of `model_parameters` that have no effect (docs/evidence/facts.md, "conversational_v2")."""


class ConversationalV2(AgentBehaviour):
    """`conversational_v2`: the messages are the parameter `body`, which the cluster makes of `input`."""

    def calls_functions(self, profile: AgentProfile, params: Mapping[str, str]) -> bool:
        """Return True: it always uses the LLM's own function calling."""
        return True

    def call_values(self, profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> dict[str, str]:
        """Return the merged parameters: the request's over the agent's over the model's, with `body` inserted raw."""
        values = with_tools(profile, overlay(profile.parameters, params))
        if not selected_tools(profile, params):
            values["tool_configs"] = ""
        values["no_escape_params"] += ",body"
        values.setdefault("system_prompt", _DEFAULT_SYSTEM)
        own = {name: value for name, value in profile.llm_parameters.items() if name not in _MODEL_IGNORED}
        return overlay(own, values)


BEDROCK, OPENAI = "bedrock/converse", "openai/v1/chat/completions"

Message = Mapping[str, Any]
"""A message of an `input` in the cluster's own spelling: role, content, toolCalls, toolCallId."""


def render(provider: str, messages: Iterable[Message]) -> str:
    """Return the parameter `body`: the messages as JSON, separated by commas. provider: `BEDROCK` or `OPENAI`.

    Raises:
        RenderFailure: the cluster would fail to fill in a text.
    """
    of_message = {BEDROCK: _bedrock, OPENAI: _openai}[provider]
    return ",".join(map(of_message, messages))


def _filled(text: str) -> str:
    return expand(expand(text, {}), {})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _content(message: Message, of_block: Any) -> list[str]:
    return [_json(of_block(block)) for block in message["content"]]


def _bedrock(message: Message) -> str:
    """Return a message for Converse. Of a tool's output, only the first part is sent."""
    content = _content(message, _bedrock_part)
    if message["role"] == "tool":
        result = f'{{"toolUseId":{_json(message["toolCallId"])},"content":[{"".join(content[:1])}]}}'
        return f'{{"role":"user","content":[{{"toolResult":{result}}}]}}'
    for call in message.get("toolCalls", ()):
        name, arguments = call["function"]["name"], _filled(call["function"]["arguments"])
        use = f'{{"toolUseId":{_json(call["id"])},"name":{_json(name)},"input":{arguments}}}'
        content.append(f'{{"toolUse":{use}}}')
    return f'{{"role":{_json(message["role"])},"content":[{",".join(content)}]}}'


def _bedrock_part(block: Mapping[str, Any]) -> dict[str, Any]:
    kind = block["type"]
    if kind == "text":
        return {"text": _filled(block["text"])}
    source = block["source"]
    name = {"name": "document"} if kind == "document" else {}
    given = {"bytes": source["data"]} if source["type"] == "base64" else {"s3Location": source["data"]}
    return {kind: {"format": source["format"], **name, "source": given}}


def _openai(message: Message) -> str:
    """Return a message for chat completions, whose content is always a list."""
    members: dict[str, Any] = {"role": message["role"]}
    if calls := message.get("toolCalls"):
        members["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _filled(call["function"]["arguments"])}}
            for call in calls
        ]
    if message["role"] == "tool":
        members["tool_call_id"] = message["toolCallId"]
    return f'{_json(members)[:-1]},"content":[{",".join(_content(message, _openai_part))}]}}'


def _openai_part(block: Mapping[str, Any]) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": _filled(block["text"])}
    source = block["source"]
    inline = source["type"] == "base64"
    url = f"data:image/{source['format']};base64,{source['data']}" if inline else source["data"]
    return {"type": "image_url", "image_url": {"url": url}}
