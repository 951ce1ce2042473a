"""Draws the page of one exchange, and that of a conversation, from what the store has of them. Blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

from multidict import MultiDict

from gateway.errors import GatewayError
from gateway.inspector import view
from gateway.inspector.access import render
from gateway.inspector.diff import Key, Medium, key_of, leaves, read
from gateway.inspector.live import codes
from gateway.inspector.queries import NotRecorded, read_filter, read_sort
from gateway.inspector.words import INTENTS, STRATEGIES, explain
from gateway.observe.record import ExchangeRecord
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
from gateway.recording.store import Filter, InvalidFilter, RecordStore, Sort, StoreError

_OLDEST_FIRST = Sort(descending=False)
_RUNS = 200
"""Runs of a conversation that its page shows."""
_EARLIER = 50
"""Earlier runs of a conversation whose texts are looked for in what the cluster got."""


def draw_exchange(store: RecordStore, record: ExchangeRecord, tab: str, with_llm: bool, filters: str) -> str:
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
        values.update(bars=view.timeline(record), ticks=list(view.ticks(record)), media=view.all_media(record))
        values["help"] = view.find_help(record)
        values["comparison"] = view.compare_request(record, False, remembered)
    elif tab == "request":
        values["comparison"] = view.compare_request(record, with_llm and bool(record.rendered), remembered)
    elif tab == "response":
        values["comparison"] = view.compare_response(record)
    elif tab == "llm":
        values["side"] = view.outline_body(record, "First call of the LLM, as planned", "llm")
    original, mirror = find_pair(store, record)
    if tab == "mirror" and original is not None and mirror is not None:
        values["sides"] = [(name, one, read_run(one)) for name, one in (("Original", original), ("Mirror", mirror))]
        values["comparison"] = view.compare_calls(original, mirror)
    values["original"], values["mirror"] = (one.id if one is not None else "" for one in (original, mirror))
    values["newer"], values["older"] = _neighbours(store, record.id, filters)
    values.update(record=record, title=title_of(record), codes=codes(record), explain=explain, strategies=STRATEGIES)
    values.update(tab=tab, with_llm=with_llm, filters=filters, raster=BROWSER_IMAGES, kinds=_KINDS)
    values.update(intents=INTENTS, started=_moment(record.started), is_run=is_run(record))
    return render("exchange.html", **values)


def find_pair(store: RecordStore, record: ExchangeRecord) -> tuple[ExchangeRecord | None, ExchangeRecord | None]:
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


def _neighbours(store: RecordStore, id: str, filters: str) -> tuple[str, str]:
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


def _runs_of(store: RecordStore, conversation: str, until: float | None = None, limit: int = _RUNS) -> list[str]:
    """Return the ids of the runs of a conversation, the oldest first."""
    wanted = Filter(session=conversation, until=until)
    if until is None:
        return [row.record.id for row in store.rows(wanted, limit=limit, sort=_OLDEST_FIRST)]
    return [row.record.id for row in store.rows(wanted, limit=limit)][::-1]


def _remembered(store: RecordStore, record: ExchangeRecord) -> frozenset[Key]:
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


def draw_session(store: RecordStore, id: str) -> str:
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


def medium_of(part: Attachment) -> Medium:
    """Return an attachment as the templates show media."""
    return Medium(part.type, part.length, part.sha256)
