"""The benchmark runs from end to end; what it measures is not judged here."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import FIGURES, Figure
from bench.load import TURN, Ask, Connection, Turns
from bench.process import Process, free_port
from bench.run import EXECUTES
from bench.upstream import EXECUTE
from tests.conftest import StartGateway
from tests.docs.pages import ROOT
from tests.wire import send_request

QUICK = ["--rounds", "1", "--seconds", "0.1", "--idle", "20"]


@pytest.mark.slow(90)
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="reads CPU times from Linux's /proc")
def test_a_run_fills_the_table(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    command = [sys.executable, "-m", "bench.run", *QUICK, "--only", "textbook,gateway", "--output", str(results)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    rows = dict(re.findall(r"^\| (.+?) \| ≤ .*? \| (.*?) \|$", results.read_text(), re.MULTILINE))
    assert [figure.name for figure in FIGURES] == list(rows)
    missing = {figure.key for figure in FIGURES if rows[figure.name] == "not measured"}
    assert missing == {"GET 1 KB, envoy", "GET 1 KB, nginx", "GET 100 KB, nginx", *EXECUTES}
    assert re.fullmatch(r"\d+\.\d\d×: (met|\*\*missed\*\*)", rows["1,200 agents in rotation, CPU to that with one"])


class _Clock:
    """A loop on which the time passes from call to call."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        self.now = when
        callback()


@given(st.integers(1, 4), st.data())
def test_each_port_gets_its_load_in_its_own_turns(ports: int, data: st.DataObject) -> None:
    clock, number = _Clock(), data.draw(st.integers(0, ports - 1))
    turns = Turns(clock, 0.0, number, ports)
    for own in sorted(data.draw(st.lists(st.floats(0, 20), min_size=1))):
        turns.call_at(own * TURN, lambda: None)
        assert turns.now() == pytest.approx(own * TURN)
        assert (clock.now / TURN - number + 1e-6) % ports < 1 + 2e-6


TALKER = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    sys.stderr.write("x" * 1000000 + "\\nthe end\\n")
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
"""


def test_a_proxy_that_complains_a_lot_still_answers() -> None:
    port = free_port()
    process = Process("talker", [sys.executable, "-c", TALKER, str(port)], port)
    try:
        process.wait_until_up()
        for _ in range(2):
            connection = Connection(port)
            assert connection.exchange(Ask("/").raw()) == 2
            connection.close()
        assert process.last_words() == "the end"
    finally:
        process.stop()


@pytest.mark.parametrize(("value", "verdict"), [(0.5, "met"), (0.55, "met"), (0.56, "**missed**")])
def test_a_verdict(value: float, verdict: str) -> None:
    assert Figure("envoy", "", 0.55).verdict(value) == verdict


async def test_what_is_rewritten_reaches_the_agent(start_gateway: StartGateway) -> None:
    port = free_port()
    upstream = Process("upstream", [sys.executable, "-m", "bench.upstream", str(port)], port)
    try:
        await asyncio.to_thread(upstream.wait_until_up)
        gateway = await start_gateway(f"http://127.0.0.1:{port}")
        for what, body in EXECUTES.items():
            answer = await send_request(gateway.data_port, Ask(EXECUTE, body).raw())
            assert answer.line == b"HTTP/1.1 200 OK", what
            assert answer.values("X-MLC-Gateway-Delivery"), what
    finally:
        upstream.stop()
    assert len(EXECUTES["1 KB of text"]) == 1000
