"""The commands that messages tell the user to run next."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from gateway.cli import commands
from gateway.migrate.connection import ClusterOptions
from gateway.migrate.display import next_command
from tests.migrate.conftest import Command, Deployment
from tests.migrate.upgrading import flow, internal, state, without_parameter

ALL = ClusterOptions(
    config=Path("my settings.yaml"),
    url="https://bob:s3cr3t@search.example.org:9200",
    user="o'brien",
    aws_service="es",
    aws_region="eu-west-1",
    aws_profile="my profile",
    ca_file="ca.pem",
    cert_file="cert.pem",
    key_file="key.pem",
    insecure=True,
    tenant="$(id)",
    cluster_version="2.19.0",
)


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_options_of_the_cluster_are_in_it_quoted_and_without_secrets() -> None:
    gateways = ("http://op:s3cr3t@gateway:9601", "s3cr3t@gateway", "http://[x")
    line = next_command(ALL, "rollback", "a b.json", gateways=gateways)
    assert "s3cr3t" not in line
    words = shlex.split(line)
    assert words == [
        *("mlc-gateway", "rollback", "--config", "my settings.yaml", "--url", "https://search.example.org:9200"),
        *("--user", "o'brien", "--aws-service", "es", "--aws-region", "eu-west-1", "--aws-profile", "my profile"),
        *("--ca-file", "ca.pem", "--cert-file", "cert.pem", "--key-file", "key.pem", "--insecure"),
        *("--tenant", "$(id)", "--cluster-version", "2.19.0"),
        *("--gateway", "http://gateway:9601", "--gateway", "gateway", "--gateway", "http://[x", "a b.json"),
    ]
    _, command, rest = commands.resolve_command(commands.make_context("mlc-gateway", words[1:2]), words[1:])
    assert command is not None
    assert command.make_context("rollback", rest).params["tenant"] == "$(id)"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (next_command(ClusterOptions(), "agents"), "mlc-gateway agents"),
        (next_command(ClusterOptions(tenant="x"), "upgrade", "-id"), "mlc-gateway upgrade --tenant x -- -id"),
        (next_command(ClusterOptions(), "upgrade", options=("--resume", "a b")), "mlc-gateway upgrade --resume 'a b'"),
    ],
)
def test_it_has_only_what_is_needed(line: str, expected: str) -> None:
    assert line == expected


def test_a_copied_line_undoes_the_upgrade_on_the_same_cluster(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, internal(deployment))
    before = state(deployment)
    Path("my settings.yaml").write_text(f"upstream: {{url: '{deployment.url}'}}\n")
    admin = deployment.gateway_admin_url
    reach = ("-c", "my settings.yaml", "--insecure", "--gateway", admin)
    status, out, _ = command("upgrade", agent, "--apply", "--backup-dir", "my backups", *reach)
    assert status == 0
    (line,) = re.findall("to undo it: (.*)", out)
    settings, gateway = "--config 'my settings.yaml' --insecure", f"--gateway {admin}"
    assert line.startswith(f"mlc-gateway rollback {settings} {gateway} 'my backups/")
    status, out, err = command(*shlex.split(line)[1:])
    assert (status, err) == (0, "")
    assert f"gateway {admin}: uses the templates as they are from now on" in out
    assert without_parameter(state(deployment)) == before


def test_the_remedies_of_agents_name_the_cluster(deployment: Deployment, command: Command) -> None:
    agent = deployment.agents["flow-d"]
    status, out, _ = command("agents", "--json", "--url", deployment.url, "--", agent)
    assert status == 0
    (action,) = [one["action"] for one in json.loads(out)["agents"][0]["remedies"]]
    assert action == next_command(ClusterOptions(url=deployment.url), "upgrade", agent)
    assert command(*shlex.split(action)[1:])[0] == 0


@pytest.mark.parametrize("name", ["upgrade", "promote"])
def test_an_unknown_agent_names_the_list_of_the_same_cluster(
    deployment: Deployment, command: Command, name: str
) -> None:
    status, _, err = command(name, "nobody", "--url", deployment.url)
    assert status == 2
    assert f"`mlc-gateway agents --url {deployment.url}` lists those there are" in err
