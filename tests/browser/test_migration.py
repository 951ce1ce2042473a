"""The routes of the migration page, in a real browser."""

from __future__ import annotations

import re
import time

import pytest
from msgspec.structs import replace
from playwright.sync_api import Locator, Page, expect

from gateway.recording.store import TargetWeight
from tests.browser.conftest import OpenPage
from tests.browser.test_inspector import serious
from tests.browser.test_journeys import CLIPPED
from tests.inspector import exchanges
from tests.inspector.temporary_store import TemporaryRecords
from tests.inspector.test_pages import ATTACK, attacked

pytestmark = pytest.mark.browser
ROW = "#rows [role=row]:not([hidden])"
DAY = 86_400.0


def migration_page(open_page: OpenPage, records: TemporaryRecords, **options: object) -> Page:
    """Open the page of a migration of the last days."""
    exchanges.keep_migration(records, time.time() - 60, 5 * DAY)
    page = open_page("/inspector/migration", **options)
    expect(page.locator("#report")).to_have_attribute("aria-busy", "false")
    return page


def cells(page: Page, table: str, row: str) -> dict[str, Locator]:
    """Return the cells of a row by the heads of their columns. row: a text in it."""
    found = page.get_by_role("region", name=f"{table} {exchanges.ROUTE}").locator("tbody tr").filter(has_text=row)
    return {str(one.get_attribute("data-head")): one for one in found.locator("td").all()}


def test_old_and_new_stand_side_by_side(open_page: OpenPage, records: TemporaryRecords) -> None:
    page = migration_page(open_page, records)
    old, new = (cells(page, "Targets of", name) for name in (exchanges.ROUTE, exchanges.NEW_AGENT))
    for row in (old, new):
        expect(row["Share"]).to_have_text("50%")
    expect(new["Target"]).to_contain_text("support-desk-2 Bn52support on new")
    expect(new["Refusals"]).to_contain_text("4")
    expect(old["Refusals"]).to_have_text("0")
    expect(old["Tokens a run"]).to_have_text("400 / 48")
    expect(new["Cost a run"]).to_have_text("$0.00210")
    expect(new["p95"]).to_have_text(re.compile(r"^\d+(\.\d+)? (ms|s)$"))


def test_each_number_leads_to_its_exchanges(open_page: OpenPage, records: TemporaryRecords) -> None:
    page = migration_page(open_page, records)
    counted = {
        "Targets of": ("Runs", "Errors", "Refusals"),
        "Mirrors of": ("Mirrors", "Same status", "Another status"),
        "What blocks the next step of": ("Runs",),
    }
    links = [
        (str(link.get_attribute("href")), int(re.findall(r"\d+", str(link.text_content()))[0]))
        for table, heads in counted.items()
        for head in heads
        for link in page.get_by_role("region", name=f"{table} {exchanges.ROUTE}")
        .locator(f"td[data-head='{head}'] a")
        .all()
    ]
    assert len(links) == 2 * 3 + 3 + 3
    assert sum(number > 0 for _, number in links) >= 9
    origin = page.url.split("/inspector")[0]
    for address, number in links:
        page.goto(origin + address)
        expect(page.get_by_role("status")).to_have_text("Live")
        expect(page.locator("#count")).to_have_text(f"{number} shown" if number else "")
        if number:
            expect(page.locator("#s-exchanges")).to_have_text(re.compile(rf"^{number} "))


def test_numbers_that_are_no_counts_lead_to_exchanges_in_their_order(
    open_page: OpenPage, records: TemporaryRecords
) -> None:
    page = migration_page(open_page, records)
    row = cells(page, "Targets of", exchanges.NEW_AGENT)
    addresses = {head: str(row[head].locator("a").get_attribute("href")) for head in ("p95", "Tokens a run", "Cost")}
    assert "sort=-tokens" in addresses["Tokens a run"]
    assert "sort=-cost" in addresses["Cost"]
    row["p95"].locator("a").click()
    expect(page.locator(ROW)).not_to_have_count(0)
    slowest = page.locator(ROW)
    assert slowest.count() <= 3
    expect(slowest.first).to_contain_text("support-desk-2")


def test_weights_over_time(open_page: OpenPage, records: TemporaryRecords) -> None:
    page = migration_page(open_page, records)
    changes = page.locator(".changes-of-weights li")
    expect(changes).to_have_count(3)
    for number, words in enumerate(
        (
            "support-desk 50%, support-desk-2 on new 50%",
            "support-desk 95%, support-desk-2 on new 5%",
            "support-desk 100%",
        )
    ):
        expect(changes.nth(number)).to_contain_text(words)
    chart = page.get_by_role("img", name=re.compile("^Weights: "))
    widths = [float(str(bar.get_attribute("width"))) for bar in chart.locator("rect").all()]
    heights = [float(str(bar.get_attribute("height"))) for bar in chart.locator("rect").all()]
    assert [round(height) for height in heights] == [72, 68, 4, 36, 36]
    assert widths[0] > widths[1] == pytest.approx(widths[2])
    expect(
        page.get_by_role("img", name=re.compile(r"^Conversations: support-desk \d+, support-desk-2"))
    ).to_be_visible()


def test_what_blocks_the_next_step_and_its_remedy(open_page: OpenPage, records: TemporaryRecords) -> None:
    page = migration_page(open_page, records)
    row = cells(page, "What blocks the next step of", "MEDIA_NEEDS_UPGRADE")
    expect(row["What would end them"]).to_contain_text("mlc-gateway upgrade")
    expect(row["Runs"]).to_have_text("4 refused")
    row["Runs"].locator("a").click()
    expect(page.locator(ROW)).to_have_count(4)
    expect(page.locator(ROW).first).to_contain_text("MEDIA_NEEDS_UPGRADE")


def test_a_mirror_stands_beside_its_original(open_page: OpenPage, records: TemporaryRecords) -> None:
    page = migration_page(open_page, records)
    pairs = page.get_by_role("region", name=f"Newest mirrors of {exchanges.ROUTE}").locator("tbody tr")
    expect(pairs).to_have_count(10)
    pairs.filter(has_text="The cluster answered 502").last.get_by_role("link").click()
    for name, answer in (("Original", "Your parcel is in Hamburg."), ("Mirror", "The cluster answered 502")):
        expect(page.get_by_role("region", name=name, exact=True)).to_contain_text(answer)
    expect(page.get_by_role("region", name="First LLM call of both")).to_contain_text("gpt-5")
    page.get_by_role("link", name="Its original").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("support-desk")
    page.get_by_role("link", name="Its mirror").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("support-desk-2")


def test_a_long_text_of_the_other_run_is_shown_whole(open_page: OpenPage, records: TemporaryRecords) -> None:
    now = time.time()
    calls = [f'{{"text": "{"word " * 500}{end}"}}' for end in ("first", "second")]
    records.add([exchanges.routed(1, now, False, rendered=calls[0])])
    records.add([exchanges.routed(2, now, True, id="copy", mirror_of="old-1", rendered=calls[1])])
    page = open_page("/inspector/exchanges/copy?tab=mirror")
    for title, end in (("original", "first"), ("mirror", "second")):
        side = page.get_by_role("region", name=f"LLM call of the {title}", exact=True)
        side.get_by_role("button", name="show all").click()
        expect(side.locator(".value.whole")).to_contain_text(end)


def test_mirrors_are_in_the_list_by_a_filter(open_page: OpenPage, records: TemporaryRecords) -> None:
    exchanges.keep_migration(records, time.time(), 3600.0, 32)
    page = open_page()
    expect(page.locator("#count")).to_have_text("32 shown")
    page.get_by_role("button", name="Filters", exact=True).click()
    page.get_by_label("Mirrors", exact=True).fill("yes")
    expect(page.locator("#count")).to_have_text("3 shown")
    expect(page.locator(ROW).first).to_contain_text("mirror")
    page.reload()
    expect(page.get_by_label("Mirrors", exact=True)).to_have_value("yes")
    expect(page.locator("#count")).to_have_text("3 shown")


def test_without_routes_nothing_is_said_of_them(open_page: OpenPage, records: TemporaryRecords) -> None:
    records.add(exchanges.mixed(8, time.time(), 60.0))
    page = open_page("/inspector/migration")
    expect(page.locator("#report")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#routes")).to_be_hidden()


def test_markup_in_the_names_of_a_route_is_shown_as_it_is(open_page: OpenPage, records: TemporaryRecords) -> None:
    run = replace(attacked(), id="run", intent="execute")
    records.add([run, replace(run, id="copy", mirror_of="run")])
    records.note_weights(time.time(), {ATTACK: [TargetWeight(ATTACK, ATTACK, 1.0)]})
    page = open_page("/inspector/migration")
    expect(page.locator(".route h2 code")).to_have_text(ATTACK)
    assert page.locator("main script, main img[src=x]").count() == 0
    page.goto(page.url.replace("migration", "exchanges/copy?tab=mirror"))
    expect(page.locator("main")).to_be_visible()
    assert page.locator("main script, main img[src=x]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_serious_fault_and_nothing_is_clipped(
    open_page: OpenPage, records: TemporaryRecords, scheme: str, width: int
) -> None:
    page = migration_page(open_page, records, color_scheme=scheme, viewport={"width": width, "height": 844})
    faults = serious(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CLIPPED) == []
    for path in ("exchanges/mirror-4?tab=mirror", "exchanges/mirror-4", "exchanges/old-4"):
        page.goto(f"{page.url.split('/inspector')[0]}/inspector/{path}")
        faults += serious(page)
        assert page.evaluate(CLIPPED) == []
    assert faults == []
