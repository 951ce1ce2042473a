"""Values as people write them: what YAML misreads, units, addresses, and variables with other names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.cli import run
from gateway.config.describe import bare
from gateway.config.load import ConfigError, load
from gateway.config.schema import Settings
from gateway.config.types import unit_of
from gateway.config.variables import is_section, suspicious_variables, types_of
from gateway.config.yaml_text import parse_yaml


def _problems(folder: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    path = folder / "gateway.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(path, environ or {})
    return list(map(str, raised.value.problems))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "listen: {data_port: 0123}",
            "listen.data_port: is read as 83 by YAML, in base 8; got 0123; "
            "allowed: '0123' in quotes for the text, 123 for the number",
        ),
        (
            "listen: {admin_port: 22:22}",
            "listen.admin_port: is read as 1342 by YAML, in base 60; got 22:22; allowed: '22:22', in quotes",
        ),
        (
            "upstream: {timeouts: {connect: 1:30.5}}",
            "upstream.timeouts.connect: is read as 90.5 by YAML, in base 60; got 1:30.5; allowed: '1:30.5', in quotes",
        ),
        (
            "upstream: {auth: {basic: {username: 0123}}}",
            "upstream.auth.basic.username: is read as 83 by YAML, in base 8; got 0123; "
            "allowed: '0123' in quotes for the text, 123 for the number",
        ),
        (
            "agents: {roles: {no: user}}",
            "agents.roles.no: is a key that YAML reads as true or false; got no; allowed: 'no', in quotes",
        ),
        (
            "agents: {rules: [{agent: 010}]}",
            "agents.rules[0].agent: is read as 8 by YAML, in base 8; got 010; "
            "allowed: '010' in quotes for the text, 10 for the number",
        ),
        (
            "on: {}",
            "on: is a key that YAML reads as true or false; got on; allowed: 'on', in quotes",
        ),
    ],
)
def test_what_yaml_reads_as_something_else_is_an_error(text: str, problem: str, tmp_path: Path) -> None:
    assert problem in _problems(tmp_path, text)


@pytest.mark.parametrize("key", ["no", "On", "YES", "off", "0123", "1:30"])
def test_a_misread_key_can_be_quoted(key: str, tmp_path: Path) -> None:
    assert f"agents.roles.{key}: is " in _problems(tmp_path, f"agents: {{roles: {{{key}: user}}}}")[0]
    variable = {"GATEWAY__AGENTS__ROLES": f"{{{key}: user}}"}
    (problem,) = _problems(tmp_path, "", variable)
    assert problem.startswith(f"agents.roles.{key}: is ")
    assert problem.endswith("from GATEWAY__AGENTS__ROLES")
    (tmp_path / "quoted.yaml").write_text(f"agents: {{roles: {{'{key}': user}}}}")
    assert load(tmp_path / "quoted.yaml", {}).agents.roles == {key: "user"}


def test_a_misread_number_in_a_variable_is_an_error_and_text_is_not(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path, "", {"GATEWAY__LISTEN__DATA_PORT": "0777"})
    assert problem.startswith("listen.data_port: is read as 511 by YAML, in base 8; got 0777; ")
    assert problem.endswith("; from GATEWAY__LISTEN__DATA_PORT")
    assert load(None, {"GATEWAY__UPSTREAM__AUTH__BASIC__USERNAME": "0777"}).upstream.auth.basic.username == "0777"


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("-7", -7), ("0.5", 0.5), ("1_000", 1000), ("0x10", 16)])
def test_plain_numbers_stay_numbers(text: str, value: float) -> None:
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("5s", 5), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), ("1d", 86_400), ("'90 s'", 90), ("7", 7), ("5S", 5)],
)
def test_durations_with_a_unit(written: str, seconds: float, tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(f"upstream: {{timeouts: {{idle: {written}}}}}")
    assert load(path, {}).upstream.timeouts.idle == seconds
    variable = {"GATEWAY__UPSTREAM__TIMEOUTS__IDLE": written.strip("'")}
    assert load(None, variable).upstream.timeouts.idle == seconds


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("10MB", 10_485_760),
        ("100mb", 104_857_600),
        ("1KiB", 1024),
        ("1.5kb", 1536),
        ("3b", 3),
        ("1gb", 1 << 30),
        ("9", 9),
    ],
)
def test_sizes_with_a_unit_are_counted_as_opensearch_counts_them(written: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "g.toml"
    path.write_text(f"limits.body = {written if written.isdigit() else repr(written)}\n")
    assert load(path, {}).limits.body == size


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("upstream: {timeouts: {idle: 5MB}}", "upstream.timeouts.idle: is not allowed here; got '5MB'"),
        ("upstream: {timeouts: {idle: 400d}}", "upstream.timeouts.idle: is not allowed here; got '400d'"),
        ("upstream: {timeouts: {idle: -5s}}", "upstream.timeouts.idle: is not allowed here; got '-5s'"),
        ("limits: {body: 5s}", "limits.body: is not allowed here; got '5s'"),
        ("limits: {body: 0.3b}", "limits.body: is not allowed here; got '0.3b'"),
        ("inspector: {sqlite: {bytes: 1kb}}", "inspector.sqlite.bytes: is not allowed here; got '1kb'"),
        ("listen: {workers: 2m}", "listen.workers: is not allowed here; got '2m'"),
    ],
)
def test_a_wrong_unit_is_an_error(text: str, problem: str, tmp_path: Path) -> None:
    (found,) = _problems(tmp_path, text)
    assert found.startswith(problem + "; allowed: ")


def _units(section: Any, prefix: str = "") -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, kind in types_of(section).items():
        plain = bare(kind)
        found |= _units(plain, f"{prefix}{name}.") if is_section(plain) else {prefix + name: unit_of(kind)}
    return found


def test_settings_that_are_called_seconds_or_bytes_have_that_unit() -> None:
    units = _units(Settings)
    assert [name for name, unit in units.items() if name.endswith("seconds") and unit != "seconds"] == []
    assert [name for name, unit in units.items() if name.endswith("bytes") and unit != "bytes"] == []


@pytest.mark.parametrize(
    ("url", "reason", "allowed"),
    [
        ("search:9200", "has no scheme", "http://search:9200 or https://search:9200"),
        ("search", "has no scheme", "an address such as http://127.0.0.1:9200"),
        ("ftp://search:9200", "has the scheme 'ftp'", "http or https"),
        ("HTTP://search:9200", "has the scheme 'HTTP'", "http, in lower case"),
        ("http://search:99999", "has the port '99999'", "a port from 0 to 65535"),
        ("http://search:http", "has the port 'http'", "a port from 0 to 65535"),
        ("http://:9200", "has no host", "http://HOST:PORT"),
        ("http://::1:9200", "has an IPv6 address without brackets", "http://[::1]:9200"),
        ("http://search:9200/os", "has the path '/os', but the gateway adds each request's own", "http://search:9200"),
        ("http://search?a=b", "has the query '?a=b', but the gateway adds each request's own", "http://search"),
        ("http://sea rch", "has a space in it", "an address without spaces"),
    ],
)
def test_a_wrong_address_of_a_cluster_says_which_part_is_wrong(
    url: str, reason: str, allowed: str, tmp_path: Path
) -> None:
    assert _problems(tmp_path, f"upstream: {{url: '{url}'}}") == [
        f"upstream.url: {reason}; got {url!r}; allowed: {allowed}"
    ]
    variable = {"GATEWAY__UPSTREAM__URL": url}
    assert _problems(tmp_path, "", variable) == [
        f"upstream.url: {reason}; got {url!r}; allowed: {allowed}; from GATEWAY__UPSTREAM__URL"
    ]
    assert _problems(tmp_path, f"upstream: {{nodes: ['{url}']}}")[0].startswith(f"upstream.nodes[0]: {reason}; ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "upstream: {url: 'https://u:p@search'}",
            "upstream.url: has a user name or password in it; got 'https://***@search'; "
            "allowed: set upstream.auth.mode: basic, with upstream.auth.basic.username and password, instead",
        ),
        (
            "memory: {opensearch: {url: 'https://u:p@search'}}",
            "memory.opensearch.url: has a user name or password in it; got 'https://***@search'; "
            "allowed: set memory.opensearch.username and memory.opensearch.password, instead",
        ),
        (
            "telemetry: {traces: {endpoint: 'http://otel:4318'}}",
            "telemetry.traces.endpoint: has no path; got 'http://otel:4318'; "
            "allowed: the whole URL, such as http://otel:4318/v1/traces",
        ),
        (
            "listen: {data_host: '0.0.0.0:9209'}",
            "listen.data_host: has a port; got '0.0.0.0:9209'; "
            "allowed: listen.data_host: '0.0.0.0' and listen.data_port: 9209",
        ),
        (
            "listen: {admin_host: '[::1]:9601', admin_token: {env: T}}",
            "listen.admin_host: has a port; got '[::1]:9601'; "
            "allowed: listen.admin_host: '::1' and listen.admin_port: 9601",
        ),
        (
            "listen: {adapters_host: '[::1]'}",
            "listen.adapters_host: has brackets; got '[::1]'; allowed: listen.adapters_host: '::1'",
        ),
        (
            "listen: {data_host: 'http://localhost'}",
            "listen.data_host: is no host; got 'http://localhost'; "
            "allowed: a name or an IP address, without a scheme or a path",
        ),
        (
            "listen: {data_host: 'unix:/run/g.sock'}",
            "listen.data_host: can't be a Unix socket; got 'unix:/run/g.sock'; allowed: a name or an IP address",
        ),
        (
            "listen: {data_host: ''}",
            "listen.data_host: is empty; got ''; "
            "allowed: 0.0.0.0 for all addresses of this machine, 127.0.0.1 for this machine alone",
        ),
    ],
)
def test_a_wrong_address_names_the_setting_that_is_meant(text: str, problem: str, tmp_path: Path) -> None:
    assert problem in _problems(tmp_path, text, {"T": "t0ken-of-the-tests"})


@pytest.mark.parametrize("host", ["::1", "0.0.0.0", "localhost", "gateway.example.com"])
def test_good_hosts(host: str, tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(f"listen: {{data_host: '{host}'}}")
    assert load(path, {}).listen.data_host == host


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("GATEWAY_UPSTREAM_URL", "GATEWAY__UPSTREAM__URL"),
        ("GATEWAY_UPSTREAM", "GATEWAY__UPSTREAM__URL"),
        ("MLC_UPSTREAM_URL", "GATEWAY__UPSTREAM__URL"),
        ("MLC_GATEWAY_UPSTREAM_URL", "GATEWAY__UPSTREAM__URL"),
        ("GATEWAY_LISTEN_DATA_PRT", "GATEWAY__LISTEN__DATA_PORT"),
        ("GATEWAY_LISTEN_TLS_CERT_FILE", "GATEWAY__LISTEN__TLS__CERT_FILE"),
        ("GATEWAY_LISTEN_ADMIN_TOKEN_FILE", "GATEWAY__LISTEN__ADMIN_TOKEN__FILE"),
        ("MLC_PASWORD", "MLC_PASSWORD"),
        ("MLC_GATEWAY", "MLC_GATEWAYS"),
        ("MLC_FROBNICATE", ""),
    ],
)
def test_a_variable_that_was_probably_meant_is_warned_of(name: str, meant: str) -> None:
    hint = f"; did you mean {meant}?" if meant else ""
    assert list(suspicious_variables([name])) == [f"{name} is not a variable of the gateway's{hint}"]


@pytest.mark.parametrize(
    "name",
    [
        *("GATEWAY__UPSTREAM__URL", "MLC_PASSWORD", "MLC_ADMIN_TOKEN", "GATEWAY_INTERFACE"),
        *("GATEWAY_PORT", "GATEWAY_SERVICE_HOST", "MLC_GATEWAY_PORT_9209_TCP_ADDR", "MLC_GATEWAY_SERVICE_PORT_HTTP"),
    ],
)
def test_other_variables_are_not(name: str) -> None:
    """Those that Kubernetes sets for a service with the gateway's name, too."""
    assert list(suspicious_variables([name])) == []


def test_check_config_marks_what_is_set_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(
        "listen: {data_port: 9209, admin_token: {env: T}}\nlimits: {body: 10MB}\nagents: {rules: [{agent: a}]}\n"
    )
    for name, value in {
        "T": "t0ken-of-the-tests",
        "GATEWAY__LOGS": "{level: debug}",
        "GATEWAY_LOGS_LEVEL": "x",
    }.items():
        monkeypatch.setenv(name, value)
    assert run(["check-config", "-c", str(path), "--changed"]) == 0
    changed = capsys.readouterr()
    assert (
        changed.err
        == "Warning: GATEWAY_LOGS_LEVEL is not a variable of the gateway's; did you mean GATEWAY__LOGS__LEVEL?\n"
    )
    assert changed.out.partition("# memory")[0] == (
        "listen:\n"
        f"  data_port: 9209  # {path}\n"
        f"  admin_token: '<env: T>'  # {path}\n"
        "limits:\n"
        f"  body: 10485760  # {path}\n"
        "agents:\n"
        f"  # {path}\n"
        "  rules:\n"
        "  - agent: a\n"
        "    provider: ''\n"
        "    delivery: auto\n"
        "    memory: auto\n"
        "    output: auto\n"
        "logs:\n"
        "  level: debug  # GATEWAY__LOGS\n"
    )
    assert run(["check-config", "-c", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"  data_port: 9209  # {path}" in lines
    assert "  admin_port: 9601" in lines
    assert sum("  # " in line for line in lines) == 5


def test_the_settings_in_effect_are_yaml_that_sets_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("agents: {roles: {'no': user, '0123': tool, é: user}}\nlisten: {data_host: '::1'}\n")
    assert run(["check-config", "-c", str(path)]) == 0
    again = tmp_path / "again.yaml"
    again.write_text("".join(line for line in capsys.readouterr().out.splitlines(True) if "token" not in line))
    text = "\n".join(line for line in again.read_text().splitlines() if ": ''" not in line)
    again.write_text(text)
    assert load(again, {}) == load(path, {})


def test_nothing_that_is_set_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check-config", "--changed"]) == 0
    assert capsys.readouterr().out.startswith("# Nothing is set: every setting has its default.\n")
