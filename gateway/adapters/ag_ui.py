"""AG-UI: a run of an agent as a stream of its events, for the chat of OpenSearch Dashboards and other front ends.

An error after the request was read is an event of the stream (RUN_ERROR), as Dashboards shows no other.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import msgspec
from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    CustomEvent,
    MessagesSnapshotEvent,
    ReasoningEncryptedValueEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.adapters.ag_ui_input import modern, native_body, read_request, refuse_resume, snapshot, write_input
from gateway.adapters.errors import INTERNAL_ERROR, AdapterError, Fault, of_gateway, relocated
from gateway.adapters.requests import Place, address_of, plain, read_body, stream
from gateway.adapters.run import RunInput, failed
from gateway.codes import CODES
from gateway.errors import GatewayError
from gateway.execute.deliveries import model_name
from gateway.execute.run_events import (
    CallArguments,
    CallEnd,
    CallStart,
    RunEnded,
    RunEvent,
    RunFailed,
    Snapshot,
    TextDelta,
    TokensUsed,
    ToolResult,
)
from gateway.memory.model import Usage
from gateway.mlcommons.generations import AgentType
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.ports import SessionUse
from gateway.unified.limits import SMALL_TEXT

_TOOL = {"name", "description", "parameters"}
"""Members of a tool that its LLM gets; `metadata` is the front end's own."""
NOTICE = "mlc_gateway_notice"
"""Name of the CUSTOM event of a notice; its value has `code` and `reason`."""


def frame(event: BaseEvent) -> bytes:
    """Return an event as it is sent: ASCII, so that no client cuts a character in two; absent members left out."""
    return b"data: %b\n\n" % event.model_dump_json(by_alias=True, exclude_none=True, ensure_ascii=True).encode()


class EventWriter:
    """Writes the events of one run: texts and calls have a beginning and an end, and each call that ran its result."""

    def __init__(self, request: RunAgentInput) -> None:
        self._request = request
        self._text_id = ""
        """The message of the text that is open."""
        self._parent_id = ""
        """The message that calls belong to."""
        self._arguments: dict[str, bool] = {}
        """Calls without a result; whether they have arguments yet."""
        self._usage: Usage | None = None
        self._agent: AgentProfile | None = None

    def started(self) -> bytes:
        """Return the first event."""
        thread, run = self._request.thread_id, self._request.run_id
        return frame(RunStartedEvent(thread_id=thread, run_id=run, protocol_version=PROTOCOL_VERSION))

    def noticed(self, code: str) -> bytes:
        """Return the event of a notice."""
        reason = CODES[code].meaning if code in CODES else ""
        return frame(CustomEvent(name=NOTICE, value={"code": code, "reason": reason}))

    def use(self, agent: AgentProfile) -> None:
        """Name the LLM of `agent` with the tokens."""
        self._agent = agent

    def write(self, event: RunEvent) -> Iterator[bytes]:
        """Return what an event of the run becomes.

        Raises:
            AdapterError: it has messages that are none of AG-UI.
        """
        match event:
            case TextDelta():
                if not self._text_id:
                    self._text_id = self._parent_id = str(uuid.uuid4())
                    yield frame(TextMessageStartEvent(message_id=self._text_id, role="assistant"))
                yield frame(TextMessageContentEvent(message_id=self._text_id, delta=event.text))
            case CallStart():
                yield from self._end_text()
                self._parent_id = self._parent_id or str(uuid.uuid4())
                self._arguments[event.id] = False
                parent = self._parent_id
                yield frame(
                    ToolCallStartEvent(tool_call_id=event.id, tool_call_name=event.name, parent_message_id=parent)
                )
                if event.signature:
                    value = event.signature
                    yield frame(
                        ReasoningEncryptedValueEvent(subtype="tool-call", entity_id=event.id, encrypted_value=value)
                    )
            case CallArguments() if event.text:
                self._arguments[event.id] = True
                yield frame(ToolCallArgsEvent(tool_call_id=event.id, delta=event.text))
            case CallEnd():
                if not self._arguments.get(event.id, True):
                    yield frame(ToolCallArgsEvent(tool_call_id=event.id, delta="{}"))
                yield frame(ToolCallEndEvent(tool_call_id=event.id))
            case ToolResult():
                yield from self._end_text()
                self._arguments.pop(event.id, None)
                self._parent_id = ""
                id = str(uuid.uuid4())
                yield frame(ToolCallResultEvent(message_id=id, tool_call_id=event.id, content=event.text, role="tool"))
            case TokensUsed():
                self._usage = event.usage
            case Snapshot():
                yield self._snapshot(event.messages)
            case RunEnded():
                yield from self._end_text()
                yield self._finished()

    def error(self, fault: Fault) -> bytes:
        """Return the last event of a run that has failed."""
        code = fault.code or fault.type
        return frame(RunErrorEvent(message=fault.message, code=code, usage=self._tokens()))

    def restored(self, messages: Sequence[dict[str, Any]]) -> Iterator[bytes]:
        """Return the events of a request for the conversation as it is stored."""
        yield self._snapshot(messages)
        yield self._finished()

    def _snapshot(self, messages: Sequence[dict[str, Any]]) -> bytes:
        written = [modern(one, f"messages[{index}]") for index, one in enumerate(messages)]
        try:
            return frame(MessagesSnapshotEvent.model_validate({"messages": written}))
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            text = f"The cluster's copy of the conversation is no list of AG-UI messages: {place}."
            raise AdapterError(Fault(502, "ClusterError", text, may_have_run=True)) from None

    def _end_text(self) -> Iterator[bytes]:
        if self._text_id:
            yield frame(TextMessageEndEvent(message_id=self._text_id))
            self._text_id = ""

    def _finished(self) -> bytes:
        pending = list(self._arguments)
        outcome = RunFinishedSuccessOutcome(type="success", pending_tool_call_ids=pending) if pending else None
        thread, run = self._request.thread_id, self._request.run_id
        return frame(RunFinishedEvent(thread_id=thread, run_id=run, outcome=outcome, usage=self._tokens()))

    def _tokens(self) -> list[TokenUsage] | None:
        """Return the tokens of the run, if they are known. A number that is not known is left out."""
        usage = self._usage
        if usage is None:
            return None
        tokens = TokenUsage(input_tokens=usage.input, output_tokens=usage.output, total_tokens=usage.total)
        if self._agent is not None:
            tokens.provider, tokens.model = self._agent.provider or None, model_name(self._agent) or None
        return [tokens]


class AgUi:
    """The route of AG-UI. place: returns the parts under the settings in effect."""

    def __init__(self, place: Callable[[], Place]) -> None:
        self._place = place

    async def run(self, request: Request) -> Response:
        """Run an agent. A body that is no request of the protocol is a 4xx; all else is an event of the stream."""
        place = self._place()
        try:
            body = await read_body(request, place.settings)
            asked = await run_here_if(len(body) <= SMALL_TEXT, _read, body)
        except AdapterError as error:
            fault = error.fault
            detail = {"type": fault.type, "message": fault.message, "field": fault.place}
            return JSONResponse({"error": detail}, fault.status)
        writer = EventWriter(asked)
        events = self._events(place, request, asked, len(body) <= SMALL_TEXT, writer)
        return stream(events, place.settings.adapters.comment_seconds, {}, lambda: writer.error(INTERNAL_ERROR))

    async def _events(
        self, place: Place, request: Request, asked: RunAgentInput, small: bool, writer: EventWriter
    ) -> AsyncGenerator[bytes, None]:
        yield writer.started()
        try:
            refuse_resume(asked)
            caller = place.caller(request)
            agent = await place.agents(caller).find(request.path_params["agent"])
            writer.use(agent)
            if not asked.messages and agent.agent_type is not AgentType.AG_UI:
                for written in writer.restored(await self._restore(place, agent, asked.thread_id, caller)):
                    yield written
                return
            body, places, notices, session = await run_here_if(small, _body, agent, asked)
            try:
                run = await place.begin(RunInput(agent, body, caller, session, address_of(request)))
            except AdapterError as error:
                raise relocated(error, places) from None
            try:
                for code in notices:
                    place.metrics.notice(code)
                for code in (*run.notices, *notices):
                    yield writer.noticed(code)
                async for event in run.events():
                    if isinstance(event, RunFailed):
                        raise failed(event)
                    for written in writer.write(event):
                        yield written
            finally:
                run.close()
        except AdapterError as error:
            yield writer.error(error.fault)

    async def _restore(self, place: Place, agent: AgentProfile, thread: str, caller: Any) -> list[dict[str, Any]]:
        """Return the conversation that the gateway keeps under this name; nothing where it keeps none."""
        try:
            conversation = await place.conversation(agent, _thread(thread), caller)
        except GatewayError as error:
            raise of_gateway(error) from None
        return snapshot(conversation.messages, conversation.session_id)


def _read(body: bytes) -> RunAgentInput:
    return read_request(plain(msgspec.Raw(body)))


def _thread(thread_id: str) -> str:
    return f"ag-ui:{thread_id}" if thread_id else ""


def _body(agent: AgentProfile, asked: RunAgentInput) -> tuple[bytes, list[str], list[str], SessionUse]:
    """Return the body for the data port, the place of each turn, the codes of what is left out, and the session."""
    if agent.agent_type is AgentType.AG_UI:
        return json.dumps(native_body(asked)).encode(), [], [], SessionUse("")
    turns, places, notices = write_input(asked)
    tools = [tool.model_dump(include=_TOOL, exclude_none=True) for tool in asked.tools or ()]
    written = json.dumps({"input": turns, "tools": tools, "parameters": {}}).encode()
    return written, places, notices, SessionUse(_thread(asked.thread_id))


def routes(place: Callable[[], Place]) -> Sequence[Route]:
    """Return the routes of the adapter."""
    return [Route("/ag-ui/{agent}", AgUi(place).run, methods=["POST"])]
