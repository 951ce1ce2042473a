"""``mlc-gateway tail``: print the exchanges of a running gateway as they end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import aiohttp
import click
from rich.text import Text

from gateway.cli.command import URL, Command, collected
from gateway.cli.output import PlainConsole, fail, form_options, join, printable
from gateway.migrate.gateways import ADMIN_TOKEN
from gateway.observe.connect_errors import describe_connect_error, name_wrong_scheme


class Event(NamedTuple):
    """An event. id: the last one that was sent, "" for none."""

    name: str
    data: str
    id: str


async def read_events(lines: AsyncIterable[bytes]) -> AsyncIterator[Event]:
    """Yield the events of a stream's lines. One that is cut at the end is left out."""
    name, id = "message", ""
    data: list[str] = []
    async for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Event(name, "\n".join(data), id)
            name, data = "message", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            id = value


_OPTIONS = {
    "path": "Part of the path.",
    "agent": "Agent's id, its beginning, or its name.",
    "type": "Agent's type.",
    "provider": "Provider of its LLM.",
    "strategy": "How the input was delivered.",
    "route": "Agent's id that the client named, if a route sent its request on, or its beginning.",
    "cluster": "Cluster that ran it: its name, or upstream.",
    "mirror": "Copies of runs, too: any, yes (only copies), same or differs (they end as the run does, or not), or the "
    "id of a run (default: none).",
    "status": "Status, a class such as 4xx, error, refused or failed.",
    "notice": "Code of a notice or a problem.",
    "text": "Words in a recorded body.",
    "client": "Client's address, or part of its user agent.",
    "session": "Conversation's id, or its beginning.",
    "took": "Seconds it took: >2, <500ms or 1-5.",
    "cost": "What it cost: >0.5 or 0.1-1.",
    "intent": "What it was for, such as execute; runs: all that run an agent.",
}


filter_options = collected(
    "wanted",
    lambda **given: {name: value for name, value in given.items() if value},
    {name: click.option(f"--{name}", default="", metavar=name.upper(), help=text) for name, text in _OPTIONS.items()},
)
"""Adds the filters to a command; the function gets those that were given as one argument, `wanted`."""

_EXAMPLES = """\
mlc-gateway tail
mlc-gateway tail --gateway http://gateway:9601 --status error
mlc-gateway tail --agent my-agent --json | jq .target"""
_COMMON = "/_plugins/_ml/"
"""The beginning of most paths, which is left out where the terminal is too narrow."""
_LIVE = "/inspector/api/live"
_RETRY = (1.0, 2.0, 5.0, 10.0)
"""Seconds before the connection is made again, after each failure in a row."""
_SILENCE = 60.0
"""Seconds without an event after which the connection is taken for lost; the gateway sends one each 15 s."""


class CanNotFollow(Exception):
    """The gateway does not send its exchanges. The message says why, and what to do."""


@click.command("tail", cls=Command, examples=_EXAMPLES)
@click.option(
    "--gateway", "url", type=URL, default="http://127.0.0.1:9601", metavar="URL",
    help=f"Admin port of the gateway (default: http://127.0.0.1:9601). {ADMIN_TOKEN} holds its token.",
)  # fmt: skip
@filter_options
@form_options
def command(url: str, as_json: bool, wanted: Mapping[str, str]) -> int:
    """Print each exchange as it ends, until Ctrl-C. The gateway must record them (`inspector.enabled`).

    On a terminal, an exchange has a line, and others below it where that is too narrow; to a pipe, each is a line of
    JSON. The last word is its id, which `har export` takes.

    All filters that are given must match; they are those of the page. If the connection is lost, it is made again, and
    goes on where it was.
    """
    try:
        asyncio.run(_follow(url.rstrip("/"), wanted, as_json))
    except CanNotFollow as error:
        return fail("tail", 2, str(error))
    return 0


async def _follow(url: str, filters: Mapping[str, str], as_json: bool) -> None:
    console = PlainConsole()
    announced = as_json or not sys.stderr.isatty()
    async for event in _events(url, filters):
        value = json.loads(event.data)
        if not announced:
            announced = True
            sys.stderr.write(f"Exchanges of {url} from now on, until Ctrl-C:\n")
            sys.stderr.flush()
        if event.name == "problem":
            sys.stderr.write(f"{printable(value['reason'])}; trying again\n")
        for row in value if event.name == "rows" else ():
            if as_json:
                sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
                sys.stdout.flush()
            else:
                for line in lines_of(row, console.width):
                    console.print(line, soft_wrap=True)


async def _events(url: str, filters: Mapping[str, str]) -> AsyncIterator[Event]:
    """Yield the events of the gateway. Connect again when the connection is lost.

    Raises:
        CanNotFollow: the first connection fails, or the gateway refuses: later, a status from 500 on is a failure that
            may end.
    """
    token = os.environ.get(ADMIN_TOKEN)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_SILENCE)
    last, failures, connected = "", 0, False
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        while True:
            try:
                resume = {"Last-Event-ID": last} if last else {}
                async with session.get(url + _LIVE, params=filters, headers=resume) as response:
                    if response.status != 200 and not (connected and response.status >= 500):
                        raise CanNotFollow(await _refusal(url, response))
                    reason = f"the gateway answers {response.status}"  # such as while its workers start
                    if response.status == 200:
                        connected, failures = True, 0
                        async for event in read_events(response.content):
                            last = event.id or last
                            yield event
                        reason = "the gateway ended the connection"
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                why = describe_connect_error(error)
                if not connected:
                    wrong = await asyncio.to_thread(name_wrong_scheme, url)
                    raise CanNotFollow(f"{url} can't be reached: {why}. {wrong or 'Is it the admin port?'}") from None
                reason = f"the connection is lost: {why}"
            seconds = _RETRY[min(failures, len(_RETRY) - 1)]
            failures += 1
            sys.stderr.write(f"{reason}; connecting again in {seconds:g} s\n")
            await asyncio.sleep(seconds)


async def _refusal(url: str, response: aiohttp.ClientResponse) -> str:
    if response.status == 401:
        wrong = f"{ADMIN_TOKEN} does not hold the value of the gateway's listen.admin_token."
        needed = f"Exchanges are shown with a token only: set {ADMIN_TOKEN} to the gateway's listen.admin_token."
        return f"{url}: {wrong if os.environ.get(ADMIN_TOKEN) else needed}"
    try:
        error = (await response.json(content_type=None))["error"]
        problems = [one for one in error.get("problems", ()) if one.get("field") in _OPTIONS]
        what = "; ".join(f"--{one['field']}: {one['reason']}" for one in problems) or error.get("reason")
        reason = " ".join(filter(None, (what, error.get("help"))))
    except (ValueError, LookupError, TypeError, AttributeError):
        reason = f"It answers {response.status}. Is it the admin port of a gateway that records exchanges?"
    return f"{url}: {reason}"


def lines_of(row: Mapping[str, Any], width: int) -> Iterator[Text]:
    """Yield an exchange as lines for a terminal: what does not fit into the first stands below it, never cut."""
    moment = datetime.fromtimestamp(row["started"]).astimezone().strftime("%H:%M:%S")
    status = row["status"]
    style = "red" if status >= 500 or not status else "yellow" if status >= 400 else "green"
    line = Text(f"{moment} ", "dim")
    line.append(f"{status or 'cut':>3} ", style)
    line.append(f"{row['seconds'] * 1000:7.0f} ms ", "dim")
    indent = len(line)
    target = f"{row['method']} {row['target']}"
    if indent + len(target) > width:
        target = target.replace(_COMMON, "…/", 1)
    line.append(target)
    names = ("agent", "cluster", "provider", "strategy", "error")
    about = [row[name] for name in names if row.get(name)]  # an older gateway sends no cluster
    about += [f"mirror of {row['mirror_of']}"] if row.get("mirror_of") else []
    tokens = [row[name] for name in ("input_tokens", "output_tokens") if row[name] is not None]
    if tokens:
        about.append("+".join(map(str, tokens)) + " tokens")
    about += [*row["codes"], row["id"]]
    details = "".join(f"  {one}" for one in about)
    if len(line) + len(details) <= width:
        yield line.append(details, "cyan")
        return
    yield line
    for rest in join(about, width - indent):
        yield Text(" " * indent + rest, "cyan")
