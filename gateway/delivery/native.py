"""The `input` for a V2 agent, which takes all of it itself (`conversational_v2`, 3.6 and later).

The cluster checks little of it, and drops or spoils parts in silence (docs/evidence/facts.md, "conversational_v2"). So
the conversation is mapped as for any other agent, and written so that the cluster makes exactly the mapped turns of it.
What the cluster will send is rendered and compared before anything is sent.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.codes import Notice
from gateway.delivery.escaping import is_plain, split_placeholders
from gateway.delivery.question_placements import SKIP, Parameters, skip_if_needed
from gateway.delivery.search import MEMORY_HOLDS_CODE, map_input
from gateway.delivery.system_text import fold_system
from gateway.delivery.tool_slot import tools_as_text
from gateway.delivery.trees import locate, replace_texts, with_leaves
from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.agents import conversational_v2
from gateway.mlcommons.agents.conversational_v2 import BEDROCK, OPENAI
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.memory_form import is_storable, memory_form
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.rendering import first_call
from gateway.mlcommons.template import PREFIX, RuntimeValues
from gateway.providers import registry
from gateway.providers.base import Inexpressible, MappingOptions, Provider, ProviderRequest
from gateway.providers.capabilities import NEUTRAL_CALL_TEXT, TOOL_ERROR_TEXT
from gateway.unified.model import (
    AgentInput,
    ContentBlock,
    InputType,
    Json,
    Media,
    Message,
    Text,
    ToolResult,
    ToolUse,
    Url,
)

GUARDS: Parameters = {
    **{"gw_d": "$", "gw_d2": "$$", "gw_d3": "$$$", SKIP: "true"},
    **dict.fromkeys(("gw_s0", "gw_q"), "[media]"),
}
"""Helpers of earlier versions of the gateway, whose names an agent's memory may replay."""

_OTHER_TYPE = "use an agent of type conversational, whose requests the gateway writes"
_SYSTEM_PROMPT = "system_prompt"
_DOCUMENT = "document"
"""The name that the cluster gives every document."""
_WORD, _TURN = "gwsystemtext", "gwturntext"
"""Words in place of the system text and of the conversation, to see where the template puts them."""


class NativeInput(msgspec.Struct, frozen=True):
    """What is sent. value: the request's `input`. parameters: to add to the request's. request: the mapping."""

    value: Any
    parameters: Parameters
    request: ProviderRequest
    notices: tuple[Notice, ...]


def write_native(
    profile: AgentProfile, agent_input: AgentInput, params: Mapping[str, str], options: MappingOptions, turn_id: str
) -> NativeInput:
    """Return the `input` of which the cluster makes the provider's turns of this conversation.

    params: the caller's own, without `question`. turn_id: see `gateway.delivery.plan.plan`.

    Raises:
        UndeliverableContent: the provider or the cluster has no form for a part, or the agent can't be called.
    """
    provider = _v2_provider(profile)
    _refuse_documents(profile, agent_input)
    prepared, notices = _prepared(agent_input, profile.provider)
    _mapped(provider, agent_input, prepared, options)  # or the first refusal would be that of a later form
    agent = _Agent(profile, provider, params, turn_id)
    agent.check()
    for form, noticed in _forms(prepared, options.roles):
        request = _mapped(provider, agent_input, form, options)
        if (found := agent.deliver(form, request)) is not None:
            more = (*request.notices, *notices, *noticed, *found.notices)
            return replace(found, notices=tuple({(notice.code, notice.place): notice for notice in more}.values()))
    raise UndeliverableContent.of(list(_undeliverable(agent_input, options)))


def _v2_provider(profile: AgentProfile) -> Provider:
    """Return the agent's provider with what the cluster's own messages can carry."""
    found = registry.provider(profile.provider)
    limits = found.cluster.v2 if found.cluster is not None else None
    assert limits is not None, "refused by the cluster's limits"
    limited = copy.copy(found)
    limited.capabilities = limits
    return limited


def _forms(agent_input: AgentInput, roles: Mapping[str, str]) -> Iterator[tuple[AgentInput, tuple[Notice, ...]]]:
    """Yield the conversation, then with tools as text, then each with its system text in the first user turn."""
    conversations: list[tuple[AgentInput, tuple[Notice, ...]]] = [(agent_input, ())]
    if folded := fold_system(agent_input, roles):
        conversations.append((folded[0], (folded[1],)))
    for conversation, notices in conversations:
        yield conversation, notices
        if written := tools_as_text(conversation, roles):
            yield written[0], (*written[1], *notices)


def _mapped(provider: Provider, agent_input: AgentInput, form: AgentInput, options: MappingOptions) -> ProviderRequest:
    """Return the provider's mapping of `form`.

    Raises:
        UndeliverableContent: it can't be expressed. Where only this type of agent is the reason, the problem says so.
    """
    try:
        return map_input(provider, form, options)
    except UndeliverableContent as error:
        usual = _usual_problems(registry.provider(provider.name), agent_input, options)
        problems = [usual.get((problem.place, problem.code)) or _advised(problem) for problem in error.problems]
        raise UndeliverableContent.of(problems) from None


def _usual_problems(
    provider: Provider, agent_input: AgentInput, options: MappingOptions
) -> dict[tuple[str, str], Problem]:
    try:
        provider.map(agent_input, options)
    except Inexpressible as error:
        return {(problem.place, problem.code): problem for problem in error.problems}
    return {}


def _advised(problem: Problem) -> Problem:
    is_kind = problem.code in ("MEDIA_KIND_UNSUPPORTED", "NATIVE_BLOCK_UNSUPPORTED")
    help = _sentence(_OTHER_TYPE) if is_kind else f"{problem.help.removesuffix('.')}, or {_OTHER_TYPE}."
    return replace(problem, help=help)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _refuse_documents(profile: AgentProfile, agent_input: AgentInput) -> None:
    """Refuse a second document on Bedrock, where all get the same name.

    Raises:
        UndeliverableContent: there is one (COMBINATION_NOT_DELIVERABLE).
    """
    documents = [block for block in agent_input.media if block.kind == "document"]
    if profile.provider != conversational_v2.BEDROCK or len(documents) < 2:
        return
    reason = "the cluster gives every document of these agents one name, and Bedrock refuses two of the same name"
    raise UndeliverableContent.of(
        [
            Problem(block.at, reason, "one document", "another one", "COMBINATION_NOT_DELIVERABLE", _OTHER_TYPE)
            for block in documents[1:]
        ]
    )


# Before the mapping


def _prepared(agent_input: AgentInput, provider: str) -> tuple[AgentInput, tuple[Notice, ...]]:
    """Return the conversation without what the cluster can't write in the form of the mapping, and what was changed.

    - On Bedrock, a tool's result is one text, as only its first part is sent, and documents have the cluster's name.
    - On OpenAI, a turn of calls alone gets a text: its content is always a list, and OpenAI refuses an empty one.
    """
    notices = [Notice("IMAGE_DETAIL_LEFT_OUT", _NO_DETAIL, block.at) for block in agent_input.media if block.detail]
    change = _for_bedrock if provider == conversational_v2.BEDROCK else _for_openai
    messages = tuple(change(_without_detail(message), notices) for message in agent_input.messages)
    return replace(agent_input, messages=messages), tuple(notices)


_NO_DETAIL = 'the cluster sends images to the LLM without their "detail"'


def _without_detail(message: Message) -> Message:
    def plain(block: ContentBlock) -> ContentBlock:
        return replace(block, detail="") if isinstance(block, Media) and block.detail else block

    return replace(message, content=tuple(map(plain, message.content)))


def _for_bedrock(message: Message, notices: list[Notice]) -> Message:
    return replace(message, content=tuple(_for_bedrock_block(block, notices) for block in message.content))


def _for_bedrock_block(block: ContentBlock, notices: list[Notice]) -> ContentBlock:
    match block:
        case ToolResult():
            return _one_text(block, notices)
        case Media():
            return _named_by_the_cluster(block, notices)
    return block


def _one_text(result: ToolResult, notices: list[Notice]) -> ToolResult:
    """Return a tool's result with all that is text in one, which begins with a mark if the tool failed."""
    texts: list[str] = []
    others: list[Text | Json | Media] = []
    for part in result.content:
        match part:
            case Text(text=text) if text.strip():
                texts.append(text)
            case Json(value=value, at=at):
                texts.append(json.dumps(value, ensure_ascii=False))
                notices.append(Notice("TOOL_RESULT_STRINGIFIED", "The JSON value is sent as text", at))
            case Media():
                others.append(_named_by_the_cluster(part, notices))
            case _:
                others.append(part)  # blank text, which the mapping drops
    if result.is_error:
        texts.insert(0, TOOL_ERROR_TEXT)
        reason = "A text before the output states that the tool failed"
        notices.append(Notice("TOOL_ERROR_MARKED", reason, result.at))
    if len(texts) > 1:
        reason = "the texts of the tool's result arrive as one, joined by newlines"
        notices.append(Notice("TEXT_JOINED", reason, result.at))
    joined = [Text("\n".join(texts), result.at)] if texts else []
    return replace(result, content=(*joined, *others), is_error=False)


def _named_by_the_cluster(block: Media, notices: list[Notice]) -> Media:
    if block.kind != "document":
        return block
    if block.name not in (None, _DOCUMENT):
        notices.append(Notice("DOCUMENT_NAME_DROPPED", "the cluster takes documents without their names", block.at))
    return replace(block, name=_DOCUMENT)


def _for_openai(message: Message, notices: list[Notice]) -> Message:
    calls = [block for block in message.content if isinstance(block, ToolUse)]
    others = [block for block in message.content if not isinstance(block, ToolUse)]
    if not calls or any(not isinstance(block, Text) or block.text.strip() for block in others):
        return message
    notices.append(Notice("NEUTRAL_TEXT_ADDED", "A text is added: the turn holds tool calls alone", message.at))
    return replace(message, content=(Text(NEUTRAL_CALL_TEXT, message.at), *message.content))


# The proof


class _Agent(msgspec.Struct, frozen=True):
    """The agent that a conversation is written for. params, turn_id: see `write_native`."""

    profile: AgentProfile
    provider: Provider
    params: Mapping[str, str]
    turn_id: str

    def check(self) -> None:
        """Check that the agent can be called at all.

        Raises:
            UndeliverableContent: it can't (AGENT_NOT_CALLABLE).
        """
        try:
            self._usual_call({})
        except RenderFailure as failure:
            with_these = " with these parameters" if self.params else ""
            reason = f"this agent can't be called{with_these}, not even with plain text: {failure}"
            help = "correct the connector of the agent's model, or register the agent again"
            problem = Problem(f"agents/{self.profile.id}", reason, code="AGENT_NOT_CALLABLE", help=help)
            raise UndeliverableContent.of([problem]) from None

    def deliver(self, form: AgentInput, request: ProviderRequest) -> NativeInput | None:
        """Return what to send; None if the cluster would not make the turns of `request` of it."""
        formats = {block.source.url: block.format for block in form.media if isinstance(block.source, Url)}
        messages = as_cluster_messages(self.profile.provider, request.messages, formats)
        value, helpers = guard(messages, self.turn_id)
        system = "\n\n".join(request.system)
        prompt = self._system_prompt(system) if system else {}
        if not self._arrives(request, value, system, {**prompt, **helpers}):
            return None
        notices = (MEMORY_HOLDS_CODE,) if helpers else ()
        return NativeInput(_in_shape(form, value), {**prompt, **helpers}, request, notices)

    def _system_prompt(self, system: str) -> Parameters:
        text, helpers = _in_parts(system, "gw_y")
        return {_SYSTEM_PROMPT: self._after_own(text), **helpers}

    def _after_own(self, text: str) -> str:
        own = self.params.get(_SYSTEM_PROMPT, self.profile.parameters.get(_SYSTEM_PROMPT, ""))
        return f"{own}\n\n{text}" if own else text

    def _arrives(self, request: ProviderRequest, messages: list[Written], system: str, parameters: Parameters) -> bool:
        """Return True if the LLM gets the turns and the system text of `request`, and else what it always gets."""
        field, canonical = self.provider.messages_field, self.provider.canonical
        words: Parameters = {_SYSTEM_PROMPT: self._after_own(_WORD)} if system else {}
        try:
            usual, body = self._usual_call(words), self._call(parameters, messages)
        except RenderFailure:
            return False
        if system and not any(locate(usual, _WORD)):
            return False
        turn = next(at for at, turn in enumerate(usual[field]) if any(locate(turn, _TURN)))
        turns = [*usual[field][:turn], *request.messages, *usual[field][turn + 1 :]]
        expected = replace_texts({**usual, field: []}, {_WORD: system})
        needs_tools = self.provider.needs_declarations and self.provider.called_tools(turns)
        lacks_tools = needs_tools and not _declares_tools(body, self.provider)
        return not lacks_tools and {**body, field: []} == expected and canonical(body[field]) == canonical(turns)

    def _usual_call(self, parameters: Parameters) -> dict[str, Any]:
        """Return the agent's call for a turn of one word.

        Raises:
            RenderFailure: it can't be called.
        """
        body = self._call(parameters, [{"role": "user", "content": [{"type": "text", "text": _TURN}]}])
        turns = body.get(self.provider.messages_field) if isinstance(body, dict) else None
        if not isinstance(turns, list) or not any(locate(turns, _TURN)):
            raise RenderFailure("its connector's template does not take the agent's messages")
        assert isinstance(body, dict)
        return body

    def _call(self, parameters: Parameters, messages: list[Written]) -> Any:
        body = conversational_v2.render(self.profile.provider, messages)
        return first_call(self.profile, {**self.params, **parameters, "body": body}, RuntimeValues())


def _declares_tools(body: Mapping[str, Any], provider: Provider) -> bool:
    declared = body.get(provider.tools_member)
    return isinstance(declared, dict) and bool(declared.get("tools"))


def _in_shape(agent_input: AgentInput, messages: list[Written]) -> Any:
    """Return the messages as the client wrote its input, where that is possible: a text, or a list of blocks."""
    if agent_input.type is InputType.MESSAGES or len(messages) > 1 or messages[0].keys() != {"role", "content"}:
        return messages
    content = messages[0]["content"]
    if agent_input.type is InputType.TEXT and len(content) == 1:
        return content[0]["text"]
    return content


def _undeliverable(agent_input: AgentInput, options: MappingOptions) -> Iterator[Problem]:
    """Yield the parts that the cluster would change, after no form was found."""
    results = [block for message in agent_input.messages for block in message.content if isinstance(block, ToolResult)]
    media = [part for result in results for part in result.content if isinstance(part, Media)]
    for part in media:
        reason = "the cluster sends the first part of a tool's result only, and no other block in its turn"
        help = f"Let the tool return text, or {_OTHER_TYPE}."
        code = "TOOL_RESULT_CONTENT_UNSUPPORTED"
        yield Problem(part.at, reason, "text, or this part alone", part.kind, code, help)
    if not media:
        reason = "the cluster has no form for this conversation in which nothing is lost"
        yield Problem("input", reason, code="COMBINATION_NOT_DELIVERABLE", help=_sentence(_OTHER_TYPE))


# Placeholders in texts


def _in_parts(text: str, name: str) -> tuple[str, Parameters]:
    """Return `text` for a parameter that the cluster fills once and escapes, and the helpers that it refers to."""
    if is_plain(text):
        return text, {}
    helpers = {f"{name}{index}": part for index, part in enumerate(split_placeholders(text))}
    return "".join(f"{PREFIX}{name}}}" for name in helpers), {**helpers, **skip_if_needed(text)}


def guard(messages: list[Written], turn_id: str) -> tuple[list[Written], Parameters]:
    """Replace each text that memory can't hold by the form that it can; return the messages with the helpers.

    The arguments of a tool call are JSON text, which the cluster inserts as JSON (Bedrock) or as a string in it
    (OpenAI). They need no helper: with each ``$`` written ``\\u0024`` they are the same JSON without a placeholder.
    """
    helpers: Parameters = {}
    names = (f"gw_{turn_id}x{number}" for number in itertools.count())

    def store(leaf: Any) -> Any:
        if not isinstance(leaf, str) or is_storable(leaf):
            return leaf
        name = next(names)
        text, parts = _in_parts(leaf, f"{name}_")
        helpers.update({name: text, **parts, **skip_if_needed(leaf)})
        return f"$${memory_form(name, leaf)}"  # the agent substitutes each text twice itself, without any parameters

    guarded = [with_leaves(_escape_arguments(message), store) for message in messages]
    return guarded, helpers


def _escape_arguments(message: Written) -> Written:
    """Return a message with ``\\u0024`` for each ``$`` in the arguments of its tool calls."""
    calls = [_escape_call(call) for call in message.get("toolCalls", ())]
    return {**message, "toolCalls": calls} if calls else message


def _escape_call(call: Written) -> Written:
    function = call["function"]
    if is_storable(function["arguments"]):
        return call
    return {**call, "function": {**function, "arguments": function["arguments"].replace("$", "\\u0024")}}


Turn = Mapping[str, Any]
Written = dict[str, Any]
"""A message of an `input` in the cluster's own spelling."""


def as_cluster_messages(provider: str, turns: Iterable[Turn], formats: Mapping[str, str]) -> list[Written]:
    """Return the messages of an `input` for a provider's turns.

    provider: ``BEDROCK`` or ``OPENAI``. formats: the format of each image by URL, which OpenAI's turns don't have.
    """
    if provider == BEDROCK:
        return [message for turn in turns for message in _of_bedrock(turn)]
    assert provider == OPENAI
    return [_of_openai(turn, formats) for turn in turns]


def _of_bedrock(turn: Turn) -> Iterator[Written]:
    """Yield a message for each tool's result, and one for the rest."""
    content: list[Written] = []
    calls: list[Written] = []
    for part in turn["content"]:
        match part:
            case {"toolResult": {"toolUseId": id, "content": parts}}:
                yield {"role": "tool", "toolCallId": id, "content": [_of_bedrock_part(one) for one in parts]}
            case {"toolUse": {"toolUseId": id, "name": name, "input": value}}:
                calls.append(_call(id, name, json.dumps(value, ensure_ascii=False, separators=(",", ":"))))
            case _:
                content.append(_of_bedrock_part(part))
    if content or calls:
        yield _message(turn["role"], content, calls)


def _of_bedrock_part(part: Turn) -> Written:
    ((kind, value),) = part.items()
    if kind == "text":
        return _text(value)
    return {"type": kind, "source": {"type": "base64", "format": value["format"], "data": value["source"]["bytes"]}}


def _of_openai(turn: Turn, formats: Mapping[str, str]) -> Written:
    content = [_of_openai_part(part, formats) for part in turn["content"] or ()]
    if turn["role"] == "tool":
        return {"role": "tool", "toolCallId": turn["tool_call_id"], "content": content}
    calls = [
        _call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in turn.get("tool_calls", ())
    ]
    return _message(turn["role"], content, calls)


def _of_openai_part(part: Turn, formats: Mapping[str, str]) -> Written:
    if part["type"] == "text":
        return _text(part["text"])
    url: str = part["image_url"]["url"]
    start, is_inline, data = url.partition(";base64,")
    if is_inline and start.startswith("data:image/"):
        return {
            "type": "image",
            "source": {"type": "base64", "format": start.removeprefix("data:image/"), "data": data},
        }
    return {"type": "image", "source": {"type": "url", "format": formats[url], "data": url}}


def _message(role: str, content: list[Written], calls: list[Written]) -> Written:
    return {"role": role, "content": content, **({"toolCalls": calls} if calls else {})}


def _call(id: str, name: str, arguments: str) -> Written:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _text(text: str) -> Written:
    return {"type": "text", "text": text}
