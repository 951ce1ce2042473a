"""X-Forwarded-* and Forwarded: which senders are trusted, what is forwarded, which client a request counts for."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import ConfigError
from gateway.proxy.forwarded import Hop, client_of, onward
from tests.conftest import StartGateway, settings_for
from tests.execute.stub_cluster import FLOW, ML, Cluster, server_of
from tests.proxy.use_case import UseCase
from tests.wire import RecordingUpstream, send_request

TRUSTED = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]
PROXY, STRANGER = "10.0.0.1", "203.0.113.9"

CLIENTS = [
    # id, peer, header lines, the client
    ("nothing sent", PROXY, [], PROXY),
    ("a stranger is not believed", STRANGER, [b"X-Forwarded-For: 198.51.100.1"], STRANGER),
    ("a proxy is", PROXY, [b"X-Forwarded-For: 198.51.100.1"], "198.51.100.1"),
    ("what the client made up is left of it", PROXY, [b"X-Forwarded-For: 1.1.1.1, 198.51.100.1"], "198.51.100.1"),
    ("two proxies", PROXY, [b"X-Forwarded-For: 1.1.1.1, 198.51.100.1, 10.2.3.4"], "198.51.100.1"),
    ("lines are one list", PROXY, [b"x-forwarded-for: 1.1.1.1", b"X-FORWARDED-FOR: 198.51.100.1,10.2.3.4"],
     "198.51.100.1"),
    ("all are proxies", PROXY, [b"X-Forwarded-For: 10.9.9.9, 10.8.8.8"], "10.9.9.9"),
    ("no address ends the chain", PROXY, [b"X-Forwarded-For: 1.1.1.1, unknown, 10.8.8.8"], "10.8.8.8"),
    ("an empty one too", PROXY, [b"X-Forwarded-For: 1.1.1.1,"], PROXY),
    ("ports", PROXY, [b"X-Forwarded-For: 198.51.100.1:4711"], "198.51.100.1"),
    ("IPv6", PROXY, [b"X-Forwarded-For: 2001:db8::1"], "2001:db8::1"),
    ("IPv6 with a port", PROXY, [b"X-Forwarded-For: [2001:DB8:0::1]:80"], "2001:db8::1"),
    ("an IPv4 address in IPv6", "::ffff:10.0.0.1", [b"X-Forwarded-For: ::ffff:198.51.100.1"], "198.51.100.1"),
    ("Forwarded", PROXY, [b"Forwarded: for=198.51.100.1;proto=https"], "198.51.100.1"),
    ("Forwarded, IPv6", PROXY, [b'Forwarded: proto=http;For="[2001:db8::1]:80"'], "2001:db8::1"),
    ("Forwarded, two hops", PROXY, [b"Forwarded: for=1.1.1.1, for=198.51.100.1", b"Forwarded: for=10.1.1.1"],
     "198.51.100.1"),
    ("Forwarded, a comma within quotes", PROXY, [b'Forwarded: for=198.51.100.1;host="a, for=1.1.1.1"'],
     "198.51.100.1"),
    ("Forwarded, hidden", PROXY, [b"Forwarded: for=1.1.1.1, for=_secret"], PROXY),
    ("Forwarded, malformed", PROXY, [b'Forwarded: for=198.51.100.1;host="a'], PROXY),
    ("both, and they agree", PROXY, [b"X-Forwarded-For: 198.51.100.1", b"Forwarded: for=198.51.100.1"],
     "198.51.100.1"),
    ("both, and they differ", PROXY, [b"X-Forwarded-For: 1.1.1.1", b"Forwarded: for=198.51.100.1"], PROXY),
    ("no peer", "", [b"X-Forwarded-For: 198.51.100.1"], ""),
]  # fmt: skip


@pytest.mark.parametrize(("peer", "lines", "client"), [case[1:] for case in CLIENTS], ids=[case[0] for case in CLIENTS])
def test_the_client(peer: str, lines: list[bytes], client: str) -> None:
    assert client_of(lines, peer, TRUSTED) == client


@given(st.lists(st.binary(max_size=60)), st.sampled_from([b"X-Forwarded-For: ", b"Forwarded: "]))
def test_any_value_gives_an_address(values: list[bytes], name: bytes) -> None:
    ip_address(client_of([name + value for value in values], PROXY, TRUSTED))


@given(st.lists(st.binary(max_size=40)), st.lists(st.binary(max_size=40)))
def test_what_a_client_says_through_a_proxy_that_appends_changes_nothing(xff: list[bytes], std: list[bytes]) -> None:
    """The proxy appends the client's address to both headers, so a client can't forge another address."""
    lines = [b"X-Forwarded-For: " + value for value in xff] + [b"Forwarded: " + value for value in std]
    lines += [b"X-Forwarded-For: " + STRANGER.encode(), b"Forwarded: for=" + STRANGER.encode()]
    assert client_of(lines, PROXY, TRUSTED) in (STRANGER, PROXY)


GIVEN = [b"Host: a", b"X-Forwarded-For: 1.1.1.1", b"X-Forwarded-Port: 1", b"X-Real-IP: 1.1.1.1", b"Forwarded: for=b"]
ONWARD = [
    ("drop", STRANGER, GIVEN, [b"Host: a"]),
    ("drop", PROXY, GIVEN, GIVEN),
    ("append", STRANGER, GIVEN,
     [b"Host: a", b"X-Forwarded-For: 203.0.113.9", b"X-Forwarded-Proto: http", b"X-Forwarded-Host: a:1"]),
    ("append", PROXY, GIVEN,
     [b"Host: a", b"X-Forwarded-For: 1.1.1.1, 10.0.0.1", b"X-Forwarded-Port: 1", b"X-Real-IP: 1.1.1.1",
      b'Forwarded: for=b, for=10.0.0.1;proto=http;host="a:1"',
      b"X-Forwarded-Proto: http", b"X-Forwarded-Host: a:1"]),
    ("append", "fd00::1", [b"forwarded: ", b"x-forwarded-proto: https", b"x-forwarded-host: h"],
     [b'forwarded: for="[fd00::1]";proto=http;host="a:1"', b"x-forwarded-proto: https", b"x-forwarded-host: h",
      b"X-Forwarded-For: fd00::1"]),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "peer", "lines", "sent"), ONWARD)
def test_what_goes_on(mode: str, peer: str, lines: list[bytes], sent: list[bytes]) -> None:
    given_before = list(lines)
    found = onward(lines, Hop(peer, "http", b"a:1"), mode, TRUSTED)  # type: ignore[arg-type]
    assert sorted(found) == sorted(sent)
    assert lines == given_before


REQUEST = b"GET /_cat/indices HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nX-A: b\r\n"


@pytest.mark.parametrize(
    ("over", "sent"),
    [
        ({}, [b"1.1.1.1"]),
        ({"forwarded": "drop"}, []),
        ({"forwarded": "append"}, [b"127.0.0.1"]),
        ({"forwarded": "append", "trusted_proxies": ["127.0.0.0/8"]}, [b"1.1.1.1, 127.0.0.1"]),
    ],
)
@pytest.mark.parametrize("named", [b"", b"Connection: X-Forwarded-For\r\n"], ids=["plain", "named in Connection"])
async def test_on_the_wire(
    over: dict[str, object], sent: list[bytes], named: bytes, start_gateway: StartGateway
) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"listen": over})
        assert (await send_request(gateway.data_port, REQUEST + named + b"\r\n")).body == b"ok"
    [request] = upstream.requests
    assert request.values("x-forwarded-for") == sent
    assert request.values("x-a") == [b"b"]


async def test_lookups_carry_what_the_request_will(start_gateway: StartGateway) -> None:
    cluster = Cluster()
    async with server_of(cluster) as server:
        gateway = await start_gateway(f"http://127.0.0.1:{server.port}", None, {"listen": {"forwarded": "append"}})
        body = b'{"input": "hi"}'
        head = (
            b"POST %bagents/%b/_execute HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        request = head % (ML.encode(), FLOW.encode(), len(body)) + body
        assert [(await send_request(gateway.data_port, request)).line for _ in range(2)] == [b"HTTP/1.1 200 OK"] * 2
    forwarded = {
        value for lookup in cluster.lookups for name, value in lookup.items() if name.lower() == "x-forwarded-for"
    }
    assert forwarded == {"127.0.0.1"}
    assert len(cluster.bodies) == 2


async def test_a_head_at_its_limit_still_goes_on(start_gateway: StartGateway) -> None:
    host = b"h" * 990
    async with RecordingUpstream() as upstream:
        over = {"listen": {"forwarded": "append"}, "limits": {"header_line": 1000, "head": 1050, "headers": 1}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        assert (await send_request(gateway.data_port, b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)).body == b"ok"
    assert upstream.requests[0].values("x-forwarded-host") == [host]


async def test_each_client_behind_a_trusted_proxy_has_its_own_share(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        over = {"admission": {"per_client": 1}, "listen": {"trusted_proxies": ["127.0.0.1"]}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        keys: list[str] = []
        port = gateway._data._data_port
        key = port.client_key
        port.client_key = lambda exchange: keys.append(key(exchange)) or keys[-1]  # type: ignore[method-assign,func-returns-value]
        for client in (b"198.51.100.1", b"198.51.100.2"):
            await send_request(gateway.data_port, b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: %b\r\n\r\n" % client)
    assert keys == ["198.51.100.1", "198.51.100.2"]


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        settings_for("http://a", {"listen": {"trusted_proxies": ["10.0.0.0/8", "10.0.0.1/8", "proxy"]}})
    assert [problem.path for problem in caught.value.problems] == [
        "listen.trusted_proxies[1]",
        "listen.trusted_proxies[2]",
    ]
