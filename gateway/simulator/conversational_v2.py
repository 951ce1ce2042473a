"""Unified agents of the second generation (V2: `conversational_v2`; 3.6 and later), which take any `input`.

The model is called with the whole conversation, until it asks for no tool. Memory holds the messages themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.simulator import tools, v2_messages
from gateway.simulator.chat import function_text
from gateway.simulator.documents import refused
from gateway.simulator.errors import ExecuteFailure, Json
from gateway.simulator.flow import java_int
from gateway.simulator.interfaces import interface_of
from gateway.simulator.memory import new_id
from gateway.simulator.predict import Run
from gateway.simulator.render import Parameters
from gateway.simulator.v2_messages import Message
from gateway.simulator.values import as_text, hash_order

TYPE = "conversational_v2"
SYSTEM_PROMPT = "You are a helpful assistant"
_ITERATIONS = "5"
_MEMORIES = ("agentic_memory", "remote_agentic_memory")
_MODEL_IGNORED = ("system_prompt", "max_iteration")
"""Members of `model_parameters` that have no effect."""


class RunningCluster(Protocol):
    """The simulated cluster. sessions: the messages of each V2 memory. tool_outputs: see the cluster."""

    version: str
    sessions: dict[str, list[Message]]
    tool_outputs: dict[str, str]

    def predict(self, model_id: str | None, parameters: Parameters) -> Run:
        """Call a model and return the data map of its answer."""


def is_v2(document: Mapping[str, Any]) -> bool:
    """Return True for a V2 agent, or the registration of one."""
    return str(document.get("type") or "").lower() == TYPE


def check_memory(body: Mapping[str, Any]) -> None:
    """Check the memory of a V2 agent that is registered.

    Raises:
        RestFailure: 400 for no memory, or for a `conversation_index`.
    """
    kind = (body.get("memory") or {}).get("type")
    if kind is None:
        advice = "Please configure 'memory' with type 'agentic_memory' or 'remote_agentic_memory'."
        raise refused(f"V2 agents (CONVERSATIONAL_V2) require memory configuration. {advice}")
    if kind not in _MEMORIES:
        advice = "Please use 'agentic_memory' or 'remote_agentic_memory' instead."
        raise refused(
            "V2 agents (CONVERSATIONAL_V2) are not compatible with conversation_index memory. "
            f"Found memory type: {kind}. {advice}"
        )


def run_v2(
    core: RunningCluster, agent: Mapping[str, Any], parameters: Parameters | None, given: str | list[Any] | None
) -> Run:
    """Run a V2 agent and return the body of its answer. parameters, given: of the request; None if it has none.

    Raises:
        ExecuteFailure: 500 without `input`, for an agent without a `model` block, and for Gemini once it was called.
    """
    if given is None:
        details = "V2 agents require executor-provided memory. Use runV2() instead."
        raise ExecuteFailure(500, "UnsupportedOperationException", details)
    if agent.get("model") is None:
        if parameters is None:
            variable = "<local16>" if core.version == "3.8.0" else "inputDataSet"
            raise ExecuteFailure(500, "NullPointerException", f'{_NO_DATA_SET}"{variable}" is null')
        raise ExecuteFailure(500, "IllegalStateException", _NO_MODEL)
    return (yield from _Turn(core, agent, parameters or {}).run(v2_messages.messages_of(given)))


class _Turn:
    """One turn of a conversation."""

    def __init__(self, core: RunningCluster, agent: Mapping[str, Any], given: Parameters) -> None:
        self.core, self.provider, self.model_id = core, agent["model"]["model_provider"], agent["llm"]["model_id"]
        own = (agent.get("llm") or {}).get("parameters") or {}
        kept = {name: value for name, value in own.items() if name not in _MODEL_IGNORED}
        self.parameters: Parameters = {**kept, "system_prompt": SYSTEM_PROMPT, **agent["parameters"], **given}
        self.rounds = java_int(given.get("max_iteration") or _ITERATIONS)
        memory_id = given.get("memory_id") or ""
        self.memory_id = memory_id if memory_id in core.sessions else new_id()
        self.messages: list[Message] = list(core.sessions.get(self.memory_id, ()))
        specs = tools.selected(agent, self.parameters) or ()
        made = [tools.create(spec, self.parameters, True) for spec in specs]
        self.tools = hash_order([(tool.name, tool) for tool in made])

    def run(self, messages: list[Message]) -> Run:
        """Run the turn and return the body of its answer. messages: of the request."""
        self.messages += messages
        self._configure()
        usage, texts, stopped = [0, 0, 0], list[str](), "max_iterations"
        for _ in range(self.rounds):
            body = v2_messages.mapped(self.provider, self.messages)
            self.parameters["body"] = ",".join(as_text(message, True) for message in body)
            answer = yield from self.core.predict(self.model_id, self.parameters)
            if self.provider == v2_messages.GEMINI:
                details = "parseToUnifiedMessage is not yet supported for Gemini model provider"
                raise ExecuteFailure(500, "UnsupportedOperationException", details)
            reading = v2_messages.read(self.provider, answer)
            usage = [one + more for one, more in zip(usage, reading.usage, strict=True)]
            texts = reading.texts
            self.messages.append(reading.message)
            if not reading.calls:
                stopped = "end_turn"
                break
            self.messages += map(self._result, reading.calls)
        self.core.sessions[self.memory_id] = self.messages
        return self._answer(stopped, texts, usage)

    def _configure(self) -> None:
        interface = interface_of(self.parameters["_llm_interface"])
        assert interface is not None
        interface.configure(self.parameters)
        self.parameters["no_escape_params"] = f"{self.parameters['no_escape_params']},body"
        self.parameters["_tools"] = ", ".join(function_text(interface, tool) for tool in self.tools.values())
        if not self.tools:
            self.parameters["tool_configs"] = ""

    def _result(self, call: Mapping[str, Any]) -> Json:
        """Run a tool and return the message with its output."""
        tool = self.tools.get(call["function"]["name"])
        output = "no such tool" if tool is None else self.core.tool_outputs.get(tool.spec["type"], tools.INDEX_TABLE)
        return {"role": "tool", "toolCallId": call["id"], "content": [{"type": "text", "text": output}]}

    def _answer(self, stopped: str, texts: list[str], usage: list[int]) -> Json:
        tokens = dict(zip(("inputTokens", "outputTokens", "totalTokens"), usage, strict=True))
        return {
            "stop_reason": stopped,
            "message": {"content": [{"text": text} for text in texts], "role": "assistant"},
            "memory_id": self.memory_id,
            "metrics": {"total_usage": tokens},
        }


_NO_MODEL = "V2 agents require the 'model' field to be configured. Use simplified registration with the 'model' block."
_NO_DATA_SET = (
    'Cannot invoke "org.opensearch.ml.common.dataset.remote.RemoteInferenceInputDataSet.getParameters()" because '
)
