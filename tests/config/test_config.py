from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from gateway.cli import serve
from gateway.config.describe import bare, effective, rows, table, updated
from gateway.config.load import ConfigError, Source, load, sources
from gateway.config.schema import AgentRule, Settings
from gateway.config.variables import is_section, types_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
SHIPPED = Path(__file__).parents[2] / "config" / "gateway.yaml"


def _problems(path: Path | None, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {})
    return [str(problem) for problem in caught.value.problems]


def _file(folder: Path, text: str, name: str = "gateway.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_no_file_gives_the_defaults() -> None:
    settings = load(None, {})
    assert settings == Settings()
    assert (settings.listen.data_host, settings.listen.data_port) == ("127.0.0.1", 9209)
    assert (settings.listen.admin_host, settings.listen.admin_port) == ("127.0.0.1", 9601)
    assert settings.upstream.timeouts.execute == 0


def test_the_shipped_file_is_right() -> None:
    assert load(SHIPPED, {}) == Settings()


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    yaml = _file(
        tmp_path, "listen: {data_port: 1}\nagents:\n  rules: [{agent: 'a*', provider: p}]\n  roles: {x: user}\n"
    )
    toml = _file(
        tmp_path,
        "[listen]\ndata_port = 1\n[agents]\nroles = {x = 'user'}\n[[agents.rules]]\nagent = 'a*'\nprovider = 'p'\n",
        "gateway.toml",
    )
    assert load(yaml, {}) == load(toml, {})
    assert load(yaml, {}).agents.rules == [AgentRule("a*", "p")]


def test_environment_stands_over_the_file_and_options_over_both(tmp_path: Path) -> None:
    path = _file(tmp_path, "logs: {level: error}\nlisten: {data_port: 1, admin_port: 2}\n")
    environ = {
        "GATEWAY__LOGS__LEVEL": "debug",
        "gateway__listen__data_port": "3",
        "GATEWAY__AGENTS__ALLOW_PREFILL": "true",
        "GATEWAY__AGENTS__RULES": "[{agent: '007', delivery: describe}]",
        "GATEWAY__LISTEN__DATA_HOST": "0",
        "OTHER__LOGS__LEVEL": "loud",
    }
    settings = load(path, environ, {"listen": {"data_port": 4}})
    assert settings.logs.level == "debug"
    assert (settings.listen.data_host, settings.listen.data_port, settings.listen.admin_port) == ("0", 4, 2)
    assert settings.agents.allow_prefill
    assert settings.agents.rules == [AgentRule("007", delivery="describe")]


@pytest.mark.parametrize("spelling", ["off", "Off", "OFF", "no", "false", "'off'"])
def test_off_is_off_however_it_is_spelled(spelling: str, tmp_path: Path) -> None:
    """YAML 1.1 reads `off` as False."""
    path = _file(tmp_path, "logs: {access: json}\nupstream: {tls: {min_version: 1.3}}\n")
    assert load(path, {}).upstream.tls.min_version == "1.3"
    assert load(path, {"GATEWAY__LOGS__ACCESS": spelling.strip("'")}).logs.access == "off"
    assert load(path, {"GATEWAY__LOGS": f"{{access: {spelling}}}"}).logs.access == "off"
    assert load(_file(tmp_path, f"logs: {{access: {spelling}}}"), {}).logs.access == "off"


def words_of(section: Any, prefix: str = "") -> dict[str, tuple[str, ...]]:
    """Every setting that is one of some words."""
    found: dict[str, tuple[str, ...]] = {}
    for name, kind in types_of(section).items():
        plain = bare(kind)
        if is_section(plain):
            found |= words_of(plain, f"{prefix}{name}.")
        elif get_origin(plain) is Literal:
            found[prefix + name] = get_args(plain)
    return found


def load_in_part(path: Path | None, environ: dict[str, str]) -> Settings:
    """The settings that could be read: other ones may be missing."""
    try:
        return load(path, environ)
    except ConfigError as error:
        return error.readable or Settings()


def test_every_word_may_be_written_without_quotes(tmp_path: Path) -> None:
    """In a file and in a variable: no word of a setting is read as something else."""
    for setting, words in words_of(Settings).items():
        *sections, key = setting.split(".")
        for word in words:
            text = f"{key}: {word}"
            for section in reversed(sections):
                text = f"{section}: {{{text}}}"
            name = "__".join(("GATEWAY", *setting.upper().split(".")))
            for found in (load_in_part(_file(tmp_path, text), {}), load_in_part(None, {name: word})):
                value: Any = found
                for part in setting.split("."):
                    value = getattr(value, part)
                assert value == word, setting


@pytest.mark.parametrize("value", ["on", "yes", "true", "0", "1.0", "[off]"])
def test_what_is_not_off_is_refused(value: str, tmp_path: Path) -> None:
    [problem] = _problems(_file(tmp_path, f"logs: {{access: {value}}}"))
    assert problem.startswith("logs.access: is not allowed here")


def test_every_problem_is_told_with_its_path(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        "listen: {data_prt: 1, admin_port: 99999}\nupstream: {url: 'http://u:hunter2@x', timeouts: {connect: soon}}\n"
        "agents: {lookup: me, rules: [{agent: x}, {agnt: y}], roles: {a: b}}\nlimits: 3\nlogz: {}\n",
    )
    assert _problems(path, {"GATEWAY__LOGS__LEVEL": "loud"}) == [
        "limits: must be a section with keys; got 3",
        "logz: unknown key; did you mean `logs`?; allowed: listen, upstream, clusters, limits, admission, agents, "
        "registration, adapters, media, answers, memory, policy, inspector, telemetry, logs",
        "listen.data_prt: unknown key; did you mean `data_port`?; allowed: data_host, data_port, admin_host, "
        "admin_port, admin_token, adapters_host, adapters_port, workers, http, drain_seconds, shutdown_seconds, "
        "forwarded, trusted_proxies, tls, timeouts",
        "listen.admin_port: is not allowed here; got 99999; allowed: a whole number from 0 to 65535",
        "upstream.url: has a user name or password in it; got 'http://***@x'; allowed: set upstream.auth.mode: basic, "
        "with upstream.auth.basic.username and password, instead",
        "upstream.timeouts.connect: is not allowed here; got 'soon'; "
        "allowed: a duration in seconds from 0 to 31536000, such as 30 or 30s, 5m, 1h",
        "agents.lookup: is not allowed here; got 'me'; allowed: caller or service_account",
        "agents.rules[1].agnt: unknown key; did you mean `agent`?; allowed: agent, provider, delivery, memory, output",
        "agents.rules[1].agent: is missing; allowed: text, not empty",
        "agents.roles.a: is not allowed here; got 'b'; allowed: system or user or assistant or tool",
        "logs.level: is not allowed here; got 'loud'; allowed: debug or info or warning or error; "
        "from GATEWAY__LOGS__LEVEL",
    ]


def test_contradictions_are_reported_beside_wrong_values(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        "listen: {admin_host: 0.0.0.0, trusted_proxies: [x], tls: {min_version: 3}}\nmedia: {fetch: true}\n"
        "agents: {lookup: service_account, service_account: {username: u}, rules: [{agnt: y}]}\n"
        "logs: {level: loud}\n",
    )
    assert [problem.split(";")[0] for problem in _problems(path)] == [
        "listen.tls.min_version: is not allowed here",
        "agents.rules[0].agnt: unknown key",
        "agents.rules[0].agent: is missing",
        "logs.level: is not allowed here",
        "agents.service_account.password: is needed when agents.lookup is service_account",
        "listen.admin_token: is needed when listen.admin_host is not a loopback address",
        "listen.trusted_proxies[0]: is not a network",
        "media.hosts: is needed when media.fetch is on",
    ]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("listen: {admin_host: 0.0.0.0, admin_tokn: {env: T}}", "listen.admin_tokn"),
        ("listen: {admin_host: 0.0.0.0, admin_token: plain}", "listen.admin_token"),
        ("listen: {tls: {key_file: k, cert_file: 1}}", "listen.tls.cert_file"),
        ("media: {fetch: true, hosts: a}", "media.hosts"),
        ("upstream: {auth: {mode: basic, basic: x}}", "upstream.auth.basic"),
        ("policy: {budgets: [{money: 1, tokens: 0}], prices: [{}]}", "policy."),
    ],
)
def test_what_depends_on_a_wrong_value_is_not_checked(text: str, wrong: str, tmp_path: Path) -> None:
    assert all(problem.startswith(wrong) and "needed" not in problem for problem in _problems(_file(tmp_path, text)))


@pytest.mark.parametrize(
    ("listen", "wrong"),
    [
        ("data_port: 9601", True),
        ("data_host: 0.0.0.0, data_port: 9601", True),
        ("data_host: 127.0.0.2, data_port: 9601", False),
        ("data_port: 0, admin_port: 0", False),
        ("data_port: 9601, admin_host: 'unix:/tmp/a'", False),
    ],
)
def test_both_ports_on_one_address_are_a_problem(listen: str, wrong: bool, tmp_path: Path) -> None:
    path = _file(tmp_path, f"listen: {{{listen}}}\n")
    if not wrong:
        assert load(path, {}).listen.data_port in (0, 9601)
        return
    assert _problems(path) == [
        "listen.admin_port: is the port of the cluster's API; got 9601; "
        "allowed: another port than listen.data_port; 0: any free port"
    ]


def test_two_roles_that_differ_in_case_only_are_a_problem(tmp_path: Path) -> None:
    path = _file(tmp_path, "agents: {roles: {Bot: assistant, guide: system, bot: user}}\n")
    assert _problems(path, {}) == ["agents.roles.bot: is the same role as 'Bot': case is ignored"]


@pytest.mark.parametrize(
    ("text", "name", "part"),
    [
        ("logs: {level: info}\nlogs: {}\n", "a.yaml", "the key 'logs' is a duplicate"),
        ("logs: [", "a.yaml", "can't be parsed"),
        ("- 1", "a.yaml", "must hold a mapping of sections"),
        ("x", "a.toml", "can't be parsed"),
    ],
)
def test_files_that_are_no_settings(text: str, name: str, part: str, tmp_path: Path) -> None:
    [problem] = _problems(_file(tmp_path, text, name))
    assert part in problem


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: &x [*x]", 1), ("logs:\n  level: &x {y: *x}", 2), ("agents: &a\n  rules:\n    - [1, *a]", 3), ("&x [*x]", 1)],
)
def test_an_alias_within_its_own_value_is_named_with_its_line(text: str, line: int, tmp_path: Path) -> None:
    [problem] = _problems(_file(tmp_path, text))
    assert "stands for a value that it is part of" in problem
    assert f"line {line}, column" in problem


def test_an_alias_after_its_value_is_no_problem(tmp_path: Path) -> None:
    rules = load(_file(tmp_path, "agents: {rules: [&a {agent: x}, *a]}"), {}).agents.rules
    assert [rule.agent for rule in rules] == ["x", "x"]


def test_an_alias_within_its_own_value_in_the_environment_is_a_problem() -> None:
    [problem] = _problems(None, {"GATEWAY__AGENTS__RULES": "&x [*x]"})
    assert problem.startswith("agents.rules: is not allowed here; got '&x [*x]'")


def test_missing_file(tmp_path: Path) -> None:
    assert "can't be read: No such file" in _problems(tmp_path / "none.yaml")[0]


@pytest.mark.parametrize("url", ["http://x:99999", "ftp://x", "http://x/path", "x:9200", "http://a b"])
def test_addresses_that_are_none(url: str) -> None:
    assert _problems(None, {"GATEWAY__UPSTREAM__URL": url})[0].startswith("upstream.url: ")


def test_environment_that_leads_into_a_value(tmp_path: Path) -> None:
    path = _file(tmp_path, "logs: {level: info}")
    [problem] = _problems(path, {"GATEWAY__LOGS__LEVEL__MORE": "x"})
    assert problem == "logs.level.more: names a key below a setting that has no keys; from GATEWAY__LOGS__LEVEL__MORE"


WRONG_SECTIONS = {
    "a section": ("upstream: 'http://prod:9200'", "upstream"),
    "a list for a section": ("upstream: [{url: 'http://prod:9200'}]", "upstream"),
    "false for a section": ("upstream: false", "upstream"),
    "a section within": ("upstream: {timeouts: 5}", "upstream.timeouts"),
    "a mapping": ("agents: {roles: x}", "agents.roles"),
}
OVER: dict[str, dict[str, Any]] = {
    "nothing": {},
    "options": {"upstream": {"url": "http://a", "timeouts": {"idle": 1}}, "agents": {"roles": {"x": "user"}}},
    "variables": {
        "GATEWAY__UPSTREAM__URL": "http://a",
        "GATEWAY__UPSTREAM__TIMEOUTS__IDLE": "1",
        "GATEWAY__AGENTS__ROLES__X": "user",
        "GATEWAY__AGENTS__ROLES": "{X: user}",
    },
}


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize(("text", "wrong"), WRONG_SECTIONS.values(), ids=WRONG_SECTIONS.keys())
def test_a_section_of_the_wrong_type_is_named_whatever_is_laid_over_it(
    text: str, wrong: str, over: str, tmp_path: Path
) -> None:
    environ, options = (OVER[over], {}) if over == "variables" else ({}, OVER[over])
    with pytest.raises(ConfigError) as caught:
        load(_file(tmp_path, text), environ, options)
    assert [problem.path for problem in caught.value.problems] == [wrong]


def test_a_section_of_the_wrong_type_in_the_environment_is_named() -> None:
    environ = {"GATEWAY__UPSTREAM": "http://prod:9200", "GATEWAY__UPSTREAM__CONNECTIONS": "5"}
    assert _problems(None, environ) == [
        "upstream: must be a section with keys; from GATEWAY__UPSTREAM",
    ]


def test_an_empty_section_hides_nothing(tmp_path: Path) -> None:
    assert load(_file(tmp_path, "upstream:\nlogs:\nagents: {service_account:}\n"), {}) == Settings()
    path = _file(tmp_path, "upstream: {url: 'http://a', timeouts: {idle: 1}}")
    environ = {"GATEWAY__UPSTREAM": "", "GATEWAY__UPSTREAM__TIMEOUTS": "{lookup: 2}"}
    upstream = load(path, environ, {"upstream": {"timeouts": None}}).upstream
    assert (upstream.url, upstream.timeouts.idle, upstream.timeouts.lookup) == ("http://a", 1, 2)


def test_a_setting_that_the_environment_gives_twice_is_refused() -> None:
    environ = {"GATEWAY__UPSTREAM__URL": "http://a", "gateway__upstream__url": "http://b"}
    assert _problems(None, environ) == [
        "upstream.url: is also set by GATEWAY__UPSTREAM__URL; from gateway__upstream__url"
    ]


def test_the_environment_keeps_the_case_of_keys_of_mappings_only() -> None:
    environ = {"gateway__Agents__ALIASES__Old-Agent": "New-Id", "GATEWAY__AGENTS__ALIASES__old-agent": "other"}
    assert load(None, environ).agents.aliases == {"Old-Agent": "New-Id", "old-agent": "other"}
    [problem] = _problems(None, {"GATEWAY__AGENTS__ALIASES__Old__More": "x"})
    assert problem.startswith("agents.aliases.Old.more: names a key below a setting that has no keys")


BESIDE = "upstream.url: can't be given together with upstream.nodes, wherever each comes from; remove one of them"
NODES = {"GATEWAY__UPSTREAM__NODES": "['http://b:9200', 'http://c:9200']"}


def test_an_address_beside_nodes_is_refused_wherever_each_comes_from(tmp_path: Path) -> None:
    nodes, url = "nodes: ['http://b:9200']", "url: 'http://127.0.0.1:9200'"
    assert _problems(_file(tmp_path, f"upstream: {{{url}, {nodes}}}")) == [BESIDE]
    assert _problems(_file(tmp_path, f"upstream: {{{url}}}"), NODES) == [BESIDE]
    assert _problems(_file(tmp_path, f"upstream: {{{nodes}}}"), {"GATEWAY__UPSTREAM__URL": "http://a"}) == [BESIDE]
    with pytest.raises(ConfigError, match="together"):
        load(None, NODES, {"upstream": {"url": "http://a"}})
    assert len(load(None, NODES).upstream.nodes) == 2
    others = load(None, {}, {"clusters": {"new": {"url": "http://127.0.0.1:2", "timeouts": {"idle": 5}}}})
    shown = effective(others, {"clusters": "a file"}, changed=True)
    assert yaml.safe_load(shown) == {"clusters": {"new": {"url": "http://127.0.0.1:2", "timeouts": {"idle": 5.0}}}}
    assert "url:" not in effective(load(None, NODES)).partition("nodes")[0].partition("upstream")[2]
    assert load(_file(tmp_path, "upstream: {url: 'http://a', nodes: []}"), {}).upstream.url == "http://a"


def test_the_option_stands_over_address_and_nodes(tmp_path: Path) -> None:
    for text in ("upstream: {nodes: ['http://b:9200']}", "upstream: {url: 'http://b:9200'}"):
        argv = ["-c", str(_file(tmp_path, text)), "--upstream", "http://a:9200"]
        options = serve.command.make_context("serve", argv).params
        upstream = Source(options.pop("config"), serve.overrides(**options)).load().upstream
        assert (upstream.url, upstream.nodes) == ("http://a:9200", [])


@pytest.mark.parametrize(
    "nodes",
    [
        ["http://a:9200", "http://a:9200"],
        ["http://a:9200", "http://A:9200/"],
        ["http://a", "http://a:80"],
        ["https://a:443/", "https://a."],
        ["http://[::1]:9200", "http://[0:0::1]:9200"],
        ["http://a:9200", "https://a:9200"],
        ["http://a:9200", "https://b:9200"],
    ],
)
def test_nodes_that_are_there_twice_or_of_two_schemes_are_refused(nodes: list[str]) -> None:
    problems = _problems(None, {"GATEWAY__UPSTREAM__NODES": json.dumps(nodes)})
    assert all(problem.startswith("upstream.nodes[1]: is ") for problem in problems)


def test_nodes_on_one_host_are_different_by_their_ports() -> None:
    assert load(None, {"GATEWAY__UPSTREAM__NODES": "['http://a:1', 'http://a:2', 'http://b:1']"})


NUMBERS = [path for path, what, _, _ in rows() if "number" in what]


@pytest.mark.parametrize("setting", NUMBERS)
def test_numbers_that_are_not_finite_or_absurd_are_refused(setting: str) -> None:
    for value in (".inf", "-.inf", ".nan", "1e400", str(10**30), str(10**400)):
        if "[]." in setting:
            section, inside = setting.split("[].", 1)
            written = value
            for name in reversed(inside.split(".")):
                written = f"{{{name.removesuffix('[]')}: {f'[{written}]' if name.endswith('[]') else written}}}"
            variable = f"GATEWAY__{section.upper().replace('.', '__')}"
            problems = _problems(None, {variable: f"[{written}]"})
            place = setting.replace("[]", "[0]")
            assert any(problem.startswith(f"{place}: is ") for problem in problems), value
        else:
            [problem] = _problems(None, {f"GATEWAY__{setting.upper().replace('.', '__')}": value})
            assert problem.startswith(f"{setting}: is "), value


def test_numbers_from_toml_and_options_are_checked_alike(tmp_path: Path) -> None:
    path = _file(tmp_path, "[upstream.timeouts]\nconnect = inf\nidle = nan\n", "gateway.toml")
    assert [problem.split(";")[0] for problem in _problems(path)] == [
        "upstream.timeouts.connect: is not a finite number",
        "upstream.timeouts.idle: is not a finite number",
    ]
    with pytest.raises(ConfigError, match="not a finite number"):
        load(None, {}, {"upstream": {"timeouts": {"connect": float("inf")}}})


ACCOUNT = "agents:\n  lookup: service_account\n  service_account: {username: u, password: %s}\n"


def test_secrets_come_by_reference_and_are_never_shown(tmp_path: Path) -> None:
    secret = _file(tmp_path, "from a file\n", "secret")
    by_file = load(_file(tmp_path, ACCOUNT % f"{{file: {secret}}}"), {})
    by_env = load(_file(tmp_path, ACCOUNT % "{env: PW}"), {"PW": "from the environment"})
    assert by_file.agents.service_account.password.reveal() == "from a file"
    assert by_env.agents.service_account.password.reveal() == "from the environment"
    for settings in (by_file, by_env):
        assert "from" not in effective(settings) + repr(settings)
    assert "<env: PW>" in effective(by_env)


@pytest.mark.parametrize("value", ["hunter2", "{env: NONE}", "{file: /nowhere/at/all}", "{env: A, file: B}", "{x: y}"])
def test_secrets_that_are_none(value: str, tmp_path: Path) -> None:
    [problem] = _problems(_file(tmp_path, ACCOUNT % value))
    assert problem.startswith("agents.service_account.password: ")
    assert "hunter2" not in problem


def test_secrets_are_not_empty(tmp_path: Path) -> None:
    """An empty `listen.admin_token` would open the metrics to every program of the host."""
    place = "agents.service_account.password"
    empty = _file(tmp_path, "\n", "secret")
    assert _problems(_file(tmp_path, ACCOUNT % f"{{file: {empty}}}")) == [f"{place}: the file {empty} is empty"]
    wanted = [f"{place}: the environment variable PW is empty"]
    assert _problems(_file(tmp_path, ACCOUNT % "{env: PW}"), {"PW": ""}) == wanted


def test_the_admin_token_can_be_sent(tmp_path: Path) -> None:
    settings = _file(tmp_path, "listen: {admin_token: {env: TOKEN}}")
    for token in ("0123456789\nabcdef", "0123456789\xf6abcdef"):
        [problem] = _problems(settings, {"TOKEN": token})
        assert problem == "listen.admin_token: must be printable ASCII, as it is sent in a header"


def test_the_admin_token_can_not_be_guessed(tmp_path: Path) -> None:
    settings = _file(tmp_path, "listen: {admin_token: {env: TOKEN}}")
    [problem] = _problems(settings, {"TOKEN": "x" * 15})
    assert problem == (
        "listen.admin_token: is too short, so it could be guessed; got 15 characters; allowed: at least 16"
    )
    assert load(settings, {"TOKEN": "x" * 16}).listen.admin_token


def test_secret_in_the_environment_itself_is_refused() -> None:
    [problem] = _problems(None, {"GATEWAY__AGENTS__SERVICE_ACCOUNT__PASSWORD": "hunter2"})
    assert "GATEWAY__AGENTS__SERVICE_ACCOUNT__PASSWORD__ENV" in problem
    assert "hunter2" not in problem


def test_service_account_needs_its_account() -> None:
    assert _problems(None, {"GATEWAY__AGENTS__LOOKUP": "service_account"}) == [
        "agents.service_account.username: is needed when agents.lookup is service_account",
        "agents.service_account.password: is needed when agents.lookup is service_account",
    ]


def test_every_setting_has_a_meaning_and_stands_in_the_documentation() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(meaning for _, _, _, meaning in rows())
    assert table() in page
    assert updated(page) == page


@pytest.mark.parametrize("name", ["Authorization", "cookie", "X-Amz-Security-Token"])
def test_a_tenant_is_not_a_credential(name: str) -> None:
    [problem] = _problems(None, {"GATEWAY__MEMORY__TENANT_HEADER": name})
    assert problem.startswith("memory.tenant_header: holds credentials")


def test_a_later_source_of_a_secret_replaces_another(tmp_path: Path) -> None:
    path = _file(tmp_path, "listen: {admin_token: {file: /no/such/file}}")
    environ = {"GATEWAY__LISTEN__ADMIN_TOKEN__ENV": "TOKEN", "TOKEN": "t0ken-of-the-tests"}
    assert load(path, environ).listen.admin_token.reveal() == "t0ken-of-the-tests"
    environ["GATEWAY__LISTEN__ADMIN_TOKEN__FILE"] = "/no/such/file"
    assert _problems(None, environ) == [
        "listen.admin_token.file: is also set by GATEWAY__LISTEN__ADMIN_TOKEN__ENV; "
        "from GATEWAY__LISTEN__ADMIN_TOKEN__FILE"
    ]


@pytest.mark.parametrize("key", ["true", "null", "~", "1", "1.50", "0x10", "2026-01-01", "="])
def test_a_key_is_the_text_that_is_written(tmp_path: Path, key: str) -> None:
    """Also where YAML reads it as something else."""
    file = _file(tmp_path, f"agents: {{roles: {{{key}: user}}}}")
    assert load(file, {}).agents.roles == {key: "user"}
    assert load(None, {"GATEWAY__AGENTS__ROLES": f"{{{key}: user}}"}).agents.roles == {key: "user"}
    (problem,) = _problems(_file(tmp_path, f"agents: {{roles: {{{key}: user, '{key}': tool}}}}"))
    assert f"the key '{key}' is a duplicate" in problem
    (problem,) = _problems(_file(tmp_path, f"{key}: x"))
    assert problem.startswith(f"{key}: ")


def test_yaml_merge_keys(tmp_path: Path) -> None:
    text = """
policy:
  budgets:
    - &day {agent: a, tokens: 5}
    - &hour {<<: *day, agent: b, seconds: 3600}
    - {<<: *hour, agent: c}
"""
    budgets = load(_file(tmp_path, text), {}).policy.budgets
    assert [(one.agent, one.tokens, one.seconds) for one in budgets] == [
        ("a", 5, 86_400),
        ("b", 5, 3600),
        ("c", 5, 3600),
    ]


def test_a_mapping_names_every_place_that_sets_keys_of_it(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("agents: {aliases: {a: b}, roles: {bot: assistant}}")
    one = {"GATEWAY__AGENTS__ALIASES__Old-Id": "new"}
    assert sources(None, one) == {"agents.aliases": "GATEWAY__AGENTS__ALIASES__Old-Id"}
    assert sources(path, one) == {
        "agents.aliases": f"{path}, GATEWAY__AGENTS__ALIASES__Old-Id",
        "agents.roles": str(path),
    }
    two = one | {"GATEWAY__AGENTS__ALIASES__c": "d"}
    assert sources(None, two) == {"agents.aliases": "GATEWAY__AGENTS__ALIASES__Old-Id, GATEWAY__AGENTS__ALIASES__c"}
    assert sources(path, {"GATEWAY__AGENTS__ALIASES": "{c: d}"})["agents.aliases"] == "GATEWAY__AGENTS__ALIASES"
    assert load(path, {"GATEWAY__AGENTS__ALIASES": "{c: d}"}).agents.aliases == {"c": "d"}
    assert load(path, one).agents.aliases == {"a": "b", "Old-Id": "new"}
    token = {"GATEWAY__LISTEN__ADMIN_TOKEN__ENV": "T"}
    assert sources(None, token) == {"listen.admin_token": "GATEWAY__LISTEN__ADMIN_TOKEN__ENV"}
