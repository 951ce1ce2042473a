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

CHROMIUM = "/usr/bin/chromium"
SIZES = {"1280": (1280, 800), "390": (390, 844)}
PAGES = {
    "list": "/inspector/",
    "request": "/inspector/exchanges/{image}?tab=request",
    "overview": "/inspector/exchanges/{image}",
    "migration": "/inspector/migration?days=7",
}


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


def main(folder: Path) -> None:
    """Take all pictures."""
    with PageServer(store()) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for size, (width, height) in SIZES.items():
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                page = context.new_page()
                page.goto(f"{server.url}/inspector/login#{TOKEN}")
                page.wait_for_url("**/inspector/")
                for name, address in PAGES.items():
                    page.goto(server.url + address.format(image="shown"))
                    ready(page)
                    page.screenshot(
                        path=folder / f"inspector-{name}-{size}-{scheme}.png",
                        full_page=name != "list" and len(sys.argv) > 1,
                    )
                context.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
