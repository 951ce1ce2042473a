"""What reaches the LLM: every agent and template against every kind of input, judged by the oracle.

    python -m tests.matrix [--version 2.19.0|3.4.0] [--json] [--write docs/matrix.md]

Exits 1 when anything was lost or broken, or refused although the floor says that it arrives.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.providers import registry
from gateway.providers.base import Inexpressible, MappingOptions
from tests.delivery.world import Pairs, World, world
from tests.oracle import Oracle, Outcome, Verdict

VERSIONS = ("2.19.0", "3.4.0")
DOCS = Path(__file__).parent.parent / "docs" / "matrix.md"

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PDF, MP4 = "JVBERi0xLjQKJSVFT0YK", "AAAAGGZ0eXBtcDQyAAAAAG1wNDJpc29t"


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def media(kind: str, fmt: str, data: str, **more: str) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "base64", "format": fmt, "data": data}, **more}


IMAGE, OTHER_IMAGE = media("image", "png", PNG), media("image", "jpeg", "/9j/4AAQSkZJRg==")
DOCUMENT, VIDEO = media("document", "pdf", PDF, name="Report"), media("video", "mp4", MP4)


def turn(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": content[0] if isinstance(content[0], str) else list(content)}


CALL = {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Pa\"ris $ ${parameters.x}"}}}
RESULT = {"toolResult": {"toolUseId": "t1", "content": [text("sunny"), text("25 C")]}}


@dataclass(frozen=True)
class Case:
    """One kind of input. needs: what an agent must be able to take for it to arrive (see `FLOOR`).

    parameters: the caller's own beside `input`. pairs: what the memory he names holds.
    """

    input: Any
    needs: str = "text"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    pairs: Pairs = ()

    @property
    def body(self) -> dict[str, Any]:
        return {"input": self.input, **({"parameters": dict(self.parameters)} if self.parameters else {})}


_ASK = [turn("user", "What is on the shelf?"), turn("assistant", "Three books."), turn("user", "Which ones?")]

CASES: Mapping[str, Case] = {
    # texts
    "plain text": Case("What is on the shelf?"),
    "quotes, backslashes": Case('She said "no" \\ \'maybe\' \\n /yes/ \\u0041'),
    "newlines, tabs, controls": Case("one\ntwo\r\n\tthree\x01\x7f"),
    "emoji, scripts": Case("😀 漢字 é \u2028 \u00a0 \ufeff end"),
    "$": Case("costs $5, or $ {x}, {y}"),
    "$$": Case("$$ and $${z}"),
    "ends in $": Case("how many $"),
    "${parameters.question}": Case("say ${parameters.question} twice"),
    "${parameters.model}": Case("$${parameters.model} or ${parameters.model:-none}"),
    "unclosed ${parameters.x": Case("see ${parameters.x"),
    "${parameters.}": Case("see ${parameters.} there"),
    "JSON object": Case('{"a": 1, "b": [true]}'),
    "JSON array": Case('["x", {"y": null}]'),
    "lenient JSON, hostile": Case("['a\"},{\"image\":{}},{\"text\":\"']"),
    "blanks, then {": Case(" \n\t{a: ${parameters.question}}"),
    "long text": Case("All of it. " * 400),
    # blocks
    "text, image": Case([text("What is this?"), IMAGE], "media"),
    "image, text": Case([IMAGE, text("What is ${parameters.question} $?")], "media"),
    "image only": Case([IMAGE], "media"),
    "interleaved": Case([text("first:"), IMAGE, text("second:"), OTHER_IMAGE, text("differ?")], "media"),
    "two images": Case([text("Compare."), IMAGE, OTHER_IMAGE], "media"),
    "PDF": Case([text("Sum up."), DOCUMENT], "media"),
    "video": Case([VIDEO, text("What happens?")], "media"),
    "several texts": Case([text("One thing."), text("Another $1 ${parameters.x}.")]),
    # conversations
    "conversation": Case(_ASK, "history"),
    "hostile conversation": Case(
        [turn("user", 'a "},{ ${parameters.question}'), turn("assistant", "$ \\ \n{"), turn("user", "['x'] ${")],
        "history",
    ),
    "images in history": Case(
        [turn("user", text("What is this?"), IMAGE), turn("assistant", "A dot."), turn("user", "Sure?")], "old-media"
    ),
    "images in every turn": Case(
        [turn("user", IMAGE, text("This?")), turn("assistant", "A dot."), turn("user", text("And this?"), OTHER_IMAGE)],
        "media old-media",
    ),
    "ends with assistant": Case(_ASK[:2], "prefill"),
    "tool call and result": Case(
        [turn("user", "Weather?"), turn("assistant", CALL), turn("user", RESULT), *_ASK[1:]], "tools"
    ),
    "tool result last": Case([turn("user", "Weather?"), turn("assistant", CALL), turn("user", RESULT)], "tools last"),
    "system first": Case([turn("system", "Speak \"French\" $ ${parameters.x}."), *_ASK[:1]], "system"),
    "developer": Case([turn("developer", "Speak French."), *_ASK], "system history"),
    "unknown role": Case([turn("reviewer", "Too short."), turn("assistant", "Longer?"), turn("editor", "Yes.")], "history"),
    "two user turns": Case([turn("user", "One."), turn("user", "Two.")], "history"),
    # the caller's own parameters, and memory
    "own model": Case("Who are you?", "text", {"model": "another-model"}),
    "own system_prompt": Case("Who are you?", "text", {"system_prompt": "Say little."}),
    "own system_prompt, system": Case([turn("system", "Speak French."), *_ASK[:1]], "system", {"system_prompt": "Say little."}),
    "own prompt": Case("Who ${parameters.x}?", "text prompt", {"prompt": "Asked: ${parameters.question}. In brief:"}),
    "own prompt, image": Case([text("What?"), IMAGE], "media prompt", {"prompt": "Asked: ${parameters.question}."}),
    "question too": Case("The input wins.", "text", {"question": "not this one", "extra": 5}),
    "memory": Case("And then?", "text", {}, (("What first?", "This, {you} see."),)),
    "memory, image": Case([text("And this?"), IMAGE], "media", {}, (("What first?", "This, \"you\" see."),)),
    "poisoned memory": Case("And then?", "history", {}, (("say ${parameters.question}", "no $"),)),
    "memory and history": Case(_ASK, "history", {}, (("What first?", "This."), ("Then?", "That."))),
}

# FACTS.md, "What can be reached without touching agent or connector", both tables: agents (by name), and what
# arrives there. What the provider can't express is refused everywhere; tool history on Bedrock needs a
# `toolConfig`, which only function calling has. "prompt": the caller's own prompt in place of the agent's.
# An agent with a prompt of its own needs a question for it to stand around: a conversation that ends with the
# assistant ("prefill") or with a tool's result ("last") has none, so only agents without a prompt must take those.
_ALL = "text media old-media history tools prompt"
_BARE = f"{_ALL} prefill last"
FLOOR: Mapping[str, Sequence[tuple[str, str]]] = {
    "2.19.0": (
        ("bare-[abh]", f"{_BARE} system"),
        ("bare-e2", _BARE),
        ("*-a", f"{_ALL} system"),
        ("*-b", f"{_ALL} system"),
        ("*-e2", _ALL),
        ("*-h", _ALL),
        ("own-messages", f"{_ALL} system"),
        ("flow-content", "text media prompt"),
        ("*-f", "text history old-media system prompt"),
        ("flow-[dei]", "text prompt"),
        ("flow-c", "text prompt"),
        ("cflow-[cdei]", "text history"),
        ("conv-[cdei]", "text history"),
        ("conv_own-d", "text history"),
        ("lister-d", "text"),
        ("two-d", "text"),
        ("flow-g", "text system prompt"),
        ("c*-g", "text history system"),
    ),
    "3.4.0": (
        ("bare-gemini_contents", _BARE),
        ("bare-*", f"{_BARE} system"),
        ("fc*_upgraded", f"{_BARE} system"),
        ("per-*_tutorial", "text history"),
        ("per-*_upgraded", "text history media old-media"),
        ("*_upgraded", f"{_ALL} system"),
        ("*flow-*_tutorial", "text media old-media history tools system prompt"),
        ("fc-*_tutorial", "text media old-media history tools system prompt"),
        ("conv-*_tutorial", "text media old-media history system"),
        ("*_messages", f"{_ALL} system"),
        ("*-gemini_contents", _ALL),
        ("flow-gemini_text", "text media old-media history prompt"),
        ("cflow-gemini_text", "text media old-media history"),
    ),
}


@dataclass(frozen=True)
class Cell:
    """One input to one agent. floor: it must arrive."""

    version: str
    agent: str
    case: str
    verdict: Verdict
    floor: bool

    @property
    def below_floor(self) -> bool:
        return self.floor and self.verdict.outcome is Outcome.REFUSED


def must_arrive(version: str, agent: str, case: Case, place: World) -> bool:
    """Whether the floor says that this input reaches the LLM of this agent."""
    allowed = next((takes for pattern, takes in FLOOR[version] if fnmatchcase(agent, pattern)), "").split()
    needs = case.needs.split()
    if not set(needs) <= set(allowed):
        return False
    profile = place.profile(agent)
    if not profile.provider:
        return True
    provider = registry.provider(profile.provider)
    sent = place.send(agent, case.body, case.pairs)
    assert sent.input is not None
    try:
        messages = provider.map(sent.input, MappingOptions()).messages
    except Inexpressible:
        return False
    return not provider.required_members(messages) or agent.startswith("fc")


def agents(place: World) -> list[str]:
    """The agents of a version, grouped by template."""
    return sorted(place.agents, key=lambda name: (name.partition("-")[2], name))


def cells(version: str, only: Iterable[str] | None = None, cases: Mapping[str, Case] = CASES) -> Iterator[Cell]:
    """The matrix of a version, cell by cell; `only` some agents."""
    place = world(version)
    oracle = Oracle(place)
    for agent in agents(place) if only is None else only:
        for name, case in cases.items():
            sent = place.send(agent, case.body, case.pairs)
            verdict = oracle.judge(agent, case.parameters, case.pairs, sent)
            refused = verdict.outcome is Outcome.REFUSED
            yield Cell(version, agent, name, verdict, refused and must_arrive(version, agent, case, place))
        place.forget()


SIGNS = {Outcome.LOST: "L", Outcome.BROKEN: "B"}
STRATEGIES = {"wrap": "w", "messages": "m", "text": "t", "splice": "s"}
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
    "MEDIA_UNSUPPORTED": "kind",
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


def rows(found: Iterable[Cell]) -> dict[tuple[str, str], list[str]]:
    """Version and agent → its signs, one for each case."""
    table: dict[tuple[str, str], list[str]] = {}
    for cell in found:
        table.setdefault((cell.version, cell.agent), []).append(sign(cell))
    return table


def markdown(found: Sequence[Cell]) -> str:
    """The page `docs/matrix.md`."""
    lines = [
        "# What reaches the LLM",
        "",
        "Made by `python -m tests.matrix --write docs/matrix.md`; a test checks that it is current. Every cell was run",
        "on the simulated cluster and judged by an oracle that knows nothing of the delivery: it compares what the LLM",
        "received with the provider's mapping of the input and with what the agent itself puts around a question.",
        "",
        "✓ arrived whole, by the strategy **w**rap, **m**essages, **t**ext or **s**plice. A word: refused with a 400,",
        "because of that part (the codes are explained in `docs/limitations.md`). L: lost. B: broken.",
        "",
        *(f"{number}. {name}" for number, name in enumerate(CASES, 1)),
        "",
    ]
    refused = sorted({cell.verdict.detail for cell in found if cell.verdict.outcome is Outcome.REFUSED})
    lines += ["| word | code |", "|---|---|"]
    lines += [f"| {SHORT.get(code, code.lower())} | `{code}` |" for code in refused]
    for version in dict.fromkeys(cell.version for cell in found):
        mine = [cell for cell in found if cell.version == version]
        told = ", ".join(f"{name} {count}" for name, count in totals(mine).items())
        lines += ["", f"## {version}", "", f"{told[0].upper()}{told[1:]}.", ""]
        lines += [f"| agent-template | {' | '.join(map(str, range(1, len(CASES) + 1)))} |"]
        lines += ["|---|" + "---|" * len(CASES)]
        lines += [f"| {agent} | {' | '.join(signs)} |" for (_, agent), signs in rows(mine).items()]
    return "\n".join(lines) + "\n"


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
            console.print(f"{cell.verdict.outcome.value}: {cell.version} {cell.agent}, {cell.case}: {cell.verdict.detail}")
        if cell.below_floor:
            console.print(f"below the floor: {cell.version} {cell.agent}, {cell.case}: {cell.verdict.detail}")
    console.print(totals(found))


def _json(found: Sequence[Cell]) -> str:
    told = [
        {
            "version": cell.version,
            "agent": cell.agent,
            "input": cell.case,
            "outcome": cell.verdict.outcome.value,
            "detail": cell.verdict.detail,
            "strategy": cell.verdict.strategy,
            "notices": cell.verdict.notices,
            "below_floor": cell.below_floor,
        }
        for cell in found
    ]
    return json.dumps({"cells": told, "totals": totals(found)}, ensure_ascii=False, indent=1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="append", choices=VERSIONS, help="only this version")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the Markdown page")
    args = parser.parse_args(arguments)
    found = [cell for version in args.version or VERSIONS for cell in cells(version)]
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
