"""Write `docs/start/first-five-minutes.md` by doing what it says: ``python -m tests.docs.first_minutes``.

A test compares.

Each command runs in a shell on a terminal of 80 columns, in an empty folder, before a simulated cluster. Ports, ids,
times and paths of this machine are replaced by those that a reader would see, or by a word.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.simulator.fixtures import seed
from gateway.simulator.server import Simulator
from tests.docs.pages import DOCS, ROOT
from tests.terminal import Terminal, show

PAGE = DOCS / "start" / "first-five-minutes.md"
COLUMNS = 80
AGENT = "conv-d"
CLUSTER, DATA, ADMIN = "127.0.0.1:9200", "127.0.0.1:9209", "127.0.0.1:9601"
ASK = f"""\
curl -s -D headers.txt http://{DATA}/_plugins/_ml/agents/$agent/_execute \\
    -H 'Content-Type: application/json' -d @question.json | python3 -m json.tool"""
QUESTION = """\
{"input": [{"type": "text", "text": "What is in this picture?"},
           {"type": "image", "source": {"type": "base64", "format": "png", "data":
"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"}}]}
"""
_HEAD = """\
# The first five minutes

What a terminal of 80 columns shows, from an empty machine with Python 3.11 or later to an agent that takes images. The
cluster is the simulator; with a cluster of your own, leave step 2 out and write its address instead. A script does what
this page says, from step 3 on, and writes the page (`python -m tests.docs.first_minutes`); a test does it again and
compares. Each id is replaced by a name with zeros after it, each time by `12:00:00`.
"""


@dataclass(frozen=True)
class Block:
    """Something that is typed into a shell, and what it showed."""

    command: str
    output: str

    def __str__(self) -> str:
        first, *more = self.command.splitlines()
        typed = "\n".join([f"$ {first}", *(f"> {line}" for line in more)])
        return f"```console\n{typed}\n{self.output}```\n"


class Shell:
    """Runs commands in a folder of their own, where `mlc-gateway` is this checkout's."""

    def __init__(self, folder: Path, cluster: str, ids: Mapping[str, str]) -> None:
        self.ports = {CLUSTER: cluster}
        self.folder = folder
        self._ids = ids
        (folder / "bin").mkdir()
        program = folder / "bin" / "mlc-gateway"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway "$@"\n')
        program.chmod(0o755)
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.env = {"PATH": path, "PYTHONPATH": str(ROOT), "no_proxy": "*"}
        self._start = f"cd {folder}\n[ -e agent ] && agent=$(cat agent)\n"

    def __call__(self, command: str) -> Block:
        """Run a command to its end, whatever its exit code."""
        _, output = show(["bash", "-c", self._start + self.real(command)], COLUMNS, self.env)
        return Block(command, self.shown(output))

    def real(self, command: str) -> str:
        """Return a command with this run's addresses."""
        for shown, real in self.ports.items():
            command = command.replace(shown, real)
        return command

    def shown(self, output: str) -> str:
        """Return an output with the addresses of the page, and without what differs between two runs."""
        output = output.split("\r")[-1] if "\rreading" in output or "\nreading" in output else output
        for shown, real in self.ports.items():
            output = output.replace(real, shown)
        output = re.sub(r"\b\d\d:\d\d:\d\d\b", "12:00:00", output)
        output = re.sub(r"\d{8}T\d{6}\w*Z", "20260101T120000Z", output)
        output = re.sub(r'(?<="result": ")[\w-]{20}(?=")', "memory00000000000000", output)
        output = re.sub(r"-[0-9a-f]{8}\.json", "-0a1b2c3d.json", output)
        for id_, name in self._ids.items():
            output = output.replace(id_, name)
        return "".join(f"{line.rstrip()}\n" for line in output.splitlines())

    @contextmanager
    def serving(self, command: str) -> Iterator[Block]:
        """Run the gateway on any free ports, and show what it printed until both were open."""
        anywhere = {"GATEWAY__LISTEN__DATA_PORT": "0", "GATEWAY__LISTEN__ADMIN_PORT": "0"}
        with Terminal(["bash", "-c", f"exec {self.real(command)}"], COLUMNS, self.env | anywhere) as terminal:
            terminal.wait_for("the cluster's API")
            found = re.findall(r"address=(\S+)", terminal.text)
            self.ports |= dict(zip((ADMIN, DATA), found, strict=True))
            yield Block(command, self.shown(terminal.text))
            assert terminal.stop() == 0


@contextmanager
def simulated() -> Iterator[tuple[str, dict[str, str]]]:
    """A simulated cluster with the usual agents, in a thread: its address, and a name for each id of 20 characters."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    simulator = Simulator("2.19.0")
    do(simulator.start())
    try:
        while do(seed(simulator.url, whole=True))[AGENT].startswith("-"):  # it would need -- on command lines
            simulator.core.resources.agents.clear()
        resources = simulator.core.resources
        documents = [*resources.agents.items(), *resources.models.items(), *resources.connectors.items()]
        names = {id_: str(document["name"]).ljust(len(id_), "0") for id_, document in documents}
        yield simulator.url.removeprefix("http://"), names
    finally:
        do(simulator.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def render() -> str:
    """Return the whole page."""
    folder = Path(tempfile.mkdtemp(prefix="first-"))
    try:
        with simulated() as (address, names):
            return "\n".join([_HEAD, *_sections(Shell(folder, address, names))])
    finally:
        shutil.rmtree(folder)


def _sections(shell: Shell) -> Iterator[str]:
    yield "## 1. Install\n"
    yield str(Block("git clone REPOSITORY && cd mlc-gateway", ""))
    yield str(Block("python3 -m venv .venv && . .venv/bin/activate && pip install --quiet .", ""))
    yield str(shell("mlc-gateway --version"))
    yield "## 2. A cluster to try it on\n\nIn a second terminal, which stays open:\n"
    yield str(Block("python -m gateway.simulator --port 9200 --seed", f"ML Commons 2.19.0 at http://{CLUSTER}, …\n"))
    yield "## 3. What do the agents take?\n"
    yield str(shell(f"mlc-gateway agents --url http://{CLUSTER} conv-a conv-d"))
    yield "## 4. Start the gateway\n\nIn a third terminal, which stays open:\n"
    with shell.serving(f"mlc-gateway serve --upstream http://{CLUSTER}") as started:
        yield str(started)
        yield "Back in the first one:\n"
        yield str(shell(f"curl -s http://{ADMIN}/health/ready; echo"))
        yield "## 5. Ask an agent about a picture\n"
        (shell.folder / "question.json").write_text(QUESTION)
        yield str(Block("cat question.json", QUESTION))
        read = "import json, sys; print(json.load(sys.stdin)['agents'][0]['id'])"
        find = f'agent=$(mlc-gateway agents --url http://{CLUSTER} conv-d --json |\n    python3 -c "{read}")'
        shell(f"{find}\necho $agent > agent")
        yield str(Block(find, ""))
        yield str(shell(ASK))
        yield "The agent can't be given the picture, so nothing was sent. The answer says what helps.\n"
        yield "## 6. Let it take pictures\n"
        yield str(shell(f"mlc-gateway upgrade --url http://{CLUSTER} conv-d"))
        apply = f"mlc-gateway upgrade --url http://{CLUSTER} conv-d --shared --apply \\\n    --gateway http://{ADMIN}"
        yield "`--gateway` names the admin port of the gateway, which then knows of the change before it is made:\n"
        yield str(shell(apply))
        yield "## 7. Ask again\n"
        yield str(shell(ASK))
        yield str(shell("grep -i x-mlc-gateway-delivery headers.txt"))
    yield "Next: [point your clients at the gateway](quickstart.md#5-point-your-clients-at-it).\n"


if __name__ == "__main__":
    PAGE.write_text(render())
