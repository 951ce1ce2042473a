"""The recorder's process, as the gateway's process sees it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gateway.inspector.process.messages import LONGEST, READ_REPORT, Report
from gateway.subprocesses import module_command

_Result = TypeVar("_Result")


class ProcessEnded(Exception):
    """The recorder's process has ended."""


class RecorderProcess:
    """A process that records, and the socket to it.

    report: called with each report that nobody waits for in `ask` or `close`.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], channel: socket.socket, report: Callable[[Report], None]
    ) -> None:
        self._process = process
        self._channel = channel
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._asked: asyncio.Future[Report] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        """Raises why nothing arrives any more: ProcessEnded, OSError, or what `report` raised."""
        self._loop.add_reader(channel, self._receive)

    @classmethod
    async def start(cls, memory: int, report: Callable[[Report], None]) -> RecorderProcess:
        """Start a process. memory: see `own_memory`.

        Raises:
            OSError: that is not possible.
        """
        channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.setblocking(False)
        with other:
            try:
                process = await _in_own_thread(_start, [other.fileno(), memory])
            except BaseException:
                channel.close()
                raise
        return cls(process, channel, report)

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def send(self, message: bytes) -> None:
        """Send a message, when the one before it has been answered, so that there is room for it.

        Raises:
            OSError: the process has ended.
        """
        self._channel.send(message)

    async def ask(self, message: bytes) -> Report:
        """Send a message as `send`, and return the answer.

        Raises:
            ProcessEnded, OSError: the process has ended.
        """
        self.send(message)
        return await self._answer()

    async def close(self) -> Report:
        """Let it close the sinks and end. Errors as `ask`."""
        self._channel.shutdown(socket.SHUT_WR)
        return await self._answer()

    async def _answer(self) -> Report:
        asked: asyncio.Future[Report] = self._loop.create_future()
        self._asked = asked
        await self.wait_for(asked)
        self._asked = None
        return asked.result()

    async def wait_for(self, event: asyncio.Future[Any]) -> None:
        """Wait until `event` is done.

        Raises:
            ProcessEnded, OSError: the process ended before.
        """
        try:
            await asyncio.wait({event, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if not event.done():
                self._ended.result()
        finally:
            event.cancel()

    def _receive(self) -> None:
        try:
            answer = self._channel.recv(LONGEST)
            if not answer:
                raise ProcessEnded("it has closed its socket")
            report = READ_REPORT(answer)
            if self._asked is not None:
                self._asked.set_result(report)
            else:
                self._report(report)
        except BlockingIOError:
            return
        except Exception as error:  # of any class: the loop would only log it, and nothing would be recorded any more
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Let `wait_for` raise an error from now on, in place of waiting."""
        self._loop.remove_reader(self._channel)
        if not self._ended.done():
            self._ended.set_exception(error)

    async def kill(self) -> int:
        """End it at once, if it has not ended. Return its exit status."""
        self._loop.remove_reader(self._channel)
        if not self._ended.cancel():
            self._ended.exception()  # otherwise asyncio would log it, if nobody has waited for it
        self._channel.close()
        self._process.kill()
        return await _in_own_thread(self._process.wait)


def _start(descriptors: list[int]) -> subprocess.Popen[bytes]:
    """Start the process with a socket and this one's memory. It blocks for some milliseconds."""
    command = [*module_command("gateway.inspector.process"), *map(str, descriptors)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors)


async def _in_own_thread(call: Callable[..., _Result], *arguments: object) -> _Result:
    """Call in a thread that ends then, unlike those of `asyncio.to_thread`.

    While a process has several threads, Linux counts references to its descriptors in each system call, which makes all
    requests more expensive.
    """
    threads = ThreadPoolExecutor(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, call, *arguments)
    finally:
        threads.shutdown(wait=False)
