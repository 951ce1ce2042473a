"""The lines of the access log, and its file."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import load
from gateway.observe.record import Body, Delivery, HttpMessage, RecordedError
from gateway.recording.sinks.access_log import AccessLog, apache_line, json_line
from gateway.recording.sinks.registry import check_telemetry
from gateway.recording.store import StoreError
from tests.recording.records import record

REQUEST = HttpMessage((("Host", "a"), ("Referer", "http://b/?token=[REDACTED length=3 sha256=000000000000]")))
RUN = record(
    started=1_760_000_000.25,
    client="192.0.2.1",
    user_agent="curl/8",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    delivery=Delivery(strategy="wrap"),
    request=REQUEST,
)
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
COMBINED = re.compile(
    rf"(\S+) (\S+) (\S+) \[([^\]]+)\] {_QUOTED} (\d+) (\d+|-) {_QUOTED} {_QUOTED} {_QUOTED} {_QUOTED}\n"
)


def test_apache() -> None:
    assert apache_line(RUN) == (
        '192.0.2.1 - - [09/Oct/2025:08:53:20 +0000] "POST /_plugins/_ml/agents/a1/_execute HTTP/1.1" 200 11 '
        '"http://b/?token=[REDACTED length=3 sha256=000000000000]" "curl/8" "5f2a" "0af7651916cd43dd8448eb211c80319c"'
    )
    cut = record(method="GET", target="/", client="::1", status=0, request=HttpMessage(), response=None)
    assert apache_line(cut) == ('::1 - - [09/Oct/2025:08:53:20 +0000] "GET / HTTP/1.1" 0 - "-" "-" "5f2a" "-"')


def test_json() -> None:
    assert json.loads(json_line(RUN)) == {
        "time": "2025-10-09T08:53:20.250+00:00",
        "request_id": "5f2a",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "client": "192.0.2.1",
        "method": "POST",
        "target": "/_plugins/_ml/agents/a1/_execute",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 11,
        "s": 0.5,
        "upstream_s": 0.25,
        "referer": "http://b/?token=[REDACTED length=3 sha256=000000000000]",
        "user_agent": "curl/8",
        "intent": "execute",
        "agent": "a1",
        "strategy": "wrap",
        "worker": 7,
    }
    refused = record(status=400, response=None, error=RecordedError("UndeliverableContent", "no"))
    assert json.loads(json_line(refused))["error"] == "UndeliverableContent"


def test_the_size_of_a_body_that_was_not_recorded() -> None:
    chunked = HttpMessage((("Transfer-Encoding", "chunked"),), Body(0, omitted="Not recorded."))
    empty = HttpMessage((("Content-Length", "0"),), Body(0, omitted="Not recorded."))
    assert " 200 - " in apache_line(record(response=chunked))
    assert " 200 0 " in apache_line(record(response=empty))
    assert " 200 5 " in apache_line(record(response=chunked, answered=HttpMessage((), Body(5, "12345"))))


NASTY = st.text(max_size=30) | st.sampled_from(
    ['" 200 0 "-" "', "a\nb", "\udcff", "\ud800", "\x1b[31m", "\\", "é", "\u2028"]
)


@given(target=NASTY, agent=NASTY, referer=NASTY, client=NASTY)
def test_no_value_of_a_client_ends_its_field_or_line(target: str, agent: str, referer: str, client: str) -> None:
    one = record(
        target=target, user_agent=agent, client=client.replace(" ", ""), request=HttpMessage((("Referer", referer),))
    )
    line = apache_line(one) + "\n"
    assert line.isascii()
    assert line[:-1].isprintable()
    found = COMBINED.fullmatch(line)
    assert found is not None
    assert (found[6], found[10]) == ("200", "5f2a")
    text = json_line(one)
    assert text.isascii()
    assert text.isprintable()
    if not any("\ud800" <= char <= "\udfff" for char in target):
        assert json.loads(text).get("target", "") == target


def test_lines_are_appended_and_the_file_may_be_rotated(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    sink = AccessLog("apache", str(path))
    sink.add([RUN, RUN])
    sink.add([RUN])
    assert path.read_text() == f"{apache_line(RUN)}\n" * 3
    path.rename(tmp_path / "access.log.1")
    sink.add([RUN])
    assert path.read_text() == f"{apache_line(RUN)}\n"
    assert path.stat().st_mode & 0o007 == 0
    sink.close()


def test_a_copy_is_a_line_only_where_it_can_say_so(tmp_path: Path) -> None:
    copy = record(id="copy", mirror_of="5f2a", route="a1", cluster="new", agent_id="b1")
    found = {}
    for style in ("apache", "json"):
        AccessLog(style, str(tmp_path / style)).add([RUN, copy])
        found[style] = (tmp_path / style).read_text()
    assert found["apache"] == f"{apache_line(RUN)}\n"
    line = json.loads(found["json"].splitlines()[1])
    names = ("request_id", "mirror_of", "route", "cluster", "agent")
    assert [line[name] for name in names] == ["copy", "5f2a", "a1", "new", "b1"]


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="can't be written: Is a directory"):
        AccessLog("json", str(tmp_path)).add([RUN])


def test_a_line_after_a_full_disk_is_whole(tmp_path: Path) -> None:
    log = AccessLog("json", str(tmp_path / "access.log"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(StoreError, match="can't be written"):
            log.add([record(id="cut")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.add([record(id="a")])
    log.add([record(id="b")])
    cut, *whole = (tmp_path / "access.log").read_text().splitlines()
    assert len(cut) == 100
    assert [json.loads(line)["request_id"] for line in whole] == ["a", "b"]


def test_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    AccessLog("json", "").add([RUN])
    assert capfd.readouterr().out == json_line(RUN) + "\n"


def test_a_file_that_cannot_be_used_is_found_by_check_config(tmp_path: Path) -> None:
    def check(path: Path, access: str = "json") -> list[str]:
        logs = {"access": access, "access_file": str(path)}
        return [str(problem) for problem in check_telemetry(load(None, {}, {"logs": logs}))]

    assert check(tmp_path / "access.log") == []
    assert check(tmp_path / "missing" / "access.log", "off") == []
    (missing,) = check(tmp_path / "missing" / "access.log")
    assert "missing is not a directory" in missing
    (directory,) = check(tmp_path)
    assert "it is a directory" in directory
    traces = {"endpoint": "https://a/v1/traces", "ca_file": str(tmp_path / "missing.pem")}
    (problem,) = check_telemetry(load(None, {}, {"telemetry": {"traces": traces}}))
    assert problem.path == "telemetry.traces.ca_file"
