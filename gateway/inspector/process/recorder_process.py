"""The recorder's process, as the gateway's process sees it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gateway.inspector.process.messages import LONGEST, READ_REPORT, Report
from gateway.subprocesses import module_command

_Result = TypeVar("_Result")


class ProcessEnded(Exception):
    """The recorder's process has ended."""


class RecorderProcess:
    """A process that records, and the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._process = process
        self._channel = channel

    @classmethod
    async def start(cls, descriptors: list[int]) -> RecorderProcess:
        """Start a process. descriptors: of the memories.

        Raises:
            OSError: that is not possible.
        """
        channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.setblocking(False)
        with other:
            try:
                process = await _in_own_thread(_start, [other.fileno(), *descriptors])
            except BaseException:
                channel.close()
                raise
        return cls(process, channel)

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    async def ask(self, message: bytes) -> Report:
        """Send a message, and return the answer.

        Raises:
            ProcessEnded, OSError: the process has ended.
        """
        await asyncio.get_running_loop().sock_sendall(self._channel, message)
        return await self._answer()

    async def _answer(self) -> Report:
        answer = await asyncio.get_running_loop().sock_recv(self._channel, LONGEST)
        if not answer:
            raise ProcessEnded("it has closed its socket")
        return READ_REPORT(answer)

    async def close(self) -> Report:
        """Let it close the sinks and end. Errors as `ask`."""
        self._channel.shutdown(socket.SHUT_WR)
        return await self._answer()

    async def kill(self) -> int:
        """End it at once, if it has not ended. Return its exit status."""
        self._channel.close()
        self._process.kill()
        return await _in_own_thread(self._process.wait)


def _start(descriptors: list[int]) -> subprocess.Popen[bytes]:
    """Start the process with a socket and two memories. It blocks for some milliseconds."""
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
