"""Reads an agent's whole answer: text, messages, tokens, the id of the cluster's memory. Pure.

Forms by agent type and version: docs/evidence/facts.md, "Answers and memory".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gateway.memory.model import Block, Message, Metadata, Usage
from gateway.mlcommons.generations import FLOW_TYPES
from gateway.mlcommons.profile import AgentProfile
from gateway.providers import registry
from gateway.providers.base import LlmResponse, Provider, ToolCall
from gateway.providers.responses import count, member, objects, text
from gateway.unified.blocks import NATIVE_KINDS
from gateway.unified.model import MEDIA_KINDS

MEMORY_ID = "memory_id"
"""The output, or the member, with the id of the cluster's memory."""

_FAILED_TOOL = "Failed to run the tool "


class RunAnswer(Struct, frozen=True):
    """What an answer says about the run of an agent.

    text: of the final answer; None if it can't be read, or there is none.
    messages: what the run added to the conversation: calls and results of tools, as far as the answer shows them, then
        the final answer. A message's metadata has the token counts of its own LLM call.
    usage: tokens of all LLM calls of the run; None unless the answer reports them all.
    stop_reason: ``end_turn`` and the like, as V2 agents name it; "" if the answer does not say.
    memory_id: of the cluster's memory, "" for none.
    failed: the answer reports an error, or it is a stream that ends too soon.
    unknown: it has content blocks of a kind that is not known, which are not in `messages`.
    """

    text: str | None = None
    messages: tuple[Message, ...] = ()
    usage: Usage | None = None
    stop_reason: str = ""
    memory_id: str = ""
    failed: bool = False
    unknown: bool = False


def decode(body: bytes | str) -> Any:
    """Return the JSON value in `body`; None if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def assistant(reply: str, uses: Sequence[Block] = (), usage: Usage | None = None) -> tuple[Message, ...]:
    """Return the assistant's message; no message if it would be empty."""
    content = (*([{"text": reply}] if reply else ()), *uses)
    return (Message("assistant", content, Metadata(usage=usage)),) if content else ()


def tool_result(use: Block, output: str) -> Message:
    """Return the message with a tool's output. use: the body of the ``toolUse`` block."""
    status = "error" if output.startswith(f"{_FAILED_TOOL}{use['name']} ") else "success"
    content = [{"text": output}]
    return Message("user", ({"toolResult": {"toolUseId": use["toolUseId"], "status": status, "content": content}},))


def read_answer(profile: AgentProfile, body: bytes) -> RunAnswer:
    """Read the decoded body of an agent's answer. An answer in no known form gives a `RunAnswer` without text."""
    document = decode(body)
    if isinstance(member(document, "message"), dict):
        return _read_unified(document)
    outputs = member(document, "inference_results", 0, "output")
    if isinstance(outputs, list):
        reader = OutputReader(profile, hashlib.sha256(body).hexdigest()[:16])
        return reader.read(list(objects(outputs)))
    # Of a run in the background: {"task_id", "status", "response": {"memory_id"}}
    return RunAnswer(memory_id=text(member(document, "response", MEMORY_ID)))


def _read_unified(document: dict[str, Any]) -> RunAnswer:
    """Read ``{"stop_reason", "message", "memory_id", "metrics"}`` (V2 agents of 3.6 and later)."""
    content = list(objects(member(document, "message", "content")))
    blocks = [block for written in content for block in _known_blocks(written)]
    counts = member(document, "metrics", "total_usage")
    values = [count(member(counts, name)) for name in ("inputTokens", "outputTokens", "totalTokens")]
    usage = Usage(*values) if any(value is not None for value in values) else None
    return RunAnswer(
        text="".join(text(block.get("text")) for block in blocks),
        messages=(Message("assistant", tuple(blocks)),) if blocks else (),
        usage=usage,
        stop_reason=text(document.get("stop_reason")),
        memory_id=text(document.get(MEMORY_ID)),
        unknown=any(_is_unknown(written) for written in content),
    )


def _known_blocks(written: dict[str, Any]) -> Iterator[Block]:
    """Yield the content blocks in a written one, which may have members of the value null."""
    return ({kind: value} for kind, value in written.items() if _is_content(kind, value))


def _is_content(kind: str, value: Any) -> bool:
    match value:
        case str():
            return kind == "text" and bool(value)
        case {"name": str(name)} if kind == "toolUse":
            return bool(name)
        case {"toolUseId": str()} if kind == "toolResult":
            return True
        case {"format": str(), "source": {**source}} if kind in MEDIA_KINDS:
            return bool(source)
        case dict():
            return bool(value) and kind in NATIVE_KINDS
        case _:
            return False


def _is_unknown(written: dict[str, Any]) -> bool:
    """Return True for a block that holds something, of no known kind."""
    return any(written.values()) and not any(_known_blocks(written))


TOKEN_USAGE = "token_usage"
"""The output with the tokens of the run, in answers of 3.6 and later to requests with `include_token_usage`."""
_NO_ANSWER = frozenset(
    {
        MEMORY_ID,
        "parent_interaction_id",
        "parent_message_id",
        "executor_agent_memory_id",
        "executor_agent_parent_interaction_id",
        TOKEN_USAGE,
    }
)
"""Names of the outputs that are no part of the answer."""
_AT_LIMIT = re.compile(
    r"Agent reached maximum iterations \(\d+\) without completing the task|Max Steps Limit \(\d+\) Reached"
)
"""How the answer of a conversational agent, and of a planner, begins that was stopped (3.6.0)."""
_OUTPUT = ".output"
_CACHE_APART = frozenset({"bedrock/converse"})


class OutputReader:
    """Reads the outputs of one legacy answer.

    seed: a text that no other answer has; ids of tool calls are made from it where the provider gave none.
    """

    def __init__(self, profile: AgentProfile, seed: str) -> None:
        self._profile = profile
        self._providers = _providers(profile)
        self._seed = seed
        self._calls = 0

    def read(self, outputs: Sequence[dict[str, Any]]) -> RunAnswer:
        """Read ``inference_results[0].output``."""
        memory_id = next((text(one.get("result")) for one in outputs if one.get("name") == MEMORY_ID), "")
        shown = [one for one in outputs if self._is_answer(one)]
        reported = self.token_usage(outputs)
        values = [value for one in shown if (value := _value(one)) is not None]
        if not values:
            return RunAnswer(usage=reported, memory_id=memory_id)
        reply, steps = values[-1], () if self._profile.agent_type in FLOW_TYPES else values[:-1]
        messages = [*self.steps(steps), *self._tool_outputs(member(shown[-1], "dataAsMap", "additional_info"))]
        response = None if self._profile.filters_response else self.response(reply)
        if response is None:
            reason = "max_iterations" if _AT_LIMIT.match(reply) else ""
            return RunAnswer(reply, (*messages, *assistant(reply)), reported, reason, memory_id)
        final = assistant(response.text, self.tool_uses(response.tool_calls), _usage(response))
        whole_run = self._profile.agent_type in FLOW_TYPES and len(self._profile.models) == 1
        return RunAnswer(
            response.text,
            (*messages, *final),
            reported or (_usage(response) if whole_run else None),
            response.stop_reason,
            memory_id,
        )

    def _is_answer(self, output: dict[str, Any]) -> bool:
        """Return True for a part of the answer. Without its name (`filter_path`), a `result` may be an id."""
        name = text(output.get("name"))
        if not name and self._profile.agent_type not in FLOW_TYPES:
            return "dataAsMap" in output
        return name not in _NO_ANSWER

    def token_usage(self, outputs: Iterable[dict[str, Any]]) -> Usage | None:
        """Read the output `token_usage`: ``{"per_model_usage": [{"input_tokens", "output_tokens", …}, …]}``."""
        found = [member(one, "dataAsMap", "per_model_usage") for one in outputs if one.get("name") == TOKEN_USAGE]
        models = list(objects(found[0])) if found else []
        return _sum_models(models, self._profile.provider) if models else None

    def steps(self, values: Sequence[str]) -> list[Message]:
        """Read the steps of an agent with `verbose`: the LLM's answer, the tool's output, and again.

        The cluster runs the first call of an answer, so any others are left out.
        """
        messages: list[Message] = []
        for reply, output in zip(values[::2], values[1::2], strict=False):
            response = self.response(reply)
            calls = response.tool_calls if response is not None else self._react_call(reply)
            use = self.tool_uses(calls[:1])
            if use:
                shown, usage = (response.text, _usage(response)) if response is not None else ("", None)
                messages += [*assistant(shown, use, usage), tool_result(use[0]["toolUse"], output)]
        return messages

    def response(self, reply: str) -> LlmResponse | None:
        """Read an LLM's whole response; None for any other text."""
        document = decode(reply) if reply.startswith("{") else None
        if not isinstance(document, dict):
            return None
        found = (provider.read_response(document) for provider in self._providers)
        return next((response for response in found if response is not None), None)

    def _react_call(self, reply: str) -> tuple[ToolCall, ...]:
        """Read ``{"thought", "action", "action_input"}``. An agent runs the first tool whose name the action holds."""
        document = decode(reply)
        action = text(member(document, "action"))
        if not action:
            return ()
        names = (tool.key for tool in self._profile.tools)
        name = next((name for name in names if name.lower() in action.lower()), action)
        return (ToolCall("", name, member(document, "action_input")),)

    def _tool_outputs(self, info: Any) -> list[Message]:
        """Read ``{"<tool>.output": [text, …]}``. What the tools were called with is not known."""
        if not isinstance(info, dict):
            return []
        uses: list[Block] = []
        results: list[Block] = []
        for name, outputs in info.items():
            for output in outputs if isinstance(outputs, list) and name.endswith(_OUTPUT) else ():
                uses += self.tool_uses([ToolCall("", name.removesuffix(_OUTPUT) or _OUTPUT, {})])
                results += tool_result(uses[-1]["toolUse"], _as_text(output)).content
        unknown = Metadata(extra={"tool_input": "unknown"})
        return [Message("assistant", tuple(uses), unknown), Message("user", tuple(results))] if uses else []

    def tool_uses(self, calls: Iterable[ToolCall]) -> list[Block]:
        """Return a ``toolUse`` block for each call that names a tool."""
        return [
            {
                "toolUse": {
                    "toolUseId": self._id(call),
                    "name": call.name,
                    "input": _input(call),
                    **signed(call.signature),
                }
            }
            for call in calls
            if call.name
        ]

    def _id(self, call: ToolCall) -> str:
        self._calls += 1
        return call.id or f"gw_{self._seed}_{self._calls}"


def signed(signature: str) -> dict[str, str]:
    """Return the member of a ``toolUse`` that holds a call's signature, as Strands names it; none for ""."""
    return {"reasoningSignature": signature} if signature else {}


def _value(output: dict[str, Any]) -> str | None:
    """Return what an output shows: its `result`, or the `response` in its `dataAsMap`."""
    data = output.get("dataAsMap")
    value = data.get("response", data) if isinstance(data, dict) else output.get("result")
    return None if value is None else _as_text(value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _input(call: ToolCall) -> dict[str, Any]:
    """Return the input as an object, which a ``toolUse`` needs. A ReAct agent's may be JSON text."""
    value = decode(call.input) if isinstance(call.input, str) else call.input
    if isinstance(value, dict):
        return value
    return {} if call.input in (None, "") else {"input": call.input}


def _usage(response: LlmResponse) -> Usage | None:
    counts = response.usage
    if counts is None:
        return None
    return Usage(counts.input_tokens, counts.output_tokens, counts.input_tokens + counts.output_tokens)


def _sum_models(models: Sequence[dict[str, Any]], provider: str) -> Usage | None:
    """Return the sum over the models of a run; None unless each has its input and output.

    Bedrock's `input_tokens` does not count cached tokens (docs/evidence/facts.md, "Token usage").
    """
    cached = ("cache_read_input_tokens", "cache_creation_input_tokens") if provider in _CACHE_APART else ()
    read, written = 0, 0
    for counts in models:
        own, output = count(counts.get("input_tokens")), count(counts.get("output_tokens"))
        if own is None or output is None:
            return None
        read += own + sum(count(counts.get(name)) or 0 for name in cached)
        written += output
    return Usage(read, written, read + written)


def _providers(profile: AgentProfile) -> Sequence[Provider]:
    """Return the provider of the agent, or all of them if it is not known."""
    known = {provider.name: provider for provider in registry.providers()}
    return [known[profile.provider]] if profile.provider in known else list(known.values())
