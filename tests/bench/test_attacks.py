"""Every attack in a small size: all requests answered, nothing left behind. Times are judged by `make attacks` only.

A gateway on a loaded machine reads for a while what attackers had sent before they left, so it gets a minute for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.attacks import report, run
from bench.attacks.attack import Attack, select
from bench.attacks.judge import Outcome, Size
from bench.attacks.ping import Pings
from bench.attacks.rows import ATTACKS
from bench.attacks.run import Runner, cases
from bench.attacks.stage import Setup

SMALL = Size(pings=20, interval=0.05, scale=0.05, timed=False, keepalive=0.3, rest=60.0, end=30.0)
OTHER = Setup("asyncio", "both", 2)
CASES = [
    *cases(ATTACKS, Setup(), everywhere=False),
    *cases([attack for attack in ATTACKS if attack.group == "aborts" or attack.needs_tls], OTHER, everywhere=False),
]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("attacks"), SMALL, pinned=False) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setup", "attack"), CASES, ids=[f"{attack.group}: {attack.name} ({setup})" for setup, attack in CASES]
)
def test_the_gateway_withstands(runner: Runner, setup: Setup, attack: Attack) -> None:
    outcome = runner.run(setup, attack)
    assert outcome.faults == []


def test_a_stall_counts_for_every_ping_that_was_due() -> None:
    late = Pings([0.001] * 190 + [0.1 * number for number in range(10)])
    assert late.percentile(0.5) == 0.001
    assert late.percentile(0.99) == pytest.approx(0.7)
    assert Pings().percentile(0.99) == 0


def test_rows_are_chosen_by_group_or_name() -> None:
    assert {one.group for one in select(ATTACKS, ["BOMBS:"])} == {"bombs"}
    assert [one.name for one in select(ATTACKS, ["aborts: at once"])] == ["at once"]
    assert len(select(ATTACKS, [])) == len(ATTACKS)


def test_rows_that_need_tls_run_only_where_clients_use_it() -> None:
    for setup, attack in cases(ATTACKS, None, everywhere=False):
        assert setup.clients_tls or not attack.needs_tls
    assert {attack.name for _, attack in cases(ATTACKS, None, everywhere=False)} == {one.name for one in ATTACKS}


def test_no_row_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["no such row"]) == 2
    assert "--list" in capsys.readouterr().err


def test_the_table_stands_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = report.MARKERS
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    shown = report.Report(1, as_json=True)
    shown.add(Outcome("bombs", "one", str(Setup()), pings=200, p99=12.4, faults=["p99 60 ms"]))
    shown.write(page, SMALL)
    text = page.read_text()
    assert text.startswith(f"before\n{begin}\n")
    assert text.endswith(f"{end}\nafter\n")
    assert "old" not in text
    assert "| bombs: one | 12 ms |" in text
    assert not shown.withstood
