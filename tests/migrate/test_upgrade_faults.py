"""Whatever happens to any request of an upgrade, and whenever its process is killed, the cluster ends up whole.

Whole means: every document as it was, or every document as it should be; never one without the other, no connector
left over, and no credential in a file.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from urllib3.connection import HTTPConnection

from gateway.migrate.apply import RolledBack, UndoFailed
from gateway.migrate.backup import Journal
from tests.faulty_cluster import Fault, FaultyCluster, Kind, orphans
from tests.migrate.conftest import Deployment
from tests.migrate.test_apply import WAYS, Upgrade
from tests.migrate.upgrading import (
    NEW,
    SECRET,
    FakeClock,
    cluster_at,
    flow,
    llm_body,
    model_on,
    standalone,
    state,
    without_parameter,
)
from tests.wire import PATIENCE

pytestmark = pytest.mark.slow

KINDS: tuple[Kind, ...] = ("error", "refused", "stall", "lost", "late", "truncated")
WRITES = {"internal": 4, "standalone": 5, "new connector": 5}
WRITE = r"/_plugins/_ml/(?!.*_search)"
ROOT = Path(__file__).parents[2]


@contextmanager
def front(deployment: Deployment, *faults: Fault, expire: Callable[[], None] | None = None) -> Iterator[FaultyCluster]:
    faulty = FaultyCluster(deployment.url, list(faults), expire=expire)
    deployment.do(faulty.__aenter__())
    try:
        yield faulty
    finally:
        deployment.do(faulty.__aexit__())


@pytest.fixture
def expire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Ends the command's wait for an answer, as its time limit would. The limit itself is never reached.

    A limit that is short enough for a test would sometimes end other requests on a loaded machine.
    """
    waiting, expiring = socket.socketpair()
    getresponse = HTTPConnection.getresponse

    def answer_or_expire(connection: HTTPConnection) -> Any:
        readable, _, _ = select.select([connection.sock, waiting], [], [], PATIENCE)
        if waiting in readable:
            waiting.recv(1)
            raise TimeoutError("timed out")
        assert readable, "neither an answer nor its end"
        return getresponse(connection)

    monkeypatch.setattr(HTTPConnection, "getresponse", answer_or_expire)
    with waiting, expiring:
        yield lambda: expiring.sendall(b"x")


def require_whole(upgrade: Upgrade) -> bool:
    """Whether the upgrade is in force; fails when it is neither that nor as if nothing had happened."""
    deployment = upgrade.deployment
    now = upgrade.template() == NEW
    if not now:
        assert without_parameter(state(deployment)) == upgrade.before
    assert deployment.cluster.core.resources.model(upgrade.model)["model_state"] == "DEPLOYED"
    assert orphans(deployment.cluster.core) == []
    assert llm_body(deployment, upgrade.agent) == upgrade.legacy
    assert SECRET not in upgrade.journal.path.read_text()
    return now


def _run(upgrade: Upgrade, url: str) -> str:
    """Run the upgrade. Its waits end at once: what the cluster has not done by then it never does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.migrate.writer._PAUSE", 1.0)
        try:
            upgrade.run(cluster_at(url), clock=FakeClock())
        except RolledBack:
            return "reverted"
        except UndoFailed:
            return "stuck"
        return "applied"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("way", "nth"), [(way, nth) for way in WAYS for nth in range(1, WRITES[way] + 1)])
def test_a_fault_of_one_write(
    deployment: Deployment, tmp_path: Path, way: str, nth: int, kind: Kind, expire: Callable[[], None]
) -> None:
    upgrade = Upgrade(deployment, way, tmp_path)
    with front(deployment, *_writes(Fault(kind, nth=nth)), expire=expire) as faulty:
        outcome = _run(upgrade, faulty.url)
        assert any(seen.fault == kind for seen in faulty.seen)
    assert outcome in ("applied", "reverted")
    assert require_whole(upgrade) == (outcome == "applied")
    assert Journal.load(upgrade.journal.path).record.outcome == outcome


class _AnyWrite(Fault):
    """A fault of writes of any method."""

    def strikes(self, method: str, target: str) -> bool:
        return method != "GET" and "_search" not in target and super().strikes(method, target)


def _writes(fault: Fault) -> list[Fault]:
    return [_AnyWrite(fault.kind, "", WRITE, fault.nth, fault.times, fault.seconds)]


@pytest.mark.parametrize("kind", ["error", "refused", "truncated"])
@pytest.mark.parametrize("way", WAYS)
def test_a_fault_of_one_reading(deployment: Deployment, tmp_path: Path, way: str, kind: Kind) -> None:
    nth = 1
    while True:
        upgrade = Upgrade(deployment, way, tmp_path)
        with front(deployment) as faulty:
            faulty.faults.append(Fault(kind, "GET", r"/_plugins", nth=nth))
            upgrade.deployment.cluster.requests.clear()
            outcome = _run(upgrade, faulty.url)
            struck = any(seen.fault for seen in faulty.seen)
        assert require_whole(upgrade) == (outcome == "applied")
        if not struck:
            assert nth > 3
            return
        _remove(upgrade)
        nth += 1


def _remove(upgrade: Upgrade) -> None:
    resources = upgrade.deployment.cluster.core.resources
    resources.agents.pop(upgrade.agent)
    connector_id = resources.models.pop(upgrade.model).get("connector_id")
    resources.connectors.pop(connector_id, None)


@pytest.mark.parametrize("kind", ["error", "refused", "lost"])
@pytest.mark.parametrize(("way", "nth"), [(way, nth) for way in WAYS for nth in range(1, WRITES[way] + 1)])
def test_a_cluster_that_does_nothing_right_any_more(
    deployment: Deployment, tmp_path: Path, way: str, nth: int, kind: Kind
) -> None:
    """Then it can't be taken back at once either; once the cluster is well, `rollback` and `--resume` both end it."""
    upgrade = Upgrade(deployment, way, tmp_path)
    with front(deployment, *_writes(Fault(kind, nth=nth, times=1000))) as faulty:
        outcome = _run(upgrade, faulty.url)
    if outcome != "stuck":
        assert require_whole(upgrade) == (outcome == "applied")
        return
    journal = Journal.load(upgrade.journal.path)
    assert journal.record.outcome in ("applying", "reverting")
    upgrade.roll_back()
    assert require_whole(upgrade) is False


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_what_was_stuck_can_be_finished(deployment: Deployment, tmp_path: Path, nth: int) -> None:
    upgrade = Upgrade(deployment, "standalone", tmp_path)
    with front(deployment, *_writes(Fault("error", nth=nth, times=1000))) as faulty:
        _run(upgrade, faulty.url)
    upgrade.journal = Journal.load(upgrade.journal.path)
    upgrade.run()
    assert require_whole(upgrade) is True


# A process that is killed


def _command(deployment: Deployment, directory: Path, url: str, *more: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "gateway", *more, "--url", url]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY__")}
    return subprocess.Popen(argv, cwd=ROOT, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _apply(directory: Path, agent: str, way: str) -> list[str]:
    argv = ["upgrade", agent, "--apply", "--backup-dir", str(directory)]
    if way == "new connector":
        file = directory.parent / "credential.json"
        file.write_text(json.dumps({"key": SECRET}))
        file.chmod(0o600)
        argv += ["--credential-file", str(file)]
    return argv


def _killed(upgrade: Upgrade, directory: Path, way: str, nth: int, before: bool) -> None:
    """Runs the command and kills it at its `nth` write: before the cluster sees that, or once it has done it."""
    deployment = upgrade.deployment
    fault = _AnyWrite("stall" if before else "late", "", WRITE, nth=nth, seconds=120)
    with front(deployment, fault) as faulty:
        process = _command(deployment, directory, faulty.url, *_apply(directory, upgrade.agent, way))
        deadline = time.monotonic() + PATIENCE
        while not any(seen.fault and (before or seen.status) for seen in faulty.seen):
            assert process.poll() is None, process.stdout.read().decode()  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("then", ["rollback", "resume", "again"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("way", "nth"), [(way, nth) for way in WAYS for nth in range(1, WRITES[way] + 1)])
def test_killed_at_any_write(
    deployment: Deployment, tmp_path: Path, way: str, nth: int, before: bool, then: str
) -> None:
    directory = tmp_path / "backups"
    upgrade = Upgrade(deployment, way, tmp_path / "unused")
    _killed(upgrade, directory, way, nth, before)
    (file,) = directory.glob("*.json")
    upgrade.journal = Journal.load(file)
    assert upgrade.journal.record.outcome == "applying"
    # The file names the cluster's front as its address, which is gone.
    upgrade.journal.record.url = deployment.url
    upgrade.journal.save()
    argv = {
        "rollback": ["rollback", str(file)],
        "resume": ["upgrade", "--resume", str(file), *_apply(directory, "", way)[5:]],
        "again": _apply(directory, upgrade.agent, way),
    }[then]
    process = _command(deployment, directory, deployment.url, *argv)
    shown, _ = process.communicate(timeout=3 * PATIENCE)
    assert process.returncode == 0, shown.decode()
    assert SECRET not in shown.decode()
    assert require_whole(upgrade) is (then != "rollback")


def test_killed_and_resumed_without_the_credential_it_names_what_finishes_it(
    deployment: Deployment, tmp_path: Path
) -> None:
    """The credential is in no file: a connector that was not made before can't be made without it."""
    directory = tmp_path / "backups"
    upgrade = Upgrade(deployment, "new connector", tmp_path / "unused")
    _killed(upgrade, directory, "new connector", 1, before=True)
    (file,) = directory.glob("*.json")
    process = _command(deployment, directory, deployment.url, "upgrade", "--resume", str(file))
    shown, _ = process.communicate(timeout=3 * PATIENCE)
    assert process.returncode == 2, shown.decode()
    assert f"mlc-gateway upgrade --resume {file} --url {deployment.url} --credential-file FILE" in shown.decode()
    upgrade.journal = Journal.load(file)
    assert upgrade.journal.record.outcome == "applying"
    upgrade.roll_back()
    assert require_whole(upgrade) is False


# Two at once


@pytest.mark.parametrize("way", WAYS)
def test_two_upgrades_of_one_connector_at_once(deployment: Deployment, tmp_path: Path, way: str) -> None:
    upgrade = Upgrade(deployment, way, tmp_path / "unused")
    directories = [tmp_path / name / "backups" for name in "ab"]
    for directory in directories:
        directory.mkdir(parents=True)
    processes = [
        _command(deployment, directory, deployment.url, *_apply(directory, upgrade.agent, way), "--shared")
        for directory in directories
    ]
    shown = [process.communicate(timeout=3 * PATIENCE)[0].decode() for process in processes]
    statuses = [process.returncode for process in processes]
    assert 0 in statuses, shown
    assert set(statuses) <= {0, 3}, shown
    # Both may have read the model before either wrote it: then the new connector of the first is not in use.
    cleanup = _command(deployment, tmp_path, deployment.url, "cleanup", "--older-than", "0", "--apply")
    shown.append(cleanup.communicate(timeout=3 * PATIENCE)[0].decode())
    assert cleanup.returncode == 0, shown
    assert require_whole(upgrade) is True


def test_two_upgrades_of_two_agents_on_one_connector_at_once(deployment: Deployment, tmp_path: Path) -> None:
    connector_id, first = standalone(deployment)
    agents = [flow(deployment, first), flow(deployment, model_on(deployment, connector_id, "other"), "other")]
    legacy = [llm_body(deployment, agent) for agent in agents]
    processes = [
        _command(deployment, tmp_path, deployment.url, *_apply(tmp_path / agent, agent, "standalone"), "--shared")
        for agent in agents
    ]
    shown = [process.communicate(timeout=3 * PATIENCE)[0].decode() for process in processes]
    assert 0 in [process.returncode for process in processes], shown
    resources: Any = deployment.cluster.core.resources
    assert resources.connectors[connector_id]["actions"][0]["request_body"] == NEW
    assert [llm_body(deployment, agent) for agent in agents] == legacy
    assert orphans(deployment.cluster.core) == []
