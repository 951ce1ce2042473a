"""Gateways that run during an upgrade or a rollback, with the agent's profile cached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.migrate.conftest import Command, Deployment
from tests.migrate.stub_server import StubServer
from tests.migrate.test_apply import IMAGE
from tests.migrate.upgrading import flow, internal


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_gateway_that_is_notified_uses_the_changed_template_at_once(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, internal(deployment))
    path = f"/_plugins/_ml/agents/{agent}/_execute"
    options = ("--gateway", deployment.gateway_admin_url, "--url", deployment.url)
    assert deployment.post(path, IMAGE)[0] == 400
    status, out, _ = command("upgrade", agent, "--apply", *options)
    assert status == 0
    assert f"gateway {deployment.gateway_admin_url}: uses the changed templates from now on\n" in out
    assert deployment.post(path, IMAGE)[0] == 200
    assert "image" in str(deployment.cluster.received[-1])
    (backup,) = Path("mlc-backups").glob("*.json")
    received = len(deployment.cluster.received)
    assert command("rollback", str(backup), *options)[0] == 0
    assert deployment.post(path, IMAGE)[0] == 400  # it used to be a 200 without the image
    assert len(deployment.cluster.received) == received


@pytest.mark.parametrize("token", ["s3cr3t-token", "пароль"])
def test_gateways_are_named_by_the_environment_and_get_the_token(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    agent = flow(deployment, internal(deployment))
    with StubServer((200, {})) as one, StubServer((401, {})) as two:
        account = two.url.replace("//", "//operator:s3cr3t-word@")
        monkeypatch.setenv("MLC_GATEWAYS", f"{one.url} {account}/")
        monkeypatch.setenv("MLC_ADMIN_TOKEN", token)
        status, out, err = command("upgrade", agent, "--apply", "--url", deployment.url)
        assert [request[:2] for request in one.requests] == [("POST", "/profiles/drop")]
        assert one.headers["authorization"].encode("latin-1").decode() == f"Bearer {token}"
    assert status == 0
    assert f"gateway {one.url}: uses the changed templates from now on" in out
    assert f"gateway {two.url}/: answers 401. If it runs, it may use old templates for up to 3 seconds" in out
    assert token not in out + err
    assert "s3cr3t-word" not in out + err


def test_a_gateway_that_does_not_run_is_no_failure(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, internal(deployment))
    with StubServer() as gone:
        pass
    status, out, _ = command("upgrade", agent, "--apply", "--gateway", gone.url, "--url", deployment.url)
    assert status == 0
    assert f"gateway {gone.url}: can't be reached (ConnectionError)" in out
