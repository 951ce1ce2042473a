"""What a new operator tries first: an empty cluster, half an address, a wrong file. Each answer says what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.cli import run
from tests.cli.test_listings import piped
from tests.memory.cli_place import Place
from tests.migrate.conftest import StartDeployment, _agents_assessed_once, _loop, _no_waiting, start_deployment
from tests.terminal import GATEWAY, Terminal, show

__all__ = ["_agents_assessed_once", "_loop", "_no_waiting", "start_deployment"]


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_a_cluster_without_agents(start_deployment: StartDeployment) -> None:
    deployment = start_deployment()
    deployment.cluster.core.resources.agents.clear()
    code, text = show([*GATEWAY, "agents", "--url", deployment.url])
    assert (code, text.splitlines()[-2:]) == (
        0,
        ["No agent was found.", "Note: no search returns hidden agents; name them by id to see them."],
    )
    assert "─" not in text
    code, text = show([*GATEWAY, "upgrade", "--all", "--url", deployment.url])
    assert (code, text.splitlines()) == (
        0,
        ["No agent was found.", "Nothing to do: no connector can be upgraded."],
    )


@pytest.mark.parametrize("command", [["agents"], ["upgrade", "--all"], ["promote", "x"], ["cleanup"]])
def test_an_address_without_a_scheme_is_that_of_the_option(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--url", "search:9200"]) == 2
    assert capsys.readouterr().err == (
        f"mlc-gateway {command[0]}: The settings can't be used:\nupstream.url: has no scheme; got 'search:9200'; "
        "allowed: http://search:9200 or https://search:9200; from --url\n"
    )


def test_a_file_of_an_option_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agents", "--url", "https://x", "--ca-file", "none.pem"]) == 2
    assert capsys.readouterr().err.endswith("\nupstream.tls.ca_file: there is no file none.pem; from --ca-file\n")
    Path("g.yaml").write_text("upstream: {url: 'search:9200'}")
    assert run(["agents", "-c", "g.yaml"]) == 2
    assert "from --" not in capsys.readouterr().err


def test_rollback_of_a_connector_names_its_backups(
    start_deployment: StartDeployment, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = start_deployment()
    argv = ["upgrade", "--url", deployment.url, "--apply", "--shared", "--json", "flow-a", "flow-d"]
    report = json.loads(piped(argv)[1])
    one, other = report["done"][:2]
    Path("mlc-backups/other.json").write_text("{}")
    assert run(["rollback", "--url", deployment.url, one["key"]]) == 2
    assert capsys.readouterr().err == (
        f"mlc-gateway rollback: {one['key']} is a connector: give a backup file of it: {one['backup']}\n"
    )
    assert run(["rollback", "--url", deployment.url, one["backup"], other["backup"]]) == 0
    capsys.readouterr()
    assert run(["rollback", "--url", deployment.url, "connectors/nobody"]) == 2
    assert capsys.readouterr().err.startswith(
        "mlc-gateway rollback: connectors/nobody: No such file. `upgrade --apply` prints the backup file of "
    )


def test_rewrite_says_that_it_reads_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rewrite", "none.json", "--provider", "openai/v1/chat/completions"]) == 2
    assert capsys.readouterr().err == "mlc-gateway rewrite: none.json can't be read: No such file or directory\n"
    with Terminal([*GATEWAY, "rewrite", "--provider", "openai/v1/chat/completions"]) as terminal:
        terminal.wait_for("Type the body of the request, and Ctrl-D at the end:\n")
        os.write(terminal._ours, b'{"input": "hi"}\n\x04')
        assert terminal.wait() == 0
    assert '"parameters"' in terminal.text


def test_the_help_of_a_group_has_its_codes_in_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", "--help"]) == 0
    codes = capsys.readouterr().out.partition("Exit codes:\n")[2].partition("\n\n")[0]
    assert "  1    memory show, memory export, memory delete, memory pin, memory unpin:" in codes.splitlines()
    assert {line[:7].strip() for line in codes.splitlines()} <= {"", "0", "1", "2", "130"}


def test_no_sessions_says_where(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert piped(["memory", "list", "-c", str(place.config), "--table"]) == (
        0,
        "There are no such sessions in the store sqlite, which the settings name (-c).\n",
    )
