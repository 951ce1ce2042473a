"""The tools of an agent: their parameters, and their runs.

An MLModelTool and a QueryPlanningTool call a model, a ConnectorTool a connector (tried on 3.6.0), an AgentTool of a
flow runs another agent (by source). The tools that list indices return a fixed table. Of the skills plugin's tools only
the documentation is known: those that call a model are simulated at their worst, with all parameters of the request in
the model's template. Every other type is unknown, which is an error when the agent runs, not when it is registered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.simulator.errors import illegal_argument
from gateway.simulator.lenient import is_json
from gateway.simulator.predict import Run
from gateway.simulator.render import Parameters, fill
from gateway.simulator.running import RunningCluster
from gateway.simulator.values import as_text, read_answer, to_parameters

MODEL_TOOL, AGENT_TOOL, CONNECTOR_TOOL, PLANNING_TOOL = "MLModelTool", "AgentTool", "ConnectorTool", "QueryPlanningTool"
SKILLS = {"PPLTool": "model_id", "CreateAlertTool": "model_id", "RAGTool": "inference_model_id"}
"""Tools of the skills plugin that call a model with a prompt, and the parameter that names it."""
SEARCHES = frozenset({"VectorDBTool", "NeuralSparseSearchTool"})
"""Tools of the skills plugin that send a model their `input` alone."""
DEFAULT_QUERY = '{"size":10,"query":{"match_all":{}}}'
_PLANNING_PROMPT = "[prompt of the tool] ${parameters.question} [end]"
INDEX_TABLE = 'row,index,comment\n1,books,"as a cluster lists them"\n'

_LISTER_SCHEMA = {
    "type": "object",
    "properties": {"indices": {"type": "array", "items": {"type": "string"}, "description": "[names of indices]"}},
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Tool:
    """A tool of an agent. spec: its entry in the agent's document."""

    name: str
    description: str
    spec: Mapping[str, Any]
    parameters: Mapping[str, str | None]

    @property
    def is_model(self) -> bool:
        """True if it calls a model."""
        return bool(self.spec["type"] == MODEL_TOOL)

    @property
    def is_caller(self) -> bool:
        """True if it is another tool that calls a model or connector."""
        return self.spec["type"] in (CONNECTOR_TOOL, PLANNING_TOOL, *SKILLS, *SEARCHES)

    @property
    def in_answer(self) -> bool:
        """True if its output is part of the agent's answer."""
        return bool(self.spec.get("include_output_in_agent_response"))

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes for function calling: `input_schema` as JSON text, `strict`, …."""
        default = {} if self.is_model else {"input_schema": json.dumps(_LISTER_SCHEMA), "strict": "false"}
        return {**default, **(self.spec.get("attributes") or {})}


def tool_name(spec: Mapping[str, Any]) -> str:
    """Return the tool's name, or its type when it has none."""
    return str(spec.get("name") or spec["type"])


def selected(agent: Mapping[str, Any], parameters: Mapping[str, str | None]) -> list[Mapping[str, Any]] | None:
    """Return the agent's tools, or only those in `selected_tools`; None if it has none."""
    specs = agent.get("tools") or None
    wanted = parameters.get("selected_tools")
    if not wanted or specs is None:
        return specs
    by_name = {tool_name(spec): spec for spec in specs}
    return [by_name[name] for name in json.loads(wanted) if name in by_name]


def known_types(modern: bool) -> frozenset[str]:
    """Return the known tool types."""
    lister = "ListIndexTool" if modern else "CatIndexTool"
    planning = {PLANNING_TOOL} if modern else set()
    free = {lister, "IndexMappingTool", "SearchIndexTool", "VisualizationTool"}
    return frozenset({MODEL_TOOL, AGENT_TOOL, CONNECTOR_TOOL, *planning, *SKILLS, *SEARCHES, *free})


def create(spec: Mapping[str, Any], parameters: Parameters, modern: bool) -> Tool:
    """Find a tool.

    Raises:
        ExecuteFailure: 400 "Tool not found: …".
    """
    if spec["type"] not in known_types(modern):
        raise illegal_argument(f"Tool not found: {spec['type']}")
    name = tool_name(spec)
    description = parameters.get(f"{name}.description") or spec.get("description") or f"[description of {spec['type']}]"
    given = execute_parameters(spec, parameters, modern)
    if not given.get("model_id") and spec["type"] in (MODEL_TOOL, PLANNING_TOOL) and modern:
        raise illegal_argument("Model ID can't be null or empty")
    return Tool(name, description, spec, given)


def execute_parameters(spec: Mapping[str, Any], parameters: Parameters, modern: bool) -> Parameters:
    """Return a flow tool's parameters: its own, overridden by the request's, and these by its `config`.

    A parameter prefixed with a tool's name or type is for that tool only.
    """
    result: Parameters = dict(spec.get("parameters") or {})
    if modern:
        _merge_modern(result, spec, parameters)
    else:
        _merge_classic(result, spec, parameters)
    result.update(spec.get("config") or {})
    text = result.get("input")
    if text is not None and not modern:
        result["input"] = fill(text, result)
    return result


def _merge_classic(result: Parameters, spec: Mapping[str, Any], parameters: Parameters) -> None:
    name = spec.get("name")
    for key, value in parameters.items():
        prefix = ""
        if key.startswith(f"{spec['type']}."):
            prefix = f"{spec['type']}."
        if name is not None and key.startswith(f"{name}."):
            prefix = f"{name}."
        result[key.replace(prefix, "") if prefix else key] = value


def _merge_modern(result: Parameters, spec: Mapping[str, Any], parameters: Parameters) -> None:
    name = tool_name(spec)
    result.update(parameters)
    for key, value in parameters.items():
        if key.startswith(f"{name}.") and key != f"{name}.description":
            result[key.replace(f"{name}.", "")] = value
            del result[key]
        elif key.startswith(f"{spec['type']}."):
            result.pop(key, None)


def chosen_parameters(tool: Tool, chosen_input: str, modern: bool) -> tuple[Parameters, str]:
    """Return the parameters of a tool that the model chose, and its input: the model's, or that in the `config`."""
    result: Parameters = {**(tool.spec.get("parameters") or {}), **(tool.spec.get("config") or {})}
    result["llm_generated_input"] = chosen_input
    _merge_json(result, chosen_input, modern)
    configured = (tool.spec.get("config") or {}).get("input")
    if configured is not None:
        result["input"] = fill(configured, result)
        _merge_json(result, result["input"] or "", modern)
    elif modern and result.get("input") is not None:
        result["input"] = fill(result["input"] or "", result)
    else:
        result["input"] = chosen_input
    return result, chosen_input


def _merge_json(result: Parameters, text: str, modern: bool) -> None:
    if not is_json(text):
        return
    try:
        parsed = read_answer(text)
    except ValueError:
        return
    if isinstance(parsed, dict):
        result.update(to_parameters(parsed, modern))


def model_tool(
    parameters: Parameters, modern: bool, predict: Callable[[str | None, Parameters], Run], model_id: str | None
) -> Run:
    """Run an MLModelTool and return the `response_field` of its model's answer, which is any JSON value."""
    parameters = with_input(parameters, modern)
    field = parameters.get("response_field") or "response"
    answer = yield from predict(model_id, parameters)
    return answer[field] if field in answer else as_text(answer, modern)


def with_input(parameters: Parameters, modern: bool) -> Parameters:
    """Return the parameters with the members of an `input` that is a JSON object (3.x)."""
    if not modern or parameters.get("input") is None:
        return parameters
    result = {**parameters, "input": fill(parameters["input"] or "", parameters)}
    _merge_json(result, result["input"] or "", modern)
    return result


def run_caller(core: RunningCluster, type_: str, parameters: Parameters) -> Run:
    """Run a tool that calls a model or connector and is no MLModelTool; return what the next tools get of it."""
    parameters = with_input(parameters, core.modern)
    if type_ == CONNECTOR_TOOL:
        return (yield from core.execute_connector(parameters.get("connector_id"), parameters))
    if type_ == PLANNING_TOOL:
        return (yield from _plan_query(core, parameters))
    if type_ in SEARCHES:
        text = fill(parameters.get("input") or "", parameters)
        answer = yield from core.predict(parameters.get("model_id"), {"input": text})
    else:
        asked = {"prompt": "Answer: ${parameters.question}", **parameters}
        answer = yield from core.predict(parameters.get(SKILLS[type_]), asked)
    return as_text(answer, core.modern)


def _plan_query(core: RunningCluster, parameters: Parameters) -> Run:
    missing = [name for name in ("index_name", "question") if not (parameters.get(name) or "").strip()]
    if missing:
        names = ", ".join(missing)
        raise illegal_argument(f"Validation error: missing or empty required parameters \u2014 {names}.")
    asked: Parameters = {
        **parameters,
        "index_mapping": '"{}"',
        "sample_document": '"{}"',
        "current_time": '"[time]"',
        "template": "[template of the tool]",
        "system_prompt": parameters.get("query_planner_system_prompt") or "[system prompt of the tool]",
        "user_prompt": parameters.get("query_planner_user_prompt")
        or "[prompt of the tool] ${parameters.question} [end]",
    }
    answer = yield from model_tool(asked, core.modern, core.predict, parameters.get("model_id"))
    text = as_text(answer, core.modern)
    return text if is_json(text) else DEFAULT_QUERY
