"""The tests that every store of exchanges passes that can be read.

A store's test module has a class that inherits from `StoreConformance` and defines the fixture ``new_store``: each call
of what it returns opens the same store again, as another process would.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from gateway.observe.record import (
    Body,
    Delivery,
    ExchangeRecord,
    HttpMessage,
    RecordedError,
    RecordedProblem,
    Step,
    Summary,
    Usage,
)
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import (
    Beginnings,
    Filter,
    InvalidFilter,
    Loss,
    Mirrored,
    Overview,
    Sort,
    Spent,
    Target,
    TargetFaults,
    TargetRuns,
    TargetWeight,
    Weights,
)
from tests.recording.records import record

NewStore = Callable[[], SqliteStore]

FULL = record(
    id="full",
    client="192.0.2.7",
    user_agent="opensearch-py/3.0.0 (Linux)",
    agent_id="a2",
    status=400,
    delivery=Delivery("Räuber", "flow", "3.0", "bedrock/converse", "claude", "wrap", "messages", ("N_ONE", "N_TWO")),
    error=RecordedError("undeliverable", "no", (RecordedProblem("P_ONE", "input[0]", "too large"),)),
    usage=Usage(3, 4, 0.5, "USD"),
    conversation="c1",
    trace_id="0" * 32,
    steps=(Step("decode", 0.0, 0.25),),
    forwarded=HttpMessage((("A", "b"),), Body(4, "YWI=", "base64", "cut")),
    rendered='{"x": 1}',
    answered=HttpMessage((), Body(2, "{}")),
    guardrails=({"name": "g", "allowed": True},),
    summary=Summary("Why?", "No.", "a" * 64, 2, True),
    scheme="https",
    route="r1",
    cluster="new",
)


def ids(rows: Any) -> list[str]:
    return [row.record.id for row in rows]


def numbered(*numbers: int, **values: Any) -> list[ExchangeRecord]:
    """Return records with these ids, one second apart."""
    return [record(id=str(number), started=1000.0 + number, **values) for number in numbers]


def with_body(id: str, text: str) -> ExchangeRecord:
    return record(id=id, request=HttpMessage((), Body(len(text), text)), response=None)


class StoreConformance:
    """All tests of a store. `gateway.recording.store.SqliteStore` states what they test."""

    @pytest.fixture
    def store(self, new_store: NewStore) -> Iterator[SqliteStore]:
        store = new_store()
        yield store
        store.close()

    # Records

    def test_a_record_comes_back_whole(self, store: SqliteStore, new_store: NewStore) -> None:
        store.add([record(id="other"), FULL])
        again = new_store()
        assert (store.get("full"), again.get("full")) == (FULL, FULL)
        assert store.get("other") == record(id="other")
        assert [store.get(id_) for id_ in ("fül", "ful", "", "\ud800")] == [None] * 4
        again.close()

    def test_a_row_has_no_headers_texts_and_steps(self, store: SqliteStore) -> None:
        store.add([FULL])
        [row] = store.rows(Filter())
        sizes = {name: HttpMessage(body=Body(getattr(FULL, name).body.size)) for name in ("request", "response")}
        sizes |= {name: HttpMessage(body=Body(getattr(FULL, name).body.size)) for name in ("forwarded", "answered")}
        assert row.record == structs.replace(FULL, **sizes, rendered="", steps=(), guardrails=())

    def test_text_that_is_no_unicode_is_stored_with_replacements(self, store: SqliteStore) -> None:
        store.add([record(id="1", user_agent="a\udcffb", guardrails=({"\ud800": ["\ud83d\ude00", 1]},))])
        found = store.get("1")
        assert found is not None
        assert (found.user_agent, found.guardrails) == ("a�b", ({"�": ["😀", 1]},))

    def test_nothing_to_add(self, store: SqliteStore) -> None:
        store.add([])
        assert store.rows(Filter()) == []

    # Order

    def test_rows_are_newest_first_by_pages(self, store: SqliteStore) -> None:
        store.add(numbered(1, 2, 3))
        store.add(numbered(4, 5))
        first = store.rows(Filter(), limit=2)
        assert ids(first) == ["5", "4"]
        assert ids(store.rows(Filter(), before=first[-1].position, limit=2)) == ["3", "2"]
        with pytest.raises(InvalidFilter, match="was deleted") as error:
            store.rows(Filter(), before=2**70)
        assert error.value.field == "before"

    def test_the_newest_position_counts_what_was_deleted(self, store: SqliteStore) -> None:
        assert store.newest() == 0
        store.add(numbered(1, 2))
        newest = store.newest()
        assert [row.position for row in store.rows(Filter(), None, 1)] == [newest]
        store.clear()
        assert store.newest() == newest
        store.add(numbered(3))
        assert ids(store.newer(Filter(), newest)) == ["3"]

    def test_newer_rows_are_oldest_first(self, store: SqliteStore) -> None:
        store.add(numbered(1, 2, 3))
        first = store.newer(Filter(), after=0, limit=2)
        assert ids(first) == ["1", "2"]
        store.add(numbered(4))
        assert ids(store.newer(Filter(), after=first[-1].position)) == ["3", "4"]
        assert store.newer(Filter(), after=2**70) == []

    def test_positions_are_not_used_again(self, store: SqliteStore, new_store: NewStore) -> None:
        store.add(numbered(1, 2))
        last = store.rows(Filter())[0].position
        store.clear()
        store.close()
        again = new_store()
        again.add(numbered(3))
        assert again.rows(Filter())[0].position > last
        again.close()

    def test_a_reader_misses_nothing_that_several_writers_add(self, store: SqliteStore, new_store: NewStore) -> None:
        """Positions become visible in their order: what a later call returns is after all that was seen."""
        writers, each = 4, 25

        def write(name: int) -> None:
            own = new_store()
            for number in range(each):
                own.add([record(id=f"{name}-{number}-a"), record(id=f"{name}-{number}-b")])
            own.close()

        threads = [threading.Thread(target=write, args=(name,)) for name in range(writers)]
        for thread in threads:
            thread.start()
        seen: list[str] = []
        after = 0
        while len(seen) < 2 * writers * each and (any(thread.is_alive() for thread in threads) or after >= 0):
            for row in store.newer(Filter(), after, limit=7):
                assert row.position > after
                after = row.position
                seen.append(row.record.id)
        for thread in threads:
            thread.join()
        assert sorted(seen) == sorted(f"{n}-{m}-{x}" for n in range(writers) for m in range(each) for x in "ab")

    def test_rows_are_by_the_time_of_their_beginning(self, store: SqliteStore) -> None:
        """A long run is stored after those that began later."""
        store.add(numbered(2, 3))
        store.add(numbered(1, 4))
        assert ids(store.rows(Filter())) == ["4", "3", "2", "1"]
        first = store.rows(Filter(), limit=2)
        assert ids(store.rows(Filter(), before=first[-1].position)) == ["2", "1"]
        assert ids(store.newer(Filter(), 0)) == ["2", "3", "1", "4"]

    @pytest.mark.parametrize(
        ("by", "order"),
        [
            ("time", "123"),
            ("agent", "132"),
            ("status", "213"),
            ("took", "312"),
            ("tokens", "231"),
            ("cost", "321"),
        ],
    )
    def test_rows_in_another_order_by_pages(self, store: SqliteStore, by: str, order: str) -> None:
        values: list[dict[str, Any]] = [
            {"delivery": Delivery("a"), "status": 400, "seconds": 2.0, "usage": Usage(5, 5, 0.3)},
            {"delivery": Delivery("c"), "status": 200, "seconds": 3.0, "usage": None},
            {"delivery": Delivery("b"), "status": 500, "seconds": 1.0, "usage": Usage(3, 4, 0.001)},
        ]
        if by == "cost":
            values[1]["usage"], values[2]["usage"] = Usage(1, 1, 0.2), Usage(1, 1)
        for number, given in enumerate(values, 1):
            store.add(numbered(number, **given))
        for descending, expected in ((False, order), (True, order[::-1])):
            sort = Sort(by, descending)
            first = store.rows(Filter(), limit=2, sort=sort)
            rest = store.rows(Filter(), before=first[-1].position, sort=sort)
            assert ids(first) + ids(rest) == list(expected)
            assert ids(store.rows(Filter(), before=rest[0].position, sort=sort.reversed))[::-1] == ids(first)

    def test_the_position_of_a_record(self, store: SqliteStore) -> None:
        store.add(numbered(1, 2))
        assert [store.position(id) for id in ("1", "2", "3", "ü")] == [1, 2, None, None]

    # Filters

    def test_the_beginning_of_an_id_is_enough_if_no_other_begins_so(self, store: SqliteStore) -> None:
        store.add([record(id="5f2a", agent_id="abc1", conversation="gws-1"), record(id="5f3b", agent_id="abc2")])
        store.add([record(id="77", agent_id="abc", conversation="gws-22"), record(id="\x7f", agent_id="x\x7f")])
        assert [store.whole_id(start) for start in ("5f2", "5f3b", "7", "5f2a1", "", "ü")] == [
            "5f2a", "5f3b", "77", None, None, None,
        ]  # fmt: skip
        assert ids(store.rows(Filter(agent="abc2"))) == ["5f3b"]
        assert ids(store.rows(Filter(agent="abc"))) == ["77"]  # an agent has this id
        assert ids(store.newer(Filter(agent="x"), 0)) == ["\x7f"]
        assert ids(store.rows(Filter(session="gws-2", agent="abc"))) == ["77"]
        assert store.overview(Filter(session="gws-1")).exchanges == 1
        with pytest.raises(InvalidFilter, match=r"^several ids begin with 5f: 5f2a, 5f3b; give more of one$"):
            store.whole_id("5f")
        for field, start, named in (("agent", "ab", "abc, abc1, abc2"), ("session", "gws", "gws-1, gws-22")):
            with pytest.raises(InvalidFilter, match=named) as caught:
                store.rows(Filter(**{field: start}))  # type: ignore[arg-type]
            assert caught.value.field == field

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            (Filter(), True),
            (Filter(path="/agents/a1/_exe"), True),
            (Filter(path="%"), False),
            (Filter(agent="a2"), True),
            (Filter(agent="Räuber"), True),
            (Filter(agent="a"), True),
            (Filter(agent="Räub"), False),
            (Filter(agent="b"), False),
            (Filter(type="flow"), True),
            (Filter(type="flo"), False),
            (Filter(provider="bedrock/converse"), True),
            (Filter(strategy="wrap"), True),
            (Filter(strategy="native"), False),
            (Filter(status="400"), True),
            (Filter(status="4xx"), True),
            (Filter(status="4XX"), True),
            (Filter(status="error"), True),
            (Filter(status="5xx"), False),
            (Filter(status="0"), False),
            (Filter(notice="N_TWO"), True),
            (Filter(notice="P_ONE"), True),
            (Filter(notice="N_"), False),
            (Filter(notice="undeliverable"), False),
            (Filter(client="192.0.2.7"), True),
            (Filter(client="opensearch-py"), True),
            (Filter(client="192.0"), False),
            (Filter(intent="runs"), True),
            (Filter(intent="execute"), True),
            (Filter(intent="execute_stream"), False),
            (Filter(since=FULL.started), True),
            (Filter(since=FULL.started + 1), False),
            (Filter(until=FULL.started), True),
            (Filter(until=FULL.started - 1), False),
            (Filter(since=float("nan")), False),
            (Filter(session="c1"), True),
            (Filter(session="c"), True),
            (Filter(session="1"), False),
            (Filter(route="r1"), True),
            (Filter(route="r"), True),
            (Filter(route="a2"), False),
            (Filter(cluster="new"), True),
            (Filter(cluster="ne"), False),
            (Filter(cluster="upstream"), False),
            (Filter(status="refused"), True),
            (Filter(status="failed"), False),
            (Filter(mirror="any"), True),
            (Filter(mirror="yes"), False),
            (Filter(mirror="full"), False),
            (Filter(took="0.5"), True),
            (Filter(took=">0.4"), True),
            (Filter(took="<500 ms"), True),
            (Filter(took="<499ms"), False),
            (Filter(took="0.1-1"), True),
            (Filter(took="1 - 2 s"), False),
            (Filter(took="0.005m-0.01m"), True),
            (Filter(cost=">=0.5"), True),
            (Filter(cost="<=0.4"), False),
            (Filter(cost="0.5-0.6"), True),
            (Filter(text="hello"), True),
            (Filter(text="hello answer x"), True),
            (Filter(text="hello nobody"), False),
            (Filter(text="YWI"), False),
            (Filter(status="4xx", type="flow", text="hello", agent="a2", intent="runs"), True),
            (Filter(status="5xx", type="flow", text="hello", agent="a2", intent="runs"), False),
        ],
    )
    def test_filter(self, store: SqliteStore, wanted: Filter, found: bool) -> None:
        store.add([FULL])
        assert ids(store.rows(wanted)) == ids(store.newer(wanted, 0)) == ["full"] * found

    def test_status_0_is_an_error(self, store: SqliteStore) -> None:
        store.add([record(id="cut", status=0), record(id="ok", status=399)])
        assert ids(store.rows(Filter(status="error"))) == ids(store.rows(Filter(status="0"))) == ["cut"]

    def test_an_error_without_problems_is_found_by_its_type(self, store: SqliteStore) -> None:
        store.add([record(id="1", status=503, error=RecordedError("upstream_unavailable", "gone"))])
        assert ids(store.rows(Filter(notice="upstream_unavailable"))) == ["1"]

    @pytest.mark.parametrize("status", ["abc", "4x", "99", "1000", "4xxx", "-1", "٤٠٤"])
    def test_bad_status(self, store: SqliteStore, status: str) -> None:
        with pytest.raises(InvalidFilter, match="neither a status such as 404") as error:
            store.rows(Filter(status=status))
        assert error.value.field == "status"

    @pytest.mark.parametrize(
        "wanted", [Filter(took="slow"), Filter(took="1s-"), Filter(took="-1"), Filter(cost="1 s"), Filter(cost=">")]
    )
    def test_bad_spans(self, store: SqliteStore, wanted: Filter) -> None:
        with pytest.raises(InvalidFilter, match="neither a limit nor a range") as error:
            store.rows(wanted)
        assert getattr(wanted, error.value.field)

    def test_without_a_cost_no_limit_of_it_matches(self, store: SqliteStore) -> None:
        store.add(numbered(1))
        assert store.rows(Filter(cost="<1")) == store.rows(Filter(cost=">0")) == []

    @pytest.mark.parametrize(
        "field", ["path", "agent", "notice", "text", "client", "intent", "session", "route", "mirror"]
    )
    def test_a_surrogate_is_a_bad_filter(self, store: SqliteStore, field: str) -> None:
        with pytest.raises(InvalidFilter, match="surrogate") as error:
            store.rows(Filter(**{field: "abc\ud800"}))
        assert error.value.field == field

    # Text

    @pytest.mark.parametrize(
        ("text", "body", "found"),
        [
            ("CAT", "the cat.", True),
            ("ca", "the cat.", False),
            ("cat*", "the category", True),
            ("Cafe", "das café", True),
            ('"black cat"', "a black  cat", True),
            ('"black cat"', "a cat, black", False),
            ('"black cat', "a black cat", True),
            ('"black cat"*', "a black category", True),
            ("cat OR dog", "cat", False),
            ("cat or dog", "cat or dog", True),
            ("NOT cat", "not a cat", True),
            ("text:cat", "text cat", True),
            ("cat^2 (dog) + {a b}:c", "cat 2 dog a b c", True),
            ("NEAR(cat dog)", "near cat dog", True),
            ("it's 100%", "it's 100%", True),
            ("cat -- dog", "cat dog", True),
            ("cat;DROP", "cat drop", True),
            ("日本", "日本 です", True),
            ("second", r'{"a": "first\nsecond"}', True),
            ('"first second"', r'{"a": "first\nsecond"}', True),
            ("größe", r'{"a": "Gr\u00f6\u00dfe"}', True),
            ("second", r'{"a": "{\"b\": \"first\\nsecond\\\\third\"}"}', True),
            ("notes", r'{"path": "C:\\notes"}', True),
            ("\U0001d54f", r'{"a": "\ud835\udd4f"}', True),
        ],
    )
    def test_text(self, store: SqliteStore, text: str, body: str, found: bool) -> None:
        store.add([with_body("other", "elsewhere"), with_body("1", body)])
        assert ids(store.rows(Filter(text=text))) == ["1"] * found

    @pytest.mark.parametrize("text", ["*", "a*", "ab*", "x_ab*", '"a b"*', "--", '""', "'", "\0", "(", "^ - +"])
    def test_bad_text(self, store: SqliteStore, text: str) -> None:
        store.add(numbered(1))
        with pytest.raises(InvalidFilter) as error:
            store.rows(Filter(text=text))
        assert error.value.field == "text"

    def test_blank_text_matches_all(self, store: SqliteStore) -> None:
        store.add(numbered(1))
        assert ids(store.rows(Filter(text=" \t"))) == ["1"]

    def test_a_phrase_is_within_one_body(self, store: SqliteStore) -> None:
        store.add([record(id="1", request=HttpMessage((), Body(3, "black")), response=HttpMessage((), Body(3, "cat")))])
        assert ids(store.rows(Filter(text="black cat"))) == ["1"]
        assert ids(store.rows(Filter(text='"black cat"'))) == []

    def test_words_of_every_body_are_found(self, store: SqliteStore) -> None:
        names = ("request", "forwarded", "response", "answered")
        bodies = {name: HttpMessage((), Body(3, f"word{name}")) for name in names}
        store.add([record(id="1", rendered="wordrendered", **bodies)])
        assert all(ids(store.rows(Filter(text=f"word{name}"))) == ["1"] for name in (*names, "rendered"))

    def test_text_by_pages_in_both_directions(self, store: SqliteStore) -> None:
        store.add([with_body(str(number), "even" if number % 2 == 0 else "odd") for number in range(10)])
        first = store.rows(Filter(text="even"), limit=2)
        assert ids(first) == ["8", "6"]
        assert ids(store.rows(Filter(text="even"), before=first[-1].position)) == ["4", "2", "0"]
        assert ids(store.newer(Filter(text="even"), after=first[-1].position)) == ["8"]
        store.add([with_body("10", "even")])
        assert ids(store.newer(Filter(text="even"), after=first[0].position)) == ["10"]

    # Media

    def test_media(self, store: SqliteStore, new_store: NewStore) -> None:
        data = b"\x89PNG" * 1000
        sha256 = hashlib.sha256(data).hexdigest()
        store.keep_medium(sha256, "image/png", data)
        store.keep_medium(sha256, "image/jpeg", data)
        again = new_store()
        assert again.medium(sha256) == ("image/png", data)
        assert [again.medium(name) for name in ("0" * 64, "", "../../etc/passwd", "*", sha256[:-1] + "*")] == [None] * 5
        again.close()

    def test_media_types_of_any_text(self, store: SqliteStore) -> None:
        for media_type in ("image/svg+xml; a=../..%2f\n<b>", "", "x" * 1000, "ä/b"):
            data = media_type.encode()
            sha256 = hashlib.sha256(data).hexdigest()
            store.keep_medium(sha256, media_type, data)
            kept = media_type if media_type.isascii() and len(media_type) < 100 else "application/octet-stream"
            assert store.medium(sha256) == (kept, data)

    # Values and views

    def test_values(self, store: SqliteStore) -> None:
        named = structs.replace(FULL, id="1", status=200)
        store.add([FULL, named, *numbered(1, 2, 3)])
        assert store.values("agent") == ["a1", "Räuber"]
        assert store.values("agent", limit=1) == ["a1"]
        assert store.values("status") == ["200", "400"]
        assert store.values("notice") == ["N_ONE", "N_TWO", "P_ONE"]
        assert store.values("strategy") == ["wrap"]
        assert store.values("client") == ["192.0.2.7"]
        assert store.values("intent") == ["execute"]
        assert (store.values("type"), store.values("provider")) == (["flow"], ["bedrock/converse"])
        assert (store.values("route"), store.values("cluster")) == (["r1"], ["new"])
        with pytest.raises(InvalidFilter) as error:
            store.values("text")
        assert error.value.field == "text"

    def test_adoption(self, store: SqliteStore) -> None:
        legacy, unified, native = (
            Delivery("One", input_type="question"),
            Delivery("One", strategy="wrap", input_type="messages"),
            Delivery("One", strategy="native", input_type="text"),
        )
        refusal = RecordedError("undeliverable", "no")
        runs = [
            *numbered(1, 2, 3, delivery=legacy),
            *numbered(4, delivery=unified),
            *numbered(5, delivery=unified, error=refusal, status=400),
            *numbered(150, 151, delivery=native, intent="execute_stream"),
            *numbered(152, delivery=native, agent_id="a2"),
            *numbered(6, delivery=None, status=502),
            *numbered(7, intent="passthrough"),
            *numbered(-500, delivery=legacy),
        ]
        store.add(runs)
        forms = ("legacy", "unified", "native", "refused")
        rows = store.adoption(900.0, 100.0)
        assert [(row["agent_id"], row["bucket"], *(row[form] for form in forms)) for row in rows] == [
            ("a1", 1000, 3, 1, 0, 1),
            ("a1", 1100, 0, 0, 2, 0),
            ("a2", 1100, 0, 0, 1, 0),
        ]
        assert {row["agent_name"] for row in rows} == {"One"}

    def test_legacy_clients(self, store: SqliteStore) -> None:
        legacy = {"delivery": Delivery(input_type="question")}
        store.add(numbered(1, user_agent="curl", **legacy))
        store.add(numbered(2, 3, user_agent="java", **legacy))
        store.add(numbered(4, user_agent="new", delivery=Delivery(strategy="wrap")))
        store.add(numbered(-900, user_agent="old", **legacy))
        assert store.legacy_clients(1000.0) == [
            {"user_agent": "java", "agent_id": "a1", "agent_name": "", "requests": 2, "last": 1003.0},
            {"user_agent": "curl", "agent_id": "a1", "agent_name": "", "requests": 1, "last": 1001.0},
        ]

    def test_refusals(self, store: SqliteStore) -> None:
        def refused(*codes: str) -> dict[str, Any]:
            problems = tuple(RecordedProblem(code, "input", "no") for code in codes)
            return {"status": 400, "error": RecordedError("undeliverable", "no", problems)}

        store.add(numbered(1, 2, **refused("P1")))
        store.add(numbered(3, delivery=Delivery("One"), **refused("P1", "P2", "P2")))
        store.add(numbered(4, agent_id="a2", **refused()))
        store.add(numbered(5, status=502, error=RecordedError("upstream_unavailable", "gone")))
        store.add(numbered(6, status=404))
        store.add(numbered(-900, **refused("P1")))
        assert store.refusals(1000.0) == [
            {"agent_id": "a1", "agent_name": "One", "code": "P1", "requests": 3, "last": 1003.0},
            {"agent_id": "a1", "agent_name": "One", "code": "P2", "requests": 1, "last": 1003.0},
            {"agent_id": "a2", "agent_name": "", "code": "undeliverable", "requests": 1, "last": 1004.0},
        ]

    # Routes and mirrors

    def test_mirrors_are_shown_only_if_asked_for(self, store: SqliteStore) -> None:
        broken = Summary(broken=True)
        store.add([record(id="1", started=1000.0, conversation="c"), record(id="2", started=1001.0, summary=broken)])
        copy = {"route": "a1", "agent_id": "b1", "conversation": "c", "delivery": Delivery(input_type="question")}
        store.add([record(id="m1", started=1002.0, mirror_of="1", **copy)])
        store.add([record(id="m2", started=1003.0, mirror_of="2", **copy)])
        store.add([record(id="m3", started=1004.0, mirror_of="gone", status=502, **copy)])
        found = {
            "": ["2", "1"],
            "any": ["m3", "m2", "m1", "2", "1"],
            "yes": ["m3", "m2", "m1"],
            "same": ["m1"],
            "differs": ["m2"],
            "1": ["m1"],
            "g": ["m3"],
        }
        for mirror, wanted in found.items():
            assert ids(store.rows(Filter(mirror=mirror))) == wanted
            assert ids(store.newer(Filter(mirror=mirror), 0)) == wanted[::-1]
            assert store.overview(Filter(mirror=mirror)).exchanges == len(wanted)
        assert ids(store.rows(Filter(session="c"))) == ["1"]
        assert store.adoption(0.0, 60.0) == store.legacy_clients(0.0) == store.refusals(0.0) == []
        assert [ids(store.copies(id)) for id in ("1", "gone", "3", "", "ü")] == [["m1"], ["m3"], [], [], []]

    def test_runs_of_targets(self, store: SqliteStore) -> None:
        old, new = {"route": "a1"}, {"route": "a1", "agent_id": "b1", "cluster": "new", "delivery": Delivery("Bee")}
        no = RecordedError("undeliverable", "no", (RecordedProblem("P1", "input", "no"), RecordedProblem("P2", "", "")))
        store.add(numbered(1, 2, seconds=1.0, usage=Usage(100, 10, 0.5, "USD"), **old))
        store.add(numbered(3, seconds=9.0, usage=Usage(None, 5, 0.5, "EUR"), **old))
        store.add(numbered(4, status=502, error=RecordedError("upstream_unavailable", "gone"), **old))
        store.add(numbered(5, 6, 7, status=400, error=no, **new))
        store.add(numbered(8, summary=Summary(broken=True), **new))
        store.add(numbered(9, status=0, intent="execute_stream", **new))
        store.add(numbered(10, mirror_of="1", **new))
        store.add(numbered(11, intent="passthrough", **new))
        store.add(numbered(12))
        store.add(numbered(-900, **old))
        at_old, at_new = Target("a1", "a1", ""), Target("a1", "b1", "new")
        spent = (Spent("EUR", 0.5, 1), Spent("USD", 1.0, 2))
        assert store.target_runs(1000.0) == [
            TargetRuns(at_old, "", 4, 1, 0, 1.0, 9.0, 200, 25, 2, spent, 1004.0),
            TargetRuns(at_new, "Bee", 5, 2, 3, None, None, 0, 0, 0, (), 1009.0),
        ]
        assert store.target_faults(1000.0) == [
            TargetFaults(at_new, "P1", 400, True, 3, 1007.0),
            TargetFaults(at_new, "P2", 400, True, 3, 1007.0),
            TargetFaults(at_old, "upstream_unavailable", 502, False, 1, 1004.0),
            TargetFaults(at_new, "", 0, False, 1, 1009.0),
            TargetFaults(at_new, "", 200, False, 1, 1008.0),
        ]
        for status, wanted in (("failed", ["9", "8"]), ("refused", ["7", "6", "5"])):
            assert ids(store.rows(Filter(status=status, route="a1", agent="b1", cluster="new"))) == wanted

    def test_where_conversations_began(self, store: SqliteStore) -> None:
        """A conversation counts once, where and when its first run was; a run without one counts as one."""
        old, new = {"route": "a1"}, {"route": "a1", "agent_id": "b1"}
        store.add(numbered(150, conversation="c1", **new))  # stored first, as the first run took long
        store.add(numbered(1, conversation="c1", **old))
        store.add(numbered(2, conversation="c2", **new))
        store.add(numbered(120, 121, **new))
        store.add(numbered(3, conversation="m", mirror_of="1", **new))
        store.add(numbered(4, conversation="c3"))
        store.add(numbered(-900, conversation="c4", **old))
        store.add(numbered(5, conversation="c4", **old))
        assert store.beginnings(1000.0, 100.0) == [
            Beginnings(Target("a1", "a1", ""), 1000.0, 1),
            Beginnings(Target("a1", "b1", ""), 1000.0, 1),
            Beginnings(Target("a1", "b1", ""), 1100.0, 2),
        ]

    def test_mirrors_beside_their_originals(self, store: SqliteStore) -> None:
        new = {"route": "a1", "agent_id": "b1"}
        store.add(numbered(1, usage=Usage(100, 10), seconds=2.0))
        store.add(numbered(2, usage=Usage(50, 5), seconds=3.0))
        store.add(numbered(3, status=500, seconds=4.0))
        store.add(numbered(11, mirror_of="1", usage=Usage(70, 7), seconds=1.0, **new))
        store.add(numbered(12, mirror_of="2", seconds=1.5, summary=Summary(broken=True), **new))
        store.add(numbered(13, mirror_of="3", status=500, **new))
        store.add(numbered(14, mirror_of="gone", **new))
        store.add(numbered(15, mirror_of="1", route="r2", agent_id="c1", cluster="new", status=404))
        store.add(numbered(-900, mirror_of="1", **new))
        assert store.mirrors(1000.0) == [
            Mirrored(Target("a1", "b1", ""), 4, 3, 2, 1, 1, 77, 110, 1, 1.0, 2.0),
            Mirrored(Target("r2", "c1", "new"), 1, 1, 0, 1, 0, 0, 0, 0, 0.0, 0.0),
        ]

    def test_weights_are_noted_when_they_change(self, store: SqliteStore, new_store: NewStore) -> None:
        old, new = TargetWeight("a1", "", 95.0), TargetWeight("b1", "new", 5.0)
        half = (structs.replace(old, weight=50.0), structs.replace(new, weight=50.0))
        store.note_weights(1.0, {"a1": (old, new), "a2": (new,)})
        again = new_store()
        again.note_weights(2.0, {"a1": (old, new), "a2": (new,)})  # another worker, with the same settings
        again.note_weights(3.0, {"a1": half, "a2": (new,)})
        again.note_weights(4.0, {"a1": half})
        again.note_weights(5.0, {"a1": half})
        again.close()
        changes = [
            Weights(1.0, "a1", (old, new)),
            Weights(1.0, "a2", (new,)),
            Weights(3.0, "a1", half),
            Weights(4.0, "a2", ()),
        ]
        assert store.weights(0.0) == changes
        assert store.weights(3.5) == changes[1:]
        store.clear()
        assert store.weights(9.0) == changes[2:]

    # Sums

    def test_an_overview(self, store: SqliteStore) -> None:
        assert store.overview(Filter()) == Overview()
        used = [Usage(100, 10, 0.5, "USD"), Usage(200, 20, 0.25, "USD"), Usage(None, 1), None]
        for number, usage in enumerate(used):
            store.add(numbered(60 * number, seconds=1.0 + number, usage=usage, status=500 if number == 3 else 200))
        store.add(numbered(300, intent="passthrough", seconds=99.0, status=404))
        found = store.overview(Filter())
        assert (found.exchanges, found.runs, found.errors) == (5, 4, 2)
        assert (found.p50, found.p95) == (2.0, 4.0)
        assert (found.input_tokens, found.output_tokens, found.metered) == (300, 31, 2)
        assert found.spent == (Spent("USD", 0.75, 2),)
        assert (found.since, found.until) == (1000.0, 1300.0)
        assert sum(bucket.exchanges for bucket in found.buckets) == 5
        assert sum(bucket.errors for bucket in found.buckets) == 2
        assert all(bucket.start <= 1300 < bucket.start + 60 * found.seconds for bucket in found.buckets)
        errors = store.overview(Filter(status="error", text="hello"))
        assert (errors.exchanges, errors.runs, errors.p95) == (2, 1, 4.0)
        passed = store.overview(Filter(intent="passthrough"))
        assert (passed.runs, passed.p50, passed.spent) == (0, 99.0, ())

    def test_an_overview_in_two_currencies(self, store: SqliteStore) -> None:
        store.add(numbered(1, 2, usage=Usage(1, 1, 0.5, "USD")))
        store.add(numbered(3, usage=Usage(1, 1, 0.25, "EUR")))
        assert store.overview(Filter()).spent == (Spent("EUR", 0.25, 1), Spent("USD", 1.0, 2))

    @pytest.mark.parametrize("seconds", [10.0, 7200.0, 30 * 86400.0])
    def test_the_histogram_has_at_most_so_many_buckets(self, store: SqliteStore, seconds: float) -> None:
        store.add([record(id=str(n), started=1000.0 + n * seconds / 500) for n in range(501)])
        found = store.overview(Filter(), 40)
        assert 10 <= len(found.buckets) <= 40
        assert sum(bucket.exchanges for bucket in found.buckets) == 501
        assert len({bucket.start % found.seconds for bucket in found.buckets}) == 1

    def test_losses_are_added_up(self, store: SqliteStore, new_store: NewStore) -> None:
        assert store.losses() == []
        store.note_losses([Loss("queue", "", 5, 600.0), Loss("sqlite", "disk full", 1, 610.0)])
        again = new_store()
        again.note_losses([Loss("queue", "", 4, 615.0), Loss("queue", "", 2, 5000.0)])
        assert store.losses() == [Loss("queue", "", 11, 5000.0), Loss("sqlite", "disk full", 1, 610.0)]
        assert store.losses(since=700.0) == [Loss("queue", "", 2, 5000.0)]
        assert store.losses(until=700.0) == [Loss("queue", "", 9, 615.0), Loss("sqlite", "disk full", 1, 610.0)]
        again.clear()
        assert store.losses() == []
        again.close()

    # Clear

    def test_clear(self, store: SqliteStore) -> None:
        store.add(numbered(1, 2))
        data = b"medium"
        sha256 = hashlib.sha256(data).hexdigest()
        store.keep_medium(sha256, "image/png", data)
        assert ids(store.rows(Filter(text="hello"))) == ["2", "1"]
        store.clear()
        assert (store.rows(Filter()), store.rows(Filter(text="hello"))) == ([], [])
        assert (store.get("1"), store.medium(sha256), store.values("agent")) == (None, None, [])
        store.add(numbered(3))
        assert ids(store.rows(Filter(text="hello"))) == ["3"]
