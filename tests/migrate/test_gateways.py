"""Gateways that run during an upgrade or a rollback, with the agent's profile cached."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.config.schema import Settings
from gateway.migrate import gateways
from gateway.migrate.apply import Runner, UndoFailed
from gateway.migrate.gateways import NamedGateways
from tests.migrate.conftest import Command, Deployment
from tests.migrate.stub_server import StubServer
from tests.migrate.test_apply import IMAGE, Upgrade
from tests.migrate.upgrading import NEW, OLD, cluster_at, flow, internal
from tests.wire import PATIENCE

PARTS = {"models/m/connector": {"actions": []}, "models/n/connector_id": "c"}
HELD = "uses the templates from before the upgrade until the change is in use"
CURRENT = "uses the templates as they are from now on"


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
    lines = [line for line in out.splitlines() if line.startswith("gateway")]
    assert lines == [f"gateway {deployment.gateway_admin_url}: {line}" for line in (HELD, CURRENT)]
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
        (held, released), (refused, dropped) = one.requests, two.requests
    assert [held[:2], refused[:2], dropped[:2]] == [("POST", "/profiles/hold")] * 2 + [("POST", "/profiles/drop")]
    body = json.loads(held[3])
    assert (released[0], released[1]) == ("DELETE", f"/profiles/hold?name={body['name']}")
    assert [place.split("/")[2] for place in body["connectors"]] == ["connector"]
    assert all(request[2]["authorization"].encode("latin-1").decode() == f"Bearer {token}" for request in one.requests)
    assert status == 0
    assert f"gateway {one.url}: {CURRENT}" in out
    assert f"gateway {two.url}/: answers 401. If it runs, it may use others for up to 3 seconds, and lose images" in out
    assert token not in out + err
    assert "s3cr3t-word" not in out + err


def test_a_gateway_that_does_not_run_is_no_failure(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, internal(deployment))
    with StubServer() as gone:
        pass
    status, out, _ = command("upgrade", agent, "--apply", "--gateway", gone.url, "--url", deployment.url)
    assert status == 0
    assert f"gateway {gone.url}: can't be reached (ConnectionError)" in out


def test_an_older_gateway_is_told_to_read_the_documents_again(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, internal(deployment))
    with StubServer((200, {})) as older:
        older.answers["/profiles/hold"] = (404, {})
        status, out, _ = command("upgrade", agent, "--apply", "--gateway", older.url, "--url", deployment.url)
    assert status == 0
    assert [request[1] for request in older.requests] == ["/profiles/hold", "/profiles/drop"]
    assert f"gateway {older.url}: is too old to wait for the change: it may lose images with a 200 meanwhile" in out
    assert f"gateway {older.url}: {CURRENT}" in out


def test_without_a_gateway_it_is_said_what_one_may_lose(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, internal(deployment))
    status, out, _ = command("upgrade", agent, "--apply", "--url", deployment.url)
    assert status == 0
    assert "no gateway is named: one that runs may lose images with a 200 for up to 3 seconds\n" in out


@pytest.fixture
def upgraded(deployment: Deployment, tmp_path: Path) -> Upgrade:
    made = Upgrade(deployment, "standalone", tmp_path)
    made.run()
    return made


class Running:
    """A request that was sent to the agent through the gateway, and whose LLM does not answer yet."""

    def __init__(self, deployment: Deployment, agent: str, pool: ThreadPoolExecutor, body: Any = IMAGE) -> None:
        self.cluster = deployment.cluster
        self.cluster.llm_asked.clear()
        self.cluster.llm_answers.clear()
        path = f"/_plugins/_ml/agents/{agent}/_execute"
        self.answer: Future[tuple[int, Any, Any]] = pool.submit(deployment.post, path, body)
        assert self.cluster.llm_asked.wait(PATIENCE)

    def end(self) -> None:
        self.cluster.llm_answers.set()
        assert self.answer.result(PATIENCE)[0] == 200


def rolled_back(upgrade: Upgrade, report: Callable[[str], None]) -> None:
    named = NamedGateways([upgrade.deployment.gateway_admin_url], Settings(), report)
    cluster = cluster_at(upgrade.deployment.url)
    Runner(cluster, upgrade.journal, report, patience=PATIENCE, gateways=named).roll_back()


def test_a_rollback_waits_for_the_runs_that_were_planned_before(upgraded: Upgrade) -> None:
    lines: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        run = Running(upgraded.deployment, upgraded.agent, pool)

        def report(line: str) -> None:
            lines.append(line)
            if line.startswith("waiting"):
                assert upgraded.template() == NEW
                run.end()

        rolled_back(upgraded, report)
    admin = upgraded.deployment.gateway_admin_url
    assert lines[:2] == [f"gateway {admin}: {HELD}", f"waiting until agents have run that began before: 1 on {admin}"]
    assert upgraded.template() == OLD


def test_a_rollback_does_not_wait_for_ever(upgraded: Upgrade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "_RUNS_PATIENCE", 0)
    with ThreadPoolExecutor(1) as pool:
        run = Running(upgraded.deployment, upgraded.agent, pool)
        with pytest.raises(UndoFailed, match=r"still run .*\(1 on http.*\)\. .*run this again when they have ended"):
            rolled_back(upgraded, lambda line: None)
        assert upgraded.template() == NEW
        run.end()
        path = f"/_plugins/_ml/agents/{upgraded.agent}/_execute"
        assert upgraded.deployment.post(path, IMAGE)[0] == 200  # nothing is held any more
        rolled_back(upgraded, lambda line: None)
    assert upgraded.template() == OLD


def test_runs_of_other_agents_are_not_waited_for(upgraded: Upgrade) -> None:
    lines: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        run = Running(upgraded.deployment, upgraded.deployment.agents["flow-d"], pool, {"input": "hello"})
        rolled_back(upgraded, lines.append)
        assert upgraded.template() == OLD
        run.end()
    assert not [line for line in lines if line.startswith("waiting")]


def test_a_gateway_that_was_restarted_meanwhile_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "_RENEWAL", 0.001)
    renewed = threading.Event()
    lines: list[str] = []
    with StubServer((200, {"status": "held", "known": False, "runs": 0})) as stub:
        named = NamedGateways([stub.url], Settings(), lines.append)
        stub.on_request = lambda: len(stub.requests) > 2 and renewed.set()
        named.hold("upgrade", PARTS, wait=True)
        assert renewed.wait(PATIENCE)
        named.release("upgrade")
        named.release("upgrade")
    body = json.loads(stub.requests[0][3])
    assert {**body["connectors"], **body["connector_ids"]} == PARTS
    assert {request[3] for request in stub.requests[:-1]} == {stub.requests[0][3]}
    restarted = "was restarted or did not answer meanwhile: it may have lost images with a 200"
    assert lines == [f"gateway {stub.url}: {line}" for line in (HELD, restarted, CURRENT)]
