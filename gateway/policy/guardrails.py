"""Guardrails: hooks of the operator that see what agents are sent, and may allow, change or refuse it.

What a guardrail is shown of a request or an answer is a document. It has `messages`, each with `role` and `content`,
and the client's `tools` as they were written. A block of `content` has `type`, `place` and the rest by its type;
docs/operate/guardrails.md lists them. Only blocks of type ``text`` can change; the changes are written back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, assert_never

from gateway.codes import Notice
from gateway.config.policy import Guardrail
from gateway.errors import GatewayError, GuardrailRefused, GuardrailUnavailable, Problem
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.policy.hooks import Hook, HookFailed, Verdict
from gateway.unified.model import Base64, ContentBlock, ConverseBlock, Json, Media, Text, ToolResult, ToolUse
from gateway.unified.request import ExecuteRequest, parameters_as_strings

QUESTION = "parameters.question"
_Block = dict[str, Any]
_STEP = re.compile(r'\.?([A-Za-z_][A-Za-z0-9_-]*)|\[(?:(\d+)|("(?:[^"\\]|\\.)*"))\]')


class NoContent(Exception):
    """The content can't be shown. The message says why."""


class Content:
    """A document for guardrails, whose texts may change.

    document: the JSON that is shown. changes: the new texts by place.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.changes: dict[str, str] = {}
        self._texts = {block["place"]: block for block in _blocks(document) if block["type"] == "text"}

    def has_text(self, place: str) -> bool:
        """Return True if the block at `place` is a text."""
        return place in self._texts

    def change(self, place: str, text: str) -> None:
        """Replace the text at `place`."""
        block = self._texts[place]
        if block["text"] != text:
            block["text"] = text
            self.changes[place] = text


def _blocks(document: dict[str, Any]) -> Iterator[_Block]:
    for message in document["messages"]:
        for block in message["content"]:
            yield block
            if block["type"] == "tool_result":
                yield from block["content"]


def input_content(request: ExecuteRequest) -> Content:
    """Return the new input of a request: its `input`, or its `question` as a text.

    Raises:
        NoContent: it has neither, and no other parameter, or its body is not strict JSON.
    """
    if request.input is not None:
        messages = [
            {"role": message.role, "place": message.at, "content": [_block(block) for block in message.content]}
            for message in request.input.messages
        ]
        kind, others = request.input.type.value, _others(request)
        return Content({"type": kind, "messages": messages, "parameters": others, **request.offered})
    if not request.parameters:
        raise NoContent("the body has no `input` and no `parameters`, or is not strict JSON")
    content = []
    if request.has_question:
        question = parameters_as_strings(request.parameters)["question"]
        content = [{"type": "text", "text": question, "place": QUESTION}]
    messages = [{"role": "user", "place": QUESTION, "content": content}] if content else []
    return Content({"type": "question", "messages": messages, "parameters": _others(request)})


def _others(request: ExecuteRequest) -> dict[str, Any]:
    return {name: value for name, value in request.parameters.items() if name != "question"}


def _block(block: ContentBlock | Json) -> _Block:
    match block:
        case Text():
            return {"type": "text", "text": block.text, "place": block.at}
        case Media():
            source: dict[str, Any]
            if isinstance(block.source, Base64):
                source = {"type": "base64", "characters": len(block.source.data)}
            else:
                source = {"type": "url", "url": block.source.url}
            return {"type": block.kind, "format": block.format, "source": source, "place": block.at}
        case ToolUse():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input, "place": block.at}
        case ToolResult():
            content = [_block(part) for part in block.content]
            failed = {"is_error": block.is_error, "content": content, "place": block.at}
            return {"type": "tool_result", "id": block.id, **failed}
        case Json():
            return {"type": "json", "value": block.value, "place": block.at}
        case ConverseBlock():
            return {"type": block.kind, "value": block.value, "place": block.at}
    assert_never(block)


def answer_content(document: Any) -> Content:
    """Return the content of an agent's answer: the blocks of its message, or of its outputs except ids.

    document: the decoded JSON.

    Raises:
        NoContent: it is not an agent's answer, or has no content, such as the answer of a run in the background.
    """
    blocks = list(_answer_blocks(document)) if isinstance(document, dict) else []
    if not blocks:
        raise NoContent("the answer has no content in a known form")
    return Content({"type": "answer", "messages": [{"role": "assistant", "place": "", "content": blocks}]})


def _answer_blocks(document: dict[str, Any]) -> Iterator[_Block]:
    message = document.get("message")
    if isinstance(message, dict) and isinstance(message.get("content"), list):
        for index, block in enumerate(message["content"]):
            place = f"message.content[{index}]"
            if isinstance(block, dict) and isinstance(block.get("text"), str):
                yield {"type": "text", "text": block["text"], "place": place}
            else:
                yield {"type": "json", "value": block, "place": place}
    results = document.get("inference_results")
    for number, result in enumerate(results if isinstance(results, list) else ()):
        outputs = result.get("output") if isinstance(result, dict) else None
        for index, output in enumerate(outputs if isinstance(outputs, list) else ()):
            if isinstance(output, dict) and not str(output.get("name", "")).endswith("_id"):
                yield from _output_blocks(output, f"inference_results[{number}].output[{index}]")


def _output_blocks(output: Mapping[str, Any], place: str) -> Iterator[_Block]:
    if isinstance(output.get("result"), str):
        yield {"type": "text", "text": output["result"], "place": f"{place}.result"}
    data = output.get("dataAsMap")
    if isinstance(data, dict) and isinstance(data.get("response"), str):
        yield {"type": "text", "text": data["response"], "place": f"{place}.dataAsMap.response"}
    elif data is not None:
        yield {"type": "json", "value": data, "place": f"{place}.dataAsMap"}


def write_changes(document: Any, changes: Mapping[str, str]) -> Any:
    """Return the JSON value `document` with new texts at their places. The values on the way are copied."""
    for place, text in changes.items():
        document = _written(document, _path(place), text)
    return document


def _written(value: Any, path: list[str | int], text: str) -> Any:
    if not path:
        return {**value, "text": text} if isinstance(value, dict) and "text" in value else text
    step, *rest = path
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[step] = _written(value[step], rest, text)
    return copy


def _path(place: str) -> list[str | int]:
    """Return the member names and positions in a place such as ``input[1].content[0]``."""
    return [
        int(index) if index else json.loads(quoted) if quoted else name for name, index, quoted in _STEP.findall(place)
    ]


CHANGED = "GUARDRAIL_CHANGED"
_LONGEST_REASON = 500
Checks = list[dict[str, Any]]
"""What hooks did, for the record of an exchange: name, stage, verdict, seconds and code of each."""


class Guardrails:
    """The guardrails of the settings, each with its hook, in their order."""

    def __init__(self, hooks: Sequence[tuple[Guardrail, Hook]], log: Logger, metrics: Metrics) -> None:
        self._hooks = tuple(hooks)
        self._log = log
        self._metrics = metrics

    def for_agent(self, agent_id: str, name: str, route: str = "") -> AgentGuardrails | None:
        """Return the guardrails of an agent; None if there are none. name: "" if it is not known.

        route: the id that the client named, if that has one: its guardrails hold for every target.
        """
        hooks = [one for one in self._hooks if _matches(one[0], agent_id, name) or _matches(one[0], route, "")]
        return AgentGuardrails(hooks, self._log, self._metrics) if hooks else None

    def needs_name(self, agent_id: str) -> bool:
        """Return True if the agent's name may match a guardrail that its id does not; see `Policies.needs_name`."""
        strict = [settings for settings, _ in self._hooks if settings.on_failure == "refuse"]
        return not all(_matches(settings, agent_id, "") for settings in strict)

    async def close(self) -> None:
        """Release what the hooks hold."""
        async with contextlib.AsyncExitStack() as close:
            for _, hook in self._hooks:
                close.push_async_callback(hook.close)


class AgentGuardrails:
    """The guardrails of one request. checks: what they did."""

    def __init__(self, hooks: Sequence[tuple[Guardrail, Hook]], log: Logger, metrics: Metrics) -> None:
        self._hooks = hooks
        self._log = log
        self._metrics = metrics
        self.checks: Checks = []
        self.checks_answers = any(settings.answers for settings, _ in hooks)

    async def check(self, stage: str, about: dict[str, Any], content: Content) -> tuple[Notice, ...]:
        """Show the content to each hook in turn, with what those before it changed. Return a notice for each change.

        stage: input or answer. about: members of the document beside the content.

        Raises:
            GuardrailRefused: a hook refused it. GuardrailUnavailable: a hook failed.
        """
        for settings, hook in self._hooks:
            if stage == "input" or settings.answers:
                await self._check_by(settings, hook, stage, about, content)
        for _ in content.changes:
            self._metrics.notice(CHANGED)
        return tuple(Notice(CHANGED, f"A guardrail changed this text of the {stage}", at) for at in content.changes)

    async def _check_by(
        self, settings: Guardrail, hook: Hook, stage: str, about: dict[str, Any], content: Content
    ) -> None:
        began = time.monotonic()
        document = {"version": 1, "stage": stage, **about, stage: content.document}
        try:
            async with asyncio.timeout(settings.seconds):
                verdict = await hook.judge(document)
            _apply(verdict, content)
        except TimeoutError:
            failure = HookFailed("timeout", f"it gave no verdict within {settings.seconds:g} seconds")
            self._note(settings, stage, "failed", began, failure.code)
            self._fail(settings, stage, failure)
        except HookFailed as failure:
            self._note(settings, stage, "failed", began, failure.code)
            self._fail(settings, stage, failure)
        else:
            self._note(settings, stage, verdict.verdict, began, verdict.code)
            if verdict.verdict == "refuse":
                raise _refusal(settings, stage, verdict)

    def report_unchecked(self, stage: str, reason: str) -> None:
        """Report content that can't be shown to the hooks, as a failure of each. reason: why.

        Raises:
            GuardrailUnavailable: failures of a hook refuse the request.
        """
        for settings, _ in self._hooks:
            if stage == "input" or settings.answers:
                self._note(settings, stage, "failed", time.monotonic(), "invalid")
                self._fail(settings, stage, HookFailed("invalid", reason))

    def require_answer(self) -> None:
        """Refuse a run in the background, whose answer the gateway does not see, if a guardrail checks answers.

        Raises:
            GuardrailRefused: a guardrail checks answers.
        """
        name = next((settings.name for settings, _ in self._hooks if settings.answers), "")
        if name:
            problem = Problem(
                "",
                f"The guardrail {name} checks answers, so this agent can't be run in the background",
                "_execute without async",
                help="Use POST /_plugins/_ml/agents/{id}/_execute.",
            )
            raise GuardrailRefused.of([problem])

    def _note(self, settings: Guardrail, stage: str, verdict: str, began: float, code: str) -> None:
        seconds = time.monotonic() - began
        self._metrics.usage.guardrail(settings.name, stage, verdict)
        self.checks.append(
            {"name": settings.name, "stage": stage, "verdict": verdict, "seconds": round(seconds, 6), "code": code[:64]}
        )

    def _fail(self, settings: Guardrail, stage: str, failure: HookFailed) -> None:
        self._log.error("guardrail failed", tag=settings.name, step=stage, type=failure.code, reason=str(failure))
        if settings.on_failure == "refuse":
            raise unavailable(settings.name, stage)


def unavailable(name: str, stage: str) -> GatewayError:
    """Return the error for content that a guardrail could not check."""
    return GuardrailUnavailable(
        f"The guardrail {name} could not check the {stage}",
        help="Try again later. The operator finds the reason in the log; see policy.guardrails[].on_failure.",
    )


def _apply(verdict: Verdict, content: Content) -> None:
    """Make the changes of a verdict, all or none."""
    if verdict.verdict != "change":
        return
    for new in verdict.texts:
        if not new.text.strip():
            raise HookFailed("invalid", "a new text is blank")
        if not content.has_text(new.place):
            raise HookFailed("invalid", "it changed a place that has no text")
    for new in verdict.texts:
        content.change(new.place, new.text)


def _refusal(settings: Guardrail, stage: str, verdict: Verdict) -> GatewayError:
    reason = verdict.reason[:_LONGEST_REASON] or "no reason given"
    what = f"The guardrail {settings.name} refused the {stage}: {reason}"
    rule = f"{settings.name}/{verdict.code}" if verdict.code else settings.name
    help = "Change what is named and send the request again, or ask the operator of the gateway."
    return GuardrailRefused.of([Problem(verdict.place, what, received=rule, help=help, repeats=reason)])


def _matches(settings: Guardrail, agent_id: str, name: str) -> bool:
    return fnmatchcase(agent_id, settings.agent) or bool(name and fnmatchcase(name, settings.agent))
