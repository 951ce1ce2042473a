"""``mlc-gateway memory copy`` and ``import``: copy sessions from one store to another, directly or by a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from gateway.cli.command import FILE, Command
from gateway.cli.listing import form_options
from gateway.cli.memory_store import bar, config_option, opened, owner_options, run_reporting
from gateway.cli.output import fail, print_json
from gateway.config.load import load
from gateway.config.schema import Settings
from gateway.memory.copying import ExportedSession, MalformedExport, append_turns, copy_session, read_exported
from gateway.memory.management import OwnerFilter, complete_owner, select_sessions
from gateway.memory.store import Store, StoreError
from gateway.memory.stores.registry import STORES

_EXAMPLES = """\
mlc-gateway memory copy -c config/gateway.yaml --from sqlite --to opensearch
mlc-gateway memory copy -c old.yaml --from sqlite --to sqlite --to-config new.yaml --agent my-agent-id"""
_stores = click.Choice(tuple(STORES))


class Summary(msgspec.Struct):
    """What was done. copied, present: sessions. turns: those that were written. failed: session id → reason."""

    copied: int = 0
    present: int = 0
    turns: int = 0
    failed: dict[str, str] = msgspec.field(default_factory=dict)

    def add(self, turns: int) -> None:
        """Count a session of which `turns` turns were written."""
        self.turns += turns
        self.copied += turns > 0
        self.present += turns == 0

    def report(self, as_json: bool, verb: str, more: dict[str, Any] | None = None) -> int:
        """Print the summary, and return the exit code."""
        for id, reason in self.failed.items():
            sys.stderr.write(f"{id}: {reason}\n")
        if as_json:
            counts = {verb: self.copied, "present": self.present, "turns": self.turns, "failed": self.failed}
            print_json({**counts, **(more or {})})
        else:
            sys.stdout.write(
                f"{self.copied} sessions {verb} ({self.turns} turns), {self.present} already there, "
                f"{len(self.failed)} failed\n"
            )
        return 1 if self.failed else 0


@click.command(
    "copy", cls=Command, group="memory", short_help="Copy sessions from one store to another.", examples=_EXAMPLES
)
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


@click.command(
    "import",
    cls=Command,
    group="memory",
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
