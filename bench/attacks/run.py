"""``make attacks``: attacks on a gateway, and what another client notices of them meanwhile.

The gateway runs on one core; attacker, cluster and the other client on another. The other client sends a request every
100 ms. A row fails if the 99th percentile of its times is above 50 ms, if one of its requests is not answered, if the
gateway takes too much memory, or if not all is as before 5 s after. Without a setup (--loop, --tls, --workers) every
attack meets the usual one, and the aborts meet others too. Exit status 1 if a row fails, 2 if no row is chosen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench.attacks.attack import Attack, select
from bench.attacks.judge import Outcome, Size, judge
from bench.attacks.report import Report
from bench.attacks.rows import ATTACKS
from bench.attacks.stage import Setup, Stage
from bench.process import allow_many_files

QUICK = Size(pings=20, scale=0.1)
EVERYWHERE = [Setup(loop, tls, workers) for loop in ("uvloop", "asyncio") for tls in ("", "both") for workers in (1, 2)]
CORNERS = [Setup("uvloop", "both", 1), Setup("asyncio", "", 1), Setup("asyncio", "both", 2), Setup("uvloop", "", 2)]
"""Setups that the aborts meet beside the usual one: every value of each part, and most pairs of them."""

_TRIES = 3

Case = tuple[Setup, Attack]


def cases(attacks: Sequence[Attack], setup: Setup | None, everywhere: bool) -> list[Case]:
    """What is to be run, attacks of the same setup together."""
    if setup is not None:
        found = [(setup, attack) for attack in attacks]
    elif everywhere:
        found = [(each, attack) for each in EVERYWHERE for attack in attacks]
    else:
        found = [(Setup(), attack) for attack in attacks]
        found += [(each, attack) for each in CORNERS for attack in attacks if attack.group == "aborts"]
        tls = Setup(tls="both")  # those that are made with TLS only
        found += [(tls, attack) for attack in attacks if attack.needs_tls and attack.group != "aborts"]
    return [(each, attack) for each, attack in found if each.clients_tls or not attack.needs_tls]


class Runner(contextlib.AbstractContextManager["Runner"]):
    """Runs cases. The gateway is a new one where its settings change, and after a row that failed.

    folder: for files. pinned: see `Stage`.
    """

    def __init__(self, folder: Path, size: Size, *, pinned: bool = True) -> None:
        self._folder = folder
        self._size = size
        self._pinned = pinned
        self._stage: Stage | None = None
        self._key = (Setup(), "")
        allow_many_files()

    def __exit__(self, *_: object) -> None:
        if self._stage is not None:
            self._stage.__exit__(None, None, None)
            self._stage = None

    def run(self, setup: Setup, attack: Attack) -> Outcome:
        """Run one case; again, up to `_TRIES` times, if it fails on latencies that the machine itself delays."""
        for _ in range(_TRIES if self._size.timed else 1):
            outcome = self._run_once(setup, attack)
            if outcome.withstood or not outcome.disturbed:
                break
        return outcome

    def _run_once(self, setup: Setup, attack: Attack) -> Outcome:
        key = (setup, json.dumps(attack.settings))
        alone = attack.fresh or attack.ends
        if self._stage is None or self._key != key or alone:
            self.__exit__()
            self._stage = Stage(
                setup, attack.settings, self._folder, pinned=self._pinned, keepalive=self._size.keepalive
            ).__enter__()
            self._key = key
        outcome = uvloop.run(judge(attack, self._stage, self._size))
        if alone or not outcome.withstood:
            self.__exit__()
        return outcome


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.attacks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="WORD", help="only rows whose group or name holds one of these")
    parser.add_argument("--rows", dest="more", action="append", default=[], metavar="WORD", help="the same")
    parser.add_argument("--pings", type=int, metavar="N", help="pings beside each attack (200)")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), help="the gateway's event loop")
    parser.add_argument(
        "--tls", nargs="?", const="both", choices=("upstream", "clients", "both"), help="where TLS is used (both)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="the gateway's worker processes")
    parser.add_argument("--everywhere", action="store_true", help="every row in all eight setups: takes hours")
    parser.add_argument("--quick", action="store_true", help="20 pings, attacks of a tenth of the size")
    parser.add_argument("--json", action="store_true", help="JSON even on a terminal")
    parser.add_argument("--list", action="store_true", help="say what the rows do, and attack nothing")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into a page, between its markers")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    attacks = select(ATTACKS, [*given.rows, *given.more])
    if given.list:
        print("\n".join(f"{one.group}: {one.name}: {one.about}." for one in attacks))
        return 0
    setup = None
    if given.loop or given.tls or given.workers:
        setup = Setup(given.loop or "uvloop", given.tls or "", given.workers or 1)
    size = QUICK if given.quick else Size()
    if given.pings:
        size = Size(given.pings, size.interval, size.scale)
    rows = cases(attacks, setup, given.everywhere)
    if not rows:
        sys.stderr.write("No row has that in its name; --list shows all. Some need --tls.\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started stays
    report = Report(len(rows), as_json=given.json or not sys.stdout.isatty())
    try:
        with tempfile.TemporaryDirectory() as folder, Runner(Path(folder), size) as runner:
            for each, attack in rows:
                report.add(runner.run(each, attack))
    finally:
        report.end()
    if given.write:
        report.write(given.write, size)
    return 0 if report.withstood else 1


if __name__ == "__main__":
    sys.exit(main())
