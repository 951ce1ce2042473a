"""A cluster without a network: its documents, its memory, and the running of its agents.

`ClusterCore` is what property tests use: it runs an agent in well under a millisecond. The HTTP server around it
is a thin shell (`server.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from gateway.simulator.chat import run_conversational
from gateway.simulator.errors import Answer, ExecuteFailure, Json, RestFailure, illegal_argument, null_pointer
from gateway.simulator.flow import run_conversational_flow, run_flow
from gateway.simulator.llm import answer_any
from gateway.simulator.memory import MemoryStore
from gateway.simulator.plan import run_plan
from gateway.simulator.predict import LlmReply, LlmRequest, Run, predict
from gateway.simulator.render import Parameters
from gateway.simulator.resources import Resources
from gateway.simulator.values import read_body, to_parameters

VERSIONS = ("2.19.0", "3.4.0")


class Executed(NamedTuple):
    """An agent's answer, and the bodies its models received, in order, as text."""

    status: int
    body: Any
    llm_bodies: list[str]


class ClusterCore:
    """A simulated cluster, of version 2.19.0 or 3.4.0.

    `llm` answers the connectors' calls; by default every call succeeds with a short text in the shape of the
    provider the URL names. `tool_outputs` says what a tool of a type puts out (index listers only).
    """

    def __init__(self, version: str = "2.19.0", llm: Callable[[LlmRequest], LlmReply] | None = None) -> None:
        if version not in VERSIONS:
            raise ValueError(f"version must be one of {', '.join(VERSIONS)}, not {version}")
        self.version = version
        self.modern = version.startswith("3.")
        self.resources = Resources(self.modern)
        self.memory = MemoryStore(self.modern)
        self.llm = llm or answer_any
        self.tool_outputs: dict[str, str] = {}
        self.settings: dict[str, str | None] = {}

    def execute(self, agent_id: str, body: Mapping[str, Any] | bytes | str) -> Executed:
        """POST ``/_plugins/_ml/agents/{agent_id}/_execute``: runs the agent to its end."""
        sent: list[str] = []
        run = self.execution(agent_id, body)
        try:
            request = next(run)
            while True:
                sent.append(request.body)
                request = run.send(self.llm(request))
        except StopIteration as end:
            return Executed(200, end.value, sent)
        except Answer as failure:
            return Executed(failure.status, failure.body, sent)

    async def execute_async(
        self, agent_id: str, body: Mapping[str, Any] | bytes | str, llm: Callable[[LlmRequest], Awaitable[LlmReply]]
    ) -> Executed:
        """The same, with the models behind a coroutine."""
        sent: list[str] = []
        run = self.execution(agent_id, body)
        try:
            request = next(run)
            while True:
                sent.append(request.body)
                request = run.send(await llm(request))
        except StopIteration as end:
            return Executed(200, end.value, sent)
        except Answer as failure:
            return Executed(failure.status, failure.body, sent)

    def execution(self, agent_id: str, body: Mapping[str, Any] | bytes | str) -> Run:
        """The run as a generator of LLM calls; returns the response's body.

        Raises:
            Answer: the run failed; the exception carries the response.
        """
        document = parse_object(body) if isinstance(body, bytes | str) else body
        parameters = self._parameters(document)
        if parameters is None:
            raise illegal_argument("Agent input data can not be empty.")
        tensors = yield from self.run_agent(agent_id, parameters)
        return {"inference_results": [{"output": tensors}]}

    def _parameters(self, document: Mapping[str, Any]) -> Parameters | None:
        """The parameters as strings; `input` and any other field at the top are skipped in silence."""
        if "parameters" not in document:
            return None
        given = document["parameters"]
        if isinstance(given, list):
            local = "mlInput" if self.modern else "<local4>"
            raise _no_input(local)
        return to_parameters(given, self.modern) if isinstance(given, Mapping) else {}

    def run_agent(self, agent_id: str, parameters: Parameters) -> Run:
        """Runs an agent with ready parameters; returns the tensors of its answer."""
        agent = self.resources.agents.get(agent_id)
        if agent is None:
            if not self.resources.agents:
                raise ExecuteFailure(404, "ResourceNotFoundException", "Agent index not found")
            details = f"Failed to find agent with the provided agent id: {agent_id}"
            raise ExecuteFailure(404, "OpenSearchStatusException", details)
        running = self._begin_turn(agent, parameters)
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
        """Stores the question as a new turn, and puts memory and turn into `parameters`; the new turn's id."""
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

    def predict(self, model_id: str | None, parameters: Parameters) -> Run:
        """Calls a model; returns the data map of its answer."""
        model = self.resources.models.get(model_id or "")
        if model is None:
            raise ExecuteFailure(404, "OpenSearchStatusException", "Failed to find model")
        model["deployed"] = True
        connector = model.get("connector") or self.resources.connectors.get(model.get("connector_id", ""))
        if connector is None:
            raise ExecuteFailure(404, "OpenSearchStatusException", "Failed to find connector")
        return (yield from predict(connector, parameters, self.modern))


def _no_input(local: str) -> RestFailure:
    reason = (
        'Cannot invoke "org.opensearch.ml.common.input.MLInput.setAlgorithm('
        f'org.opensearch.ml.common.FunctionName)" because "{local}" is null'
    )
    return RestFailure(500, "null_pointer_exception", reason)


_TOKENS = {"[": "START_ARRAY", '"': "VALUE_STRING", "n": "VALUE_NULL", "t": "VALUE_BOOLEAN", "f": "VALUE_BOOLEAN"}


def parse_object(body: bytes | str) -> Json:
    """The JSON object in a request's body; what follows it is ignored.

    Raises:
        RestFailure: 400 or 500, as the cluster answers each kind of bad body.
    """
    try:
        text = body.decode() if isinstance(body, bytes) else body
    except UnicodeDecodeError:
        raise _no_input("<local4>") from None
    if not text.strip():
        raise RestFailure(400, "parse_exception", "request body is required")
    first = text.lstrip()[0]
    if first == "{":
        try:
            return read_body(text)  # type: ignore[no-any-return]
        except (ValueError, RecursionError):
            raise _no_input("<local4>") from None
    token = _TOKENS.get(first) or ("VALUE_NUMBER" if first in "-0123456789" else None)
    try:
        read_body(text)
    except ValueError:
        token = None
    if token is None:
        word = text.split()[0]
        reason = (
            f"Unrecognized token '{word}': was expecting (JSON String, Number, Array, Object or token 'null', "
            "'true' or 'false')\n at [Source: REDACTED (`StreamReadFeature.INCLUDE_SOURCE_IN_LOCATION` disabled); "
            f"line: 1, column: {len(word) + 1}]"
        )
        raise RestFailure(400, "json_parse_exception", reason)
    reason = f"Failed to parse object: expecting token of type [START_OBJECT] but found [{token}]"
    raise RestFailure(400, "parsing_exception", reason, line=1, col=1)
