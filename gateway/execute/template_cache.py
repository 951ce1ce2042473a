"""Templates of runs: proved bodies with holes for the client's texts and media, reused for inputs of the same shape.

A plan does not depend on the bytes of a medium. It depends on a text only through the signs that have a meaning for the
cluster: ``$``, the braces and ``:-`` of placeholders, and an opening bracket at the start, which may be JSON. So an
input of a new shape is planned and proved with specimens in place of its media and of its texts without such signs
(`is_plain_text`), and what would be sent is cut where the specimens are. A specimen is a text or a medium that nothing
else contains. If it was proved to arrive, a plain text in its place arrives, too:

- The specimen has what JSON escapes: a quote, a backslash, a control character. Escaped by the gateway or the cluster,
  at any depth, the text is the same after the JSON is parsed.
- Inside a prompt, it closes, opens and defaults no placeholder, whatever text is around it.
- It contains no probe word, so the proof would have found the same places.

The turn's id is a specimen, too. Input that has no such shape is planned itself: tool calls and results, text with
these signs, documents whose text is sent.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Hashable, Iterator

import msgspec
from msgspec.structs import replace

from gateway.agents.size import is_small
from gateway.delivery.escaping import raw_text
from gateway.delivery.plan import Plan
from gateway.delivery.slots import MARK
from gateway.errors import Problem, UndeliverableContent
from gateway.execute.rewrite import Rewrite
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.template import BLANK
from gateway.recent import Recent
from gateway.unified.formats import is_text
from gateway.unified.limits import SMALL_TEXT
from gateway.unified.model import AgentInput, Base64, ContentBlock, Media, Message, Text
from gateway.unified.payloads import Payload
from gateway.unified.request import ExecuteRequest

MOST_PARTS = 1000
"""Texts and media of an input with a shape."""
MOST_PARAMETERS = 16_384
"""Characters of the caller's own parameters and members, as JSON."""
_MOST_BLANKS = 16
"""White space at an end of a text, which belongs to the shape, as some of it is not sent."""

SPECIMEN_TURN = f"{MARK}turn"
_OPENING = ("", "[")
_FAULTS = frozenset({"AGENT_NOT_CALLABLE", "AGENT_TOO_LARGE", "PROVIDER_UNKNOWN"})
"""Codes of problems that an agent has with every input of a shape: they are kept like a template."""

_FIRST, _LAST = "\uf8f3", "\uf8f4"
"""Around each specimen of a text: from Unicode's private use area, so that no agent's own text contains them."""
_MARKS = re.compile("[\uf8f0-\uf8ff]")
_ESCAPED = '"\\\n'
"""What JSON escapes: the specimen of a text has it, so that one can tell how often each place is escaped."""


def is_plain_text(text: str) -> bool:
    """Return True if what was proved with a specimen is valid for `text`: it has no such sign and no probe word."""
    if "$" in text or "{" in text or "}" in text or (":" in text and ":-" in text):
        return False
    if (MARK[0] in text and MARK in text) or (not text.isascii() and _MARKS.search(text)):
        return False
    return text.lstrip(BLANK)[:1] not in _OPENING


class Shaped(msgspec.Struct, frozen=True):
    """An input of a shape. shape: all but its texts, without the white space at their ends, and its media."""

    shape: Hashable
    texts: list[str]
    media: list[Payload]


def read_shape(request: ExecuteRequest, agent_input: AgentInput, streaming: bool) -> Shaped | None:
    """Return the shape of an input and of what else is in its request; None if it has none."""
    texts: list[str] = []
    media: list[Payload] = []
    messages: list[Hashable] = []
    for message in agent_input.messages:
        parts: list[Hashable] = [message.role, message.at]
        for block in message.content:
            part = _read_part(block, texts, media)
            if part is None:
                return None
            parts.append(part)
        messages.append(tuple(parts))
    if len(texts) + len(media) > MOST_PARTS:
        return None
    rest = ""
    if request.parameters or request.other or request.offered:
        rest = json.dumps([request.parameters, request.other, request.offered], ensure_ascii=False)
        if len(rest) > MOST_PARAMETERS or _MARKS.search(rest):
            return None
    return Shaped((streaming, agent_input.type, rest, *messages), texts, media)


def _read_part(block: ContentBlock, texts: list[str], media: list[Payload]) -> Hashable | None:
    match block:
        case Text(text=text, at=at):
            stripped = text.strip()
            blanks = len(text) - len(stripped)
            if blanks > _MOST_BLANKS or (stripped and not is_plain_text(text)):
                return None
            if not stripped:
                return at, text
            texts.append(stripped)
            start = len(text) - len(text.lstrip()) if blanks else 0
            return at, text[:start], text[start + len(stripped) :]
        case Media(source=Base64(data=data)) if block.kind != "document" or not is_text(block.format):
            media.append(data)
            return block.at, block.kind, block.format, block.name
    return None


def with_specimens(agent_input: AgentInput, text_of: Callable[[int], str] | None = None) -> AgentInput:
    """Return an input of the same shape with specimens. text_of: returns that of a text, by default `specimen_text`."""
    text_of = text_of or specimen_text
    texts = media = 0

    def specimen(block: ContentBlock) -> ContentBlock:
        nonlocal texts, media
        match block:
            case Text(text=text) if stripped := text.strip():
                texts += 1
                return replace(block, text=text.replace(stripped, text_of(texts - 1), 1))
            case Media(source=Base64() as source):
                media += 1
                return replace(block, source=replace(source, data=_specimen_medium(media - 1)))
        return block

    def message(one: Message) -> Message:
        return replace(one, content=tuple(map(specimen, one.content)))

    return replace(agent_input, messages=tuple(map(message, agent_input.messages)))


def specimen_text(number: int) -> str:
    """Return the specimen of a text."""
    return f"{_FIRST}{number}{_ESCAPED}{_LAST}"


_MARKED = re.compile(f"{_FIRST}([0-9]+){re.escape(_ESCAPED)}{_LAST}")
"""The specimen of a text."""


def _specimen_medium(number: int) -> bytes:
    return base64.b64encode(f"specimen medium {number:05}".encode())


def _encoded(text: str) -> bytes:
    return msgspec.json.encode(text)[1:-1]


_ONCE, _TWICE = _encoded(_ESCAPED), _encoded(raw_text(_ESCAPED))
_MEDIUM = _specimen_medium(0)[:20]
"""What the specimens of all media begin with."""
_SPECIMEN = re.compile(
    rb"%b([0-9]+)(?:%b|(%b))%b|(%b[A-Za-z0-9+/=]{8})|%b"
    % (_FIRST.encode(), re.escape(_ONCE), re.escape(_TWICE), _LAST.encode(), _MEDIUM, re.escape(SPECIMEN_TURN.encode()))
)


class _Text(msgspec.Struct, frozen=True):
    """The place of a text. twice: it is escaped twice."""

    number: int
    twice: bool


class _Medium(msgspec.Struct, frozen=True):
    number: int


class _Turn:
    """The place of the turn's id, see `gateway.delivery.plan.plan`."""


_Piece = bytes | _Text | _Medium | _Turn


class Template:
    """What is sent for any input of one shape. plan: with the specimens."""

    def __init__(self, plan: Plan, pieces: list[_Piece]) -> None:
        self.plan = plan
        self._pieces = pieces
        self._has_turn = any(isinstance(piece, _Turn) for piece in pieces)

    @classmethod
    def of(cls, rewrite: Rewrite, shaped: Shaped) -> Template | None:
        """Return the template of a body for specimens; None if one is missing in it, or stands there changed."""
        pieces = list(_cut(b"".join(rewrite.body or ())))
        texts = {piece.number for piece in pieces if isinstance(piece, _Text)}
        media = {piece.number for piece in pieces if isinstance(piece, _Medium)}
        if texts != set(range(len(shaped.texts))) or media != set(range(len(shaped.media))):
            return None
        if any(isinstance(piece, bytes) and _MARKS.search(piece.decode()) for piece in pieces):
            return None
        return cls(rewrite.plan, pieces)

    def fill(self, shaped: Shaped, new_turn_id: Callable[[], str]) -> Rewrite:
        """Return the request for an input of the shape. Media are not copied.

        Its plan has the specimens in its parameters and messages, and the client's own question.
        """
        turn_id = new_turn_id() if self._has_turn else ""
        once = list(map(_encoded, shaped.texts))
        body: list[Payload] = []
        for piece in self._pieces:
            match piece:
                case bytes():
                    body.append(piece)
                case _Text(number=number, twice=twice):
                    text = once[number]
                    body.append(_encoded(raw_text(shaped.texts[number])) if twice and b"\\" in text else text)
                case _Medium(number=number):
                    body.append(shaped.media[number])
                case _Turn():
                    body.append(turn_id.encode())
        plan = replace(self.plan, question=_MARKED.sub(lambda match: shaped.texts[int(match[1])], self.plan.question))
        return Rewrite(plan, [b"".join(body)] if sum(map(len, body)) <= SMALL_TEXT else body)


def _cut(sent: bytes) -> Iterator[_Piece]:
    done = 0
    for match in _SPECIMEN.finditer(sent):
        yield sent[done : match.start()]
        done = match.end()
        number, twice, medium = match.groups()
        if number:
            yield _Text(int(number), twice is not None)
        elif medium:
            yield _Medium(int(base64.b64decode(medium)[-5:]))
        else:
            yield _Turn()
    yield sent[done:]


class TemplateCache:
    """The templates of one agent. Its owner holds it with the profile, and drops both together."""

    MAX_ENTRIES, MAX_LARGE = 64, 8
    """Templates of a small agent, and of one whose documents are large, as its templates are then."""

    def __init__(self, profile: AgentProfile) -> None:
        most = self.MAX_ENTRIES if is_small(profile) else self.MAX_LARGE
        self._templates: Recent[Template | tuple[Problem, ...]] = Recent(most)
        """Or the problems that all inputs of this shape have; if there are none, each of them is planned itself."""

    def rewrite(
        self,
        request: ExecuteRequest,
        agent_input: AgentInput,
        streaming: bool,
        new_turn_id: Callable[[], str],
        plan: Callable[[AgentInput, str], Rewrite],
    ) -> Rewrite:
        """Return the request for an input. plan: rewrites one with a turn's id, and proves it.

        Raises:
            UndeliverableContent: as `plan`, for the client's own input.
        """
        shaped = read_shape(request, agent_input, streaming)
        if shaped is None:
            return plan(agent_input, new_turn_id())
        template = self._templates.get(shaped.shape, lambda: _make(agent_input, shaped, plan))
        if isinstance(template, Template):
            return template.fill(shaped, new_turn_id)
        if template:
            raise UndeliverableContent.of(template)
        return plan(agent_input, new_turn_id())


def _make(
    agent_input: AgentInput, shaped: Shaped, plan: Callable[[AgentInput, str], Rewrite]
) -> Template | tuple[Problem, ...]:
    try:
        return Template.of(plan(with_specimens(agent_input), SPECIMEN_TURN), shaped) or ()
    except UndeliverableContent as error:
        # Any other refusal is made of the client's own input.
        return tuple(error.problems) if all(problem.code in _FAULTS for problem in error.problems) else ()
