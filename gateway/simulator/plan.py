"""The plan_execute_and_reflect agent of 3.x: a planner model, and an executor agent that runs each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.simulator import jsonpath, prompts, tools
from gateway.simulator.errors import ExecuteFailure, illegal_argument
from gateway.simulator.flow import history_limit, java_int
from gateway.simulator.interfaces import INTERFACES, interface_of
from gateway.simulator.lenient import is_json
from gateway.simulator.predict import Run, Tensor
from gateway.simulator.render import Parameters, fill
from gateway.simulator.running import RunningCluster
from gateway.simulator.token_usage import NAME, PARAMETER, TokenUsage
from gateway.simulator.values import hash_order, read_answer

_MAX_STEPS = "20"
# Unlike in a function-calling agent, `_chat_history` is escaped (recorded: a bare list of messages is a 400).
_NO_ESCAPE = "tool_configs,_tools"


def run_plan(core: RunningCluster, agent: Mapping[str, Any], given: Parameters, running: str | None) -> Run:
    """Run the planner until it has a result, and return the tensors of the answer.

    The agent's own parameters override the caller's; `prompt` and `no_escape_params` are always its own.
    """
    parameters: Parameters = {**given, **(agent.get("parameters") or {})}
    _set_up(parameters)
    template = parameters.get("planner_prompt_template") or prompts.PLANNER_TEMPLATE
    turns = core.memory.history(parameters.get("memory_id") or "", history_limit(parameters), running)
    done = [text or "" for turn in turns for text in (turn.input, turn.response)]
    if done:
        parameters["completed_steps"] = ", ".join(done)
        template = parameters.get("planner_with_history_template") or prompts.WITH_HISTORY_TEMPLATE
    specs = tools.selected(agent, parameters) or ()
    made = hash_order([(tools.tool_name(spec), tools.create(spec, parameters, True)) for spec in specs])
    parameters["tools_prompt"] = "".join(f"[tool] {name}: {tool.description}\n" for name, tool in made.items())
    parameters["prompt"] = fill(template, parameters)
    return (yield from _loop(core, agent["llm"]["model_id"], parameters, done))


def _set_up(parameters: Parameters) -> None:
    parameters.pop("prompt", None)
    parameters["user_prompt"] = parameters.get("question")
    parameters.setdefault("system_prompt", prompts.PLANNER_SYSTEM)
    parameters.setdefault("executor_system_prompt", prompts.EXECUTOR_SYSTEM)
    parameters.setdefault("planner_prompt", prompts.PLANNER_ROLE)
    parameters.setdefault("reflect_prompt", prompts.REFLECT_ROLE)
    parameters["plan_execute_reflect_response_format"] = prompts.RESPONSE_FORMAT
    parameters["no_escape_params"] = _NO_ESCAPE
    name = parameters.get("_llm_interface")
    interface = interface_of(name)
    if interface is not None and not parameters.get("llm_response_filter"):
        if name not in INTERFACES:
            raise ExecuteFailure(500, "MLException", f"Unsupported llm interface: {name}")
        parameters["llm_response_filter"] = interface.response_filter


def _loop(core: RunningCluster, model_id: str, parameters: Parameters, done: list[str]) -> Run:
    parent = parameters.get("parent_interaction_id")
    usage = TokenUsage(parameters, core.unified)
    for number in range(1, java_int(parameters.get("max_steps") or _MAX_STEPS) + 1):
        answer = yield from core.predict(model_id, parameters)
        usage.count(model_id, answer)
        plan = _plan(parameters, answer)
        if plan.get("result"):
            return [*_finish(core, parameters, str(plan["result"])), *usage.tensors()]
        step = plan["steps"][0]
        parameters["steps"] = ", ".join(plan["steps"])
        result = yield from _execute(core, parameters, step, usage)
        done += [f"\n<step-{number}>\n{step}\n</step-{number}>\n", _result_text(number, result)]
        core.memory.trace(parent, number, step, result, "PlanExecuteReflect Agent")
        parameters["completed_steps"] = ", ".join(done)
        template = parameters.get("reflect_prompt_template") or prompts.REFLECT_TEMPLATE
        parameters["prompt"] = fill(template, parameters)
    stopped = f"[the planner stopped after its last step: {done[-2]}: {done[-1]}]"
    return [*_finish(core, parameters, stopped), *usage.tensors()]


def _result_text(number: int, result: str) -> str:
    return f"\n<step-{number}-result>\n{result}\n</step-{number}-result>\n"


def _plan(parameters: Parameters, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``{"steps": [...], "result": "..."}`` from the planner's model, with or without a code fence."""
    if set(answer) == {"response"}:
        text = str(answer["response"]).strip()
    else:
        text = str(jsonpath.read(answer, parameters.get("llm_response_filter") or "$.")).strip()
    if "```json" in text:
        text = text.partition("```json")[2].rpartition("```")[0]
    elif not is_json(text):
        start, end = text.find("{"), text.rfind("}")
        if start < 0 or end < 0:
            raise illegal_argument("Failed to parse JSON from response.")
        text = text[start : end + 1]
    plan = read_answer(text) if is_json(text) else {}
    if not isinstance(plan, dict) or not ("steps" in plan or "result" in plan):
        raise illegal_argument("Missing required fields 'steps' and 'result' in JSON response")
    return plan


def _execute(core: RunningCluster, parameters: Parameters, step: str, usage: TokenUsage) -> Run:
    """Run one step with the executor agent, which gets only these of the caller's parameters."""
    given: Parameters = {
        "question": step,
        "system_prompt": parameters["executor_system_prompt"],
        "llm_response_filter": parameters.get("llm_response_filter"),
        "max_iteration": parameters.get("executor_max_iterations") or "20",
        "message_history_limit": parameters.get("executor_message_history_limit") or "10",
    }
    if parameters.get("executor_agent_memory_id"):
        given["memory_id"] = parameters["executor_agent_memory_id"]
    if usage.wanted:
        given[PARAMETER] = "true"
    tensors = yield from core.run_agent(parameters.get("executor_agent_id") or "", given)
    usage.add(tensors)
    result = ""
    for tensor in tensors:
        if tensor["name"] in ("memory_id", "parent_interaction_id"):
            parameters[f"executor_agent_{tensor['name']}"] = tensor["result"]
        elif "dataAsMap" in tensor and tensor["name"] != NAME:
            result = _step_result(tensor["dataAsMap"])
    return result


def _step_result(data: Mapping[str, Any]) -> str:
    traces = "".join(f"<{name}>\n{value}\n</{name}>" for name, value in data.get("additional_info", {}).items())
    return f"{data.get('response', '')}\n<step-traces>\n{traces}\n</step-traces>\n"


def _finish(core: RunningCluster, parameters: Parameters, result: str) -> list[Tensor]:
    parent = parameters.get("parent_interaction_id")
    core.memory.answer(parent, result)
    names = ("memory_id", "parent_interaction_id", "executor_agent_memory_id", "executor_agent_parent_interaction_id")
    ids: list[Tensor] = [{"name": name, "result": parameters[name]} for name in names if parameters.get(name)]
    return [*ids, {"name": "response", "dataAsMap": {"response": result}}]
