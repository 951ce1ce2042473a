"""Which node is taken, which are left out and for how long: the rules on the test's own clock, then real probes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import ConfigError
from gateway.config.schema import Health, Tls, Upstream
from gateway.errors import UpstreamUnavailable
from gateway.observe.logs import Logger
from gateway.upstream.client import Prober
from gateway.upstream.nodes import Node, NodeSet, may_retry
from gateway.upstream.tls import to_cluster
from tests.conftest import examples, settings_for
from tests.wire import PATIENCE, RecordingUpstream


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _nodes(count: int, clock: Clock | None = None, **upstream: Any) -> NodeSet:
    urls = [f"http://10.0.0.{n}:920{n}" for n in range(count)]
    return NodeSet(settings_for("http://x", {"upstream": {"nodes": urls, **upstream}}).upstream, clock=clock or Clock())


def _fail(node: Node, times: int) -> None:
    for _ in range(times):
        node.report(False, "reset")


def test_one_url_is_one_node() -> None:
    [node] = NodeSet(Upstream(url="https://[::1]:9201/")).nodes
    assert (node.host, node.port, node.tls, node.authority) == ("::1", 9201, True, b"[::1]:9201")
    [node] = NodeSet(Upstream(url="https://search.example")).nodes
    assert (node.host, node.port, node.authority) == ("search.example", 443, b"search.example")


def test_bad_addresses_are_told_apart() -> None:
    with pytest.raises(ConfigError, match=r"upstream\.nodes\[1\]"):
        settings_for("http://x", {"upstream": {"nodes": ["http://a:1", "http://a:99999"]}})


def test_the_least_pending_is_taken_and_equals_in_turn() -> None:
    nodes = _nodes(3)
    picked = [nodes.pick() for _ in range(6)]
    assert sorted(map(repr, picked)) == sorted([*map(repr, nodes.nodes)] * 2)
    nodes.nodes[0].pending = nodes.nodes[2].pending = 1
    assert {nodes.pick() for _ in range(6)} == {nodes.nodes[1]}


def test_load_spreads_evenly_when_pending_is_counted() -> None:
    nodes = _nodes(3)
    for _ in range(300):
        nodes.pick().pending += 1
    assert [node.pending for node in nodes.nodes] == [100, 100, 100]


@pytest.mark.parametrize("count", [1, 3])
def test_failover_goes_through_all_nodes_and_then_ends(count: int) -> None:
    nodes = _nodes(count)
    tried: list[Node] = []
    for _ in range(count):
        tried.append(nodes.pick(tried))
    assert set(tried) == set(nodes.nodes)
    with pytest.raises(UpstreamUnavailable):
        nodes.pick(tried)


def test_failures_in_a_row_eject_a_node_and_time_brings_it_back() -> None:
    clock = Clock()
    nodes = _nodes(3, clock)
    bad = nodes.nodes[0]
    _fail(bad, 2)
    bad.report(True)
    _fail(bad, 2)
    assert nodes.available() == 3
    bad.report(False, "connect")
    assert nodes.available() == 2
    assert bad not in {nodes.pick() for _ in range(9)}
    clock.now += 5
    assert bad in {nodes.pick() for _ in range(9)}


def test_a_node_that_comes_back_bad_stays_out_longer_and_longer_up_to_a_limit() -> None:
    clock = Clock()
    nodes = _nodes(3, clock, ejection={"seconds": 5, "max_seconds": 18})
    bad = nodes.nodes[0]
    _fail(bad, 3)
    spans = []
    for _ in range(4):
        spans.append(bad.ejected_until - clock.now)
        clock.now = bad.ejected_until
        bad.report(False, "timeout")  # on probation one is enough
    assert spans == [5, 10, 18, 18]
    clock.now = bad.ejected_until + 19  # it did well for longer than it was out
    bad.report(True)
    _fail(bad, 2)
    assert bad.available(clock.now)
    _fail(bad, 1)
    assert bad.ejected_until - clock.now == 5


def test_failures_while_it_is_out_change_nothing() -> None:
    clock = Clock()
    nodes = _nodes(3, clock)
    bad = nodes.nodes[0]
    _fail(bad, 3)
    until = bad.ejected_until
    _fail(bad, 50)
    assert (bad.ejected_until, bad.ejections) == (until, 1)


@pytest.mark.parametrize(
    ("count", "share", "out"),
    [(1, 1.0, 0), (2, 0.0, 1), (2, 1.0, 1), (4, 0.5, 2), (5, 0.5, 2), (10, 0.3, 3), (3, 1.0, 2)],
)
def test_ejection_never_takes_more_than_its_share_and_never_the_last(count: int, share: float, out: int) -> None:
    nodes = _nodes(count, ejection={"max_share": share})
    for node in nodes.nodes:
        _fail(node, 10)
    assert nodes.available() == count - out


def test_the_last_node_that_its_probes_find_well_is_not_ejected() -> None:
    nodes = _nodes(3, ejection={"max_share": 1.0})
    nodes.nodes[0].down = nodes.nodes[1].down = True
    _fail(nodes.nodes[2], 10)
    assert nodes.available() == 1


def test_ejection_can_be_off() -> None:
    nodes = _nodes(3, ejection={"failures": 0})
    _fail(nodes.nodes[0], 100)
    assert nodes.available() == 3


def test_probes_take_a_node_out_and_bring_it_back() -> None:
    health, nodes = Health(failures=3, successes=2), _nodes(2)
    node = nodes.nodes[0]
    changes = [node.probed(ok, health) for ok in (False, False, True, False, False, False)]
    assert (changes, node.down) == ([False] * 5 + [True], True)
    assert {nodes.pick() for _ in range(4)} == {nodes.nodes[1]}
    changes = [node.probed(ok, health) for ok in (True, False, True, True)]
    assert (changes, node.down) == ([False] * 3 + [True], False)


def test_when_all_are_down_all_are_tried() -> None:
    nodes = _nodes(3)
    for node in nodes.nodes:
        node.down = True
    assert {nodes.pick() for _ in range(3)} == set(nodes.nodes)
    nodes.nodes[1].down = False
    nodes.nodes[1].pending = 100
    assert nodes.pick() is nodes.nodes[1]
    assert nodes.pick([nodes.nodes[1]]) is not nodes.nodes[1]


_EVENTS = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 30)), max_size=60)


@given(count=st.integers(1, 4), share=st.floats(0, 1), events=_EVENTS)
@examples(60)
def test_whatever_happens_a_node_is_left(count: int, share: float, events: list[tuple[int, bool, float]]) -> None:
    clock = Clock()
    nodes = _nodes(count, clock, ejection={"max_share": share})
    for which, ok, seconds in events:
        nodes.nodes[which % count].report(ok, "" if ok else "reset")
        assert nodes.available() >= max(1, count - max(1, int(share * count)))
        assert nodes.pick().available(clock.now)
        clock.now += seconds


@pytest.mark.parametrize(
    ("method", "sent", "is_execute", "target", "allowed"),
    [
        ("GET", True, False, b"/", True),
        ("HEAD", True, False, b"/i", True),
        ("OPTIONS", True, False, b"*", True),
        ("GET", True, False, b"/_search/scroll?scroll_id=x", False),
        ("GET", False, False, b"/_search/scroll?scroll_id=x", True),
        ("GET", True, False, b"/i/_search?scroll=1m", True),
        ("PUT", True, False, b"/i/_doc/1", False),
        ("DELETE", True, False, b"/i/_doc/1", False),
        ("POST", True, False, b"/_bulk", False),
        ("POST", False, False, b"/_bulk", True),
        ("POST", False, True, b"/_plugins/_ml/agents/a/_execute", False),
        ("POST", True, True, b"/_plugins/_ml/agents/a/_execute", False),
        ("get", True, False, b"/", False),
    ],
)
def test_what_may_be_sent_again(method: str, sent: bool, is_execute: bool, target: bytes, allowed: bool) -> None:
    assert may_retry(method, sent, is_execute, target) is allowed


PROBED = {
    "200": (b"HTTP/1.1 200 OK\r\n\r\n", True),
    "401 of a secured cluster": (b"HTTP/1.1 401 Unauthorized\r\n\r\n", True),
    "503 without a manager": (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
    "garbage": (b"\x00\x01\r\n", False),
    "no status": (b"HTTP/1.1 \r\n", False),
    "no number": (b"HTTP/1.1 abc\r\n", False),
    "other protocol": (b"SSH-2.0-x 200\r\n", False),
    "endless line": (b"H" * 200_000, False),
    "hangs up": (b"", False),
}


@pytest.mark.parametrize("name", PROBED)
async def test_probe(name: str) -> None:
    raw, well = PROBED[name]

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream.heads = await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)

    async with RecordingUpstream(script=script) as upstream:
        [node] = NodeSet(Upstream(url=upstream.url)).nodes
        prober = Prober(Health(path="/_cluster/health?local=true"), lambda: None)
        assert await prober(node) is well
        assert upstream.heads.startswith(b"GET /_cluster/health?local=true HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_probe_of_nothing_of_silence_and_of_no_tls() -> None:
    async def silent(upstream: RecordingUpstream, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()
        upstream.gone.set()

    async with RecordingUpstream(script=silent) as upstream:
        [node] = NodeSet(Upstream(url=upstream.url)).nodes
        assert not await Prober(Health(timeout=0.05), lambda: None)(node)
        assert node.fault == "no answer within 0.05 s"
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE)
    assert not await Prober(Health(), lambda: None)(node)
    assert node.fault == "connection refused"
    async with RecordingUpstream() as upstream:
        [node] = NodeSet(Upstream(url=upstream.url.replace("http", "https"))).nodes
        source = to_cluster(Tls(), structlog.get_logger())
        assert not await Prober(Health(timeout=0.05), lambda: source)(node)


async def test_probes_run_take_nodes_out_and_end_on_close() -> None:
    sick = asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\n\r\n" % (503 if sick.is_set() else 200))

    async def until(available: int) -> None:
        while nodes.available() != available:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async with RecordingUpstream(script=script) as one, RecordingUpstream() as other:
        health = {"interval": 0.01, "timeout": PATIENCE, "failures": 2, "successes": 2}
        upstream = settings_for("http://x", {"upstream": {"nodes": [one.url, other.url], "health": health}}).upstream
        nodes = NodeSet(upstream, Prober(upstream.health, lambda: None))
        await nodes.start()
        await until(2)
        sick.set()
        await asyncio.wait_for(until(1), PATIENCE)
        assert {nodes.pick().port for _ in range(4)} == {other.port}
        sick.clear()
        await asyncio.wait_for(until(2), PATIENCE)
        await nodes.close()
        assert "probes" not in {task.get_name() for task in asyncio.all_tasks()}


def test_the_log_names_a_node_as_the_metrics_do() -> None:
    log = structlog.testing.CapturingLogger()
    urls = ["http://[::1]:9201", "http://b:9202"]
    upstream = settings_for("http://x", {"upstream": {"nodes": urls, "ejection": {"failures": 1}}}).upstream
    nodes = NodeSet(upstream, clock=Clock(), log=cast("Logger", log))
    nodes.nodes[0].report(False, "reset")
    assert [call.kwargs["node"] for call in log.calls] == [state.address for state in nodes.states() if state.ejected]


async def test_one_node_is_not_probed() -> None:
    asked: list[Node] = []

    async def probe(node: Node) -> bool:
        asked.append(node)
        return True

    nodes = NodeSet(Upstream(health=Health(interval=0.001)), probe)
    await nodes.start()
    assert "probes" not in {task.get_name() for task in asyncio.all_tasks()}
    await nodes.close()
    assert asked == []
