"""What reaches the LLM: every agent and template against every kind of input, judged by the oracle.

    python -m tests.matrix [--version 2.19.0] [--unseen | --holdout] [--upgraded] [--json]
    python -m tests.matrix --write docs/evidence/matrix.md

Exits 1 when anything was lost or broken, or refused although the floor says that it arrives.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gateway.unified.model import AgentInput, InputType, Media, Message, Text
from gateway.unified.request import read_execute
from tests.delivery.cases import CASES, FLOOR, Case
from tests.delivery.holdout import HoldoutCluster
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.delivery.unseen import UnseenCluster
from tests.delivery.upgrades import upgrade
from tests.delivery.v2_agents import v2_cluster_of
from tests.native_oracle import judge_native
from tests.oracle import Oracle, Outcome, Verdict
from tests.oracle_rules import media_of
from tests.wire_formats import FORMATS, OPENAI, Format, NotMappable, map_conversation

VERSIONS = ("2.19.0", "3.4.0")
LATER_VERSIONS = ("3.6.0", "3.8.0")  # their agents take what those of 3.4.0 take
V2_VERSION = "3.8.0"
V2_SECTION = f"{V2_VERSION}, conversational_v2"
DOCS = Path(__file__).parent.parent / "docs" / "evidence" / "matrix.md"


@dataclass(frozen=True)
class Cell:
    """One input to one agent. floor: it must arrive. takeable: see `can_take`."""

    version: str
    agent: str
    case: str
    verdict: Verdict
    floor: bool
    takeable: bool = True

    @property
    def below_floor(self) -> bool:
        return self.floor and self.verdict.outcome is Outcome.REFUSED


def must_arrive(version: str, agent: str, case: Case, cluster: SimulatedCluster) -> bool:
    """Whether the floor says that this input reaches the LLM of this agent."""
    floor = FLOOR["3.4.0" if version in LATER_VERSIONS else version]
    allowed = next((takes for pattern, takes in floor if fnmatchcase(agent, pattern)), "").split()
    needs = case.needs.split()
    if not set(needs) <= set(allowed):
        return False
    provider = cluster.profile(agent).provider
    if not provider:
        return True
    wire = FORMATS[provider]
    conversation = cluster.send(agent, case.body, case.pairs).input
    assert conversation is not None
    try:
        map_conversation(wire, conversation, {})
    except NotMappable:
        return False
    return conversation.messages[-1].role != "assistant" or wire is OPENAI


def can_take(provider: str, conversation: AgentInput) -> bool:
    """Whether the model behind an agent can take the media of an input at all, by any connector.

    It can't if it completes a text, so that its format is none of the providers' (`provider` is ""), nor if the
    provider's API has no form for a kind of media, such as video on OpenAI.
    """
    media = media_of(conversation)
    return all(_has_form(FORMATS[provider], medium) for medium in media) if provider else not media


def _has_form(wire: Format, medium: Media) -> bool:
    asked = AgentInput(InputType.MESSAGES, (Message("user", (Text("x", ""), medium), ""),))
    try:
        map_conversation(wire, asked, {})
    except NotMappable:
        return False
    return True


def conversation_of(case: Case) -> AgentInput:
    """The input of a case."""
    conversation = read_execute(json.dumps(case.body).encode()).input
    assert conversation is not None
    return conversation


def agents(cluster: SimulatedCluster) -> list[str]:
    """The agents of a version, grouped by template."""
    return sorted(cluster.agents, key=lambda name: (name.partition("-")[2], name))


def cells(version: str, only: Iterable[str] | None = None, cases: Mapping[str, Case] = CASES) -> Iterator[Cell]:
    """The matrix of a version, cell by cell; `only` some agents."""
    cluster = cluster_of(version)
    for agent in agents(cluster) if only is None else only:
        for name, verdict in verdicts(cluster, agent, cases):
            refused = verdict.outcome is Outcome.REFUSED
            floor = refused and must_arrive(version, agent, cases[name], cluster)
            takeable = can_take(cluster.profile(agent).provider, conversation_of(cases[name]))
            yield Cell(version, agent, name, verdict, floor, takeable)


def native_cells(cases: Mapping[str, Case] = CASES) -> Iterator[Cell]:
    """The cells of V2 agents, which get `input` itself (`tests.native_oracle`). No floor applies to them."""
    cluster = v2_cluster_of(V2_VERSION)
    for agent in agents(cluster):
        for name, case in cases.items():
            if case.pairs:
                continue  # their sessions are the cluster's (`tests.properties.test_conversations`)
            sent = cluster.send(agent, case.body)
            verdict = judge_native(cluster, agent, sent, case.parameters)
            takeable = can_take(cluster.profile(agent).provider, conversation_of(case))
            yield Cell(V2_SECTION, agent, name, verdict, False, takeable)
            cluster.forget()


CLUSTERS: Mapping[str, type[SimulatedCluster]] = {
    "own": SimulatedCluster,
    "unseen": UnseenCluster,
    "holdout": HoldoutCluster,
}


def other_cells(version: str, agents_of: str, upgraded: bool) -> Iterator[Cell]:
    """The cells of a cluster in `CLUSTERS`, before or after the upgrades that are offered. No floor applies to them."""
    cluster = CLUSTERS[agents_of](version)
    if upgraded:
        upgrade(cluster)
    for agent in agents(cluster):
        for name, verdict in verdicts(cluster, agent, CASES):
            takeable = can_take(cluster.profile(agent).provider, conversation_of(CASES[name]))
            yield Cell(version, agent, name, verdict, False, takeable)


def verdicts(cluster: SimulatedCluster, agent: str, cases: Mapping[str, Case]) -> Iterator[tuple[str, Verdict]]:
    """What became of each input to an agent."""
    oracle = Oracle(cluster)
    for name, case in cases.items():
        sent = cluster.send(agent, case.body, case.pairs)
        yield name, oracle.judge(agent, case.parameters, case.pairs, sent)
    cluster.forget()


SIGNS = {Outcome.LOST: "L", Outcome.BROKEN: "B"}
STRATEGIES = {"wrap": "w", "messages": "m", "text": "t", "splice": "s", "native": "n"}
SHORT = {
    "MEDIA_NEEDS_UPGRADE": "media",
    "HISTORY_NEEDS_UPGRADE": "history",
    "SYSTEM_NEEDS_SLOT": "system",
    "TOOLS_NEED_UPGRADE": "tools",
    "AGENT_NOT_CALLABLE": "agent",
    "TEXT_NOT_SAFE": "text",
    "COMBINATION_NOT_DELIVERABLE": "both",
    "PROVIDER_UNKNOWN": "unknown",
    "ASSISTANT_LAST": "assistant",
    "MEDIA_KIND_UNSUPPORTED": "kind",
    "QUESTION_MISSING": "question",
    "MEMORY_NOT_SAFE": "memory",
}


def sign(cell: Cell) -> str:
    """A cell in one word: ✓ and the strategy's letter, ``L``, ``B`` or why it was refused."""
    verdict = cell.verdict
    if verdict.outcome is Outcome.ARRIVED:
        return f"✓{STRATEGIES.get(verdict.strategy, verdict.strategy)}"
    if verdict.outcome is Outcome.REFUSED:
        word = SHORT.get(verdict.detail, verdict.detail.lower())
        return f"!{word}" if cell.below_floor else word
    return SIGNS[verdict.outcome]


def totals(found: Iterable[Cell]) -> dict[str, int]:
    """How many cells ended how."""
    found = list(found)
    counted = Counter(cell.verdict.outcome.value for cell in found)
    below = sum(cell.below_floor for cell in found)
    return {"cells": len(found), **{o.value: counted[o.value] for o in Outcome}, "below floor": below}


def percentages(found: Iterable[Cell]) -> dict[str, float]:
    """How many of a hundred cells arrived, by version."""
    by_version: dict[str, list[bool]] = {}
    for cell in found:
        by_version.setdefault(cell.version, []).append(cell.verdict.outcome is Outcome.ARRIVED)
    return {version: round(100 * sum(arrived) / len(arrived), 1) for version, arrived in by_version.items()}


def shares(found: Iterable[Cell]) -> dict[str, dict[str, float]]:
    """Both figures of each version: of all cells, and of the cells whose media the model can take at all."""
    found = list(found)
    takeable = percentages(cell for cell in found if cell.takeable)
    return {version: {"all": share, "takeable": takeable[version]} for version, share in percentages(found).items()}


def rows(found: Iterable[Cell]) -> dict[tuple[str, str], list[str]]:
    """Version and agent → its signs, one for each case."""
    table: dict[tuple[str, str], list[str]] = {}
    for cell in found:
        table.setdefault((cell.version, cell.agent), []).append(sign(cell))
    return table


def markdown(found: Sequence[Cell]) -> str:
    """The page `docs/evidence/matrix.md`."""
    lines = [
        "# What reaches the LLM",
        "",
        "Written by `python -m tests.matrix --write docs/evidence/matrix.md`; a test checks that it is current. Every",
        "cell was run on the simulated cluster and judged by code that shares nothing with the delivery. It compares",
        "what the LLM received with the provider's mapping of the input, and with the agent's own prompt around it.",
        "",
        "✓ arrived whole, by the strategy **w**rap, **m**essages, **t**ext or **s**plice, or **n**atively as `input`.",
        "A word: refused with a 400, because of that part ([the codes](../reference/limitations.md)). L: lost. B:",
        "broken.",
        "",
        "Each version has two figures. One is the share of all its cells that arrived. The other leaves out the cells",
        "whose media no connector could bring to the model: media for an endpoint that completes a text (c), and kinds",
        "of media that the provider's API has no form for (such as video on OpenAI, or PDF on Cohere). The agent's",
        "provider and the input alone decide that, in `can_take` of `tests/matrix.py`, not what became of the cell.",
        "",
        *(f"{number}. {name}" for number, name in enumerate(CASES, 1)),
        "",
    ]
    refused = sorted({cell.verdict.detail for cell in found if cell.verdict.outcome is Outcome.REFUSED})
    lines += ["| word | code |", "|---|---|"]
    lines += [f"| {SHORT.get(code, code.lower())} | `{code}` |" for code in refused]
    for version in dict.fromkeys(cell.version for cell in found):
        mine = [cell for cell in found if cell.version == version]
        counts = ", ".join(f"{name} {count}" for name, count in totals(mine).items())
        lines += ["", f"## {version}", "", f"{counts[0].upper()}{counts[1:]}.", _sentence(shares(mine)[version]), ""]
        lines += [f"| agent-template | {' | '.join(map(str, range(1, len(CASES) + 1)))} |"]
        lines += ["|---|" + "---|" * len(CASES)]
        lines += [f"| {agent} | {' | '.join(signs)} |" for (_, agent), signs in rows(mine).items()]
    return "\n".join(lines) + "\n"


def _sentence(share: Mapping[str, float]) -> str:
    return (
        f"{share['all']} % of all cells arrived, {share['takeable']} % of those whose media the model can take at all."
    )


def _show(found: Sequence[Cell]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 400)
    table = Table("agent-template", *map(str, range(1, len(CASES) + 1)), title="what reaches the LLM", padding=0)
    for (version, agent), signs in rows(found).items():
        table.add_row(f"{version} {agent}", *signs)
    console.print(table)
    for number, name in enumerate(CASES, 1):
        console.print(f"{number:3}  {name}", highlight=False)
    for cell in found:
        if cell.verdict.outcome in SIGNS:
            console.print(
                f"{cell.verdict.outcome.value}: {cell.version} {cell.agent}, {cell.case}: {cell.verdict.detail}"
            )
        if cell.below_floor:
            console.print(f"below the floor: {cell.version} {cell.agent}, {cell.case}: {cell.verdict.detail}")
    console.print(totals(found))
    for version, share in shares(found).items():
        console.print(f"{version}: {_sentence(share)}", highlight=False)


def _json(found: Sequence[Cell]) -> str:
    shown = [
        {
            "version": cell.version,
            "agent": cell.agent,
            "input": cell.case,
            "outcome": cell.verdict.outcome.value,
            "detail": cell.verdict.detail,
            "strategy": cell.verdict.strategy,
            "notices": cell.verdict.notices,
            "below_floor": cell.below_floor,
            "takeable": cell.takeable,
        }
        for cell in found
    ]
    return json.dumps({"cells": shown, "totals": totals(found), "shares": shares(found)}, ensure_ascii=False, indent=1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="append", choices=VERSIONS + LATER_VERSIONS, help="only this version")
    parser.add_argument("--unseen", action="store_true", help="other agents, as users have them")
    parser.add_argument("--holdout", action="store_true", help="more agents, written without a look at the delivery")
    parser.add_argument("--upgraded", action="store_true", help="after the upgrades that are offered")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the Markdown page")
    args = parser.parse_args(arguments)
    agents_of = "unseen" if args.unseen else "holdout" if args.holdout else "own"
    other = args.upgraded or agents_of != "own"
    if other and args.write:
        parser.error("the page shows the matrix itself: --write without --unseen, --holdout and --upgraded")
    found = [
        cell
        for version in args.version or VERSIONS
        for cell in (other_cells(version, agents_of, args.upgraded) if other else cells(version))
    ]
    if not other and not args.version:
        found += native_cells()
    if args.write:
        args.write.write_text(markdown(found))
    if args.json:
        print(_json(found))
    else:
        _show(found)
    counted = totals(found)
    return 1 if counted["lost"] or counted["broken"] or counted["below floor"] else 0


if __name__ == "__main__":
    sys.exit(main())
