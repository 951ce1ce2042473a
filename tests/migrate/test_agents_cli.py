"""The command `agents`, its table and its report."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gateway.agents.documents import Rule
from gateway.cli.agents import ClusterInfo, as_report, missing, show, summary_line
from gateway.config.schema import Agents
from gateway.migrate.assess import Assessment, assess
from gateway.migrate.proof import KINDS
from gateway.migrate.reading import scan
from gateway.routing.table import read_routes
from tests.migrate.conftest import Command, Deployment, StartDeployment
from tests.migrate.observed import upgrade_command
from tests.migrate.test_connection import connected

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


@pytest.fixture
def found(deployment: Deployment) -> tuple[ClusterInfo, tuple[Assessment, ...]]:
    """One that takes nearly all, one that needs an upgrade, one without a provider, one without a model."""
    resources = deployment.cluster.core.resources
    models = {document["name"]: id_ for id_, document in resources.models.items()}
    del resources.models[models["model-h"]]
    ids = [deployment.agents[name] for name in ("flow-a", "flow-d", "flow-c", "flow-h")]
    cluster = connected("--url", deployment.url)
    read = scan(cluster, cluster.version, ids)
    info = ClusterInfo(cluster.name, "http://cluster", cluster.version, read.unified_api, ("one thing",))
    return info, assess(read, rules=(Rule("nobody", "gemini"),), routes=read_routes(Agents(aliases={"old": ids[0]})))


def by_name(report: dict[str, Any]) -> dict[str, Any]:
    return {agent["name"]: agent for agent in report["agents"]}


def test_json_has_the_documented_shape(
    found: tuple[ClusterInfo, tuple[Assessment, ...]], deployment: Deployment
) -> None:
    report = json.loads(json.dumps(as_report(*found, ("text", "image"))))
    assert list(report) == ["cluster", "agents", "summary"]
    assert report["cluster"] == {
        "name": "simulated",
        "url": "http://cluster",
        "version": "2.19.0",
        "unified_api": False,
        "notes": ["one thing"],
    }
    assert [agent["name"] for agent in report["agents"]] == ["flow-a", "flow-c", "flow-d", "flow-h"]
    agents, resources = by_name(report), deployment.cluster.core.resources
    model_id = resources.agents[deployment.agents["flow-d"]]["tools"][0]["parameters"]["model_id"]
    ways = {"text": "text", "turns": "text", "system": "text", "tools": "text"}
    limits = {
        "image": ("MEDIA_NEEDS_UPGRADE", "this agent's connector has no place for media"),
        "document": ("MEDIA_NEEDS_UPGRADE", "this agent's connector has no place for media"),
        "video": ("MEDIA_NEEDS_UPGRADE", "this agent's connector has no place for media"),
    }
    abilities = agents["flow-d"].pop("abilities")
    assert agents["flow-d"] == {
        "id": deployment.agents["flow-d"],
        "name": "flow-d",
        "type": "flow",
        "readable": True,
        "generation": "text",
        "provider": {"name": "bedrock/converse", "source": "connector"},
        "models": [
            {
                "id": model_id,
                "connector": {
                    "id": resources.models[model_id]["connector_id"],
                    "kind": "standalone",
                    "shared_by": 1,
                },
                "template": "text",
            }
        ],
        "memory": "",
        "remedies": [
            {
                "kind": "upgrade",
                "action": upgrade_command(deployment.agents["flow-d"]),
                "gains": ["image", "document", "video"],
            }
        ],
        "led_from": [],
        "route": [],
    }
    assert list(abilities) == list(KINDS)
    assert {kind: one["strategy"] for kind, one in abilities.items() if one["arrives"]} == ways
    assert {kind: (one["code"], one["reason"]) for kind, one in abilities.items() if not one["arrives"]} == limits
    lost = agents["flow-h"]
    assert set(lost) == {"id", "name", "type", "readable", "code", "reason", "help", "led_from", "route"}
    assert (lost["readable"], lost["code"]) == (False, "AGENT_UNRESOLVED")
    assert agents["flow-a"]["led_from"] == ["old"]
    assert report["summary"] == {
        "agents": 4,
        "readable": 3,
        "unreadable": 1,
        "abilities": {"text": 3, "image": 1, "document": 1, "video": 1, "turns": 3, "system": 3, "tools": 3},
        "codes": {
            "AGENT_UNRESOLVED": 1,
            "MEDIA_NEEDS_UPGRADE": 1,
            "PROVIDER_UNKNOWN": 1,
        },
        "required": {
            "kinds": ["text", "image"],
            "met": False,
            "missing": [
                {"id": deployment.agents["flow-c"], "kinds": ["image"]},
                {"id": deployment.agents["flow-d"], "kinds": ["image"]},
                {"id": deployment.agents["flow-h"], "kinds": ["text", "image"]},
            ],
        },
    }


def test_nothing_required_is_met(found: tuple[ClusterInfo, tuple[Assessment, ...]]) -> None:
    assert missing(found[1], ()) == {}
    assert as_report(*found)["summary"]["required"] == {"kinds": [], "met": True, "missing": []}


def shown(found: Any, width: int, verbose: bool = False, **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, **options)
    show(console, *found, ("image",), verbose)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def test_the_table_at_80_columns(found: tuple[ClusterInfo, tuple[Assessment, ...]], deployment: Deployment) -> None:
    model = deployment.cluster.core.resources.agents[deployment.agents["flow-h"]]["tools"][0]["parameters"]["model_id"]
    table, _, rest = shown(found, 80).partition("flow-h can't be read")
    assert (
        table
        == """\
simulated 2.19.0 at http://cluster
4 agents, 1 of which can't be read: 3 take text, 1 takes images
agent   text  image  document  video  turns  system  tools
──────────────────────────────────────────────────────────
flow-a   ✓      ✓       ✓        ✓      ✓      ✓       ✓
flow-c   ✓      ✗       ✗        ✗      ✓      ✓       ✓
flow-d   ✓      ✗       ✗        ✗      ✓      ✓       ✓
flow-h   ?      ?       ?        ?      ?      ?       ?
"""
    )
    assert " ".join(rest.split()) == (
        f": AGENT_UNRESOLVED: agents/{deployment.agents['flow-h']}.tools[0].parameters.model_id: the model {model} "
        "does not exist; "
        "register what is missing again, or remove the agent "
        "flow-c does not take what is required: image "
        "flow-d does not take what is required: image "
        "flow-h does not take what is required: image "
        "Note: one thing. "
        "-v shows what limits each agent and how to change that."
    )


def test_the_details(found: tuple[ClusterInfo, tuple[Assessment, ...]], deployment: Deployment) -> None:
    able, limited = deployment.agents["flow-a"], deployment.agents["flow-d"]
    text = shown(found, 80, verbose=True)
    assert (
        f"""\
flow-a {able}
  flow, bedrock/converse
  also runs for: old
  takes: text (wrap), image (wrap), document (wrap), video (wrap), turns (wrap),
  system (wrap), tools (wrap)
"""
        in text
    )
    details = " ".join(text.partition(f"flow-d {limited}\n")[2].partition("flow-h ")[0].split())
    assert details == (
        "flow, bedrock/converse takes: text (text), turns (text), system (text), "
        "tools (text) limits: MEDIA_NEEDS_UPGRADE "
        f"remedy: {upgrade_command(limited)} (adds image, document, video)"
    )
    assert "MEDIA_NEEDS_UPGRADE: this agent's connector has no place for media\n" in text
    assert "-v shows" not in text
    command = f"  remedy: {upgrade_command(limited)} (adds image, document, video)"
    assert command in shown(found, 40, verbose=True).splitlines()  # it can be copied


def test_one_line_sums_up(start_deployment: StartDeployment) -> None:
    cluster = connected("--url", start_deployment().url)
    agents = assess(scan(cluster, cluster.version))
    assert summary_line(agents) == "36 agents: 36 take text, 15 images"
    upgraded = [one for one in agents if not one.remedies]
    assert summary_line(upgraded) == "15 agents: 15 take text, 15 images"
    assert summary_line(upgraded[:1]) == "1 agent: 1 takes text, 1 takes images"


@pytest.mark.parametrize("width", [40, 60, 75, 76, 80, 120, 300])
def test_every_agent_is_shown_however_narrow_it_is(
    found: tuple[ClusterInfo, tuple[Assessment, ...]], width: int
) -> None:
    for verbose in (False, True):
        text = shown(found, width, verbose)
        lines = [line for line in text.splitlines() if "mlc-gateway upgrade" not in line]  # that can be copied
        assert max(map(len, lines)) <= width
        line = " ".join(text.split())
        for part in ("AGENT_UNRESOLVED", "flow-d does not take what is required: image", "Note: one thing."):
            assert part in line
        for name in ("flow-a", "flow-c", "flow-d", "flow-h"):
            assert any(line.startswith(name) for line in text.splitlines())


def test_a_terminal_without_unicode_gets_words(found: tuple[ClusterInfo, tuple[Assessment, ...]]) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(Console(file=out, width=80, highlight=False), *found)
    out.flush()
    table = out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    (row,) = (line for line in table.splitlines() if line.startswith("flow-c "))
    assert row.replace("|", " ").split() == ["flow-c", "yes", "no", "no", "no", "yes", "yes", "yes"]


def test_colours_only_where_they_are_wanted(
    found: tuple[ClusterInfo, tuple[Assessment, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[32m" in shown(found, 160, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in shown(found, 160, force_terminal=True)
    assert "\x1b[" not in shown(found, 80)


def test_what_a_document_says_is_not_taken_for_markup(deployment: Deployment) -> None:
    agent_id = deployment.register({"name": "[red]x[/nope]", "type": "flow", "tools": [{"type": "CatIndexTool"}]})
    cluster = connected("--url", deployment.url)
    info = ClusterInfo("c", "u", cluster.version, False)
    for width in (60, 200):
        assert "[red]x[/nope]" in shown((info, assess(scan(cluster, cluster.version, [agent_id]))), width)
