"""Draws the page of one exchange, and that of a conversation, from what the store has of them. Blocks.

Documents are compared line by line; templates write the pages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import replace
from multidict import MultiDict

from gateway.errors import GatewayError
from gateway.inspector.access import render
from gateway.inspector.diff import (
    JSON,
    Change,
    Key,
    Medium,
    Number,
    Path,
    compare,
    describe_media,
    inner,
    is_label,
    key_of,
    leaves,
    media,
    read,
    show,
)
from gateway.inspector.live import codes
from gateway.inspector.queries import NotRecorded, read_filter, read_sort
from gateway.inspector.words import INTENTS, STEPS, STRATEGIES, explain
from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from gateway.recording.conversation import (
    BROWSER_IMAGES,
    Attachment,
    Call,
    Conversation,
    Message,
    Result,
    Text,
    is_run,
    one_line,
    read_run,
)
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import Filter, InvalidFilter, Sort, StoreError

TABS = ("overview", "request", "response", "llm", "headers", "mirror")
_SMALL = 200
"""Characters of a value in the table of changes."""
_CHANGES = 500
_LARGEST = 2_000_000
"""Characters of a body that is read as JSON. Reading more would keep Python's lock for too long."""
KINDS = ("moved", "copied", "memory", "changed", "added", "removed")


class Bar(NamedTuple):
    """A step on the timeline. x, width: in thousandths of the exchange. meaning: in words."""

    name: str
    start: float
    seconds: float
    x: float
    width: float
    meaning: str


class Place(NamedTuple):
    """A row of the table of changes. is_label: it is a word of the API, such as a role."""

    kind: str
    before: str
    after: str
    old: str
    new: str
    inside: bool
    media: tuple[Medium, ...]
    is_label: bool


class Side(msgspec.Struct, frozen=True):
    """A body, as lines. title: what it is. more: not all lines are shown. note: why there is no text, or not all of it.

    is_before: it is the first of two.
    """

    title: str
    part: str
    size: int
    lines: list[Line]
    more: bool
    note: str
    is_before: bool = True


class Comparison(msgspec.Struct, frozen=True):
    """Two bodies, and what became of the parts of the first.

    counts: of each kind. unchanged: the second body was not recorded, as it is the first. is_readable: they are small
    enough to be compared. hidden: how many changes are not among `places`.
    """

    before: Side
    after: Side
    places: list[Place]
    counts: Mapping[str, int]
    unchanged: bool
    is_readable: bool
    hidden: int


def timeline(record: ExchangeRecord) -> list[Bar]:
    """Return the steps as bars."""
    whole = max([record.seconds, *(step.start + step.seconds for step in record.steps), 1e-6])
    return [
        Bar(
            step.name,
            step.start,
            step.seconds,
            _share(step.start, whole),
            max(2.0, _share(step.seconds, whole)),
            STEPS.get(step.name, ""),
        )
        for step in record.steps
    ]


def find_help(record: ExchangeRecord) -> str:
    """Return the help in the gateway's error; "" if it had none, or was not recorded."""
    if record.error is None or record.answered is None:
        return ""
    try:
        return str(json.loads(record.answered.body.text or "")["error"]["help"])
    except (ValueError, LookupError, TypeError):
        return ""


def parts(record: ExchangeRecord) -> dict[str, Body]:
    """Return the bodies of an exchange by their names in addresses."""
    messages: dict[str, HttpMessage | None] = {
        "request": record.request,
        "forwarded": record.forwarded,
        "response": record.response,
        "answered": record.answered,
    }
    found = {name: message.body for name, message in messages.items() if message is not None}
    if record.rendered:
        found["llm"] = Body(size=len(record.rendered.encode("utf-8", "replace")), text=record.rendered)
    return found


def compare_request(record: ExchangeRecord, with_llm: bool, remembered: Set[Key] = frozenset()) -> Comparison:
    """Compare what the client sent with what the cluster got, or with what the LLM gets. remembered: see `compare`."""
    bodies = parts(record)
    if with_llm:
        return _compare("Client sent", "request", "LLM gets", "llm", bodies, remembered)
    name = "forwarded" if "forwarded" in bodies else "request"
    return _compare("Client sent", "request", "Cluster got", name, bodies, remembered)


def compare_response(record: ExchangeRecord) -> Comparison:
    """Compare what the cluster sent with what the client got."""
    bodies = parts(record)
    name = "answered" if "answered" in bodies else "response"
    return _compare("Cluster sent", "response", "Client got", name, bodies)


def compare_calls(original: ExchangeRecord, mirror: ExchangeRecord) -> Comparison:
    """Compare the first LLM calls of a run and of its mirror."""
    calls = {"original": parts(original).get("llm", _NO_CALL), "mirror": parts(mirror).get("llm", _NO_CALL)}
    found = _compare("LLM call of the original", "original", "LLM call of the mirror", "mirror", calls)
    return replace(found, before=replace(found.before, part="llm"), after=replace(found.after, part="llm"))


_NO_CALL = Body(omitted="It was not recorded.")


def outline_body(record: ExchangeRecord, title: str, part: str) -> Side:
    """Return one body by itself."""
    return _side(title, part, parts(record).get(part, Body()), {}, True)


def all_media(record: ExchangeRecord) -> list[Medium]:
    """Return the media of an exchange, each once."""
    found = {medium.sha256: medium for body in parts(record).values() for medium in media(body.text or "")}
    return list(found.values())


def _compare(
    first: str, before: str, second: str, after: str, bodies: Mapping[str, Body], remembered: Set[Key] = frozenset()
) -> Comparison:
    old, new = bodies.get(before, Body()), bodies.get(after, Body())
    unchanged = before == after
    is_readable = all(len(body.text or "") <= _LARGEST for body in (old, new))
    is_compared = is_readable and not unchanged
    changes = compare(read(old.text or ""), read(new.text or ""), remembered) if is_compared else []
    shown = sorted((one for one in changes if one.kind != "same"), key=lambda change: KINDS.index(change.kind))
    return Comparison(
        _side(first, before, old, _by_before(changes), True),
        _side(second, after, new, _by_after(changes), False),
        [_place(change) for change in shown[:_CHANGES]],
        {kind: sum(change.kind == kind for change in shown) for kind in KINDS},
        unchanged,
        is_readable,
        max(0, len(shown) - _CHANGES),
    )


def _by_before(changes: list[Change]) -> dict[Path, Change]:
    return {change.before.path: change for change in changes if change.before is not None and change.kind != "copied"}


def _by_after(changes: list[Change]) -> dict[Path, Change]:
    found: dict[Path, Change] = {}
    for change in changes:
        if change.after is not None:
            found.setdefault(change.after.path, change)
    return found


def _side(title: str, part: str, body: Body, changes: Mapping[Path, Change], is_before: bool) -> Side:
    if body.text is None:
        return Side(title, part, body.size, [], False, body.omitted or "There was no body.")
    if body.encoding:
        return Side(title, part, body.size, [], False, "The body is not text.")
    if not body.text:
        return Side(title, part, body.size, [], False, body.omitted or "The body was empty.")
    if len(body.text) > _LARGEST:
        return Side(title, part, body.size, [], True, "The body is too large to be shown here.", is_before)
    lines, more = outline(read(body.text), changes, is_before)
    return Side(title, part, body.size, lines, more, body.omitted, is_before)


def _place(change: Change) -> Place:
    before, after = change.before, change.after
    values = [leaf.value for leaf in (before, after) if leaf is not None]
    found = {medium.sha256: medium for value in values[:1] if isinstance(value, str) for medium in media(value)}
    return Place(
        change.kind,
        show(before.path) or "the body" if before else "",
        show(after.path) or "the body" if after else "",
        _cut(before.value) if before else "",
        _cut(after.value) if after else "",
        change.inside,
        tuple(found.values()),
        is_label((before or after).path) if before or after else False,  # type: ignore[union-attr]
    )


def _cut(value: Any) -> str:
    text = describe_media(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SMALL else f"{text[:_SMALL]}…"


def _share(seconds: float, whole: float) -> float:
    return round(1000 * min(1.0, max(0.0, seconds / whole)), 1)


def ticks(record: ExchangeRecord) -> Iterator[tuple[float, float]]:
    """Yield marks of the timeline's axis: thousandths of the exchange, and seconds."""
    for quarter in range(5):
        yield 250.0 * quarter, record.seconds * quarter / 4


LONGEST = 400
"""Characters of a text that are shown at first."""
_MOST = 3000
_DEPTH = 64


class Line(NamedTuple):
    """A line. indent: levels. name: `"text": ` or "". value: brackets or the value; cut if `rest` is more than 0.

    rest: characters that are not shown. path: of the value, as JSON, to ask for the rest. kind: as in `Change`.
    other: the place on the other side, "" for the same or none. media: what the value refers to.
    """

    indent: int
    name: str
    value: str
    kind: str = ""
    other: str = ""
    inside: bool = False
    rest: int = 0
    path: str = ""
    media: tuple[Medium, ...] = ()


def outline(document: Any, changes: Mapping[Path, Change], is_before: bool) -> tuple[list[Line], bool]:
    """Return the lines of a document, and True if there are more than are shown. changes: by the path on its side."""
    lines: list[Line] = []
    for line in _lines(document, (), "", 0, _Marks(changes, is_before), ""):
        if len(lines) == _MOST:
            return lines, True
        lines.append(line)
    return lines, False


class _Marks(NamedTuple):
    changes: Mapping[Path, Change]
    is_before: bool

    def mark(self, path: Path) -> tuple[str, str, bool]:
        change = self.changes.get(path)
        if change is None:
            return "", "", False
        other = change.after if self.is_before else change.before
        place = show(other.path) if other is not None and change.kind in ("moved", "copied") else ""
        return change.kind, place, change.inside


def _lines(document: Any, path: Path, name: str, indent: int, marks: _Marks, comma: str) -> Iterator[Line]:
    within, quote = document, ""
    if isinstance(document, str) and not isinstance(document, Number) and (found := inner(document)) is not None:
        within, path, quote = found, (*path, JSON), "JSON in a string "
    if isinstance(within, dict | list) and within and indent < _DEPTH:
        opening, closing = "{}" if isinstance(within, dict) else "[]"
        yield Line(indent, name, f"{quote}{opening}")
        last = len(within) - 1
        items = within.items() if isinstance(within, dict) else enumerate(within)
        for number, (step, value) in enumerate(items):
            label = f"{_text(step)}: " if isinstance(step, str) else ""
            yield from _lines(value, (*path, step), label, indent + 1, marks, "," if number < last else "")
        yield Line(indent, "", f"{closing}{comma}")
    else:
        yield _leaf(document, path, name, indent, marks, comma)


def _leaf(value: Any, path: Path, name: str, indent: int, marks: _Marks, comma: str) -> Line:
    kind, other, inside = marks.mark(path)
    shown = describe_media(value) if isinstance(value, str) else value
    text = str(value) if isinstance(value, Number) else _text(shown)
    found = tuple(media(value)) if isinstance(value, str) else ()
    rest = len(value) - LONGEST if isinstance(value, str) and len(value) > LONGEST else 0
    if rest:
        text = _text(describe_media(value[:LONGEST])).removesuffix('"')
        comma = ""
    return Line(indent, name, text + comma, kind, other, inside, rest, json.dumps(path) if rest else "", found)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_OLDEST_FIRST = Sort(descending=False)
_RUNS = 200
"""Runs of a conversation that its page shows."""
_EARLIER = 50
"""Earlier runs of a conversation whose texts are looked for in what the cluster got."""


def draw_exchange(store: SqliteStore, record: ExchangeRecord, tab: str, with_llm: bool, filters: str) -> str:
    """Return the page of an exchange. filters: the query of the list from which it was opened."""
    values: dict[str, Any] = {
        "comparison": None,
        "side": None,
        "bars": [],
        "ticks": [],
        "media": [],
        "run": None,
        "sides": [],
    }
    remembered = _remembered(store, record) if tab in ("overview", "request") else frozenset()
    if tab == "overview":
        values["run"] = read_run(record)
        values.update(bars=timeline(record), ticks=list(ticks(record)), media=all_media(record))
        values["help"] = find_help(record)
        values["comparison"] = compare_request(record, False, remembered)
    elif tab == "request":
        values["comparison"] = compare_request(record, with_llm and bool(record.rendered), remembered)
    elif tab == "response":
        values["comparison"] = compare_response(record)
    elif tab == "llm":
        values["side"] = outline_body(record, "First call of the LLM, as planned", "llm")
    original, mirror = find_pair(store, record)
    if tab == "mirror" and original is not None and mirror is not None:
        values["sides"] = [(name, one, read_run(one)) for name, one in (("Original", original), ("Mirror", mirror))]
        values["comparison"] = compare_calls(original, mirror)
    values["original"], values["mirror"] = (one.id if one is not None else "" for one in (original, mirror))
    values["newer"], values["older"] = _neighbours(store, record.id, filters)
    values.update(record=record, title=title_of(record), codes=codes(record), explain=explain, strategies=STRATEGIES)
    values.update(tab=tab, with_llm=with_llm, filters=filters, raster=BROWSER_IMAGES, kinds=_KINDS)
    values.update(intents=INTENTS, started=_moment(record.started), is_run=is_run(record))
    return render("exchange.html", **values)


def find_pair(store: SqliteStore, record: ExchangeRecord) -> tuple[ExchangeRecord | None, ExchangeRecord | None]:
    """Return a run and its mirror, one of which is the record; None for one that is not recorded."""
    if record.mirror_of:
        return store.get(record.mirror_of), record
    copies = store.copies(record.id)
    return record, store.get(copies[0].record.id) if copies else None


def title_of(record: ExchangeRecord) -> str:
    """Return what a person calls an exchange: the agent's name, or the request."""
    if record.delivery is not None and record.delivery.agent_name:
        return record.delivery.agent_name
    if record.summary is not None and record.summary.question and not is_run(record):
        return record.summary.question
    return f"Agent {record.agent_id}" if is_run(record) and record.agent_id else f"{record.method} {record.target}"


def _moment(seconds: float) -> str:
    started = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{started}{f'{seconds % 1:.3f}'[1:]}Z"


_KINDS = {Text: "text", Attachment: "medium", Call: "call", Result: "result"}
"""Classes of parts of messages, as the templates call them."""


def _neighbours(store: SqliteStore, id: str, filters: str) -> tuple[str, str]:
    """Return the ids before and after an exchange in the list from which it was opened; "" for none."""
    query = MultiDict(parse_qsl(filters))
    try:
        sort = read_sort(query)
        wanted = read_filter(query, ("sort", "range"))
        position = store.position(id)
        if position is None:
            return "", ""
        before = store.rows(wanted, position, 1, sort.reversed)
        after = store.rows(wanted, position, 1, sort)
    except (GatewayError, InvalidFilter, StoreError):  # the list itself says what is wrong with it
        return "", ""
    return before[0].record.id if before else "", after[0].record.id if after else ""


def _runs_of(store: SqliteStore, conversation: str, until: float | None = None, limit: int = _RUNS) -> list[str]:
    """Return the ids of the runs of a conversation, the oldest first."""
    wanted = Filter(session=conversation, until=until)
    if until is None:
        return [row.record.id for row in store.rows(wanted, limit=limit, sort=_OLDEST_FIRST)]
    return [row.record.id for row in store.rows(wanted, limit=limit)][::-1]


def _remembered(store: SqliteStore, record: ExchangeRecord) -> frozenset[Key]:
    """Return the keys of the texts and media of earlier runs, for an exchange that was sent with its memory."""
    if not record.conversation or record.forwarded is None:
        return frozenset()
    ids = _runs_of(store, record.conversation, record.started, _EARLIER)
    earlier = (store.get(id) for id in ids if id != record.id)
    return frozenset(key for one in earlier if one is not None for key in _keys(read_run(one)))


def _keys(run: Conversation) -> Iterator[Key]:
    for message in (*run.asked, *run.answered):
        for part in message.parts:
            match part:
                case Text() | Result():
                    yield key_of(part.text)
                case Attachment():
                    yield "medium", part.sha256
                case Call():
                    yield from (key_of(leaf.value) for leaf in leaves(read(part.arguments)))


class Turn:
    """A run of a conversation, as its page shows it. repeated: how many earlier messages the client sent again."""

    def __init__(self, record: ExchangeRecord) -> None:
        self.record = record
        self.run = read_run(record)
        self.started = _moment(record.started)
        new = len(self.run.asked) - 1
        while new > 0 and self.run.asked[new - 1].role != "assistant":
            new -= 1
        self.new: tuple[Message, ...] = self.run.asked[max(new, 0) :]
        self.repeated = len(self.run.asked) - len(self.new)


def draw_session(store: SqliteStore, id: str) -> str:
    """Return the page of a conversation.

    Raises:
        NotRecorded: no run of it is recorded.
    """
    ids = _runs_of(store, id, limit=_RUNS + 1)
    found = [record for one in ids[:_RUNS] if (record := store.get(one)) is not None]
    if not found:
        raise NotRecorded(f"No run of the conversation {id[:100]} is recorded: they were deleted, or never recorded.")
    turns = [Turn(record) for record in found]
    names = list(dict.fromkeys(title_of(record) for record in found))
    first = next((one_line(message.text) for message in turns[0].new if message.text), "")
    return render(
        "session.html",
        id=id,
        names=names,
        first=first,
        turns=turns,
        more=len(ids) > _RUNS,
        overview=store.overview(Filter(session=id)),
        kinds=_KINDS,
        raster=BROWSER_IMAGES,
    )
