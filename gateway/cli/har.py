"""``mlc-gateway har``: recorded exchanges as HAR files, and back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import click

from gateway.cli.command import FILE, Group, config_option
from gateway.cli.output import bar, fail, plural
from gateway.cli.tail import filter_options
from gateway.config.inspector import Inspector
from gateway.config.load import ConfigError, load
from gateway.inspector.exports import oldest_first
from gateway.inspector.har import ImportedRecords, InvalidHar, read_har, write_har
from gateway.inspector.repeatable import put_media_back
from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks.registry import open_store
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import Filter, InvalidFilter, StoreError

_EXAMPLES = """\
mlc-gateway har export -c config/gateway.yaml --status error > errors.har
mlc-gateway har export -c config/gateway.yaml --agent my-agent --media > agent.har
mlc-gateway har export -c config/gateway.yaml 5f2a81c0 > exchange.har
mlc-gateway har import -c config/gateway.yaml traffic.har"""
_OF_EXPORT = "\n".join(_EXAMPLES.split("\n")[:3])
_BATCH = 100


@click.group("har", cls=Group, examples=_EXAMPLES)
def command() -> None:
    """Write the exchanges that the gateway recorded to a HAR file, or put those of a file among them.

    The settings name the store (`inspector`). The gateway may run or not.
    """


@command.command("export", short_help="Write a HAR file.", examples=_OF_EXPORT)
@click.argument(
    "ids", nargs=-1, metavar="[EXCHANGE]...", help="Ids as `tail` prints them, or their beginnings (default: all)."
)
@click.option("--media", is_flag=True, help="Write media that were kept into the bodies, as base64.")
@filter_options
@config_option
def export(config: Path | None, ids: tuple[str, ...], media: bool, wanted: Mapping[str, str]) -> int:
    """Write recorded exchanges to standard output, the oldest first. All filters that are given must match."""
    if ids and wanted:
        raise click.UsageError("Give either exchanges or filters.")
    try:
        with _opened(config) as (store, _):
            records = _named(store, ids) if ids else oldest_first(store, Filter(**wanted))  # type: ignore[arg-type]
            chosen = (put_media_back(record, store.medium) for record in records) if media else records
            for piece in write_har(chosen):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except InvalidFilter as error:
        return fail("har export", 2, str(error) if error.field == "id" else f"--{error.field}: {error}")
    except (ConfigError, StoreError) as error:
        return fail("har export", 2, str(error))
    return 0


def _named(store: SqliteStore, ids: Iterable[str]) -> Iterator[ExchangeRecord]:
    """Return the exchanges with these ids, or beginnings of ids, in the order in which they were stored.

    Raises:
        InvalidFilter: there is none, or several ids begin so.
    """
    positions: dict[str, int] = {}
    for start in ids:
        id = store.whole_id(start)
        position = store.position(id) if id else None
        if id is None or position is None:
            raise InvalidFilter("id", f"there is no exchange whose id is {start}, or begins so")
        positions[id] = position
    return (record for id in sorted(positions, key=positions.__getitem__) if (record := store.get(id)) is not None)


@command.command("import", short_help="Record the exchanges of a HAR file.", examples=_EXAMPLES.split("\n")[3])
@click.argument("file", type=FILE, metavar="FILE")
@config_option
def import_(config: Path | None, file: Path) -> int:
    """Put the exchanges of a HAR file among the recorded ones, to look at them in the page.

    Secrets are removed first, as from the gateway's own exchanges. An exchange that is there already, by its id, is
    left as it is.
    """
    try:
        with _opened(config) as (store, settings):
            imported = ImportedRecords(settings, store.keep_medium)
            found = read_har(file.read_bytes())
            records = [imported.make(record) for record in found if store.get(record.id) is None]
            with bar("importing exchanges", len(records)) as done:
                for start in range(0, len(records), _BATCH):
                    batch = records[start : start + _BATCH]
                    store.add(batch)
                    for _ in batch:
                        done()
    except InvalidHar as error:
        return fail("har import", 2, f"{file}: {error}")
    except OSError as error:
        return fail("har import", 2, f"{file} can't be read: {error.strerror}")
    except (ConfigError, StoreError) as error:
        return fail("har import", 2, str(error))
    known = len(found) - len(records)
    there = f"; {known} {'was' if known == 1 else 'were'} there already" if known else ""
    sys.stderr.write(f"{len(records)} {plural(len(records), 'exchange')} imported{there}\n")
    kept = settings.sqlite.seconds
    if kept and (old := sum(record.started < time.time() - kept for record in records)):
        reason = f"{old} of them are older than inspector.sqlite.seconds, so a gateway that runs may soon delete them"
        sys.stderr.write(f"{reason}. To keep them, set it to 0\n")
    return 0


@contextmanager
def _opened(config: Path | None) -> Iterator[tuple[SqliteStore, Inspector]]:
    """Open the store of the settings, and return it with these.

    Raises:
        ConfigError: the settings are wrong. StoreError: they name no store that can be read.
    """
    settings = load(config, secrets_of="inspector").inspector
    store = open_store(settings)
    if store is None:
        reason = "The settings record no exchanges in a store that can be read"
        raise StoreError(
            f"{reason}: set inspector.enabled to true, with sqlite in inspector.stores, and -c to the file."
        )
    with closing(store):
        yield store, settings
