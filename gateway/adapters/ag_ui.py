"""AG-UI: a run of an agent as a stream of its events, for the chat of OpenSearch Dashboards and other front ends.

A request becomes the unified input, or the body of an AG_UI agent; a session becomes AG-UI messages. AG-UI 1.0 and the
form before it are read, in which media are parts of the type `binary` (docs/reference/ag-ui.md).

An error after the request was read is an event of the stream (RUN_ERROR), as Dashboards shows no other.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
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
from pydantic_core import PydanticSerializationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.adapters.errors import INTERNAL_ERROR, AdapterError, Fault, of_gateway, refuse, relocated
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
from gateway.execute.streams import google_signature
from gateway.memory.model import Block, StoredMessage, Usage
from gateway.mlcommons.generations import AgentType
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.ports import SessionUse
from gateway.unified.formats import FORMATS
from gateway.unified.limits import SMALL_TEXT

MESSAGES_LEFT_OUT = "MESSAGES_LEFT_OUT"
_MEDIA = ("image", "audio", "video")
_OF_THE_PAGE = frozenset({"canResend", "toolResult", "toolCallId"})
"""Members of the system messages that OpenSearch Dashboards writes into its own timeline, to show them."""
_UNKNOWN = "application/octet-stream"
_LISTS = ("tools", "context")


def read_request(document: Any) -> RunAgentInput:
    """Return a request; parts of the type `binary` become those of 1.0.

    Raises:
        AdapterError: it breaks a rule of the protocol.
    """
    if not isinstance(document, dict):
        raise refuse(400, "The body is not an AG-UI request: an object with threadId, runId and messages.")
    messages = document.get("messages")
    if isinstance(messages, list):
        document = {**document, "messages": [modern(one, f"messages[{i}]") for i, one in enumerate(messages)]}
    document = {name: value for name, value in document.items() if value is not None or name not in _LISTS}
    try:
        return RunAgentInput.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        raise refuse(400, f"The body is not an AG-UI request: {place}: {first['msg']}.", place) from None


def refuse_resume(request: RunAgentInput) -> None:
    """Refuse the answers to interrupts: no agent behind the gateway interrupts a run.

    Raises:
        AdapterError: there are some.
    """
    if request.resume:
        text = (
            "`resume` can't be sent to an agent of ML Commons, as none interrupts a run. Leave it out, and send the "
            "answer as a message: of a tool if it is that of a call, otherwise of the user."
        )
        raise refuse(400, text, "resume")


def modern(message: Any, at: str) -> Any:
    """Return a message with parts of 1.0. at: its place.

    Raises:
        AdapterError: a part is wrong.
    """
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [_modern_part(part, f"{at}.content[{i}]") for i, part in enumerate(content)]}


def _modern_part(part: Any, at: str) -> Any:
    if not isinstance(part, dict) or part.get("type") != "binary":
        return part
    mime, data, url = part.get("mimeType"), part.get("data"), part.get("url")
    if not isinstance(mime, str) or not (isinstance(data, str) or isinstance(url, str)):
        raise refuse(400, f"{at}: a binary part needs its mimeType and its data or url.", at)
    source = {"type": "data", "value": data} if isinstance(data, str) else {"type": "url", "value": url}
    name = {"filename": part["filename"]} if isinstance(part.get("filename"), str) else {}
    return {"type": _kind(mime), "source": {**source, "mimeType": mime}, **name}


def _kind(mime: str) -> str:
    kind = mime.partition("/")[0].lower()
    return kind if kind in _MEDIA else "document"


def write_input(request: RunAgentInput) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Return the conversation as the unified input, the place of each turn in the request, and what is left out.

    A place is "" for what is no message of the client's. What is left out is named by codes.

    Context and state of the application come as system text after the client's own.

    Raises:
        AdapterError: a part can't be expressed.
    """
    turns: list[dict[str, Any]] = []
    places: list[str] = []
    left_out = False
    for index, message in enumerate(_dump(request)["messages"]):
        turn = _turn(message, f"messages[{index}]")
        if turn is None:
            left_out = left_out or message["role"] != "assistant"  # an assistant's message without content is empty
        else:
            turns.append(turn)
            places.append(f"messages[{index}]")
    if about := _about(request):
        leading = next((i for i, turn in enumerate(turns) if turn["role"] not in ("system", "developer")), len(turns))
        turns.insert(leading, {"role": "system", "content": about})
        places.insert(leading, "")
    return turns, places, [MESSAGES_LEFT_OUT] if left_out else []


def _dump(request: RunAgentInput) -> dict[str, Any]:
    """Return the members of a request, and of all in it.

    Raises:
        AdapterError: they are nested too deeply to be written.
    """
    try:
        document: dict[str, Any] = request.model_dump(by_alias=True, exclude_none=True, mode="json")
    except PydanticSerializationError:
        raise refuse(400, "The values of the request are nested too deeply.") from None
    return document


def _turn(message: Mapping[str, Any], at: str) -> dict[str, Any] | None:
    """Return a turn; None for a message that no LLM gets."""
    role, content = message["role"], message.get("content")
    match role:
        case "system" | "developer":
            return None if _OF_THE_PAGE & message.keys() else {"role": role, "content": content}
        case "user":
            return {"role": "user", "content": _content(content, at)}
        case "assistant":
            calls = message.get("toolCalls") or []
            called = {"toolCalls": [_call(call) for call in calls]}
            if not calls:
                return {"role": "assistant", "content": content} if content else None
            return {"role": "assistant", **({"content": content} if content else {}), **called}
        case "tool":
            result = {"toolUseId": message["toolCallId"], "content": _result(content, at)}
            if message.get("error"):
                result |= {"status": "error", "content": [*result["content"], {"text": message["error"]}]}
            return {"role": "tool", "content": [{"toolResult": result}]}
        case _:
            return None


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    written = {name: call[name] for name in ("id", "type", "function")}
    return {**written, **google_signature(call.get("encryptedValue", ""))}


def _result(content: Any, at: str) -> list[dict[str, Any]]:
    """Return what a tool has answered. An empty answer is an empty text."""
    return [{"text": content}] if isinstance(content, str) else _parts(content, at, typed=False) or [{"text": ""}]


def _content(content: Any, at: str) -> Any:
    return content if isinstance(content, str) else _parts(content, at, typed=True)


def _parts(parts: Sequence[Mapping[str, Any]], at: str, typed: bool) -> list[dict[str, Any]]:
    """Return content blocks. typed: with their `type`; a tool's result takes both spellings."""
    return [_part(part, f"{at}.content[{index}]", typed) for index, part in enumerate(parts)]


def _part(part: Mapping[str, Any], at: str, typed: bool) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]} if typed else {"text": part["text"]}
    source = part["source"]
    if source["type"] == "file":
        raise refuse(400, f"{at}: a file of a provider can't be sent to an agent. Send its data, or a URL.", at)
    by_url = source["type"] == "url"
    written = {"type": "url", "url": source["value"]} if by_url else {"type": "base64", "data": source["value"]}
    mime = source.get("mimeType")
    name = {"name": part["filename"]} if part["type"] == "document" and part.get("filename") else {}
    return {"type": part["type"], "source": {**written, **({"format": mime} if mime else {}), **name}}


def _about(request: RunAgentInput) -> str:
    """Return the context and the state of the application as text; "" if there is neither."""
    lines = [f"- {one.description}: {one.value}" for one in request.context or []]
    texts = ["\n".join(("Context of the application:", *lines))] if lines else []
    if request.state not in (None, {}, [], ""):
        texts.append(f"State of the application, as JSON: {json.dumps(request.state, ensure_ascii=False)}")
    return "\n\n".join(texts)


def native_body(request: RunAgentInput) -> dict[str, Any]:
    """Return the request for an agent of the type AG_UI, whose cluster reads the form before 1.0.

    It takes it for an AG-UI request only with all seven members, and drops every other medium than an inline image.

    Raises:
        AdapterError: it would drop one.
    """
    document = _dump(request)
    for index, message in enumerate(document["messages"]):
        if isinstance(message.get("content"), list):
            at = f"messages[{index}].content"
            message["content"] = [_binary(part, f"{at}[{i}]") for i, part in enumerate(message["content"])]
    members = ("threadId", "runId", "messages", "tools", "context", "state", "forwardedProps")
    empty: dict[str, Any] = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
    return {name: document.get(name, empty.get(name)) for name in members}


def _binary(part: Mapping[str, Any], at: str) -> dict[str, Any]:
    if part["type"] == "text":
        return dict(part)
    source = part["source"]
    if part["type"] != "image" or source["type"] != "data":
        raise refuse(400, f"{at}: the cluster drops this from a request to an AG_UI agent. Send images inline.", at)
    return {"type": "binary", "mimeType": source.get("mimeType", "image/png"), "data": source["value"]}


def snapshot(messages: Iterable[StoredMessage], session_id: str) -> list[dict[str, Any]]:
    """Return the messages of a session, each with an id that stays the same."""
    written: list[dict[str, Any]] = []
    for stored in messages:
        id = f"{session_id}-{stored.seq}"
        content = stored.message.content
        results = [block["toolResult"] for block in content if "toolResult" in block]
        for number, result in enumerate(results):
            tool = {"role": "tool", "toolCallId": result["toolUseId"], "content": _texts(result.get("content", []))}
            written.append({"id": f"{id}-{number}", **tool})
        if stored.message.role == "assistant":
            written.append({"id": id, **_assistant(content)})
        elif parts := [part for block in content if (part := _shown(block)) is not None]:
            only_text = all(part["type"] == "text" for part in parts)
            text = "\n".join(part["text"] for part in parts) if only_text else parts
            written.append({"id": id, "role": "user", "content": text})
    return written


def _assistant(content: Sequence[Block]) -> dict[str, Any]:
    calls = [
        {
            "id": block["toolUse"]["toolUseId"],
            "type": "function",
            "function": {"name": block["toolUse"]["name"], "arguments": json.dumps(block["toolUse"]["input"])},
            **({"encryptedValue": signature} if (signature := block["toolUse"].get("reasoningSignature")) else {}),
        }
        for block in content
        if "toolUse" in block
    ]
    return {"role": "assistant", "content": _texts(content), **({"toolCalls": calls} if calls else {})}


def _texts(content: Sequence[Block]) -> str:
    texts = [block["text"] for block in content if isinstance(block.get("text"), str)]
    texts += [json.dumps(block["json"], ensure_ascii=False) for block in content if "json" in block]
    return "\n".join(texts)


def _shown(block: Block) -> dict[str, Any] | None:
    """Return a user's block as a part; None for one that AG-UI has no part for."""
    if isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    for kind, mime_types in FORMATS.items():
        if isinstance(body := block.get(kind), dict):
            source, mime = body.get("source", {}), mime_types.get(body.get("format", ""), _UNKNOWN)
            if isinstance(source.get("bytes"), str):
                return {"type": kind, "source": {"type": "data", "value": source["bytes"], "mimeType": mime}}
            if isinstance(source.get("url"), str):
                named = {"mimeType": mime} if "format" in body else {}
                return {"type": kind, "source": {"type": "url", "value": source["url"], **named}}
    return None


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
