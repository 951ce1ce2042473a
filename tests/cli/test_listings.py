"""Every listing at 80 columns, on a terminal and to a pipe: whole, and the next command takes what it names."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway, build
from gateway.cli import run, tail
from gateway.cli.output import PlainConsole, show_rows
from gateway.config.inspector import SqliteExchanges
from gateway.inspector.har import write_har
from gateway.observe.logs import configure
from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks.sqlite import SqliteStore
from tests.conftest import settings_for
from tests.http_thread import Handler, HttpThread
from tests.memory.cli_place import Place
from tests.memory.conversations import assistant, key, turn, user
from tests.migrate.conftest import (
    Deployment,
    StartDeployment,
    _agents_assessed_once,
    _loop,
    _no_waiting,
    start_deployment,
)
from tests.migrate.test_cleanup import TAG, age, model
from tests.recording.records import get
from tests.terminal import GATEWAY, Terminal, show

__all__ = ["_agents_assessed_once", "_loop", "_no_waiting", "start_deployment"]
TOKEN = "a-token-of-the-admin-port"
AGENTS = [f"n{number}BcDeFgHiJkLmNoPqRs"[:20] for number in range(3)]


def piped(argv: Sequence[str]) -> tuple[int, str]:
    """Exit code and standard output of a command, whose output is no terminal."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = run(argv)
    out.flush()
    out.seek(0)
    return code, out.read()


def shown(argv: Sequence[str], code: int = 0) -> list[str]:
    """What a command prints at 80 columns, on a terminal and with --table to a pipe: the same, no line too long."""
    on_terminal, on_pipe = show([*GATEWAY, *argv]), piped([*argv, "--table"])
    assert (on_terminal[0], on_pipe[0]) == (code, code), on_terminal
    drawn = [line.rstrip() for line in on_terminal[1].splitlines() if not line.startswith(("reading ", "Nothing was"))]
    lines = [line.rstrip() for line in on_pipe[1].splitlines() if not line.startswith("Nothing was")]
    assert drawn[-len(lines) :] == lines
    assert max(map(len, lines)) <= 80
    as_json = piped([*argv, "--json"])[1]
    assert json.loads(as_json)
    assert "upgrade" in argv or as_json == piped(argv)[1]
    return lines


def test_agents(start_deployment: StartDeployment) -> None:
    deployment = start_deployment("3.4.0")
    agents = deployment.cluster.core.resources.agents
    for id_ in list(agents)[5:]:
        del agents[id_]
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


@pytest.mark.parametrize("version", ["2.19.0", pytest.param("3.4.0", marks=pytest.mark.slow)])
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


@pytest.mark.slow
def test_agents_upgrade_and_promote_take_the_connectors_that_upgrade_prints(start_deployment: StartDeployment) -> None:
    deployment = start_deployment("2.19.0")
    everything = ["--all", "--url", deployment.url]
    printed = [
        line.split()[0] for line in shown(["upgrade", *everything], code=1) if re.match("(connector|model)s/", line)
    ]
    found = {one["key"]: one for one in json.loads(piped(["upgrade", *everything, "--json"])[1])}
    assert sorted(printed) == sorted(found)
    for connector in printed:
        one, kind = found[connector], connector.partition("/")[0]
        for name in (connector, connector[: len(kind) + 11]):
            code, out = piped(["upgrade", "--url", deployment.url, "--json", "--", name])
            (again,) = [other for other in json.loads(out) if other["key"] == connector]
            assert (code in (0, 1), again) == (True, one)
            code, out = piped(["agents", "--url", deployment.url, "--", name])
            assert {agent["id"] for agent in json.loads(out)["agents"]} >= set(one["agents"]["named"])
    shared = next(
        name for name, one in found.items() if name.startswith("connectors/") and len(one["agents"]["named"]) > 1
    )
    ids = ", ".join(found[shared]["agents"]["named"])
    for argv, code, message in (
        (["promote", shared], 2, f"agents use {shared}: name one of them: {ids}"),
        (["upgrade", "connectors/nobody"], 2, "No model uses a connector nobody."),
        (["agents", "models/nobody"], 2, "There is no model nobody."),
        (["upgrade", "connectors/"], 2, "There is no agent connectors/: "),
    ):
        ended, text = show([*GATEWAY, *argv, "--url", deployment.url], 500)
        assert ended == code
        assert message in text


@pytest.mark.parametrize("options", [["--shared"], ["--shared", "--apply"]])
def test_an_upgrade_with_shared_does_not_ask_for_it(
    options: list[str], start_deployment: StartDeployment, tmp_path: Path
) -> None:
    deployment = start_deployment("2.19.0")
    found = json.loads(piped(["upgrade", "--all", "--url", deployment.url, "--json"])[1])
    agent = next(one["agents"]["named"][0] for one in found if one["offered"] and len(one["agents"]["named"]) > 1)
    command = ["upgrade", "--url", deployment.url, "--backup-dir", str(tmp_path), "--", agent]
    without = " ".join(piped(command)[1].split())
    assert "is also used by agents that you did not name" in without
    assert "To change it, add --shared." in without
    code, out = piped([*command[:1], *options, *command[1:]])
    assert code == 0
    assert "They change with it (--shared)." in " ".join(out.split())
    assert "add --shared" not in out


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
    lines = [line.plain for line in tail.lines_of(row(), 80)]
    assert max(map(len, lines)) <= 80
    assert f"POST …/agents/{AGENTS[0]}/_execute?async=true" in lines[0]
    text = " ".join(" ".join(lines).split())
    assert text.endswith(
        f"{AGENTS[0]} openai/v1/chat/completions splice 1200+345 tokens HISTORY_FLATTENED NEUTRAL_TEXT_ADDED "
        "DOCUMENT_AS_TEXT x"
    )
    (wide,) = [line.plain for line in tail.lines_of(row(), 500)]
    assert f"POST /_plugins/_ml/agents/{AGENTS[0]}/_execute?async=true  {AGENTS[0]}" in wide
    (copy,) = [line.plain for line in tail.lines_of(row(cluster="new", mirror_of="5f2a"), 500)]
    assert f"{AGENTS[0]}  new  openai/v1/chat/completions  splice  mirror of 5f2a  1200+345 tokens" in copy
    long = "/index/_doc/" + "é" * 100
    assert next(line.plain for line in tail.lines_of(row(target=long, agent="", codes=[]), 80)).endswith(long)


def test_replay(tmp_path: Path) -> None:
    records: list[ExchangeRecord] = [get(f"/an-index/_doc/{number}{'x' * 90}", id=f"{number}f") for number in range(3)]
    (tmp_path / "x.har").write_bytes(b"".join(write_har(records)))
    replay = ["replay", str(tmp_path / "x.har"), "--to", "http://127.0.0.1:9", "--dry-run"]
    on_terminal, on_pipe = show([*GATEWAY, *replay]), piped([*replay, "--table"])
    assert on_terminal == on_pipe
    assert on_terminal[1].splitlines() == [
        *(f"{record.id} GET {record.target}" for record in records),  # the terminal breaks the line
        "requests 3, would be sent 3, skipped 0, failed 0",
    ]
    assert [one["id"] for one in json.loads(piped(replay)[1])["requests"]] == ["0f", "1f", "2f"]
    assert [one["id"] for one in json.loads(piped([*replay, "2", "0f"])[1])["requests"]] == ["0f", "2f"]


def test_replay_shows_differences(tmp_path: Path) -> None:
    class Cluster(Handler):
        def do_GET(self) -> None:
            self.send(200, b'{"found": false, "_id": 2}')

    records = [
        get(f"/an-index/_doc/{number}{'x' * 90}", '{"found": true, "_id": 1}', id=f"{number}f") for number in (1, 2)
    ]
    (tmp_path / "x.har").write_bytes(b"".join(write_har(records)))
    with HttpThread(Cluster) as cluster:
        replay = ["replay", str(tmp_path / "x.har"), "--to", cluster.url, "--compare", "--ignore", "headers.*"]
        on_terminal, on_pipe = show([*GATEWAY, *replay]), piped([*replay, "--table"])
        for code, text in (on_terminal, on_pipe):
            lines = text.splitlines()
            start = next(number for number, line in enumerate(lines) if records[0].target in line)
            differences = ["  body.found: expected true, got false", "  body._id: expected 1, got 2"]
            assert lines[start : start + 6] == [
                line for record in records for line in (f"{record.id} GET {record.target}", *differences)
            ]  # fmt: skip
            assert code == 1
            assert max(len(line) for line in lines[start + 6 :]) <= 80


@dataclass
class Recording:
    """A gateway that records exchanges, and a file of its settings."""

    deployment: Deployment
    gateway: Gateway
    config: str

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.admin_port}"

    def ask(self, agent: str, value: Any) -> int:
        """Run an agent; return the status."""
        path, url = f"/_plugins/_ml/agents/{agent}/_execute", f"http://127.0.0.1:{self.gateway.data_port}"
        return self.deployment.post(path, {"input": value}, url)[0]

    def rows(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many exchanges are stored, and return them, the oldest first, as `tail --json` prints them."""
        url = f"{self.admin_url}/inspector/api/live?after=0"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = self.deployment._pool.request("GET", url, headers=headers, preload_content=False)
        rows: list[dict[str, Any]] = []
        for line in answer:
            data = line.decode().removeprefix("data: ")
            if line.startswith(b"data: ["):
                rows += json.loads(data)
            if len(rows) >= count:
                break
        answer.close()
        return rows


@pytest.fixture
def recording(
    start_deployment: StartDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Recording]:
    deployment = start_deployment("2.19.0")
    monkeypatch.setenv("MLC_ADMIN_TOKEN", TOKEN)
    (tmp_path / "token").write_text(TOKEN)
    settings = {
        "inspector": {"enabled": True, "sqlite": {"directory": str(tmp_path / "records")}},
        "listen": {"admin_token": {"file": str(tmp_path / "token")}},
    }
    config = tmp_path / "gateway.yaml"
    config.write_text(json.dumps(settings))
    gateway = build(settings_for(deployment.url, settings), log=configure("error", "json"))
    deployment.do(gateway.start())
    yield Recording(deployment, gateway, str(config))
    deployment._pool.clear()
    deployment.do(gateway.stop())


def test_tail_of_a_gateway_on_a_terminal_and_what_it_names(recording: Recording) -> None:
    """What `tail` prints at 80 columns is whole, and `tail`, `har export` and `replay` take it, or its beginning."""
    agents = recording.deployment.agents
    flow, other = agents["flow-a"], agents["flow-b"]
    beginning = next(flow[:n] for n in range(1, 20) if not other.startswith(flow[:n]))
    with Terminal([*GATEWAY, "tail", "--gateway", recording.admin_url, "--intent", "runs"]) as terminal:
        terminal.wait_for("until Ctrl-C:")
        assert recording.ask(flow, "What is the weather like in a town whose name is long?") == 200
        assert recording.ask(other, [{"type": "audio", "source": {}}]) == 400
        rows = recording.rows(2)
        terminal.wait_for(rows[1]["id"])
        assert terminal.stop() == 130
    lines = [line.rstrip() for line in terminal.text.splitlines()]
    assert max(map(len, lines)) <= 80
    for row in rows:
        (at,) = [number for number, line in enumerate(lines) if f"/agents/{row['agent_id']}/_execute" in line]
        entry = " ".join(lines[at : at + 3])
        assert all(part in entry for part in (str(row["status"]), row["agent"], row["id"], row["error"]))
    with Terminal([*GATEWAY, "tail", "--gateway", recording.admin_url, "--agent", beginning]) as terminal:
        terminal.wait_for("until Ctrl-C:")
        assert recording.ask(other, "Hello") == recording.ask(flow, "Hello") == 200
        rows = recording.rows(4)
        terminal.wait_for(rows[3]["id"])
        assert rows[2]["id"] not in terminal.text
        assert terminal.stop() == 130
    ids = [row["id"] for row in rows]
    export = ["har", "export", "-c", recording.config]
    for arguments, expected in (
        (["--agent", beginning], [ids[0], ids[3]]),
        (["--agent", rows[0]["agent"]], [ids[0], ids[3]]),
        ([ids[2][:15], ids[1]], [ids[1], ids[2]]),
    ):
        code, out = piped([*export, *arguments])
        assert (code, [entry["_mlc"]["id"] for entry in json.loads(out)["log"]["entries"]]) == (0, expected)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "Exchanges are shown with a token only: set MLC_ADMIN_TOKEN to the gateway's listen.admin_token."),
        ("another-token-of-some-port", "MLC_ADMIN_TOKEN does not hold the value of the gateway's listen.admin_token."),
    ],
)
def test_tail_asks_for_the_token(
    token: str, reason: str, recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLC_ADMIN_TOKEN", token)
    assert run(["tail", "--gateway", recording.admin_url]) == 2
    assert capsys.readouterr().err == f"mlc-gateway tail: {recording.admin_url}: {reason}\n"


def test_beginnings_of_exchanges_that_stand_for_none(recording: Recording, tmp_path: Path) -> None:
    store = SqliteStore(SqliteExchanges(str(tmp_path / "records")))
    now = time.time()  # a gateway that runs deletes older ones
    records = [get("/x", id="5f2a", agent_id="abc1", started=now), get("/y", id="5f3b", agent_id="abc2", started=now)]
    store.add(records)
    store.close()
    (tmp_path / "x.har").write_bytes(b"".join(write_har(records)))
    export, replay = ["har", "export", "-c", recording.config], ["replay", str(tmp_path / "x.har"), "--to", "http://x"]
    for argv, message in (
        ([*export, "5f"], "har export: several ids begin with 5f: 5f2a, 5f3b; give more of one"),
        ([*export, "6"], "har export: there is no exchange whose id is 6, or begins so"),
        ([*export, "--agent", "abc"], "har export: --agent: several ids begin with abc: abc1, abc2; give more of one"),
        ([*replay, "5f"], f"replay: {tmp_path}/x.har: several ids begin with 5f: 5f2a, 5f3b; give more of one"),
        ([*replay, "6"], f"replay: {tmp_path}/x.har: no exchange has an id that is 6, or begins so"),
    ):
        assert show([*GATEWAY, *argv], 500) == (2, f"mlc-gateway {message}\n")
    code, text = show([*GATEWAY, "tail", "--gateway", recording.admin_url, "--agent", "abc"], 500)
    assert code == 2
    assert text.endswith(f"{recording.admin_url}: --agent: several ids begin with abc: abc1, abc2; give more of one\n")
    assert show([*GATEWAY, *export, "5f2a", "--agent", "x"])[1].endswith("Error: Give either exchanges or filters.\n")


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
