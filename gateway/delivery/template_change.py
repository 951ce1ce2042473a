"""The smallest change of a connector's template that lets every kind of input through. Pure.

There are three forms (docs/evidence/facts.md, 10_upgrade, and 3.4.0 "Upgrade"). If the user's turn is the only item in
the array of messages, the array becomes ``${parameters.messages}``. If there are other turns or slots, only the turn
becomes ``${parameters.body}``. The replaced text becomes the parameter's default in the connector, so a caller who
sends neither gets the old text. If the content of the turn is a parameter already, the turn stays, a slot for earlier
turns is put before it, and the content gets the agent's prompt as its default.

Some APIs take tool calls and results only beside declarations of the tools. A template without that member gets an
empty slot for it, ``${parameters.declare_tools:-}``, and the connector a parameter with the member, which the slot can
refer to: a connector's parameters are never escaped. The rest of the template is not changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum

import msgspec
from msgspec.structs import replace

from gateway.delivery.slots import Slot, SlotKind
from gateway.mlcommons.generations import ABILITIES
from gateway.mlcommons.profile import AgentProfile, Connector, Model, Tool
from gateway.mlcommons.template import DEFAULT_DELIMITER, PREFIX, SUFFIX
from gateway.providers.base import Provider

Span = tuple[int, int]

_OPENING = {"{": "}", "[": "]"}


class UnreadableTemplate(Exception):
    """The template's brackets or quotes do not close."""


def members(text: str, start: int | None = None) -> dict[str, Span]:
    """Return the members of the object at `start` (by default the first in `text`), with the span of each value.

    Raises:
        UnreadableTemplate: brackets or quotes do not close.
    """
    start = text.find("{") if start is None else start
    if start < 0:
        return {}
    found: dict[str, Span] = {}
    spans = list(_tokens(text, start))
    for (a, b), colon, value in zip(spans, spans[1:], spans[2:], strict=False):
        if text[a] == '"' and text[colon[0]] == ":":
            found[text[a + 1 : b - 1]] = value
    return found


def items(text: str, start: int) -> Iterator[Span]:
    """Return the spans of the items of the array at `start`: turns and bare placeholders, without commas.

    Raises:
        UnreadableTemplate: brackets or quotes do not close.
    """
    return (span for span in _tokens(text, start) if text[span[0]] != ",")


def member_slots(text: str) -> list[str]:
    """Return the placeholders of the outermost object that are no value: a comma and a member can be put there.

    Raises:
        UnreadableTemplate: brackets or quotes do not close.
    """
    start = text.find("{")
    names, before = [], ""
    for a, b in _tokens(text, start) if start >= 0 else ():
        if text.startswith(PREFIX, a) and before not in ("", ",", ":"):
            names.append(text[a + len(PREFIX) : b - len(SUFFIX)].partition(DEFAULT_DELIMITER)[0])
        before = text[a]
    return names


def end_of_object(text: str) -> int:
    """Return where the outermost object's closing brace is.

    Raises:
        UnreadableTemplate: brackets or quotes do not close.
    """
    return _end(text, _closed(text.find("{"))) - 1


def _tokens(text: str, start: int) -> Iterator[Span]:
    """Yield the spans directly inside the object or array at `start`: strings, containers, placeholders, characters."""
    position = start + 1
    while position < len(text) and text[position] != _OPENING[text[start]]:
        end = _end(text, position)
        if not text[position].isspace():
            yield position, end
        position = end
    if position >= len(text):
        raise UnreadableTemplate


def _end(text: str, start: int) -> int:
    """Return the end of the token at `start`."""
    if text.startswith(PREFIX, start):
        return _closed(text.find(SUFFIX, start)) + 1
    if text[start] in _OPENING:
        spans = list(_tokens(text, start))
        inside = spans[-1][1] if spans else start + 1
        return _closed(text.find(_OPENING[text[start]], inside)) + 1
    if text[start] != '"':
        return start + 1
    position = start + 1
    while position < len(text) and text[position] != '"':
        # The cluster ends a placeholder at the first closing brace, whatever is before it.
        inside = _end(text, position) if text.startswith(PREFIX, position) else position + 1
        position = position + 2 if text[position] == "\\" else inside
    return position + 1 if position < len(text) else _closed(-1)


def _closed(position: int) -> int:
    if position < 0:
        raise UnreadableTemplate
    return position


TURN_PARAMETER = "body"
EARLIER_TURNS = "earlier_turns"
# The members that hold the text of endpoints that take one; `message` is Cohere's before version 2.
_PROMPT_MEMBERS = ("prompt", "inputs", "inputText", "input", "message")
TOOLS_SLOT = "declare_tools"
TOOLS_MEMBER = "tools_member"
TOOLS_VALUE = "declared_tools"


class Code(Enum):
    """Why an upgrade is not offered."""

    UNKNOWN_PROVIDER = "no provider is known for this model, so its messages can't be distinguished from other text"
    TEXT_ENDPOINT = "the endpoint completes text and has no messages: no template can make it take anything else"
    ALREADY_UPGRADED = "the template takes whole messages already"
    NO_MESSAGES = "the template has no member for messages"
    NO_USER_TURN = "the template has no user turn with a placeholder"
    TWO_USER_TURNS = "more than one user turn has a placeholder, so the question can't be identified"
    NAME_TAKEN = "the parameter that would be added is in use"
    UNREADABLE_TEMPLATE = "the template's brackets or quotes do not close"
    LEGACY_CHANGES = "existing calls would render differently"
    NO_GAIN = "the agent would accept no more kinds of input than now"
    UNKNOWN_AGENT_TYPE = "an agent of a type whose calls can't be rendered uses it, so nothing can be proved"
    NO_CONNECTOR = "the agent's model or connector can't be read"
    NO_LLM = "the agent calls no LLM"


class NotOffered(Exception):
    """The connector is not changed. code: why. reason: the code's sentence, with details."""

    def __init__(self, code: Code, about: str = "") -> None:
        self.code = code
        self.reason = f"{code.value}: {about}" if about else code.value
        super().__init__(self.reason)


class TemplateChange(msgspec.Struct, frozen=True):
    """A new template, and the connector parameters that it needs.

    form: ``array`` or ``turn``, which a parameter replaces; ``history``, which is put before the turn; ``tools``, which
        is put beside the messages. A change of another form may add the slot for tools as well.
    parameters: what the connector gets: the replaced text or the default of the turn's content, and the member that
        declares tools. request_body: the new template.
    slot: the parameter that takes effect after the change. message_slots: the parameters that take messages then, as
        far as the change made them, the one that takes the whole array first.
    """

    form: str
    parameters: Mapping[str, str]
    request_body: str
    slot: str
    message_slots: tuple[Slot, ...]


def find_change(
    connector: Connector, provider: Provider | None, inserts_raw: bool = False, for_tools: bool = False
) -> TemplateChange:
    """Return the change for a connector whose LLM speaks the format of `provider`, None if that is unknown.

    inserts_raw: whether the cluster can insert a request's parameter unescaped (3.0 and later). for_tools: the client's
    tools get a place, too; otherwise only an API that requires declarations beside earlier calls gets one.

    Raises:
        NotOffered: no change can help, or it is not clear what to change.
    """
    try:
        try:
            change = _messages_change(connector, provider)
        except NotOffered as refusal:
            if refusal.code is not Code.ALREADY_UPGRADED or provider is None:
                raise
            tools = _with_tools(connector, provider, inserts_raw, for_tools)
            if tools is None:
                raise
            return tools
        assert provider is not None
        body = replace(connector, request_body=change.request_body)
        tools = _with_tools(body, provider, inserts_raw, for_tools)
    except UnreadableTemplate:
        raise NotOffered(Code.UNREADABLE_TEMPLATE) from None
    except RecursionError:
        raise NotOffered(Code.UNREADABLE_TEMPLATE, "it is nested too deeply") from None
    if tools is None:
        return change
    return replace(change, parameters={**change.parameters, **tools.parameters}, request_body=tools.request_body)


def _messages_change(connector: Connector, provider: Provider | None) -> TemplateChange:
    text = connector.request_body
    field = provider.messages_field if provider is not None else ""
    found = members(text)
    if provider is None or (field not in found and _completes_text(found)):
        raise NotOffered(Code.TEXT_ENDPOINT if _completes_text(found) else Code.UNKNOWN_PROVIDER)
    if field not in found:
        raise NotOffered(Code.NO_MESSAGES, field)
    start, end = found[field]
    if text.startswith(PREFIX, start):
        raise NotOffered(Code.ALREADY_UPGRADED)
    if text[start] != "[":
        raise NotOffered(Code.NO_USER_TURN)
    spans = list(items(text, start))
    turn = _user_turn(text, spans)
    content = _content_slot(text, turn, provider)
    if content and any(text.startswith(PREFIX, start) for start, _ in spans):
        raise NotOffered(Code.ALREADY_UPGRADED)
    if content:
        return _with_history(connector, provider, turn, content)
    form, name, span, takes = (
        ("array", field, (start, end), SlotKind.ARRAY)
        if len(spans) == 1
        else ("turn", TURN_PARAMETER, turn, SlotKind.TURN)
    )
    value = text[slice(*span)]
    _require_free(connector, name, value)
    body = f"{text[: span[0]]}{PREFIX}{name}{SUFFIX}{text[span[1] :]}"
    return TemplateChange(form, {name: value}, body, name, (Slot(name, takes),))


def _with_tools(connector: Connector, provider: Provider, inserts_raw: bool, for_tools: bool) -> TemplateChange | None:
    """Return the change that adds a slot for the declarations of tools; None if the template needs none."""
    text, member = connector.request_body, provider.tools_member
    if not member or not (provider.needs_declarations or for_tools) or member in members(text):
        return None
    existing = member_slots(text)
    if existing and (inserts_raw or TOOLS_MEMBER in connector.parameters):
        return None
    value = f',"{member}":{PREFIX}{TOOLS_VALUE}{SUFFIX}'
    others = {name: own for name, own in connector.parameters.items() if (name, own) != (TOOLS_MEMBER, value)}
    try:
        for name in (TOOLS_MEMBER, TOOLS_VALUE, *([] if existing else [TOOLS_SLOT])):
            _require_free(replace(connector, parameters=others), name, "")
    except NotOffered:
        return None
    slot, end = existing[0] if existing else TOOLS_SLOT, end_of_object(text)
    body = text if existing else f"{text[:end]}{PREFIX}{TOOLS_SLOT}:-{SUFFIX}{text[end:]}"
    return TemplateChange("tools", {TOOLS_MEMBER: value}, body, slot, ())


def _content_slot(text: str, turn: Span, provider: Provider) -> str:
    """Return the parameter that is the whole content of a turn, without a default; "" if there is none."""
    start, end = members(text, turn[0]).get(provider.content_field, (0, 0))
    value = text[start:end]
    whole = value.startswith(PREFIX) and value.index(SUFFIX) == len(value) - 1 and ":-" not in value
    return value[len(PREFIX) : -len(SUFFIX)] if whole else ""


def _with_history(connector: Connector, provider: Provider, turn: Span, content: str) -> TemplateChange:
    text = connector.request_body
    _require_free(connector, EARLIER_TURNS, "")
    default = json.dumps([provider.text_part(f"{PREFIX}prompt{SUFFIX}")], ensure_ascii=False, separators=(",", ":"))
    value = connector.parameters.get(content, default)
    body = f"{text[: turn[0]]}{PREFIX}{EARLIER_TURNS}:-{SUFFIX}{text[turn[0] :]}"
    slots = (Slot(content, SlotKind.CONTENT), Slot(EARLIER_TURNS, SlotKind.HISTORY, ","))
    return TemplateChange("history", {content: value}, body, EARLIER_TURNS, slots)


def with_upgrades(profile: AgentProfile, provider: Provider, for_tools: bool = False) -> AgentProfile:
    """Return the agent with all its connectors changed that can be changed. for_tools: see `find_change`."""

    def model(old: Model) -> Model:
        try:
            change = find_change(old.connector, provider, ABILITIES[profile.generation].raw_parameters, for_tools)
        except NotOffered:
            return old
        parameters = {**old.connector.parameters, **change.parameters}
        new = replace(old.connector, request_body=change.request_body, parameters=parameters)
        return replace(old, connector=new)

    def changed(tool: Tool) -> Tool:
        agent = with_upgrades(tool.agent, provider, for_tools) if tool.agent is not None else None
        return replace(tool, model=model(tool.model) if tool.model else None, agent=agent)

    tools = tuple(map(changed, profile.tools))
    return replace(profile, llm=model(profile.llm) if profile.llm else None, tools=tools)


def command(agent_id: str) -> str:
    """Return the command that shows the change of an agent's connectors, or makes it with ``--apply``."""
    return f"mlc-gateway upgrade {'-- ' if agent_id.startswith('-') else ''}{agent_id}"


def completes_text(connector: Connector) -> bool:
    """Return True if the connector's endpoint completes a text, so that it takes no messages."""
    try:
        return _completes_text(members(connector.request_body))
    except (UnreadableTemplate, RecursionError):
        return False


def _completes_text(found: Mapping[str, Span]) -> bool:
    return "messages" not in found and any(name in found for name in _PROMPT_MEMBERS)


def _user_turn(text: str, spans: list[Span]) -> Span:
    turns = [item for item in spans if text[item[0]] == "{" and PREFIX in text[slice(*item)] and _is_user(text, item)]
    if len(turns) > 1:
        raise NotOffered(Code.TWO_USER_TURNS)
    if turns:
        return turns[0]
    # A slot without a default must be set by the caller or the connector, to the user's turn.
    slots = (text[slice(*item)] for item in spans if text.startswith(PREFIX, item[0]))
    raise NotOffered(Code.ALREADY_UPGRADED if any(":-" not in slot for slot in slots) else Code.NO_USER_TURN)


def _is_user(text: str, item: Span) -> bool:
    role = members(text, item[0]).get("role")
    return role is None or text[slice(*role)] == '"user"'  # Gemini's turns may leave it out


def _require_free(connector: Connector, name: str, value: str) -> None:
    """Require that the parameter is new. A value left by an upgrade that was rolled back is allowed."""
    everything = (connector.request_body, connector.url, *connector.parameters.values())
    used = any(f"{PREFIX}{name}{end}" in text for text in everything for end in (SUFFIX, ":-", "."))
    if used or connector.parameters.get(name, value) != value:
        raise NotOffered(Code.NAME_TAKEN, name)
