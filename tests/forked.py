"""Runs ``mlc-gateway`` in processes that are forked from one that has imported it.

A command's imports take half a second, its own work mostly a few hundredths. So the first `Forked` starts a process
that imports the commands, and each command runs in a fork of it: with its own arguments, environment, folder and
standard streams, as ``python -m gateway`` runs it, but for the imports. Tests of the start itself use a real start.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NoReturn, TextIO

_ROOT = Path(__file__).parent.parent
_IMPORTED = ("agents", "demo", "har", "memory", "move", "replay", "serve", "shift", "tail", "upgrade")
"""The commands whose modules are imported once."""

_NUMBER = struct.Struct("i")


class Forked:
    """A running command.

    argv: the arguments, without the program's name. stdin, stdout, stderr: descriptors, which stay open here. It is in
    a session of its own.
    """

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], *, stdin: int, stdout: int, stderr: int
    ) -> None:
        job = {"argv": list(argv), "environment": dict(environment), "folder": str(Path.cwd())}
        self._watch, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_origin(), [b"."], [theirs.fileno(), stdin, stdout, stderr])
        self._watch.sendall(json.dumps(job).encode())
        self._watch.shutdown(socket.SHUT_WR)
        (self.pid,) = _NUMBER.unpack(self._watch.recv(_NUMBER.size))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, as `subprocess.Popen` gives it; None while the command runs."""
        try:
            return self.wait(0)
        except TimeoutError:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the command has ended.

        Raises:
            TimeoutError: it has not within `timeout` seconds.
        """
        if self.returncode is None:
            self._watch.settimeout(timeout)
            try:
                (self.returncode,) = _NUMBER.unpack(self._watch.recv(_NUMBER.size))
            except BlockingIOError:
                raise TimeoutError from None
            self._watch.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the command at once."""
        self.send_signal(signal.SIGKILL)


@contextmanager
def piped(argv: Sequence[str], environment: Mapping[str, str]) -> Iterator[tuple[Forked, TextIO]]:
    """Run a command in a fork, and read what it writes to both of its outputs; at the end of the context it is killed.

    It reads from ``/dev/null``.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading) as output, os.fdopen(writing, "w") as theirs, Path(os.devnull).open() as nothing:
        running = Forked(argv, environment, stdin=nothing.fileno(), stdout=writing, stderr=writing)
        theirs.close()
        try:
            yield running, output
        finally:
            running.kill()
            running.wait()


@cache
def _origin() -> socket.socket:
    """Start the process that is forked, and return its socket. It ends with this process."""
    control, theirs = socket.socketpair()
    command = [sys.executable, "-c", f"from tests.forked import serve; serve({theirs.fileno()})"]
    with theirs:
        process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
    atexit.register(process.wait)
    atexit.register(control.close)
    return control


def serve(descriptor: int) -> None:
    """Import the commands, then run one in a fork for each message on a socket, until that is closed.

    A message is four descriptors: a socket for the job, and the standard streams.
    """
    for name in _IMPORTED:
        importlib.import_module(f"gateway.cli.{name}")
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as control:
        watchers = []
        while (message := socket.recv_fds(control, 1, 4))[0]:
            if (pid := os.fork()) == 0:
                control.close()
                _watch(*message[1])
            for one in message[1]:
                os.close(one)
            watchers = [one for one in (*watchers, pid) if os.waitpid(one, os.WNOHANG)[0] == 0]
        for pid in watchers:
            os.waitpid(pid, 0)


def _watch(state: int, *streams: int) -> None:
    """Run the job that a socket names, and send its process id there and, in the end, its exit code."""
    with socket.socket(fileno=state) as answer:
        job = json.loads(b"".join(iter(lambda: answer.recv(65_536), b"")))
        if (pid := os.fork()) != 0:
            for one in streams:
                os.close(one)
            answer.sendall(_NUMBER.pack(pid))
            _, status = os.waitpid(pid, 0)
            answer.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
            os._exit(0)
    _run(job["argv"], job["environment"], job["folder"], streams)


def _run(argv: Sequence[str], environment: Mapping[str, str], folder: str, streams: Sequence[int]) -> NoReturn:
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in {*streams} - {0, 1, 2}:
        os.close(descriptor)
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(line_buffering=stream.isatty())  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[1:] = argv
    runpy.run_module("gateway", run_name="__main__", alter_sys=True)
    sys.exit()
