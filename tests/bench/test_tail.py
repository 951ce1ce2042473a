"""The load at a fixed rate: what counts as latency, and which runs count."""

from __future__ import annotations

import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench import chat, open_loop
from bench.load import Ask, Connection
from bench.open_loop import Outcome, Schedule, run
from bench.process import Process, free_port
from bench.tail import DIRECT, Tail
from bench.upstream import COMPLETION
from tests.wire import PATIENCE

RAW = Ask("/").raw()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def server(answer: Callable[[int], bytes]) -> Iterator[int]:
    """A server of one connection, on the port that is yielded. answer: from a request's number to what is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            number, data = 0, b""
            with connection:
                while received := connection.recv(1 << 16):
                    *requests, data = (data + received).split(b"\r\n\r\n")
                    for _ in requests:
                        connection.sendall(answer(number))
                        number += 1

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a loaded machine answer late."""
    monkeypatch.setattr(open_loop, "_PATIENCE", PATIENCE)


@pytest.mark.usefixtures("patient")
def test_all_requests_are_sent_and_answered() -> None:
    numbers: list[int] = []

    def answer(number: int) -> bytes:
        numbers.append(number)
        return ANSWER

    with server(answer) as port:
        (found,) = run(Schedule(port, RAW, 1000, 0.05, connections=1))
    assert found.unanswered == 0
    assert numbers == list(range(51))  # the first one warms up


@pytest.mark.usefixtures("patient")
def test_a_stall_counts_for_every_request_that_was_due_meanwhile() -> None:
    def answer(number: int) -> bytes:
        if number == 1:
            time.sleep(0.3)
        return ANSWER

    with server(answer) as port:
        (found,) = run(Schedule(port, RAW, 100, 0.1, connections=1))
    assert found.unanswered == 0
    assert found.p50 >= 0.2  # the last was due after 0.09 s


def test_requests_without_an_answer_count_with_the_time_that_they_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_loop, "_PATIENCE", 0.1)
    with server(lambda number: b"" if number else ANSWER) as port:
        (found,) = run(Schedule(port, RAW, 100, 0.1, connections=1))
    assert found.unanswered == 1
    assert found.p50 >= 0.1


def _tail(rounds: list[dict[str, Outcome]], saturated: float = 1.0) -> Tail:
    tail = Tail(1000, saturated, 1)
    tail.rounds["GET"] = rounds
    return tail


def _round(gateway: Outcome, direct: float = 0.001) -> dict[str, Outcome]:
    return {DIRECT: _on_time(direct), "envoy": _on_time(0.003), "gateway": gateway}


def _on_time(p99: float) -> Outcome:
    return Outcome(p99 / 2, p99, 0.0001, 0.0)


LATE = Outcome(0.01, 0.1, 0.01, 0.0)
OVERLOADED = Outcome(0.1, 0.2, 0.0, 0.5)


def test_what_a_proxy_adds_is_its_p99_without_the_direct_one() -> None:
    tail = _tail([_round(_on_time(0.002)), _round(_on_time(0.005), direct=0.004), _round(_on_time(0.009))])
    assert tail.added("GET", "gateway") == pytest.approx(0.001)
    assert tail.ratio("GET", "gateway", ("GET", "envoy")) == pytest.approx(0.5)
    assert tail.doubts() == []


def test_a_run_whose_load_was_late_does_not_count() -> None:
    tail = _tail([_round(_on_time(0.002)), _round(LATE)])
    assert tail.p99("GET", "gateway") == [0.002]
    assert tail.added("GET", "gateway") == pytest.approx(0.001)
    assert "1 of 6 runs do not count" in tail.doubts()[0]
    only = _tail([_round(LATE)])
    assert only.ratio("GET", "gateway", ("GET", "envoy")) is None


def test_a_proxy_that_cannot_keep_up_adds_without_bound() -> None:
    assert _tail([_round(OVERLOADED)]).added("GET", "gateway") == math.inf


def test_without_a_saturated_envoy_there_is_no_ratio() -> None:
    tail = _tail([_round(_on_time(0.002))], saturated=0.5)
    assert tail.ratio("GET", "gateway", ("GET", "envoy")) is None
    assert "50%" in tail.doubts()[0]


@pytest.mark.parametrize("name", ["portkey", "litellm"])
def test_the_upstream_answers_a_chat_completion(name: str) -> None:
    port = free_port()
    process = Process("upstream", [sys.executable, "-m", "bench.upstream", str(port)], port)
    try:
        process.wait_until_up()
        connection = Connection(port)
        assert connection.exchange(chat.ask(name, port).raw()) == len(COMPLETION)
        connection.close()
    finally:
        process.stop()
