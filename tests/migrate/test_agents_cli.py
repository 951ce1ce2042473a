from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.migrate.conftest import Command, Deployment, StartDeployment

SECRET = "s3cret-password"


@pytest.mark.parametrize("version", ["2.19.0", pytest.param("3.4.0", marks=pytest.mark.slow)])
def test_piped_it_prints_json(start_deployment: StartDeployment, command: Command, version: str) -> None:
    deployment = start_deployment(version)
    status, out, err = command("agents", "--url", deployment.url)
    report = json.loads(out)
    assert (status, err) == (0, "")
    assert sorted(agent["id"] for agent in report["agents"]) == sorted(deployment.cluster.core.resources.agents)
    assert out == command("agents", "--url", deployment.url, "--json")[1]


def test_required_kinds_decide_the_exit_status(deployment: Deployment, command: Command) -> None:
    def status(*argv: str) -> int:
        return command("agents", "--url", deployment.url, *argv)[0]

    able, unable = deployment.agents["flow-a"], deployment.agents["flow-d"]
    assert status("--require", "text") == 0
    assert status("--require", "image") == 1
    assert status("--require", "image,document", "--require", "system", "--", able) == 0
    assert status("--require", "image", "--", able, unable) == 1
    assert status("--require", "image", "--type", "conversational", "--", able, unable) == 0
    assert status("--require", "image", "--type", "flow", "--", able, unable) == 1
    assert status("--require", "image", "--type", "FLOW", "--", able, unable) == 1  # as the cluster may show it


def test_agents_that_can_not_be_read_have_their_own_status(deployment: Deployment, command: Command) -> None:
    able = deployment.agents["flow-a"]
    assert command("agents", "--url", deployment.url, "--", able, "nobody")[0] == 3
    assert command("agents", "--url", deployment.url, "--require", "text", "--", able, "nobody")[0] == 1
    deployment.cluster.refusals[f"GET /_plugins/_ml/agents/{able}"] = 403
    status, out, _ = command("agents", "--url", deployment.url, "--type", "conversational")
    assert status == 3  # its type isn't known, so it is not left out
    assert able in [agent["id"] for agent in json.loads(out)["agents"] if not agent["readable"]]


def test_an_agent_that_is_deleted_between_search_and_reading_is_left_out(
    deployment: Deployment, command: Command
) -> None:
    gone = deployment.agents["flow-a"]
    deployment.cluster.refusals[f"GET /_plugins/_ml/agents/{gone}"] = 404
    status, out, _ = command("agents", "--url", deployment.url)
    assert (status, gone in out) == (0, False)


def test_what_is_wrong_is_told_on_standard_error(deployment: Deployment, command: Command, tmp_path: Path) -> None:
    for argv, message in (
        (("--url", "http://127.0.0.1:1"), "127.0.0.1:1 got no answer: connection refused: check --url"),
        (("--config", str(tmp_path / "none.yaml")), "none.yaml"),
        (("--url", deployment.url, "--out", str(tmp_path / "no" / "file")), "No such file"),
    ):
        status, out, err = command("agents", *argv)
        assert (status, out) == (2, "")
        assert err.startswith("mlc-gateway agents: ")
        assert message in err
    status, out, err = command("agents", "--require", "text,smell")
    assert (status, out) == (2, "")
    assert err.endswith(
        "Error: Invalid value for '--require': 'smell' is not a kind of input. "
        "Choose from text, image, document, video, turns, system, tools.\n"
    )
    deployment.cluster.refusals["POST /_plugins/_ml/agents/_search"] = 403
    status, out, err = command("agents", "--url", deployment.url)
    assert (status, out) == (2, "")
    assert "cluster:admin/opensearch/ml/agents/search" in err


def test_out_writes_the_same_json(deployment: Deployment, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "agents.json"
    _, out, _ = command("agents", "--url", deployment.url, "--out", str(path))
    assert path.read_text() == out


def test_settings_give_cluster_rules_and_routes(deployment: Deployment, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    agents = {
        "rules": [{"agent": "flow-c", "provider": "bedrock/converse"}],
        "aliases": {deployment.agents["flow-d"]: deployment.agents["flow-a"]},
    }
    path.write_text(json.dumps({"upstream": {"url": deployment.url}, "agents": agents}))
    status, out, _ = command("agents", "-c", str(path), "--", deployment.agents["flow-c"], deployment.agents["flow-d"])
    one, other = json.loads(out)["agents"]
    assert status == 0
    assert one["provider"] == {"name": "bedrock/converse", "source": "rule"}
    new = deployment.agents["flow-a"]
    assert other["route"] == [{"agent": new, "cluster": "", "share": 1.0}]
    _, out, _ = command("agents", "-c", str(path), "--table", "-v", "--", deployment.agents["flow-d"])
    assert f"requests go to: {new} (1)" in out


def test_no_secret_is_shown(deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLC_PASSWORD", SECRET)
    deployment.cluster.core.resources.agents[deployment.agents["flow-d"]]["type"] = "odd"
    for argv in ((), ("nobody",), ("--require", "image")):
        _, out, err = command("agents", "--url", deployment.url, "--user", "reader", *argv)
        assert SECRET not in out + err
        assert "not-a-secret" not in out + err  # the connectors' credential


@pytest.mark.slow
def test_on_a_terminal_it_is_a_table(deployment: Deployment) -> None:
    """A terminal of 150 columns, and one of 70, by a pseudo-terminal."""
    for columns, extra in ((150, {}), (70, {"NO_COLOR": "1"})):
        shown = _on_a_terminal(
            columns,
            extra,
            "agents",
            "-v",
            "--url",
            deployment.url,
            "--",
            deployment.agents["flow-a"],
            deployment.agents["flow-d"],
        )
        assert "MEDIA_NEEDS_UPGRADE" in shown
        assert "2 agents: 2 take text, 1 takes images" in shown
        assert ("\x1b[32m" in shown) == (not extra)
        assert not shown.lstrip().startswith("{")


def _on_a_terminal(columns: int, extra: dict[str, str], *argv: str) -> str:
    parent, child = pty.openpty()
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**inherited, "TERM": "xterm-256color", "COLUMNS": str(columns), "PYTHONUTF8": "1", **extra}
    with subprocess.Popen(
        [sys.executable, "-m", "gateway", *argv], stdout=child, stderr=child, stdin=child, env=environment
    ) as process:
        os.close(child)
        came = b""
        try:
            while chunk := os.read(parent, 65536):
                came += chunk
        except OSError:
            pass  # the other end is closed
        finally:
            os.close(parent)
        assert process.wait(60) == 0, came
    return came.decode()


@pytest.mark.parametrize("argv", [("agents",), ("upgrade", "--all", "-v")])
def test_no_name_steers_the_terminal(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    name = "books\x1b]0;title\x07\x9b2J"
    agents = deployment.cluster.core.resources.agents
    agents[deployment.agents["flow-d"]]["name"] = name
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = command(*argv, "--url", deployment.url)
    assert "books\N{REPLACEMENT CHARACTER}]0;title" in out
    assert "\x1b]" not in out
    assert "\x9b" not in out
