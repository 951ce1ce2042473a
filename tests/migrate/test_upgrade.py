"""Which calls an upgrade consists of, for each way a connector can stand, against the recorded ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.delivery.template_change import Code
from gateway.migrate.steps import MADE, Call, Step, marker, part
from gateway.migrate.upgrade import Documents, Offer, Refused, offers, served
from tests.migrate.conftest import Deployment, StartDeployment
from tests.migrate.upgrading import (
    ADDED,
    NEW,
    OLD,
    SECRET,
    TAG,
    documents_of,
    flow,
    internal,
    model_on,
    offered,
    standalone,
)

ML = "/_plugins/_ml/"
RECORDED = Path(__file__).parents[1] / "recordings" / "2.19.0" / "10_upgrade.jsonl"


def _recorded(name: str) -> dict[str, Any]:
    lines = map(json.loads, RECORDED.read_text().splitlines())
    found: dict[str, Any] = next(line for line in lines if line["name"] == name)
    return found


def _only(found: list[Offer | Refused]) -> Offer:
    (offer,) = found
    assert isinstance(offer, Offer), offer
    return offer


def _with_tools(connector: dict[str, Any]) -> dict[str, Any]:
    """A recorded connector with the slot for tools, which was not in the trial."""
    actions = [{**action, "request_body": NEW} for action in connector["actions"]]
    added = {"tools_member": ADDED["tools_member"]}
    return {**connector, "actions": actions, "parameters": {**connector["parameters"], **added}}


def test_an_internal_connector_is_changed_by_one_call_as_recorded() -> None:
    request = _recorded("put_model_internal_connector_while_deployed")
    model_id = request["path"].rpartition("/")[2]
    after = _recorded("get_model_internal_after_put")["answer"]
    inner = after["connector"]
    action = {**inner["actions"][0], "request_body": OLD}
    before = {**after, "connector": {**inner, "parameters": {"model": "claude-3"}, "actions": [action]}}
    agent = _recorded("agent_flow_int2")["body"]
    documents = Documents((2, 19, 0), {"agent": agent}, {model_id: before}, {})

    offer = _only(offers(documents, ["agent"], TAG))

    (step,) = offer.steps
    assert (step.call.method, step.call.path) == ("PUT", request["path"])
    assert step.call.body is not None
    # The recording writes the action as it was created; ours as GET shows it: `predict` in capitals.
    sent = {**request["body"]["connector"]["actions"][0], "action_type": "PREDICT"}
    assert step.call.body == {"connector": _with_tools({**request["body"]["connector"], "actions": [sent]})}
    assert step.after == _with_tools(part(step.place, after))
    old = {"actions": [action], "parameters": {"model": "claude-3"}}
    assert step.undo == Call("PUT", request["path"], {"connector": old})


def test_a_standalone_connector_is_changed_while_nothing_uses_it_as_recorded() -> None:
    request = _recorded("put_connector_after_undeploy")
    after = _recorded("get_connector_after_put")["answer"]
    connector_id = request["path"].rpartition("/")[2]
    model_id = _recorded("undeploy")["path"].split("/")[-2]
    action = {**after["actions"][0], "request_body": OLD}
    before = {**after, "parameters": {"model": "claude-3"}, "actions": [action]}
    agent = _recorded("agent_flow_up1")["body"]
    model = {"connector_id": connector_id, "model_state": "DEPLOYED"}
    documents = Documents((2, 19, 0), {"agent": agent}, {model_id: model}, {connector_id: before})

    offer = _only(offers(documents, ["agent"], TAG))

    (write,) = offer.steps
    undeploy = Call("POST", f"{ML}models/_undeploy", {"model_ids": [model_id]})
    deploy = Call("POST", f"{ML}models/{model_id}/_deploy")
    assert offer.calls == [undeploy, write.call, undeploy, deploy]
    sent = {**request["body"]["actions"][0], "action_type": "PREDICT"}
    assert write.call == Call("PUT", request["path"], _with_tools({**request["body"], "actions": [sent]}))
    assert write.after == _with_tools(part(write.place, after))
    assert write.restored == {**write.before, "parameters": {"model": "claude-3", **ADDED}}


def test_a_shared_connector_is_upgraded_for_all_its_models_in_one_change(deployment: Deployment) -> None:
    connector_id, first = standalone(deployment)
    second = model_on(deployment, connector_id, "other")
    asked_for, other = flow(deployment, first), flow(deployment, second, "other")
    offer = _only(offered(deployment, asked_for))
    assert offer.key == f"connectors/{connector_id}"
    assert offer.models == tuple(sorted((first, second)))
    assert (offer.named, offer.others) == ((asked_for,), (other,))
    assert [step.action for step in offer.steps] == ["write"]
    called = [call.path.rpartition("/")[2] for call in offer.calls]
    assert called == ["_undeploy", connector_id, "_undeploy", "_deploy", "_deploy"]
    assert [effect.gained for effect in offer.effects] == [("image", "document", "video")] * 2


def test_a_model_that_is_not_deployed_is_not_deployed_afterwards_either(deployment: Deployment) -> None:
    connector_id, model = standalone(deployment)
    deployment.post(f"{ML}models/{model}/_undeploy", {}, deployment.url)
    offer = _only(offered(deployment, flow(deployment, model)))
    assert [call.path.rpartition("/")[2] for call in offer.calls] == ["_undeploy", connector_id, "_undeploy"]


def test_a_new_connector_serves_one_model_and_holds_no_credential(deployment: Deployment) -> None:
    connector_id, model = standalone(deployment)
    other = flow(deployment, model_on(deployment, connector_id, "other"), "other")
    agent = flow(deployment, model)
    offer = _only(offered(deployment, agent, new_connector=True))
    create, attach = offer.steps
    old = deployment.cluster.core.resources.connector(connector_id)
    assert create.call.body is not None
    assert create.call.path == f"{ML}connectors/_create"
    assert create.call.body == {
        **{name: value for name, value in old.items() if not name.endswith("_time")},
        "description": f"of the test {marker(offer.tag)}",
        "parameters": {"model": "claude-3", **ADDED},
        "actions": [{**old["actions"][0], "request_body": NEW}],
    }
    assert create.undo == Call("DELETE", f"{ML}connectors/{MADE}")
    path = f"{ML}models/{model}"
    assert attach == Step(
        "attach",
        Call("PUT", path, {"connector_id": MADE}),
        Call("PUT", path, {"connector_id": connector_id}),
        f"models/{model}/connector_id",
        connector_id,
        MADE,
        connector_id,
    )
    assert other not in (*offer.named, *offer.others)
    assert SECRET not in repr(offer)


def test_an_internal_connector_needs_no_new_one(deployment: Deployment) -> None:
    offer = _only(offered(deployment, flow(deployment, internal(deployment)), new_connector=True))
    assert [step.action for step in offer.steps] == ["write"]


def test_the_agent_that_runs_a_named_planners_steps_counts_as_named(start_deployment: StartDeployment) -> None:
    deployment = start_deployment("3.4.0")
    _, model = standalone(deployment, TUTORIAL)
    planner = _planner(deployment, model)
    parameters = deployment.cluster.core.resources.agents[planner]["parameters"]
    offer = _only(offered(deployment, planner))
    assert (offer.named, offer.others) == ((planner, parameters["executor_agent_id"]), ())

    # Another planner, which was not named, runs its steps with the same agent.
    other = _planner(deployment, model, **parameters)
    offer = _only(offered(deployment, planner))
    assert (offer.named, set(offer.others)) == ((planner,), {parameters["executor_agent_id"], other})


TUTORIAL = (
    '{"system":[{"text":"${parameters.system_prompt}"}],"messages":[${parameters._chat_history:-}'
    '{"role":"user","content":[{"text":"${parameters.prompt}"}]}${parameters._interactions:-}]'
    "${parameters.tool_configs:-}}"
)


def _planner(deployment: Deployment, model_id: str, **parameters: str) -> str:
    llm = {"model_id": model_id, "parameters": {"prompt": "${parameters.question}"}}
    interface = {"_llm_interface": "bedrock/converse/claude"}
    return deployment.register(
        {
            "name": "planner",
            "type": "plan_execute_and_reflect",
            "llm": llm,
            "memory": {"type": "conversation_index"},
            "parameters": {**interface, **parameters},
            "tools": [{"type": "ListIndexTool"}],
        }
    )


def test_two_new_connectors_have_two_marks(deployment: Deployment) -> None:
    _, first = standalone(deployment)
    _, second = standalone(deployment)
    made = offered(deployment, flow(deployment, first), flow(deployment, second, "other"), new_connector=True)
    tags = {offer.tag for offer in made if isinstance(offer, Offer)}
    assert len(tags) == 2


def test_an_agent_with_two_llms_gets_both_upgraded(deployment: Deployment) -> None:
    models = [standalone(deployment)[1], internal(deployment)]
    tools = [
        {
            "type": "MLModelTool",
            "name": f"llm{index}",
            "parameters": {"model_id": model, "prompt": "${parameters.question}"},
        }
        for index, model in enumerate(models)
    ]
    agent = deployment.register({"name": "two", "type": "flow", "tools": tools})
    keys = {one.key.partition("/")[0] for one in offered(deployment, agent)}
    assert keys == {"connectors", "models"}


@pytest.mark.parametrize(
    ("name", "code"),
    [("flow-b", Code.ALREADY_UPGRADED), ("flow-c", Code.TEXT_ENDPOINT)],
)
def test_connectors_that_are_left_alone(deployment: Deployment, name: str, code: Code) -> None:
    (refused,) = offered(deployment, name)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.named) == (code, (deployment.agents[name],))


def test_an_agent_that_shares_the_model_and_has_the_parameter_of_its_own_stops_it(deployment: Deployment) -> None:
    _, model = standalone(deployment)
    agent = flow(deployment, model)
    other = flow(deployment, model, "own", messages="[]")
    (refused,) = offered(deployment, agent)
    assert isinstance(refused, Refused)
    assert refused.code is Code.LEGACY_CHANGES
    assert other in refused.reason


def test_an_agent_that_shares_the_model_and_cannot_be_read_stops_it(deployment: Deployment) -> None:
    _, model = standalone(deployment)
    agent = flow(deployment, model)
    tools = [
        {"type": "MLModelTool", "name": str(i), "parameters": {"model_id": id_}}
        for i, id_ in enumerate((model, "gone"))
    ]
    deployment.register({"name": "broken", "type": "flow", "tools": tools})
    (refused,) = offered(deployment, agent)
    assert isinstance(refused, Refused)
    assert refused.code is Code.NO_CONNECTOR
    assert "gone" in refused.reason


def test_an_agent_of_an_unknown_type_on_the_same_model_stops_it(deployment: Deployment) -> None:
    _, model = standalone(deployment)
    agent = flow(deployment, model)
    documents, ids = documents_of(deployment, agent)
    strange = {"name": "strange", "type": "ag_ui", "llm": {"model_id": model}}
    (refused,) = offers(replace(documents, agents={**documents.agents, "strange": strange}), ids, TAG)
    assert isinstance(refused, Refused)
    assert refused.code is Code.UNKNOWN_AGENT_TYPE


def test_agents_without_an_llm_and_with_a_missing_one(deployment: Deployment) -> None:
    lister = deployment.register({"name": "lister", "type": "flow", "tools": [{"type": "CatIndexTool"}]})
    broken = flow(deployment, "gone", "broken")
    codes = [one.code for one in offered(deployment, lister, broken) if isinstance(one, Refused)]
    assert codes == [Code.NO_LLM, Code.NO_CONNECTOR]


def test_where_splicing_delivers_everything_already_nothing_is_offered(start_deployment: Any) -> None:
    deployment: Deployment = start_deployment("3.4.0")
    body = '{"contents":[{"role":"user","parts":[{"text":"${parameters.prompt}"}]}]}'
    connector_id, model = standalone(deployment, body)
    core = deployment.cluster.core.resources
    core.connectors[connector_id]["actions"][0]["url"] = (
        f"{deployment.cluster.llm_url}/gemini/v1beta/models/m:generateContent"
    )
    agent = deployment.register(
        {
            "name": "gemini",
            "type": "flow",
            "tools": [
                {"type": "MLModelTool", "parameters": {"model_id": model, "prompt": "Q: ${parameters.question}"}}
            ],
        }
    )
    (refused,) = offered(deployment, agent)
    assert isinstance(refused, Refused)
    assert refused.code is Code.NO_GAIN


def test_models_of_a_connector(deployment: Deployment) -> None:
    connector_id, first = standalone(deployment)
    models = {first: {"connector_id": connector_id}, "other": {"connector_id": "x"}, "own": {"connector": {}}}
    documents = Documents((2, 19, 0), {}, models, {})
    assert served(documents, f"connectors/{connector_id}") == (first,)
