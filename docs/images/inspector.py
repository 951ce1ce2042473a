"""Takes pictures of the inspector's page: ``python docs/images/inspector.py`` writes `docs/images/inspector-*.png`."""

from __future__ import annotations

import sys
import time
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from gateway.observe.record import ExchangeRecord, Usage  # noqa: E402
from gateway.recording.records import summarized  # noqa: E402
from gateway.recording.store import Loss  # noqa: E402
from tests.inspector import exchanges  # noqa: E402
from tests.inspector.page_server import TOKEN, PageServer  # noqa: E402
from tests.inspector.temporary_store import TemporaryRecords  # noqa: E402

FOLDER = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
PAGES = {
    "list": "/inspector/?range=24h",
    "run": "/inspector/exchanges/shown",
    "conversation": "/inspector/sessions/gws-visit",
    "migration": "/inspector/migration?days=7",
    "mirror": "/inspector/exchanges/mirror-64?tab=mirror",
}
SIZES = {"1280": (1280, 800), "390": (390, 844)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


class Story(NamedTuple):
    """A run that the pictures show often."""

    agent: str
    type: str
    question: str
    answer: str
    seconds: float
    usage: Usage | None
    strategy: str
    has_image: bool = False


STORIES = (
    Story(
        "museum-guide",
        "flow",
        exchanges.QUESTION,
        exchanges.ANSWER,
        1.28,
        Usage(1840, 22, 0.00585, "USD"),
        "wrap",
        True,
    ),
    Story(
        "holiday-planner",
        "conversational",
        "Where is it warm in November, and not too far from Berlin?",
        "Crete has 20 °C in November, and direct flights take three and a half hours.",
        3.9,
        Usage(2210, 148, 0.00884, "USD"),
        "messages",
    ),
    Story(
        "support-desk",
        "conversational",
        "The parcel has arrived, but the cup is broken. What now?",
        "I am sorry. Send us a picture of it, and we send you another one at once.",
        0.84,
        None,
        "text",
    ),
    Story(
        "invoice-reader",
        "plan_execute_and_reflect",
        "What is the total of this invoice, with tax?",
        "The total is 1,190.00 EUR, of which 190.00 EUR are tax.",
        8.2,
        Usage(5120, 61, 0.0163, "USD"),
        "native",
        True,
    ),
)


IDS = {
    "museum-guide": "Xq3vD5kBmuseum",
    "support-desk": "Zk81support",
    "holiday-planner": "Lw0mR2holiday",
    "invoice-reader": "Pq7cT4invoice",
}


def run(story: Story, number: int, started: float, **values: Any) -> ExchangeRecord:
    """Return the record of a run."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": story.question}]
    if story.has_image:
        source = {"type": "base64", "format": "png", "data": exchanges.MARK}
        blocks.append({"type": "image", "source": source})
    answer = {"inference_results": [{"output": [{"name": "response", "result": story.answer}]}]}
    record = exchanges.image_request(
        number,
        started,
        id=f"{story.agent}-{number}",
        seconds=story.seconds * (0.7 + number % 7 / 10),
        agent_id=IDS[story.agent],
        usage=story.usage,
        request=exchanges.message({"input": blocks}),
        response=exchanges.message(answer),
        answered=None,
        conversation=f"gws-{story.agent}-{number // 5}",
    )
    assert record.delivery is not None
    delivery = replace(
        record.delivery,
        agent_name=story.agent,
        type=story.type,
        strategy=story.strategy,
        notices=("SYSTEM_FOLDED",) if number % 9 == 0 else (),
    )
    return summarized(replace(record, delivery=delivery, **values))


def week(now: float) -> list[ExchangeRecord]:
    """Return a week of exchanges, busier by day than at night."""
    found = []
    for number in range(1400):
        started = now - 7 * 86400 * (1 - number / 1400) - 40
        if 7 <= time.localtime(started).tm_hour < 20 or number % 5 == 0:
            kind = number % 11
            if kind in (2, 7):
                found.append(exchanges.legacy(number, started))
            elif kind == 5:
                found.append(exchanges.refused(number, started))
            elif kind == 9:
                found.append(exchanges.passed(number, started))
            else:
                found.append(run(STORIES[number % 4], number, started))
    return found


def visit(now: float) -> list[ExchangeRecord]:
    """Return a conversation of three runs, whose memory is the gateway's."""
    guide = STORIES[0]
    later = guide._replace(
        question="And on which day should I come to see fewer people?",
        answer="Come on a Wednesday: with 310 visitors it has the fewest of the week.",
        has_image=False,
    )
    last = later._replace(question="Thank you!", answer="You are welcome. Enjoy the museum!")
    first = run(guide, 1, now - 30, id="shown", conversation="gws-visit")
    turns = [first]
    for number, story in enumerate((later, last), 1):
        record = run(story, number, now - 30 + 10 * number, id=f"visit-{number}", conversation="gws-visit")
        assert record.delivery is not None
        turns.append(replace(record, delivery=replace(record.delivery, remembered=2 * number)))
    return turns


def store() -> TemporaryRecords:
    """Return a store with a week of exchanges."""
    records = TemporaryRecords()
    now = time.time()
    exchanges.keep_migration(records, now - 100, 6 * 86400, 480)
    records.add([*week(now), exchanges.refused(5000, now - 50), *visit(now)])
    records.note_losses([Loss("queue", "", 209, now - 3600)])
    records.keep_medium(exchanges.PICTURE_HASH, "image/png", exchanges.PICTURE)
    return records


LAST = {"list": "#histogram svg", "migration": "#report[aria-busy=false]"}
"""What a page's script draws last."""


def ready(page: Page, name: str) -> None:
    """Wait until all data and images are shown."""
    page.wait_for_load_state("load")
    page.locator(LAST.get(name, "main")).wait_for()
    if name == "list":
        page.locator("#rows [role=row]").first.wait_for()
        page.locator("#rows img:not([hidden])").first.evaluate("(image) => image.decode()")
    else:
        page.wait_for_load_state("networkidle")


def main() -> None:
    """Take all pictures."""
    records = store()
    with PageServer(records) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for (name, address), (size, (width, height)), scheme in product(PAGES.items(), SIZES.items(), SCHEMES):
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(f"{server.url}/inspector/login#{TOKEN}")
            page.wait_for_url("**/inspector/")
            page.goto(server.url + address)
            ready(page, name)
            page.screenshot(path=FOLDER / f"inspector-{name}-{size}-{scheme}.png")
            page.close()
        browser.close()
    records.close()


if __name__ == "__main__":
    main()
