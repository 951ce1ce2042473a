"""The LLMs of `tests.delivery.holdout`: their answers, and what they check."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from gateway.simulator.core import ClusterCore
from gateway.simulator.llm import bedrock, cohere, gemini, openai
from gateway.simulator.llm.checks import Refused, a_list, a_text, an_object, need
from gateway.simulator.llm.endpoints import ANSWER, answer_any
from gateway.simulator.predict import LlmReply, LlmRequest


class HoldoutCore(ClusterCore):
    """A cluster whose models may have APIs that no agent of the simulator uses."""

    @property
    def llm(self) -> Callable[[LlmRequest], LlmReply]:
        return self._llm

    @llm.setter
    def llm(self, usual: Callable[[LlmRequest], LlmReply]) -> None:
        self._llm = partial(_answer, usual)


_OTHER_ANSWER = json.dumps(
    {
        "text": ANSWER,
        "generation": ANSWER,
        "generated_text": ANSWER,
        "message": {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
        "choices": [{"text": ANSWER, "message": {"role": "assistant", "content": ANSWER}}],
        "output": {"message": {"role": "assistant", "content": [{"text": ANSWER}]}},
        "candidates": [{"content": {"role": "model", "parts": [{"text": ANSWER}]}}],
    }
)


def _answer(usual: Callable[[LlmRequest], LlmReply], request: LlmRequest) -> LlmReply:
    """Answer a call. usual: answers the APIs that the simulator has, and checks what it receives or not."""
    path = urlsplit(request.url).path
    check = next((check for pattern, check in _OTHERS if re.search(pattern, path)), None)
    if check is None:
        return usual(request)
    if usual is not answer_any:
        try:
            check(json.loads(request.body))
        except (Refused, ValueError) as problem:
            return LlmReply(400, json.dumps({"message": str(problem)}))
    return LlmReply(200, _OTHER_ANSWER)


def _completed(name: str, *others: str) -> Callable[[Any], None]:
    """Return the check of a body with a text to complete, the member `name`."""

    def check(body: Any) -> None:
        need(isinstance(body, dict) and not {*body} - {name, *others}, "body: unknown fields")
        a_text(body.get(name), name)

    return check


def _texts_only(body: Any) -> None:
    """Check a body in OpenAI's format for a model that takes strings only."""
    for message in a_list(an_object(body, "body", {"messages", "max_tokens"})["messages"], "messages"):
        need(isinstance(message.get("content"), str), "messages: content must be a string")
    openai.check_deployment(body)


def _typed(body: Any) -> None:
    """Converse ignores members that it does not know, such as the `type` of a block."""
    for message in body["messages"]:
        for block in message["content"]:
            block.pop("type", None)
    bedrock.check(body)


def _in_any_case(body: Any) -> None:
    """Gemini's members may be written with underscores too."""
    gemini.check({re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in body.items()})


_OTHERS: tuple[tuple[str, Callable[[Any], None]], ...] = (
    (r"claude-sonnet-4-20250514[^/]*/converse$", _typed),
    (r":generateContent$", _in_any_case),
    (r"/(ai21|mistral)\.[^/]*/invoke$", _texts_only),
    (r"/cohere\.[^/]*/invoke$", _completed("message", "chat_history", "preamble", "max_tokens")),
    (r"/(meta|deepseek)\.[^/]*/invoke$", _completed("prompt", "temperature", "max_gen_len")),
    (r"/v1/completions$", _completed("prompt", "model", "max_tokens")),
    (r"/v1/chat$", _completed("message", "model")),
    (r"/v2/chat$|/ask$", cohere.check),
    (r"/api/chat$", openai.check),
    (r"/invocations$", _completed("inputs", "parameters")),
)
