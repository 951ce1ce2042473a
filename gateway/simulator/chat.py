"""The conversational agent: a loop of model and tools (ReAct, or function calling through `_llm_interface`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.simulator import jsonpath, prompts, tools
from gateway.simulator.errors import ExecuteFailure, NoAnswer, null_pointer
from gateway.simulator.flow import history_limit, java_int
from gateway.simulator.interfaces import Interface, interface_of, tool_call, tool_result
from gateway.simulator.predict import Run, Tensor
from gateway.simulator.react import Step, read_step
from gateway.simulator.render import INFINITE_LOOP, Parameters, fill
from gateway.simulator.running import RunningCluster
from gateway.simulator.streams import Piece, is_streamed
from gateway.simulator.token_usage import TokenUsage
from gateway.simulator.unified import SYSTEM_PROMPT, Provider, provider_of
from gateway.simulator.values import as_text, hash_order, quoted_inside

_OUT_OF_BOUNDS = "StringIndexOutOfBoundsException"


def run_conversational(core: RunningCluster, agent: Mapping[str, Any], given: Parameters, running: str | None) -> Run:
    """Run a conversational agent and return the tensors of its answer. running: the new turn."""
    parameters: Parameters = {**((agent.get("parameters") or {}) if core.modern else {}), **given}
    interface = interface_of(parameters.get("_llm_interface")) if core.modern else None
    if interface is not None:
        interface.configure(parameters)
    provider = provider_of(agent)
    has_memory = agent.get("memory") is not None
    if not has_memory and not core.modern:
        raise null_pointer(
            'Cannot invoke "org.opensearch.ml.common.agent.MLMemorySpec.getType()" because the return value of '
            '"org.opensearch.ml.common.agent.MLAgent.getMemory()" is null'
        )
    if has_memory:
        _recall(core, parameters, interface, provider, running)
    specs = tools.selected(agent, parameters)
    if interface is None and not specs and not parameters.get("mcp_connectors"):
        raise _without_tools(core, specs is None, parameters)
    made = [tools.create(spec, parameters, core.modern) for spec in specs or ()]
    by_name = hash_order([(tool.name, tool) for tool in made])
    loop = _Loop(core, agent["llm"], by_name, parameters, interface, unified=provider is not None)
    return (yield from loop.run())


def _without_tools(core: RunningCluster, has_none: bool, parameters: Parameters) -> Exception:
    """Return the failure of a ReAct agent that has no tool, or of whose tools the request selects none."""
    if core.unified:
        return NoAnswer()
    if core.modern:
        return ExecuteFailure(500, _OUT_OF_BOUNDS, "Range [0, -1) out of bounds for length 0")
    if not has_none:
        return ExecuteFailure(500, _OUT_OF_BOUNDS, "start 0, end -1, length 0")
    variable = "<local3>" if parameters.get("selected_tools") else "<parameter3>"
    return null_pointer(f'Cannot invoke "java.util.List.iterator()" because "{variable}" is null')


def _recall(
    core: RunningCluster,
    parameters: Parameters,
    interface: Interface | None,
    provider: Provider | None,
    running: str | None,
) -> None:
    """Set the parameters with the remembered turns; they override the caller's."""
    limit, memory_id = history_limit(parameters), parameters.get("memory_id") or ""
    if provider is not None:
        history = provider.history(core.memory.earlier(memory_id, running), limit)
        if history:
            parameters["_chat_history"] = history
        return
    turns = core.memory.history(memory_id, limit, running)
    if not turns:
        return
    if interface is None:
        heading = parameters.get("prompt.chat_history_prefix") or prompts.HISTORY_HEADING
        history = "".join(f"Human:{turn.input}\nAssistant:{turn.response}\n" for turn in turns)
        parameters["chat_history"] = heading + history
        return
    messages: list[str] = []
    for turn in turns:
        question = {"question": quoted_inside(turn.input or "", True)}
        answer = {"response": quoted_inside(turn.response or "", True)}
        messages.append(fill(interface.question_template, question, "${_chat_history.message."))
        messages.append(fill(interface.answer_template, answer, "${_chat_history.message."))
    parameters["chat_history"] = parameters["_chat_history"] = ", ".join(messages) + ", "


class _Loop:
    """One run of the loop. parameters: the agent's and the caller's."""

    def __init__(
        self,
        core: RunningCluster,
        llm: Mapping[str, Any],
        made: dict[str, tools.Tool],
        parameters: Parameters,
        interface: Interface | None,
        unified: bool,
    ) -> None:
        self.core, self.tools, self.interface, self.unified = core, made, interface, unified
        self.model_id: str = llm["model_id"]
        self.parameters: Parameters = {**(llm.get("parameters") or {}), **parameters}
        if core.unified:
            self.parameters.setdefault("system_prompt", SYSTEM_PROMPT)
        self.question = self.parameters.get("question")
        self.memory_id = self.parameters.get("memory_id")
        self.parent = self.parameters.get("parent_interaction_id")
        if unified:
            self.parameters.pop("parent_interaction_id", None)
        self.streamed = is_streamed(self.parameters, core.modern)
        self.verbose = (self.parameters.get("verbose") or "").lower() == "true"
        self.traced = not unified and (self.parameters.get("disable_trace") or "").lower() != "true"
        self.shown: list[Tensor] = []
        self.additional_info: dict[str, list[str]] = {}
        self.interactions: list[str | None] = []
        self.scratchpad = ""
        self.traces = 0
        self.usage = TokenUsage(self.parameters, core.unified)

    def run(self) -> Run:
        for name, text in _DEFAULTS.items():
            self.parameters.setdefault(name, text)
        prompt = self._first_prompt()
        self.parameters["prompt"] = fill(prompt, {"scratchpad": ""})
        rounds = java_int(self.parameters.get("max_iteration") or ("10" if self.core.modern else "3"))
        # From 3.0 a round is a model call or a tool call; before, it is both.
        steps = rounds if self.core.modern else rounds * 2
        thought = "null"
        for number in range(0, steps, 2):
            answer = yield from self.core.predict(self.model_id, self.parameters)
            self.usage.count(self.model_id, answer)
            step = self._read(answer)
            if step.final is not None:
                yield from self._pieces("", is_last=True)
                return self._finish(step.final.strip())
            thought = step.thought
            self._note(step.text or "", self.question, "LLM")
            if number == steps - 1:
                return self._exhausted(rounds, thought)
            yield from self._use_tool(step, prompt)
            yield from self._pieces(self.shown[-1]["result"])
            if number + 1 == steps - 1:
                return self._exhausted(rounds, thought)
        return self._exhausted(rounds, thought)

    def _first_prompt(self) -> str:
        try:
            return _prompt(self.parameters, self.tools, self.interface)
        except ExecuteFailure as failure:
            if self.core.unified and failure.details.startswith(INFINITE_LOOP):
                raise NoAnswer from None
            raise

    def _pieces(self, content: str, is_last: bool = False) -> Run:
        if self.streamed:
            yield Piece(content, is_last, self.memory_id or "", self.parameters.get("parent_interaction_id") or "")

    def _read(self, answer: Mapping[str, Any]) -> Step:
        if self.interface is not None and set(answer) != {"response"}:
            return self._read_call(self.interface, answer)
        return read_step(answer, self.tools, self.core.modern)

    def _read_call(self, interface: Interface, answer: Mapping[str, Any]) -> Step:
        text = as_text(answer, True)
        asked = False
        try:
            response = jsonpath.read(answer, self.parameters.get("llm_response_filter") or "")
        except ExecuteFailure:
            response = jsonpath.read(answer, interface.tool_calls_path)
            asked = True
        reason = jsonpath.read(answer, interface.finish_reason_path)
        by_reason = bool(interface.finish_reason_tool)
        calls = jsonpath.read(answer, interface.tool_calls_path) if not by_reason else []
        if not asked and not calls and str(reason).lower() != interface.finish_reason_tool:
            return Step(text, "null", "null", "null", as_text(response, True))
        if reason == interface.finish_reason_tool:
            calls = jsonpath.read(answer, interface.tool_calls_path)
        name, chosen, call_id = tool_call(interface, calls[0]) if calls else ("", "", "")
        self.interactions.append(as_text(jsonpath.read(answer, interface.message_path), True))
        known = next((tool for tool in self.tools if tool.lower() in name.lower()), None)
        return Step(text, "", known or "null", chosen, text if known is None else None, call_id)

    def _use_tool(self, step: Step, prompt: str) -> Run:
        tool = self.tools[step.action]
        given, used_input = tools.chosen_parameters(tool, step.action_input, self.core.modern)
        try:
            output = yield from self._run_tool(tool, given, step.action_input)
            failure = None
        except ExecuteFailure as error:
            failure = error.details
            output = f"Failed to run the tool {step.action} with the error message {failure}."
        text = as_text(output, self.core.modern)
        self._answer_call(step, text if failure is None else f"Tool {step.action} failed: {failure}")
        if tool.in_answer:
            self.additional_info.setdefault(f"{tool.name}.output", []).append(text)
        observed = {
            "llm_tool_selection_response": step.text or "",
            "tool_name": step.action,
            "tool_input": used_input,
            "observation": text,
        }
        self.scratchpad += fill(self.parameters["prompt.tool_response"] or "", observed) + "\n\n"
        self.parameters["prompt"] = fill(prompt, {"scratchpad": self.scratchpad})
        self._note(text, used_input, step.action)

    def _run_tool(self, tool: tools.Tool, given: Parameters, chosen_input: str) -> Run:
        if tool.is_caller:
            # From 3.0 on it inherits the request's parameters (tried on 3.6.0).
            inherited = {**self.parameters, **given} if self.core.modern else given
            return (yield from tools.run_caller(self.core, tool.spec["type"], inherited))
        if not tool.is_model:
            return self.core.tool_outputs.get(tool.spec["type"], tools.INDEX_TABLE)
        # An MLModelTool inherits all of the request's parameters (docs/evidence/facts.md, "Rendering, in detail").
        inherited = {**self.parameters, **(tool.spec.get("parameters") or {}), "question": chosen_input}
        model_id = tool.parameters.get("model_id")
        return (yield from tools.model_tool(inherited, self.core.modern, self.core.predict, model_id))

    def _answer_call(self, step: Step, text: str) -> None:
        if not self.core.modern:
            return
        # Without an interface, 3.x uses a missing template, which becomes the text "null".
        result = None if self.interface is None else tool_result(self.interface, step.call_id, text)
        self.interactions.append(result)
        self.parameters["_interactions"] = ", " + ", ".join(part or "null" for part in self.interactions)

    def _note(self, text: str, question: str | None, origin: str) -> None:
        self.shown.append({"name": "response", "result": text})
        self._trace(text, question, origin)

    def _trace(self, text: str, question: str | None, origin: str) -> None:
        if self.traced:
            self.traces += 1
            self.core.memory.trace(self.parent, self.traces, question, text, origin)

    def _exhausted(self, rounds: int, thought: str) -> list[Tensor]:
        if not self.core.modern:
            return self._tensors({"response": thought})
        text = f"[the agent stopped after {rounds} steps]"
        return self._finish(text if thought in ("", "null") else f"{text}. Last thought: {thought}")

    def _finish(self, answer: str) -> list[Tensor]:
        self._trace(answer, self.question, "LLM")
        if not self.streamed:  # a streamed turn keeps no answer
            self.core.memory.answer(self.parent, answer, None if self.unified else self.additional_info)
        self.shown.append({"name": "response", "result": answer})
        return self._tensors({"response": answer, "additional_info": self.additional_info})

    def _tensors(self, data: dict[str, Any]) -> list[Tensor]:
        ids: dict[str, str | None] = {"memory_id": self.memory_id}
        if not self.unified:
            ids["parent_interaction_id"] = self.parent
        tensors: list[Tensor] = [{"name": name, "result": id} for name, id in ids.items() if id is not None]
        answer = self.shown if self.verbose else [{"name": "response", "dataAsMap": data}]
        return [*tensors, *answer, *self.usage.tensors()]


_DEFAULTS = {
    "stop": json.dumps(["[end of the turn]"]),
    "stop_sequences": json.dumps(["[end of the turn]"]),
    "prompt.prefix": prompts.PREFIX,
    "prompt.suffix": prompts.SUFFIX,
    "prompt.format_instruction": prompts.FORMAT_INSTRUCTION,
    "prompt.tool_response": prompts.TOOL_RESPONSE,
}


def _prompt(parameters: Parameters, made: Mapping[str, tools.Tool], interface: Interface | None) -> str:
    """Return the prompt after its seven passes (docs/evidence/facts.md, "Passes")."""
    prompt = fill(parameters.get("prompt") or prompts.TEMPLATE, parameters)
    prompt = fill(prompt, {name: parameters[name] for name in ("prompt.prefix", "prompt.suffix")})
    if interface is None:
        prompt = fill(prompt, _tool_texts(parameters, made))
    else:
        parameters["_tools"] = ", ".join(function_text(interface, tool) for tool in made.values())
    for name, item in (("opensearch_indices", "index"), ("examples", "example")):
        prompt = fill(prompt, {name: _listed(parameters.get(name), item)})
    for name in ("chat_history", "context"):
        parameters[name] = parameters.get(name) or ""
        prompt = fill(prompt, {name: parameters[name]})
    return prompt


def _tool_texts(parameters: Parameters, made: Mapping[str, tools.Tool]) -> Parameters:
    before, each, after = prompts.TOOL_LIST
    listed = "".join(each.format(name=tool.name, description=tool.description) for tool in made.values())
    return {
        "tool_descriptions": parameters.get("tool_descriptions") or before + listed + after,
        "tool_names": parameters.get("tool_names") or ", ".join([*made, ""])[:-1],
    }


def function_text(interface: Interface, tool: tools.Tool) -> str:
    """Return a tool as the model's request names it."""
    values = {"name": tool.name, "description": tool.description}
    values |= {f"attributes.{name}": as_text(value, True) for name, value in tool.attributes.items()}
    if not interface.closed_schemas:
        schema = json.loads(values["attributes.input_schema"])
        values["attributes.input_schema"] = json.dumps({k: v for k, v in schema.items() if k != "additionalProperties"})
    return fill(interface.tool_template, values, "${tool.")


def _listed(text: str | None, item: str) -> str:
    if not text:
        return ""
    return "".join(f"<{item}>\n{entry}\n</{item}>\n" for entry in json.loads(text))
