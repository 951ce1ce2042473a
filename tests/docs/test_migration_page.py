"""Every command of the page on gradual migration, run in its order as it stands there, with two simulated clusters."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from gateway import cli
from gateway.config.load import load
from tests.docs.pages import ROOT, files_of, page
from tests.docs.test_upgrade_page import _environment, _listens
from tests.migrate.conftest import (
    Deployment,
    StartDeployment,
    _loop,
    _no_waiting,
    _plain_environment,
    deployment,
    start_deployment,
)
from tests.wire import PATIENCE, reserved

__all__ = ["_loop", "_no_waiting", "_plain_environment", "deployment", "start_deployment"]

STEPS = re.split(r"^## ", page("operate/migration.md"), flags=re.MULTILINE)[1:]
CONVERSATIONS = "Conversations that began on the old cluster"
CONFIG = Path("gateway.yaml")
TOKEN = "0123456789abcdef"
_GATEWAY = [sys.executable, "-m", "gateway"]


def commands(step: int | str) -> list[str]:
    """The commands in the shell blocks of a step, or of the section with this title, one a line."""
    text = STEPS[step - 1] if isinstance(step, int) else next(one for one in STEPS if one.startswith(step))
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def example(step: int) -> str:
    """The step's first example of settings that is not the page's file."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", STEPS[step - 1], re.MULTILINE | re.DOTALL)
    return str(blocks[0])


class Way:
    """What a reader of the page has: two clusters, an agent, a settings file, and a gateway that runs."""

    def __init__(
        self, old: Deployment, new: Deployment, ports: tuple[int, int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.old, self.new = old, new
        self.port, self.admin_port = ports
        self.agent = old.agents["cflow-b"]
        self._capsys = capsys
        self._pool = urllib3.PoolManager(retries=False, timeout=PATIENCE)

    @property
    def copy(self) -> str:
        """The id of the copy, as the settings file names it."""
        [route] = load(CONFIG).agents.routes
        return next(target.agent for target in route.targets if target.agent != self.agent)

    def filled(self, text: str) -> str:
        """Return a text of the page with the addresses and ids of this place."""
        text = text.replace("http://127.0.0.1:9200", self.old.url).replace("http://127.0.0.1:9210", self.new.url)
        text = re.sub(r"\bOLD\b", self.agent, text)
        return re.sub(r"\bNEW\b", lambda _: self.copy, text)

    def run(self, command: str) -> str:
        """Run a command of the page; return what it prints."""
        argv = shlex.split(self.filled(command))
        assert argv[0] == "mlc-gateway"
        self._capsys.readouterr()
        status = cli.run(argv[1:])
        shown = self._capsys.readouterr()
        assert status == 0, (command, shown.out, shown.err)
        return str(shown.out)

    def ask(self, text: str, user: str = "", memory_id: str = "", status: int = 200) -> Any:
        """Run the agent; return the headers of the answer, and its body."""
        headers = urllib3.make_headers(basic_auth=f"{user}:p") if user else {}
        url = f"http://127.0.0.1:{self.port}/_plugins/_ml/agents/{self.agent}/_execute"
        body = {"input": text, **({"parameters": {"memory_id": memory_id}} if memory_id else {})}
        answer = self._pool.request("POST", url, json=body, headers=headers)
        assert answer.status == status, answer.data
        return {**answer.headers, "body": answer.json()}

    def begin(self, text: str) -> str:
        """Begin a conversation; return its id."""
        [output] = self.ask(text)["body"]["inference_results"]
        return str(next(one["result"] for one in output["output"] if one["name"] == "memory_id"))

    def reload(self) -> None:
        """Have the gateway read the settings again, as the page says."""
        url = f"http://127.0.0.1:{self.admin_port}/reload"
        answer = self._pool.request("POST", url, headers={"Authorization": f"Bearer {TOKEN}"})
        assert (answer.status, answer.json()["status"]) == (200, "reloaded"), answer.data

    @contextmanager
    def serving(self, command: str) -> Iterator[None]:
        """Run `serve` as the page says."""
        argv = [*_GATEWAY, *shlex.split(command)[1:]]
        with Path("serve.log").open("w") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, env=_environment())
        try:
            deadline = time.monotonic() + PATIENCE
            while not _listens(self.port):
                assert process.poll() is None, Path("serve.log").read_text()
                assert time.monotonic() < deadline, Path("serve.log").read_text()
                time.sleep(0.05)
            yield
        finally:
            self._pool.clear()
            process.terminate()
            process.communicate(timeout=PATIENCE)


Begin = Callable[[], Way]


@pytest.fixture
def way(
    start_deployment: StartDeployment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Way]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MLC_PASSWORD", "p")
    old, new = start_deployment("2.19.0"), start_deployment("3.8.0")
    with reserved() as data, reserved() as admin:
        monkeypatch.setenv("GATEWAY__LISTEN__DATA_PORT", str(data))
        monkeypatch.setenv("GATEWAY__LISTEN__ADMIN_PORT", str(admin))
        monkeypatch.setenv("ADMIN_TOKEN", TOKEN)
        way = Way(old, new, (data, admin), capsys)
        CONFIG.write_text(way.filled(files_of("operate/migration.md")["gateway.yaml"]))
        credential = Path("credential.json")
        credential.write_text('{"key": "k"}')
        credential.chmod(0o600)
        yield way


def test_the_page_has_six_steps_with_commands() -> None:
    assert [len(commands(step)) for step in range(1, 7)] == [2, 3, 1, 1, 7, 0]
    assert len(commands(CONVERSATIONS)) == 1


@pytest.mark.slow
def test_all_the_way_and_back(way: Way) -> None:
    check, serve = commands(1)
    look, move, undo = commands(2)
    [conversations] = commands(CONVERSATIONS)
    way.run(check)
    with way.serving(serve):
        began_before = way.begin("Where is it?")
        assert load(CONFIG).agents.routes == []
        way.run(look)
        assert load(CONFIG).agents.routes == []
        for _ in range(2):
            way.run(move)
            [route] = load(CONFIG).agents.routes
            assert [(target.agent == way.agent, target.weight > 0) for target in route.targets] == [
                (True, True),
                (False, False),
            ]
            first, way_back = way.copy, way.run(undo)
            assert way_back
            assert first not in way.new.cluster.core.resources.agents
        way.run(move)
        way.reload()
        way.run(conversations)
        [rehearse] = commands(3)
        report = json.loads(way.run(rehearse))
        assert (report["counts"]["same"], report["new"]["id"]) == (1, way.copy)
        _mirror(way)
        _shift(way)
        _off(way, began_before)


def _mirror(way: Way) -> None:
    """The page's example is the route with its mirror; the weights are those of the file by then."""
    before = CONFIG.read_text()
    [route] = yaml.safe_load(way.filled(example(4)))["agents"]["routes"]
    listed = f"- agent: {way.agent}\n"
    indent = before.partition(listed)[0].rpartition("\n")[2]
    CONFIG.write_text(before.replace(listed, f"{listed}{indent}  mirror: {json.dumps(route['mirror'])}\n"))
    [check] = commands(4)
    assert "mirror" in way.run(check)
    assert load(CONFIG).agents.routes[0].mirror.agent == way.copy
    CONFIG.write_text(before)


def _shift(way: Way) -> None:
    five, table, judge, half, back, whole, history = commands(5)
    way.run(five)
    number = 0
    while way.ask("Where is it?", f"user-{number}")["X-MLC-Agent"] != way.copy:
        number += 1
    [figures] = [one for one in json.loads(way.run(f"{table} --json"))["targets"] if one["agent"] == way.copy]
    assert (figures["share"], figures["runs"], figures["errors"]) == (pytest.approx(0.05), 1, 0)
    assert way.agent in way.run(table)
    way.run(judge)
    way.run(half)
    way.run(back)
    assert _share(way) == pytest.approx(0.05)
    way.run(whole)
    assert _share(way) == 1
    assert way.ask("Where is it?")["X-MLC-Cluster"] == "new"
    assert way.run(history).count("\n") >= 4


def _share(way: Way) -> float:
    [route] = load(CONFIG).agents.routes
    weights = {target.agent: target.weight for target in route.targets}
    return weights[way.copy] / sum(weights.values())


def _off(way: Way, began_before: str) -> None:
    """The new cluster is `upstream`, as the page's example says. The old one, whose LLM goes on, is not asked."""
    began_at_100 = way.begin("Where is it?")
    listen = yaml.safe_load(CONFIG.read_text())["listen"]
    CONFIG.write_text(way.filled(example(6)) + yaml.safe_dump({"listen": listen, "inspector": {"enabled": True}}))
    way.reload()
    before = len(way.old.cluster.requests)
    for memory_id in ("", began_at_100):
        answered = way.ask("Where is it?", memory_id=memory_id)
        assert (answered["X-MLC-Agent"], "X-MLC-Cluster" in answered) == (way.copy, False)
    assert "not found" in str(way.ask("And now?", memory_id=began_before, status=404)["body"])
    assert len(way.old.cluster.requests) == before


def test_the_page_explains_every_choice_of_callers() -> None:
    text = page("operate/migration.md")
    assert all(f"| `{choice}`" in text for choice in ("checked", "passed", "trusted"))
    assert str(ROOT) not in text
