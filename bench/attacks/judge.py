"""Runs one attack and judges it: does another client notice it, and is all as before afterwards?"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.attacks.attack import MEBIBYTE, Attack
from bench.attacks.client import Target, get
from bench.attacks.measure import forget, use, wait_for_rest, waited
from bench.attacks.ping import Pings
from bench.attacks.stage import Stage

AIM, MOST = 0.020, 0.050
"""Seconds: what the 99th percentile of another client's pings should be, and must be, at most."""
_ROUND = 60.0
"""Seconds after which a round of an attack, or a request after it, is given up."""
_AFTER = 150
"""Requests at the same time after an attack that must all be answered: more than there are connections upstream."""


@dataclass(frozen=True)
class Size:
    """How large a run is.

    pings: how many, `interval` seconds apart. scale: of the attacks. timed: judge latencies. keepalive: seconds for
    which idle connections to the cluster stay open, so that all is as before after them at the earliest. rest: seconds
    after which all must be as before. end: seconds within which an idle gateway must end after SIGTERM.
    """

    pings: int = 200
    interval: float = 0.1
    scale: float = 1.0
    timed: bool = True
    keepalive: float = 1.0
    rest: float = 5.0
    end: float = 2.0


@dataclass
class Outcome:
    """What came of an attack. Times are in milliseconds, memory in MiB.

    p99, most: of another client's pings; direct: the p99 of pings that went past the gateway, so what the machine
    itself does to them. peak, left: growth of resident memory during the attack, and after it. descriptors: how many
    more than before. in_flight: requests after it. rest: seconds until all was as before. ended: seconds from SIGTERM
    to the gateway's end, -1 where there was none. waited: of its threads for their core. seen: the attacker's statuses.
    faults: why the row fails.
    """

    group: str
    name: str
    setup: str
    pings: int = 0
    p99: float = 0.0
    most: float = 0.0
    direct: float = 0.0
    peak: float = 0.0
    left: float = 0.0
    descriptors: int = 0
    in_flight: int = 0
    rest: float = 0.0
    ended: float = -1.0
    waited: float = 0.0
    rounds: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def withstood(self) -> bool:
        return not self.faults

    @property
    def disturbed(self) -> bool:
        """The machine itself delayed the pings, those past the gateway too, so the latencies say nothing of it."""
        return self.direct > MOST * 1000

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "withstood": self.withstood}


async def judge(attack: Attack, stage: Stage, size: Size) -> Outcome:
    """Attack the gateway once for as long as the pings take."""
    outcome = Outcome(attack.group, attack.name, str(stage.setup))
    target = stage.target(size.scale)
    try:
        if attack.ends:
            await _drained(attack, stage, target, outcome, size)
        else:
            await _pinged(attack, stage, target, outcome, size)
    except OSError as exc:
        ended = "has ended" if stage.ended() else "does not answer"
        outcome.faults.append(f"the gateway {ended}: {exc} {stage.gateway.last_words()}")
    outcome.seen = {str(status): count for status, count in sorted(target.seen.items())}
    outcome.rounds = target.rounds
    outcome.faults += [f"{what} ({count})" for what, count in target.faults.items()]
    unexpected = {status: count for status, count in target.seen.items() if status not in attack.answers}
    if unexpected and not attack.ends:
        outcome.faults.append(f"answers to the attacker: {unexpected}")
    return outcome


async def _drained(attack: Attack, stage: Stage, target: Target, outcome: Outcome, size: Size) -> None:
    """An attack that ends the gateway by itself."""
    async with asyncio.timeout(_ROUND):
        await attack.run(target)
    target.rounds = 1
    await _wait_for_end(stage, outcome, 5 * size.end)


async def _pinged(attack: Attack, stage: Stage, target: Target, outcome: Outcome, size: Size) -> None:
    """An attack beside another client's pings."""
    before = await asyncio.to_thread(use, stage.gateway, stage.admin)
    await _prepare(attack, target)
    forget(stage.gateway)
    waited_before = waited(stage.gateway)
    pinging = stage.ping(size.pings, size.interval)
    assert pinging.stdout is not None
    await asyncio.to_thread(pinging.stdout.readline)  # until it is ready
    attacking = asyncio.ensure_future(_rounds(attack, target))
    try:
        pings = await asyncio.to_thread(_ping_results, pinging, size)
    finally:
        attacking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await attacking
    outcome.waited = (waited(stage.gateway) - waited_before) * 1000
    peak = await asyncio.to_thread(use, stage.gateway, stage.admin)
    outcome.peak = (peak.peak - before.memory) / MEBIBYTE
    _read_pings(pings, attack, outcome, size)
    await _check_requests(stage, outcome)
    most = before.memory + attack.left * stage.setup.workers
    now, outcome.rest = await asyncio.to_thread(
        wait_for_rest, stage.gateway, stage.admin, most, before.descriptors, size.rest
    )
    outcome.left = (now.memory - before.memory) / MEBIBYTE
    outcome.descriptors = now.descriptors - before.descriptors
    outcome.in_flight = now.in_flight
    if outcome.peak > attack.memory / MEBIBYTE * stage.setup.workers:
        outcome.faults.append(f"memory grew by {outcome.peak:.0f} MiB, allowed are {attack.memory // MEBIBYTE}")
    if now.memory > most:
        outcome.faults.append(f"{outcome.left:.0f} MiB of memory were not given back")
    if outcome.descriptors > 0:
        outcome.faults.append(f"{outcome.descriptors} descriptors stayed open")
    if outcome.in_flight:
        outcome.faults.append(f"{outcome.in_flight} requests stayed in flight")
    if attack.fresh:
        stage.terminate()
        await _wait_for_end(stage, outcome, size.end)


async def _wait_for_end(stage: Stage, outcome: Outcome, seconds: float) -> None:
    ended = await asyncio.to_thread(stage.wait_for_end, seconds)
    if ended is None:
        outcome.faults.append(f"the gateway did not end within {seconds:g} s after SIGTERM")
    else:
        outcome.ended = ended


async def _prepare(attack: Attack, target: Target) -> None:
    """Have what is sent ready before the clock runs."""
    bomb = getattr(attack.run, "__self__", None)
    if bomb is not None:
        target.prepared[bomb] = await asyncio.to_thread(bomb.make, target.scale)


async def _rounds(attack: Attack, target: Target) -> None:
    """Round after round until cancelled."""
    while True:
        start = time.monotonic()
        try:
            async with asyncio.timeout(_ROUND):
                await attack.run(target)
        except TimeoutError:
            target.faults["a round of the attack was not over after a minute"] += 1
        except OSError as exc:
            target.faults[f"the attacker was stopped by {type(exc).__name__}"] += 1
        target.rounds += 1
        await asyncio.sleep(max(0.05, start + attack.every - time.monotonic()))


def _ping_results(pinging: subprocess.Popen[str], size: Size) -> list[dict[str, Any]]:
    try:
        output, _ = pinging.communicate(timeout=120 + size.pings * size.interval * 2)
    except subprocess.TimeoutExpired:
        pinging.kill()
        pinging.wait()
        return [{"unanswered": ["the pings were not over in time"]}, {}]
    if pinging.returncode:
        return [{"unanswered": ["the other client ended early"]}, {}]
    found: list[dict[str, Any]] = json.loads(output)
    return found


def _read_pings(pings: list[dict[str, Any]], attack: Attack, outcome: Outcome, size: Size) -> None:
    through, past = (Pings(**one) for one in pings)
    outcome.pings = len(through.seconds)
    outcome.p99, outcome.most = through.percentile(0.99) * 1000, max(through.seconds, default=0.0) * 1000
    outcome.direct = past.percentile(0.99) * 1000
    if through.unanswered:
        outcome.faults.append(f"{len(through.unanswered)} pings not answered: {through.unanswered[0]}")
    if size.timed and attack.timed and outcome.p99 > MOST * 1000:
        outcome.faults.append(f"p99 {outcome.p99:.0f} ms")


async def _check_requests(stage: Stage, outcome: Outcome) -> None:
    """Many requests at the same time: each needs a connection to the cluster."""
    other = stage.target(1.0)
    bad: dict[str, int] = {}

    async def one(_: int) -> None:
        try:
            async with asyncio.timeout(_ROUND):
                status = str(await other.ask(get("/slow/100/100")))
        except (OSError, TimeoutError) as exc:
            status = type(exc).__name__
        if status != "200":
            bad[status] = bad.get(status, 0) + 1

    await other.burst(one, _AFTER, 0.3)
    if bad:
        outcome.faults.append(f"of {_AFTER} requests afterwards not answered: {bad}")
