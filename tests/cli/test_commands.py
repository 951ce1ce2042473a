from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gateway import __version__
from gateway.cli import SUMMARIES, TASKS, run
from gateway.cli.command import EXIT_CODES, expand
from gateway.cli.serve import overrides
from gateway.config.schema import Settings
from gateway.config.variables import READ
from tests.wire import RecordingUpstream, send_request


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("GATEWAY__"):
            monkeypatch.delenv(name)


HELP = """\
Usage: mlc-gateway [OPTIONS] COMMAND [ARGS]...

  Let OpenSearch ML Commons agents of any version accept the unified `input`.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Run the gateway:
  serve         Run the gateway in front of a cluster.
  mcp           Serve agents as tools of MCP on standard input and output.
  check-config  Check the settings and print the ones in effect.
  demo          Show what reaches the LLMs of simulated clusters.

Let agents accept more:
  agents        List what each agent of a cluster accepts.
  upgrade       Change connectors so that agents accept more.
  rollback      Undo upgrades from their backup files.
  rehearse      Show what another agent's LLM would have been sent.
  move          Copy agents to another cluster.
  shift         Compare the targets of a route, and change their shares.
  promote       Register a legacy agent as a unified one.
  cleanup       Remove what unfinished registrations left behind.

See what it does:
  tail          Print the exchanges of a running gateway.
  rewrite       Print what the gateway would send for a request.
  har           Recorded exchanges as HAR files, and back.
  replay        Send the requests of a HAR file again, and compare.

Keep conversations:
  memory        Manage the sessions that the gateway keeps.

Learn more:
  help          Show the help of a command, or a page of it.

  mlc-gateway COMMAND --help    options and examples of a command
  mlc-gateway help exit-codes   what the exit codes mean
  mlc-gateway help environment  the environment variables that are read
"""


@pytest.mark.parametrize("option", ["-h", "--help", "--hel"])
def test_help_lists_the_commands_by_task(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([option]) == 0
    assert capsys.readouterr().out == HELP


def test_help_has_pages_and_the_help_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help"]) == 0
    assert capsys.readouterr().out == HELP
    assert run(["help", "exit-codes"]) == 0
    codes = capsys.readouterr().out
    words = " ".join(codes.split())
    assert [
        f"{row.code} {', '.join(row.commands) or 'all commands'}: {row.meaning}" in words for row in EXIT_CODES
    ] == [True] * len(EXIT_CODES)
    assert max(map(len, codes.splitlines())) <= 80
    assert run(["help", "environment"]) == 0
    page = capsys.readouterr().out
    assert all(f"\n  {name}  " in page for name in READ)
    for path in (["upgrade"], ["memory", "list"]):
        assert run([*path, "--help"]) == 0
        expected = capsys.readouterr().out
        assert run(["help", *path]) == 0
        assert capsys.readouterr().out == expected
    for topics, message in (
        (["exit-code"], "No such command 'exit-code'. Did you mean 'exit-codes'?"),
        (["memory", "nope"], "No such command 'nope'."),
        (["upgrade", "nope"], "No such command 'nope'."),
    ):
        assert run(["help", *topics]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"Error: {message}"


def test_every_command_has_a_task() -> None:
    listed = [name for names in TASKS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(SUMMARIES) <= set(listed)


def test_the_help_imports_no_command() -> None:
    code = "import sys; from gateway.cli import run; run(['--help']); sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


def test_no_command_shows_the_help_and_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert HELP in capsys.readouterr().err


@pytest.mark.parametrize("name", SUMMARIES)
def test_each_command_has_help_with_exit_codes_and_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    words = " ".join(shown.partition("\nExit codes:\n")[2].split())
    assert words.startswith("0 Success. ")
    assert " 2 An option, a setting or a file is wrong, or the cluster or the store can't be used. " in words
    assert f"mlc-gateway {name}" in shown.partition("\nExamples:\n  ")[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"mlc-gateway {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["upgrad"], "No such command 'upgrad'. Did you mean 'upgrade'?"),
        (["frobnicate"], "No such command 'frobnicate'."),
        (["serve", "--work", "1", "--loglevel", "info"], "No such option '--loglevel'. Did you mean '--log-level'?"),
        (["agents", "--aws", "es"], "No such option '--aws'."),  # an abbreviation of several
        (["serve", "--workers", "two"], "Invalid value for '--workers': 'two' is not a valid integer."),
        (
            ["upgrade", "--probe", "x"],
            "Invalid value for '--probe': 'x' is not one of 'documents', 'template', 'execute'.",
        ),
        (["rewrite", "--provider", "p", "--agent", "a"], "Give either --provider or --agent."),
        (["rollback"], "Missing argument 'FILE...'."),
    ],
)
def test_wrong_usage_ends_with_2_and_a_hint(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1] == f"Error: {message}"


@pytest.mark.parametrize(
    "options", [["-c", "F"], ["-cF"], ["-c=F"], ["--config", "F"], ["--config=F"], ["--conf", "F"], ["--conf=F"]]
)
def test_an_option_has_many_forms(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("logs: {level: debug}")
    assert run(["check-config", *(option.replace("F", str(path)) for option in options)]) == 0
    assert "level: debug" in capsys.readouterr().out


def test_what_follows_a_double_dash_is_no_option() -> None:
    params = [click.Option(["-c", "--config"])]
    assert list(expand(params, ["--conf", "a", "--", "--conf", "-c=F"])) == ["--config", "a", "--", "--conf", "-c=F"]


def completion_of(line: str) -> dict[str, str]:
    """Return the variables in which a shell asks for the completions of a line."""
    last = str(len(line.split(" ")) - 1)
    return {"_MLC_GATEWAY_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": last}


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("mlc-gateway ch", ["check-config"]),
        ("mlc-gateway serve --wo", ["--workers"]),
        ("mlc-gateway upgrade --probe ", ["documents", "template", "execute"]),
        ("mlc-gateway agents --require text,i", ["text,image"]),
    ],
)
def test_shell_completion(
    line: str, completions: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in completion_of(line).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        run([])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.err) == (0, "")
    assert [found.partition(",")[2] for found in shown.out.splitlines()] == completions


@pytest.mark.slow
def test_shell_completion_of_the_program() -> None:
    command, variables = [sys.executable, "-m", "gateway"], completion_of("mlc-gateway ch")
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "plain,check-config\n")


def test_a_command_whose_module_is_missing_breaks_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SUMMARIES, "ghost", "Haunt.")
    assert run(["--help"]) == 0
    assert "ghost" not in capsys.readouterr().out
    assert run(["check-config"]) == 0


def test_check_config_prints_what_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("logs: {level: debug}")
    assert run(["check-config", "-c", str(path)]) == 0
    out = capsys.readouterr().out
    assert "level: debug" in out
    assert "data_port: 9209" in out


@pytest.mark.parametrize("argv", [["check-config"], ["rewrite", "--provider", "openai/v1/chat/completions"]])
@pytest.mark.slow
def test_a_full_disk_ends_with_2_and_the_reason(argv: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "gateway", *argv], input=b'{"input": "hi"}', stdout=full, stderr=subprocess.PIPE
        )
    assert ended.stderr == b"mlc-gateway: the output can't be written: No space left on device\n"
    assert ended.returncode == 2


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


def test_check_config_reports_problems_of_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, missing = tmp_path / "g.yaml", tmp_path / "none.pem"
    path.write_text(
        f"listen: {{tls: {{cert_file: {missing}}}}}\nagents: {{rules: [{{agent: a, provider: nobody/nothing}}]}}\n"
        "inspector: {redact_paths: ['a[']}\n"
    )
    assert run(["check-config", "-c", str(path)]) == 2
    assert [problem.partition(":")[0] for problem in capsys.readouterr().err.splitlines()] == [
        "agents.rules[0].provider", "inspector.redact_paths[0]", "listen.tls.cert_file",
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["check-config", "serve"])
def test_file_that_cannot_be_read_ends_with_2(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, missing = tmp_path / "g.yaml", tmp_path / "none.pem"
    path.write_text(f"listen: {{tls: {{cert_file: {missing}}}}}\n")
    assert run([command, "-c", str(path)]) == 2
    [problem] = capsys.readouterr().err.splitlines()
    assert problem == f"listen.tls.cert_file: {missing} can't be used: No such file or directory"


def test_bad_option_is_reported_by_its_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--listen", "127.0.0.1:http", "--upstream", "nowhere"]) == 2
    shown = capsys.readouterr().err
    assert "listen.data_port: is not allowed here; got 'http'" in shown
    assert "upstream.url: has no scheme; got 'nowhere'" in shown
    assert shown.count("; from --listen\n") == shown.count("; from --upstream\n") == 1


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


def test_the_options_of_serve_are_settings() -> None:
    assert overrides(http="aiohttp", workers=2, listen="[::1]:9")["listen"] == {
        "http": "aiohttp",
        "workers": 2,
        "data_host": "::1",
        "data_port": 9,
    }
    assert overrides(admin="unix:/run/admin.sock")["listen"] == {"admin_host": "unix:/run/admin.sock"}


@pytest.mark.parametrize("port", ["-1", "65535", "70000"])
def test_the_demo_needs_a_port_for_each_gateway(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--once", "--port", port]) == 2
    assert f"{port} is not in the range 0<=x<=65534" in capsys.readouterr().err
