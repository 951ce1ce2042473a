"""``mlc-gateway memory``: the gateway's sessions, in the store of the settings. The gateway need not run."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.text import Text

from gateway.cli.command import FILE, Group, collected, config_option
from gateway.cli.memory_import import Summary, import_agentcore, import_cluster, opened, run_reporting
from gateway.cli.output import PlainConsole, bar, fail, form_options, print_json, printable, show_rows
from gateway.config.load import load
from gateway.config.schema import Settings
from gateway.memory.copying import ExportedSession, MalformedExport, append_turns, copy_session, read_exported
from gateway.memory.management import (
    OwnerFilter,
    complete_owner,
    export_lines,
    find_session,
    select_sessions,
    session_as_json,
    stored_as_json,
)
from gateway.memory.model import Session, StoredMessage
from gateway.memory.reading import read_messages
from gateway.memory.rest import timestamp
from gateway.memory.store import SessionNotFound, Store, StoreError, StoreUnavailable
from gateway.memory.stores.registry import STORES
from gateway.memory.stores.strands.files import export_session

_EXAMPLES = """\
mlc-gateway memory list -c config/gateway.yaml --agent my-agent-id
mlc-gateway memory export -c config/gateway.yaml gws-my-agent-id-0123456789abcdef01234567 > session.jsonl
mlc-gateway memory copy -c config/gateway.yaml --from sqlite --to opensearch"""


@click.group("memory", cls=Group, examples=_EXAMPLES)
def command() -> None:
    """List, show, export, delete, pin and copy the sessions that the gateway keeps, of all owners.

    The settings name the store. The gateway may run or not.
    """


owner_options = collected(
    "wanted",
    lambda agent, tenant, caller: OwnerFilter(agent, tenant, caller),
    {
        "agent": click.option("--agent", metavar="ID", help="Only sessions of this agent: its id, or its beginning."),
        "tenant": click.option(
            "--tenant", metavar="TENANT", help='Only sessions of this tenant; "" is the one without a name.'
        ),
        "caller": click.option(
            "--caller",
            metavar="HASH",
            help='Only sessions of this caller, as `memory list` shows it, or its beginning; "": none.',
        ),
    },
)
"""Adds the options that say whose sessions are meant; the function gets them as one argument, `wanted`."""


def run_on_store(command: str, config: Path | None, work: Callable[[Store], Coroutine[Any, Any, int]]) -> int:
    """Run `work` on the store of the settings, and return its exit code or that of its error."""

    async def run(settings: Settings) -> int:
        async with opened(settings) as store:
            return await work(store)

    return run_reporting(command, config, run)


_ID = "gws-my-agent-id-0123456789abcdef01234567"
_LONGEST = 200
_NAMING = ("format", "name", "toolUseId")
"""Members of a block that are shown in place of its content."""
_ids = click.argument("ids", nargs=-1, required=True, metavar="SESSION...", help="Session ids, or their beginnings.")


@command.command(
    "list",
    short_help="List sessions, the last updated first.",
    examples="mlc-gateway memory list -c config/gateway.yaml\nmlc-gateway memory list --agent my-agent-id --limit 10",
)
@click.option("--limit", type=click.IntRange(1), default=100, metavar="N", help="Most sessions (default: 100).")
@form_options
@owner_options
@config_option
def list_(config: Path | None, wanted: OwnerFilter, limit: int, as_json: bool) -> int:
    """List the sessions of the store, the last updated first.

    Print a table on a terminal, and JSON to a pipe or a file. Where the agent's id is in the session's, it is not
    repeated.
    """

    async def work(store: Store) -> int:
        found: list[Session] = []
        async for session in select_sessions(store, await complete_owner(store, wanted)):
            if len(found) == limit:
                sys.stderr.write(f"More sessions exist than the {limit} shown: set --limit to see more.\n")
                break
            found.append(session)
        if as_json:
            print_json({"store": store.name, "sessions": [session_as_json(session) for session in found]})
        else:
            _show_list(found, store.name)
        return 0

    return run_on_store("memory list", config, work)


@command.command(
    "show",
    short_help="Show a session and its messages.",
    examples=f"mlc-gateway memory show -c config/gateway.yaml {_ID}\nmlc-gateway memory show {_ID} | jq .messages[0]",
)
@click.argument("id", metavar="SESSION", help="Session id, or its beginning.")
@form_options
@owner_options
@config_option
def show(config: Path | None, id: str, wanted: OwnerFilter, as_json: bool) -> int:
    """Show a session and its messages, oldest first.

    Print text on a terminal, with long texts shortened, and JSON with whole messages to a pipe or a file.
    """

    async def work(store: Store) -> int:
        session = await find_session(store, id, wanted, begins=True)
        messages = read_messages(store, session.key)
        if as_json:
            print_json({**session_as_json(session), "messages": [stored_as_json(stored) async for stored in messages]})
        else:
            await _show_session(session, messages)
        return 0

    return run_on_store("memory show", config, work)


@command.command(
    "export",
    short_help="Export sessions as JSON lines or files of Strands.",
    examples=f"mlc-gateway memory export -c config/gateway.yaml {_ID} > session.jsonl\n"
    "mlc-gateway memory export --agent my-agent-id --out sessions.jsonl\n"
    f"mlc-gateway memory export --format strands --out sessions/ {_ID}",
)
@click.argument(
    "ids", nargs=-1, metavar="[SESSION]...", help="Session ids, or their beginnings (default: all sessions)."
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "strands"]),
    default="jsonl",
    help="JSON lines (the default): the session, then each message. Or the layout of Strands' FileSessionManager.",
)
@click.option("--out", type=FILE, metavar="PATH", help="File for the JSON lines; directory for the files of Strands.")
@owner_options
@config_option
def export(config: Path | None, ids: tuple[str, ...], wanted: OwnerFilter, format_: str, out: Path | None) -> int:
    """Export sessions with all their messages as JSON lines, or as files of Strands.

    A session that can't be exported is reported, and the others are exported.
    """
    if format_ == "strands" and out is None:
        raise click.UsageError("--format strands needs a directory: --out DIRECTORY.")

    async def work(store: Store) -> int:
        found = [await find_session(store, id, wanted, begins=True) for id in ids]
        if not ids:
            owner = await complete_owner(store, wanted)
            found = [session async for session in select_sessions(store, owner)]
        lines: AbstractContextManager[BinaryIO] = nullcontext(sys.stdout.buffer)
        if out is not None and format_ == "jsonl":
            lines = out.open("wb")
        failed = False
        with lines as file, bar("exporting sessions", len(found)) as done:
            for session in found:
                try:
                    if format_ == "strands" and out is not None:
                        await export_session(store, session, out)
                    else:
                        async for line in export_lines(store, session):
                            file.write(line)
                except StoreUnavailable:
                    raise
                except StoreError as error:
                    failed = True
                    sys.stderr.write(f"{session.key.id}: {error}\n")
                done()
        return 1 if failed else 0

    return run_on_store("memory export", config, work)


@command.command(
    "delete",
    short_help="Delete sessions.",
    examples=f"mlc-gateway memory delete -c config/gateway.yaml {_ID}",
)
@_ids
@owner_options
@config_option
def delete(config: Path | None, ids: tuple[str, ...], wanted: OwnerFilter) -> int:
    """Delete sessions with all their messages and media. They can't be restored.

    What the cluster's own memory has of them (`memory.cluster_copies`) is deleted, too; what is left there is reported.
    """

    from gateway.execute.build import service_headers  # imported here because they are slow to load
    from gateway.memory.cluster_copies import ClusterCopies
    from gateway.observe.logs import configure
    from gateway.upstream.client import Upstream

    async def work(settings: Settings) -> int:
        log, left = configure("warning", "console"), 0

        def count(outcome: str) -> None:
            nonlocal left
            left += outcome == "left"

        upstream = Upstream(settings.upstream, settings.limits, log)
        copies = ClusterCopies(upstream, settings.memory, service_headers(settings) or {}, log, count, _at_once)
        async with opened(settings) as store, AsyncExitStack() as close:
            await upstream.start()
            close.push_async_callback(upstream.close)
            for session in [await find_session(store, id, wanted, begins=True) for id in ids]:
                if not await copies.delete_session(store, session.key):
                    raise SessionNotFound(f"There is no session {session.key.id}.")
                sys.stdout.write(f"{session.key.id}: deleted\n")
            await copies.ended()
        if left:
            sys.stderr.write(f"{left} of the cluster's conversations may be left, as above.\n")
        return 1 if left else 0

    return run_reporting("memory delete", config, work)


async def _at_once(_: float) -> None:
    """Try again without a pause: somebody waits."""


def _pin(name: str, config: Path | None, ids: tuple[str, ...], wanted: OwnerFilter, pinned: bool) -> int:
    async def work(store: Store) -> int:
        for session in [await find_session(store, id, wanted, begins=True) for id in ids]:
            await store.pin(session.key, pinned)
            sys.stdout.write(f"{session.key.id}: {'pinned' if pinned else 'not pinned'}\n")
        return 0

    return run_on_store(name, config, work)


@command.command(
    "pin",
    short_help="Keep sessions from being deleted by age or number.",
    examples=f"mlc-gateway memory pin -c config/gateway.yaml {_ID}",
)
@_ids
@owner_options
@config_option
def pin(config: Path | None, ids: tuple[str, ...], wanted: OwnerFilter) -> int:
    """Keep sessions from being deleted by `memory.retention`."""
    return _pin("memory pin", config, ids, wanted, True)


@command.command(
    "unpin",
    short_help="Undo `memory pin`.",
    examples=f"mlc-gateway memory unpin -c config/gateway.yaml {_ID}",
)
@_ids
@owner_options
@config_option
def unpin(config: Path | None, ids: tuple[str, ...], wanted: OwnerFilter) -> int:
    """Let sessions be deleted by `memory.retention` again."""
    return _pin("memory unpin", config, ids, wanted, False)


def _show_list(found: list[Session], store: str) -> None:
    console = PlainConsole()
    if not found:
        console.print(f"There are no such sessions in the store {store}, which the settings name (-c).")
        return
    titles = ("session", "tenant", "caller", "agent", "turns", "updated (UTC)", "pinned")
    rows = [
        (
            printable(session.key.id),
            printable(session.key.owner.tenant),
            printable(session.key.owner.caller),
            "" if session.key.owner.agent_id in session.key.id else printable(session.key.owner.agent_id),
            str(session.turns),
            timestamp(session.updated).replace("T", " ")[:19],
            "yes" if session.pinned else "",
        )
        for session in found
    ]
    show_rows(console, titles, rows)


async def _show_session(session: Session, messages: AsyncIterator[StoredMessage]) -> None:
    console = PlainConsole()
    for name, value in session_as_json(session).items():
        console.print(f"{name:10}{value}")
    async for stored in messages:
        failed = " (the run failed)" if stored.message.metadata.failed else ""
        console.print(Text(f"\n{stored.turn}. {stored.message.role}{failed}", style="bold"))
        for block in stored.message.content:
            console.print(_shortened(block))


def _shortened(block: dict[str, Any]) -> str:
    """Return a block's text, or the kind of block it is, in one line or a few."""
    text = block.get("text")
    if not isinstance(text, str):
        kind = next(iter(block), "")
        value = block.get(kind)
        what = [str(value[name]) for name in _NAMING if name in value] if isinstance(value, dict) else []
        return f"[{' '.join((kind, *what))}]"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


_EXAMPLES_OF_COPY = """\
mlc-gateway memory copy -c config/gateway.yaml --from sqlite --to opensearch
mlc-gateway memory copy -c old.yaml --from sqlite --to sqlite --to-config new.yaml --agent my-agent-id"""
_stores = click.Choice(tuple(STORES))


@command.command("copy", short_help="Copy sessions from one store to another.", examples=_EXAMPLES_OF_COPY)
@click.option("--from", "source", type=_stores, required=True, help="Store to read.")
@click.option("--to", "target", type=_stores, required=True, help="Store to write.")
@click.option("--to-config", type=FILE, metavar="FILE", help="Settings of the store to write (default: --config).")
@form_options
@owner_options
@config_option
def copy_(
    config: Path | None, source: str, target: str, to_config: Path | None, wanted: OwnerFilter, as_json: bool
) -> int:
    """Copy sessions with all their messages from one store to another.

    Sessions keep their ids and owners. Run it again after an interruption: turns that the target has are not written
    again. A session that can't be copied is reported, and the others are copied.
    """
    if source == target and to_config is None:
        raise click.UsageError("--from and --to are the same store: name another, or other settings with --to-config.")

    async def work(settings: Settings) -> int:
        target_settings = load(to_config) if to_config else settings
        async with opened(settings, source) as read, opened(target_settings, target) as written:
            return (await _copy_all(read, written, wanted)).report(as_json, "copied")

    return run_reporting("memory copy", config, work)


async def _copy_all(source: Store, target: Store, wanted: OwnerFilter) -> Summary:
    """Copy the sessions, the last updated one last, so that lists of the target have the same order."""
    found = [session async for session in select_sessions(source, await complete_owner(source, wanted))]
    summary = Summary()
    with bar("copying sessions", len(found)) as done:
        for session in sorted(found, key=lambda session: session.updated):
            try:
                summary.add(await copy_session(source, target, session))
            except StoreError as error:
                summary.failed[session.key.id] = str(error)
            done()
    return summary


@command.command(
    "import",
    short_help="Import sessions that were exported as JSON lines.",
    examples="mlc-gateway memory import -c config/gateway.yaml sessions.jsonl\n"
    "mlc-gateway memory export -c old.yaml | mlc-gateway memory import -c new.yaml -",
)
@click.argument("file", type=click.File("rb"), metavar="FILE")
@form_options
@config_option
def import_(config: Path | None, file: BinaryIO, as_json: bool) -> int:
    """Import sessions from the JSON lines that `export` writes; `-` is the standard input.

    Sessions keep their ids, owners and pins. Run it again after an interruption: turns that the store has are not
    written again. A session that can't be imported is reported, and the others are imported.
    """

    async def work(settings: Settings) -> int:
        summary = Summary()
        async with opened(settings) as store:
            for session in read_exported(file):
                try:
                    summary.add(await _import(store, session))
                except StoreError as error:
                    summary.failed[session.key.id] = str(error)
        return summary.report(as_json, "imported")

    try:
        return run_reporting("memory import", config, work)
    except MalformedExport as error:
        return fail("memory import", 2, f"{file.name}: {error}. What came before is imported.")


async def _import(store: Store, session: ExportedSession) -> int:
    written = await append_turns(store, session.key, session.turns)
    if session.pinned and session.turns:
        await store.pin(session.key, True)
    return written


command.add_command(import_cluster)
command.add_command(import_agentcore)
