"""Models that are loaded, whatever their documents say, and when a change of a connector takes effect.

Recorded on 2.19.0: 30_deploy_states, 31_deploy_states_remedies, 32_undeploy_bulk_auto_deploy_off_delete.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.simulator.core import ClusterCore
from gateway.simulator.errors import NoAnswer
from gateway.simulator.handlers import Request
from gateway.simulator.rest import Response, respond
from gateway.simulator.store import NODE

ML = "/_plugins/_ml"


class Deployed:
    """A cluster with one model on a connector of its own or a standalone one, and a flow agent on it."""

    def __init__(self, inside: bool = False, deploy: bool = False) -> None:
        self.now = 1000.0
        self.core = ClusterCore()
        self.core.resources.clock = lambda: self.now
        self.resources = self.core.resources
        self.connector = self.resources.create_connector(connector("v1"))["connector_id"]
        own = {"connector": connector("v1")} if inside else {"connector_id": self.connector}
        self.model = self.resources.register_model({"name": "m", **own}, deploy)["model_id"]
        tool = {"type": "MLModelTool", "parameters": {"model_id": self.model, "prompt": "${parameters.question}"}}
        self.agent = self.resources.register_agent({"name": "a", "type": "flow", "tools": [tool]})["agent_id"]
        self.resources.refresh_seconds = 1.0
        self.now += 10

    def ask(self, method: str, path: str, body: Any = None) -> Response:
        data = b"" if body is None else json.dumps(body).encode()
        serve = respond(self.core, Request(method, f"{ML}/{path}", {"content-type": "application/json"}, data))
        with pytest.raises(StopIteration) as end:
            next(serve)
        response: Response = end.value.value
        return response

    def put(self, path: str, **change: Any) -> int:
        return self.ask("PUT", path, change).status

    def undeploy(self) -> str:
        stats: dict[str, str] = self.ask("POST", f"models/{self.model}/_undeploy").body[NODE]["stats"]
        return stats[self.model]

    def executed(self) -> str:
        """The version of the template that the LLM gets."""
        (sent,) = self.core.execute(self.agent, {"parameters": {"question": "hi"}}).llm_bodies
        version: str = json.loads(sent)["tag"]
        return version

    @property
    def state(self) -> str:
        shown: str = self.resources.model(self.model)["model_state"]
        return shown

    @property
    def profile(self) -> Any:
        return self.ask("GET", f"profile/models/{self.model}").body


def actions(version: str) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": [{"text": "${parameters.prompt}"}]}]
    url = "http://127.0.0.1:1/bedrock/model/m/converse"
    body = json.dumps({"tag": version, "messages": messages})
    return [{"action_type": "predict", "method": "POST", "url": url, "request_body": body}]


def connector(version: str) -> dict[str, Any]:
    return {
        "name": "c",
        "version": "1",
        "protocol": "http",
        "credential": {"key": "k"},
        "actions": actions(version),
    }


def test_a_model_that_is_used_is_loaded_and_its_document_does_not_say_so() -> None:
    cluster = Deployed()
    assert (cluster.state, cluster.profile) == ("REGISTERED", {})
    assert cluster.executed() == "v1"
    assert cluster.state == "REGISTERED"
    assert "current_worker_node_count" not in cluster.resources.model(cluster.model)
    shown = cluster.profile["nodes"][NODE]["models"][cluster.model]
    assert (shown["target_worker_nodes"], "worker_nodes" in shown) == ([NODE], False)
    assert shown["model_inference_stats"]["count"] == 1
    assert cluster.undeploy() == "undeployed"
    assert cluster.undeploy() == "not_found"
    assert (cluster.state, cluster.profile) == ("REGISTERED", {})
    assert cluster.resources.model(cluster.model)["current_worker_node_count"] == 0


def test_a_deployed_model_that_was_undeployed_and_is_used_goes_on_saying_undeployed() -> None:
    cluster = Deployed(deploy=True)
    assert (cluster.state, cluster.profile["nodes"][NODE]["models"][cluster.model]["worker_nodes"]) == (
        "DEPLOYED",
        [NODE],
    )
    assert cluster.undeploy() == "undeployed"
    assert (cluster.executed(), cluster.state) == ("v1", "UNDEPLOYED")
    assert cluster.profile != {}


@pytest.mark.parametrize(("used", "deploy", "version"), [(False, False, "v2"), (True, False, "v1"), (True, True, "v2")])
@pytest.mark.parametrize("inside", [True, False])
def test_a_change_of_the_model_takes_effect(inside: bool, used: bool, deploy: bool, version: str) -> None:
    """30:int_*, 31:swap_*"""
    cluster = Deployed(inside, deploy)
    if used:
        assert cluster.executed() == "v1"
    other = cluster.resources.create_connector(connector("v2"))["connector_id"]
    change: dict[str, Any] = {"connector": {"actions": actions("v2")}} if inside else {"connector_id": other}
    assert cluster.put(f"models/{cluster.model}", **change) == 200
    assert cluster.executed() == version
    cluster.undeploy()
    assert cluster.executed() == "v2"


def test_deploying_a_loaded_model_does_not_load_it_again() -> None:
    """31:int_auto_put_deploy"""
    cluster = Deployed(inside=True)
    cluster.executed()
    cluster.put(f"models/{cluster.model}", connector={"actions": actions("v2")})
    assert cluster.ask("POST", f"models/{cluster.model}/_deploy").body["status"] == "COMPLETED"
    assert (cluster.state, cluster.executed()) == ("DEPLOYED", "v1")
    cluster.put(f"models/{cluster.model}", connector={"actions": actions("v3")})
    assert cluster.executed() == "v3"


def test_a_connector_is_changed_while_it_is_not_loaded() -> None:
    """30:sa_*"""
    cluster = Deployed()
    path = f"connectors/{cluster.connector}"
    assert cluster.put(path, actions=actions("v2")) == 200
    assert cluster.executed() == "v2"
    refused = cluster.ask("PUT", path, {"actions": actions("v3")})
    assert (refused.status, cluster.model in refused.body["error"]["reason"]) == (400, True)
    cluster.undeploy()
    assert cluster.put(path, actions=actions("v3")) == 200
    assert cluster.executed() == "v3"


def test_which_connector_a_model_uses_is_found_by_a_search_that_is_late() -> None:
    """31:swap_deployed, swap_auto_deployed: undeploying refreshes the index."""
    cluster = Deployed(deploy=True)
    other = cluster.resources.create_connector(connector("v2"))["connector_id"]
    cluster.put(f"models/{cluster.model}", connector_id=other)
    assert cluster.put(f"connectors/{cluster.connector}", actions=actions("v3")) == 400
    assert cluster.put(f"connectors/{other}", actions=actions("v3")) == 200
    assert cluster.executed() == "v2"  # what is loaded does not notice
    cluster.now += 1
    assert cluster.put(f"connectors/{cluster.connector}", actions=actions("v3")) == 200
    assert cluster.put(f"connectors/{other}", actions=actions("v4")) == 400
    cluster.put(f"models/{cluster.model}", connector_id=cluster.connector)
    cluster.undeploy()
    assert cluster.executed() == "v3"
    assert cluster.put(f"connectors/{other}", actions=actions("v4")) == 200


def test_a_model_that_is_being_loaded_is_not_listed_yet() -> None:
    """33:race.undeploy_put_once.60rps: a change is accepted and does not take effect."""
    cluster = Deployed()
    cluster.resources.deployments.load_seconds = 0.02
    assert cluster.executed() == "v1"
    assert (cluster.profile, cluster.undeploy()) == ({}, "not_found")
    assert cluster.put(f"connectors/{cluster.connector}", actions=actions("v2")) == 200
    assert cluster.executed() == "v1"
    cluster.now += 0.02
    assert cluster.profile != {}
    assert cluster.undeploy() == "undeployed"
    assert cluster.executed() == "v2"


def test_a_deleted_model_that_is_loaded_still_answers() -> None:
    """32:delete_auto_deployed"""
    cluster = Deployed()
    cluster.executed()
    assert cluster.ask("DELETE", f"models/{cluster.model}").status == 200
    cluster.now += 1
    assert cluster.ask("DELETE", f"connectors/{cluster.connector}").status == 200
    assert cluster.executed() == "v1"


def test_a_deployed_model_cannot_be_deleted() -> None:
    cluster = Deployed(deploy=True)
    assert cluster.ask("DELETE", f"models/{cluster.model}").status == 400
    assert cluster.ask("DELETE", f"connectors/{cluster.connector}").status == 409


def test_without_automatic_deployment_a_model_that_is_not_loaded_never_answers() -> None:
    """32:auto_deploy_off"""
    cluster = Deployed(deploy=True)
    cluster.core.settings.change({"transient": {"plugins.ml_commons.model_auto_deploy.enable": False}})
    assert cluster.executed() == "v1"
    cluster.undeploy()
    with pytest.raises(NoAnswer):
        cluster.core.execute(cluster.agent, {"parameters": {"question": "hi"}})
    cluster.ask("POST", f"models/{cluster.model}/_deploy")
    assert cluster.executed() == "v1"
