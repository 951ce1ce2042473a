"""The data of the migration page about routes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace

from gateway.inspector.migration import report
from gateway.recording.store import TargetWeight
from tests.inspector import exchanges
from tests.inspector.temporary_store import TemporaryRecords
from tests.inspector.test_pages import json_of, path_of, text_of

HOUR = 3600.0


def routes_of(records: TemporaryRecords, days: str = "1") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = report(records, days)["routes"]
    return found


def test_a_route_with_its_targets_side_by_side(records: TemporaryRecords) -> None:
    now = time.time()
    exchanges.keep_migration(records, now - 60, 12 * HOUR)
    [route] = routes_of(records)
    old, new = route["targets"]
    assert (route["route"], route["in_force"]) == (exchanges.ROUTE, True)
    assert [(one["agent"], one["cluster"], one["share"]) for one in (old, new)] == [
        (exchanges.ROUTE, "", 0.5),
        (exchanges.NEW_AGENT, exchanges.NEW_CLUSTER, 0.5),
    ]
    assert [one["runs"]["name"] for one in (old, new)] == ["support-desk", "support-desk-2"]
    assert [change["shares"] for change in route["weights"]] == [[1, 0], [0.95, 0.05], [0.5, 0.5]]
    assert sum(one["runs"]["runs"] for one in (old, new)) == 120
    assert {row["target"] for row in route["begun"]} == {0, 1}
    refusal, failure = new["faults"]
    assert (refusal["code"], refusal["refused"], refusal["upgrade"]) == ("MEDIA_NEEDS_UPGRADE", True, True)
    assert "mlc-gateway upgrade" in refusal["remedy"]
    assert (failure["code"], failure["status"], failure["meaning"]) == ("", 502, "the cluster answered 502")
    assert old["mirrors"] is None
    mirrors = new["mirrors"]
    assert mirrors["mirrors"] == mirrors["compared"] == mirrors["same"] + mirrors["differs"] == len(route["pairs"])
    for pair in route["pairs"]:
        assert pair["mirror"]["mirror_of"] == pair["original"]["id"]


def test_a_route_that_was_removed_is_shown_while_it_has_runs(records: TemporaryRecords) -> None:
    now = time.time()
    weights = (TargetWeight("new", "", 1.0),)
    records.note_weights(now - 9 * HOUR, {"a": weights, "b": weights})
    records.note_weights(now - 8 * HOUR, {})
    assert routes_of(records) == []
    records.add([replace(exchanges.routed(1, now - 10, True), route="a", agent_id="earlier", cluster="")])
    [route] = routes_of(records)
    assert (route["route"], route["in_force"]) == ("a", False)
    assert [(one["agent"], one["share"], one["runs"] is None) for one in route["targets"]] == [
        ("new", None, True),
        ("earlier", None, False),
    ]
    assert [change["shares"] for change in route["weights"]] == [[1, 0], [0, 0]]


def test_what_was_in_force_before_the_time_is_its_beginning(records: TemporaryRecords) -> None:
    now = time.time()
    for age, new in ((90, 0.0), (50, 1.0), (2, 3.0)):
        weights = [TargetWeight("old", "", 1.0), TargetWeight("new", "", new)]
        records.note_weights(now - age * HOUR, {"old": weights})
    [route] = routes_of(records)
    assert [change["shares"] for change in route["weights"]] == [[0.5, 0.5], [0.25, 0.75]]


@pytest.mark.parametrize(
    ("status", "meaning"), [(0, "was cut"), (200, "reports an error, or breaks off"), (503, "answered 503")]
)
def test_a_failure_without_a_code_says_what_is_known(records: TemporaryRecords, status: int, meaning: str) -> None:
    now = time.time()
    one = exchanges.routed(1, now, False, status=status)
    assert one.summary is not None
    records.add([replace(one, summary=replace(one.summary, broken=status == 200))])
    [[fault]] = [target["faults"] for target in routes_of(records)[0]["targets"]]
    assert meaning in fault["meaning"]
    assert (fault["refused"], fault["upgrade"]) == (False, False)


async def test_a_mirror_and_its_original_lead_to_each_other(client: ClientSession, records: TemporaryRecords) -> None:
    exchanges.keep_migration(records, time.time(), HOUR)
    for one, other, words in (("mirror-4", "old-4", "Its original"), ("old-4", "mirror-4", "Its mirror")):
        page = await text_of(client, path_of(one))
        assert f'href="/inspector/exchanges/{other}">{words}</a>' in page
        assert ("The whole conversation" in page) == (one == "old-4")
        beside = await text_of(client, path_of(one, "?tab=mirror"))
        original, mirror = beside.split('aria-label="Mirror"')
        assert "Your parcel is in Hamburg." in original
        assert "The cluster answered 502: the LLM is busy" in mirror
        assert "gpt-4o" in mirror  # of the LLM calls
        assert "gpt-5" in mirror
        assert 'data-exchange="/inspector/exchanges/old-4"' in mirror
    assert "tab=mirror" not in await text_of(client, path_of("old-5"))


async def test_a_pair_that_is_not_whole_says_so(client: ClientSession, records: TemporaryRecords) -> None:
    copy = exchanges.routed(1, 1_760_000_000.0, True, id="copy", mirror_of="gone")
    records.add([copy, exchanges.routed(2, 1_760_000_000.0, False, id="alone")])
    assert "Its original" not in await text_of(client, path_of("copy"))
    assert "is not recorded any more" in await text_of(client, path_of("copy", "?tab=mirror"))
    assert "No mirror of this run is recorded" in await text_of(client, path_of("alone", "?tab=mirror"))
    unrendered = [replace(copy, id="second", mirror_of="third", rendered=""), replace(copy, id="third", mirror_of="")]
    records.add(unrendered)
    assert "It was not recorded." in await text_of(client, path_of("second", "?tab=mirror"))


async def test_a_mirror_is_in_the_list_only_if_asked_for(client: ClientSession, records: TemporaryRecords) -> None:
    exchanges.keep_migration(records, time.time(), HOUR)
    rows = (await json_of(client, "/inspector/api/exchanges?limit=1000"))["rows"]
    assert len(rows) == 120
    copies = (await json_of(client, "/inspector/api/exchanges?limit=1000&mirror=yes"))["rows"]
    assert len(copies) == 10
    assert {row["mirror_of"] for row in copies} < {row["id"] for row in rows}
    [copy] = (await json_of(client, "/inspector/api/exchanges?mirror=old-8"))["rows"]
    assert (copy["route"], copy["cluster"]) == (exchanges.ROUTE, exchanges.NEW_CLUSTER)
