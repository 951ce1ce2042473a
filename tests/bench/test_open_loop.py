"""The load at a fixed rate: what counts as latency."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench import open_loop
from bench.load import Ask
from bench.open_loop import Schedule, run
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
