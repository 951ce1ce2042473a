"""Connectors that the cluster takes for each other, as their ids have a word between dashes in common.

A real cluster does this: docs/evidence/facts.md, "Deploy states and connector changes".
"""

from __future__ import annotations

import json

import pytest

from gateway.migrate import apply, writer
from gateway.simulator import connectors
from gateway.simulator.fixtures import CLASSIC
from gateway.simulator.fixtures import connector_body as body_of
from tests.migrate.conftest import Command, Deployment
from tests.migrate.test_cleanup import TAG
from tests.migrate.upgrading import NEW, credential_file, flow, make, model_on, only_backup, standalone, state

OTHERS, OURS = "z-iuCqIB2bf4H6wFabcd", "z-ioDqIB2bf4H6wFefgh"


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("run"))
    monkeypatch.setattr(writer, "_LAG", 0.0)  # a search of this cluster does not lag


def next_id(monkeypatch: pytest.MonkeyPatch, id_: str) -> None:
    """Give the next connector this id, and those after it others."""
    new_id, given = connectors.new_id, [id_]
    monkeypatch.setattr(connectors, "new_id", lambda: given.pop() if given else new_id())


@pytest.fixture
def model_of_others(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> str:
    """A deployed model on the connector `OTHERS`."""
    next_id(monkeypatch, OTHERS)
    connector_id, model = standalone(deployment)
    assert connector_id == OTHERS
    return model


def unremoved(model: str) -> str:
    return (
        f"  but connectors/{OURS}, which no model uses, could not be removed: the cluster takes models/{model} for its "
        "users, which use other connectors: their ids and this one have a word between dashes in common; once these "
        "are gone, `mlc-gateway cleanup --apply` removes it\n"
    )


def test_a_rollback_leaves_the_connector_it_can_not_remove_and_says_so(
    deployment: Deployment, model_of_others: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    before = state(deployment)
    next_id(monkeypatch, OURS)
    url = ("--url", deployment.url)
    assert command("upgrade", agent, "--apply", "--credential-file", credential_file(), *url)[0] == 0
    resources = deployment.cluster.core.resources
    assert OURS in resources.connectors
    backup = str(only_backup())
    for _ in range(2):
        status, out, err = command("rollback", backup, *url)
        assert (status, err) == (0, "")
        assert out.endswith(" is undone\n" + unremoved(model_of_others))
        left = state(deployment)
        assert left["connectors"].pop(OURS)
        assert left == before
    resources.undeploy_models([model_of_others])
    resources.delete_model(model_of_others)
    status, out, _ = command("cleanup", "--apply", "--older-than", "0", *url)
    assert (status, [one["outcome"] for one in json.loads(out)["leftovers"]]) == (0, ["removed"])
    assert OURS not in resources.connectors


def test_an_upgrade_leaves_the_connector_of_parked_models_and_says_so(
    deployment: Deployment, model_of_others: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "TRIES", 0)  # park at once
    connector_id, model = standalone(deployment)
    agent = flow(deployment, model)
    next_id(monkeypatch, OURS)
    status, out, err = command("upgrade", agent, "--apply", "--url", deployment.url)
    assert status == 0
    assert unremoved(model_of_others) in out + err
    resources = deployment.cluster.core.resources
    assert resources.models[model]["connector_id"] == connector_id
    assert resources.connectors[connector_id]["actions"][0]["request_body"] == NEW


def test_a_connector_that_can_not_be_changed_needs_a_new_one(
    deployment: Deployment, model_of_others: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_id(monkeypatch, OURS)
    agent = flow(deployment, standalone(deployment)[1])
    before = state(deployment)
    upgrade = ("upgrade", agent, "--apply", "--url", deployment.url)
    status, _, err = command(*upgrade)
    assert status == 3
    assert f"the cluster takes models/{model_of_others} for its users" in err
    assert "make the upgrade with a new connector (--credential-file, --ask-credential)" in err
    assert state(deployment) == before
    assert command(*upgrade, "--credential-file", credential_file())[0] == 0


def test_cleanup_keeps_it_without_failing(
    deployment: Deployment, model_of_others: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_id(monkeypatch, OURS)
    body = {**body_of("mcp", CLASSIC["d"], deployment.cluster.llm_url), "description": f"mlc-gateway {TAG}"}
    make(deployment, "connectors/_create", body)
    cleanup = ("cleanup", "--apply", "--older-than", "0", "--url", deployment.url)
    status, out, _ = command(*cleanup)
    (one,) = json.loads(out)["leftovers"]
    assert (status, one["id"], one["outcome"]) == (0, OURS, "kept")
    assert one["error"].startswith(f"the cluster takes models/{model_of_others} for its users")
    model_on(deployment, OURS)
    assert json.loads(command(*cleanup)[1])["leftovers"] == []  # it is in use
