from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from gateway.cli import MODULES, run
from gateway.config.schema import Settings
from tests.wire import RecordingUpstream, send_request


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("GATEWAY__"):
            monkeypatch.delenv(name)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert "serve" in shown
    assert "check-config" in shown


@pytest.mark.parametrize("name", ["serve", "check-config"])
def test_each_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run([name, "--help"])
    assert ended.value.code == 0
    assert f"examples:\n  mlc-gateway {name}" in capsys.readouterr().out


def test_a_command_whose_module_is_missing_breaks_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODULES, "ghost", "gateway.cli.ghost")
    with pytest.raises(SystemExit):
        run(["--help"])
    assert "ghost" not in capsys.readouterr().out
    assert run(["check-config"]) == 0


def test_check_config_prints_what_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("logs: {level: debug}")
    assert run(["check-config", "-c", str(path)]) == 0
    out = capsys.readouterr().out
    assert "level: debug" in out
    assert "data_port: 9209" in out


@pytest.mark.parametrize("command", ["check-config", "serve"])
def test_wrong_settings_end_with_2_and_every_problem(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("logs: {level: loud}\nnope: 1\n")
    assert run([command, "-c", str(path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"nope: unknown key; allowed: {', '.join(Settings.__struct_fields__)}",
        "logs.level: is not allowed here; got 'loud'; allowed: debug or info or warning or error",
    ]


@pytest.mark.parametrize("command", ["check-config", "serve"])
def test_rule_with_an_unknown_provider_ends_with_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("agents: {rules: [{agent: a, provider: nobody/nothing}]}\n")
    assert run([command, "-c", str(path)]) == 2
    assert capsys.readouterr().err.startswith("agents.rules[0].provider: ")


def test_bad_option_is_told_by_its_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--listen", "127.0.0.1:http", "--upstream", "nowhere"]) == 2
    shown = capsys.readouterr().err
    assert "listen.data_port: is not allowed here; got 'http'" in shown
    assert "upstream.url: is not allowed here; got 'nowhere'" in shown


async def test_serve_serves_until_it_is_told_to_stop() -> None:
    async with RecordingUpstream() as upstream:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "serve", "--upstream", upstream.url,
            "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        try:
            ports = {}
            while len(ports) < 2:
                line = json.loads(await process.stderr.readline())
                assert line["event"] == "listening"
                ports[len(ports)] = int(line["address"].rpartition(":")[2])
            answers = [
                await send_request(port, b"GET /health/live HTTP/1.1\r\nHost: c\r\n\r\n") for port in ports.values()
            ]
            assert [answer.body for answer in answers] == [b'{"status":"live"}', b"ok"]
            process.send_signal(signal.SIGTERM)
            rest = [json.loads(line)["event"] async for line in process.stderr]
            assert rest == ["stopped"]
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
