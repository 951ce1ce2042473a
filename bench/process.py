"""What Linux says of a process and its children: CPU time, memory, where it may run."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROC = Path("/proc")


class Process:
    """A process started for the benchmark, with all of its descendants."""

    def __init__(self, name: str, command: Sequence[str], port: int, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.port = port
        # A file: nobody reads while it is measured, and a process that writes to a full pipe blocks.
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # `stop` closes it
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._words,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )

    def wait_until_up(self, seconds: float = 30.0) -> None:
        """Wait until its port takes connections; raises RuntimeError with the end of its output if it ends before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._popen.poll() is not None:
                raise RuntimeError(f"{self.name} ended: {self.last_words() or 'without a word'}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"{self.name} does not listen")

    def last_words(self) -> str:
        """The last line it wrote to its standard error, "" for none."""
        end = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, end - 4096))
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def stop(self) -> None:
        """End it, and kill it if it does not."""
        self._popen.terminate()
        try:
            self._popen.wait(5)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._words.close()

    def pids(self) -> list[int]:
        """Its process id and those of its descendants."""
        found = [self._popen.pid]
        for pid in found:
            for children in PROC.glob(f"{pid}/task/*/children"):
                found += map(int, children.read_text().split())
        return found

    def pin(self, cores: set[int]) -> None:
        """Let all of its threads, and of its descendants, run on `cores` only."""
        for task in self._tasks():
            os.sched_setaffinity(int(task.name), cores)

    def cpu(self) -> float:
        """Seconds of CPU time all of its threads have used, to the nanosecond as the scheduler counts them."""
        return sum(_cpu(task) for task in self._tasks())

    def sockets(self) -> dict[int, int]:
        """How many sockets each of its processes has open."""
        found = {}
        for pid in self.pids():
            links = []
            for file in PROC.glob(f"{pid}/fd/*"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    links.append(str(file.readlink()))
            found[pid] = sum(link.startswith("socket:") for link in links)
        return found

    def _tasks(self) -> Iterator[Path]:
        for pid in self.pids():
            yield from PROC.glob(f"{pid}/task/*")

    def memory(self, field: str = "VmRSS") -> int:
        """Bytes of resident memory (``VmRSS``), or the most since `forget_peak` (``VmHWM``)."""
        total = 0
        for pid in self.pids():
            lines = (PROC / f"{pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024
        return total

    def forget_peak(self) -> None:
        """Reset the peak (proc(5), clear_refs)."""
        for pid in self.pids():
            (PROC / f"{pid}/clear_refs").write_text("5")


def _cpu(task: Path) -> float:
    return int((task / "schedstat").read_text().split()[0]) / 1e9


def give_way(pid: int, nice: int) -> None:
    """Let a process that leads its session, and so the session, give way to others (sched(7), "autogroup")."""
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    with contextlib.suppress(OSError):  # a kernel without autogroups
        (PROC / f"{pid}/autogroup").write_text(str(nice))


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def allow_many_files() -> int:
    """Raise this process's (and so its children's) limit of open files as far as it goes; the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
