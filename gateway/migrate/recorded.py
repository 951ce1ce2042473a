"""Recorded requests, read as the gateway reads them, and their shapes. Pure.

What the record does not hold as it was is represented by words: base64 text stands for each medium that was recorded as
its hash. A request that can't be judged with these says why.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Hashable, Iterator, Sequence
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.agents.documents import ForMemory, Rule
from gateway.errors import BodyTooLarge, InvalidInput
from gateway.execute.template_cache import is_plain_text, read_shape, specimen_text, with_specimens
from gateway.providers.base import MappingOptions
from gateway.recent import computed_once
from gateway.unified.formats import is_text
from gateway.unified.limits import ParseLimits
from gateway.unified.model import AgentInput, Base64
from gateway.unified.request import ExecuteRequest, RequestKind, read_execute


class Reason(Enum):
    """Why a request can't be judged, or fails at the cluster. `docs/operate/upgrade.md` explains each."""

    AGENT_UNREADABLE = "an agent can't be read"
    BODY_NOT_RECORDED = "the record does not hold the request whole"
    FAILS_ON_CLUSTER = "the cluster would answer with an error"
    LENIENT_JSON = "the cluster may or may not take a value for JSON"
    LLM_NOT_READ = "the agent calls no LLM that is read"
    MEDIA_FETCHED = "the gateway would fetch media by URL"
    MEMORY_REPLAYED = "what memory replays is not in the record"
    OWN_WORD = "the request holds a word that stands for the cluster's own texts"
    REQUEST_UNREADABLE = "the request is not one that the gateway reads"
    SECRET_REMOVED = "a secret was removed from the record"
    TEXT_NOT_RECORDED = "the text of a document was recorded as a hash"
    TOO_LARGE = "the request is too large to render"


class Unknown(msgspec.Struct, frozen=True):
    """Why the LLM call is not known."""

    reason: Reason
    details: str = ""


class Options(msgspec.Struct, frozen=True):
    """The gateway's settings that decide what is sent.

    rules: `agents.rules`; memory_rules: those about memory. fetches_media: `media.fetch`.
    """

    mapping: MappingOptions = msgspec.field(default_factory=MappingOptions)
    rules: Sequence[Rule] = ()
    memory_rules: Sequence[ForMemory] = ()
    limits: ParseLimits = msgspec.field(default_factory=ParseLimits)
    fetches_media: bool = False


MEMORY_IDS = ("memory_id", "session_id")
"""Parameters that name a conversation."""
_IDS = (*MEMORY_IDS, "parent_interaction_id")


class RecordedRun(msgspec.Struct, frozen=True, dict=True):
    """A recorded request, read. id: of the exchange. document_texts: words in place of the texts of documents.

    reason: why it can't be judged.
    """

    id: str
    request: ExecuteRequest
    streaming: bool
    document_texts: tuple[str, ...] = ()
    reason: Unknown | None = None

    @computed_once
    def shaped(self) -> ShapedRun | None:
        """The request's shape; None if what becomes of it may depend on its texts."""
        return _read_shape(self)


_REST = rb"(?:[A-Za-z0-9+/=\s]|\\[nrtf])*"
_HASHED = rb"\[MEDIA type=[^ \]]* length=[0-9]+ sha256=([0-9a-f]{64})\]"
_MARK = re.compile(rb'(?:(?<=")|(?<=base64,))(?:%b%b)+%b(?=\\*")|%b' % (_REST, _HASHED, _REST, _HASHED))
"""A medium that was recorded as its hash, with the rest of its base64 text where white space parts it."""
_REDACTED = b"[REDACTED "
_OWN_WORDS = (b"<built-in", b"gwtool")
_DOCUMENT_WORD = "document "


def read_run(id: str, body: bytes, streaming: bool, options: Options, missing: str = "") -> RecordedRun:
    """Read a recorded request. body: as recorded. missing: why that is not the whole of it, "" if it is.

    A base64 text stands for each medium that was recorded as its hash.
    """
    nothing = RecordedRun(id, _NOTHING, streaming)
    if missing:
        return replace(nothing, reason=Unknown(Reason.BODY_NOT_RECORDED, missing))
    if _REDACTED in body:
        return replace(nothing, reason=Unknown(Reason.SECRET_REMOVED))
    if any(word in body for word in _OWN_WORDS):
        return replace(nothing, reason=Unknown(Reason.OWN_WORD))
    marks = {mark[1] or mark[2] for mark in _MARK.finditer(body)} if b"[MEDIA " in body else set()
    whole = _MARK.sub(lambda mark: b64encode(_document_text(mark[1] or mark[2]).encode()), body) if marks else body
    try:
        request = read_execute(whole, options.limits, options.mapping.roles, is_stored=bool(marks))
    except (InvalidInput, BodyTooLarge) as error:
        return replace(nothing, reason=Unknown(Reason.REQUEST_UNREADABLE, error.reason))
    if request.input is None and not request.has_question and not request.parameters:
        return replace(
            nothing, reason=Unknown(Reason.REQUEST_UNREADABLE, "it has neither `input` nor parameters in strict JSON")
        )
    return RecordedRun(id, request, streaming, tuple(_hashed_texts(request)) if marks else ())


def _hashed_texts(request: ExecuteRequest) -> Iterator[str]:
    """Yield the words that stand for documents that are texts."""
    for medium in request.input.media if request.input is not None else ():
        if medium.kind == "document" and is_text(medium.format) and isinstance(medium.source, Base64):
            content = b64decode(bytes(medium.source.data))
            if content.startswith(_DOCUMENT_WORD.encode()):
                yield content.decode()


def _document_text(sha256: bytes) -> str:
    return _DOCUMENT_WORD + sha256.decode("ascii")


_NOTHING = read_execute(b"{}")


class ShapedRun(msgspec.Struct, frozen=True):
    """A request of a shape. hard: with specimens that have every sign which JSON escapes; easy: with plain words.

    texts: the specimens of `hard`.
    """

    shape: Hashable
    hard: RecordedRun
    easy: RecordedRun
    texts: tuple[str, ...]


def _easy_text(number: int) -> str:
    return f"specimen{number}text"


def _read_shape(run: RecordedRun) -> ShapedRun | None:
    request = replace(run.request, parameters=_without_ids(run.request.parameters))
    run = replace(run, request=request)
    if request.input is None:
        return _shape_of_question(run)
    if request.kind is not RequestKind.UNIFIED or request.input.tools is not None:
        return None
    shaped = read_shape(request, request.input, run.streaming)
    if shaped is None:
        return None
    hard, easy = (_with_input(run, with_specimens(request.input, text_of)) for text_of in (specimen_text, _easy_text))
    return ShapedRun(shaped.shape, hard, easy, tuple(map(specimen_text, range(len(shaped.texts)))))


def _with_input(run: RecordedRun, agent_input: AgentInput) -> RecordedRun:
    return replace(run, request=replace(run.request, input=agent_input))


def _without_ids(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with a word for each id, which are different in each conversation."""
    return {name: "id" if name in _IDS and value else value for name, value in parameters.items()}


_SCALAR = re.compile(r'[-\d"]|true|false|null')
"""How a text begins that a model's interface may take for something other than text."""
_MOST_PARAMETERS = 16_384


def _shape_of_question(run: RecordedRun) -> ShapedRun | None:
    parameters = run.request.parameters
    question = parameters.get("question")
    if not isinstance(question, str) or not is_plain_text(question) or _SCALAR.match(question.strip()):
        return None
    start, text, end = re.fullmatch(r"(\s*)(.*?)(\s*)", question, re.DOTALL).groups()  # type: ignore[union-attr]
    rest = json.dumps({**parameters, "question": ""}, ensure_ascii=False)
    if not text or len(start) + len(end) > 16 or len(rest) > _MOST_PARAMETERS:
        return None

    def asked(text: str) -> RecordedRun:
        asking = {**parameters, "question": f"{start}{text}{end}"}
        return replace(run, request=replace(run.request, parameters=asking))

    shape = ("question", run.streaming, rest, start, end)
    return ShapedRun(shape, asked(specimen_text(0)), asked(_easy_text(0)), (specimen_text(0),))
