"""Upgrades applied to a simulated cluster over HTTP, and taken back: what the LLM gets, and every document."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.migrate import probe
from gateway.migrate.apply import RolledBack, Runner, UndoFailed
from gateway.migrate.backup import BackupError, Journal, cluster_address, lock_directory, unfinished
from gateway.migrate.connection import Connected
from gateway.migrate.probe import ProbeFailed
from gateway.migrate.upgrade import Offer, offers
from gateway.migrate.writer import Clock
from gateway.simulator.llm.endpoints import Reply
from tests.conftest import mostly_slow
from tests.migrate.conftest import Deployment
from tests.migrate.upgrading import (
    DEFAULT,
    NEW,
    SECRET,
    TAG,
    FakeClock,
    cluster_at,
    documents_of,
    flow,
    internal,
    llm_body,
    model_on,
    standalone,
    state,
    without_parameter,
)
from tests.wire import PATIENCE

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {
    "input": [
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": {"type": "base64", "format": "png", "data": PNG}},
    ]
}
WAYS = ("internal", "standalone", "new connector")


class Upgrade:
    """One agent on a connector of one of `WAYS`, and the journal of its upgrade, which has not begun."""

    def __init__(self, deployment: Deployment, way: str, directory: Path) -> None:
        self.deployment = deployment
        model = internal(deployment) if way == "internal" else standalone(deployment)[1]
        self.model = model
        self.agent = flow(deployment, model)
        self.before = state(deployment)
        self.legacy = llm_body(deployment, self.agent)
        documents, ids = documents_of(deployment, self.agent)
        (offer,) = offers(documents, ids, TAG, way == "new connector")
        assert isinstance(offer, Offer)
        self.journal = Journal.create(directory, offer, documents, deployment.url)
        self.credential = {"key": SECRET} if way == "new connector" else None

    def run(
        self, cluster: Connected | None = None, check: Callable[[], None] | None = None, clock: Clock = time
    ) -> None:
        cluster = cluster or cluster_at(self.deployment.url)
        proved = check or (lambda: probe.prove_again(cluster, self.journal.record))
        Runner(cluster, self.journal, credential=self.credential, patience=PATIENCE, clock=clock).carry_out(proved)

    def roll_back(self, force: bool = False) -> list[str]:
        journal = Journal.load(self.journal.path)
        return Runner(cluster_at(self.deployment.url), journal, patience=PATIENCE).roll_back(force)

    def template(self) -> str:
        resources = self.deployment.cluster.core.resources
        model = resources.models[self.model]
        connector = model.get("connector") or resources.connectors[model["connector_id"]]
        template: str = connector["actions"][0]["request_body"]
        return template


@pytest.fixture(params=mostly_slow(WAYS, 2))
def upgrade(request: pytest.FixtureRequest, deployment: Deployment, tmp_path: Path) -> Upgrade:
    return Upgrade(deployment, request.param, tmp_path)


def test_afterwards_images_arrive_and_legacy_calls_are_as_before(upgrade: Upgrade) -> None:
    deployment = upgrade.deployment
    refused, _, _ = deployment.post(f"/_plugins/_ml/agents/{upgrade.agent}/_execute", IMAGE)
    assert refused == 400
    upgrade.run()
    assert upgrade.template() == NEW
    assert llm_body(deployment, upgrade.agent) == upgrade.legacy
    deployment.renew_gateway()  # one that has not read the connector yet
    status, _, _ = deployment.post(f"/_plugins/_ml/agents/{upgrade.agent}/_execute", IMAGE)
    assert status == 200
    image = {"image": {"format": "png", "source": {"bytes": PNG}}}
    assert deployment.cluster.received[-1]["messages"] == [
        {"role": "user", "content": [{"text": "Human: What is it?"}, image]}
    ]
    assert deployment.cluster.core.resources.model(upgrade.model)["model_state"] == "DEPLOYED"
    assert Journal.load(upgrade.journal.path).record.outcome == "applied"


def test_it_is_taken_back_whole(upgrade: Upgrade) -> None:
    upgrade.run()
    left = upgrade.roll_back()
    assert without_parameter(state(upgrade.deployment)) == upgrade.before
    assert llm_body(upgrade.deployment, upgrade.agent) == upgrade.legacy
    remains = state(upgrade.deployment) != upgrade.before
    assert len(left) == remains
    assert all("still has parameters that are not used any more (messages, tools_member)" in line for line in left)
    assert remains == (upgrade.credential is None)  # a new connector is removed with all it has


def test_taking_it_back_twice_changes_nothing(upgrade: Upgrade) -> None:
    upgrade.run()
    left = upgrade.roll_back()
    upgrade.deployment.cluster.requests.clear()
    assert upgrade.roll_back() == left
    assert {request.method for request in upgrade.deployment.cluster.requests} == {"GET"}


def test_taking_back_what_was_never_begun_changes_nothing(upgrade: Upgrade) -> None:
    assert upgrade.roll_back() == []
    assert state(upgrade.deployment) == upgrade.before


def test_doing_it_twice_writes_nothing(upgrade: Upgrade) -> None:
    upgrade.run()
    upgrade.deployment.cluster.requests.clear()
    upgrade.credential = None
    upgrade.run()
    written = [r for r in upgrade.deployment.cluster.calls if not r.startswith("GET") and "_search" not in r]
    # Undeploying and deploying is all that may come again: the documents are as they should be.
    assert [call for call in written if "deploy" not in call] == []
    assert upgrade.template() == NEW


def test_it_can_be_upgraded_again_after_it_was_taken_back(upgrade: Upgrade, tmp_path: Path) -> None:
    upgrade.run()
    upgrade.roll_back()
    documents, ids = documents_of(upgrade.deployment, upgrade.agent)
    (offer,) = offers(documents, ids, "f" * 32, upgrade.credential is not None)
    assert isinstance(offer, Offer)
    upgrade.journal = Journal.create(tmp_path, offer, documents, upgrade.deployment.url)
    upgrade.run()
    assert upgrade.template() == NEW


def test_a_failed_probe_takes_it_back(upgrade: Upgrade) -> None:
    def fails() -> None:
        raise ProbeFailed("it does not answer")

    with pytest.raises(RolledBack, match="it does not answer"):
        upgrade.run(check=fails)
    assert without_parameter(state(upgrade.deployment)) == upgrade.before
    assert Journal.load(upgrade.journal.path).record.outcome == "reverted"


def test_the_backup_holds_the_documents_and_no_credential(upgrade: Upgrade) -> None:
    upgrade.run()
    text = upgrade.journal.path.read_text()
    assert SECRET not in text
    assert stat.S_IMODE(upgrade.journal.path.stat().st_mode) == 0o600
    record = json.loads(text)
    assert record["documents"][f"agents/{upgrade.agent}"]["name"] == "flow-books"
    assert [path.name for path in upgrade.journal.path.parent.iterdir()] == [upgrade.journal.path.name]


def _change(upgrade: Upgrade, **members: Any) -> None:
    """Somebody else's change of the agent's connector."""
    resources = upgrade.deployment.cluster.core.resources
    model = resources.models[upgrade.model]
    (model.get("connector") or resources.connectors[model["connector_id"]]).update(members)


def test_a_connector_that_changed_since_it_was_read_is_left_alone(upgrade: Upgrade) -> None:
    if upgrade.credential:
        resources = upgrade.deployment.cluster.core.resources
        resources.models[upgrade.model]["connector_id"] = standalone(upgrade.deployment)[0]
    else:
        _change(upgrade, description="changed by somebody")
    changed = state(upgrade.deployment)
    with pytest.raises(RolledBack, match=r"description changed|in place of"):
        upgrade.run()
    assert state(upgrade.deployment) == changed


def test_a_rollback_stops_at_somebody_elses_change_unless_forced(deployment: Deployment, tmp_path: Path) -> None:
    upgrade = Upgrade(deployment, "standalone", tmp_path)
    upgrade.run()
    _change(upgrade, description="changed by somebody")
    changed = state(deployment)
    with pytest.raises(UndoFailed, match="description changed") as stuck:
        upgrade.roll_back()
    assert state(deployment) == changed
    assert [call.path.rpartition("/")[2] for call in stuck.value.calls[:1]] == ["_undeploy"]
    left = upgrade.roll_back(force=True)
    assert any("differs from the backup: description" in line for line in left)
    assert llm_body(deployment, upgrade.agent) == upgrade.legacy
    assert upgrade.template() != NEW


def test_a_rollback_leaves_a_model_alone_that_was_pointed_elsewhere(deployment: Deployment, tmp_path: Path) -> None:
    upgrade = Upgrade(deployment, "new connector", tmp_path)
    upgrade.run()
    other = standalone(deployment)[0]
    deployment.cluster.core.resources.models[upgrade.model]["connector_id"] = other
    upgrade.roll_back()
    assert deployment.cluster.core.resources.models[upgrade.model]["connector_id"] == other
    assert not any(TAG[:8] in doc["description"] for doc in deployment.cluster.core.resources.connectors.values())


def test_the_default_probe_notices_what_is_not_as_proved(upgrade: Upgrade) -> None:
    upgrade.run()
    cluster = cluster_at(upgrade.deployment.url)
    probe.prove_again(cluster, upgrade.journal.record)
    resources = upgrade.deployment.cluster.core.resources
    model = resources.models[upgrade.model]
    connector = model.get("connector") or resources.connectors[model["connector_id"]]
    connector["parameters"]["messages"] = DEFAULT.replace("prompt", "question")
    with pytest.raises(ProbeFailed, match="does not render as before"):
        probe.prove_again(cluster, upgrade.journal.record)


def test_the_default_probe_asks_no_llm_and_the_other_one_asks_once(upgrade: Upgrade) -> None:
    upgrade.run()
    received = upgrade.deployment.cluster.received
    asked_before = len(received)
    cluster = cluster_at(upgrade.deployment.url)
    probe.prove_again(cluster, upgrade.journal.record)
    assert len(received) == asked_before
    probe.execute(cluster, upgrade.journal.record)
    assert received[asked_before:] == [
        {"messages": [{"role": "user", "content": [{"text": f"Human: {probe.QUESTION}"}]}]}
    ]
    upgrade.deployment.cluster.script([Reply(500, "down")])
    with pytest.raises(ProbeFailed, match="did not answer"):
        probe.execute(cluster, upgrade.journal.record)


def test_traffic_that_deploys_the_model_again_does_not_stop_it(deployment: Deployment, tmp_path: Path) -> None:
    upgrade = Upgrade(deployment, "standalone", tmp_path)
    resources = deployment.cluster.core.resources
    change, left = resources.update_connector, [2]

    def disturbed(connector_id: str, body: dict[str, Any]) -> Any:
        """A caller's request deploys the model right before the write, twice."""
        if left[0]:
            left[0] -= 1
            resources.deploy_model(upgrade.model)
        return change(connector_id, body)

    resources.update_connector = disturbed  # type: ignore[method-assign,assignment]
    upgrade.run()
    assert left == [0]
    assert upgrade.template() == NEW


def test_a_model_nobody_knew_of_keeps_the_connector_from_being_changed(deployment: Deployment, tmp_path: Path) -> None:
    upgrade = Upgrade(deployment, "standalone", tmp_path)
    connector_id = deployment.cluster.core.resources.models[upgrade.model]["connector_id"]
    model_on(deployment, connector_id, "late")
    with pytest.raises(RolledBack, match="still using this connector"):
        upgrade.run(clock=FakeClock())
    assert upgrade.template() != NEW
    assert deployment.cluster.core.resources.model(upgrade.model)["model_state"] == "DEPLOYED"


def test_a_search_that_lags_does_not_hide_the_new_connector_or_keep_it(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.migrate.writer._LAG", PATIENCE)
    upgrade = Upgrade(deployment, "new connector", tmp_path)
    deployment.cluster.core.resources.refresh_seconds = 1.0

    def fails() -> None:
        raise ProbeFailed("no")

    with pytest.raises(RolledBack):
        upgrade.run(check=fails)
    deployment.cluster.core.resources.refresh_seconds = 0.0
    assert state(deployment) == upgrade.before


def test_two_runs_in_one_directory_wait_for_each_other(tmp_path: Path) -> None:
    with lock_directory(tmp_path), pytest.raises(BackupError, match="in use by another"), lock_directory(tmp_path):
        pass
    with lock_directory(tmp_path):
        pass


def test_unfinished_upgrades_are_found(upgrade: Upgrade) -> None:
    directory = upgrade.journal.path.parent
    (directory / "notes.json").write_text("{}")
    url = upgrade.deployment.url.replace("://", "://name:password@")
    assert [journal.path for journal in unfinished(directory)] == [upgrade.journal.path]
    assert upgrade.journal.record.url == cluster_address(url)
    upgrade.run()
    assert unfinished(directory) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format":2}'])
def test_other_files_are_no_backups(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BackupError, match="not the backup"):
        Journal.load(tmp_path / "x.json")
    with pytest.raises(BackupError, match="No such file"):
        Journal.load(tmp_path / "y.json")
