"""Shows the demo on a terminal, or as JSON lines."""

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
from gateway.demo.environment import Deployment

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
    """Prints one JSON object a line: each outcome, then the counts."""

    def starting(self, what: str) -> AbstractContextManager[Any]:
        """Print nothing."""
        return nullcontext()

    def outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Print a line for each."""
        for outcome in outcomes:
            _line(asdict(outcome))

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """Print the count of each outcome."""
        _line({"sum": _counts(outcomes)})

    def left_running(self, places: Sequence[Deployment]) -> None:
        """Print the addresses."""
        for place in places:
            addresses = {"gateway": place.url, "upstream": place.simulator.url, "inspector": place.inspector}
            _line({"cluster": place.version, **addresses})


class Terminal:
    """Prints tables, with colours on a terminal only."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = _PLAIN_WIDTH

    def starting(self, what: str) -> AbstractContextManager[Any]:
        """Show what is starting: with a spinner on a terminal, otherwise as a line."""
        if self._console.is_terminal:
            return self._console.status(what)
        self._console.print(what)
        return nullcontext()

    def outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Print a table for one input at one cluster: a row for each LLM, with the outcome of each agent."""
        first = outcomes[0]
        title = f"{_TITLES[first.input]} · OpenSearch {first.cluster}"
        table = Table(title=title, title_justify="left", title_style="bold", expand=True, show_lines=True)
        table.add_column("the client sent", ratio=4)
        table.add_column(f"the LLM received (through the {first.agent} agent)", ratio=5)
        table.add_column("arrived through", ratio=3)
        for provider, group in groupby(outcomes, key=lambda one: one.provider):
            same = list(group)
            received = _cut(same[0].received) or same[0].reason
            table.add_row(Text(same[0].sent), Text(f"{provider}\n{received}"), Text("\n").join(map(_mark, same)))
        self._console.print(table)

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """Print the counts in one line."""
        counts = _counts(outcomes)
        self._console.print(
            f"[bold]{counts['arrived']} arrived intact, {counts['refused']} refused with their reason, "
            f"{counts['lost']} lost.[/]"
        )

    def left_running(self, places: Sequence[Deployment]) -> None:
        """Print commands to try for each gateway."""
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
                ("what the LLMs received", f"curl -s '{place.simulator.url}/received'"),
            )
            for label, command in lines:
                self._console.print(f"  [dim]# {label}[/]")
                self._console.print(f"  {command}", soft_wrap=True, markup=False)
        page = next((place.inspector for place in places if place.inspector), "")
        if page:
            self._console.print("\n[bold]All exchanges[/], before and after, as they happen:")
            self._console.print(f"  {page}", soft_wrap=True, markup=False)
        self._console.print("\nRunning; Ctrl-C ends it.")


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return {name: sum(one.outcome == name for one in outcomes) for name in _STYLES}


def _mark(one: Outcome) -> Text:
    """Format the outcome of one input at one agent: ✓ only if the LLM received all of it."""
    match one.outcome:
        case "arrived":
            text = f"✓ {one.agent} ({', '.join(filter(None, (one.strategy, one.notices)))})"
        case "refused":
            text = f"– {one.agent}: refused"
        case _:
            text = f"✗ {one.agent}: {one.reason}"
    return Text(text, style=_STYLES[one.outcome])


def _cut(text: str) -> str:
    return "\n".join(line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}…" for line in text.split("\n"))


def _line(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()
