"""Only who knows the token sees the pages, and other web pages can do nothing in its name."""

from __future__ import annotations

from http.cookies import SimpleCookie

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from gateway.admin.application import build_application
from gateway.app.supervisor import SupervisorPages
from gateway.config.schema import Secret
from gateway.observe.logs import configure
from tests.inspector import exchanges
from tests.inspector.page_server import TOKEN, admin_pages
from tests.inspector.temporary_store import TemporaryRecords

PRIVATE = [
    "/inspector/",
    "/inspector/migration",
    "/inspector/exchanges/image-1",
    "/inspector/exchanges/image-1/text?part=request",
    "/inspector/exchanges/image-1/curl",
    "/inspector/export.har",
    f"/inspector/media/{exchanges.PICTURE_HASH}",
    "/inspector/api/exchanges",
    "/inspector/api/exchanges/image-1",
    "/inspector/api/exchanges/image-1/diff",
    "/inspector/api/live",
    "/inspector/api/values",
    "/inspector/api/migration",
    "/%69nspector/",
    "/inspector/%65xport.har",
]
CLEAR = "/inspector/api/clear"
OWN = {"X-MLC-Inspector": "1"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)


@pytest.fixture(autouse=True)
def _recorded(records: TemporaryRecords) -> None:
    records.add([exchanges.image_request()])
    records.keep_medium(exchanges.PICTURE_HASH, "image/png", exchanges.PICTURE)


def origin(server: TestServer) -> dict[str, str]:
    return {"Origin": str(server.make_url("/")).rstrip("/")}


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Cookie": "mlc_inspector=wrong"}])
async def test_nothing_is_shown_without_the_token(server: TestServer, headers: dict[str, str]) -> None:
    async with ClientSession(headers=headers) as session:
        for path in PRIVATE:
            async with session.get(server.make_url(path)) as answer:
                assert (path, answer.status, answer.headers["WWW-Authenticate"]) == (path, 401, "Bearer")
                assert exchanges.QUESTION not in await answer.text()
                assert (await answer.json())["error"]["root_cause"][0]["type"] == "Unauthorized"


async def test_the_token_opens_every_page(client: ClientSession) -> None:
    for path in PRIVATE:
        if path.endswith("live"):
            continue
        async with client.get(path) as answer:
            assert (path, answer.status) == (path, 200)
            assert answer.headers["Content-Security-Policy"] == POLICY
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"


async def test_a_browser_is_sent_to_the_login_and_back(server: TestServer) -> None:
    page = "/inspector/exchanges/image-1?tab=request"
    async with ClientSession(server.make_url("/"), headers={"Accept": "text/html"}) as session:
        async with session.get(page) as answer:
            text = await answer.text()
            assert (answer.status, answer.url.path) == (200, "/inspector/login")
            assert 'name="next" value="/inspector/exchanges/image-1?tab=request"' in text
        sent = {"token": TOKEN, "next": page}
        async with session.post("/inspector/login", data=sent, headers=origin(server), allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, page)


async def test_the_cookie_is_not_the_token_and_stays_in_the_browser(server: TestServer) -> None:
    async with (
        ClientSession() as session,
        session.post(
            server.make_url("/inspector/login"),
            data={"token": TOKEN},
            headers={**origin(server), "X-Forwarded-Proto": "https"},
            allow_redirects=False,
        ) as answer,
    ):
        cookie = SimpleCookie(answer.headers["Set-Cookie"])["mlc_inspector"]
    assert TOKEN not in cookie.value
    assert len(cookie.value) > 40
    assert (cookie["samesite"], cookie["path"], cookie["httponly"]) == ("Strict", "/inspector", True)
    assert cookie["secure"] is True


@pytest.mark.parametrize("page", ["https://evil.example/", "//evil.example", "/metrics", "/inspector/\r\nX: y", ""])
async def test_the_login_leads_only_to_own_pages(server: TestServer, page: str) -> None:
    sent = {"token": TOKEN, "next": page}
    async with (
        ClientSession() as session,
        session.post(
            server.make_url("/inspector/login"), data=sent, headers=origin(server), allow_redirects=False
        ) as answer,
    ):
        assert (answer.status, answer.headers["Location"]) == (303, "/inspector/")


@pytest.mark.parametrize("token", ["", "wrong", "t0ken2", "\udcff"])
async def test_a_wrong_token_gets_no_cookie(server: TestServer, token: str) -> None:
    sent = f"token={token.encode('utf-8', 'surrogateescape').hex(' ').replace(' ', '%')}".encode()
    form = {"Content-Type": "application/x-www-form-urlencoded", **origin(server)}
    async with (
        ClientSession() as session,
        session.post(server.make_url("/inspector/login"), data=sent, headers=form) as answer,
    ):
        assert (answer.status, "Set-Cookie" in answer.headers) == (403, False)
        assert 'aria-invalid="true"' in await answer.text()


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("multipart/form-data", b"--x"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="token"\r\n\r\n\xff\r\n--x--',
        ),
        ("application/x-www-form-urlencoded; charset=none", b"token=%FF"),
        ("application/x-www-form-urlencoded", b"token=\xff&token=&next=%FF"),
    ],
)
async def test_what_is_no_form_has_no_token(server: TestServer, kind: str, sent: bytes) -> None:
    form = {"Content-Type": kind, **origin(server)}
    async with (
        ClientSession() as session,
        session.post(server.make_url("/inspector/login"), data=sent, headers=form) as answer,
    ):
        assert answer.status == 403


async def test_a_browser_that_has_logged_in_sees_the_pages_until_it_logs_out(
    browser: ClientSession, server: TestServer
) -> None:
    async with browser.get("/inspector/api/exchanges") as answer:
        assert (answer.status, len((await answer.json())["rows"])) == (200, 1)
    cookies = {"Cookie": "; ".join(f"{one.key}={one.value}" for one in browser.cookie_jar)}
    async with browser.post("/inspector/logout", headers={**OWN, **origin(server)}) as answer:
        assert answer.status == 200
    async with browser.get("/inspector/api/exchanges", headers=cookies) as answer:
        assert answer.status == 401


async def test_a_new_token_ends_what_began_with_the_old_one(records: TemporaryRecords) -> None:
    pages = admin_pages(records)
    async with (
        TestServer(build_application(pages, configure("critical", "json"))) as server,
        ClientSession() as session,
    ):
        url = server.make_url("/inspector/login")
        async with session.post(url, data={"token": TOKEN}, headers=origin(server), allow_redirects=False) as answer:
            cookies = {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}
        for token, status in ((TOKEN, 200), ("new", 401)):
            pages.token = Secret(token)
            async with session.get(server.make_url("/inspector/api/values"), headers=cookies) as answer:
                assert answer.status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        (OWN, 403),
        ({"Origin": "own"}, 403),
        ({"Origin": "https://evil.example", **OWN}, 403),
        ({"Origin": "null", **OWN}, 403),
        ({"Origin": "own", **OWN}, 200),
    ],
)
async def test_another_site_can_not_delete(
    browser: ClientSession, server: TestServer, records: TemporaryRecords, headers: dict[str, str], status: int
) -> None:
    own = origin(server)["Origin"]
    sent = {name: own if value == "own" else value for name, value in headers.items()}
    async with browser.post(CLEAR, headers=sent) as answer:
        assert answer.status == status
    assert (records.get("image-1") is None) == (status == 200)


@pytest.mark.parametrize("site", ["https://evil.example", "http://[x", "null"])
async def test_another_site_can_not_log_in(server: TestServer, site: str) -> None:
    async with (
        ClientSession(headers={"Origin": site}) as session,
        session.post(server.make_url("/inspector/login"), data={"token": TOKEN}) as answer,
    ):
        assert (answer.status, "Set-Cookie" in answer.headers) == (403, False)


async def test_the_token_itself_needs_no_origin(client: ClientSession, records: TemporaryRecords) -> None:
    async with client.post(CLEAR) as answer:
        assert (answer.status, records.get("image-1")) == (200, None)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("localhost", 200),
        ("[::1]:9601", 200),
        ("", 403),
        ("[x", 403),
    ],
)
async def test_other_names_of_a_loopback_address_are_refused(browser: ClientSession, host: str, status: int) -> None:
    cookies = {"Cookie": "; ".join(f"{one.key}={one.value}" for one in browser.cookie_jar)}
    async with browser.get("/inspector/api/values", headers={"Host": host, **cookies}) as answer:
        assert answer.status == status
        if status == 403:
            assert (await answer.json())["error"]["type"] == "Forbidden"


async def test_the_token_opens_the_port_by_any_name(client: ClientSession) -> None:
    async with client.get("/inspector/api/values", headers={"Host": "gateway.example"}) as answer:
        assert answer.status == 200


async def test_without_a_token_in_the_settings_nothing_is_shown(records: TemporaryRecords) -> None:
    pages = admin_pages(records, token="")
    async with (
        TestServer(build_application(pages, configure("critical", "json"))) as server,
        ClientSession() as session,
    ):
        for path in PRIVATE:
            async with session.get(server.make_url(path), headers={"Authorization": "Bearer "}) as answer:
                text = await answer.text()
                assert (answer.status, "listen:" in text, exchanges.QUESTION in text) == (401, True, False)


async def test_the_supervisor_asks_for_the_token_and_a_worker_for_none(records: TemporaryRecords) -> None:
    log = configure("critical", "json")
    pages = admin_pages(records, token="", is_private=True)
    async with TestServer(build_application(pages, log)) as worker:
        supervisor = SupervisorPages(2, lambda _: ClientSession(worker.make_url("/")), Secret(TOKEN))
        async with TestServer(build_application(supervisor, log)) as server, ClientSession() as session:
            for path in PRIVATE:
                async with session.get(server.make_url(path)) as answer:
                    assert answer.status == 401
            async with session.get(server.make_url("/inspector/login")) as answer:
                assert answer.status == 200
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            for path in (path for path in PRIVATE if not path.endswith("live")):
                async with session.get(server.make_url(path), headers=bearer) as answer:
                    assert (answer.status, answer.headers["Content-Security-Policy"]) == (200, POLICY)
            resumed = {**bearer, "Last-Event-ID": "0"}
            async with session.get(server.make_url("/inspector/api/live"), headers=resumed) as answer:
                assert answer.headers["X-Accel-Buffering"] == "no"
                while b"image-1" not in (line := await answer.content.readline()):
                    assert line
            pages.inspector.stop()


async def test_the_login_and_its_files_are_open(server: TestServer) -> None:
    async with ClientSession() as session:
        for path, kind in (
            ("login", "text/html"),
            ("static/page.css", "text/css"),
            ("static/login.js", "text/javascript"),
        ):
            async with session.get(server.make_url(f"/inspector/{path}")) as answer:
                assert (answer.status, answer.content_type) == (200, kind)
        for path in ("static/none.js", "static/..%2Faccess.py", "static/"):
            async with session.get(server.make_url(f"/inspector/{path}")) as answer:
                assert answer.status in (401, 404)
