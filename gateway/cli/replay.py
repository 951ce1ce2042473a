"""``mlc-gateway replay``: send recorded requests again, and compare the responses."""

from __future__ import annotations

import asyncio
import math
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gateway.cli.command import FILE, URL, Command
from gateway.cli.output import PlainConsole, bar, fail, form_options, print_json
from gateway.inspector.har import InvalidHar, read_har
from gateway.inspector.repeatable import repeatable
from gateway.inspector.replay import IGNORED, Options, Result, reason_to_skip, replay
from gateway.migrate.connection import PASSWORD
from gateway.observe.record import ExchangeRecord
from gateway.recording.store import ambiguous

_EXAMPLES = """\
mlc-gateway replay traffic.har --to http://127.0.0.1:9200 --dry-run
mlc-gateway replay traffic.har --to http://127.0.0.1:9200 --compare --ignore 'body.hits.*' --ignore headers.server
mlc-gateway replay traffic.har --to https://staging:9200 --user admin --allow-execute --speed 2"""
_MOST_ROWS = 50


@click.command("replay", cls=Command, examples=_EXAMPLES)
@click.argument("file", type=FILE, metavar="FILE")
@click.argument("ids", nargs=-1, metavar="[EXCHANGE]...", help="Ids, or their beginnings (default: all of the file).")
@click.option("--to", "url", required=True, type=URL, metavar="URL", help="Where to send them: a gateway or a cluster.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@click.option("--allow-execute", is_flag=True, help="Also run agents: their tools may act, their LLMs cost money.")
@click.option("--compare", is_flag=True, help="Show what differs from the recorded responses.")
@click.option("--ignore", "ignored", multiple=True, metavar="FIELD", help="Field that may differ: a glob (body.*.id).")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Most requests a second.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Keep the recorded times, X times as fast.",
)
@click.option("--connections", type=click.IntRange(1, 1000), default=8, show_default=True, help="Requests at a time.")
@click.option("--timeout", type=click.FloatRange(1, 86_400), default=300.0, help="Seconds for a request (300).")
@click.option("--user", metavar="NAME", help=f"Basic auth. The password is read from {PASSWORD}, or asked for.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Header for all requests; repeatable.")
@form_options
def command(
    file: Path,
    ids: tuple[str, ...],
    url: str,
    dry_run: bool,
    compare: bool,
    user: str | None,
    as_json: bool,
    **values: Any,
) -> int:
    """Send the requests of a HAR file again, such as one that the inspector exported.

    Requests of one connection keep their order. Requests that run agents are left out unless --allow-execute is given,
    and so are those that were not recorded whole. With --compare, responses are compared with the recorded ones; times,
    lengths and ids of requests may differ.
    """
    options = _options(url, user, values)
    try:
        records = _chosen(read_har(file.read_bytes()), ids)
    except OSError as error:
        return fail("replay", 2, f"{file} can't be read: {error.strerror}")
    except InvalidHar as error:
        return fail("replay", 2, f"{file}: {error}")
    results = [_planned(record, options) for record in records] if dry_run else asyncio.run(_send(records, options))
    if as_json:
        print_json(_report(results, compare, dry_run))
    else:
        _show(results, compare, dry_run)
    failed = any(one.failed or (compare and one.differences) for one in results)
    return 1 if failed else 0


def _options(url: str, user: str | None, values: dict[str, Any]) -> Options:
    headers: dict[str, str] = {}
    for given in values["headers"]:
        name, colon, value = given.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"{given!r} is not NAME:VALUE.", param_hint="--header")
        headers[name.strip()] = value.strip()
    if user:
        password = os.environ.get(PASSWORD) or click.prompt(f"Password of {user}", hide_input=True, err=True)
        headers["Authorization"] = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
    rest = {name: values[name] for name in ("allow_execute", "rate", "speed", "connections", "timeout")}
    return Options(url, headers, ignored=(*IGNORED, *values["ignored"]), **rest)


def _chosen(records: Sequence[ExchangeRecord], ids: Sequence[str]) -> Sequence[ExchangeRecord]:
    """Return the records with these ids, or beginnings of ids, in their order; all if there are none.

    Raises:
        InvalidHar: none has such an id, or several begin so.
    """
    known = sorted({record.id for record in records})
    chosen = set()
    for start in ids:
        found = [start] if start in known else [id for id in known if id.startswith(start)]
        if not found:
            raise InvalidHar(f"no exchange has an id that is {start}, or begins so")
        if len(found) > 1:
            raise InvalidHar(ambiguous(start, found))
        chosen.update(found)
    return [record for record in records if record.id in chosen] if ids else records


def _no_medium(_: str) -> None:
    return None


def _planned(record: ExchangeRecord, options: Options) -> Result:
    skipped = reason_to_skip(record, repeatable(record, _no_medium), options.allow_execute)
    return Result(record.id, record.method, record.target, record.status, record.seconds, skipped=skipped)


async def _send(records: Sequence[ExchangeRecord], options: Options) -> list[Result]:
    results = []
    with bar("requests", len(records)) as done:
        async for result in replay(records, options, _no_medium):
            results.append(result)
            done()
    return results


def _report(results: Sequence[Result], compare: bool, dry_run: bool) -> dict[str, Any]:
    rows = [msgspec.to_builtins(one) for one in results]
    if not compare:
        for row in rows:
            row.pop("differences", None)
    return {"summary": _counts(results, compare, dry_run), "requests": rows}


def _counts(results: Sequence[Result], compare: bool, dry_run: bool) -> dict[str, Any]:
    sent = [one for one in results if not one.skipped and not one.failed]
    counts: dict[str, Any] = {"requests": len(results), "would be sent" if dry_run else "sent": len(sent)}
    counts |= {"skipped": sum(bool(one.skipped) for one in results), "failed": sum(bool(one.failed) for one in results)}
    if compare and not dry_run:
        counts["different"] = sum(bool(one.differences) for one in sent)
    if sent and not dry_run:
        counts["median_ms"] = round(_median([one.seconds for one in sent]) * 1000, 1)
        counts["recorded_median_ms"] = round(_median([one.recorded_seconds for one in sent]) * 1000, 1)
    return counts


def _median(values: list[float]) -> float:
    return sorted(values)[math.ceil(len(values) / 2) - 1]


def _show(results: Sequence[Result], compare: bool, dry_run: bool) -> None:
    console = PlainConsole()
    if dry_run:
        for one in results:
            console.print(Text(_request(one), "dim" if one.skipped else ""), soft_wrap=True)
    for reason, count in Counter(one.skipped for one in results if one.skipped).items():
        console.print(Text(f"skipped {count}: {reason}", "yellow"))
    for one in [one for one in results if one.failed][:_MOST_ROWS]:
        console.print(Text(f"{_request(one)}: {one.failed}", "red"), soft_wrap=True)
    if compare:
        _show_differences(console, results)
    counts = _counts(results, compare, dry_run)
    console.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items()))


def _request(one: Result) -> str:
    return " ".join(filter(None, (one.id, one.method, one.target)))


def _show_differences(console: Console, results: Sequence[Result]) -> None:
    rows = [(one, difference) for one in results for difference in one.differences]
    shown = None
    for one, difference in rows[:_MOST_ROWS]:
        if one is not shown:
            console.print(Text(_request(one), "bold"), soft_wrap=True)
            shown = one
        expected, actual = (msgspec.json.encode(value).decode() for value in (difference.expected, difference.actual))
        console.print(Text(f"  {difference.field}: expected {expected}, got {actual}"), soft_wrap=True)
    if len(rows) > _MOST_ROWS:
        console.print(f"{len(rows) - _MOST_ROWS} more; --json shows all")
