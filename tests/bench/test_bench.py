"""The benchmark runs from end to end; what it measures is not judged here."""

from __future__ import annotations

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
from bench.rewrite import conversation_body, image_body, profile, rewrite, text_body
from gateway.delivery.plan_cache import PlanCache
from tests.docs.pages import ROOT

QUICK = ["--quick", "--rounds", "1", "--seconds", "0.3", "--requests", "20", "--idle", "20"]


@pytest.mark.slow(30)
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="reads CPU times from Linux's /proc")
def test_a_run_fills_the_table(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    command = [sys.executable, "-m", "bench.run", *QUICK, "--only", "textbook,gateway", "--output", str(results)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    rows = dict(re.findall(r"^\| (.+?) \| .*? \| .*? \| (.*?) \|$", results.read_text(), re.MULTILINE))
    assert [figure.name for figure in FIGURES] == [name for name in rows if name in {f.name for f in FIGURES}]
    missing = {figure.key for figure in FIGURES if rows[figure.name] == "not measured"}
    assert missing - {"workers"} == {"nginx", "portkey", *(figure.key for figure in FIGURES if "Envoy" in figure.name)}
    workers = rows[next(figure.name for figure in FIGURES if figure.key == "workers")]
    assert re.fullmatch(r"needs ≥ 4 cores for the throughput figure.*: \d+\.\d\d×|\d+\.\d\d×: .+|not measured", workers)
    assert re.fullmatch(r"1/\d+\.\d: .+", rows["GET 1 KB, CPU vs textbook aiohttp"])


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


@pytest.mark.parametrize(
    ("value", "must", "verdict"),
    [(0.5, None, "aim met"), (0.6, None, "aim met"), (0.9, None, "must met"), (1.1, None, "**missed**")],
)
def test_a_verdict_on_a_ratio(value: float, must: float | None, verdict: str) -> None:
    assert Figure("envoy", "", 1.0, 0.6, "×").verdict(value, must) == verdict


def test_a_verdict_on_what_must_be_high_and_on_what_another_sets() -> None:
    faster = Figure("rewrite", "", 2.0, 3.5, "×", at_least=True)
    assert [faster.verdict(value) for value in (4.0, 2.5, 1.5)] == ["aim met", "must met", "**missed**"]
    latency = Figure("latency", "", None, 45e-6, "µs")
    assert [latency.verdict(value, 90e-6) for value in (40e-6, 80e-6, 95e-6)] == ["aim met", "must met", "**missed**"]


def test_a_figure_that_takes_more_cores_than_there_are_says_so() -> None:
    workers = next(figure for figure in FIGURES if figure.key == "workers")
    assert workers.absent(2) == "needs ≥ 4 cores for the throughput figure"
    assert workers.absent(4) == Figure("idle", "", None, 1.0, "×").absent(1) == "not measured"


def test_what_is_rewritten_reaches_the_agent() -> None:
    for body in (text_body(1000), image_body(3000), conversation_body(2)):
        sent = b"".join(rewrite(PlanCache(profile()), body))
        assert b'"question":' in sent
        assert b'"messages":' in sent
    assert len(text_body(1000)) in range(980, 1001)
