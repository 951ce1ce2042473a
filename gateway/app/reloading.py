"""Reads the settings again while the gateway runs, on SIGHUP or for the admin port, and tells which are in effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from gateway.app.checks import load_checked
from gateway.config.load import ConfigError
from gateway.config.schema import Settings
from gateway.config.source import Source, digest_of
from gateway.observe.logs import Logger


class Running(Protocol):
    """What the settings are for. settings: those in effect. log: at their level."""

    @property
    def settings(self) -> Settings:
        """The settings in effect."""

    @property
    def log(self) -> Logger:
        """The log, at their level."""


class SettingsReload:
    """See `gateway.admin.application.Reloads`. Reloads are made one after the other.

    content: of the file, from which the settings in effect were read. apply: puts new settings into effect.
    """

    def __init__(
        self, source: Source, content: bytes | None, now: Running, apply: Callable[[Settings], Awaitable[None]]
    ) -> None:
        self.running = digest_of(content)
        self._source = source
        self._now = now
        self._apply = apply
        self._one_at_a_time = asyncio.Lock()
        self._reloading: asyncio.Task[object] | None = None
        self._is_stopped = False

    async def file(self) -> str:
        """See `Reloads`."""
        return await asyncio.to_thread(self._digest_now)

    def _digest_now(self) -> str:
        path = self._source.path
        if path is None or not path.is_file():  # reading a pipe would take what the next reload is to read
            return ""
        try:
            return digest_of(self._source.read_content())
        except ConfigError:
            return ""

    async def run(self) -> list[str]:
        """See `Reloads`. What was wrong is also logged."""
        async with self._one_at_a_time:
            if self._is_stopped:
                return ["the gateway stops"]
            self._reloading = asyncio.current_task()
            try:
                settings, content = await asyncio.to_thread(self._load)
                await self._apply(settings)
            except ConfigError as error:
                problems = [str(problem) for problem in error.problems]
                self._now.log.error("reload failed", problems=problems)
                return problems
            except Exception:
                self._now.log.exception("reload failed")
                return ["an internal error of the gateway, which its log describes"]
            finally:
                self._reloading = None
            self.running = digest_of(content)
            return []

    async def stop(self) -> None:
        """Cancel the reload under way, and let no other begin."""
        self._is_stopped = True
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.wait([self._reloading])

    def _load(self) -> tuple[Settings, bytes | None]:
        content = self._source.read_content()
        settings = load_checked(lambda: self._source.load(content), self._now.log, self._now.settings)
        return settings, content
