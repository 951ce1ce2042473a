"""What the commands of ``mlc-gateway memory`` share: the store of the settings, the owners that are meant, errors."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.cli.command import FILE
from gateway.cli.output import fail
from gateway.config.load import ConfigError, load
from gateway.config.schema import Settings
from gateway.memory.management import AmbiguousSession, OwnerFilter
from gateway.memory.store import SessionNotFound, Store, StoreError
from gateway.memory.stores.registry import build_store, first_address

config_option = click.option("-c", "--config", type=FILE, metavar="FILE", help="The gateway's settings.")
_OWNER = (
    click.option("--agent", metavar="ID", help="Only sessions of this agent: its id, or its beginning."),
    click.option("--tenant", metavar="TENANT", help='Only sessions of this tenant; "" is the one without a name.'),
    click.option(
        "--caller",
        metavar="HASH",
        help='Only sessions of this caller, as `memory list` shows it, or its beginning; "": none.',
    ),
)


def owner_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options that say whose sessions are meant; the function gets them as one argument, `wanted`."""

    @functools.wraps(function)
    def collected(agent: str | None, tenant: str | None, caller: str | None, **values: Any) -> int:
        return function(wanted=OwnerFilter(agent, tenant, caller), **values)

    for option in reversed(_OWNER):
        collected = option(collected)
    return collected


@asynccontextmanager
async def opened(settings: Settings, name: str = "") -> AsyncIterator[Store]:
    """Open the store `name`, by default that of the settings, and close it at the end.

    Raises:
        ConfigError: its settings are wrong. StoreError: it can't be used.
    """
    store = build_store(settings.memory, first_address(settings), name)
    try:
        await store.start()
        yield store
    finally:
        await store.close()


def run_on_store(command: str, config: Path | None, work: Callable[[Store], Coroutine[Any, Any, int]]) -> int:
    """Run `work` on the store of the settings, and return its exit code or that of its error."""

    async def run(settings: Settings) -> int:
        async with opened(settings) as store:
            return await work(store)

    return run_reporting(command, config, run)


def run_reporting(
    command: str, config: Path | Settings | None, work: Callable[[Settings], Coroutine[Any, Any, int]]
) -> int:
    """Run `work` with the settings, given or in a file. Report its error, and return the exit code."""
    try:
        return asyncio.run(work(config if isinstance(config, Settings) else load(config)))
    except BrokenPipeError:
        raise  # click ends the command
    except (SessionNotFound, AmbiguousSession) as error:
        return fail(command, 1, str(error))
    except (ConfigError, StoreError, OSError) as error:
        return fail(command, 2, str(error))


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on standard error if that is a terminal. Call the value after each of `total` steps."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
