"""Every row of the SSRF table, with a real server on loopback that must not receive anything."""

from __future__ import annotations

import ipaddress

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Problem, UndeliverableContent
from gateway.media.fetch import Fetcher, is_public
from tests.media.server import HOST, LOOPBACK, PNG, MediaServer, Names, medium
from tests.media.ssrf import ADDRESSES, NOT_PUBLIC, PUBLIC, REDIRECTS, URLS


async def refusal(fetch: Fetcher, url: str) -> Problem:
    with pytest.raises(UndeliverableContent) as caught:
        await fetch([medium(url)])
    (problem,) = caught.value.problems
    assert (problem.place, problem.code) == ("input[0]", "MEDIA_NOT_FETCHED")
    return problem


def anywhere(server: MediaServer, names: Names) -> Fetcher:
    """A fetcher with the real address policy whose settings allow all hosts."""
    return server.fetcher(names, is_public, hosts=["*", f"*:{server.port}", "*:65536"])


@pytest.mark.parametrize("row", URLS)
async def test_what_a_url_shows(server: MediaServer, row: str) -> None:
    url, reason = URLS[row]
    problem = await refusal(anywhere(server, Names({HOST: [["127.0.0.1"]]})), url.format(port=server.port))
    assert problem.reason == f"The image can't be fetched: {reason}"
    assert (server.requests, server.server_names) == ([], [])


@pytest.mark.parametrize("row", ADDRESSES)
async def test_where_a_name_leads(server: MediaServer, row: str) -> None:
    names = Names({HOST: [ADDRESSES[row]]})
    problem = await refusal(anywhere(server, names), server.serve("/png"))
    assert problem.reason == f"The image can't be fetched: {NOT_PUBLIC}"
    assert problem.received == HOST  # not the address, which may be internal
    assert names.asked == [HOST]
    assert (server.requests, server.server_names) == ([], [])


@pytest.mark.parametrize("row", REDIRECTS)
async def test_where_an_answer_redirects(server: MediaServer, row: str) -> None:
    server.serve("/png")
    location, reason = REDIRECTS[row]
    url = server.redirect("/first", location.format(port=server.port))
    names = Names({HOST: [["127.0.0.1"]], "inside.media.test": [["10.0.0.1"]], "elsewhere.test": [["127.0.0.1"]]})
    problem = await refusal(server.fetcher(names), url)
    assert problem.reason == f"The image can't be fetched: {reason}"
    assert [path for path, _ in server.requests] == ["/first"]


async def test_an_answer_of_dns_that_changes_is_not_asked_for_twice(server: MediaServer, authority: trustme.CA) -> None:
    names = Names({HOST: [["127.0.0.1"], ["127.0.0.2"]]})
    url = server.serve("/png")
    async with MediaServer(authority, "127.0.0.2", server.port) as other:
        other.serve("/png", PNG + b"other")
        await server.fetcher(names)([medium(url)])
    assert (names.asked, len(server.requests), other.requests) == ([HOST], 1, [])


async def test_each_redirect_asks_dns_anew_and_is_judged_by_the_new_answer(
    server: MediaServer, authority: trustme.CA
) -> None:
    names = Names({HOST: [["127.0.0.1"], ["127.0.0.2"]]})
    url = server.redirect("/first", "/png")
    async with MediaServer(authority, "127.0.0.2", server.port) as other:
        other.serve("/png")
        problem = await refusal(server.fetcher(names), url)
    assert problem.reason == f"The image can't be fetched: {NOT_PUBLIC}"
    assert (names.asked, len(server.requests), other.server_names) == ([HOST, HOST], 1, [])


async def test_a_name_in_other_letters_is_judged_as_the_name_it_is(server: MediaServer) -> None:
    server.serve("/png")
    fetch = server.fetcher()
    await fetch([medium(server.url("/png", "ＭEDIA。test"))])
    assert server.server_names == [HOST]
    problem = await refusal(fetch, server.url("/png", "mediá.test"))
    assert problem.received == f"xn--medi-8na.test:{server.port}"


@pytest.mark.parametrize("written", PUBLIC)
def test_public_addresses_are_public(written: str) -> None:
    assert is_public(written)


@given(st.ip_addresses())
def test_no_address_is_public_that_the_standard_library_knows_better(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_public(str(address)):
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_reserved


def test_the_policy_of_the_tests_is_not_the_real_one() -> None:
    assert not any(map(is_public, LOOPBACK))
