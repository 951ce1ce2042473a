"""The store on OpenSearch, on a cluster that fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.config.inspector import OpenSearchExchanges
from gateway.config.types import Secret
from gateway.memory.stores.opensearch.cluster import HeldCredentials
from gateway.observe.logs import configure
from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from gateway.recording.sinks import opensearch as module
from gateway.recording.sinks.opensearch import TEMPLATE, OpenSearchSink, document
from gateway.recording.store import StoreError
from tests.recording.sinks.store_conformance import FULL, numbered
from tests.recording.sinks.stream_server import StreamServer
from tests.wire import PATIENCE

ROOT = Path(__file__).parents[3]
STREAM = "mlc-gateway-exchanges"
OpenSink = Callable[..., OpenSearchSink]


@pytest.fixture
async def server() -> AsyncIterator[StreamServer]:
    async with StreamServer() as server:
        yield server


@pytest.fixture
async def open_sink(server: StreamServer) -> AsyncIterator[OpenSink]:
    """Return a function that opens a store; pauses and waits are short."""
    opened: list[OpenSearchSink] = []

    def open_(waiting: int = 1_000_000, pauses: int = 3, **settings: Any) -> OpenSearchSink:
        merged = OpenSearchExchanges(**{"url": server.url, "seconds": PATIENCE} | settings)
        opened.append(OpenSearchSink(merged, configure("error", "json"), (0.001,) * pauses, waiting))
        return opened[-1]

    yield open_
    server.hold.set()
    for sink in opened:
        await asyncio.to_thread(sink.close)


@pytest.fixture
def sink(open_sink: OpenSink) -> OpenSearchSink:
    return open_sink()


async def lost(server: StreamServer, sink: OpenSearchSink) -> StoreError:
    """Return what the store reports, after a record that arrives: the batches before it are done."""
    await server.wait(lambda: bool(server.requests))  # the thread has taken the records, without those added here
    marks = 0
    while True:
        try:
            sink.add(numbered(9000 + marks))
        except StoreError as error:
            return error
        await server.wait(lambda mark=str(9000 + marks): mark in server.documents)  # type: ignore[misc]
        marks += 1
        assert marks < 5, "nothing was lost"


async def all_arrived(server: StreamServer, *ids: str) -> None:
    await server.wait(lambda: set(ids) <= set(server.documents))


async def test_the_data_stream_is_made_with_its_template(server: StreamServer, sink: OpenSearchSink) -> None:
    sink.add(numbered(1, 2))
    sink.add(numbered(3))
    await all_arrived(server, "1", "2", "3")
    assert server.streams == {STREAM}
    assert server.templates == {STREAM: json.loads(TEMPLATE.read_text())}
    assert [request for request in server.requests if "_bulk" not in request[1]] == [
        ("GET", f"/_data_stream/{STREAM}"),
        ("GET", f"/_index_template/{STREAM}"),
        ("PUT", f"/_index_template/{STREAM}"),
        ("PUT", f"/_data_stream/{STREAM}"),
    ]


async def test_the_stream_has_the_name_of_the_settings(server: StreamServer, open_sink: OpenSink) -> None:
    open_sink(stream="other.name").add(numbered(1))
    await all_arrived(server, "1")
    assert server.templates["other.name"]["index_patterns"] == ["other.name"]


async def test_a_template_of_the_operator_stays(server: StreamServer, sink: OpenSearchSink) -> None:
    own = {"index_patterns": [STREAM], "data_stream": {}, "_meta": {"own": True}}
    server.templates[STREAM] = own
    sink.add(numbered(1))
    await all_arrived(server, "1")
    assert server.templates == {STREAM: own}


async def test_for_a_stream_that_exists_no_other_permission_is_needed(
    server: StreamServer, sink: OpenSearchSink
) -> None:
    server.streams.add(STREAM)
    sink.add(numbered(1))
    await all_arrived(server, "1")
    assert server.requests == [("GET", f"/_data_stream/{STREAM}"), ("POST", f"/{STREAM}/_bulk")]


async def test_two_gateways_make_the_stream_at_the_same_time(server: StreamServer, open_sink: OpenSink) -> None:
    sinks = [open_sink(), open_sink()]
    server.hold.clear()
    for number, sink in enumerate(sinks):
        sink.add(numbered(number))
    await server.wait(lambda: len(server.requests) == 2)  # each has asked whether it exists
    server.hold.set()
    await all_arrived(server, "0", "1")


async def test_document(server: StreamServer, sink: OpenSearchSink) -> None:
    sink.add([FULL])
    await all_arrived(server, "full")
    found = server.documents["full"]
    assert found["@timestamp"] == int(FULL.started * 1000)
    assert found["forwarded"]["headers"] == [{"name": "A", "value": "b"}]
    assert "headers" not in found["answered"]
    assert (found["delivery"]["notices"], found["usage"]["input"]) == (["N_ONE", "N_TWO"], 3)


def test_the_template_names_every_field() -> None:
    """Others are stored too, but not found by a search: the mapping is not dynamic."""
    properties = json.loads(TEMPLATE.read_text())["template"]["mappings"]["properties"]
    assert set(properties) == {"@timestamp", *ExchangeRecord.__struct_fields__}
    for name in ("delivery", "error", "usage"):
        assert set(properties[name]["properties"]) == set(getattr(FULL, name).__struct_fields__)
    assert set(document(FULL)) <= set(properties)


def test_the_template_is_given_in_config() -> None:
    assert (ROOT / "config" / "opensearch-exchanges.json").resolve() == TEMPLATE.resolve()


async def test_account(server: StreamServer, open_sink: OpenSink) -> None:
    open_sink(username="writer", password=Secret("pw")).add(numbered(1))
    await all_arrived(server, "1")
    assert server.authorizations == {"Basic d3JpdGVyOnB3"}


async def test_text_that_is_no_unicode(server: StreamServer, sink: OpenSearchSink) -> None:
    sink.add(numbered(1, user_agent="a\udcff"))
    await all_arrived(server, "1")
    assert server.documents["1"]["user_agent"] == "a�"


@pytest.mark.parametrize("fault", ["refused", "unavailable", "throttled"])
@pytest.mark.parametrize("request_number", range(5))
async def test_any_request_that_fails_is_sent_again(
    server: StreamServer, sink: OpenSearchSink, fault: Any, request_number: int
) -> None:
    server.faults = [*[None] * request_number, fault]
    sink.add(numbered(1))
    await all_arrived(server, "1")


async def test_documents_whose_answer_was_lost_are_stored_once(server: StreamServer, sink: OpenSearchSink) -> None:
    server.streams.add(STREAM)
    server.faults = [None, "lost"]
    sink.add(numbered(1, 2))
    await server.wait(lambda: len(server.bulks) == 2)
    sink.add(numbered(3))
    await all_arrived(server, "1", "2", "3")
    assert server.bulks == [["1", "2"], ["1", "2"], ["3"]]


async def test_only_throttled_documents_are_sent_again(server: StreamServer, sink: OpenSearchSink) -> None:
    server.items = [None, 429, None, 429, 429, None]
    sink.add(numbered(1, 2, 3, 4))
    await all_arrived(server, "1", "2", "3", "4")
    assert server.bulks == [["1", "2", "3", "4"], ["2", "4"], ["2"]]


async def test_documents_that_the_cluster_refuses_are_lost_and_the_others_stored(
    server: StreamServer, sink: OpenSearchSink
) -> None:
    server.items = [None, 400, None]
    sink.add(numbered(1, 2, 3))
    await all_arrived(server, "1", "3")
    error = await lost(server, sink)
    assert error.lost == 1
    assert str(error) == f"1 exchanges were not stored in {STREAM}: the cluster refused them: 400 because 400"


async def test_a_cluster_that_stays_away(server: StreamServer, sink: OpenSearchSink) -> None:
    server.faults = ["unavailable"] * 4
    sink.add(numbered(1, 2))
    error = await lost(server, sink)
    assert (error.lost, "answered 503" in str(error)) == (2, True)


async def test_without_permission_nothing_is_tried_again(server: StreamServer, sink: OpenSearchSink) -> None:
    server.faults = ["forbidden"]
    sink.add(numbered(1))
    error = await lost(server, sink)
    assert "the account of `inspector.opensearch` the permissions that docs/operate/inspector.md lists" in str(error)
    await all_arrived(server, "9000")  # the mark
    assert server.requests[:2] == [("GET", f"/_data_stream/{STREAM}")] * 2  # of the first record, and of the mark
    assert "1" not in server.documents


async def test_an_answer_that_is_not_of_opensearch(server: StreamServer, sink: OpenSearchSink) -> None:
    server.streams.add(STREAM)
    server.faults = [None, "strange"]
    sink.add(numbered(1))
    assert "the answer is not one of OpenSearch" in str(await lost(server, sink))


class Credentials:
    """Credentials of AWS that can't be read the first times. failures: how often."""

    def __init__(self, failures: int) -> None:
        self._failures = failures

    def get_frozen_credentials(self) -> None:
        self._failures -= 1
        if self._failures >= 0:
            raise OSError("not now")


async def test_an_error_of_any_class_does_not_end_the_sending(server: StreamServer, sink: OpenSearchSink) -> None:
    sink._cluster._credentials = HeldCredentials(Credentials(2))
    sink.add(numbered(1))
    await all_arrived(server, "1")


async def test_an_error_of_any_class_is_named(server: StreamServer) -> None:
    with capture_logs() as logs:
        sink = OpenSearchSink(OpenSearchExchanges(url=server.url), structlog.get_logger(), ())
        sink._cluster._credentials = HeldCredentials(Credentials(1))
        sink.add(numbered(1))
        await asyncio.to_thread(sink.close)
    assert [(line["event"], line["made"], line["reason"]) for line in logs] == [
        ("exchanges lost", 1, "OSError: not now")
    ]


async def test_a_stalled_cluster_costs_bounded_memory(server: StreamServer, open_sink: OpenSink) -> None:
    sink = open_sink(waiting=50_000)
    server.hold.clear()
    sink.add(numbered(0))
    await server.wait(lambda: bool(server.requests))  # the first is on its way and no longer waits
    large = HttpMessage((), Body(20_000, "x" * 20_000))
    with pytest.raises(StoreError, match="more wait to be sent than may") as error:
        sink.add(numbered(1, 2, 3, 4, request=large))
    assert error.value.lost == 2
    server.hold.set()
    await all_arrived(server, "0", "1", "2")
    assert set(server.documents) == {"0", "1", "2"}


async def test_requests_are_bounded(server: StreamServer, open_sink: OpenSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 50_000)
    sink = open_sink()
    sink.add(numbered(*range(8), request=HttpMessage((), Body(20_000, "x" * 20_000))))
    sink.add(numbered(8, request=HttpMessage((), Body(90_000, "x" * 90_000))))
    await all_arrived(server, *map(str, range(9)))
    assert max(server.sizes[:-1]) <= 50_000
    assert [len(bulk) for bulk in server.bulks] == [2, 2, 2, 2, 1]


async def test_close_sends_what_waits(server: StreamServer, open_sink: OpenSink) -> None:
    sink = open_sink()
    server.hold.clear()
    sink.add(numbered(1))
    await server.wait(lambda: bool(server.requests))
    sink.add(numbered(2))
    closing = asyncio.create_task(asyncio.to_thread(sink.close))
    server.hold.set()
    await asyncio.wait_for(closing, PATIENCE)
    assert set(server.documents) == {"1", "2"}


async def test_close_while_the_cluster_is_gone(server: StreamServer, open_sink: OpenSink) -> None:
    """The thread is in its longest pause, or before its first attempt; neither is waited for."""
    await server.stop()
    settings = OpenSearchExchanges(url=server.url)
    with capture_logs() as logs:
        sink = OpenSearchSink(settings, structlog.get_logger(), (3600.0,))
        sink.add(numbered(1))
        await asyncio.wait_for(asyncio.to_thread(sink.close), PATIENCE)
    assert [(line["event"], line["made"]) for line in logs] == [("exchanges lost", 1)]
