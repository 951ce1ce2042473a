"""What an operator asks the page, in a real browser: each is answered with three clicks or one search at most."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.sync_api import Locator, Page, expect

from gateway.observe.record import ExchangeRecord, Usage
from gateway.recording.records import summarized
from gateway.recording.store import Loss
from tests.browser.conftest import OpenPage
from tests.inspector import exchanges
from tests.inspector.temporary_store import TemporaryRecords

pytestmark = pytest.mark.browser
ROW = "#rows [role=row]:not([hidden])"
DAY = 86_400


class Visit:
    """Uses a page, and counts how often it clicks, chooses or searches."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.actions = 0

    def click(self, place: Locator) -> None:
        self.actions += 1
        place.click()

    def choose(self, label: str, value: str) -> None:
        self.actions += 1
        self.page.get_by_label(label, exact=True).select_option(value)

    def search(self, label: str, text: str) -> None:
        self.actions += 1
        self.page.get_by_label(label, exact=True).fill(text)

    def rows(self) -> Locator:
        return self.page.locator(ROW)


@pytest.fixture
def visit(open_page: OpenPage, records: TemporaryRecords) -> Iterator[Visit]:
    records.add(exchanges.mixed(32, time.time(), 300.0))
    records.keep_medium(exchanges.PICTURE_HASH, "image/png", exchanges.PICTURE)
    page = open_page()
    expect(page.locator(ROW)).not_to_have_count(0)
    visit = Visit(page)
    yield visit
    assert 1 <= visit.actions <= 3


def local(days: int, hour: int, minute: int) -> float:
    """Return a time of day, so many days ago, as the browser's zone has it."""
    then = time.localtime(time.time() - days * DAY)
    return time.mktime((then.tm_year, then.tm_mon, then.tm_mday, hour, minute, 0, 0, 0, -1))


def run(id: str, started: float, question: str, answer: str, **values: Any) -> ExchangeRecord:
    """Return a run of the agent for holidays."""
    document = {"inference_results": [{"output": [{"name": "response", "result": answer}]}]}
    record = exchanges.image_request(
        1,
        started,
        id=id,
        request=exchanges.message({"input": question}),
        forwarded=exchanges.message({"parameters": {"question": question}}),
        response=exchanges.message(document),
        answered=None,
        rendered="",
        conversation="",
    )
    delivery = record.delivery
    assert delivery is not None
    named = replace(record, delivery=replace(delivery, agent_name="holiday-planner", strategy="text"), **values)
    return summarized(named)


def test_an_image_request_was_refused_why(visit: Visit) -> None:
    visit.click(visit.page.get_by_title("Show only errors"))
    expect(visit.rows()).to_have_count(4)
    expect(visit.rows().first).to_contain_text("has no place for media")
    visit.click(visit.rows().first)
    page = visit.page
    expect(page.get_by_role("heading", level=1)).to_have_text("support-desk")
    expect(page.get_by_role("group", name="Why it failed")).to_contain_text("connector has no place for media")
    expect(page.get_by_role("region", name="Error")).to_contain_text(f"What to do: {exchanges.UPGRADE}")


def test_what_did_the_agent_answer_at_10_05(visit: Visit, records: TemporaryRecords) -> None:
    at = local(1, 10, 5)
    records.add(
        [
            run("early", at - 3600, "Where is it warm?", "In Crete."),
            run("asked", at + 2, "Where can I ski?", "In Zermatt, from November on."),
            run("late", at + 3600, "And to swim?", "In Naples."),
        ]
    )
    visit.search("Agent", "holiday-planner")
    expect(visit.rows()).to_have_count(3)
    row = visit.rows().filter(has_text="10:05:02")
    expect(row).to_contain_text("Where can I ski?")
    expect(row).to_contain_text("In Zermatt, from November on.")


def test_which_client_still_sends_legacy_requests(visit: Visit) -> None:
    visit.click(visit.page.get_by_role("link", name="Migration"))
    row = visit.page.get_by_role("region", name="Legacy clients").get_by_role("row").nth(1)
    expect(row).to_contain_text("Apache-HttpClient/5.3 (Java/17)")
    expect(row).to_contain_text("support-desk")


def test_what_did_yesterday_cost(visit: Visit, records: TemporaryRecords) -> None:
    usage = Usage(1000, 50, 0.25, "USD")
    records.add([run(f"run-{n}", local(1, 12, n), "Hello", "Hello!", usage=usage) for n in range(10)])
    records.add([run("before", local(2, 12, 0), "Hello", "Hello!", usage=usage)])
    visit.choose("Time", "Yesterday")
    expect(visit.page.locator("#s-cost")).to_have_text("$2.50")
    expect(visit.page.locator("#s-tokens")).to_have_text("10K / 500")


def test_show_me_this_conversation(visit: Visit, records: TemporaryRecords) -> None:
    now = time.time()
    spoken = [
        ("Where is it warm?", "In Crete."),
        ("And how do I get there?", "By ship, from Athens."),
        ("Thanks!", "Bye."),
    ]
    records.add([run(f"turn-{n}", now + n, *both, conversation="gws-trip") for n, both in enumerate(spoken)])
    row = visit.rows().filter(has_text="And how do I get there?")
    visit.click(row.get_by_role("link", name="conversation"))
    page = visit.page
    page.wait_for_url("**/inspector/sessions/gws-trip")
    expect(page.get_by_role("heading", level=1)).to_have_text("holiday-planner")
    said = page.locator(".turn .prose")
    expect(said).to_have_text([text for both in spoken for text in both])


# The strip, the banner, the order


def test_losses_are_said_with_their_reason(open_page: OpenPage, records: TemporaryRecords) -> None:
    records.add(exchanges.mixed(8, time.time(), 60.0))
    records.note_losses([Loss("queue", "", 209, time.time()), Loss("fault:TypeError", "TypeError: x", 1, time.time())])
    page = open_page()
    banner = page.locator("#losses")
    expect(banner).to_contain_text("209 exchanges were not recorded: requests came faster than they can be recorded.")
    expect(banner).to_contain_text("1 exchange was not recorded: a fault of the gateway")
    page.get_by_label("Time", exact=True).select_option("Yesterday")
    expect(banner).to_be_hidden()


def test_a_time_is_chosen_in_the_histogram(open_page: OpenPage, records: TemporaryRecords) -> None:
    records.add(exchanges.mixed(80, time.time(), 3600.0))
    page = open_page()
    bars = page.locator("#histogram")
    expect(bars).to_have_attribute("aria-label", re.compile("80 exchanges from"))
    box = bars.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20, steps=4)
    page.mouse.up()
    expect(page.get_by_label("Time", exact=True)).to_have_value("chosen")
    page.wait_for_url("**/inspector/?since=*&until=*")
    expect(bars).not_to_have_attribute("aria-label", re.compile("80 exchanges from"))
    assert 20 < page.locator(ROW).count() < 60
    page.reload()
    expect(page.get_by_label("Time", exact=True)).to_have_value("chosen")


def test_columns_are_sorted_and_say_so(open_page: OpenPage, records: TemporaryRecords) -> None:
    now = time.time()
    records.add([run("slow", now - 3, "a", "a", seconds=9.0), run("quick", now - 2, "b", "b", seconds=1.0)])
    records.add([run("middle", now - 1, "c", "c", seconds=5.0)])
    page = open_page()
    head = page.get_by_role("columnheader", name="Took")
    for order, shown in (("descending", "acb"), ("ascending", "bca")):
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", order)
        expect(page.locator(f"{ROW} .c-talk a")).to_have_text(list(shown))
    expect(page.get_by_role("status")).to_have_text("Sorted")
    records.add([run("new", now, "d", "d", seconds=7.0)])
    page.get_by_role("button", name="Show 1 new").click()
    expect(page.locator(f"{ROW} .c-talk a")).to_have_text(list("bcda"))


def test_the_list_is_in_the_order_of_the_times_that_it_shows(open_page: OpenPage, records: TemporaryRecords) -> None:
    """A long run is stored after the short ones that began later."""
    now = time.time()
    records.add([run("second", now - 20, "second", "x", seconds=0.1)])
    page = open_page()
    expect(page.locator(ROW)).to_have_count(1)
    records.add([run("third", now - 10, "third", "x"), run("first", now - 30, "first", "x", seconds=29.0)])
    expect(page.locator(f"{ROW} .c-talk a")).to_have_text(["third", "second", "first"])
    page.reload()
    expect(page.locator(f"{ROW} .c-talk a")).to_have_text(["third", "second", "first"])


# Keys


def test_keys_lead_through_list_and_exchanges(open_page: OpenPage, records: TemporaryRecords) -> None:
    now = time.time()
    records.add([run(f"run-{n}", now + n, f"question {n}", "x") for n in range(4)])
    page = open_page("/inspector/?agent=holiday-planner")
    expect(page.locator(ROW)).to_have_count(4)
    for key in "jjk":
        page.keyboard.press(key)
    expect(page.locator(f"{ROW}:focus")).to_contain_text("question 3")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/exchanges/run-2?*")
    page.keyboard.press("j")
    page.wait_for_url("**/exchanges/run-1?*")
    for id in ("run-2", "run-3"):
        page.keyboard.press("k")
        page.wait_for_url(f"**/exchanges/{id}?*")
    expect(page.get_by_role("link", name="Previous")).to_have_count(0)
    page.keyboard.press("Escape")
    page.wait_for_url("**/inspector/?agent=holiday-planner&selected=run-3")
    page.keyboard.press("/")
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()


# Narrow


CLIPPED = """() => [...document.querySelectorAll("main *, header *")].filter((one) => {
    const box = one.getBoundingClientRect();
    const scrolls = one.closest(".scroll, .tabs, .code, pre, svg, .hidden, .copy-as, [hidden], dialog, thead, .head");
    return !scrolls && box.width > 1 && box.height > 1 && (box.right > innerWidth + 1 || box.left < -1);
}).map((one) => one.outerHTML.slice(0, 100))"""


@pytest.mark.parametrize(
    "path",
    [
        "",
        "?type=flow",
        "exchanges/image-0",
        "exchanges/image-0?tab=request",
        "exchanges/refused-5",
        "sessions/gws-0",
        "migration",
    ],
)
def test_nothing_is_clipped_at_390_pixels(open_page: OpenPage, records: TemporaryRecords, path: str) -> None:
    records.add(exchanges.mixed(40, time.time(), 300.0))
    records.keep_medium(exchanges.PICTURE_HASH, "image/png", exchanges.PICTURE)
    page = open_page(f"/inspector/{path}", viewport={"width": 390, "height": 844})
    if path == "migration":
        expect(page.locator("#report")).to_have_attribute("aria-busy", "false")
    elif not path or path.startswith("?"):
        expect(page.locator(ROW)).not_to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(CLIPPED) == []


def test_the_empty_page_names_the_real_port(open_page: OpenPage) -> None:
    page = open_page()
    expect(page.get_by_text("Nothing yet")).to_be_visible()
    expect(page.locator("#empty-none pre")).to_contain_text("curl http://127.0.0.1:19209/_plugins/_ml/agents/")
