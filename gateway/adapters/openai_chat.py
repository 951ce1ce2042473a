"""OpenAI's chat completions and list of models, and what the Responses API has in common with them.

The model that a client names is the agent.
What each member of a request means, and which are refused: docs/reference/openai.md.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.adapters.agents import Agent
from gateway.adapters.errors import INTERNAL_ERROR, AdapterError, Fault, refuse
from gateway.adapters.requests import (
    OF_STREAMS,
    Place,
    RunScope,
    address_of,
    begin_within,
    notice_headers,
    plain,
    read_body,
    read_members,
    stream,
    unless_left,
)
from gateway.adapters.run import AgentRun, RunInput, RunResult
from gateway.execute.run_events import RunEvent, TextDelta
from gateway.memory.model import Usage
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.ports import SessionUse
from gateway.unified.limits import SMALL_TEXT

SAMPLING_LEFT_OUT = "SAMPLING_LEFT_OUT"
TOOLS_LEFT_OUT = "TOOLS_LEFT_OUT"


def check_members(
    members: Mapping[str, msgspec.Raw], accepted: Collection[str], only: Mapping[str, Sequence[Any]]
) -> None:
    """Refuse a member that is not known. only: members that are accepted with these values.

    Raises:
        AdapterError: with its name.
    """
    for name, value in members.items():
        if name in only and plain(value) not in only[name]:
            allowed = " or ".join(json.dumps(one) for one in only[name])
            raise refuse(400, f"`{name}` can only be {allowed} here: an ML Commons agent can't do otherwise.", name)
        if name not in only and name not in accepted:
            text = f"`{name}` is not known here, or is nothing that an ML Commons agent can do. Leave it out."
            raise refuse(400, text, name)


def takes(agent: AgentProfile, name: str) -> bool:
    """Return True if the template of the agent's LLM has a place for the parameter."""
    place = rf"\$\{{parameters\.{name}(:-[^}}]*)?\}}"
    return bool(agent.models) and re.search(place, agent.models[0].connector.request_body) is not None


class ClientTools(Struct, frozen=True):
    """The client's own tools, as the data port takes them. left_out: some are none that a client runs itself."""

    members: dict[str, Any]
    left_out: bool


NO_TOOLS = ClientTools({}, False)


def read_tools(tools: Any, choice: Any) -> ClientTools:
    """Read `tools` and `tool_choice`, None for none. Tools that OpenAI runs (`web_search`) are left out."""
    given = tools if isinstance(tools, list) else [tools] if tools is not None else []
    functions = [tool for tool in given if not isinstance(tool, dict) or tool.get("type") in (None, "function")]
    members = {"tools": functions, "tool_choice": choice}
    is_asked = bool(functions) or choice not in (None, "auto", "none")
    sent = {name: value for name, value in members.items() if value is not None} if is_asked else {}
    return ClientTools(sent, len(functions) < len(given))


def frame(document: Any) -> bytes:
    """Return an event with a JSON value."""
    return b"data: %b\n\n" % msgspec.json.encode(document)


_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def write_error(fault: Fault, member: str = "messages") -> dict[str, Any]:
    """Return an error in OpenAI's form. All four members are there. member: what clients call the `input`."""
    kind = _TYPES.get(fault.status) or ("invalid_request_error" if fault.status < 500 else "server_error")
    code = "model_not_found" if fault.type == "AgentNotFound" else fault.code or fault.type
    param, message = fault.place, fault.message
    if re.match(r"input\b", param):
        param, message = member + param[len("input") :], message.replace("[input", f"[{member}", 1)
    return {"error": {"message": message, "type": kind, "param": param or None, "code": code}}


def error_response(error: AdapterError, member: str = "messages") -> JSONResponse:
    """Return the response for an error. A client must not repeat a run whose tools may have acted."""
    fault, headers = error.fault, {}
    if fault.retry_after:
        headers["Retry-After"] = str(fault.retry_after)
    if fault.may_have_run:
        headers["X-Should-Retry"] = "false"
    return JSONResponse(write_error(fault, member), fault.status, headers)


def answering(handle: Callable[[Request], Any], member: str = "messages") -> Callable[[Request], Any]:
    """Return a handler that answers with the error that `handle` raises. member: see `write_error`."""

    async def answer(request: Request) -> Response:
        try:
            response: Response = await handle(request)
        except AdapterError as error:
            return error_response(error, member)
        return response

    return answer


async def answer_whole(
    request: Request,
    beginning: Awaitable[AgentRun],
    notices: Sequence[str],
    take: Callable[[RunEvent], object],
    document: Callable[[], dict[str, Any]],
) -> Response:
    """Return the response for a whole run. take: is given each event. document: returns the answer after the last one.

    Raises:
        AdapterError: the run is refused, or has failed.
    """

    async def run() -> Sequence[str]:
        begun = await beginning
        try:
            async for event in begun.events():
                take(event)
            return begun.notices
        finally:
            begun.close()

    known = await unless_left(request, run())
    if known is None:
        return Response(status_code=499)
    codes = [code for code in [*known, *notices] if code not in OF_STREAMS]
    return JSONResponse(document(), headers=notice_headers(codes))


async def answer_stream(
    place: Place,
    beginning: Awaitable[AgentRun],
    notices: Sequence[str],
    frames: Callable[[RunScope], AsyncGenerator[bytes, None]],
    fault: Callable[[], bytes],
) -> Response:
    """Return the response for a streamed run. fault: see `stream`.

    Raises:
        AdapterError: the run is refused before it is time to begin the stream with a comment.
    """
    seconds = place.settings.adapters.comment_seconds
    run = await begin_within(beginning, seconds)
    known = run.notices if isinstance(run, AgentRun) else ()
    return stream(frames(RunScope(run)), seconds, notice_headers([*known, *notices]), fault)


_SAMPLING = frozenset(
    {
        "frequency_penalty", "max_completion_tokens", "max_tokens", "presence_penalty", "reasoning_effort", "seed",
        "stop", "temperature", "top_p", "verbosity",
    }
)  # fmt: skip
"""Members that go into the template of the agent's connector, where it has a place for one of that name."""
_IGNORED = frozenset(
    {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "store", "stream_options", "user"}
)
"""Members that change nothing of an answer."""
_ONLY: Mapping[str, Sequence[Any]] = {
    "function_call": ("none",),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
}
"""Members that are accepted with these values, which are what happens anyway."""
_READ = frozenset({"messages", "model", "stream", "tool_choice", "tools"})


class ChatRequest(Struct, frozen=True):
    """A request: the agent's name, the body for the data port, and what of it is left out (codes of notices)."""

    model: str
    messages: msgspec.Raw
    streams: bool
    with_usage: bool
    sampling: dict[str, Any]
    tools: ClientTools


def read_request(body: bytes) -> ChatRequest:
    """Read a request.

    Raises:
        AdapterError: it is wrong, or asks for what no agent can do.
    """
    members = {name: value for name, value in read_members(body).items() if bytes(value) != b"null"}
    check_members(members, _READ | _SAMPLING | _IGNORED, _ONLY)
    model, messages = plain(members.get("model", msgspec.Raw(b"null"))), members.get("messages")
    if not isinstance(model, str) or not model:
        raise refuse(400, "Name the agent in `model`: its id or its name; GET /v1/models lists them.", "model")
    if messages is None or bytes(messages)[:1] != b"[":
        raise refuse(400, "`messages` has to be the list of the conversation's messages.", "messages")
    streams = plain(members["stream"]) if "stream" in members else False
    if not isinstance(streams, bool):
        raise refuse(400, "`stream` is true or false.", "stream")
    options = plain(members["stream_options"]) if "stream_options" in members else {}
    with_usage = isinstance(options, dict) and options.get("include_usage") is True
    sampling = {name: plain(value) for name, value in members.items() if name in _SAMPLING}
    tools = read_tools(*(plain(members[name]) if name in members else None for name in ("tools", "tool_choice")))
    return ChatRequest(model, messages, streams, with_usage, sampling, tools)


def write_input(request: ChatRequest, agent: AgentProfile) -> tuple[bytes, list[str]]:
    """Return the body for the data port, and the codes of what is left out.

    The messages go on as they are written: the unified input takes OpenAI's spelling.
    """
    taken = {name: value for name, value in request.sampling.items() if takes(agent, name)}
    notices = [SAMPLING_LEFT_OUT] if len(taken) < len(request.sampling) else []
    if request.tools.left_out:
        notices.append(TOOLS_LEFT_OUT)
    body = {"input": request.messages, **request.tools.members, "parameters": taken}
    return msgspec.json.encode(body), notices


# Answers


_FINISH = {
    "max_tokens": "length",
    "max_iterations": "length",
    "model_context_window_exceeded": "length",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "refusal": "content_filter",
}


def finish_reason(result: RunResult) -> str:
    """Return OpenAI's name for why an answer ended. A reason that it has no name for is `stop`."""
    return "tool_calls" if result.calls else _FINISH.get(result.reason, "stop")


def write_usage(usage: Usage | None) -> dict[str, Any] | None:
    """Return the tokens in OpenAI's form; None unless both counts are known."""
    if usage is None or usage.input is None or usage.output is None:
        return None
    total = usage.total if usage.total is not None else usage.input + usage.output
    return {"prompt_tokens": usage.input, "completion_tokens": usage.output, "total_tokens": total}


class Completion:
    """The answer to one request: its parts share an id, a time and the name of the model."""

    def __init__(self, model: str) -> None:
        self._known = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, result: RunResult) -> dict[str, Any]:
        """Return a `chat.completion`."""
        message: dict[str, Any] = {"role": "assistant", "content": result.text, "refusal": None}
        if result.calls:
            message |= {"content": result.text or None, "tool_calls": _tool_calls(result)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(result)}
        usage = write_usage(result.usage)
        return {
            **self._known,
            "object": "chat.completion",
            "choices": [choice],
            **({"usage": usage} if usage else {}),
        }

    def chunk(self, delta: Mapping[str, Any], reason: str | None = None) -> bytes:
        """Return the frame of a `chat.completion.chunk`."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return frame({**self._known, "object": "chat.completion.chunk", "choices": [choice]})

    def usage(self, usage: Usage | None) -> bytes:
        """Return the frame with the tokens, which has no choice."""
        counts = write_usage(usage)
        return frame({**self._known, "object": "chat.completion.chunk", "choices": [], "usage": counts})


def _tool_calls(result: RunResult) -> list[dict[str, Any]]:
    return [{"id": id, "type": "function", **call} for id, call in result.calls.items()]


async def write_stream(run: RunScope, completion: Completion, with_usage: bool) -> AsyncGenerator[bytes, None]:
    """Yield the frames of a streamed answer: a role, the text as it comes, open calls, the reason, `[DONE]`.

    A run that fails ends with the frame of its error, and without `[DONE]`.
    """
    result = RunResult()
    try:
        async with run as begun:
            yield completion.chunk({"role": "assistant", "content": ""})
            async for event in begun.events():
                result.take(event)
                if isinstance(event, TextDelta):
                    yield completion.chunk({"content": event.text})
    except AdapterError as error:
        yield frame(write_error(error.fault))
        return
    for index, call in enumerate(_tool_calls(result)):
        yield completion.chunk({"tool_calls": [{"index": index, **call}]})
    yield completion.chunk({}, finish_reason(result))
    if with_usage:
        yield completion.usage(result.usage)
    yield b"data: [DONE]\n\n"


# Requests


class OpenAI:
    """The handlers of OpenAI's API. place: returns the parts under the settings in effect."""

    def __init__(self, place: Callable[[], Place]) -> None:
        self._place = place

    async def complete(self, request: Request) -> Response:
        """Run an agent.

        Raises:
            AdapterError: it is refused, or fails before its answer begins.
        """
        place = self._place()
        body = await read_body(request, place.settings)
        asked = await run_here_if(len(body) <= SMALL_TEXT, read_request, body)
        caller = place.caller(request)
        agent = await place.agents(caller).find(asked.model)
        sent, notices = write_input(asked, agent)
        for code in notices:
            place.metrics.notice(code)
        given = RunInput(agent, sent, caller, SessionUse(""), address_of(request))
        completion, result = Completion(asked.model), RunResult()
        if asked.streams:
            return await answer_stream(
                place,
                place.begin(given),
                notices,
                lambda run: write_stream(run, completion, asked.with_usage),
                lambda: frame(write_error(INTERNAL_ERROR)),
            )
        return await answer_whole(request, place.begin(given), notices, result.take, lambda: completion.whole(result))

    async def models(self, request: Request) -> Response:
        """List the agents."""
        place = self._place()
        agents = await place.agents(place.caller(request)).readable()
        return JSONResponse({"object": "list", "data": [_model(agent) for agent in agents]})

    async def model(self, request: Request) -> Response:
        """Show one agent."""
        place = self._place()
        agent = await place.agents(place.caller(request)).find(request.path_params["model"])
        return JSONResponse({**_model(Agent(agent.id, agent.name)), "id": request.path_params["model"]})


def _model(agent: Agent) -> dict[str, Any]:
    """Return an agent as a model. Names may be equal, ids are not, so the id is the model's."""
    return {"id": agent.id, "object": "model", "created": agent.created, "owned_by": "ml-commons", "name": agent.name}


def routes(place: Callable[[], Place]) -> Sequence[Route]:
    """Return the routes of the adapter."""
    api = OpenAI(place)
    return [
        Route("/v1/chat/completions", answering(api.complete), methods=["POST"]),
        Route("/v1/models", answering(api.models), methods=["GET"]),
        Route("/v1/models/{model:path}", answering(api.model), methods=["GET"]),
    ]
