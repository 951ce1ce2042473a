"""Function calling on 3.x: the settings of `_llm_interface`, and the messages for tool calls and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.simulator.errors import illegal_argument
from gateway.simulator.render import Parameters
from gateway.simulator.values import as_text, to_json

# Parameters that are inserted raw by default (docs/evidence/facts.md, 3.4.0).
DEFAULT_NO_ESCAPE = "_chat_history,_tools,_interactions,tool_configs"


@dataclass(frozen=True)
class Interface:
    """One `_llm_interface`: its templates, and the paths in the model's answer."""

    response_filter: str
    tool_template: str
    tool_configs: str
    tool_calls_path: str
    finish_reason_path: str
    finish_reason_tool: str
    """The reason that comes with a tool call; empty if it is the same as without."""
    message_path: str
    question_template: str
    answer_template: str
    extra: Mapping[str, str]
    closed_schemas: bool = True
    """True if a tool's schema keeps its `additionalProperties`."""
    no_escape_params: str = DEFAULT_NO_ESCAPE

    def configure(self, parameters: Parameters) -> None:
        """Override the agent's and the caller's parameters with the interface's, except `no_escape_params`."""
        parameters.setdefault("no_escape_params", self.no_escape_params)
        parameters["llm_response_filter"] = self.response_filter
        if self.tool_configs:
            parameters["tool_configs"] = self.tool_configs
        parameters.update(self.extra)


_BEDROCK = Interface(
    response_filter="$.output.message.content[0].text",
    tool_template=(
        '{"toolSpec":{"name":"${tool.name}","description":"${tool.description}",'
        '"inputSchema":{"json":${tool.attributes.input_schema}}}}'
    ),
    tool_configs=', "toolConfig": {"tools": [${parameters._tools:-}]}',
    tool_calls_path="$.output.message.content[*].toolUse",
    finish_reason_path="$.stopReason",
    finish_reason_tool="tool_use",
    message_path="$.output.message",
    question_template='{"role":"user","content":[{"text":"${_chat_history.message.question}"}]}',
    answer_template='{"role":"assistant","content":[{"text":"${_chat_history.message.response}"}]}',
    extra={},
)
_OPENAI = Interface(
    response_filter="$.choices[0].message.content",
    tool_template=(
        '{"type": "function", "function": { "name": "${tool.name}", "description": "${tool.description}", '
        '"parameters":${tool.attributes.input_schema},"strict":${tool.attributes.strict:-false}}}'
    ),
    tool_configs=', "tools": [${parameters._tools:-}], "parallel_tool_calls": false',
    tool_calls_path="$.choices[0].message.tool_calls",
    finish_reason_path="$.choices[0].finish_reason",
    finish_reason_tool="tool_calls",
    message_path="$.choices[0].message",
    question_template='{"role":"user","content":"${_chat_history.message.question}"}',
    answer_template='{"role":"assistant","content":"${_chat_history.message.response}"}',
    extra={"tool_choice": "auto", "parallel_tool_calls": "false"},
)

# 3.5 and later. The paths of a tool call follow the API; the recordings have none.
_GEMINI = Interface(
    response_filter="$.candidates[0].content.parts[0].text",
    tool_template=(
        '{"name":"${tool.name}","description":"${tool.description}","parameters":${tool.attributes.input_schema}}'
    ),
    tool_configs=(
        ', "tools": [{"functionDeclarations": [${parameters._tools:-}]}], '
        '"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}'
    ),
    tool_calls_path="$.candidates[0].content.parts[*].functionCall",
    finish_reason_path="$.candidates[0].finishReason",
    finish_reason_tool="",
    message_path="$.candidates[0].content",
    question_template='{"role":"user","parts":[{"text":"${_chat_history.message.question}"}]}',
    answer_template='{"role":"model","parts":[{"text":"${_chat_history.message.response}"}]}',
    extra={},
    closed_schemas=False,
)

# By source: the agent's own system text holds the tools, and the answer's text the tool calls, which are not simulated.
_DEEPSEEK = replace(_BEDROCK, tool_configs="", no_escape_params="_chat_history,_interactions")

INTERFACES: Mapping[str, Interface] = {
    "bedrock/converse/claude": _BEDROCK,
    "bedrock/converse/deepseek_r1": _DEEPSEEK,
    "openai/v1/chat/completions": _OPENAI,
}
UNIFIED_INTERFACES = {**INTERFACES, "gemini/v1beta/generatecontent": _GEMINI}


def interface_of(name: str | None) -> Interface | None:
    """Return the interface called `name`, None for no name.

    Raises:
        ExecuteFailure: 400 for a name the cluster doesn't know.
    """
    if not name:
        return None
    if name not in UNIFIED_INTERFACES:
        raise illegal_argument(f"Invalid _llm_interface: {name}")
    return UNIFIED_INTERFACES[name]


def tool_call(interface: Interface, call: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return name, input as JSON text, and id of one call; Gemini's id is the name."""
    if interface is _GEMINI:
        return call["name"], as_text(call["args"], True), call["name"]
    if interface is _BEDROCK:
        return call["name"], as_text(call["input"], True), call["toolUseId"]
    return call["function"]["name"], as_text(call["function"]["arguments"], True), call["id"]


def tool_result(interface: Interface, call_id: str, text: str) -> str:
    """Return the message with a tool's output for the model, as JSON text."""
    if interface is _GEMINI:
        response = {"name": call_id, "response": {"result": text}}
        return to_json({"role": "user", "parts": [{"functionResponse": response}]}, True)
    if interface is _BEDROCK:
        result = {"toolUseId": call_id, "content": [{"text": text}], "status": None}
        return to_json({"role": "user", "content": [{"toolResult": result}]}, True)
    return to_json({"role": "tool", "tool_call_id": call_id, "content": text}, True)
