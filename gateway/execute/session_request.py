"""The request that runs an agent with its session: the messages so far, then the new input. Pure.

It is written as if the client had sent the whole conversation, and read again, so that it is delivered like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.codes import Notice
from gateway.config.memory import Window
from gateway.errors import InvalidInput, Problem
from gateway.memory.conversion import NewInput, Place, as_input, convert, place_map, relocate
from gateway.memory.matching import Match, match
from gateway.memory.model import Message, Metadata, StoredMessage
from gateway.memory.window import Placed, repair, window_start, within_limits
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.providers import registry
from gateway.providers.capabilities import RequestLimits
from gateway.unified.limits import ParseLimits
from gateway.unified.model import AgentInput, InputType, Text
from gateway.unified.model import Message as InputMessage
from gateway.unified.payloads import insert
from gateway.unified.request import ExecuteRequest, parameters_as_strings, read_execute

IDS = ("memory_id", "session_id")
"""Parameters that name the session. The cluster does not get them, nor its own ids of a conversation's parts."""
NO_LIMITS = Window(turns=0, tokens=0, bytes=0)
_QUESTION = "parameters.question"
_NOT_SENT = frozenset({*IDS, "parent_interaction_id", "question"})
_STEPS_LEFT_OUT = Notice(
    "MEMORY_STEPS_LEFT_OUT",
    "the tool calls and the reasoning in earlier answers can't be delivered to this agent and are left out",
)


class SessionRequest(msgspec.Struct, frozen=True):
    """A request with its session. body: its bytes. request: the same, read. new: the messages that the turn adds.

    remembered: how many messages of the session are in it.
    """

    body: bytes
    request: ExecuteRequest
    new: tuple[Message, ...]
    system: str | None
    notices: tuple[Notice, ...]
    remembered: int = 0


class Earlier(msgspec.Struct, frozen=True):
    """What the session holds.

    stored: the newest messages of the conversation, oldest first, at least as many as the window takes. more: it has
    older ones. system: the system text. with_steps: the tool calls and the reasoning in answers are sent.
    """

    stored: Sequence[StoredMessage] = ()
    window: Window = NO_LIMITS
    more: bool = False
    system: str = ""
    with_steps: bool = True

    @property
    def has_steps(self) -> bool:
        """True if answers are sent that brought tool calls, results or reasoning."""
        answers = (item for item in self.stored if _is_answer(item)) if self.with_steps else ()
        return any(_is_step(block) for item in answers for block in item.message.content)

    def without_steps(self) -> Earlier:
        """Return the same, of which the tool calls, results and reasoning of the agent's answers are not sent."""
        return replace(self, with_steps=False)

    def history(self, found: Match | None) -> Sequence[StoredMessage]:
        """Return the messages to send: what fits the window, and all that the client itself sent."""
        end = len(self.stored) if found is None else found.end
        kept = self.stored[:end]
        start = window_start(kept, self.window) or 0
        kept = kept[start if found is None else min(start, found.begin) :]
        return kept if self.with_steps else _without_steps(kept)


def _without_steps(messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
    kept = []
    for item in messages:
        content = tuple(block for block in item.message.content if not (_is_answer(item) and _is_step(block)))
        if content:
            kept.append(msgspec.structs.replace(item, message=msgspec.structs.replace(item.message, content=content)))
    return kept


def _is_answer(item: StoredMessage) -> bool:
    return not item.message.metadata.input_type


def _is_step(block: Mapping[str, Any]) -> bool:
    return not block.keys().isdisjoint(_STEPS)


_STEPS = ("toolUse", "toolResult", "reasoningContent")


def read_new_input(request: ExecuteRequest) -> AgentInput:
    """Return the new input: `input`, or the `question` of a legacy request."""
    if request.input is not None:
        return request.input
    question = parameters_as_strings(request.parameters)["question"]
    text = Text(question, _QUESTION)
    return AgentInput(InputType.TEXT, (InputMessage("user", (text,), _QUESTION),))


def compose(
    profile: AgentProfile,
    request: ExecuteRequest,
    earlier: Earlier,
    metadata: Metadata,
    roles: Mapping[str, str],
    turn_id: str,
) -> SessionRequest:
    """Return the request with the session's messages before the new input, and what the turn adds to the session.

    metadata: of the new messages, but for the input's type. roles: the operator's table.

    Raises:
        InvalidInput: nothing in the input is new, or the session holds what the gateway can't read.
    """
    agent_input = read_new_input(request)
    metadata = msgspec.structs.replace(metadata, input_type=agent_input.type.value)
    new = convert(agent_input, metadata, roles, turn_id)
    found = None
    if agent_input.type is InputType.MESSAGES:
        found = match([item.message for item in new.messages], earlier.stored, earlier.more)
    history = earlier.history(found)
    added = _added(new, found, earlier)
    if not added:
        raise _nothing_new()
    again = found.again if found is not None else ()
    repaired, notices = repair([_placed(item) for item in (*history, *again)], added[len(again) :])
    sent = [item.message for item in new.messages[: found.new]] if found is not None else []
    repaired, left_out = within_limits(repaired, sent, added[len(again) :], _limits(profile))
    written = _Written(profile, request, agent_input)
    if found is None and not repaired and not (earlier.system and new.system is None):
        written.add_all_new()
    else:
        _write(written, new, found or Match(0, 0, 0), earlier, repaired)
    body, merged = written.read(roles)
    steps = () if earlier.with_steps else (_STEPS_LEFT_OUT,)
    notices = (*_parted(found, earlier), *steps, *notices, *left_out)
    return SessionRequest(body, merged, added, new.system, notices, len(repaired))


def _limits(profile: AgentProfile) -> RequestLimits:
    """Return what a request to the agent's LLM may hold; no limits for an LLM that is not known."""
    try:
        return registry.provider(profile.provider).capabilities.request
    except (registry.UnknownProvider, registry.BrokenProvider):
        return RequestLimits()


def _placed(item: StoredMessage) -> Placed:
    return Placed(item.message, f"memory[{item.seq}]")


def _added(new: NewInput, found: Match | None, earlier: Earlier) -> tuple[Message, ...]:
    """Return the messages that the turn adds to the session: those that are new, or are answered again."""
    if found is None:
        return tuple(item.message for item in new.messages)
    after = 0
    if found.end:
        after = earlier.stored[found.end - 1].seq + 1
    elif found.before:
        after = earlier.stored[0].seq
    asked = [item.message for item in found.again]
    messages = [*asked, *(item.message for item in new.messages[found.new :])]
    about = new.messages[0].message.metadata
    metadata = msgspec.structs.replace(about, after=after)
    return tuple(msgspec.structs.replace(message, metadata=metadata) for message in messages)


def _parted(found: Match | None, earlier: Earlier) -> tuple[Notice, ...]:
    """Return the notice that says where the client's conversation is another than the session's."""
    if found is None or found.end + len(found.again) >= len(earlier.stored):
        return ()
    at = _placed(earlier.stored[found.end]).at
    if found.again:
        return (
            Notice("MEMORY_ANSWERED_AGAIN", "this is answered again, in place of what the session has after it", at),
        )
    return (Notice("MEMORY_FORKED", "from here on, the client's messages take the place of the session's", at),)


def _read(body: bytes, limits: ParseLimits, place: Place, roles: Mapping[str, str]) -> ExecuteRequest:
    """Read a request with messages of the session. place: of what can't be read, as the client knows it.

    Raises:
        InvalidInput: the session holds what the gateway can't read.
    """
    try:
        return read_execute(body, limits, roles, is_stored=True)
    except InvalidInput as error:
        problems = [replace(problem, place=place(problem.place)) for problem in error.problems]
        reason = InvalidInput.of(problems).reason if problems else error.reason
        raise InvalidInput(reason, problems, _UNREADABLE, error.repeats) from None


def _write(written: _Written, new: NewInput, found: Match, earlier: Earlier, repaired: Sequence[Placed]) -> None:
    """Write system text, the conversation so far, and what is new or is answered again, in this order."""
    first = new.messages[found.new].index if found.new < len(new.messages) else written.count
    if new.system is None and earlier.system:
        written.add_stored(Placed(Message("user", ({"text": earlier.system},)), "memory.system"), role="system")
    for index in new.system_indexes:
        if index < first:
            written.add_new(index)
    for item in new.messages[: found.before]:
        written.add_new(item.index)
    for placed in repaired:
        written.add_stored(placed)
    for index in range(first, written.count):
        written.add_new(index)


class _Written:
    """The `input` as it is written: messages, and for each its place in the client's eyes."""

    def __init__(self, profile: AgentProfile, request: ExecuteRequest, agent_input: AgentInput) -> None:
        self._has_history = bool(profile.memory_type) and profile.generation in _COUNT_TURNS
        self._request = request
        self._type = agent_input.type
        self.count = len(agent_input.messages)
        self._value = self._client_value()
        self._items: list[Any] = []
        self._places: list[Place] = []
        self._stored_bytes = 0
        self._whole = False

    def _client_value(self) -> Any:
        if self._request.input is None:
            return parameters_as_strings(self._request.parameters)["question"]
        return json.loads(self._request.extracted.text)["input"]

    def add_all_new(self) -> None:
        """Leave the input as the client wrote it."""
        self._whole = True

    def add_stored(self, placed: Placed, role: str = "") -> None:
        """Add a message of the session. role: in place of its own."""
        for item in as_input(placed.message):
            raw = msgspec.json.encode({**item, "role": role} if role else item)
            self._stored_bytes += len(raw)
            self._items.append(msgspec.Raw(raw))
            self._places.append(lambda rest, at=placed.at: f"{at}{rest}")  # type: ignore[misc]

    def add_new(self, index: int) -> None:
        """Add a message of the client's input."""
        match self._type:
            case InputType.MESSAGES:
                self._items.append(self._raw(self._value[index]))
                self._places.append(lambda rest: f"input[{index}]{rest}")
            case InputType.CONTENT_BLOCKS:
                self._items.append(self._raw({"role": "user", "content": self._value}))
                self._places.append(lambda rest: "input" + rest.removeprefix(".content"))
            case InputType.TEXT:
                content = [{"type": "text", "text": self._value}]
                self._items.append(self._raw({"role": "user", "content": content}))
                self._places.append(lambda _: _QUESTION if self._request.input is None else "input")

    def _raw(self, value: Any) -> msgspec.Raw:
        """Return the JSON of a value of the client's, with its long strings."""
        return msgspec.Raw(b"".join(insert(msgspec.json.encode(value), self._request.extracted.blobs)))

    def read(self, roles: Mapping[str, str]) -> tuple[bytes, ExecuteRequest]:
        """Return the request's body, and the request read from it, with the client's places.

        roles: the operator's table.

        Raises:
            InvalidInput: the session holds what the gateway can't read.
        """
        parameters = {name: value for name, value in self._request.parameters.items() if name not in _NOT_SENT}
        if self._has_history:
            parameters["message_history_limit"] = "0"
            parameters.setdefault("disable_trace", "true")  # the cluster does not delete traces with their conversation
        members = {
            **self._request.other,
            **self._request.offered,
            "input": self._raw(self._value) if self._whole else self._items,
        }
        body = msgspec.json.encode({**members, **({"parameters": parameters} if parameters else {})})
        place = place_map(self._places) if self._places else _question_place
        merged = _read(body, _widened(self._request.extracted.limits, self._stored_bytes), place, roles)
        assert merged.input is not None
        if self._whole and self._request.input is not None:
            return body, merged
        return body, replace(merged, input=relocate(merged.input, place))


def _question_place(_: str) -> str:
    return _QUESTION


_COUNT_TURNS = (Generation.TEXT, Generation.FUNCTION_CALLING)
"""Generations whose `message_history_limit` counts turns, so that 0 is no history (docs/evidence/facts.md)."""
_UNREADABLE = "Correct what is named, or send no memory_id to begin a new session."


def _widened(limits: ParseLimits, stored: int) -> ParseLimits:
    """Return the limits of the client's request with room for `stored` bytes of the session."""
    return limits._replace(
        text=limits.text + 2 * stored + 4096,
        values=limits.values + stored + 100,
        items=limits.items + stored + 1,
        depth=limits.depth + 4,
    )


def _nothing_new() -> InvalidInput:
    reason = "The session already holds all of these messages"
    error = InvalidInput.of([Problem("input", reason, "at least one new message", help="Send what is new.")])
    assert isinstance(error, InvalidInput)
    return error
