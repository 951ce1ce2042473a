"""MCP: chosen agents as tools (`adapters.mcp`), over streamable HTTP and over standard input and output.

The protocol itself is the SDK's, for the revision of 2026-07-28 and for those with a handshake. Nothing is kept between
two requests but the calls that run: docs/reference/mcp.md.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    ListToolsResult,
    TextContent,
    Tool,
)
from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gateway import __version__
from gateway.adapters.agents import Agents
from gateway.adapters.errors import INTERNAL, AdapterError, Fault, refuse, relocated
from gateway.adapters.requests import OF_STREAMS, Place, address_of, read_body
from gateway.adapters.run import RunInput, RunResult
from gateway.codes import CODES
from gateway.config.schema import McpTool
from gateway.execute.run_events import CallStart, RunEvent, TextDelta
from gateway.ports import SessionUse
from gateway.unified.limits import SMALL_TEXT

SESSION = "mcp-session-id"
_INVALID_REQUEST, _CANCELLED = -32600, -32800  # codes of JSON-RPC
_PROGRESS_SECONDS = 0.25
"""Between two notifications of progress with text."""

# What a tool takes and returns


class Image(Struct, frozen=True, forbid_unknown_fields=True):
    """An image of a call: its base64 and MIME type, or a URL, which may be a data URL."""

    data: str = ""
    mime_type: str = field(default="", name="mimeType")
    url: str = ""


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a call."""

    text: str = ""
    images: list[Image] = []
    session: str = ""


_TEXT = {"type": "string", "description": "The question or the task for the agent, with all that it has to know."}
_IMAGES = {
    "type": "array",
    "description": "Images that the question is about, each with data and mimeType, or with a url.",
    "items": {
        "type": "object",
        "properties": {
            "data": {"type": "string", "description": "The image in base64."},
            "mimeType": {"type": "string", "description": "Its MIME type, such as image/png."},
            "url": {"type": "string", "description": "The image's https or data URL."},
        },
        "additionalProperties": False,
    },
}
_SESSION = {
    "type": "string",
    "description": "Your name for a conversation. The agent remembers earlier calls with the same name. Leave it out "
    "for a question that stands alone.",
}
_COUNT = {"type": "integer"}
OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The agent's answer."},
        "stopReason": {"type": "string", "description": "Why the answer is not whole. Absent if it is."},
        "openCalls": {
            "type": "array",
            "description": "Calls of tools that the agent asks for, and that nobody has run.",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
                "required": ["name", "arguments"],
            },
        },
        "usage": {
            "type": "object",
            "description": "Tokens, as far as the answer reports them.",
            "properties": {"inputTokens": _COUNT, "outputTokens": _COUNT, "totalTokens": _COUNT},
        },
        "notices": {
            "type": "array",
            "description": "What the gateway changed to deliver the question.",
            "items": {
                "type": "object",
                "properties": {"code": {"type": "string"}, "reason": {"type": "string"}},
                "required": ["code", "reason"],
            },
        },
    },
    "required": ["text"],
}


def input_schema(tool: McpTool, remembers: bool) -> dict[str, Any]:
    """Return the schema of a tool's arguments. remembers: the gateway keeps the agent's sessions."""
    properties = {"text": _TEXT, "images": _IMAGES, **({"session": _SESSION} if remembers else {})}
    required = {} if tool.text else {"required": ["text"]}
    return {"type": "object", "properties": properties, **required, "additionalProperties": False}


def read_arguments(arguments: dict[str, Any] | None, tool: McpTool) -> Arguments:
    """Read the arguments of a call.

    Raises:
        AdapterError: they are not as `input_schema` says.
    """
    try:
        read = msgspec.convert(arguments or {}, Arguments)
    except msgspec.ValidationError as error:
        raise refuse(400, f"The arguments are wrong: {error}.") from None
    if not read.text and not tool.text:
        raise refuse(400, "The arguments are wrong: `text` is missing, or empty.", "text")
    for index, image in enumerate(read.images):
        if bool(image.url) == bool(image.data) or bool(image.data) != bool(image.mime_type):
            place = f"images[{index}]"
            raise refuse(400, f"{place}: an image needs either its data and mimeType, or its url.", place)
    return read


def write_input(asked: Arguments, tool: McpTool) -> tuple[bytes, list[str]]:
    """Return the body for the data port, and the argument that each block of its input is from."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": asked.text or tool.text}]
    for image in asked.images:
        if image.url:
            blocks.append({"type": "image_url", "image_url": {"url": image.url}})
        else:
            source = {"type": "base64", "format": image.mime_type, "data": image.data}
            blocks.append({"type": "image", "source": source})
    places = ["text", *(f"images[{index}]" for index in range(len(asked.images)))]
    return msgspec.json.encode({"input": blocks, "parameters": {}}), places


_STOPPED = {
    "max_tokens": "The answer ends early: the LLM's limit of tokens was reached.",
    "model_context_window_exceeded": "The answer ends early: the LLM's context was full.",
    "max_iterations": "The agent reached its limit of steps before it was done.",
    "content_filtered": "The answer was stopped by a content filter.",
    "guardrail_intervened": "The answer was stopped by a guardrail.",
    "refusal": "The LLM refused to answer.",
}
"""Why an answer is not whole, by the reason for which it ended."""


def write_result(result: RunResult, notices: Sequence[str]) -> CallToolResult:
    """Return the result of a call: the agent's text, why it is not whole, open calls; and all of it as one object."""
    notices = [code for code in notices if code not in OF_STREAMS]
    texts: list[str] = [result.text]
    document: dict[str, Any] = {"text": result.text}
    if reason := _STOPPED.get(result.reason):
        texts.append(reason)
        document["stopReason"] = result.reason
    if result.calls:
        calls = [call["function"] for call in result.calls.values()]
        asked = ", ".join(f"{call['name']}({call['arguments'] or '{}'})" for call in calls)
        texts.append(f"The agent is not done. It asks for tools that nobody has run: {asked}")
        document["openCalls"] = [{"name": call["name"], "arguments": call["arguments"] or "{}"} for call in calls]
    if result.usage is not None:
        tokens = {"input": result.usage.input, "output": result.usage.output, "total": result.usage.total}
        document["usage"] = {f"{name}Tokens": count for name, count in tokens.items() if count is not None}
    if notices:
        document["notices"] = [{"code": code, "reason": _meaning(code)} for code in notices]
    return CallToolResult(content=[*map(_text, filter(None, texts))] or [_text("")], structured_content=document)


def _text(text: str) -> ContentBlock:
    return TextContent(text=text)


def _meaning(code: str) -> str:
    return CODES[code].meaning if code in CODES else ""


def write_error(fault: Fault) -> CallToolResult:
    """Return the result of a call that has failed, with what to do about it."""
    text = f"{fault.code or fault.type}: {fault.message}"
    if fault.retry_after:
        text += f" Wait {fault.retry_after} s before the next try."
    if fault.may_have_run:
        text += " Tools of the agent may have acted already: do not repeat the call without checking."
    return CallToolResult(content=[_text(text)], is_error=True)


class Progress:
    """Reports how a run goes on to a caller that asks for it: a number that rises, and what is new.

    seconds: of silence until it says that the run goes on.
    """

    def __init__(self, session: ServerSession, seconds: float) -> None:
        self._session = session
        self._seconds = seconds
        self._number = 0
        self._text = ""
        self._time = asyncio.get_running_loop().time
        self._last = self._time()
        self._due = 0.0
        """When text is sent next."""

    async def report(self, message: str) -> None:
        """Report a step."""
        self._number += 1
        self._last = self._time()
        await self._session.report_progress(self._number, None, message)

    async def take(self, event: RunEvent) -> None:
        """Report an event of the run, if it is due."""
        match event:
            case TextDelta():
                self._text += event.text
                if self._time() >= self._due:
                    await self.flush()
            case CallStart():
                await self.flush()
                await self.report(f"The agent calls the tool {event.name}.")

    async def flush(self) -> None:
        """Report the text that was not due yet."""
        if self._text:
            text, self._text = self._text, ""
            self._due = self._time() + _PROGRESS_SECONDS
            await self.report(text)

    async def beat(self) -> None:
        """Report, until it is cancelled, that the run goes on."""
        while True:
            await asyncio.sleep(max(0.0, self._last + self._seconds - self._time()))
            if self._time() >= self._last + self._seconds:
                await self.report("The agent is still at work.")


# Requests


class Tools:
    """The agents that are served as tools. place: returns the parts under the settings in effect.

    own: stands for the requests of a transport that has none; its headers say who calls.
    """

    def __init__(self, place: Callable[[], Place], own: Request | None = None) -> None:
        self._place = place
        self._own = own
        self._running: dict[tuple[str, Any], anyio.CancelScope] = {}
        """Calls, by the session of the protocol and the id of the request in it."""

    def server(self) -> Server:
        """Return the SDK's server of these tools."""
        server = Server(
            "mlc-gateway",
            version=__version__,
            on_list_tools=self.list,
            on_call_tool=self.call,
            get_tool_input_schema=lambda _: None,  # no argument is repeated in a header
        )
        server.middleware.clear()  # traces are the data port's
        return server

    def _request(self, context: Any) -> Request:
        request = context.request or self._own
        assert isinstance(request, Request)
        return request

    async def list(self, context: Any, _: Any) -> ListToolsResult:
        """List the tools, by name. Those of agents with gateway memory take a session, too."""
        place = self._place()
        agents = place.agents(place.caller(self._request(context)))
        tools = sorted(place.settings.adapters.mcp, key=lambda tool: tool.name)
        remembered = await asyncio.gather(*(_remembers(place, agents, tool) for tool in tools))
        return ListToolsResult(
            tools=[
                Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=input_schema(tool, remembers),
                    output_schema=OUTPUT_SCHEMA,
                )
                for tool, remembers in zip(tools, remembered, strict=True)
            ]
        )

    async def call(self, context: Any, params: CallToolRequestParams) -> CallToolResult:
        """Run the agent of a tool.

        Raises:
            MCPError: the client has cancelled the call.
        """
        request = self._request(context)
        id = (request.headers.get(SESSION, ""), context.request_id)
        with anyio.CancelScope() as scope:
            if id[0]:
                self._running[id] = scope
            try:
                return await self._run(request, context.session, params)
            except AdapterError as error:
                return write_error(error.fault)
            except Exception:  # the SDK would send its text to clients of some revisions
                self._place().log.exception("internal error of an adapter")
                return write_error(Fault(500, "InternalError", INTERNAL))
            finally:
                self._running.pop(id, None)
        raise MCPError(_CANCELLED, "Request cancelled")

    def cancel(self, session: str, id: Any) -> None:
        """Cancel a call, if it runs in this process. id: as the client has written it."""
        scope = self._running.get((session, id)) if isinstance(id, str | int) else None
        if scope is not None:
            scope.cancel()

    async def _run(self, request: Request, session: ServerSession, params: CallToolRequestParams) -> CallToolResult:
        place = self._place()
        tools = {tool.name: tool for tool in place.settings.adapters.mcp}
        if (tool := tools.get(params.name)) is None:
            names = ", ".join(sorted(tools)) or "none"
            raise refuse(404, f"Unknown tool: {params.name!r}. The tools are: {names}.")
        asked = read_arguments(params.arguments, tool)
        caller = place.caller(request)
        agent = await place.agents(caller).find(tool.agent)
        if asked.session and not place.remembers(agent):
            raise refuse(400, "The gateway keeps no sessions of this agent. Leave `session` out.", "session")
        body, places = write_input(asked, tool)
        use = SessionUse(f"mcp:{asked.session}" if asked.session else "")
        progress = Progress(session, place.settings.adapters.comment_seconds)
        beating = asyncio.ensure_future(progress.beat())
        try:
            return await self._answer(place, RunInput(agent, body, caller, use, address_of(request)), places, progress)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _answer(self, place: Place, given: RunInput, places: Sequence[str], progress: Progress) -> CallToolResult:
        try:
            run = await place.begin(given)
        except AdapterError as error:
            raise relocated(error, places) from None
        result = RunResult()
        try:
            await progress.report("The agent runs.")
            async for event in run.events():
                result.take(event)
                await progress.take(event)
            await progress.flush()
        finally:
            run.close()
        return write_result(result, run.notices)


async def _remembers(place: Place, agents: Agents, tool: McpTool) -> bool:
    """Return True if the gateway keeps the agent's sessions. Of an agent that can't be read, a call says why."""
    try:
        return place.remembers(await agents.find(tool.agent))
    except AdapterError:
        return False


# HTTP


class _Posted(Struct, frozen=True):
    """The parts of a message that the endpoint itself acts on."""

    method: str = ""
    params: dict[str, Any] = {}


class Endpoint:
    """The endpoint of streamable HTTP. Each request has a session manager of its own, as these keep nothing here.

    In revisions with a handshake, a client cancels a call by a notification in a request of its own. The call is found
    by the session's id, which is made at the handshake, and which only the client keeps.
    """

    def __init__(self, place: Callable[[], Place]) -> None:
        self._place = place
        self._tools = Tools(place)
        self._server = self._tools.server()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        request = Request(scope, receive)
        try:
            body = await read_body(request, self._place().settings)
        except AdapterError as error:
            await _rejection(error.fault)(scope, receive, send)
            return
        posted = _read(body)
        if posted.method == "notifications/cancelled":
            self._tools.cancel(request.headers.get(SESSION, ""), posted.params.get("requestId"))
        manager = StreamableHTTPSessionManager(self._server, stateless=True, max_request_body_size=len(body) + 1)
        async with manager.run():
            begins = posted.method == "initialize"
            await manager.handle_request(scope, _again(body, receive), _with_session(send) if begins else send)


def _read(body: bytes) -> _Posted:
    """Read a message that the endpoint may act on: none of these is large. The SDK reports what is wrong with one."""
    if len(body) > SMALL_TEXT:
        return _Posted()
    try:
        return msgspec.json.decode(body, type=_Posted)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _Posted()


def _rejection(fault: Fault) -> JSONResponse:
    error = {"code": _INVALID_REQUEST, "message": fault.message}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, fault.status)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what receives a body that was read, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received


def _with_session(send: Send) -> Send:
    """Return what sends a response with the id of a new session."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            id = secrets.token_urlsafe(24).encode()
            message = {**message, "headers": [*message["headers"], (SESSION.encode(), id)]}
        await send(message)

    return sent


def routes(place: Callable[[], Place]) -> Sequence[Route]:
    """Return the route of the adapter."""
    return [Route("/mcp", Endpoint(place), methods=["POST"])]


async def serve_standard_streams(place: Place, authorization: str) -> None:
    """Serve one client on standard input and output, until the input ends. What else is printed goes to standard error.

    authorization: value of the caller's `Authorization`; "" for none.
    """
    headers = [(b"host", b"localhost")]
    if authorization:
        headers.append((b"authorization", authorization.encode()))
    own = Request({"type": "http", "headers": headers})
    server = Tools(lambda: place, own).server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
