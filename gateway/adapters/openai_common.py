"""What OpenAI's APIs have in common: which members a request may have, errors, frames of a stream."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.adapters.errors import AdapterError, Fault, refuse
from gateway.adapters.requests import (
    OF_STREAMS,
    Place,
    RunScope,
    begin_within,
    notice_headers,
    plain,
    stream,
    unless_left,
)
from gateway.adapters.run import AgentRun
from gateway.execute.run_events import RunEvent
from gateway.mlcommons.profile import AgentProfile

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
