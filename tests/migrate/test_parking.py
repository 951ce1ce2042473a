"""Models that are always in use, while their connector is changed: what a run that ends then leaves to do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.migrate import apply
from gateway.migrate.backup import Journal
from tests.faulty_cluster import orphans
from tests.migrate.conftest import Command, Deployment
from tests.migrate.upgrading import flow, standalone, state, without_parameter

ROOT = Path(__file__).parents[2]
RUN = (
    "import runpy, signal\n"
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # it may be ignored: the tests may run under nohup
    "runpy.run_module('gateway', run_name='__main__', alter_sys=True)"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.slow
def test_an_interruption_brings_parked_models_back(deployment: Deployment, tmp_path: Path, number: int) -> None:
    connector_id, model = standalone(deployment)
    agent = flow(deployment, model)
    path = f"PUT /_plugins/_ml/models/{model}"
    resources, refusals = deployment.cluster.core.resources, deployment.cluster.refusals
    processes: list[subprocess.Popen[str]] = []

    def park() -> dict[str, str]:
        resources.models[model]["connector_id"] = json.loads(deployment.cluster.requests[-1].body)["connector_id"]
        del refusals[path]
        processes[0].send_signal(number)
        return {}

    refusals[path] = park
    refusals["POST /_plugins/_ml/models/_undeploy"] = dict  # the models are always in use
    command = [sys.executable, "-c", RUN, "upgrade", agent, "--apply", "--backup-dir", str(tmp_path)]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    processes.append(subprocess.Popen([*command, "--url", deployment.url], cwd=ROOT, **pipes))
    _, err = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 130
    (backup,) = tmp_path.glob("*.json")
    resume = f"mlc-gateway upgrade --resume {backup} --url {deployment.url}"
    assert f"interrupted. To finish it, run this again, or {resume}; to undo it: " in err
    assert resources.models[model]["connector_id"] == connector_id
    assert orphans(deployment.cluster.core) == []


def test_the_remaining_calls_bring_parked_models_back(
    deployment: Deployment, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(apply, "TRIES", 0)  # park at once
    connector_id, model = standalone(deployment)
    agent = flow(deployment, model)
    before = state(deployment)
    path = f"/_plugins/_ml/models/{model}"
    resources = deployment.cluster.core.resources

    def refuse_from_now_on() -> dict[str, str]:
        resources.models[model]["connector_id"] = json.loads(deployment.cluster.requests[-1].body)["connector_id"]
        deployment.cluster.refusals[f"PUT {path}"] = 403
        return {}

    deployment.cluster.refusals[f"PUT {path}"] = refuse_from_now_on
    status, _, err = command("upgrade", agent, "--apply", "--url", deployment.url)
    assert status == 4
    (backup,) = Path("mlc-backups").glob("*.json")
    parked = Journal.load(backup).record.parked
    assert resources.models[model]["connector_id"] == parked
    calls = [line.strip() for line in err.splitlines() if line.startswith("  ")]
    assert calls[:2] == [
        f'PUT {path} {{"connector_id": "{connector_id}"}}',
        f"DELETE /_plugins/_ml/connectors/{parked}",
    ]
    assert [call.partition(" {")[0] for call in calls[2:]] == [
        "POST /_plugins/_ml/models/_undeploy",
        f"PUT /_plugins/_ml/connectors/{connector_id}",
        "POST /_plugins/_ml/models/_undeploy",
        f"POST {path}/_deploy",
    ]
    deployment.cluster.refusals.clear()
    assert command("rollback", str(backup), "--url", deployment.url)[0] == 0
    assert without_parameter(state(deployment)) == before
