"""The demo on a terminal, or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.demo.client import Outcome
from gateway.demo.environment import Place

_PLAIN_WIDTH = 140
_LONGEST_TEXT = 400
_STYLES = {"arrived": "green", "refused": "yellow", "lost": "red"}
_TITLES = {
    "text": "Plain text",
    "image": "A picture (PNG)",
    "document": "A document (PDF)",
    "video": "A film (MP4)",
    "conversation": "A conversation of four turns, with a picture and a document in its history",
}


class JsonLines:
    """One JSON object a line: each outcome, then the sum."""

    def starting(self, what: str) -> AbstractContextManager[Any]:
        """Says nothing."""
        return nullcontext()

    def outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """A line for each."""
        for outcome in outcomes:
            _line(asdict(outcome))

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """The numbers of each outcome."""
        _line({"sum": _counts(outcomes)})

    def left_running(self, places: Sequence[Place]) -> None:
        """Where it goes on."""
        for place in places:
            _line({"cluster": place.version, "gateway": place.url, "upstream": place.simulator.url})


class Terminal:
    """Tables to read; colours on a terminal only."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = _PLAIN_WIDTH

    def starting(self, what: str) -> AbstractContextManager[Any]:
        """Return what is being waited for: a spinner on a terminal, else a line."""
        if self._console.is_terminal:
            return self._console.status(what)
        self._console.print(what)
        return nullcontext()

    def outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """A table of one input at one cluster: a row for each LLM, with what became of it through each agent."""
        first = outcomes[0]
        title = f"{_TITLES[first.input]} · OpenSearch {first.cluster}"
        table = Table(title=title, title_justify="left", title_style="bold", expand=True, show_lines=True)
        table.add_column("the client said", ratio=4)
        table.add_column(f"the LLM got (through the {first.agent} agent)", ratio=5)
        table.add_column("arrived through", ratio=3)
        for provider, group in groupby(outcomes, key=lambda one: one.provider):
            same = list(group)
            got = _cut(same[0].got) or same[0].reason
            table.add_row(Text(same[0].said), Text(f"{provider}\n{got}"), Text("\n").join(map(_mark, same)))
        self._console.print(table)

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """The sum in one line."""
        counts = _counts(outcomes)
        self._console.print(
            f"[bold]{counts['arrived']} arrived intact, {counts['refused']} refused with their reason, "
            f"{counts['lost']} lost.[/]"
        )

    def left_running(self, places: Sequence[Place]) -> None:
        """Commands to try, one gateway after the other."""
        for place in places:
            agent = next(agent for agent in place.agents if agent.type == "conversational")
            self._console.print(f"\n[bold]OpenSearch {place.version}[/]: gateway {place.url}")
            path = f"/_plugins/_ml/agents/{agent.id}/_execute"
            body = '{"input":[{"type":"text","text":"What is this?"},{"type":"image","source":{"type":"url",'
            body += '"format":"png","data":"s3://pictures/cat.png"}}]}'
            lines = (
                (
                    "through the gateway",
                    f"curl -si '{place.url}{path}' -H 'Content-Type: application/json' -d '{body}'",
                ),
                (
                    "the same, direct",
                    f"curl -s '{place.simulator.url}{path}' -H 'Content-Type: application/json' -d '{body}'",
                ),
                ("what the LLMs got", f"curl -s '{place.simulator.url}/received'"),
            )
            for label, command in lines:
                self._console.print(f"  [dim]# {label}[/]")
                self._console.print(f"  {command}", soft_wrap=True, markup=False)
        self._console.print("\nRunning; Ctrl-C ends it.")


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return {name: sum(one.outcome == name for one in outcomes) for name in _STYLES}


def _mark(one: Outcome) -> Text:
    """Return what became of one input at one agent: ✓ only when the LLM got all of it."""
    match one.outcome:
        case "arrived":
            words = f"✓ {one.agent} ({', '.join(filter(None, (one.strategy, one.notices)))})"
        case "refused":
            words = f"– {one.agent}: refused"
        case _:
            words = f"✗ {one.agent}: {one.reason}"
    return Text(words, style=_STYLES[one.outcome])


def _cut(text: str) -> str:
    return "\n".join(line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}…" for line in text.split("\n"))


def _line(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()
