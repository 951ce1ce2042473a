"""A command in a fork does what it does in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.forked import Forked, piped
from tests.terminal import GATEWAY, environment
from tests.wire import PATIENCE

ENVIRONMENT = environment({"GATEWAY__UPSTREAM__URL": "http://cluster.example:9200", "COLUMNS": "70"})


def forked(argv: Sequence[str], folder: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err, Path(os.devnull).open() as nothing:
        streams = {"stdin": nothing.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
        code = Forked(argv, ENVIRONMENT, **streams).wait(PATIENCE)
        for file in (out, err):
            file.seek(0)
        return code, out.read(), err.read()


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["check-config"], ["check-config", "--nonsense"]])
def test_it_has_its_own_environment_and_streams(argv: list[str], tmp_path: Path) -> None:
    apart = subprocess.run([*GATEWAY, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=ENVIRONMENT)
    assert forked(argv, tmp_path) == (apart.returncode, apart.stdout, apart.stderr)


def test_it_runs_in_this_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gateway.yaml").write_text("upstream: {nonsense: 1}")
    code, _, err = forked(["check-config", "-c", "gateway.yaml"], tmp_path)
    assert code == 2
    assert "upstream.nonsense" in err


def test_it_can_be_killed() -> None:
    with piped(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], ENVIRONMENT) as (serving, lines):
        assert '"listening"' in lines.readline()
        assert serving.poll() is None
        serving.kill()
        assert serving.wait(PATIENCE) == serving.poll() == -signal.SIGKILL
        assert all('"listening"' in line for line in lines)  # to the end: no process has the pipe any more
