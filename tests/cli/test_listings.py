"""Every listing at 80 columns, on a terminal and to a pipe: whole, and the next command takes what it names."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import run, tail
from gateway.cli.listing import show_rows
from gateway.cli.output import PlainConsole
from gateway.inspector.har import write_har
from gateway.observe.record import ExchangeRecord
from tests.memory.cli_place import Place
from tests.memory.conversations import assistant, key, turn, user
from tests.migrate.conftest import StartDeployment, _loop, start_deployment
from tests.migrate.test_cleanup import TAG, age, model
from tests.recording.records import get
from tests.terminal import GATEWAY, show

__all__ = ["_loop", "start_deployment"]
AGENTS = [f"n{number}BcDeFgHiJkLmNoPqRs"[:20] for number in range(3)]


def piped(argv: Sequence[str]) -> tuple[int, str]:
    """Exit code and standard output of a command, whose output is no terminal."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        return run(argv), out.getvalue()


def shown(argv: Sequence[str], code: int = 0) -> list[str]:
    """What a command prints at 80 columns, on a terminal and with --table to a pipe: the same, no line too long."""
    on_terminal, on_pipe = show([*GATEWAY, *argv]), piped([*argv, "--table"])
    assert (on_terminal[0], on_pipe[0]) == (code, code), on_terminal
    drawn = [line.rstrip() for line in on_terminal[1].splitlines() if not line.startswith(("reading ", "Nothing was"))]
    lines = [line.rstrip() for line in on_pipe[1].splitlines() if not line.startswith("Nothing was")]
    assert drawn[-len(lines) :] == lines
    assert max(map(len, lines)) <= 80
    assert "upgrade" in argv or piped([*argv, "--json"])[1] == piped(argv)[1]
    assert json.loads(piped([*argv, "--json"])[1])
    return lines


def test_agents(start_deployment: StartDeployment) -> None:
    deployment = start_deployment("3.4.0")
    long = "a-name-that-is-as-long-as-only-those-that-programs-make-up-" + "x" * 30
    agent = {"type": "flow", "tools": [{"type": "CatIndexTool"}]}
    twins = [deployment.register({"name": "twin", **agent}) for _ in range(2)]
    other = deployment.register({"name": long, **agent})
    lines = shown(["agents", "--url", deployment.url])
    (edge,) = [line.index(" text ") for line in lines if line.startswith("agent ")]
    cells = "".join(line[:edge].rstrip() for line in lines)
    assert long in cells
    for id_ in twins:
        assert id_ in cells
        beginning = next(id_[:n] for n in range(4, 20) if sum(one.startswith(id_[:n]) for one in (*twins, other)) == 1)
        for named in (id_, beginning) if id_ == twins[0] else ():
            code, out = piped(["agents", "--url", deployment.url, named])
            assert (code, [one["id"] for one in json.loads(out)["agents"]]) == (0, [id_])
            assert piped(["upgrade", "--url", deployment.url, "--", named])[0] in (0, 1)
    code, out = piped(["agents", "--url", deployment.url, "twin"])
    assert "2 agents have this name" in json.loads(out)["agents"][0]["reason"]


def test_an_ambiguous_beginning_is_refused_with_what_it_may_mean(start_deployment: StartDeployment) -> None:
    deployment = start_deployment()
    resources = deployment.cluster.core.resources
    document = resources.agents[deployment.agents["flow-a"]]
    resources.agents |= {"same-1": document, "same-2": document, "sam": document}
    code, text = show([*GATEWAY, "upgrade", "--url", deployment.url, "same"], 500)
    assert (code, text.strip()) == (
        2,
        "mlc-gateway upgrade: 2 agents' ids begin with same: give more of one: same-1, same-2",
    )
    code, out = piped(["agents", "--url", deployment.url, "same"])
    assert (code, json.loads(out)["agents"][0]["reason"]) == (3, "2 agents have an id that begins so: same-1, same-2")
    assert json.loads(piped(["agents", "--url", deployment.url, "sam"])[1])["agents"][0]["id"] == "sam"


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
def test_agents_and_upgrade_count_the_same_connectors(version: str, start_deployment: StartDeployment) -> None:
    deployment = start_deployment(version)
    of_upgrade = shown(["upgrade", "--all", "--url", deployment.url], code=int(version == "2.19.0"))
    of_agents = shown(["agents", "--url", deployment.url])
    (line,) = [line for line in of_agents if " connectors can be upgraded: " in line]
    assert line in of_upgrade
    report = json.loads(piped(["agents", "--url", deployment.url])[1])["summary"]["upgrades"]
    found = json.loads(piped(["upgrade", "--all", "--url", deployment.url, "--json"])[1])
    assert report["connectors"] == len(found)
    assert report["upgradable"] == sum(one["offered"] for one in found) == int(line.split()[0])
    for one in found:
        assert any(row.startswith(one["key"] + " ") for row in of_upgrade)
    names = ["flow-a", "flow-b"] if version == "2.19.0" else ["flow-bedrock_tutorial"]
    few, chosen = (piped([command, *names, "--url", deployment.url, "--table"])[1] for command in ("agents", "upgrade"))
    assert chosen.splitlines()[0] in few.splitlines()


def test_cleanup(start_deployment: StartDeployment) -> None:
    deployment = start_deployment()
    ids = [model(deployment, f"mlc-gateway {TAG}", name="a name that fills a line, " * 3) for _ in range(2)]
    age(deployment)
    lines = shown(["cleanup", "--url", deployment.url])
    for id_ in ids:
        assert any(re.search(rf"\bmodel +{id_}\b", line) for line in lines)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    for number, agent in enumerate(AGENTS):
        for session in ("0123456789abcdef01234567", "0123456789abcdef89abcdef"):
            owner = {} if number == 0 else {"tenant": "a-tenant", "caller": f"{number}f" * 16}
            name = f"{agent}-{session}" if number < 2 else session
            place.append(key(name, agent, **owner), turn(user("Hello"), assistant("Hi")))
    return place


def test_memory_list(place: Place) -> None:
    config = ["-c", str(place.config)]
    one_owner = shown(["memory", "list", *config, "--agent", AGENTS[0]])
    assert one_owner[0].split() == ["session", "turns", "updated", "(UTC)"]
    everything = shown(["memory", "list", *config])
    for number, agent in enumerate(AGENTS):
        lines = shown(["memory", "list", *config, "--agent", agent])
        ids = [word for line in lines for word in line.split() if word.startswith("gws-")]
        assert len(ids) == 2
        assert all(any(line.split()[:1] == [id_] for line in everything) for id_ in ids)
        text = " ".join(everything)
        assert f"caller {str(number) + 'f'} " not in text
        assert number == 0 or f"caller {f'{number}f' * 16}" in text
        for id_ in ids:
            code, out = piped(["memory", "show", *config, id_])
            assert (code, json.loads(out)["id"]) == (0, id_)
            code, out = piped(["memory", "show", *config, id_[:-7]])
            assert (code, json.loads(out)["id"]) == (0, id_)


def test_beginnings_of_sessions_agents_and_callers(place: Place) -> None:
    config = ["-c", str(place.config)]
    (pinned,) = [f"gws-{AGENTS[0]}-0123456789abcdef8"]
    assert piped(["memory", "pin", *config, pinned]) == (0, f"gws-{AGENTS[0]}-0123456789abcdef89abcdef: pinned\n")
    code, text = show([*GATEWAY, "memory", "show", *config, f"gws-{AGENTS[0]}"], 500)
    assert (code, text.strip()) == (
        1,
        f"mlc-gateway memory show: 2 sessions begin with gws-{AGENTS[0]}; give more of the id of one: "
        f"gws-{AGENTS[0]}-0123456789abcdef01234567, gws-{AGENTS[0]}-0123456789abcdef89abcdef.",
    )
    code, out = piped(["memory", "list", *config, "--agent", AGENTS[1][:2]])
    assert {one["agent_id"] for one in json.loads(out)["sessions"]} == {AGENTS[1]}
    code, out = piped(["memory", "list", *config, "--caller", "2f2f"])
    assert {one["agent_id"] for one in json.loads(out)["sessions"]} == {AGENTS[2]}
    code, text = show([*GATEWAY, "memory", "list", *config, "--agent", "n"], 500)
    assert (code, text.strip()) == (1, f"mlc-gateway memory list: 3 agents begin with n: {', '.join(AGENTS)}.")
    assert json.loads(piped(["memory", "list", *config, "--agent", "nobody"])[1])["sessions"] == []


def row(**changes: Any) -> dict[str, Any]:
    found = {
        "id": "x", "started": 0.0, "seconds": 1.5, "method": "POST", "status": 200,
        "target": f"/_plugins/_ml/agents/{AGENTS[0]}/_execute?async=true", "agent": AGENTS[0],
        "provider": "openai/v1/chat/completions", "strategy": "splice", "error": "", "input_tokens": 1200,
        "output_tokens": 345, "codes": ["HISTORY_FLATTENED", "NEUTRAL_TEXT_ADDED", "DOCUMENT_AS_TEXT"],
    }  # fmt: skip
    return {**found, **changes}


def test_tail_at_80_columns_and_wider() -> None:
    lines = [line.plain for line in tail._lines(row(), 80)]
    assert max(map(len, lines)) <= 80
    assert f"POST …/agents/{AGENTS[0]}/_execute?async=true" in lines[0]
    text = " ".join(" ".join(lines).split())
    assert text.endswith(
        f"{AGENTS[0]} openai/v1/chat/completions splice 1200+345 tokens HISTORY_FLATTENED NEUTRAL_TEXT_ADDED "
        "DOCUMENT_AS_TEXT"
    )
    (wide,) = [line.plain for line in tail._lines(row(), 500)]
    assert f"POST /_plugins/_ml/agents/{AGENTS[0]}/_execute?async=true  {AGENTS[0]}" in wide
    long = "/index/_doc/" + "é" * 100
    assert next(line.plain for line in tail._lines(row(target=long, agent="", codes=[]), 80)).endswith(long)


def test_replay(tmp_path: Path) -> None:
    records: list[ExchangeRecord] = [get(f"/an-index/_doc/{number}{'x' * 90}", id=str(number)) for number in range(2)]
    (tmp_path / "x.har").write_bytes(b"".join(write_har(records)))
    lines = [
        line.rstrip()
        for line in piped(["replay", str(tmp_path / "x.har"), "--to", "http://127.0.0.1:9", "--dry-run", "--table"])[
            1
        ].splitlines()
    ]
    text = "".join(lines)
    assert all(record.target in text for record in records)
    assert json.loads(piped(["replay", str(tmp_path / "x.har"), "--to", "http://127.0.0.1:9", "--dry-run"])[1])


def test_rows_become_blocks_where_a_table_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("first", "a", "b" * 30, ""), ("second", "", "c", "")]
    show_rows(PlainConsole(width=50), ("id", "kind", "about", "empty"), rows)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "id      kind  about",
        "─" * 44,
        "first   a     " + "b" * 30,
        "second        c",
    ]
    show_rows(PlainConsole(width=40), ("id", "kind", "about", "empty"), rows)
    assert capsys.readouterr().out.splitlines() == [
        "first", "  kind a", "  about " + "b" * 30, "second", "  about c",
    ]  # fmt: skip


def test_the_last_of_json_and_table_counts(place: Place) -> None:
    config = ["-c", str(place.config)]
    for options, is_json in ((["--json", "--table"], False), (["--table", "--json"], True), ([], True)):
        out = piped(["memory", "list", *config, *options])[1]
        assert out.startswith("{") == is_json
