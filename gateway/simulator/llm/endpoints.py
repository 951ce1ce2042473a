"""All endpoints: the provider of a path, its answers, and the requests received."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from gateway.simulator.llm import anthropic, bedrock, cohere, gemini, openai
from gateway.simulator.llm.checks import Refused
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.simulator.prompts import RESPONSE_FORMAT

ANSWER = "This is the simulated model's answer."
# A planner's model is asked for JSON, so that is what it gets.
PLAN = json.dumps({"steps": [], "result": ANSWER})

_MODEL = re.compile(r"/model/([^/]+)/")
_FAIL = re.compile(r"/(?:fail|status)/(\d{3})(?:/|$)")
_SLOW = re.compile(r"/slow/(\d+)(?:/|$)")
_FAIL_WORD = re.compile(r"FAIL(4\d\d|5\d\d)")


@dataclass(frozen=True)
class Call:
    """A scripted answer that calls a tool."""

    tool: str
    arguments: Mapping[str, Any]
    text: str = "Let me look that up."
    id: str = "call-1"


@dataclass(frozen=True)
class Reply:
    """A scripted answer as it goes over the wire."""

    status: int
    body: str


Script = str | Call | Reply


@dataclass(frozen=True)
class Provider:
    """How one provider checks a body, answers, calls a tool, and fails."""

    name: str
    check: Callable[[Any], None]
    answer: Callable[[str], dict[str, Any]]
    tool_call: Callable[[str, str, dict[str, Any], str], dict[str, Any]]
    error: Callable[[int, str], str]


_CONVERSE = Provider("bedrock", bedrock.check, bedrock.answer, bedrock.tool_call, bedrock.error)
_OPENAI = Provider("openai", openai.check, openai.answer, openai.tool_call, openai.error)
_AZURE = replace(_OPENAI, check=openai.check_deployment)
_ANTHROPIC = Provider("anthropic", anthropic.check, anthropic.answer, anthropic.tool_call, anthropic.error)
_COHERE = Provider("cohere", cohere.check, cohere.answer, cohere.tool_call, cohere.error)
_GEMINI = Provider("gemini", gemini.check, gemini.answer, gemini.tool_call, gemini.error)


def provider_of(path: str, body: Any = None) -> Provider | None:
    """Return the provider whose API `path` is. InvokeModel answers in the shape of the request's `body`."""
    model = _MODEL.search(path)
    name = unquote(model[1]) if model else ""
    if path.endswith("/converse"):
        return replace(_CONVERSE, check=partial(bedrock.check, model=name))
    if path.endswith("/chat/completions"):
        return _AZURE if "/openai/deployments/" in path else _OPENAI
    if path.endswith("/v1/messages"):
        return _ANTHROPIC
    if path.endswith("/v2/chat"):
        return _COHERE
    if path.endswith(":generateContent"):
        return _GEMINI
    if path.endswith("/invoke") and bedrock.is_nova(name):
        return replace(_CONVERSE, check=partial(bedrock.check_nova, model=name))
    if path.endswith("/invoke"):

        def invoke(text: str) -> dict[str, Any]:
            return bedrock.invoke_answer(text, body)

        check = partial(bedrock.check_invoke, model=name)
        return Provider("bedrock", check, invoke, anthropic.tool_call, bedrock.error)
    return None


def answer_any(request: LlmRequest) -> LlmReply:
    """Answer any call with the same text, in the shape of the provider that its URL names; check nothing."""
    parsed = _json(request.body)
    provider = provider_of(urlsplit(request.url).path, parsed)
    if provider is None:
        return LlmReply(404, json.dumps({"message": f"no such endpoint: {request.url}"}))
    return LlmReply(200, _worded(provider.answer(_unscripted(request)), parsed))


def _unscripted(request: LlmRequest) -> str:
    return PLAN if RESPONSE_FORMAT in request.body else ANSWER


def slowness(path: str) -> int:
    """Return how many seconds the model at `path` takes to answer."""
    slow = _SLOW.search(path)
    return int(slow.group(1)) if slow else 0


class LlmEndpoints:
    """All endpoints of a simulated cluster: they record every body, check it when `strict`, and follow a script."""

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self.received: list[Any] = []
        """Every body received, in order: parsed, or the text when it is no JSON."""
        self.requests: list[LlmRequest] = []
        self._script: deque[Script] = deque()

    def script(self, answers: Iterable[Script]) -> None:
        """Queue the next answers; when the queue is empty, a fixed text is answered."""
        self._script.extend(answers)

    def clear(self) -> None:
        """Drop the requests received and the answers queued."""
        self.received.clear()
        self.requests.clear()
        self._script.clear()

    def __call__(self, request: LlmRequest) -> LlmReply:
        """Answer one call.

        The path may ask for a failure: ``/fail/429/…`` (also ``/status/…``), ``/garbage/…``, ``/empty/…``, and
        ``/slow/6/…``, which a connector with a shorter `read_timeout` doesn't wait for. So may the text: FAIL503.
        """
        path = urlsplit(request.url).path
        parsed = _json(request.body)
        self.requests.append(request)
        self.received.append(request.body if parsed is None else parsed)
        provider = provider_of(path, parsed)
        if slowness(path) > request.timeout:
            return LlmReply(0, "", failure="Read timed out")
        if "/garbage/" in path:
            return LlmReply(200, "plain text, no JSON")
        if "/empty/" in path:
            return LlmReply(200, "{}")
        failing = _FAIL.search(path) or _FAIL_WORD.search(request.body)
        if failing:
            status = int(failing.group(1))
            return LlmReply(status, (provider or _CONVERSE).error(status, f"simulated failure {status}"))
        if provider is None:
            return LlmReply(404, json.dumps({"message": f"no such endpoint: {path}"}))
        return self._answer(provider, parsed, request)

    def _answer(self, provider: Provider, parsed: Any, request: LlmRequest) -> LlmReply:
        if self.strict:
            try:
                provider.check(parsed)
            except Refused as problem:
                return LlmReply(400, provider.error(400, str(problem)))
        scripted = self._script.popleft() if self._script else _unscripted(request)
        match scripted:
            case Reply(status, body):
                return LlmReply(status, body)
            case Call(tool, arguments, text, call_id):
                return LlmReply(200, _worded(provider.tool_call(text, tool, dict(arguments), call_id), parsed))
            case _:
                return LlmReply(200, _worded(provider.answer(scripted), parsed))


def _worded(answer: dict[str, Any], request: Any) -> str:
    """Return the body of an answer: an event stream if an OpenAI request asks for one."""
    is_streamed = isinstance(request, dict) and request.get("stream") is True and "choices" in answer
    return openai.as_stream(answer) if is_streamed else json.dumps(answer)


def _json(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
