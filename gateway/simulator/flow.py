"""The flow and conversational_flow agents, which run their tools in order; each tool can use earlier outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.mlcommons.template import escape_json
from gateway.simulator import prompts, tools
from gateway.simulator.errors import ExecuteFailure, illegal_argument
from gateway.simulator.lenient import is_json
from gateway.simulator.predict import Run, Tensor
from gateway.simulator.render import MAX_DEPTH, Parameters
from gateway.simulator.running import RunningCluster
from gateway.simulator.values import as_text, to_json

DEFAULT_HISTORY = 10


def history_limit(parameters: Mapping[str, str | None]) -> int:
    """Return `message_history_limit`, by default the last ten turns.

    Raises:
        ExecuteFailure: 400 NumberFormatException.
    """
    text = parameters.get("message_history_limit")
    if text is None:
        return DEFAULT_HISTORY
    return java_int(text)


def java_int(text: str) -> int:
    """Parse an integer as Java does.

    Raises:
        ExecuteFailure: 400 NumberFormatException.
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits.lstrip("0")) <= 10 and -(2**31) <= int(text) < 2**31):
        raise ExecuteFailure(400, "NumberFormatException", f'For input string: "{text}"')
    return int(text)


def run_flow(core: RunningCluster, agent: Mapping[str, Any], parameters: Parameters) -> Run:
    """Run a flow agent and return the tensors of its answer."""
    specs = tools.selected(agent, parameters)
    if not specs:
        raise illegal_argument("no tool configured")
    if len(specs) == 1:
        output = yield from _run(core, specs[0], parameters)
        if specs[0]["type"] == tools.CONNECTOR_TOOL:
            return [{"name": "response", "dataAsMap": output["inference_results"][0]["output"][0]["dataAsMap"]}]
        return [_tensor("response", output if isinstance(output, str) else to_json(output, False))]
    shown: list[Tensor] = []
    for position, spec in enumerate(specs, 1):
        output = yield from _run(core, spec, parameters)
        _hand_on(core, spec, output, parameters)
        if spec.get("include_output_in_agent_response") or position == len(specs):
            shown.append(_tensor(tools.tool_name(spec), as_text(output, core.modern)))
    return shown


def run_conversational_flow(
    core: RunningCluster, agent: Mapping[str, Any], parameters: Parameters, running: str | None
) -> Run:
    """Run a conversational_flow agent and return the tensors of its answer. running: the new turn."""
    remembers = agent.get("app_type") is not None and agent.get("memory") is not None
    memory_id, parent = parameters.get("memory_id"), parameters.get("parent_interaction_id")
    if remembers:
        turns = core.memory.history(memory_id or "", history_limit(parameters), running)
        if turns:
            history = "".join(f"Human:{turn.input}\nAssistant:{turn.response}\n" for turn in turns)
            parameters["chat_history"] = prompts.HISTORY_HEADING + history
    specs = tools.selected(agent, parameters)
    if not specs:
        raise illegal_argument("no tool configured")
    shown: list[Tensor] = []
    if remembers:
        shown = [_tensor("memory_id", memory_id), _tensor("parent_message_id", parent)]
    traced = (parameters.get("disable_trace") or "").lower() != "true"
    for position, spec in enumerate(specs, 1):
        output = yield from _run(core, spec, parameters)
        text = _hand_on(core, spec, output, parameters)
        if spec.get("include_output_in_agent_response") or position == len(specs):
            shown.append(_tensor(tools.tool_name(spec), as_text(output, core.modern)))
        if remembers and traced:
            core.memory.trace(parent, position, parameters.get("question"), text, tools.tool_name(spec))
        if remembers and position == len(specs):
            core.memory.answer(parent, text, {})
    return shown


def _run(core: RunningCluster, spec: Mapping[str, Any], parameters: Parameters) -> Run:
    tool = tools.create(spec, parameters, core.modern)
    if spec["type"] == tools.AGENT_TOOL:
        tensors = yield from core.run_agent(tool.parameters.get("agent_id") or "", dict(tool.parameters))
        return to_json({"inference_results": [{"output": tensors}]}, core.modern)
    if tool.is_caller:
        output = yield from tools.run_caller(core, spec["type"], dict(tool.parameters))
        return _as_results(output) if spec["type"] == tools.CONNECTOR_TOOL else output
    if not tool.is_model:
        return core.tool_outputs.get(tool.spec["type"], tools.INDEX_TABLE)
    # On 2.x the model is the tool's own; from 3.0 the request may name another.
    own = (spec.get("parameters") or {}).get("model_id")
    model_id = tool.parameters.get("model_id") if core.modern else own
    return (yield from tools.model_tool(dict(tool.parameters), core.modern, core.predict, model_id))


def _as_results(answer: Any) -> dict[str, Any]:
    return {"inference_results": [{"output": [{"name": "response", "dataAsMap": answer}], "status_code": 200}]}


def _hand_on(core: RunningCluster, spec: Mapping[str, Any], output: Any, parameters: Parameters) -> str:
    """Set a tool's output as parameter ``<name>.output`` for the next tools, and return it as text."""
    text = as_text(output, core.modern)
    raw = core.modern and is_json(text, MAX_DEPTH)
    parameters[f"{tools.tool_name(spec)}.output"] = text if raw else escape_json(text)
    return text


def _tensor(name: str, result: str | None) -> Tensor:
    return {"name": name, "result": result}
