from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from gateway.agents.rules import Rule
from gateway.config.schema import Agents
from gateway.migrate.assess import Assessment, assess
from gateway.migrate.proof import KINDS
from gateway.migrate.report import ClusterInfo, as_json, missing, show, summary_line
from gateway.migrate.scan import scan
from gateway.routing.table import read_routes
from tests.migrate.conftest import Deployment, StartDeployment
from tests.migrate.observed import upgrade_command
from tests.migrate.test_connection import connected


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
    report = json.loads(json.dumps(as_json(*found, ("text", "image"))))
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
    assert as_json(*found)["summary"]["required"] == {"kinds": [], "met": True, "missing": []}


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
