"""The command `rollback`: what it undoes, what it leaves, and its exit statuses."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from gateway.cli import rollback
from gateway.migrate.apply import Gone, Runner, UndoFailed
from gateway.migrate.backup import Journal
from gateway.migrate.connection import ClusterOptions, Connected
from gateway.migrate.upgrade import Offer
from tests.migrate.conftest import Command, Deployment
from tests.migrate.test_apply import WAYS, Upgrade
from tests.migrate.upgrading import (
    OLD,
    cluster_at,
    credential_file,
    documents_of,
    flow,
    model_on,
    offered,
    only_backup,
    standalone,
    state,
    without_parameter,
)


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_rollback_that_stops_at_a_change_says_what_is_left(deployment: Deployment, command: Command) -> None:
    connector_id, model = standalone(deployment)
    agent = flow(deployment, model)
    assert command("upgrade", agent, "--apply", "--url", deployment.url)[0] == 0
    deployment.cluster.core.resources.connectors[connector_id]["name"] = "renamed"
    status, _, err = command("rollback", str(only_backup()), "--url", deployment.url)
    assert status == 4
    assert "name changed" in err
    assert "Not undone (--force undoes what somebody changed since, too):\n" in err
    assert f"PUT /_plugins/_ml/connectors/{connector_id} " in err
    status, out, _ = command("rollback", "--force", str(only_backup()), "--url", deployment.url)
    assert status == 0
    assert "differs from the backup: name" in out


def test_a_rollback_that_the_cluster_s_settings_rule_out_lists_no_calls(
    deployment: Deployment, command: Command
) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    assert command("upgrade", agent, "--apply", "--url", deployment.url)[0] == 0
    settings = deployment.cluster.core.settings
    settings.change({"persistent": {"plugins.ml_commons.model_auto_deploy.enable": "false"}})
    status, _, err = command("rollback", str(only_backup()), "--url", deployment.url)
    assert status == 4
    assert "turn it on" in err
    assert "_undeploy" not in err  # after that call, requests would get no answer
    settings.change({"persistent": {"plugins.ml_commons.model_auto_deploy.enable": None}})
    assert command("rollback", str(only_backup()), "--url", deployment.url)[0] == 0


def test_a_rollback_that_is_refused_a_write_does_not_advise_force(deployment: Deployment, command: Command) -> None:
    connector_id, model = standalone(deployment)
    assert command("upgrade", flow(deployment, model), "--apply", "--url", deployment.url)[0] == 0
    deployment.cluster.refusals[f"PUT /_plugins/_ml/connectors/{connector_id}"] = 403
    status, _, err = command("rollback", str(only_backup()), "--url", deployment.url)
    assert status == 4
    assert "Not undone:\n" in err
    assert f"PUT /_plugins/_ml/connectors/{connector_id} " in err


def test_a_new_connector_that_others_use_is_not_removed(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.migrate.writer._LAG", 0.0)
    agent = flow(deployment, standalone(deployment)[1])
    assert command("upgrade", agent, "--apply", "--credential-file", credential_file(), "--url", deployment.url)[0] == 0
    made = Journal.load(only_backup()).record.made
    other = model_on(deployment, made, "other")
    status, _, err = command("rollback", str(only_backup()), "--url", deployment.url)
    assert status == 4
    assert f"DELETE /_plugins/_ml/connectors/{made}: 409: " in err
    assert other in err


def test_a_rollback_that_can_not_undo_one_upgrade_undoes_the_others(deployment: Deployment, command: Command) -> None:
    connectors, journals = [], []
    for name in ("first", "second"):
        connector_id, model = standalone(deployment)
        assert command("upgrade", flow(deployment, model, name), "--apply", "--url", deployment.url)[0] == 0
        connectors.append(connector_id)
    for file in Path("mlc-backups").glob("*.json"):
        journal = Journal.load(file)
        # The second is the newer one, and is undone first. There is an older upgrade of its models, too.
        journal.record.created = f"2026-01-0{1 + connectors.index(journal.record.key.partition('/')[2])}"
        journal.save()
        journals.append(journal)
    (second,) = (one for one in journals if one.record.created == "2026-01-02")
    older = Journal(Path("mlc-backups/older.json"), copy.deepcopy(second.record))
    older.record.created = "2025-12-31"
    older.save()
    resources = deployment.cluster.core.resources
    resources.connectors[connectors[1]]["name"] = "renamed"
    files = map(str, Path("mlc-backups").glob("*.json"))
    status, out, err = command("rollback", *files, "--url", deployment.url)
    assert status == 4
    assert f"connectors/{connectors[0]} is undone" in out
    assert resources.connectors[connectors[0]]["actions"][0]["request_body"] == OLD
    assert f"{second.path}: connectors/{connectors[1]} was changed by somebody else: name changed" in err
    assert f"{older.path}: left as it is, as a later upgrade of the same models is not undone" in err


def test_a_rollback_reads_the_backup_again_once_no_other_run_uses_it(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    before = state(deployment)
    (offer,) = (one for one in offered(deployment, agent) if isinstance(one, Offer))
    journal = Journal.create(Path("mlc-backups"), offer, documents_of(deployment, agent)[0], deployment.url)
    connect = rollback.connect

    def connect_slowly(options: ClusterOptions) -> Connected:
        assert command("upgrade", "--resume", str(journal.path), "--url", deployment.url)[0] == 0
        assert without_parameter(state(deployment)) != before
        return connect(options)

    monkeypatch.setattr(rollback, "connect", connect_slowly)
    assert command("rollback", str(journal.path), "--url", deployment.url)[0] == 0
    assert without_parameter(state(deployment)) == before


def _upgraded(deployment: Deployment, command: Command, *names: str) -> list[tuple[str, str, Path]]:
    """Connector, model and backup of each agent."""
    found = []
    for name in names:
        before = set(Path("mlc-backups").glob("*.json"))
        connector_id, model = standalone(deployment)
        assert command("upgrade", flow(deployment, model, name), "--apply", "--url", deployment.url)[0] == 0
        (backup,) = set(Path("mlc-backups").glob("*.json")) - before
        found.append((connector_id, model, backup))
    return found


def _delete(deployment: Deployment, connector_id: str, model: str) -> None:
    resources = deployment.cluster.core.resources
    del resources.connectors[connector_id], resources.models[model]


def test_a_connector_that_is_gone_is_named_and_the_others_are_undone(deployment: Deployment, command: Command) -> None:
    (gone, model, backup), (kept, _, other) = _upgraded(deployment, command, "one", "two")
    _delete(deployment, gone, model)
    status, out, err = command("rollback", str(backup), str(other), "--url", deployment.url)
    assert (status, err) == (0, "")
    assert f"{backup}: connectors/{gone} is gone from the cluster: there is nothing to undo\n" in out
    assert f"{other}: connectors/{kept} is undone\n" in out
    assert deployment.cluster.core.resources.connectors[kept]["actions"][0]["request_body"] == OLD
    assert Journal.load(backup).record.outcome == "reverted"
    again = command("rollback", str(backup), "--url", deployment.url)
    assert again == (0, f"{backup}: connectors/{gone} is gone from the cluster: there is nothing to undo\n", "")


def test_the_model_of_a_connector_that_is_gone_is_left_as_it_is(deployment: Deployment, command: Command) -> None:
    ((gone, model, backup),) = _upgraded(deployment, command, "one")
    resources = deployment.cluster.core.resources
    del resources.connectors[gone]
    resources.models[model]["connector_id"] = other = standalone(deployment)[0]
    deployment.cluster.requests.clear()
    assert command("rollback", str(backup), "--url", deployment.url)[0] == 0
    assert [call for call in deployment.cluster.calls if not call.startswith("GET")] == []
    assert resources.models[model]["connector_id"] == other


def test_on_another_cluster_nothing_counts_as_gone(deployment: Deployment, command: Command) -> None:
    ((gone, model, backup),) = _upgraded(deployment, command, "one")
    _delete(deployment, gone, model)
    url = deployment.url.replace("127.0.0.1", "localhost")
    status, _, err = command("rollback", str(backup), "--url", url)
    assert status == 4
    assert f"connectors/{gone} can't be read (404" in err
    assert f"The backup is of the cluster at {deployment.url}, and this is {url}. If that is the same " in err
    assert "Not undone" not in err
    assert Journal.load(backup).record.outcome == "applied"
    assert command("rollback", "--force", str(backup), "--url", url)[0] == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_is_gone(deployment: Deployment, tmp_path: Path, way: str) -> None:
    upgrade = Upgrade(deployment, way, tmp_path)
    upgrade.run()
    resources = deployment.cluster.core.resources
    made = upgrade.journal.record.made
    del resources.models[upgrade.model]
    if way == "standalone":
        del resources.connectors[upgrade.journal.record.key.partition("/")[2]]
    with pytest.raises(Gone, match="is gone from the cluster: there is nothing to undo"):
        Runner(cluster_at(deployment.url), Journal.load(upgrade.journal.path)).roll_back(accept_gone=True)
    assert made not in resources.connectors
    assert Journal.load(upgrade.journal.path).record.outcome == "reverted"


def test_one_of_the_models_of_a_connector_is_gone(deployment: Deployment, command: Command) -> None:
    connector_id, model = standalone(deployment)
    gone = model_on(deployment, connector_id)
    assert command("upgrade", flow(deployment, model), "--apply", "--url", deployment.url)[0] == 0
    resources = deployment.cluster.core.resources
    del resources.models[gone]
    (backup,) = Path("mlc-backups").glob("*.json")
    status, out, err = command("rollback", str(backup), "--url", deployment.url)
    assert (status, err) == (0, "")
    assert f"connectors/{connector_id} is undone\n" in out
    assert f"  but models/{gone} is gone from the cluster\n" in out
    assert resources.connectors[connector_id]["actions"][0]["request_body"] == OLD
    assert resources.model(model)["model_state"] == "DEPLOYED"


def test_a_model_does_not_get_a_connector_back_that_is_gone(deployment: Deployment, tmp_path: Path) -> None:
    upgrade = Upgrade(deployment, "new connector", tmp_path)
    upgrade.run()
    resources = deployment.cluster.core.resources
    made, old = upgrade.journal.record.made, upgrade.journal.record.key
    del resources.connectors[old.partition("/")[2]]
    for force in (False, True):
        with pytest.raises(
            UndoFailed, match=f"{old} is gone .* to models/{upgrade.model}, which keeps connectors/{made}"
        ) as failed:
            upgrade.roll_back(force)
        assert failed.value.calls == []  # one would give the model a connector that is gone, another remove its own
    assert resources.models[upgrade.model]["connector_id"] == made
    assert made in resources.connectors
    assert Journal.load(upgrade.journal.path).record.outcome == "applied"


def test_an_undo_that_was_begun_ends_if_its_connector_is_gone(deployment: Deployment, command: Command) -> None:
    ((gone, model, backup),) = _upgraded(deployment, command, "one")
    deployment.cluster.refusals[f"PUT /_plugins/_ml/connectors/{gone}"] = 403
    assert command("rollback", str(backup), "--url", deployment.url)[0] == 4
    _delete(deployment, gone, model)
    status, out, err = command("upgrade", "--resume", str(backup), "--url", deployment.url)
    assert (status, err) == (0, "")
    assert f"connectors/{gone} is gone from the cluster: there is nothing to undo\n" in out
