"""Runs of ``upgrade --apply`` that do not go as planned: what they finish, undo, leave open, and say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.migrate.apply import Runner
from gateway.migrate.backup import Journal
from tests.migrate.conftest import Command, Deployment
from tests.migrate.upgrading import (
    NEW,
    SECRET,
    connector_body,
    flow,
    internal,
    llm_body,
    make,
    standalone,
    state,
    without_parameter,
)

OFF = {"transient": {"plugins.ml_commons.model_auto_deploy.enable": False}}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Killed(BaseException):
    """The process ends."""


def kill_after(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """End the process right after the next write to a path that ends so has taken effect."""
    from gateway.migrate.writer import Writer

    send = Writer.send

    def send_and_die(self: Writer, call: Any) -> Any:
        answer = send(self, call)
        if call.path.endswith(path):
            monkeypatch.setattr(Writer, "send", send)
            raise Killed
        return answer

    monkeypatch.setattr(Writer, "send", send_and_die)


def _killed(*_: object) -> None:
    raise Killed


def used(deployment: Deployment, inside: bool = False) -> tuple[str, str]:
    """A model that a request has loaded, and its agent: the model's document says REGISTERED."""
    body = connector_body(deployment)
    own = {"connector": body} if inside else make(deployment, "connectors/_create", body)
    model = make(deployment, "models/_register", {"name": "m", "function_name": "remote", **own})["model_id"]
    agent = flow(deployment, model)
    llm_body(deployment, agent)
    assert deployment.cluster.core.resources.model(model)["model_state"] == "REGISTERED"
    return model, agent


def sends_images(deployment: Deployment, agent: str) -> bool:
    """True if the cluster uses the new template."""
    messages = '[{"role":"user","content":[{"text":"by the new template"}]}]'
    parameters = {"question": "x", "messages": messages}
    deployment.post(f"/_plugins/_ml/agents/{agent}/_execute", {"parameters": parameters}, deployment.url)
    return "by the new template" in json.dumps(deployment.cluster.received[-1])


@pytest.mark.parametrize("probe", ["documents", "template", "execute"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_model_that_a_request_has_loaded_gets_the_new_template(
    deployment: Deployment, command: Command, inside: bool, probe: str
) -> None:
    model, agent = used(deployment, inside)
    before = len(deployment.cluster.received)
    status, out, err = command("upgrade", agent, "--apply", "--probe", probe, "--url", deployment.url)
    assert (status, err) == (0, "")
    assert (f"models/{model}: uses the new template" in out) == (probe != "documents")
    assert len(deployment.cluster.received) - before == (probe == "execute")
    assert sends_images(deployment, agent)
    (backup,) = Path("mlc-backups").glob("*.json")
    assert command("rollback", str(backup), "--url", deployment.url)[0] == 0
    assert not sends_images(deployment, agent)


def test_an_upgrade_that_is_not_in_use_is_taken_back(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.migrate.parking.unload", lambda *_: None)
    _, agent = used(deployment, inside=True)
    status, _, err = command("upgrade", agent, "--apply", "--probe", "template", "--url", deployment.url)
    assert status == 3
    assert "uses the old template" in err


def test_what_is_undone_is_called_unchanged_only_if_it_is(deployment: Deployment, command: Command) -> None:
    _, agent = used(deployment)
    deployment.cluster.refusals["POST /_plugins/_ml/models/_undeploy"] = 403
    before = state(deployment)
    status, _, err = command("upgrade", agent, "--apply", "--url", deployment.url)
    assert status == 3
    assert "everything is as it was before; that was read back from the cluster" in err
    assert state(deployment) == before


@pytest.mark.parametrize("again", [True, False])
def test_a_killed_run_is_finished_by_the_same_command(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    connector, model = standalone(deployment)
    agent = flow(deployment, model)
    llm_body(deployment, agent)
    kill_after(monkeypatch, f"/connectors/{connector}")
    with pytest.raises(Killed):
        command("upgrade", agent, "--apply", "--url", deployment.url)
    (backup,) = Path("mlc-backups").glob("*.json")
    call = ("upgrade", agent, "--apply") if again else ("upgrade", "--resume", str(backup))
    status, out, err = command(*call, "--url", deployment.url)
    assert (status, err) == (0, "")
    assert f"connectors/{connector}: upgraded" in out
    assert Journal.load(backup).record.outcome == "applied"
    assert deployment.cluster.core.resources.model(model)["model_state"] == "DEPLOYED"
    assert sends_images(deployment, agent)


def test_a_killed_run_that_needs_its_credential_again_says_so(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    Path("credential.json").write_text(json.dumps({"key": SECRET}))
    Path("credential.json").chmod(0o600)
    given = ("--credential-file", "credential.json", "--url", deployment.url)
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "carry_out", _killed)
        with pytest.raises(Killed):
            command("upgrade", agent, "--apply", *given)
    monkeypatch.setattr("gateway.migrate.writer._LAG", 0.2)
    (backup,) = Path("mlc-backups").glob("*.json")
    before = state(deployment)
    status, _, err = command("upgrade", agent, "--apply", "--url", deployment.url)
    assert status == 2
    assert f"mlc-gateway upgrade --resume {backup} --url {deployment.url} --credential-file FILE" in err
    assert state(deployment) == before
    status, _, err = command("upgrade", agent, "--apply", *given)
    assert (status, err) == (0, "")
    assert sends_images(deployment, agent)


def test_an_open_backup_of_another_address_is_named(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, agent = used(deployment)
    kill_after(monkeypatch, "/_undeploy")
    with pytest.raises(Killed):
        command("upgrade", agent, "--apply", "--url", deployment.url)
    (backup,) = Path("mlc-backups").glob("*.json")
    url = deployment.url.replace("127.0.0.1", "localhost")
    _, out, _ = command("upgrade", agent, "--apply", "--url", url)
    assert (
        f"{backup} is not finished; it is of {deployment.url}. To finish it, with that cluster's account: "
        f"mlc-gateway upgrade --resume {backup} --url {deployment.url}\n" in out
    )


def test_one_failure_does_not_stop_the_others(deployment: Deployment, command: Command) -> None:
    broken, model = standalone(deployment)
    fine = internal(deployment)
    agents = [flow(deployment, model, "one"), flow(deployment, fine, "two")]
    before = state(deployment)["connectors"]
    deployment.cluster.refusals[f"PUT /_plugins/_ml/connectors/{broken}"] = 403
    status, out, err = command("upgrade", *agents, "--apply", "--url", deployment.url)
    assert status == 3
    assert "403: no permissions" in err
    assert "1 failed and undone, 1 upgraded.\n" in out
    assert f"failed and undone: connectors/{broken}, backup mlc-backups/" in out
    assert state(deployment)["connectors"] == before
    assert sends_images(deployment, agents[1])


def test_a_half_done_change_does_not_stop_the_others(deployment: Deployment, command: Command) -> None:
    broken, fine = internal(deployment), internal(deployment)
    agents = [flow(deployment, broken, "one"), flow(deployment, fine, "two")]
    deployment.cluster.refusals[f"POST /_plugins/_ml/models/{broken}/_deploy"] = 403
    status, out, err = command("upgrade", *agents, "--apply", "--url", deployment.url)
    assert status == 4
    assert f"half done: models/{broken}" in out
    assert f"mlc-gateway rollback --url {deployment.url} mlc-backups/" in err
    assert sends_images(deployment, agents[1])
    deployment.cluster.refusals.clear()
    status, out, _ = command("upgrade", *agents, "--apply", "--url", deployment.url)
    assert status == 0
    assert f"models/{broken}: undone; an earlier run had begun to undo it" in out
    assert sends_images(deployment, agents[0])


def test_nothing_to_do_is_said(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    assert command("upgrade", agent, "--apply", "--url", deployment.url)[0] == 0
    for more in ([], ["--apply"]):
        status, out, err = command("upgrade", agent, *more, "--url", deployment.url)
        assert (status, err) == (0, "")
        assert out.endswith("Nothing to do: no connector can be upgraded.\n")
        assert "Run again" not in out


def test_requests_would_get_no_answer_without_automatic_deployment(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    before = state(deployment)
    deployment.cluster.core.settings.change(OFF)
    status, _, err = command("upgrade", agent, "--apply", "--url", deployment.url)
    assert status == 3
    assert "plugins.ml_commons.model_auto_deploy.enable" in err
    assert without_parameter(state(deployment)) == before
    assert NEW not in json.dumps(state(deployment))
