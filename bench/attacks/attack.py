"""What an attack is: a row of the suite's tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.attacks.client import Target

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Attack:
    """One attack.

    about: what it does, in one sentence. run: one round of it. every: seconds from the start of a round to the start
    of the next. settings: of the gateway, in addition to the suite's own. timed: whether the latency of another
    client is judged; False where the attack takes, as configured, what the other client needs as well. memory: the
    most the gateway's resident memory may grow, in bytes. left: how much of that may remain 5 s later. answers: the
    statuses that the attacker may get. fresh: the attack needs a gateway of its own, which is ended by SIGTERM right
    after it. ends: the attack itself ends the gateway; there is no other client then. needs_tls: it is made only where
    clients use TLS.
    """

    name: str
    about: str
    run: Callable[[Target], Awaitable[None]]
    every: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = True
    memory: int = 64 * MEBIBYTE
    left: int = 64 * MEBIBYTE
    answers: frozenset[int] = frozenset({200})
    fresh: bool = False
    ends: bool = False
    needs_tls: bool = False
    group: str = ""


@dataclass
class Table:
    """Rows of one theme. `row` is a decorator for the function that makes one round."""

    group: str
    rows: list[Attack] = field(default_factory=list)

    def row(self, name: str, about: str, **options: Any) -> Callable[[Callable[[Target], Awaitable[None]]], Any]:
        def add(run: Callable[[Target], Awaitable[None]]) -> Any:
            self.add(Attack(name, about, run, group=self.group, **options))
            return run

        return add

    def add(self, attack: Attack) -> None:
        assert all(other.name != attack.name for other in self.rows), attack.name
        self.rows.append(attack)


def select(attacks: Sequence[Attack], patterns: Sequence[str]) -> list[Attack]:
    """The attacks whose group or name contains one of the patterns; all of them if there is no pattern."""
    lowered = [pattern.lower() for pattern in patterns]
    return [
        one
        for one in attacks
        if not lowered or any(pattern in f"{one.group}: {one.name}".lower() for pattern in lowered)
    ]
