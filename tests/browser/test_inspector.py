"""The inspector's page in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import OpenPage
from tests.inspector import exchanges
from tests.inspector.page_server import PageServer
from tests.inspector.temporary_store import TemporaryRecords
from tests.inspector.test_pages import attacked

pytestmark = pytest.mark.browser
ROW = "#rows [role=row]:not([hidden])"


def keep(records: TemporaryRecords, count: int = 40) -> None:
    """Store exchanges of the last minutes, and the picture that they refer to."""
    records.add(exchanges.mixed(count, time.time(), 300.0))
    records.keep_medium(exchanges.PICTURE_HASH, "image/png", exchanges.PICTURE)


def first_row(page: Page) -> Any:
    return page.locator(f"{ROW}[aria-rowindex='2']")


def test_live_rows_appear_on_top(open_page: OpenPage, records: TemporaryRecords) -> None:
    page = open_page()
    expect(page.get_by_text("Nothing yet")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("Live")
    records.add([exchanges.passed(1, time.time())])
    expect(first_row(page)).to_contain_text("/_cat/indices")
    records.add([exchanges.image_request(2, time.time())])
    expect(first_row(page)).to_contain_text("museum-guide")
    expect(page.locator(ROW)).to_have_count(2)
    expect(page.get_by_text("Nothing yet")).to_be_hidden()


def test_filters_are_in_the_address(open_page: OpenPage, records: TemporaryRecords) -> None:
    keep(records)
    page = open_page()
    expect(page.locator(ROW)).not_to_have_count(0)
    page.get_by_label("Status", exact=True).fill("4xx")
    page.get_by_label("Status", exact=True).press("Enter")
    expect(page.locator(ROW)).to_have_count(5)
    assert page.url.endswith("/inspector/?status=4xx")
    page.reload()
    expect(page.locator(ROW)).to_have_count(5)
    expect(page.get_by_label("Status", exact=True)).to_have_value("4xx")
    records.add([exchanges.passed(100, time.time()), exchanges.refused(101, time.time())])
    expect(page.locator(ROW)).to_have_count(6)
    assert "status=4xx" in str(page.get_by_role("link", name="Export HAR").get_attribute("href"))
    page.get_by_role("button", name="Reset filters").click()
    expect(page.get_by_label("Status", exact=True)).to_have_value("")
    page.go_back()
    expect(page.get_by_label("Status", exact=True)).to_have_value("4xx")
    expect(page.locator(ROW)).to_have_count(6)


def test_paused_rows_wait(open_page: OpenPage, records: TemporaryRecords) -> None:
    keep(records, 8)
    page = open_page("/inspector/?paused=1")
    expect(page.get_by_role("status")).to_have_text("Paused")
    records.add([exchanges.image_request(100, time.time())])
    resume = page.get_by_role("button", name="Resume, 1 new")
    expect(resume).to_be_visible()
    expect(page.locator(ROW)).to_have_count(8)
    resume.click()
    expect(page.locator(ROW)).to_have_count(9)
    assert "paused" not in page.url


def test_what_waited_and_is_in_the_list_now_is_not_counted(open_page: OpenPage, records: TemporaryRecords) -> None:
    keep(records, 8)
    page = open_page("/inspector/?paused=1")
    expect(page.get_by_role("status")).to_have_text("Paused")
    records.add([exchanges.image_request(100, time.time())])
    expect(page.get_by_role("button", name="Resume, 1 new")).to_be_visible()
    page.get_by_role("button", name="Filters", exact=True).click()
    page.get_by_label("Path", exact=True).fill("_execute")
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()


def test_a_live_list_whose_login_has_ended_asks_for_it_again(open_page: OpenPage, records: TemporaryRecords) -> None:
    page = open_page("/inspector/?status=4xx")
    expect(page.get_by_role("status")).to_have_text("Live")
    page.evaluate("fetch('/inspector/logout', {method: 'POST', headers: {'X-MLC-Inspector': '1'}})")
    page.wait_for_url("**/inspector/login?next=*status*")


def test_an_answer_that_is_not_whole_is_not_shown(open_page: OpenPage, records: TemporaryRecords) -> None:
    keep(records, 8)
    page = open_page()
    expect(page.locator(ROW)).to_have_count(8)
    page.route("**/api/exchanges?*", lambda route: route.fulfill(body='{"rows": ['))
    page.get_by_role("button", name="Filters", exact=True).click()
    page.get_by_label("Path", exact=True).fill("_execute")
    expect(page.locator("#problem")).to_have_text("The gateway's answer is not whole.")
    expect(page.locator(ROW)).to_have_count(8)


def test_a_list_that_could_not_be_read_is_read_again(open_page: OpenPage, records: TemporaryRecords) -> None:
    keep(records, 8)
    page = open_page("/inspector/login")
    page.route("**/api/exchanges?*", lambda route: route.fulfill(body='{"rows": ['))
    page.goto(page.url.replace("login", ""))
    expect(page.get_by_role("status")).to_have_text("Not live, trying again…")
    page.unroute("**/api/exchanges?*")
    expect(page.get_by_role("status")).to_have_text("Live")
    expect(page.locator(ROW)).to_have_count(8)
    expect(page.locator("#problem")).to_be_hidden()


def test_clear_asks_first(open_page: OpenPage, records: TemporaryRecords) -> None:
    keep(records, 8)
    page = open_page()
    page.get_by_role("button", name="Clear…").click()
    page.get_by_role("button", name="Keep them").click()
    expect(page.locator(ROW)).to_have_count(8)
    page.get_by_role("button", name="Clear…").click()
    page.get_by_role("button", name="Delete all").click()
    expect(page.get_by_text("Nothing yet")).to_be_visible()
    assert records.get("image-1") is None


def test_the_request_shows_where_the_image_went(open_page: OpenPage, records: TemporaryRecords) -> None:
    keep(records, 8)
    page = open_page("/inspector/?agent=museum-guide")
    first_row(page).click()
    page.wait_for_url("**/exchanges/*")
    page.get_by_role("link", name="Request", exact=True).click()
    moved = page.get_by_role("row").filter(has_text="input[1].source.data")
    expect(moved).to_contain_text("moved")
    expect(moved).to_contain_text("parameters.messages»[0].content[1].image.source.bytes")
    thumbnail = moved.get_by_role("img")
    expect(thumbnail).to_be_visible()
    page.wait_for_function("(image) => image.complete && image.naturalWidth > 0", arg=thumbnail.element_handle())
    page.get_by_role("link", name="Client → LLM").click()
    expect(page.get_by_role("region", name="LLM gets: body")).to_be_visible()
    page.get_by_role("link", name="← Exchanges").click()
    page.wait_for_url("**/inspector/?agent=museum-guide&selected=*")
    expect(page.locator(f"{ROW}.selected")).to_have_count(1)


def test_a_long_text_is_shown_whole_when_asked(open_page: OpenPage, records: TemporaryRecords) -> None:
    long = "word " * 2000 + "end"
    records.add([exchanges.image_request(request=exchanges.message({"input": long}), forwarded=None)])
    page = open_page("/inspector/exchanges/image-1?tab=request")
    assert "end" not in str(page.locator(".value").first.text_content())
    page.get_by_role("button", name="show all").click()
    expect(page.locator(".value.whole")).to_contain_text("end")


def test_a_medium_that_is_not_kept_is_named(open_page: OpenPage, records: TemporaryRecords) -> None:
    records.add([exchanges.image_request()])
    page = open_page("/inspector/login")
    page.route("**/inspector/media/*", lambda route: route.fulfill(status=200, body=""))  # a 404 would be an error
    page.goto(page.url.replace("login", "exchanges/image-1"))
    expect(page.get_by_text("not kept").first).to_be_visible()


def test_an_exchange_with_a_large_image_opens(open_page: OpenPage, records: TemporaryRecords) -> None:
    mark = exchanges.MARK.replace(f"length={len(exchanges.PICTURE)}", "length=50000000")
    body = {"input": [{"type": "image", "source": {"type": "base64", "format": "png", "data": mark}}]}
    records.add([exchanges.image_request(request=exchanges.message(body), forwarded=None, rendered="")])
    records.keep_medium(exchanges.PICTURE_HASH, "image/png", exchanges.PICTURE + bytes(50_000_000))
    page = open_page("/inspector/exchanges/image-1")
    expect(page.get_by_role("link", name="image/png 50.0 MB")).to_be_visible()
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    print(f"an exchange with an image of 50 MB: loaded after {loaded:.0f} ms")


def test_the_theme_follows_the_system_or_the_choice(open_page: OpenPage) -> None:
    page = open_page(color_scheme="dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(ground) == "rgb(15, 18, 24)"
    button = page.get_by_role("button", name="Theme")
    button.click()
    assert page.evaluate(ground) == "rgb(246, 247, 249)"
    page.reload()
    expect(button).to_have_text("Theme: light")
    assert page.evaluate(ground) == "rgb(246, 247, 249)"
    button.click()
    button.click()
    expect(button).to_have_text("Theme: auto")
    assert page.evaluate(ground) == "rgb(15, 18, 24)"


def test_logging_out_leads_to_the_login(open_page: OpenPage, server: PageServer) -> None:
    page = open_page()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.goto(f"{server.url}/inspector/")
    expect(page.get_by_label("Token")).to_be_visible()


def test_script_and_markup_in_every_field_do_nothing(open_page: OpenPage, records: TemporaryRecords) -> None:
    records.add([attacked()])
    page = open_page()
    expect(page.locator(ROW)).to_have_count(1)
    expect(first_row(page)).to_contain_text("<script>alert(1)</script>")
    records.add([attacked(1)])
    expect(page.locator(ROW)).to_have_count(2)
    one = f"/inspector/exchanges/{quote(attacked().id, safe='')}"
    tabs = [f"{one}?tab={tab}&to=llm" for tab in ("overview", "request", "response", "llm", "headers")]
    bad = quote('"><script>alert(3)</script>', safe="")
    for path in (*tabs, f"/inspector/?text={bad}&agent={bad}", "/inspector/migration?days=1", f"{one}?list={bad}"):
        page.goto(page.url.split("/inspector")[0] + path)
        expect(page.locator("main")).to_be_visible()
        assert page.locator("main script, main img[src=x]").count() == 0
    # The fixture asserts that there was no dialog and no error, such as a script that the policy stopped.


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_serious_fault(open_page: OpenPage, records: TemporaryRecords, scheme: str, width: int) -> None:
    keep(records, 64)
    page = open_page(color_scheme=scheme, viewport={"width": width, "height": 844})
    expect(page.locator(ROW)).not_to_have_count(0)
    faults = serious(page)
    origin = page.url.split("/inspector")[0]
    one = "/inspector/exchanges/image-0"
    for path in (
        f"{one}?tab=overview",
        f"{one}?tab=request",
        f"{one}?tab=headers",
        "/inspector/exchanges/refused-5",
        "/inspector/sessions/gws-0",
        "/inspector/?type=flow&range=today",
        "/inspector/migration",
        "/inspector/login",
    ):
        page.goto(origin + path)
        if path.endswith("migration"):
            expect(page.locator("#report")).to_have_attribute("aria-busy", "false")
        faults += serious(page)
    assert faults == []


def serious(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{page.url}: {one['id']}: {json.dumps([node['html'][:200] for node in one['nodes'][:3]])}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def test_ten_thousand_rows_scroll_with_few_in_the_document(open_page: OpenPage, records: TemporaryRecords) -> None:
    records.add(exchanges.mixed(10_000, time.time(), 86_400.0))
    page = open_page()
    expect(page.locator(ROW)).not_to_have_count(0)
    measured = page.evaluate(
        """async () => {
            const rows = document.getElementById("rows");
            const tasks = [];
            new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
                .observe({ type: "longtask" });
            let most = 0;
            const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
            const count = document.getElementById("count");
            const left = () => rows.scrollHeight - rows.scrollTop - rows.clientHeight;
            while (left() > 1 || count.textContent !== "10,000 shown") {
                rows.scrollTop += 1400;
                await frame();
                most = Math.max(most, document.querySelectorAll("#rows [role=row]").length);
            }
            await new Promise((resolve) => setTimeout(resolve, 200));
            return { most, tasks };
        }"""
    )
    print(f"10,000 rows: at most {measured['most']} in the document, tasks over 50 ms: {measured['tasks']}")
    assert 0 < measured["most"] <= 500
    expect(page.locator("#count")).to_have_text("10,000 shown")
    expect(page.locator(f"{ROW}[aria-rowindex='10001']")).to_be_visible()


def test_rows_that_came_while_older_ones_were_read_leave_no_gap(open_page: OpenPage, records: TemporaryRecords) -> None:
    """The list has its most rows after the new ones, so that the oldest are left out, before the older ones arrive."""
    held: list[Route] = []
    records.add([exchanges.passed(number, time.time()) for number in range(350)])
    page = open_page("/inspector/login")
    page.route("**/static/list.js", _with_most_rows(300))
    page.route("**/api/exchanges?*before=*", lambda route: held.append(route))
    with page.expect_request("**/api/exchanges?*before=*"):
        page.goto(page.url.replace("login", ""))
        expect(page.get_by_role("status")).to_have_text("Live")
        page.evaluate("document.getElementById('rows').scrollTop = 1e6")
    records.add([exchanges.passed(number, time.time()) for number in range(350, 500)])
    expect(page.locator("#count")).to_have_text("300+ shown")
    with page.expect_request_finished():
        held[0].continue_()
    assert _all_ids(page) == [f"passed-{number}" for number in range(499, 199, -1)]
    expect(page.locator("#count")).to_have_text("300+ shown")


def _with_most_rows(most: int) -> Callable[[Route], None]:
    """Return what sends the page's script with another limit."""

    def send(route: Route) -> None:
        answer = route.fetch()
        script, changed = re.subn(r"const MOST = \d+;", f"const MOST = {most};", answer.text())
        assert changed == 1
        route.fulfill(response=answer, body=script)

    return send


def _all_ids(page: Page) -> list[str]:
    """Return the ids of all rows of the list, from the first to the last."""
    found: list[str] = page.evaluate(
        """async () => {
            const rows = document.getElementById("rows");
            const found = new Map();
            const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
            for (let top = 0; top < rows.scrollHeight; top += 300) {
                rows.scrollTop = top;
                await frame();
                for (const row of rows.querySelectorAll("[role=row]:not([hidden])")) {
                    const id = row.querySelector(".c-talk a").href.split("/").pop();
                    found.set(Number(row.getAttribute("aria-rowindex")), id);
                }
            }
            return [...found].sort((one, other) => one[0] - other[0]).map((each) => each[1]);
        }"""
    )
    return found


def test_the_keyboard_is_enough(open_page: OpenPage, records: TemporaryRecords) -> None:
    keep(records, 300)
    page = open_page()
    expect(page.locator(ROW)).not_to_have_count(0)
    first_row(page).focus()
    for key, index in (("ArrowDown", "3"), ("ArrowDown", "4"), ("ArrowUp", "3"), ("Home", "2")):
        page.keyboard.press(key)
        expect(page.locator(f"{ROW}:focus")).to_have_attribute("aria-rowindex", index)
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    shown = str(page.locator(f"{ROW}:focus .c-talk a").get_attribute("href"))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{shown}")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("← Exchanges")


def test_keys_go_to_the_list_while_nothing_has_focus(open_page: OpenPage, records: TemporaryRecords) -> None:
    keep(records, 8)
    page = open_page()
    expect(page.locator(ROW)).to_have_count(8)
    page.keyboard.press("ArrowDown")
    expect(first_row(page)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(f"{ROW}[aria-rowindex='3']")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/inspector/exchanges/"))


def test_a_filter_that_can_not_be_used_is_marked(open_page: OpenPage, records: TemporaryRecords) -> None:
    keep(records, 8)
    page = open_page()
    expect(page.locator(ROW)).to_have_count(8)  # a filter ends a reading that is under way
    field = page.get_by_label("Status", exact=True)
    field.fill("bad")
    field.press("Enter")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("neither a status such as 404, nor a class such as 4xx, nor error")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("Not live")
    expect(page.locator(ROW)).to_have_count(8)


def test_the_connection_comes_back(open_page: OpenPage, records: TemporaryRecords, server: PageServer) -> None:
    page = open_page()
    expect(page.get_by_role("status")).to_have_text("Live")
    records.fails = "The disk is full."
    expect(page.locator("#problem")).to_have_text("The disk is full.")
    records.fails = ""
    records.add([exchanges.passed(1, time.time())])
    expect(page.locator(ROW)).to_have_count(1)
    expect(page.locator("#problem")).to_be_hidden()
