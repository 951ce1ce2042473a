"""Shows the demo: in short or in full on a terminal, or as JSON lines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import groupby
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.demo.client import Outcome
from gateway.demo.environment import Deployment

_PLAIN_WIDTHS = {"summary": 100, "everything": 140}
"""Columns where the output is no terminal."""
_LONGEST_TEXT = 400
_STYLES = {"arrived": "green", "refused": "yellow", "lost": "red"}
_MARKS = {"arrived": "✓", "refused": "–", "lost": "✗"}
_TITLES = {
    "text": "Plain text",
    "image": "A picture (PNG)",
    "document": "A document (PDF)",
    "video": "A film (MP4)",
    "conversation": "A conversation of four turns, with a picture and a document in its history",
}
_EXAMPLE_AGENT = "flow"
_EXAMPLES = ("image", "video")
"""The inputs that the summary shows before and after: one that arrives, and one that an LLM can't take."""


class Show(Protocol):
    """Where the demo's outcomes go."""

    def starting(self, what: str) -> AbstractContextManager[Any]:
        """Show what is starting."""

    def outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Show the outcomes of one input at one cluster."""

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """Show the counts of all outcomes."""

    def left_running(self, places: Sequence[Deployment]) -> None:
        """Show what to try while the clusters run."""


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


class Summary:
    """Prints a table per cluster, and an input before and after: at most 60 lines of 100 columns."""

    def __init__(self) -> None:
        self._console = _console("summary")

    def starting(self, what: str) -> AbstractContextManager[Any]:
        """Show what is starting, on a terminal."""
        return self._console.status(what) if self._console.is_terminal else nullcontext()

    def outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Print nothing yet."""

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """Print what became of each input, at each cluster, through each provider and agent."""
        agents = ", ".join(dict.fromkeys(one.agent for one in outcomes))
        for version, same in groupby(outcomes, key=lambda one: one.cluster):
            self._console.print(_overview(version, list(same)))
        self._console.print(
            f"✓ the LLM received all of it, – refused with a reason, ✗ lost. A mark each for: {agents}", style="dim"
        )
        for name in _EXAMPLES:
            for line in _example(outcomes, name):
                self._console.print(line, soft_wrap=False)
        _print_end(self._console, outcomes)
        self._console.print("--all shows every input, before and after.", style="dim")

    def left_running(self, places: Sequence[Deployment]) -> None:
        """Print two commands to try, and the page of exchanges."""
        _print_tries(self._console, places[:1], ("through the gateway", "the same, direct"))


class Everything:
    """Prints a table for each input at each cluster, with colours on a terminal only."""

    def __init__(self) -> None:
        self._console = _console("everything")

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
        """Print the counts, and what the runs cost."""
        _print_end(self._console, outcomes)

    def left_running(self, places: Sequence[Deployment]) -> None:
        """Print commands to try for each gateway."""
        _print_tries(self._console, places, ("through the gateway", "the same, direct", "what the LLMs received"))


def _console(kind: str) -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTHS[kind]
    return console


def _overview(version: str, outcomes: Sequence[Outcome]) -> Table:
    """Return a table of one cluster: a row for each provider, a column for each input, a mark for each agent."""
    table = Table(
        title=f"OpenSearch {version}", title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False
    )
    table.add_column("LLM", no_wrap=True)
    for name in _TITLES:
        table.add_column(name, justify="center", no_wrap=True)
    for provider in dict.fromkeys(one.provider for one in outcomes):
        cells = [Text() for _ in _TITLES]
        for cell, name in zip(cells, _TITLES, strict=True):
            for one in outcomes:
                if (one.provider, one.input) == (provider, name):
                    cell.append(_MARKS[one.outcome], _STYLES[one.outcome])
        table.add_row(provider, *cells)
    return table


def _example(outcomes: Sequence[Outcome], name: str) -> Iterator[Text]:
    """Yield one input as the client sent it, and what became of it through the first agent."""
    same = [one for one in outcomes if one.input == name and one.agent == _EXAMPLE_AGENT]
    one = next((one for one in same if one.outcome != "arrived"), same[0])
    yield Text(f"\n{_TITLES[name]} to a {one.agent} agent on OpenSearch {one.cluster}, {one.provider}", "bold")
    yield Text(f"the client sent: {_in_short(one.sent)}")
    if one.outcome == "arrived":
        yield Text(f"the LLM received: {_in_short(one.received)}", _STYLES[one.outcome])
    else:
        yield Text(f"{one.outcome}: {one.reason}", _STYLES[one.outcome])


def _in_short(text: str) -> str:
    """Return the last lines of a conversation, where the input is, in a few lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    short = " ".join(lines[-_LAST_LINES:])
    return short if len(short) <= _LONGEST_TEXT else f"{short[:_LONGEST_TEXT]}…"


_LAST_LINES = 3


def _print_end(console: Console, outcomes: Sequence[Outcome]) -> None:
    counts = _counts(outcomes)
    console.print(
        f"[bold]{counts['arrived']} arrived intact, {counts['refused']} refused with their reason, "
        f"{counts['lost']} lost.[/]"
    )
    console.print(_spent(outcomes))


_USAGE = re.compile(r"input=(\d+); output=(\d+); cost=([\d.]+) (\w+)")


def _spent(outcomes: Sequence[Outcome]) -> str:
    """Return what the runs used and cost, as far as their answers report it."""
    found = [match for one in outcomes if (match := _USAGE.match(one.usage))]
    read, written = (sum(int(match[group]) for match in found) for group in (1, 2))
    cost = sum(float(match[3]) for match in found)
    currency = found[0][4] if found else ""
    unknown = sum(one.usage == "unknown" for one in outcomes)
    total = f"{len(found)} runs reported {read} input and {written} output tokens: {cost:.6f} {currency}".rstrip()
    return f"{total}; {unknown} did not report any."


def _print_tries(console: Console, places: Sequence[Deployment], wanted: Sequence[str]) -> None:
    for place in places:
        agent = next(agent for agent in place.agents if agent.type == "conversational")
        console.print(f"\n[bold]OpenSearch {place.version}[/]: gateway {place.url}")
        path = f"/_plugins/_ml/agents/{agent.id}/_execute"
        body = '{"input":[{"type":"text","text":"What is this?"},{"type":"image","source":{"type":"url",'
        body += '"format":"png","data":"s3://pictures/cat.png"}}]}'
        rest = f"{path}' -H 'Content-Type: application/json' -d '{body}'"
        commands = {
            "through the gateway": f"curl -si '{place.url}{rest}",
            "the same, direct": f"curl -s '{place.simulator.url}{rest}",
            "what the LLMs received": f"curl -s '{place.simulator.url}/received'",
        }
        for label in wanted:
            console.print(f"  [dim]# {label}[/]")
            console.print(f"  {commands[label]}", soft_wrap=True, markup=False)
    page = next((place.inspector for place in places if place.inspector), "")
    if page:
        console.print("\n[bold]All exchanges[/], before and after, as they happen:")
        console.print(f"  {page}", soft_wrap=True, markup=False)
    console.print("\nRunning; Ctrl-C ends it.")


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
