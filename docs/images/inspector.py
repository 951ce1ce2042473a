"""Takes pictures of the inspector's page: ``python docs/images/inspector.py`` writes `docs/images/inspector-*.png`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.inspector import exchanges  # noqa: E402
from tests.inspector.in_memory_store import InMemoryRecords  # noqa: E402
from tests.inspector.page_server import TOKEN, PageServer  # noqa: E402

FOLDER = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
LIST, MIGRATION = "/inspector/", "/inspector/migration?days=7"
REQUEST, OVERVIEW = "/inspector/exchanges/shown?tab=request", "/inspector/exchanges/shown"
WIDE, NARROW = (1280, 800), (390, 844)
PICTURES = (
    ("list-1280", LIST, WIDE, "light"),
    ("list-390", LIST, NARROW, "light"),
    ("request-1280", REQUEST, WIDE, "light"),
    ("request-390", REQUEST, NARROW, "light"),
    ("overview-1280-dark", OVERVIEW, WIDE, "dark"),
    ("list-390-dark", LIST, NARROW, "dark"),
    ("migration-1280", MIGRATION, WIDE, "light"),
    ("migration-390", MIGRATION, NARROW, "light"),
)


def store() -> InMemoryRecords:
    """Return a store with a week of exchanges."""
    records = InMemoryRecords()
    now = time.time()
    records.add(exchanges.mixed(900, now - 300, 6 * 86400))
    records.add(exchanges.mixed(80, now, 240))
    records.add([exchanges.image_request(1, now, id="shown")])
    records.keep_medium(exchanges.PICTURE_HASH, "image/png", exchanges.PICTURE)
    return records


def ready(page: Page) -> None:
    """Wait until all data and images are shown."""
    page.wait_for_load_state("load")
    page.wait_for_function(
        "document.querySelector('#grid') ? document.querySelectorAll('#rows [role=row]').length : true"
    )
    page.wait_for_function("document.querySelector('#report') ? report.getAttribute('aria-busy') === 'false' : true")
    page.wait_for_function("[...document.images].every((image) => image.complete || image.loading === 'lazy')")


def main() -> None:
    """Take all pictures."""
    with PageServer(store()) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, address, (width, height), scheme in PICTURES:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(f"{server.url}/inspector/login#{TOKEN}")
            page.wait_for_url("**/inspector/")
            page.goto(server.url + address)
            ready(page)
            page.screenshot(path=FOLDER / f"inspector-{name}.png", full_page=name == "request-1280")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
