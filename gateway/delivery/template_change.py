"""The smallest change of a connector's template that lets every kind of input through. Pure.

There are three forms (docs/internals/facts.md, 10_upgrade, and 3.4.0 "Upgrade"). If the user's turn is the only item in
the array of messages, the array becomes ``${parameters.messages}``. If there are other turns or slots, only the turn
becomes ``${parameters.body}``. The replaced text becomes the parameter's default in the connector, so a caller who
sends neither gets the old text. If the content of the turn is a parameter already, the turn stays, a slot for earlier
turns is put before it, and the content gets the agent's prompt as its default. The rest of the template is not changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from gateway.mlcommons.profile import AgentProfile, Connector, Model
from gateway.mlcommons.template import PREFIX, SUFFIX
from gateway.providers.base import Provider

TURN_PARAMETER = "body"
EARLIER_TURNS = "earlier_turns"
_PROMPT_MEMBERS = ("prompt", "inputs", "inputText", "input")  # the members of text endpoints that hold the text
_OPENING = {"{": "}", "[": "]"}


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


@dataclass(frozen=True, slots=True)
class TemplateChange:
    """A new template, and the connector parameter that it needs.

    form: ``array`` or ``turn``, which the parameter replaces, or ``history``, which is put before the turn.
    name, value: the connector's parameter: the replaced text, or the default of the turn's content.
    slot: the parameter that the template has in addition.
    """

    form: str
    name: str
    value: str
    request_body: str
    slot: str

    @property
    def slots(self) -> tuple[str, ...]:
        """The parameters that take messages after the change."""
        return (self.slot,) if self.slot == self.name else (self.slot, self.name)


def find_change(connector: Connector, provider: Provider | None) -> TemplateChange:
    """Return the change for a connector whose LLM speaks the format of `provider`, None if that is unknown.

    Raises:
        NotOffered: no change can help, or it is not clear what to change.
    """
    try:
        return _change(connector, provider)
    except RecursionError:
        raise NotOffered(Code.UNREADABLE_TEMPLATE, "it is nested too deeply") from None


def _change(connector: Connector, provider: Provider | None) -> TemplateChange:
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
    items = list(_items(text, start))
    turn = _user_turn(text, items)
    content = _content_slot(text, turn, provider)
    if content and any(text.startswith(PREFIX, start) for start, _ in items):
        raise NotOffered(Code.ALREADY_UPGRADED)
    if content:
        return _with_history(connector, provider, turn, content)
    form, name, span = ("array", field, (start, end)) if len(items) == 1 else ("turn", TURN_PARAMETER, turn)
    value = text[slice(*span)]
    _require_free(connector, name, value)
    return TemplateChange(form, name, value, f"{text[: span[0]]}{PREFIX}{name}{SUFFIX}{text[span[1] :]}", name)


def _content_slot(text: str, turn: tuple[int, int], provider: Provider) -> str:
    """Return the parameter that is the whole content of a turn, without a default; "" if there is none."""
    start, end = members(text, turn[0]).get(provider.content_field, (0, 0))
    value = text[start:end]
    whole = value.startswith(PREFIX) and value.index(SUFFIX) == len(value) - 1 and ":-" not in value
    return value[len(PREFIX) : -len(SUFFIX)] if whole else ""


def _with_history(connector: Connector, provider: Provider, turn: tuple[int, int], content: str) -> TemplateChange:
    text = connector.request_body
    _require_free(connector, EARLIER_TURNS, "")
    default = json.dumps([provider.text_part(f"{PREFIX}prompt{SUFFIX}")], ensure_ascii=False, separators=(",", ":"))
    value = connector.parameters.get(content, default)
    body = f"{text[: turn[0]]}{PREFIX}{EARLIER_TURNS}:-{SUFFIX}{text[turn[0] :]}"
    return TemplateChange("history", content, value, body, EARLIER_TURNS)


def with_upgrades(profile: AgentProfile, provider: Provider) -> AgentProfile:
    """Return the agent with all its connectors changed that can be changed."""

    def model(old: Model) -> Model:
        try:
            change = find_change(old.connector, provider)
        except NotOffered:
            return old
        parameters = {**old.connector.parameters, change.name: change.value}
        new = replace(old.connector, request_body=change.request_body, parameters=parameters)
        return replace(old, connector=new)

    tools = tuple(replace(tool, model=model(tool.model) if tool.model else None) for tool in profile.tools)
    return replace(profile, llm=model(profile.llm) if profile.llm else None, tools=tools)


def command(agent_id: str) -> str:
    """Return the command that shows the change of an agent's connectors, or makes it with ``--apply``."""
    return f"mlc-gateway upgrade {'-- ' if agent_id.startswith('-') else ''}{agent_id}"


def completes_text(connector: Connector) -> bool:
    """Return True if the connector's endpoint completes a text, so that it takes no messages."""
    try:
        return _completes_text(members(connector.request_body))
    except (NotOffered, RecursionError):
        return False


def _completes_text(found: dict[str, tuple[int, int]]) -> bool:
    return "messages" not in found and any(name in found for name in _PROMPT_MEMBERS)


def _user_turn(text: str, items: list[tuple[int, int]]) -> tuple[int, int]:
    turns = [item for item in items if text[item[0]] == "{" and PREFIX in text[slice(*item)] and _is_user(text, item)]
    if len(turns) > 1:
        raise NotOffered(Code.TWO_USER_TURNS)
    if turns:
        return turns[0]
    # A slot without a default must be set by the caller or the connector, to the user's turn.
    slots = (text[slice(*item)] for item in items if text.startswith(PREFIX, item[0]))
    raise NotOffered(Code.ALREADY_UPGRADED if any(":-" not in slot for slot in slots) else Code.NO_USER_TURN)


def _is_user(text: str, item: tuple[int, int]) -> bool:
    role = members(text, item[0]).get("role")
    return role is None or text[slice(*role)] == '"user"'  # Gemini's turns may leave it out


def _require_free(connector: Connector, name: str, value: str) -> None:
    """Require that the parameter is new. A value left by an upgrade that was rolled back is allowed."""
    everything = (connector.request_body, connector.url, *connector.parameters.values())
    used = any(f"{PREFIX}{name}{end}" in text for text in everything for end in (SUFFIX, ":-", "."))
    if used or connector.parameters.get(name, value) != value:
        raise NotOffered(Code.NAME_TAKEN, name)


# A template is JSON except for bare placeholders. These functions walk over it without parsing.


def members(text: str, start: int | None = None) -> dict[str, tuple[int, int]]:
    """Return the members of the object at `start` (by default the first in `text`), with the span of each value.

    Raises:
        NotOffered: brackets or quotes do not close.
    """
    start = text.find("{") if start is None else start
    if start < 0:
        return {}
    found: dict[str, tuple[int, int]] = {}
    tokens = list(_tokens(text, start))
    for (a, b), colon, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if text[a] == '"' and text[colon[0]] == ":":
            found[text[a + 1 : b - 1]] = value
    return found


def _items(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Return the spans of the items of the array at `start`: turns and bare placeholders, without commas."""
    return (span for span in _tokens(text, start) if text[span[0]] != ",")


def _tokens(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans directly inside the object or array at `start`: strings, containers, placeholders, characters."""
    position = start + 1
    while position < len(text) and text[position] != _OPENING[text[start]]:
        end = _end(text, position)
        if not text[position].isspace():
            yield position, end
        position = end
    if position >= len(text):
        raise NotOffered(Code.UNREADABLE_TEMPLATE)


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
        raise NotOffered(Code.UNREADABLE_TEMPLATE)
    return position
