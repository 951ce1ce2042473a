"""OpenAI's Responses API. A response is kept as a turn of a session, where the gateway keeps the agent's sessions.

What each member of a request means, and which are refused: docs/reference/openai.md.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.adapters.errors import INTERNAL_ERROR, AdapterError, Fault, of_answer, of_gateway, refuse, relocated
from gateway.adapters.openai_chat import (
    NO_TOOLS,
    SAMPLING_LEFT_OUT,
    TOOLS_LEFT_OUT,
    ClientTools,
    answer_stream,
    answer_whole,
    answering,
    check_members,
    finish_reason,
    read_tools,
    takes,
)
from gateway.adapters.requests import Conversation, Place, RunScope, address_of, plain, read_body, read_members
from gateway.adapters.run import AgentRun, RunInput, RunResult
from gateway.errors import GatewayError
from gateway.execute.run_events import RunEnded, RunEvent, TextDelta, ToolResult
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.ports import SessionUse
from gateway.proxy.local_client import send_request
from gateway.unified.limits import SMALL_TEXT

MESSAGES_LEFT_OUT = "MESSAGES_LEFT_OUT"

_SAMPLING = {
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "reasoning": ("reasoning_effort",),
    "max_output_tokens": ("max_output_tokens", "max_completion_tokens", "max_tokens"),
}
"""Members that go into the template of the agent's connector, under the first of these names that it has.

Of `reasoning`, its `effort` does."""
_IGNORED = frozenset(
    {
        "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "stream_options", "user",
    }
)  # fmt: skip
"""Members that change nothing of an answer. `metadata` is repeated in it."""
_ONLY: Mapping[str, Sequence[Any]] = {
    "background": (False,),
    "include": ([],),
    "parallel_tool_calls": (True,),
    "service_tier": ("auto", "default"),
    "text": ({}, {"format": {"type": "text"}}),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Members that are accepted with these values, which are what happens anyway."""
_READ = frozenset({"input", "instructions", "model", "previous_response_id", "store", "stream", "tool_choice", "tools"})
_ID = re.compile(r"resp_([A-Za-z0-9_-]+)-([0-9a-f]{24})-([1-9][0-9]{0,8})")


class ResponseId(Struct, frozen=True):
    """The id of a response: its agent, the thread that it is of, and its turn there."""

    agent_id: str
    thread: str
    turn: int

    @classmethod
    def read(cls, written: str) -> ResponseId:
        """Return the id in a text.

        Raises:
            AdapterError: it is none.
        """
        match = _ID.fullmatch(written)
        if match is None:
            raise _unknown(written)
        return cls(match[1], match[2], int(match[3]))

    def __str__(self) -> str:
        return f"resp_{self.agent_id}-{self.thread}-{self.turn}"


_UNKNOWN = "previous_response_not_found"


def _unknown(id: str) -> AdapterError:
    message = f"There is no response {id!r} of this agent and caller."
    return AdapterError(Fault(404, _UNKNOWN, message, place="previous_response_id"))


class ResponsesRequest(Struct, frozen=True):
    """A request. turns: its `input` as messages; items: where each begins in it. left_out: some are for no LLM."""

    model: str
    turns: list[dict[str, Any]]
    items: list[int]
    instructions: str
    previous: ResponseId | None
    stores: bool
    streams: bool
    sampling: dict[str, Any]
    tools: ClientTools
    metadata: Any
    left_out: bool


def read_request(body: bytes) -> ResponsesRequest:
    """Read a request.

    Raises:
        AdapterError: it is wrong, or asks for what no agent can do.
    """
    raw = {name: value for name, value in read_members(body).items() if bytes(value) != b"null"}
    check_members(raw, _READ | _IGNORED | _SAMPLING.keys(), _ONLY)
    members = {name: plain(value) for name, value in raw.items()}
    model = _member(members, "model", str, "Name the agent: its id or its name; GET /v1/models lists them.")
    if not model:
        raise refuse(400, "Name the agent in `model`: its id or its name; GET /v1/models lists them.", "model")
    previous = _member(members, "previous_response_id", str, "the id of a response", "")
    turns, items = read_items(members.get("input"))
    written = members["input"]
    return ResponsesRequest(
        model,
        turns,
        items,
        _member(members, "instructions", str, "text", ""),
        ResponseId.read(previous) if previous else None,
        _member(members, "store", bool, "true or false", True),
        _member(members, "stream", bool, "true or false", False),
        _read_sampling(members),
        read_tools(members.get("tools"), members.get("tool_choice")),
        members.get("metadata", {}),
        isinstance(written, list) and any(item.get("type") == "reasoning" for item in written),
    )


def _read_sampling(members: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {name: members[name] for name in _SAMPLING if name in members}
    effort = _member(members, "reasoning", dict, "an object", {}).get("effort")
    if effort is None:
        sampling.pop("reasoning", None)
    else:
        sampling["reasoning"] = effort
    return sampling


def _member(members: Mapping[str, Any], name: str, kind: type, expected: str, default: Any = None) -> Any:
    value = members.get(name, default)
    if not isinstance(value, kind):
        raise refuse(400, f"`{name}`: {expected}", name)
    return value


def read_items(written: Any) -> tuple[list[dict[str, Any]], list[int]]:
    """Return an `input` as messages, and the item that each begins with. Items that are for no LLM are left out.

    Raises:
        AdapterError: an item is of no known type.
    """
    if isinstance(written, str):
        return [{"role": "user", "content": written}], [0]
    if not isinstance(written, list) or not written:
        raise refuse(400, "`input` has to be a text, or a list of items that is not empty.", "input")
    turns: list[dict[str, Any]] = []
    items: list[int] = []
    for index, item in enumerate(written):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        match kind:
            case "message":
                turns.append({name: value for name, value in item.items() if name not in ("type", "id", "status")})
            case "function_call":
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                if turns and "toolCalls" in turns[-1]:
                    turns[-1]["toolCalls"].append(call)
                else:
                    turns.append({"role": "assistant", "toolCalls": [call]})
            case "function_call_output":
                turns.append({"role": "tool", "toolCallId": item.get("call_id"), "content": item.get("output")})
            case "reasoning":
                pass
            case _:
                known = "message, function_call, function_call_output or reasoning"
                text = f"`input[{index}]` can't be sent to an agent: its type is not {known}."
                raise refuse(400, text, f"input[{index}]")
        items += [index] * (len(turns) - len(items))
    return turns, items


# Answers


class Answer:
    """A response as it grows: its items, and the events that a stream brings of them."""

    def __init__(self, request: ResponsesRequest, id: str, stored: bool) -> None:
        self._request = request
        self._id = id
        self._stored = stored
        self._created = int(time.time())
        self._items: list[dict[str, Any]] = []
        self._number = 0
        self.result = RunResult()

    def document(self, status: str, fault: Fault | None = None) -> dict[str, Any]:
        """Return the whole response. Tokens are left out: their details are not known, and may not be left out."""
        error = None if fault is None else {"code": "server_error", "message": fault.message}
        reason = finish_reason(self.result) if status == "incomplete" else ""
        details = {"reason": "max_output_tokens" if reason == "length" else "content_filter"} if reason else None
        request = self._request
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": error,
            "incomplete_details": details,
            "instructions": request.instructions or None,
            "metadata": request.metadata,
            "model": request.model,
            "output": self._items,
            "parallel_tool_calls": True,
            "previous_response_id": str(request.previous) if request.previous else None,
            "store": self._stored,
            "tool_choice": request.tools.members.get("tool_choice", "auto"),
            "tools": request.tools.members.get("tools", []),
            "usage": None,
        }

    def status(self) -> str:
        """Return how the response has ended."""
        return "incomplete" if finish_reason(self.result) in ("length", "content_filter") else "completed"

    def event(self, type: str, **members: Any) -> bytes:
        """Return an event of the stream."""
        data = msgspec.json.encode({"type": type, "sequence_number": self._number, **members})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (type.encode(), data)

    def failed(self, fault: Fault) -> bytes:
        """Return the last event of a run that has failed."""
        return self.event("response.failed", response=self.document("failed", fault))

    def take(self, event: RunEvent) -> Iterator[bytes]:
        """Take an event of the run. Yield what a stream brings of it.

        Raises:
            AdapterError: the run has failed.
        """
        self.result.take(event)
        match event:
            case TextDelta():
                if not self._items or self._items[-1]["status"] != "in_progress":
                    yield from self._begin_text()
                self._part["text"] += event.text
                yield self.event("response.output_text.delta", delta=event.text, logprobs=[], **self._place)
            case ToolResult():  # the cluster ran it, and calls the LLM again
                yield from self._end_text()
            case RunEnded():
                yield from self._end_text()
                for id, call in self.result.calls.items():
                    yield from self._call(id, call["function"])

    @property
    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = self._items[-1]["content"][0]
        return part

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1, "content_index": 0}

    def _begin_text(self) -> Iterator[bytes]:
        item = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "status": "in_progress", "role": "assistant"}
        index = len(self._items)
        yield self.event("response.output_item.added", output_index=index, item={**item, "content": []})
        part = {"type": "output_text", "text": "", "annotations": []}
        self._items.append({**item, "content": [part]})
        yield self.event("response.content_part.added", part=dict(part), **self._place)

    def _end_text(self) -> Iterator[bytes]:
        if not self._items or self._items[-1]["status"] != "in_progress":
            return
        self._items[-1]["status"] = "completed"
        yield self.event("response.output_text.done", text=self._part["text"], logprobs=[], **self._place)
        yield self.event("response.content_part.done", part=self._part, **self._place)
        yield self.event("response.output_item.done", output_index=len(self._items) - 1, item=self._items[-1])

    def _call(self, id: str, call: Mapping[str, Any]) -> Iterator[bytes]:
        item = {"id": f"fc_{secrets.token_hex(12)}", "type": "function_call", "call_id": id, "name": call["name"]}
        arguments = call["arguments"] or "{}"
        place = {"item_id": item["id"], "output_index": len(self._items)}
        added = {**item, "arguments": "", "status": "in_progress"}
        yield self.event("response.output_item.added", output_index=place["output_index"], item=added)
        yield self.event("response.function_call_arguments.delta", delta=arguments, **place)
        yield self.event("response.function_call_arguments.done", name=call["name"], arguments=arguments, **place)
        self._items.append({**item, "arguments": arguments, "status": "completed"})
        yield self.event("response.output_item.done", output_index=place["output_index"], item=self._items[-1])


async def write_stream(run: RunScope, answer: Answer) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response. The last one is completed, incomplete or failed."""
    yield answer.event("response.created", response=answer.document("in_progress"))
    yield answer.event("response.in_progress", response=answer.document("in_progress"))
    try:
        async with run as begun:
            async for event in begun.events():
                for written in answer.take(event):
                    yield written
    except AdapterError as error:
        yield answer.failed(error.fault)
        return
    status = answer.status()
    yield answer.event(f"response.{status}", response=answer.document(status))


# Requests


class Responses:
    """The handlers of the Responses API. place: returns the parts under the settings in effect."""

    def __init__(self, place: Callable[[], Place]) -> None:
        self._place = place

    async def create(self, request: Request) -> Response:
        """Run an agent.

        Raises:
            AdapterError: it is refused, or fails before its answer begins.
        """
        place = self._place()
        body = await read_body(request, place.settings)
        asked = await run_here_if(len(body) <= SMALL_TEXT, read_request, body)
        caller = place.caller(request)
        agent = await place.agents(caller).find(asked.model)
        turns, id, session = await _in_session(place, asked, agent, caller)
        sent, notices = await run_here_if(len(body) <= SMALL_TEXT, _write_input, asked, agent, turns)
        for code in notices:
            place.metrics.notice(code)
        given = RunInput(agent, sent, caller, session, address_of(request))
        answer = Answer(asked, str(id), bool(session.thread))
        beginning = _begin(place, given, asked, len(turns))
        if asked.streams:
            return await answer_stream(
                place, beginning, notices, lambda run: write_stream(run, answer), lambda: answer.failed(INTERNAL_ERROR)
            )
        return await answer_whole(
            request,
            beginning,
            notices,
            lambda event: list(answer.take(event)),
            lambda: answer.document(answer.status()),
        )

    async def show(self, request: Request) -> Response:
        """Show a response that is kept.

        Raises:
            AdapterError: there is none of this id.
        """
        id, agent, conversation = await self._find(request)
        asked = ResponsesRequest(agent.id, [], [], "", None, True, False, {}, NO_TOOLS, {}, False)
        answer = Answer(asked, str(id), True)
        for stored in conversation.messages:
            if stored.turn == id.turn and stored.message.role == "assistant":
                for block in stored.message.content:
                    if isinstance(block.get("text"), str):
                        list(answer.take(TextDelta(block["text"])))
        list(answer.take(RunEnded()))
        return JSONResponse(answer.document("completed"))

    async def delete(self, request: Request) -> Response:
        """Delete a response that is kept, and its session with it: a session without one of its turns would be another.

        Raises:
            AdapterError: there is none of this id, or its session has others.
        """
        id, _, conversation = await self._find(request)
        others = {stored.turn for stored in conversation.messages} - {id.turn}
        path = f"/_plugins/_ml/memory/{conversation.session_id}"
        if others:
            text = (
                f"This response is one of {len(others) + 1} of a conversation, which can only be deleted as a whole: "
                f"DELETE {path} on the gateway's data port."
            )
            raise refuse(400, text, "response_id")
        place = self._place()
        answer = await send_request(place.port, "DELETE", path, place.caller(request).items())
        try:
            body = await answer.read()
        finally:
            answer.close()
        if answer.status != 200:
            raise of_answer(answer.status, body, answer.header("retry-after"))
        return JSONResponse({"id": str(id), "object": "response", "deleted": True})

    async def _find(self, request: Request) -> tuple[ResponseId, AgentProfile, Conversation]:
        """Return the response that a request names, its agent, and the conversation that it is of.

        Raises:
            AdapterError: there is none of this id.
        """
        place = self._place()
        try:
            id = ResponseId.read(request.path_params["id"])
            caller = place.caller(request)
            agent = await place.agents(caller).find_id(id.agent_id)
            return id, agent, await _conversation(place, agent, id, caller)
        except AdapterError as error:
            if error.fault.type != _UNKNOWN:
                raise
            raise AdapterError(
                msgspec.structs.replace(error.fault, type="response_not_found", place="response_id")
            ) from None


async def _refuse_input_items(request: Request) -> Response:
    text = (
        "The items of a response's input are not listed here. The session that has the response shows its messages: "
        "GET /_plugins/_ml/memory/{session}/messages on the gateway's data port."
    )
    raise refuse(400, text, "response_id")


async def _refuse_cancel(request: Request) -> Response:
    text = "Only a response in the background could be cancelled, and none is. To end a run, close its connection."
    raise refuse(400, text, "response_id")


async def _in_session(
    place: Place, asked: ResponsesRequest, agent: AgentProfile, caller: Any
) -> tuple[list[dict[str, Any]], ResponseId, SessionUse]:
    """Return the messages to send, the id of the response, and its session.

    The session adds what it remembers to the messages of its next turn. A response that follows an earlier one than the
    last is sent with all messages up to that one.

    Raises:
        AdapterError: the response before it is not kept.
    """
    remembers = place.remembers(agent)
    before = asked.previous
    if before is None:
        new = ResponseId(agent.id, secrets.token_hex(12), 1)
        thread = _thread(new) if asked.stores and remembers else ""
        return asked.turns, new, SessionUse(thread, inherits_system=False)
    if not remembers:
        text = (
            "The gateway keeps no sessions of this agent. Send the whole conversation as input, or let the operator "
            "set `memory: gateway` in the agent's rule."
        )
        raise refuse(400, text, "previous_response_id")
    conversation = await _conversation(place, agent, before, caller)
    new = ResponseId(agent.id, before.thread, conversation.turns + 1)
    session = SessionUse(_thread(before), inherits_system=False) if asked.stores else SessionUse("")
    if asked.stores and before.turn == conversation.messages[-1].turn:
        return asked.turns, new, session
    turns = [
        {"role": stored.message.role, "content": list(stored.message.content)}
        for stored in conversation.messages
        if stored.turn <= before.turn
    ]
    return [*turns, *asked.turns], new, session


async def _conversation(place: Place, agent: AgentProfile, id: ResponseId, caller: Any) -> Conversation:
    """Return the conversation that a response is of.

    Raises:
        AdapterError: it is not kept.
    """
    try:
        conversation = await place.conversation(agent, _thread(id), caller)
    except GatewayError as error:
        raise of_gateway(error) from None
    if id.agent_id != agent.id or not any(one.turn == id.turn for one in conversation.messages):
        raise _unknown(str(id))
    return conversation


def _thread(id: ResponseId) -> str:
    return f"openai:{id.thread}"


def _write_input(asked: ResponsesRequest, agent: AgentProfile, turns: list[dict[str, Any]]) -> tuple[bytes, list[str]]:
    """Return the body for the data port, and the codes of what is left out."""
    taken: dict[str, Any] = {}
    notices: list[str] = []
    for name, value in asked.sampling.items():
        place = next((one for one in _SAMPLING[name] if takes(agent, one)), "")
        if place:
            taken[place] = value
        else:
            notices = [SAMPLING_LEFT_OUT]
    if asked.tools.left_out:
        notices.append(TOOLS_LEFT_OUT)
    if asked.left_out:
        notices.append(MESSAGES_LEFT_OUT)
    first = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    return msgspec.json.encode({"input": [*first, *turns], **asked.tools.members, "parameters": taken}), notices


async def _begin(place: Place, given: RunInput, asked: ResponsesRequest, sent: int) -> AgentRun:
    """Begin a run. sent: the number of messages without the instructions.

    Raises:
        AdapterError: it is refused; the place is that in the client's own input.
    """
    try:
        return await place.begin(given)
    except AdapterError as error:
        first = sent - len(asked.turns) + bool(asked.instructions)
        raise relocated(error, [*[""] * first, *(f"input[{item}]" for item in asked.items)]) from None


def routes(place: Callable[[], Place]) -> Sequence[Route]:
    """Return the routes of the adapter."""
    api = Responses(place)
    return [
        Route("/v1/responses", answering(api.create, "input"), methods=["POST"]),
        Route("/v1/responses/{id}", answering(api.show, "input"), methods=["GET"]),
        Route("/v1/responses/{id}", answering(api.delete, "input"), methods=["DELETE"]),
        Route("/v1/responses/{id}/input_items", answering(_refuse_input_items), methods=["GET"]),
        Route("/v1/responses/{id}/cancel", answering(_refuse_cancel), methods=["POST"]),
    ]
