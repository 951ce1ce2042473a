"""OpenAI's chat completions and list of models. The model that a client names is the agent.

What each member of a request means, and which are refused: docs/reference/openai.md.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.adapters.agents import Agent
from gateway.adapters.errors import INTERNAL_ERROR, AdapterError, refuse
from gateway.adapters.openai_common import (
    SAMPLING_LEFT_OUT,
    TOOLS_LEFT_OUT,
    ClientTools,
    answer_stream,
    answer_whole,
    answering,
    check_members,
    frame,
    read_tools,
    takes,
    write_error,
)
from gateway.adapters.requests import Place, RunScope, address_of, plain, read_body, read_members
from gateway.adapters.run import RunInput, RunResult
from gateway.execute.run_events import TextDelta
from gateway.memory.model import Usage
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.ports import SessionUse
from gateway.unified.limits import SMALL_TEXT

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
    """The routes of OpenAI's API. place: returns the parts under the settings in effect."""

    def __init__(self, place: Callable[[], Place]) -> None:
        self._place = place

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return [
            Route("/v1/chat/completions", answering(self.complete), methods=["POST"]),
            Route("/v1/models", answering(self.models), methods=["GET"]),
            Route("/v1/models/{model:path}", answering(self.model), methods=["GET"]),
        ]

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
    return OpenAI(place).routes()
