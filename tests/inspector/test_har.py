"""HAR files: what is written is read as it was, and by other programs."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from typing import Any

import msgspec
import pytest
from haralyzer import HarEntry, HarParser
from hypothesis import given
from hypothesis import strategies as st

from gateway.inspector.har import InvalidHar, entry_of, read_har, text_body, write_har
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
from tests.recording.records import RECORD, record

_words = st.text(max_size=8)
_seconds = st.floats(min_value=0, max_value=1e9, allow_nan=False)
_headers = st.lists(st.tuples(st.sampled_from(["Host", "X-A", "content-type", "Location"]), _words), max_size=4).map(
    tuple
)
_bodies = st.one_of(
    st.builds(Body, size=st.integers(0, 9)),
    st.builds(Body, size=st.integers(0, 9), text=_words, omitted=_words),
    st.builds(Body, size=st.integers(0, 9), omitted=_words),
    st.binary(max_size=9).map(lambda data: text_body(data, len(data))),
)
_messages = st.builds(HttpMessage, headers=_headers, body=_bodies)
_records = st.builds(
    ExchangeRecord,
    id=_words,
    started=st.floats(min_value=0, max_value=4e9),
    seconds=_seconds,
    method=st.sampled_from(["GET", "POST"]),
    target=st.sampled_from(["/", "/_search?q=a%20b&q=&x", "*", "http://x/y", "/ä"]),
    intent=_words,
    status=st.sampled_from([0, 101, 200, 404, 599]),
    waited=st.none() | _seconds,
    delivery=st.none() | st.builds(Delivery, notices=st.just(("A",)), strategy=_words),
    error=st.none()
    | st.builds(RecordedError, type=_words, reason=_words, problems=st.just((RecordedProblem("c", "p", "r"),))),
    usage=st.none() | st.builds(Usage, input=st.integers(0, 9), cost=_seconds),
    steps=st.just(()) | st.just((Step("plan", 0.1, 0.2),)),
    request=_messages,
    forwarded=st.none() | _messages,
    response=st.none() | _messages,
    answered=st.none() | _messages,
    guardrails=st.just(({"name": "g"},)),
    scheme=st.sampled_from(["http", "https"]),
)


@given(st.lists(_records, max_size=3))
def test_records_are_read_as_they_were_written(records: list[ExchangeRecord]) -> None:
    assert read_har(b"".join(write_har(records))) == records


@given(_records)
def test_the_file_follows_the_format(exchange: ExchangeRecord) -> None:
    entry = entry_of(exchange)
    numbers = [entry["time"], *entry["timings"].values()]
    assert all(math.isfinite(number) for number in numbers)
    assert entry["timings"]["ssl"] <= entry["timings"]["connect"]
    assert entry["time"] == sum(entry["timings"][name] for name in ("send", "wait", "receive"))
    names = {"blocked", "dns", "connect", "ssl", "send", "wait", "receive"}
    assert set(entry["timings"]) == names
    assert {name for name in entry if not name.startswith("_")} == {
        "startedDateTime", "time", "request", "response", "cache", "timings", "connection",
    }  # fmt: skip


def test_the_url_has_the_scheme_of_the_data_port() -> None:
    assert entry_of(record(target="/a"))["request"]["url"] == "http://127.0.0.1:9200/a"
    assert entry_of(record(target="/a", scheme="https"))["request"]["url"] == "https://127.0.0.1:9200/a"


@pytest.mark.parametrize("target", ["//[x/y?q=1", "/a]?q=1#f?r=2", "//host?q=1"])
def test_a_target_that_no_url_can_have_is_written(target: str) -> None:
    """Clients may send it, and the cluster answers."""
    entry = entry_of(record(target=target))
    assert entry["request"]["queryString"] == [{"name": "q", "value": "1"}]
    assert read_har(b"".join(write_har([record(target=target)]))) == [record(target=target)]


def test_another_program_reads_the_file() -> None:
    parser = HarParser(json.loads(b"".join(write_har([RECORD, RECORD]))))
    assert len(parser.har_data["entries"]) == 2
    found = HarEntry(parser.har_data["entries"][0])
    assert (found.request.method, found.request.url) == (
        "POST",
        "http://127.0.0.1:9200/_plugins/_ml/agents/a1/_execute",
    )
    assert found.request.text == '{"input": "Hello"}'
    assert (found.response.status, found.response.text) == (200, '{"answer":1}')
    assert found.startTime.timestamp() == RECORD.started
    assert found.time == 500


def test_a_body_that_is_no_text_is_exact() -> None:
    data = bytes(range(256))
    sent = record(request=HttpMessage((), text_body(data, 256)))
    post = entry_of(sent)["request"]["postData"]
    assert (post["text"], post["_encoding"]) == (b64encode(data).decode(), "base64")
    assert read_har(b"".join(write_har([sent]))) == [sent]


def _foreign(**changes: Any) -> dict[str, Any]:
    entry = {
        "startedDateTime": "2026-11-23T01:02:03.004Z",
        "time": 12.5,
        "request": {
            "method": "POST",
            "url": "http://es:9200/_plugins/_ml/agents/a%201/_execute?pretty",
            "headers": [{"name": "User-Agent", "value": "curl"}],
            "postData": {"mimeType": "application/json", "text": "{}"},
        },
        "response": {"status": 404, "headers": [], "content": {"size": 2, "text": "e30=", "encoding": "base64"}},
        "connection": "12",
    }
    return {**entry, **changes}


def _file(*entries: Any) -> bytes:
    return msgspec.json.encode({"log": {"version": "1.2", "entries": entries}})


def test_entries_of_other_programs_are_read() -> None:
    first, second = read_har(_file(_foreign(), _foreign()))
    assert first.id != second.id
    assert (first.method, first.target) == ("POST", "/_plugins/_ml/agents/a%201/_execute?pretty")
    assert (first.intent, first.agent_id, first.user_agent) == ("execute", "a 1", "curl")
    assert (first.started, first.seconds, first.status) == (1795395723.004, 0.0125, 404)
    assert first.request.body == Body(2, "{}")
    assert first.response is not None
    assert first.response.body == Body(2, "e30=", "base64")
    assert first.connection == second.connection != 0
    [searched] = read_har(_file(_foreign(request={"method": "GET", "url": "http://es?q=1"})))
    assert searched.target == "/?q=1"
    [secured] = read_har(_file(_foreign(request={"method": "GET", "url": "https://es/"})))
    assert (first.scheme, secured.scheme) == ("http", "https")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not a JSON document"),
        (b"[1]", "log must be an object"),
        (b'{"log": {}}', "log.entries must be an array"),
        (_file(3), "log.entries[0] must be an object"),
        (_file(_foreign(request=None)), "log.entries[0].request must be an object"),
        (_file(_foreign(), _foreign(time="1")), "log.entries[1].time must be a number, not '1'"),
        (_file(_foreign(time=1e300)), "log.entries[0].time must be a number, not 1e+300"),
        (_file(_foreign(response={"status": 2**64, "headers": []})), "log.entries[0].response.status must be a number"),
        (_file(_foreign(request={"method": "GET", "url": "http://[x/"})), "log.entries[0].request.url must be a URL"),
        (_file(_foreign(startedDateTime="0001-01-01T00:00:00+14:00")), "log.entries[0].startedDateTime must be a time"),
        (_file(_foreign(startedDateTime="now")), "log.entries[0].startedDateTime must be a time in ISO 8601"),
        (_file(_foreign(response={"status": 1, "headers": [1]})), "log.entries[0].response.headers must be a list"),
        (
            _file(_foreign(response={"status": 1, "content": {"text": "?", "encoding": "base64"}})),
            "log.entries[0].response.content.text is not base64",
        ),
        (_file({**entry_of(RECORD), "_mlc": {"version": 1, "id": 3}}), "log.entries[0]._mlc: "),
        (b'{"log": {"entries": ' + b"[" * 100_000, "not a JSON document"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(InvalidHar) as error:
        read_har(data)
    assert message in str(error.value)
