"""`mlc-gateway demo` in a browser while it runs."""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from haralyzer import HarParser
from playwright.sync_api import expect

from gateway.demo.bodies import bodies
from tests.browser.conftest import NewPage
from tests.wire import PATIENCE

pytestmark = pytest.mark.browser
ROW = "#rows [role=row]:not([hidden])"
FOUND = 3


class Demo(NamedTuple):
    """page: the address with the login. agent: the address of an agent, behind the gateway."""

    page: str
    agent: str


@pytest.fixture
def demo() -> Iterator[Demo]:
    command = [sys.executable, "-m", "gateway", "demo", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if line.startswith("Running"):
            break
    page = re.search(r"http\S+/inspector/login#\S+", shown)
    agent = re.search(r"curl -si '(\S+/_execute)'", shown)
    assert page
    assert agent
    yield Demo(page[0], agent[1])
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0


def test_the_demo_is_seen_as_it_happens(demo: Demo, new_page: NewPage) -> None:
    page = new_page(color_scheme="dark")
    page.goto(demo.page)
    page.wait_for_url("**/inspector/")
    expect(page.get_by_role("status")).to_have_text("Live")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(15, 18, 24)"
    expect(page.locator(ROW)).not_to_have_count(0)

    # A word of its own: only these requests are found, however many of the demo's own are still being stored.
    word = f"lighthouse{secrets.token_hex(4)}"
    body = json.dumps(bodies()["image"]).replace("highest", word).encode()
    for _ in range(FOUND):
        request = urllib.request.Request(demo.agent, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request).close()

    page.get_by_label("Text", exact=True).fill(word)
    page.get_by_label("Text", exact=True).press("Enter")
    expect(page.locator("#count")).to_have_text(f"{FOUND} shown")
    expect(page.locator(ROW)).to_have_count(FOUND)
    with page.expect_download() as download:
        page.get_by_role("link", name="Export HAR").click()
    entries = HarParser(json.loads(download.value.path().read_bytes())).har_data["entries"]
    assert len(entries) == FOUND
    assert all(word in entry["request"]["postData"]["text"] for entry in entries)

    page.locator(f"{ROW}[aria-rowindex='2']").click()
    page.wait_for_url("**/exchanges/*")
    page.get_by_role("link", name="Request", exact=True).click()
    moved = page.get_by_role("row").filter(has_text="input[1].source.data")
    expect(moved).to_contain_text("moved")
    thumbnail = moved.get_by_role("img")
    expect(thumbnail).to_be_visible()
    page.wait_for_function("(image) => image.complete && image.naturalWidth > 0", arg=thumbnail.element_handle())
