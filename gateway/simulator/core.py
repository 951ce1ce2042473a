"""A cluster without a network: its documents, its memory, and the runs of its agents.

Property tests use `ClusterCore`, because it runs an agent in less than a millisecond. The HTTP server is a thin shell
around it (`server.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from gateway.simulator import unified
from gateway.simulator.bodies import no_input, parse_object
from gateway.simulator.chat import run_conversational
from gateway.simulator.conversational_v2 import check_memory, is_v2, run_v2
from gateway.simulator.documents import mcp_is_off
from gateway.simulator.errors import (
    Answer,
    ExecuteFailure,
    Json,
    NoAnswer,
    RestFailure,
    illegal_argument,
    not_found,
    null_pointer,
)
from gateway.simulator.flow import run_conversational_flow, run_flow
from gateway.simulator.interface_check import check_input, check_output
from gateway.simulator.llm import answer_any
from gateway.simulator.memory import MemoryStore, new_id
from gateway.simulator.plan import run_plan
from gateway.simulator.predict import LlmReply, LlmRequest, Run, predict
from gateway.simulator.render import Parameters
from gateway.simulator.resources import Resources
from gateway.simulator.settings import MCP_SWITCH, UNIFIED_API, Settings
from gateway.simulator.streams import Piece, StreamEnded, error_frame
from gateway.simulator.unified_input import read_input
from gateway.simulator.v2_messages import Message
from gateway.simulator.values import to_parameters

VERSIONS = ("2.19.0", "3.4.0", "3.6.0", "3.8.0")


class Executed(NamedTuple):
    """An agent's answer, and the bodies its models received, in order, as text."""

    status: int
    body: Any
    llm_bodies: list[str]


class ClusterCore:
    """A simulated cluster of one of `VERSIONS`.

    `llm` answers the connectors' calls; by default every call succeeds with a short text in the format of the URL's
    provider. `tool_outputs` has the output of each tool type (index listers only). ``_search`` finds a write
    `refresh_seconds` later (``core.resources.refresh_seconds`` changes that while it runs).
    """

    def __init__(
        self,
        version: str = "2.19.0",
        llm: Callable[[LlmRequest], LlmReply] | None = None,
        refresh_seconds: float = 0.0,
    ) -> None:
        if version not in VERSIONS:
            raise ValueError(f"version must be one of {', '.join(VERSIONS)}, not {version}")
        self.version = version
        self.uuid = new_id()
        self.modern = version.startswith("3.")
        self.unified = version in ("3.6.0", "3.8.0")
        self.settings = Settings(self.modern, self.unified)
        self.resources = Resources(self.modern, self.settings, refresh_seconds)
        self.memory = MemoryStore(self.modern)
        self.llm = llm or answer_any
        self.sessions: dict[str, list[Message]] = {}
        self.tool_outputs: dict[str, str] = {}
        self.unstored_errors: list[tuple[str | None, str]] = []
        """The ids of turns that failed, and their errors' texts (`store_errors`)."""
        self.streams = False
        """Whether the plugins for streams are installed."""

    def execute(self, agent_id: str, body: Mapping[str, Any] | bytes | str) -> Executed:
        """Run an agent to its end: POST ``/_plugins/_ml/agents/{agent_id}/_execute``.

        Raises:
            NoAnswer: the cluster never answers.
        """
        sent: list[str] = []
        run = self.execution(agent_id, body)
        try:
            request = next(run)
            while True:
                if isinstance(request, Piece):
                    raise NoAnswer  # nobody reads the stream
                sent.append(request.body)
                request = run.send(self.llm(request))
        except StopIteration as end:
            return Executed(200, end.value, sent)
        except Answer as failure:
            return Executed(failure.status, failure.body, sent)
        finally:
            self.store_errors()

    def execute_streamed(self, agent_id: str, body: Mapping[str, Any] | bytes | str) -> Executed:
        """Run an agent to its end with an event stream; the response's body is the events.

        Raises:
            NoAnswer: the stream never ends.
        """
        sent: list[str] = []
        events: list[str] = []
        run = self.stream(agent_id, body)
        try:
            step = next(run)
            while True:
                if isinstance(step, str):
                    events.append(step)
                    step = next(run)
                else:
                    sent.append(step.body)
                    step = run.send(self.llm(step))
        except StopIteration:
            return Executed(200, "".join(events), sent)
        except Answer as failure:
            return Executed(failure.status, failure.body, sent)
        finally:
            self.store_errors()

    def stream(
        self, agent_id: str, body: Mapping[str, Any] | bytes | str
    ) -> Generator[LlmRequest | str, LlmReply, None]:
        """Run an agent as ``…/_execute/stream`` does; yield the events, too, the first of which is empty.

        Raises:
            Answer: the stream was not opened.
            NoAnswer: the stream never ends.
        """
        agent = self.resources.agents.get(agent_id)
        if agent is None:
            raise not_found("agent", agent_id)
        if is_v2(agent):
            reason = (
                "V2 agents (CONVERSATIONAL_V2) do not support streaming. Please use the non-streaming execute "
                f"endpoint: POST /_plugins/_ml/agents/{agent_id}/_execute"
            )
            raise RestFailure(400, "status_exception", reason)
        yield ""
        try:
            run = self.execution(agent_id, body, streamed=True)
            step = next(run)
            while True:
                if not isinstance(step, Piece):
                    step = run.send((yield step))
                elif agent["type"].lower() != "conversational":
                    raise NoAnswer
                else:
                    yield step.frame()
                    step = next(run)
        except StopIteration:
            if agent["type"].lower() != "conversational":
                raise NoAnswer from None
        except StreamEnded:
            pass
        except Answer as failure:
            yield error_frame(failure.body)

    def execution(self, agent_id: str, body: Mapping[str, Any] | bytes | str, streamed: bool = False) -> Run:
        """Return the run as a generator of LLM calls, and of pieces if streamed, that returns the response's body.

        Raises:
            Answer: the run failed; the exception carries the response.
            NoAnswer: the cluster never answers.
        """
        document = parse_object(body, self.modern) if isinstance(body, bytes | str) else body
        try:
            parameters = self._parameters(document)
        except (RecursionError, ValueError):  # nested too deeply, or a number beyond a double
            raise no_input(self.modern) from None
        given = read_input(document, self.settings.is_on(UNIFIED_API)) if self.unified else None
        if streamed:
            if parameters is None:
                raise illegal_argument("Expected RemoteInferenceInputDataSet for agent execution")
            parameters["stream"] = "true"
        if parameters is None and given is None:
            raise illegal_argument("Agent input data can not be empty.")
        agent = self.resources.agents.get(agent_id)
        if agent is not None and is_v2(agent):
            return (yield from run_v2(self, agent, parameters, given))
        tensors = yield from self.run_agent(agent_id, parameters, given)
        return {"inference_results": [{"output": tensors}]}

    def _parameters(self, document: Mapping[str, Any]) -> Parameters | None:
        """Return the parameters as strings; None if there are none."""
        if "parameters" not in document:
            return None
        given = document["parameters"]
        if isinstance(given, list):
            raise no_input(self.modern)
        return to_parameters(given, self.modern) if isinstance(given, Mapping) else {}

    def run_agent(self, agent_id: str, parameters: Parameters | None, given: str | list[Any] | None = None) -> Run:
        """Run an agent with complete parameters and return the tensors of its answer.

        given: the `input` of the request, which is ignored before 3.5.
        """
        agent = self.resources.agents.get(agent_id)
        if agent is None:
            if not self.resources.agents:
                raise ExecuteFailure(404, "ResourceNotFoundException", "Agent index not found")
            details = f"Failed to find agent with the provided agent id: {agent_id}"
            raise ExecuteFailure(404, "OpenSearchStatusException", details)
        wants_mcp = self.modern and "mcp_connectors" in (agent.get("parameters") or {})
        if wants_mcp and not self.settings.is_on(MCP_SWITCH):
            raise ExecuteFailure(500, "OpenSearchException", mcp_is_off().body["error"]["reason"])
        parameters = unified.with_turn(agent, parameters, given)
        running = self._begin_turn(agent, parameters)
        try:
            return (yield from self._run_turn(agent, parameters, running))
        except ExecuteFailure as failure:
            is_v1 = agent["type"].lower() == "conversational" and unified.provider_of(agent)
            if self.modern and not is_v1:
                self.unstored_errors.append((running, f"Agent execution failed: {failure.details}"))
            raise

    def store_errors(self) -> None:
        """Store the errors of failed runs as their turns' answers. A cluster does so after it has answered the run."""
        while self.unstored_errors:
            self.memory.answer(*self.unstored_errors.pop(0))

    def _run_turn(self, agent: Json, parameters: Parameters, running: str | None) -> Run:
        match agent["type"].lower():
            case "flow":
                return (yield from run_flow(self, agent, parameters))
            case "conversational_flow":
                return (yield from run_conversational_flow(self, agent, parameters, running))
            case "plan_execute_and_reflect":
                return (yield from run_plan(self, agent, parameters, running))
            case _:
                return (yield from run_conversational(self, agent, parameters, running))

    def _begin_turn(self, agent: Json, parameters: Parameters) -> str | None:
        """Store the question as a new turn, add memory and turn to `parameters`, and return the turn's id."""
        memory_id, again = parameters.get("memory_id"), parameters.get("regenerate_interaction_id")
        if memory_id is None and again is not None:
            raise illegal_argument("A memory ID must be provided to regenerate.")
        known = (agent.get("memory") or {}).get("type") == "conversation_index"
        if not known or (memory_id is not None and parameters.get("parent_interaction_id") is not None):
            return None
        former = self.memory.find(again)
        if former is not None:
            parameters.setdefault("question", former.input)
        question = parameters.get("question")
        if question is None:
            raise null_pointer()
        turn = self.memory.begin(memory_id, question)
        parameters["memory_id"] = turn.memory_id
        parameters["parent_interaction_id"] = turn.message_id
        if again is not None:
            self.memory.forget(again)
        return turn.message_id

    def register_agent(self, body: Mapping[str, Any]) -> Json:
        """Register an agent; from 3.5 with the model for its `model` block. Return ``{"agent_id": …}``."""
        if self.unified and is_v2(body):
            self.resources.check_agent(body)
            check_memory(body)
        if not self.unified or body.get("model") is None:
            return self.resources.register_agent({name: body[name] for name in body if name != "model"})
        unified.check_model(body, self.settings.is_on(UNIFIED_API))
        model = unified.model_body(body["model"], self.version == "3.8.0")
        model_id = self.resources.register_model(model, deploy=False)["model_id"]
        return self.resources.register_agent(unified.agent_body(body, model_id))

    def execute_connector(self, connector_id: str | None, parameters: Parameters) -> Run:
        """Call a connector's execute action and return the data map of its answer."""
        connector = self.resources.connectors.get(connector_id or "")
        if connector is None:
            raise ExecuteFailure(404, "OpenSearchStatusException", f"Failed to find connector:{connector_id}")
        return (yield from predict(connector, parameters, self.modern, "EXECUTE"))

    def predict(self, model_id: str | None, parameters: Parameters) -> Run:
        """Call a model and return the data map of its answer."""
        loaded = self.resources.use(model_id or "")
        check_input(loaded.model, parameters)
        answer = yield from predict(loaded.connector, parameters, self.modern, unified=self.unified)
        check_output(loaded.model, answer)
        return answer
