"""Runs a program on a terminal of its own, as a person does."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from tests.forked import Forked
from tests.wire import PATIENCE

GATEWAY = [sys.executable, "-m", "gateway"]
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, without what would change how a program writes."""
    unwanted = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "MLC_REQUIRE_BROWSER", "MLC_REQUIRE_CLUSTER"}
    kept = {n: v for n, v in os.environ.items() if n not in unwanted and not n.upper().startswith("GATEWAY__")}
    return kept | {"TERM": "xterm", "LANG": "C.UTF-8"} | dict(extra or {})


def _obey_interrupts() -> None:
    """Let Ctrl-C end the program, as in a shell on a terminal: a shell without one starts it with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program on a terminal of `columns` columns, which shows all that it writes. Use it as a context.

    ``[*GATEWAY, …]`` runs in a process that has the gateway imported already (`tests.forked`).
    """

    def __init__(self, command: Sequence[str], columns: int = 80, env: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._columns = columns
        self._env = environment(env)
        self._text = b""

    def __enter__(self) -> Terminal:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, self._columns, 0, 0))
        self._process = self._start(theirs)
        os.close(theirs)
        return self

    def _start(self, terminal: int) -> subprocess.Popen[bytes] | Forked:
        streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
        if list(self._command[: len(GATEWAY)]) == GATEWAY:
            return Forked(self._command[len(GATEWAY) :], self._env, **streams)
        return subprocess.Popen(
            self._command, env=self._env, start_new_session=True, preexec_fn=_obey_interrupts, **streams
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)

    @property
    def text(self) -> str:
        """What it wrote until now, without colours."""
        return _ESCAPES.sub("", self._text.decode()).replace("\r\n", "\n")

    def wait_for(self, text: str) -> None:
        """Read until `text` was written."""
        end = time.monotonic() + PATIENCE
        while text not in self.text:
            assert self._read(end), f"{text!r} is not in {self.text!r}"

    def stop(self) -> int:
        """Send SIGINT, and return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        """Read until the program ends, and return its exit code."""
        end = time.monotonic() + PATIENCE
        while self._read(end):
            pass
        return self._process.wait(PATIENCE)

    def _read(self, end: float) -> bool:
        """Read a piece; return False at the end."""
        readable, _, _ = select.select([self._ours], [], [], max(end - time.monotonic(), 0))
        assert readable, f"nothing more after {self.text!r}"
        try:
            piece = os.read(self._ours, 65_536)
        except OSError:  # Linux: the program has closed the terminal
            return False
        self._text += piece
        return bool(piece)


def show(command: Sequence[str], columns: int = 80, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a program to its end on a terminal. Return its exit code, and all that it wrote."""
    with Terminal(command, columns, env) as terminal:
        return terminal.wait(), terminal.text
