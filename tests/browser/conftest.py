"""Debian's Chromium, headless, started once; and the inspector's page on a free port."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, expect, sync_playwright

from tests.inspector.page_server import TOKEN, PageServer
from tests.inspector.temporary_store import TemporaryRecords

CHROMIUM = Path("/usr/bin/chromium")
NewPage = OpenPage = Callable[..., Page]

expect.set_options(timeout=60_000)


def is_fault(message: ConsoleMessage) -> bool:
    """Browsers report a refused filter (400), a login that has ended (401) and a cut live list as errors, too."""
    expected = ("responded with a status of 400", "responded with a status of 401", "ERR_INCOMPLETE_CHUNKED_ENCODING")
    return message.type == "error" and not any(text in message.text for text in expected)


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    if not CHROMIUM.exists() and os.environ.get("MLC_REQUIRE_BROWSER") != "1":
        pytest.skip(f"{CHROMIUM} is not installed; MLC_REQUIRE_BROWSER=1 makes this a failure")
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield browser
    browser.close()


@pytest.fixture
def new_page(chromium: Browser) -> Iterator[NewPage]:
    """Makes pages with ``new_page(**context)``. Whatever they report as an error fails the test."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def new(**options: Any) -> Page:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: faults.append(message.text) if is_fault(message) else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        return page

    yield new
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def records() -> Iterator[TemporaryRecords]:
    records = TemporaryRecords()
    yield records
    records.close()


@pytest.fixture
def server(records: TemporaryRecords) -> Iterator[PageServer]:
    with PageServer(records) as server:
        yield server


@pytest.fixture
def open_page(server: PageServer, new_page: NewPage) -> OpenPage:
    """Opens pages with ``open_page(path, **context)``, logged in. They are closed before the server ends."""

    def open_(path: str = "/inspector/", **options: Any) -> Page:
        page = new_page(**options)
        page.goto(f"{server.url}/inspector/login#{TOKEN}")
        page.wait_for_url("**/inspector/")
        page.goto(server.url + path)
        return page

    return open_
