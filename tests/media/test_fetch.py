"""What a fetch sends, accepts and refuses, with a real TLS server on loopback."""

from __future__ import annotations

import asyncio
import base64
import gzip
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from gateway.errors import Problem, UndeliverableContent
from gateway.media.fetch import Fetcher
from gateway.ports import MediaContent
from gateway.unified.model import Media, MediaKind, Url
from tests.media.server import HOST, PNG, MediaServer, Names, medium, stalled
from tests.wire import PATIENCE

FETCHED = MediaContent("png", base64.b64encode(PNG))
HEADERS = {"User-Agent": "mlc-gateway", "Accept": "*/*", "Accept-Encoding": "identity"}


async def refused(fetch: Fetcher, *blocks: Media) -> list[Problem]:
    with pytest.raises(UndeliverableContent) as caught:
        await fetch(blocks)
    assert {problem.code for problem in caught.value.problems} == {"MEDIA_NOT_FETCHED"}
    return list(caught.value.problems)


async def reason(fetch: Fetcher, url: str) -> str:
    (problem,) = await refused(fetch, medium(url))
    return problem.reason.removeprefix("The image can't be fetched: ")


async def test_what_came_is_told_as_base64(server: MediaServer) -> None:
    url = server.serve("/a%20b.png?q=1%2F2")
    server.serve("/a b.png")
    assert await server.fetcher()([medium(url)]) == [FETCHED]


async def test_nothing_goes_along_but_the_url(
    server: MediaServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine {HOST} login me password secret\n")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NETRC", str(netrc))
    server.serve("/png")
    url = server.redirect("/first", "/png#part", Set_Cookie="a=b; Path=/")
    await server.fetcher()([medium(url + "#part")])
    sent = {"Host": f"{HOST}:{server.port}", **HEADERS, "Connection": "close"}
    assert server.requests == [("/first", sent), ("/png", sent)]
    assert server.server_names == [HOST, HOST]


async def test_a_redirect_to_another_allowed_host_is_followed(server: MediaServer) -> None:
    server.serve("/png")
    for status in (301, 302, 303, 307, 308):
        url = server.redirect(f"/{status}", server.url("/png", f"cdn.{HOST}"), status)
        assert await server.fetcher()([medium(url)]) == [FETCHED]
    assert server.server_names == [HOST, f"cdn.{HOST}"] * 5


async def test_redirects_are_counted(server: MediaServer) -> None:
    server.serve("/0")
    for hop in range(1, 5):
        server.redirect(f"/{hop}", f"/{hop - 1}")
    fetch = server.fetcher()
    assert await fetch([medium(server.url("/3"))]) == [FETCHED]
    assert await reason(fetch, server.url("/4")) == "its host redirects too often"
    assert await reason(server.fetcher(redirects=0), server.url("/1")) == "its host redirects too often"


async def test_http_is_fetched_by_choice(authority: trustme.CA) -> None:
    async with MediaServer(authority, secure=False) as server:
        url = server.serve("/png")
        (problem,) = await refused(server.fetcher(), medium(url))
        assert (problem.reason, problem.expected) == (
            "The image can't be fetched: media are not fetched from URLs of this scheme",
            "https",
        )
        assert problem.help == "Send it as base64. The operator allows http with the setting media.http."
        assert server.requests == []
        assert await server.fetcher(http=True)([medium(url)]) == [FETCHED]


@pytest.mark.parametrize(
    ("host", "hosts", "allowed"),
    [
        ("cdn.media.test", ["*.media.test:{port}"], True),
        ("a.cdn.media.test", ["*.media.test:{port}"], True),
        ("media.test", ["*.media.test:{port}"], False),
        ("evilmedia.test", ["*.media.test:{port}", "media.test:{port}"], False),
        ("media.test.evil.test", ["media.test:{port}", "*.media.test:{port}"], False),
        ("media.test", ["media.test"], False),
        ("media.test", ["media.test:1", "media.test:{port}"], True),
        ("media.test", [], False),
    ],
)
async def test_hosts_and_ports_are_those_that_the_operator_names(
    server: MediaServer, host: str, hosts: list[str], allowed: bool
) -> None:
    server.serve("/png")
    names = Names({host: [["127.0.0.1"]]})
    fetch = server.fetcher(names, hosts=[one.format(port=server.port) for one in hosts])
    if allowed:
        await fetch([medium(server.url("/png", host))])
        assert names.asked == [host]
    else:
        found = await reason(fetch, server.url("/png", host))
        assert found == "the URL's host is not one that media may be fetched from"
        assert names.asked == []


async def test_a_certificate_for_another_name_is_not_accepted(server: MediaServer) -> None:
    server.serve("/png")
    names = Names({"other.test": [["127.0.0.1"]]})
    fetch = server.fetcher(names, hosts=[f"other.test:{server.port}"])
    found = await reason(fetch, server.url("/png", "other.test"))
    assert found == "no secure connection to its host: its certificate or its TLS is not accepted"
    assert server.requests == []


async def test_a_certificate_of_an_unknown_authority_is_not_accepted(server: MediaServer) -> None:
    url = server.serve("/png")
    stranger = MediaServer(trustme.CA(), port=server.port)
    assert "certificate" in await reason(stranger.fetcher(), url)
    assert server.requests == []


@pytest.mark.parametrize("status", [201, 204, 206, 304, 400, 401, 403, 404, 429, 500, 503])
async def test_any_status_but_200_is_told(server: MediaServer, status: int) -> None:
    assert await reason(server.fetcher(), server.serve("/x", b"", status)) == f"its host answered with status {status}"


async def test_a_redirect_that_leads_nowhere_is_a_status(server: MediaServer) -> None:
    assert await reason(server.fetcher(), server.serve("/x", b"", 302)) == "its host answered with status 302"


async def test_a_name_that_nobody_knows(server: MediaServer) -> None:
    fetch = server.fetcher(Names({}))
    assert await reason(fetch, server.serve("/x")) == "its host's name can't be resolved"


async def test_a_host_that_takes_no_connection(server: MediaServer) -> None:
    fetch = server.fetcher(Names({HOST: [["127.0.0.3"]]}), lambda _: True)
    assert await reason(fetch, server.serve("/x")) == "no connection to its host"


BROKEN = "its host's answer breaks off or is not HTTP"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"hello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 99\r\n\r\n" + PNG[:20],
        b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n" + PNG[:5] + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "no HTTP", "short", "chunks cut off", "bad chunk", "endless header"],
)
async def test_an_answer_that_is_none(authority: trustme.CA, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as raw:
        web = MediaServer(authority, port=raw.sockets[0].getsockname()[1], secure=False)
        assert await reason(web.fetcher(http=True), web.url("/png")) == BROKEN


LIMIT = {"max_bytes": len(PNG)}


async def test_what_is_just_small_enough(server: MediaServer) -> None:
    assert await server.fetcher(**LIMIT)([medium(server.serve("/png"))]) == [FETCHED]


async def test_a_declared_size_is_refused_before_its_body(server: MediaServer) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "image/png", "Content-Length": str(10**12)})
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    server.pages["/bomb"] = never
    (problem,) = await refused(server.fetcher(**LIMIT), medium(server.url("/bomb")))
    assert problem.reason == "The image can't be fetched: it is too large"
    assert (problem.expected, problem.received) == (f"at most {len(PNG)} bytes", "1000000000000 bytes")


async def test_an_undeclared_size_is_refused_where_it_passes_the_limit(server: MediaServer) -> None:
    cut_off = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "image/png"})
        await response.prepare(request)
        await response.write(PNG)
        try:
            while True:
                await response.write(bytes(65536))
                await asyncio.sleep(0)
        except ConnectionError:
            cut_off.set()
        return response

    server.pages["/bomb"] = endless
    assert await reason(server.fetcher(max_bytes=100_000), server.url("/bomb")) == "it is too large"
    async with asyncio.timeout(PATIENCE):
        await cut_off.wait()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "x-other"])
async def test_a_compressed_answer_is_not_unpacked(server: MediaServer, coding: str) -> None:
    url = server.serve("/bomb", gzip.compress(bytes(50_000_000), 1), Content_Encoding=coding)
    found = await reason(server.fetcher(), url)
    assert found == "its host sent it compressed, although the gateway asked for no compression"


async def test_the_media_of_a_request_are_limited_together(server: MediaServer) -> None:
    url = server.serve("/png")
    blocks = [medium(url, at=f"input[{index}]") for index in range(3)]
    fetch = server.fetcher(max_total_bytes=3 * len(PNG))
    assert await fetch(blocks) == [FETCHED] * 3
    problems = await refused(server.fetcher(max_total_bytes=3 * len(PNG) - 1), *blocks)
    assert [(p.reason, p.expected) for p in problems] == [
        (
            "The image can't be fetched: the media of the request are too large together",
            f"at most {3 * len(PNG) - 1} bytes",
        )
    ]


async def test_media_are_counted_before_any_is_fetched(server: MediaServer) -> None:
    url = server.serve("/png")
    blocks = [medium(url, at=f"input[{index}]") for index in range(4)]
    problems = await refused(server.fetcher(max_count=2), *blocks)
    assert [(p.place, p.expected, p.received) for p in problems] == [
        ("input[2]", "at most 2", "4"),
        ("input[3]", "at most 2", "4"),
    ]
    assert server.requests == []


async def test_a_slow_body_is_given_up(server: MediaServer) -> None:
    server.pages["/slow"] = stalled
    for limit, within in (
        ({"seconds": 0.2}, "within 0.2 seconds"),
        ({"total_seconds": 0.2}, "all media of the request within 0.2 seconds"),
    ):
        [problem] = await refused(server.fetcher(**limit), medium(server.url("/slow")))
        assert "it took too long" in problem.reason
        assert problem.expected == within


async def test_the_time_of_redirects_counts_together(server: MediaServer) -> None:
    async def again(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.1)
        return web.Response(status=302, headers={"Location": "/again"})

    server.pages["/again"] = again
    assert await reason(server.fetcher(seconds=0.3, redirects=1000), server.url("/again")) == "it took too long"


async def test_media_are_fetched_at_once_and_come_in_their_order(server: MediaServer) -> None:
    gate = asyncio.Barrier(3)

    def page(body: bytes) -> None:
        async def answer(_: web.Request) -> web.Response:
            await gate.wait()
            return web.Response(body=body, content_type="image/png")

        server.pages[f"/{body[-1]}"] = answer

    bodies = [PNG + bytes([index]) for index in range(3)]
    for body in bodies:
        page(body)
    fetched = await server.fetcher(concurrency=3)([medium(server.url(f"/{body[-1]}")) for body in bodies])
    assert fetched == [MediaContent("png", base64.b64encode(body)) for body in bodies]


async def test_fetches_of_all_requests_share_one_bound(server: MediaServer) -> None:
    both = asyncio.Barrier(2)

    async def answer(_: web.Request) -> web.Response:
        await both.wait()
        return web.Response(body=PNG, content_type="image/png")

    server.pages["/png"] = answer
    fetch = server.fetcher(concurrency=2)
    await asyncio.gather(*(fetch([medium(server.url("/png"))] * 2) for _ in range(4)))
    assert (len(server.requests), server.most_running) == (8, 2)


async def test_every_failure_is_told_with_its_place_and_none_with_the_query(server: MediaServer) -> None:
    good, gone = server.serve("/png"), server.serve("/gone", b"", 404)
    blocks = [
        medium(gone + "?token=secret", at="input[0].content[1]"),
        medium(good, at="input[0].content[2]"),
        medium("https://secret.example/?token=secret", at="input[1].content[0]"),
    ]
    problems = await refused(server.fetcher(), *blocks)
    assert [problem.as_dict() for problem in problems] == [
        {
            "field": "input[0].content[1]",
            "reason": "The image can't be fetched: its host answered with status 404",
            "expected": "200",
            "received": "404",
            "code": "MEDIA_NOT_FETCHED",
            "help": "Send it as base64.",
        },
        {
            "field": "input[1].content[0]",
            "reason": "The image can't be fetched: the URL's host is not one that media may be fetched from",
            "received": "secret.example",
            "code": "MEDIA_NOT_FETCHED",
            "help": "Send it as base64. The operator allows hosts in the setting media.hosts.",
        },
    ]


async def test_a_client_that_goes_away_ends_the_fetch(server: MediaServer) -> None:
    started = asyncio.Event()

    async def hangs(_: web.Request) -> web.Response:
        started.set()
        await asyncio.Event().wait()
        return web.Response()

    server.pages["/png"] = hangs
    task = asyncio.create_task(server.fetcher()([medium(server.url("/png"))]))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any("_fetched" in repr(one) for one in asyncio.all_tasks())


async def test_wrong_type_and_wrong_bytes_are_told(server: MediaServer) -> None:
    page = server.serve("/page", b"<html>", Content_Type="text/html; charset=utf-8")
    jpeg = server.serve("/jpeg", b"\xff\xd8\xff\xe0....JFIF")
    problems = await refused(server.fetcher(), medium(page), medium(jpeg))
    assert [(p.reason, p.expected, p.received) for p in problems] == [
        (
            "The image can't be fetched: the response's content type does not match the block's format",
            "image/png",
            "text/html",
        ),
        (
            "The image can't be fetched: the response's content does not match the block's format",
            "png",
            "ff d8 ff e0 2e 2e 2e 2e",
        ),
    ]


@pytest.mark.parametrize(
    ("kind", "content_type", "data", "fmt"),
    [
        ("image", "image/jpeg; q=1", b"\xff\xd8\xff\xe0....JFIF", "jpeg"),
        ("image", "application/octet-stream", PNG, "png"),
        ("image", "", b"GIF89a..", "gif"),
        ("document", "application/pdf", b"%PDF-1.7", "pdf"),
        ("document", "text/markdown; charset=utf-8", b"# a", "md"),
        ("audio", "audio/x-wav", b"RIFF....WAVE", "wav"),
    ],
)
async def test_the_response_shows_the_format_that_the_url_does_not(
    server: MediaServer, kind: MediaKind, content_type: str, data: bytes, fmt: str
) -> None:
    url = server.serve("/it", data, Content_Type=content_type)
    block = Media(kind, "", Url(url), "input[0]")
    assert await server.fetcher()([block]) == [MediaContent(fmt, base64.b64encode(data))]


@pytest.mark.parametrize("content_type", ["text/html", "image/tiff", "application/octet-stream"])
async def test_a_response_that_shows_no_format_is_refused(server: MediaServer, content_type: str) -> None:
    url = server.serve("/it", b"<html>", Content_Type=content_type)
    (problem,) = await refused(server.fetcher(), Media("image", "", Url(url), "input[0]"))
    assert "of a known format of image" in problem.reason
    assert (problem.expected, problem.received) == ("one of png, jpeg, gif, webp", content_type)
