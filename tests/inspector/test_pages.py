"""The pages and their data, for a client that knows the token."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import ClientPayloadError, ClientSession
from aiohttp.test_utils import TestServer
from msgspec.structs import replace
from yarl import URL

from gateway.admin.application import build_application
from gateway.inspector import pages
from gateway.observe.logs import configure
from gateway.observe.record import (
    Body,
    Delivery,
    ExchangeRecord,
    HttpMessage,
    RecordedError,
    RecordedProblem,
    Step,
    Usage,
)
from gateway.recording.records import summarized
from gateway.recording.store import Loss
from tests.inspector import exchanges
from tests.inspector.page_server import TOKEN, admin_pages
from tests.inspector.temporary_store import TemporaryRecords

TEMPLATES = Path(pages.__file__).parent / "templates"
TABS = ("overview", "request", "response", "llm", "headers", "mirror")
ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}</pre>"


def attacked(number: int = 0) -> ExchangeRecord:
    """An exchange whose every text carries script and markup."""
    problem = RecordedProblem(ATTACK, ATTACK, ATTACK)
    body = json.dumps({ATTACK: ATTACK, "a": [f"{ATTACK * 10}", json.dumps({ATTACK: ATTACK})]})
    message = HttpMessage(((ATTACK, ATTACK),), Body(len(body), body, omitted=ATTACK))
    delivery = Delivery(ATTACK, ATTACK, ATTACK, ATTACK, ATTACK, ATTACK, ATTACK, (ATTACK,))
    return ExchangeRecord(
        id=f"{number}{ATTACK}",
        started=time.time(),
        seconds=0.1,
        method=ATTACK,
        target=ATTACK,
        intent=ATTACK,
        status=400,
        client=ATTACK,
        user_agent=ATTACK,
        agent_id=ATTACK,
        delivery=delivery,
        error=RecordedError(ATTACK, ATTACK, (problem,)),
        usage=Usage(1, 2, 0.5, ATTACK),
        conversation=ATTACK,
        trace_id=ATTACK,
        steps=(Step(ATTACK, 0.0, 0.1),),
        request=message,
        forwarded=replace(message, body=replace(message.body, text=json.dumps({"b": ATTACK, ATTACK: [ATTACK]}))),
        rendered=body,
        response=message,
        answered=replace(message, body=Body(len(ATTACK), ATTACK)),
        guardrails=({ATTACK: ATTACK},),
        route=ATTACK,
        cluster=ATTACK,
    )


def path_of(id: str, rest: str = "") -> str:
    return f"/inspector/exchanges/{quote(id, safe='')}{rest}"


async def text_of(client: ClientSession, path: str, status: int = 200) -> str:
    async with client.get(URL(path, encoded=True)) as answer:
        assert answer.status == status
        return await answer.text()


async def json_of(client: ClientSession, path: str, status: int = 200) -> Any:
    return json.loads(await text_of(client, path, status))


async def test_rows_newest_first_by_pages(client: ClientSession, records: TemporaryRecords) -> None:
    records.add(exchanges.mixed(25, 1_760_000_000.0, 100.0))
    seen, before = [], ""
    while True:
        page = await json_of(client, f"/inspector/api/exchanges?limit=10{before}")
        seen += [row["position"] for row in page["rows"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert seen == list(range(25, 0, -1))


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x"])
async def test_a_limit_out_of_range_is_refused(client: ClientSession, limit: str) -> None:
    answer = await json_of(client, f"/inspector/api/exchanges?limit={limit}", 400)
    assert answer["error"]["problems"][0]["field"] == "limit"


async def test_a_row_holds_what_the_list_shows(client: ClientSession, records: TemporaryRecords) -> None:
    records.add([exchanges.image_request(), exchanges.refused(2, 1_760_000_000.0)])
    refused, image = (await json_of(client, "/inspector/api/exchanges"))["rows"]
    assert image == {
        "position": 1,
        "id": "image-1",
        "started": 1_760_000_000.0,
        "seconds": 1.284,
        "method": "POST",
        "target": "/_plugins/_ml/agents/Xq3vD5kBmuseum/_execute",
        "intent": "execute",
        "status": 200,
        "agent": "museum-guide",
        "agent_id": "Xq3vD5kBmuseum",
        "type": "flow",
        "provider": "bedrock/converse",
        "strategy": "wrap",
        "codes": ["SYSTEM_FOLDED"],
        "notices": ["SYSTEM_FOLDED"],
        "problems": [],
        "input_tokens": 1840,
        "output_tokens": 22,
        "error": "",
        "cost": 0.00585,
        "currency": "USD",
        "session": "gws-0",
        "route": "",
        "cluster": "",
        "mirror_of": "",
        "question": exchanges.QUESTION,
        "answer": exchanges.ANSWER,
        "image": exchanges.PICTURE_HASH,
        "media": 1,
    }
    assert (refused["codes"], refused["error"]) == (["MEDIA_NEEDS_UPGRADE"], "UndeliverableContent")
    assert refused["answer"] == "[input[1].source] this agent's connector has no place for media"


async def test_rows_in_another_order(client: ClientSession, records: TemporaryRecords) -> None:
    records.add([exchanges.passed(n, 1_760_000_000.0 + n % 3) for n in range(5)])
    records.add([exchanges.image_request(9, 1_760_000_000.0)])
    seen, before = [], ""
    while True:
        page = await json_of(client, f"/inspector/api/exchanges?sort=-took&limit=2{before}")
        seen += [row["id"] for row in page["rows"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert seen == ["image-9", *(f"passed-{n}" for n in (4, 3, 2, 1, 0))]
    answer = await json_of(client, "/inspector/api/exchanges?sort=size", 400)
    assert answer["error"]["problems"][0]["field"] == "sort"
    answer = await json_of(client, "/inspector/api/exchanges?before=99", 400)
    assert "was deleted" in answer["error"]["problems"][0]["reason"]


async def test_an_overview_with_losses_in_words(client: ClientSession, records: TemporaryRecords) -> None:
    records.add(exchanges.mixed(16, 1_760_000_000.0, 600.0))
    records.note_losses([Loss("queue", "", 1209, 1_760_000_000.0), Loss("opensearch", "429", 1, 1_760_000_000.0)])
    found = await json_of(client, "/inspector/api/overview?since=1700000000&status=4xx")
    assert (found["exchanges"], found["errors"], found["runs"]) == (2, 2, 2)
    assert found["losses"] == [
        "1,209 exchanges were not recorded: requests came faster than they can be recorded. Record less "
        "(`inspector.passthrough: none`), or raise `inspector.queue` and `inspector.queue_bytes`.",
        "1 exchange was not written to opensearch: the data stream of OpenSearch failed. The log has the error: 429.",
    ]
    assert (await json_of(client, "/inspector/api/overview?until=1700000000"))["losses"] == []
    await json_of(client, "/inspector/api/overview?limit=1", 400)


async def test_a_conversation_is_a_page(client: ClientSession, records: TemporaryRecords) -> None:
    turns = [
        exchanges.image_request(1, 1_760_000_000.0, conversation="gws/1"),
        exchanges.legacy(2, 1_760_000_060.0),
        exchanges.image_request(
            3,
            1_760_000_120.0,
            conversation="gws/1",
            status=400,
            answered=exchanges.message({"error": {"reason": "too many tokens"}, "status": 400}),
            delivery=Delivery("museum-guide", remembered=2),
        ),
    ]
    records.add(turns[::-1])
    page = await text_of(client, "/inspector/sessions/gws%2F1")
    assert page.count('class="card turn"') == 2
    assert page.index(exchanges.ANSWER) < page.index("The cluster answered 400: too many tokens")
    assert "From memory: 2 earlier messages of this conversation" in page
    assert "Where is my parcel" not in page
    assert "No run of the conversation none is recorded" in await text_of(client, "/inspector/sessions/none", 404)


async def test_an_exchange_knows_its_neighbours_in_the_list(client: ClientSession, records: TemporaryRecords) -> None:
    records.add(exchanges.mixed(16, 1_760_000_000.0, 600.0))
    page = await text_of(client, "/inspector/exchanges/image-6?list=agent%3Dmuseum-guide%26range%3D7d")
    assert re.findall(r'id="(previous|next)" href="/inspector/exchanges/([^?]+)', page) == [
        ("previous", "image-8"),
        ("next", "image-3"),
    ]
    page = await text_of(client, "/inspector/exchanges/image-6?list=agent%3Dmuseum-guide%26sort%3Dtime")
    assert 'id="next" href="/inspector/exchanges/image-8?' in page
    for broken in ("agnet%3Da", "status%3Dbad", "sort%3Dx", "text%3D*"):
        assert 'id="next"' not in await text_of(client, f"/inspector/exchanges/image-6?list={broken}")


async def test_a_strategy_explains_itself_and_no_card_is_empty(
    client: ClientSession, records: TemporaryRecords
) -> None:
    records.add([exchanges.image_request(1), exchanges.passed(2, 1.0)])
    page = await text_of(client, "/inspector/exchanges/image-1")
    assert "<b>wrap</b> The conversation is in the agent&#39;s parameter for messages" in page
    assert "Timeline" in page
    passed = await text_of(client, "/inspector/exchanges/passed-2")
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", passed) == ["Facts", "Copy this", "Keys"]


async def test_a_failed_passthrough_says_what_the_cluster_said(
    client: ClientSession, records: TemporaryRecords
) -> None:
    body = exchanges.message({"error": {"type": "index_not_found_exception", "reason": "no such index [x]"}})
    records.add([summarized(replace(exchanges.passed(1, 1.0), status=404, response=body))])
    row = (await json_of(client, "/inspector/api/exchanges"))["rows"][0]
    assert row["answer"] == "The cluster answered 404: no such index [x]"
    assert "The cluster answered 404: no such index [x]" in await text_of(client, "/inspector/exchanges/passed-1")


async def test_a_thumbnail_that_is_not_kept_is_a_picture_of_one(
    client: ClientSession, records: TemporaryRecords
) -> None:
    records.keep_medium(exchanges.PICTURE_HASH, "image/png", exchanges.PICTURE)
    for sha256, kind in ((exchanges.PICTURE_HASH, "image/png"), ("0" * 64, "image/svg+xml")):
        async with client.get(f"/inspector/media/{sha256}?thumbnail=1") as answer:
            assert (answer.status, answer.content_type) == (200, kind)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("agent=museum-guide", ["image-1"]),
        ("status=4xx", ["refused-2"]),
        ("status=error", ["refused-2"]),
        ("notice=MEDIA_NEEDS_UPGRADE", ["refused-2"]),
        ("text=parcel", ["legacy-3"]),
        ("path=_cat&status=", ["passed-4"]),
        ("agent=museum-guide&status=400", []),
    ],
)
async def test_filters(client: ClientSession, records: TemporaryRecords, query: str, ids: list[str]) -> None:
    now = time.time()
    records.add(
        [exchanges.image_request(1), exchanges.refused(2, now), exchanges.legacy(3, now), exchanges.passed(4, now)]
    )
    rows = (await json_of(client, f"/inspector/api/exchanges?{query}"))["rows"]
    assert [row["id"] for row in rows] == ids


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("status=4zz", ["status"]),
        ("since=soon", ["since"]),
        ("since=nan&until=inf", ["since", "until"]),
        ("agnet=a", ["agnet"]),
        ("agent=a&agent=b", ["agent"]),
        ("before=-1", ["before"]),
        ("before=99999999999999999999", ["before"]),
    ],
)
async def test_a_filter_that_can_not_be_used_is_named(client: ClientSession, query: str, fields: list[str]) -> None:
    document = await json_of(client, f"/inspector/api/exchanges?{query}", 400)
    assert [problem["field"] for problem in document["error"]["problems"]] == fields


async def test_a_whole_exchange(client: ClientSession, records: TemporaryRecords) -> None:
    records.add([exchanges.image_request()])
    document = await json_of(client, "/inspector/api/exchanges/image-1")
    assert (document["delivery"]["strategy"], len(document["steps"])) == ("wrap", 5)
    missing = await json_of(client, "/inspector/api/exchanges/none", 404)
    assert missing["error"]["type"] == "NotRecorded"
    assert "none" in missing["error"]["reason"]


async def test_where_the_image_went(client: ClientSession, records: TemporaryRecords) -> None:
    records.add([exchanges.image_request()])
    document = await json_of(client, "/inspector/api/exchanges/image-1/diff?side=request")
    assert ["moved", "input[1].source.data", "parameters.messages»[0].content[1].image.source.bytes"] in [
        one[:3] for one in document["changes"]
    ]
    llm = await json_of(client, "/inspector/api/exchanges/image-1/diff?to=llm")
    assert ["moved", "input[1].source.data", "messages[0].content[1].image.source.bytes"] in [
        one[:3] for one in llm["changes"]
    ]
    answer = await json_of(client, "/inspector/api/exchanges/image-1/diff?side=response")
    assert ["moved", "inference_results[0].output[0].result", "message.content[0].text"] in [
        one[:3] for one in answer["changes"]
    ]
    await json_of(client, "/inspector/api/exchanges/image-1/diff?side=left", 400)


@pytest.mark.parametrize("tab", TABS)
async def test_each_tab_of_each_kind(client: ClientSession, records: TemporaryRecords, tab: str) -> None:
    bare = ExchangeRecord("bare", 1.0, 0.0, "GET", "/", "passthrough", 0)
    raw = replace(bare, id="raw", request=HttpMessage((), Body(3, "AAAA", "base64")), response=HttpMessage())
    records.add([exchanges.image_request(), exchanges.refused(2, 1.0), exchanges.passed(3, 1.0), bare, raw])
    for id in ("image-1", "refused-2", "passed-3", "bare", "raw"):
        assert "</html>" in await text_of(client, f"/inspector/exchanges/{id}?tab={tab}&to=llm&list=agent%3Da")


async def test_a_refusal_says_what_to_do(client: ClientSession, records: TemporaryRecords) -> None:
    records.add([exchanges.refused(1, 1_760_000_000.0), exchanges.image_request(2)])
    refused, sent = [await text_of(client, f"/inspector/exchanges/{name}") for name in ("refused-1", "image-2")]
    assert (exchanges.UPGRADE in refused, exchanges.UPGRADE in sent) == (True, False)
    assert (">Proved<" in refused, ">Proved<" in sent) == (False, True)


async def test_the_request_shows_the_thumbnail_and_never_the_image_itself(
    client: ClientSession, records: TemporaryRecords
) -> None:
    records.add([exchanges.image_request()])
    page = await text_of(client, "/inspector/exchanges/image-1?tab=request")
    assert f'<img src="/inspector/media/{exchanges.PICTURE_HASH}"' in page
    assert "base64," not in page
    assert "data:" not in page


async def test_a_page_of_errors_names_what_is_wrong(client: ClientSession) -> None:
    assert "there is no such tab" in await text_of(client, "/inspector/exchanges/a?tab=none", 400)
    assert "There is no record of the exchange a" in await text_of(client, "/inspector/exchanges/a", 404)
    assert "1, 7, 30" in await text_of(client, "/inspector/migration?days=2", 400)


async def test_long_texts_are_cut_and_can_be_had_whole(client: ClientSession, records: TemporaryRecords) -> None:
    long = "word " * 1000
    body = json.dumps({"input": [{"text": long}], "inner": json.dumps({"text": long})})
    records.add([exchanges.image_request(request=exchanges.message(body), forwarded=None)])
    page = await text_of(client, "/inspector/exchanges/image-1?tab=request")
    assert "show all, 4600 more characters" in page
    assert len(page) < 20_000
    for path in ('["input",0,"text"]', '["inner",null,"text"]'):
        assert await text_of(client, f"/inspector/exchanges/image-1/text?part=request&path={path}") == long
    assert await text_of(client, "/inspector/exchanges/image-1/text?part=request") == body
    await text_of(client, '/inspector/exchanges/image-1/text?part=request&path=["none"]', 404)
    await text_of(client, "/inspector/exchanges/image-1/text?part=none", 404)
    await text_of(client, "/inspector/exchanges/image-1/text?part=request&path={", 400)


async def test_a_surrogate_in_json_is_shown_as_its_escape(client: ClientSession, records: TemporaryRecords) -> None:
    sent, got = ({"\ud800": name, "input": "\ud83d cut"} for name in ("one", "two"))
    request, forwarded = exchanges.message(sent), exchanges.message(got)
    records.add([exchanges.image_request(1, request=request, forwarded=forwarded, response=request)])
    for tab in TABS:
        page = await text_of(client, path_of("image-1", f"?tab={tab}"))
        assert (r"\ud83d cut" in page) == (tab in ("request", "response"))
    assert await text_of(client, path_of("image-1", '/text?part=request&path=["input"]')) == r"\ud83d cut"
    found = json.loads(await text_of(client, "/inspector/api/exchanges/image-1/diff"))
    assert [change[1] for change in found["changes"]] == ["\ud800"]


@pytest.mark.parametrize("path", ["{}", "[[1]]", "[{}]", "[1.5]", "[", "0"])
async def test_a_path_that_is_none_is_refused(client: ClientSession, records: TemporaryRecords, path: str) -> None:
    records.add([exchanges.image_request(1)])
    assert "a JSON list" in await text_of(client, path_of("image-1", f"/text?part=request&path={quote(path)}"), 400)


async def test_bodies_of_many_lines_are_cut(client: ClientSession, records: TemporaryRecords) -> None:
    body = json.dumps([{"n": n} for n in range(20_000)])
    records.add([exchanges.image_request(request=exchanges.message(body), forwarded=None)])
    page = await text_of(client, "/inspector/exchanges/image-1?tab=request")
    assert "Only the first lines are shown" in page
    assert page.count('class="line') == 3000


async def test_bodies_that_are_too_large_are_not_read(client: ClientSession, records: TemporaryRecords) -> None:
    body = json.dumps({"input": "x" * 2_100_000})
    large = exchanges.message(body)
    records.add([exchanges.image_request(request=large), exchanges.image_request(2, request=large, forwarded=None)])
    for id in ("image-1", "image-2"):
        page = await text_of(client, f"/inspector/exchanges/{id}?tab=request")
        assert "too large to be shown here" in page
        assert ("too large to be compared here" in page) == (id == "image-1")
        assert "Open the whole body" in page
        assert await text_of(client, f"/inspector/exchanges/{id}/text?part=request") == body


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("image/png", "image/png"),
        ("image/svg+xml", "application/octet-stream"),
        ("text/html", "application/octet-stream"),
        ("application/pdf", "application/octet-stream"),
    ],
)
async def test_only_raster_images_are_shown(
    client: ClientSession, records: TemporaryRecords, kind: str, shown: str
) -> None:
    data = b"<svg onload=alert(1)>"
    sha256 = hashlib.sha256(data).hexdigest()
    records.keep_medium(sha256, kind, data)
    async with client.get(f"/inspector/media/{sha256}") as answer:
        assert (answer.status, answer.content_type, await answer.read()) == (200, shown, data)
        assert ("attachment" in answer.headers.get("Content-Disposition", "")) == (shown != kind)
    for path in ("0" * 64, "..%2F..%2Fetc%2Fpasswd", "A" * 64):
        async with client.get(f"/inspector/media/{path}") as answer:
            assert answer.status == 404


async def test_values_for_filters(client: ClientSession, records: TemporaryRecords) -> None:
    records.add(exchanges.mixed(8, 1_760_000_000.0, 100.0))
    values = await json_of(client, "/inspector/api/values")
    assert values["agent"] == ["museum-guide", "support-desk"]
    assert set(values) == {"agent", "type", "provider", "strategy", "status", "notice", "route", "cluster"}


async def test_migration(client: ClientSession, records: TemporaryRecords) -> None:
    records.add(exchanges.mixed(80, time.time(), 3600.0))
    report = await json_of(client, "/inspector/api/migration?days=1")
    total: dict[str, int] = {}
    for row in report["adoption"]:
        for form in ("legacy", "unified", "native", "refused"):
            total[form] = total.get(form, 0) + row[form]
    assert total == {"legacy": 10, "unified": 30, "native": 0, "refused": 10}
    assert [(row["user_agent"], row["requests"]) for row in report["legacy_clients"]] == [
        ("Apache-HttpClient/5.3 (Java/17)", 10)
    ]
    (refusal,) = report["refusals"]
    assert (refusal["code"], refusal["requests"], "mlc-gateway upgrade" in refusal["remedy"]) == (
        "MEDIA_NEEDS_UPGRADE",
        10,
        True,
    )


async def test_files(client: ClientSession, records: TemporaryRecords) -> None:
    records.add(exchanges.mixed(250, time.time(), 3600.0))
    har = await json_of(client, "/inspector/export.har?agent=museum-guide")
    assert len(har["log"]["entries"]) == 94
    await json_of(client, "/inspector/export.har?agnet=a", 400)
    records.add([exchanges.legacy(1000, time.time())])
    for form, word in (("curl", "curl "), ("python", "import requests"), ("pytest", "def test_")):
        assert word in await text_of(client, f"/inspector/exchanges/legacy-1000/{form}")


async def test_a_har_file_that_can_not_be_finished_breaks_off(
    client: ClientSession, records: TemporaryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = exchanges.message(json.dumps("x" * 300_000))
    records.add([exchanges.image_request(n, id=f"i{n}", request=large) for n in range(10)])
    whole, asked = records.get, []

    def get(id: str) -> ExchangeRecord | None:
        asked.append(id)
        if len(asked) > 5:
            records.fails = "The disk is full."
        return whole(id)

    monkeypatch.setattr(records, "get", get)
    async with client.get("/inspector/export.har") as answer:
        with pytest.raises(ClientPayloadError):
            await answer.read()


async def test_a_store_that_fails_is_reported(client: ClientSession, records: TemporaryRecords) -> None:
    records.fails = "The file exchanges.db can't be read: disk I/O error."
    document = await json_of(client, "/inspector/api/exchanges", 503)
    assert (document["error"]["type"], document["error"]["reason"]) == ("RecordsUnavailable", records.fails)
    assert "disk I/O error" in await text_of(client, "/inspector/exchanges/a", 503)


async def test_without_recording_the_page_says_how_to_turn_it_on() -> None:
    async with TestServer(build_application(admin_pages(None), configure("critical", "json"))) as server:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with ClientSession(server.make_url("/"), headers=headers) as client:
            for path in ("/inspector/", "/inspector/migration"):
                page = await text_of(client, path)
                assert "enabled: true" in page
                assert "stores: [sqlite]" in page
                assert "list.js" not in page
            document = await json_of(client, "/inspector/api/exchanges", 503)
            assert document["error"]["help"] == "Set inspector.enabled to true, with sqlite in inspector.stores."


@pytest.mark.parametrize("tab", TABS)
async def test_markup_in_any_field_is_escaped(client: ClientSession, records: TemporaryRecords, tab: str) -> None:
    records.add([attacked()])
    for to in ("cluster", "llm"):
        page = await text_of(client, path_of(attacked().id, f"?tab={tab}&to={to}&list=%3Cscript%3Ealert(3)%22%3E"))
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert" not in page
        assert "<img src=x" not in page


async def test_the_filters_in_the_address_are_escaped(client: ClientSession) -> None:
    page = await text_of(
        client, "/inspector/?text=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&agent=%22onfocus=alert(1)%20"
    )
    assert "<script>alert" not in page
    assert 'value="&#34;onfocus=alert(1) "' in page


@pytest.mark.parametrize("template", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_the_pages_have_no_inline_script_or_style(template: Path) -> None:
    source = template.read_text()
    assert not re.search(
        r"\sstyle=|\son[a-z]+=|<style|<script(?![^>]*\bsrc=\"/inspector/static/)|javascript:|\|\s*safe", source
    )
