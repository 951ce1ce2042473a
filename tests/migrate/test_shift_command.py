"""The command `shift` with gateways that run: comparison, steps there and back, refusals, and SIGKILL at any point."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli.shift import own_address
from gateway.config.schema import Listen
from gateway.migrate.settings_file import locked
from gateway.migrate.shift_history import History
from tests.conftest import share
from tests.migrate.conftest import Command, StartDeployment
from tests.migrate.gateway_thread import GatewayThread
from tests.migrate.stub_server import StubServer

TEXT = """\
upstream: {url: http://127.0.0.1:1}   # the old one
clusters: {new: {url: http://127.0.0.1:2}}
agents:
  routes:
    # The assistant.
    - agent: OLD
      targets:
        - {agent: OLD, weight: 100}
        - {agent: NEW, cluster: new, weight: 0}   # since June
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a settings file with a route; no gateway is named by the environment."""
    monkeypatch.delenv("MLC_GATEWAYS", raising=False)
    monkeypatch.delenv("MLC_ADMIN_TOKEN", raising=False)
    path = tmp_path / "gateway.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def gateway(path: Path) -> Iterator[GatewayThread]:
    """Start a gateway with these settings."""
    with GatewayThread(path) as gateway:
        yield gateway


def _weights(path: Path) -> tuple[str, ...]:
    """Return the two weights, as the file has them, and check that nothing else has changed."""
    found = []
    for line, old in zip(path.read_text().splitlines(), TEXT.splitlines(), strict=True):
        if "weight: " in line:
            found.append(line.partition("weight: ")[2].partition("}")[0])
            old = old.replace("weight: 100", f"weight: {found[-1]}").replace("weight: 0", f"weight: {found[-1]}")
        assert line == old
    return tuple(found)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_share_is_changed_in_the_file_and_in_the_gateways(
    path: Path, gateway: GatewayThread, command: Command
) -> None:
    """The comments stay, and the file as it was is kept."""
    arguments = ("shift", "-c", str(path), "--gateway", gateway.url, "OLD")
    status, out, err = command(*arguments, "--to", "NEW", "--percent", "5")
    assert (status, err, _weights(path)) == (0, "", ("95", "5"))
    [backup] = path.parent.glob("gateway.yaml.before-*")
    assert backup.read_text() == TEXT
    assert out.splitlines() == [
        "Route of OLD:",
        "  OLD on upstream: 100 % → 95 %",
        "  NEW on new: 0 % → 5 %",
        f"gateway {gateway.url}: runs with it",
        f"The file as it was: {backup}",
    ]
    assert gateway.reloads.running == _digest(path)
    [route] = gateway.gateway.settings.agents.routes
    assert [target.weight for target in route.targets] == [95, 5]

    status, out, _ = command(*arguments, "--to", "NEW", "--percent", "5", "--json")
    report = json.loads(out)
    assert (status, report["changed"], report["done"], report["diff"]) == (0, False, True, "")
    assert report["gateways"] == [{"gateway": gateway.url, "status": "runs", "problems": []}]


def test_a_dry_run_changes_nothing(path: Path, command: Command) -> None:
    """It needs no gateway."""
    arguments = ("shift", "-c", str(path), "OLD", "--to", "NEW", "--percent", "12.5", "--dry-run")
    status, out, err = command(*arguments)
    assert (status, err) == (0, "")
    assert [line for line in out.splitlines() if line[0] in "+-" and line[1:2] == " "] == [
        "-        - {agent: OLD, weight: 100}",
        "-        - {agent: NEW, cluster: new, weight: 0}   # since June",
        "+        - {agent: OLD, weight: 87.5}",
        "+        - {agent: NEW, cluster: new, weight: 12.5}   # since June",
    ]
    assert list(path.parent.iterdir()) == [path]
    assert path.read_text() == TEXT


def test_steps_lead_back_one_by_one(path: Path, gateway: GatewayThread, command: Command) -> None:
    """To the weights before each; the history shows the way."""
    arguments = ("shift", "-c", str(path), "--gateway", gateway.url, "OLD")
    for percent in ("5", "50%", "100 %"):
        assert command(*arguments, "--to", "NEW", "--percent", percent)[0] == 0
    assert _weights(path) == ("0", "100")
    for expected in (("50", "50"), ("95", "5"), ("100", "0")):
        assert command(*arguments, "--back")[0] == 0
        assert _weights(path) == expected
        assert gateway.reloads.running == _digest(path)
    status, _, err = command(*arguments, "--back")
    assert (status, "has no step before" in err) == (2, True)
    report = json.loads(command(*arguments, "--history", "--json")[1])
    assert [(step["kind"], step["after"]["NEW"], step["done"]) for step in report["steps"]] == [
        ("to", 5, True), ("to", 50, True), ("to", 100, True), ("back", 50, True), ("back", 5, True), ("back", 0, True),
    ]  # fmt: skip
    status, out, _ = command(*arguments, "--history")
    assert (status, out.count("--to"), out.count("--back")) == (0, 3, 3)
    assert [line.split("  ")[-1].strip() for line in map(str.rstrip, out.splitlines()[2:4])] == [
        "OLD on upstream: 100 % → 95 %",
        "NEW on new: 0 % → 5 %",
    ]


def test_an_edit_by_hand_is_a_step(path: Path, gateway: GatewayThread, command: Command) -> None:
    """`--back` leads to the weights before it."""
    arguments = ("shift", "-c", str(path), "--gateway", gateway.url, "OLD")
    assert command(*arguments, "--to", "NEW", "--percent", "5")[0] == 0
    path.write_text(path.read_text().replace("weight: 95", "weight: 1").replace("weight: 5", "weight: 1"))
    assert "runs with other weights than the settings file" in command(*arguments)[1]
    assert command(*arguments, "--back")[0] == 0
    assert _weights(path) == ("95", "5")
    assert command(*arguments, "--back")[0] == 0
    assert _weights(path) == ("100", "0")


def test_targets_are_compared_since_the_last_change(path: Path, command: Command) -> None:
    """Of both gateways together, at 80 columns."""
    with GatewayThread(path) as one, GatewayThread(path) as two:
        arguments = ("shift", "-c", str(path), "--gateway", one.url, "--gateway", two.url, "OLD")
        one.count("OLD", answered=1000)
        two.count("NEW", "new", failed=7)
        assert command(*arguments, "--to", "NEW", "--percent", "5")[0] == 0
        one.count("OLD", answered=150, failed=1)
        one.count("NEW", "new", answered=6, refused=2)
        two.count("NEW", "new", answered=3, failed=1)
        status, out, err = command(*arguments)
        report = json.loads(command(*arguments, "--json")[1])
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines()[1:])) <= 80
    rows = {line[:11].strip(): line[11:].split("  ") for line in out.splitlines()[3:]}
    cells = {name: [cell.strip() for cell in row if cell.strip()] for name, row in rows.items()}
    assert cells["share"] == ["95 %", "5 %"]
    assert cells["runs"] == ["151", "10"]
    assert cells["errors"] == ["1 (0.662 %)", "1 (10 %)"]
    assert cells["tokens in"] == ["1,500", "90"]
    assert cells["cost"] == ["75.0000 USD", "4.5000 USD"]
    assert cells["refusals"] == ["0", "2"]
    assert [one["in_effect"] for one in report["gateways"]] == [True, True]
    old, new = report["targets"]
    assert (new["agent"], new["cluster"], new["share"], new["runs"], new["errors"], new["error_ratio"]) == (
        "NEW", "new", 0.05, 10, 1, 0.1,
    )  # fmt: skip
    assert (new["refusals"], new["input_tokens"], new["output_tokens"], new["cost"]) == (2, 90, 27, {"USD": 4.5})
    assert 1 < new["p50"] < new["p95"] <= 2.5
    assert (old["runs"], report["since"] is not None, report["met"]) == (151, True, None)


JUDGED: list[tuple[int, int, tuple[str, ...], int]] = [
    (98, 2, ("0.02",), 0),
    (97, 3, ("0.02",), 1),
    (2, 1, ("0.02",), 3),
    (2, 1, ("0.02", "--min-runs", "3"), 1),
    (0, 0, ("1",), 3),
]


@pytest.mark.parametrize(("answered", "failed", "options", "expected"), JUDGED)
def test_a_script_learns_by_the_exit_code_whether_to_go_on(
    answered: int, failed: int, options: tuple[str, ...], expected: int, path: Path, command: Command
) -> None:
    """Errors of the agent that clients name do not count, and nothing is judged on 3 runs."""
    path.write_text(TEXT.replace("weight: 0", "weight: 5"))
    with GatewayThread(path) as gateway:
        gateway.count("OLD", failed=100)
        gateway.count("NEW", "new", answered=answered, failed=failed)
        arguments = ("shift", "-c", str(path), "--gateway", gateway.url, "OLD", "--max-error-ratio", *options)
        assert command(*arguments)[0] == expected
        assert json.loads(command(*arguments, "--json")[1])["met"] == {0: True, 1: False, 3: None}[expected]


def test_one_run_is_not_several(path: Path, command: Command) -> None:
    path.write_text(TEXT.replace("weight: 0", "weight: 5"))
    with GatewayThread(path) as gateway:
        arguments = ("shift", "-c", str(path), "--gateway", gateway.url, "OLD", "--max-error-ratio", "1")
        _, out, _ = command(*arguments, "--min-runs", "1")
    assert out.splitlines()[-1] == "Not judged, as there were fewer than 1 run: NEW (0)."


def test_nothing_is_judged_where_nobody_tries_the_new_target(
    path: Path, gateway: GatewayThread, command: Command
) -> None:
    """A script must not take that for a good result."""
    status, out, _ = command("shift", "-c", str(path), "--gateway", gateway.url, "OLD", "--max-error-ratio", "0.1")
    assert (status, out.splitlines()[-1]) == (3, "Nothing to judge: no target but OLD gets new conversations.")


def test_a_refused_change_is_taken_back_everywhere(path: Path, command: Command) -> None:
    """One gateway takes the new settings, one refuses: all go on with the old ones."""
    secret = path.parent / "secret"
    secret.write_text("s3cr3t of the traces\n")
    overrides = {"telemetry": {"traces": {"secret": {"file": str(secret)}}}}
    with GatewayThread(path) as one, GatewayThread(path, overrides) as two:
        secret.unlink()
        arguments = ("shift", "-c", str(path), "--gateway", one.url, "--gateway", two.url, "OLD")
        status, out, _ = command(*arguments, "--to", "NEW", "--percent", "5")
        assert (status, path.read_text()) == (3, TEXT)
        assert "refused, and everything is as it was before" in out
        assert f"gateway {two.url}: refused the settings: telemetry.traces.secret: the file {secret}" in out
        assert [one.reloads.running, two.reloads.running] == [_digest(path)] * 2
    assert History.read(path).steps == []
    assert not list(path.parent.glob("*.before-*"))


def test_a_gateway_that_is_not_there_stops_the_change_before_it_begins(
    path: Path, gateway: GatewayThread, command: Command
) -> None:
    """Its figures could not be compared afterwards."""
    arguments = ("--gateway", gateway.url, "--gateway", "http://127.0.0.1:1", "OLD", "--to", "NEW", "--percent", "5")
    status, _, err = command("shift", "-c", str(path), *arguments)
    assert (status, "gateway http://127.0.0.1:1 can't be reached" in err) == (2, True)
    assert list(path.parent.iterdir()) == [path]


def test_a_gateway_whose_file_is_another_one_is_waited_for(
    path: Path, gateway: GatewayThread, command: Command
) -> None:
    """Until the time is over. Run again, the command finishes."""
    copy = path.parent / "other" / "gateway.yaml"
    copy.parent.mkdir()
    copy.write_text(TEXT)
    with GatewayThread(copy) as other:
        arguments = ("shift", "-c", str(path), "--gateway", gateway.url, "--gateway", other.url, "OLD")
        change = ("--to", "NEW", "--percent", "5")
        status, out, _ = command(*arguments, *change, "--wait", "0")
        assert status == 4
        assert f"gateway {other.url}: its settings file is another one, or has not arrived there yet" in out
        assert _weights(path) == ("95", "5")
        copy.write_text(path.read_text())
        status, out, _ = command(*arguments, *change)
        assert (status, "the settings file has these shares already" in out) == (0, True)
        assert other.reloads.running == _digest(path)
    [step] = History.read(path).steps
    assert step.done


def test_a_gateway_that_can_not_reload_over_http_is_named(path: Path, command: Command) -> None:
    """An older one."""
    with StubServer((404, {})) as old:
        old.answers["/metrics"] = (200, b"")
        arguments = ("shift", "-c", str(path), "--gateway", old.url, "OLD", "--to", "NEW", "--percent", "5")
        status, out, _ = command(*arguments)
    assert (status, "it can't reload over its admin port: send it SIGHUP" in out) == (4, True)


def test_the_token_comes_from_the_settings_or_the_environment(
    path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the message says how to give it."""
    path.write_text("listen: {admin_token: {env: TOKEN_OF_THE_PORT}}\n" + TEXT)
    monkeypatch.setenv("TOKEN_OF_THE_PORT", "a token of the admin port")
    with GatewayThread(path) as gateway:
        arguments = ("shift", "-c", str(path), "--gateway", gateway.url, "OLD")
        assert command(*arguments)[0] == 0
        monkeypatch.delenv("TOKEN_OF_THE_PORT")
        status, _, err = command(*arguments)
        assert status == 2
        assert "answers 401: set MLC_ADMIN_TOKEN to the value of its listen.admin_token" in err
        monkeypatch.setenv("MLC_ADMIN_TOKEN", "a token of the admin port")
        assert command(*arguments)[0] == 0


def test_two_commands_do_not_change_a_file_at_a_time(path: Path, command: Command) -> None:
    """The second one says so."""
    with locked(path):
        status, _, err = command("shift", "-c", str(path), "OLD", "--to", "NEW", "--percent", "5")
    assert (status, "another command changes a settings file" in err) == (2, True)
    assert path.read_text() == TEXT


WRONG = [
    ("OLD", "--to", "NEW"),
    ("OLD", "--percent", "5"),
    ("OLD", "--to", "NEW", "--percent", "5", "--back"),
    ("OLD", "--back", "--history"),
    ("OLD", "--dry-run"),
    ("OLD", "--back", "--max-error-ratio", "0.1"),
    ("OLD", "--to", "NONE", "--percent", "5"),
    ("NEW",),
    ("--to", "NEW", "--percent", "5"),
    ("--history",),
]


@pytest.mark.parametrize("arguments", WRONG)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], path: Path, command: Command) -> None:
    """Nothing is changed."""
    status, out, err = command("shift", "-c", str(path), *arguments)
    assert (status, out, bool(err)) == (2, "", True)
    assert path.read_text() == TEXT


def test_a_route_is_named_by_the_name_of_its_agent(
    path: Path, start_deployment: StartDeployment, command: Command
) -> None:
    """As `upstream` shows it. The target is the only one on its cluster."""
    old = start_deployment()
    agent = old.agents["cflow-b"]
    path.write_text(TEXT.replace("OLD", agent).replace("http://127.0.0.1:1}", f"{old.url}}}"))
    arguments = ("shift", "-c", str(path), "cflow-b", "--to", "new", "--percent", "5", "--dry-run")
    status, out, err = command(*arguments)
    assert (status, err, f"+        - {{agent: {agent}, weight: 95}}" in out) == (0, "", True)
    assert [line.split()[:3] for line in command("shift", "-c", str(path))[1].splitlines()[2:]] == [
        ["cflow-b", agent, agent],
        ["cflow-b", agent, "NEW"],
    ]
    status, _, err = command("shift", "-c", str(path), "flow-b", "--history")
    assert (status, f"has no route of {old.agents['flow-b']}, only of {agent}" in err) == (2, True)
    status, _, err = command("shift", "-c", str(path), "nobody", "--history")
    assert (status, f"has no route of nobody, only of {agent}" in err) == (2, True)


def test_all_routes_are_listed(path: Path, command: Command) -> None:
    """Without a gateway."""
    status, out, err = command("shift", "-c", str(path))
    assert (status, err) == (0, "")
    assert [line.split() for line in out.splitlines() if "─" not in line] == [
        ["route", "target", "on", "share"],
        ["OLD", "OLD", "upstream", "100", "%"],
        ["OLD", "NEW", "new", "0", "%"],
    ]
    assert json.loads(command("shift", "-c", str(path), "--json")[1])["targets"][1] == {
        "route": "OLD", "agent": "NEW", "cluster": "new", "share": 0,
    }  # fmt: skip
    path.write_text("upstream: {url: http://127.0.0.1:1}\n")
    assert "have no route: `mlc-gateway move` adds one" in command("shift", "-c", str(path))[1]


def test_a_name_can_not_be_looked_up_without_the_cluster(path: Path, command: Command) -> None:
    status, _, err = command("shift", "-c", str(path), "cflow-b", "--history")
    assert (status, "only of OLD; the cluster can't be asked for an agent of this name:" in err) == (2, True)


def test_all_runs_with_errors_are_100_percent(path: Path, gateway: GatewayThread, command: Command) -> None:
    gateway.count("NEW", "new", failed=3)
    assert "3 (100 %)" in command("shift", "-c", str(path), "--gateway", gateway.url, "OLD")[1]


def test_a_toml_file_can_be_looked_at_but_not_changed(path: Path, command: Command) -> None:
    """The message says what to do."""
    toml = path.with_suffix(".toml")
    toml.write_text('[[agents.routes]]\nagent = "OLD"\ntargets = [{agent = "OLD", weight = 1}]\n')
    with GatewayThread(toml) as gateway:
        arguments = ("shift", "-c", str(toml), "--gateway", gateway.url, "OLD")
        assert command(*arguments)[0] == 0
        status, _, err = command(*arguments, "--to", "OLD", "--percent", "100")
    assert (status, "or change agents.routes by hand and reload the gateways" in err) == (2, True)


ADDRESSES = [
    (Listen(), "http://127.0.0.1:9602"),
    (Listen(admin_host="0.0.0.0", admin_port=1), "http://127.0.0.1:1"),
    (Listen(admin_host="::", admin_port=1), "http://127.0.0.1:1"),
    (Listen(admin_host="::1", admin_port=1), "http://[::1]:1"),
    (Listen(admin_host="gateway.example", admin_port=1), "http://gateway.example:1"),
]


@pytest.mark.parametrize(("listen", "url"), ADDRESSES)
def test_the_settings_name_the_gateway_by_default(listen: Listen, url: str) -> None:
    """At an address that this machine can use."""
    assert own_address(listen) == (
        url if listen.admin_port != Listen().admin_port else f"http://127.0.0.1:{listen.admin_port}"
    )


# SIGKILL

_KILLED = """
import os, signal, sys
import gateway.cli.shift
from gateway.cli import run
at, events = int(sys.argv[1]), 0
def count(event, arguments):
    global events
    if event.split(".")[0] in ("open", "os", "socket", "fcntl", "shutil", "tempfile", "pathlib"):
        events += 1
        if events == at:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
status = run(sys.argv[2:])
print(events, file=sys.stderr)
sys.exit(status)
"""
"""Runs a command, and kills itself at the event `at` of those that Python reports: files, sockets, locks."""


SHIFTED = TEXT.replace("weight: 100", "weight: 95").replace("weight: 0", "weight: 5")
KINDS = [
    (("--to", "NEW", "--percent", "5"), TEXT, SHIFTED, ["to"]),
    (("--back",), SHIFTED, TEXT, ["to", "back"]),
]


def _run_killed(at: int, *arguments: str) -> tuple[int, str]:
    run = subprocess.run(
        [sys.executable, "-c", _KILLED, str(at), *arguments], capture_output=True, text=True, check=False
    )
    return run.returncode, run.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("change", "old", "new", "kinds"), KINDS, ids=["to", "back"])
def test_a_command_that_is_killed_leaves_the_old_or_the_new_file_and_run_again_finishes(
    change: tuple[str, ...],
    old: str,
    new: str,
    kinds: list[str],
    path: Path,
    gateway: GatewayThread,
    command: Command,
) -> None:
    """At 20 random points each, between any two things that it does with files and connections."""
    arguments = ("shift", "-c", str(path), "--gateway", gateway.url, "OLD")

    def begin() -> None:
        for file in path.parent.glob("*.*"):
            file.unlink()
        path.write_text(TEXT)
        assert gateway.do(gateway.reloads.run()) == []
        if old != TEXT:
            assert command(*arguments, *KINDS[0][0])[0] == 0
        assert path.read_text() == old

    begin()
    status, count = _run_killed(0, *arguments, *change)
    assert status == 0
    chance = random.Random(str(change))
    for _ in range(share(20)):
        begin()
        at = chance.randrange(1, int(count) + 1)
        assert _run_killed(at, *arguments, *change)[0] == -signal.SIGKILL
        assert path.read_text() in (old, new), at
        steps = History.read(path).steps
        is_done = [step.kind for step in steps if step.done] == kinds
        if not is_done:
            status, out, _ = command(*arguments, *change)
            assert status == 0, (at, out)
        assert path.read_text() == new, at
        assert gateway.reloads.running == _digest(path), at
        assert [(step.kind, step.done) for step in History.read(path).steps] == [(kind, True) for kind in kinds], at
        assert {file.name for file in path.parent.glob(".*")} <= {f".{path.name}.old"}, at
