"""Registering, changing and removing connectors, models and agents, per version.

The texts are from recordings and source; other cases were probed on a real 3.6.0.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.simulator.core import ClusterCore
from gateway.simulator.errors import RestFailure
from gateway.simulator.store import NODE
from tests.simulator.test_search import CONNECTOR, ML, ask, reason

OFF = "The MCP connector is not enabled. To enable, please update the setting plugins.ml_commons.mcp_connector_enabled"
MCP = {
    "name": "mcp",
    "version": "1",
    "protocol": "mcp_sse",
    "url": "http://127.0.0.1:1",
    "credential": {"t": "secret"},
    "headers": {"Authorization": "Bearer ${credential.t}"},
    "parameters": {"sse_endpoint": "/sse"},
}
GEMINI = "gemini/v1beta/generatecontent"
SWITCH = {"persistent": {"plugins.ml_commons.mcp_connector_enabled": True}}


@pytest.fixture(params=["2.19.0", "3.4.0"])
def core(request: pytest.FixtureRequest) -> ClusterCore:
    return ClusterCore(request.param)


@pytest.fixture
def modern() -> ClusterCore:
    return ClusterCore("3.4.0")


def register(core: ClusterCore, **body: Any) -> tuple[int, str]:
    response = ask(core, "POST", f"{ML}/agents/_register", {"name": "a", "type": "flow", **body})
    return response.status, response.body["agent_id"] if response.status == 200 else reason(response)


def add_model(core: ClusterCore, inner: bool = False) -> tuple[str, str]:
    """A deployed model and its standalone connector ("" for one inside)."""
    where: dict[str, Any] = {"connector": CONNECTOR} if inner else core.resources.create_connector(CONNECTOR)
    made = core.resources.register_model({"name": "m", "function_name": "remote", **where}, deploy=True)
    return made["model_id"], where.get("connector_id", "")


def answer_of(core: ClusterCore, method: str, path: str, body: Any = None) -> tuple[int, str]:
    response = ask(core, method, f"{ML}/{path}", body)
    return response.status, reason(response) if "error" in response.body else response.body["result"]


# Removing


def test_what_is_in_use_is_not_deleted(core: ClusterCore) -> None:
    model_id, connector_id = add_model(core)
    deployed = "Model cannot be deleted in deploying or deployed state. Try undeploy model first then delete"
    used = f"1 models are still using this connector, please delete or update the models first: [{model_id}]"
    assert answer_of(core, "DELETE", f"models/{model_id}") == (400, deployed)
    assert answer_of(core, "DELETE", f"connectors/{connector_id}") == (409, used)
    ask(core, "POST", f"{ML}/models/{model_id}/_undeploy")
    assert answer_of(core, "DELETE", f"connectors/{connector_id}") == (409, used)
    assert answer_of(core, "DELETE", f"models/{model_id}") == (200, "deleted")
    response = ask(core, "DELETE", f"{ML}/connectors/{connector_id}")
    assert response.body == {
        "_index": ".plugins-ml-connector",
        "_id": connector_id,
        "_version": 2,
        "result": "deleted",
        "forced_refresh": True,
        "_shards": {"total": 1, "successful": 1, "failed": 0},
        "_seq_no": 1,
        "_primary_term": 1,
    }


def test_what_is_not_there(core: ClusterCore) -> None:
    add_model(core)
    assert answer_of(core, "DELETE", "agents/nope") == (404, "Failed to get agent index")
    register(core)
    assert answer_of(core, "DELETE", "agents/nope") == (404, "Fail to find ml agent")
    assert answer_of(core, "DELETE", "models/nope") == (404, "Failed to find model")
    assert answer_of(core, "DELETE", "connectors/nope") == (200, "not_found")
    assert answer_of(core, "POST", "models/nope/_deploy") == (404, "Failed to find model")
    assert answer_of(core, "POST", "models/nope/_undeploy") == (404, "Failed to find model")
    assert answer_of(core, "PUT", "connectors/nope", {})[0] == 404
    body = {"name": "m", "function_name": "remote", "connector_id": "nope"}
    assert answer_of(core, "POST", "models/_register", body) == (404, "Failed to find connector:nope")


def test_the_connector_of_a_write_not_yet_searchable_can_be_deleted(core: ClusterCore) -> None:
    core.resources.clock = lambda: 0.0
    core.resources.refresh_seconds = 1.0
    _, connector_id = add_model(core)  # the cluster asks its own `_search`, which lags
    assert answer_of(core, "DELETE", f"connectors/{connector_id}") == (200, "deleted")


def test_a_model_of_an_agent_is_kept_only_where_safe_deletes_are_on(core: ClusterCore) -> None:
    model_id, _ = add_model(core)
    tools = [{"type": "MLModelTool", "parameters": {"model_id": model_id}}]
    _, agent_id = register(core, tools=tools)
    _, by_llm = register(core, name="b", type="conversational", llm={"model_id": model_id})
    assert by_llm in core.resources.agents
    ask(core, "POST", f"{ML}/models/{model_id}/_undeploy")
    safe = {"persistent": {"plugins.ml_commons.safe_delete_model": True}}
    assert ask(core, "PUT", "/_cluster/settings", safe).status == 200
    message = "1 agents are still using this model, please delete or update the agents first, all visible agents are: "
    assert answer_of(core, "DELETE", f"models/{model_id}") == (409, f"{message}[{agent_id}]")
    ask(core, "PUT", "/_cluster/settings", {"persistent": {"plugins.ml_commons.safe_delete_model": None}})
    assert answer_of(core, "DELETE", f"models/{model_id}") == (200, "deleted")


# Deploying


def test_undeploying_and_deploying(core: ClusterCore) -> None:
    (first, _), (second, _) = add_model(core), add_model(core)
    path = f"{ML}/models/_undeploy"
    assert reason(ask(core, "POST", path)) == "Must set specific model ids to undeploy"
    assert ask(core, "POST", f"{ML}/models/{first}/_undeploy").body == {NODE: {"stats": {first: "undeployed"}}}
    shown = core.resources.model(first)
    assert (shown["model_state"], shown["current_worker_node_count"]) == ("UNDEPLOYED", 0)
    both = ask(core, "POST", path, {"model_ids": [first, second]})
    assert both.body == {NODE: {"stats": {first: "not_found", second: "undeployed"}}}
    assert reason(ask(core, "POST", path, {"model_ids": ["nope"]})) == "Failed to find model"
    refused = ask(core, "POST", f"{ML}/models/{first}/_undeploy", {"node_ids": ["x"]})
    assert reason(refused) == "Don't allow custom deployment plan"
    deployed = ask(core, "POST", f"{ML}/models/{first}/_deploy").body
    assert (deployed["task_type"], deployed["status"]) == ("DEPLOY_MODEL", "COMPLETED")
    assert core.resources.model(first)["model_state"] == "DEPLOYED"


def test_deploying_may_take_its_time(core: ClusterCore) -> None:
    now = 0.0
    core.resources.clock = lambda: now
    core.resources.deploy_seconds = 5.0
    model_id, _ = add_model(core)
    assert core.resources.model(model_id)["model_state"] == "REGISTERED"
    now = 5.0
    assert core.resources.model(model_id)["model_state"] == "DEPLOYED"


# Changing models and connectors


def test_an_inner_connector_is_changed_in_place(core: ClusterCore) -> None:
    model_id, _ = add_model(core, inner=True)
    action = {**CONNECTOR["actions"][0], "url": "http://127.0.0.1:2/y"}  # type: ignore[index]
    change = {"connector": {"parameters": {"x": "y"}, "actions": [action], "name": "new"}}
    response = ask(core, "PUT", f"{ML}/models/{model_id}", change)
    assert (response.body["result"], response.body.get("forced_refresh", False)) == ("updated", core.modern)
    assert core.resources.model(model_id)["connector"] == {
        **{name: value for name, value in CONNECTOR.items() if name != "credential"},
        "name": "new",
        "parameters": {"model": "m", "x": "y"},
        "actions": [{**action, "action_type": "PREDICT"}],
    }
    assert core.resources.models[model_id]["connector"]["credential"] == {"key": "secret"}


def test_a_connector_is_given_by_id_or_inside(core: ClusterCore) -> None:
    (standalone, connector_id), (inner, _) = add_model(core), add_model(core, inner=True)
    other = core.resources.create_connector(CONNECTOR)["connector_id"]
    both = "Model cannot have both stand-alone connector and internal connector. Please check your update input body."
    none = "This remote does not have a connector_id field, maybe it uses an internal connector."
    assert answer_of(core, "PUT", f"models/{inner}", {"connector": {}, "connector_id": other}) == (400, both)
    assert answer_of(core, "PUT", f"models/{inner}", {"connector_id": other}) == (400, none)
    assert answer_of(core, "PUT", f"models/{standalone}", {"connector_id": other}) == (200, "updated")
    assert core.resources.model(standalone)["connector_id"] == other != connector_id
    assert answer_of(core, "PUT", f"models/{standalone}", {"connector_id": "nope"}) == (200, "updated")  # not checked
    status, message = answer_of(core, "PUT", f"models/{standalone}", {"connector": {"parameters": {"x": "y"}}})
    assert status == (400 if core.modern else 500)
    modern = "Cannot update connector settings for this model."
    assert message.startswith(modern if core.modern else "Cannot invoke")


def test_a_connector_is_changed_while_nothing_deployed_uses_it(core: ClusterCore) -> None:
    model_id, connector_id = add_model(core)
    used = f"1 models are still using this connector, please undeploy the models first: [{model_id}]"
    assert answer_of(core, "PUT", f"connectors/{connector_id}", {"parameters": {"x": "y"}}) == (400, used)
    ask(core, "POST", f"{ML}/models/{model_id}/_undeploy")
    assert answer_of(core, "PUT", f"connectors/{connector_id}", {"parameters": {"x": "y"}}) == (200, "updated")
    assert core.resources.connector(connector_id)["parameters"] == {"model": "m", "x": "y"}
    assert core.resources.connectors[connector_id]["credential"] == {"key": "secret"}


def test_connector_checks(core: ClusterCore) -> None:
    def refusal(**changed: Any) -> tuple[int, str]:
        body = {name: value for name, value in {**CONNECTOR, **changed}.items() if value is not None}
        return answer_of(core, "POST", "connectors/_create", body)

    assert refusal(name=None) == (400, "Connector name is null")
    assert refusal(version=None) == (400, "Connector version is null")
    assert refusal(protocol=None) == (400, "Connector protocol is null")
    assert refusal(credential={}) == (400, "Connector credential is null or empty list")
    assert refusal(actions=None) == (400, "No actions configured for this connector")
    assert refusal(protocol="nope") == (400, "Can't find class for type nope")


# Changing agents


def test_agents_can_not_be_changed_before_3() -> None:
    core = ClusterCore("2.19.0")
    _, agent_id = register(core)
    response = ask(core, "PUT", f"{ML}/agents/{agent_id}", {"description": "new"})
    error = f"Incorrect HTTP method for uri [{ML}/agents/{agent_id}] and method [PUT], allowed: [GET, DELETE]"
    assert (response.status, response.body) == (405, {"error": error, "status": 405})


def test_changing_an_agent(modern: ClusterCore) -> None:
    old = {"type": "conversational", "llm": {"model_id": "m", "parameters": {"n": 5}}, "parameters": {"k": "v"}}
    _, agent_id = register(modern, **old, app_type="x")
    change = {
        "parameters": {"a": "b"},
        "llm": {"parameters": {"z": 1}},
        "memory": {"type": "conversation_index", "window_size": 3},
        "tools": [{"type": "ListIndexTool"}],
        "nosuch": 1,
    }
    assert answer_of(modern, "PUT", f"agents/{agent_id}", change) == (200, "updated")
    shown = {name: value for name, value in modern.resources.agent(agent_id).items() if not name.endswith("_time")}
    expected = {
        "name": "a",
        "type": "conversational",
        "app_type": "x",
        "llm": {"model_id": "m", "parameters": {"n": "5", "z": "1"}},
        "tools": [{"type": "ListIndexTool", "include_output_in_agent_response": False}],
        "parameters": {"k": "v", "a": "b"},
        "memory": {"type": "conversation_index", "window_size": 3},
        "is_hidden": False,
    }
    assert shown == expected
    nothings: list[dict[str, Any]] = [{}, {"parameters": {}}, {"tools": []}]
    for nothing in nothings:
        assert answer_of(modern, "PUT", f"agents/{agent_id}", nothing) == (200, "updated")
    shown = {name: value for name, value in modern.resources.agent(agent_id).items() if not name.endswith("_time")}
    assert shown == expected


def test_what_an_agent_can_not_become(modern: ClusterCore) -> None:
    _, agent_id = register(modern)
    path = f"agents/{agent_id}"
    assert answer_of(modern, "PUT", "agents/nope", {}) == (404, "Failed to get agent with ID nope")
    assert answer_of(modern, "PUT", path, {"type": "conversational"}) == (400, "Agent type cannot be updated")
    assert answer_of(modern, "PUT", path, {"memory": {"type": "x"}}) == (400, "Invalid memory type: x")
    limit = "Agent name cannot be empty or exceed max length of 128 characters"
    assert answer_of(modern, "PUT", path, {"name": ""}) == (400, limit)
    assert answer_of(modern, "PUT", path) == (400, "request body is required")


# Registering agents


def test_agent_checks(core: ClusterCore) -> None:
    needed = "We need model information for the conversational agent type"
    assert register(core, name=None) == (400, "Agent name can't be null")
    assert register(core, type=None) == (400, "Agent type can't be null")
    assert register(core, type="conversational_v2") == (400, "conversational_v2 is not a valid Agent Type")
    assert register(core, type="conversational") == (400, needed)
    assert register(core, type="conversational", llm={}) == (400, "model id is null")
    assert register(core, tools=[{"name": "t"}]) == (400, "tool type is null")
    assert register(core, tools=[{"type": "A"}, {"type": "A"}]) == (400, "Duplicate tool defined: A")
    assert register(core, type="conversational", model={"model_id": "m"}) == (400, needed)
    status, _ = register(core, type="conversational", llm={"model_id": "nope"}, memory={"type": "foo"})
    assert status == 200  # neither is checked


def test_interfaces_are_checked_from_3_on() -> None:
    def outcome(core: ClusterCore, interface: str) -> tuple[int, str]:
        parameters = {"_llm_interface": interface}
        return register(core, type="conversational", llm={"model_id": "m"}, parameters=parameters)

    modern = ClusterCore("3.4.0")
    assert outcome(modern, "a/b") == (400, "Invalid _llm_interface: a/b")
    assert outcome(modern, " ") == (400, "_llm_interface cannot be blank or empty")
    assert outcome(modern, "bedrock/converse/claude")[0] == 200
    assert outcome(modern, GEMINI) == (400, f"Invalid _llm_interface: {GEMINI}")
    assert outcome(ClusterCore("3.6.0"), GEMINI)[0] == 200
    assert outcome(ClusterCore("2.19.0"), "a/b")[0] == 200


def test_a_planner_gets_an_executor(modern: ClusterCore) -> None:
    planner = {
        "name": "p",
        "type": "plan_execute_and_reflect",
        "app_type": "x",
        "memory": {"type": "conversation_index"},
    }
    body = {**planner, "llm": {"model_id": "m"}, "parameters": {"k": "v"}}
    _, agent_id = register(modern, **body)
    executor_id, given = list(modern.resources.agents)
    assert given == agent_id
    shown = modern.resources.agent(agent_id)
    assert shown["parameters"] == {"k": "v", "executor_agent_id": executor_id}
    assert "description" not in shown
    executor = modern.resources.agent(executor_id)
    same = ("llm", "app_type", "memory", "is_hidden")
    assert {name: executor[name] for name in same} == {name: shown[name] for name in same}
    assert (executor["name"], executor["type"], executor["parameters"]) == ("p (ReAct)", "CONVERSATIONAL", {"k": "v"})
    needed = "We need model information for the conversational agent type"
    assert register(modern, type="plan_execute_and_reflect", parameters={}) == (400, needed)
    assert register(modern, type="plan_execute_and_reflect", llm={"model_id": "m"})[0] == 500
    named = {"executor_agent_id": executor_id}
    assert register(modern, type="plan_execute_and_reflect", llm={"model_id": "m"}, parameters=named)[0] == 200
    assert len(modern.resources.agents) == 3
    assert register(ClusterCore("2.19.0"), **body) == (400, "plan_execute_and_reflect is not a valid Agent Type")


# MCP


def test_mcp_is_off_until_it_is_switched_on(modern: ClusterCore) -> None:
    parameters = {"mcp_connectors": [{"mcp_connector_id": "x", "tool_filters": ["a"]}]}
    response = ask(modern, "POST", f"{ML}/connectors/_create", MCP)
    error = {"type": "exception", "reason": OFF}
    assert (response.status, response.body) == (500, {"error": {"root_cause": [error], **error}, "status": 500})
    assert register(modern, parameters=parameters) == (500, OFF)
    streamed = ask(modern, "POST", f"{ML}/connectors/_create", {**MCP, "protocol": "mcp_streamable_http"})
    assert streamed.status == 200  # not checked, as on a real 3.6.0
    assert ask(modern, "PUT", "/_cluster/settings", SWITCH).status == 200
    created = ask(modern, "POST", f"{ML}/connectors/_create", MCP).body["connector_id"]
    shown = modern.resources.connector(created)
    expected = {**MCP, "created_time": shown["created_time"], "last_updated_time": shown["last_updated_time"]}
    del expected["credential"]
    assert shown == expected
    status, agent_id = register(modern, parameters=parameters)
    assert status == 200
    text = '[{"mcp_connector_id":"x","tool_filters":["a"]}]'
    assert modern.resources.agent(agent_id)["parameters"] == {"mcp_connectors": text}


def test_mcp_connector_checks(modern: ClusterCore) -> None:
    ask(modern, "PUT", "/_cluster/settings", SWITCH)
    assert answer_of(modern, "POST", "connectors/_create", {**MCP, "url": " "}) == (
        400,
        "MCP Connector url is null or blank",
    )
    message = "Connector URL is not matching the trusted connector endpoint regex"
    assert answer_of(modern, "POST", "connectors/_create", {**MCP, "url": "ftp://x"}) == (400, message)
    assert ask(modern, "POST", f"{ML}/connectors/_create", {**MCP, "credential": {}}).status == 200


@pytest.mark.parametrize("protocol", ["mcp_sse", "mcp_streamable_http"])
def test_2_19_knows_no_mcp(protocol: str) -> None:
    classic = ClusterCore("2.19.0")
    body = {**MCP, "protocol": protocol}
    assert answer_of(classic, "POST", "connectors/_create", body) == (400, f"Can't find class for type {protocol}")
    unknown = "persistent setting [plugins.ml_commons.mcp_connector_enabled], not recognized"
    assert reason(ask(classic, "PUT", "/_cluster/settings", SWITCH)) == unknown
    assert register(classic, parameters={"mcp_connectors": "[]"})[0] == 200


def test_an_agent_runs_without_the_tools_of_a_server_out_of_reach(modern: ClusterCore) -> None:
    ask(modern, "PUT", "/_cluster/settings", SWITCH)
    mcp = modern.resources.create_connector(MCP)["connector_id"]
    action = {
        "action_type": "predict",
        "method": "POST",
        "url": "http://llm.invalid/model/m/converse",
        "request_body": '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}',
    }
    connector = {**CONNECTOR, "actions": [action]}
    model = modern.resources.register_model({"name": "m", "connector": connector}, deploy=True)["model_id"]
    parameters = {"_llm_interface": "bedrock/converse/claude", "mcp_connectors": [{"mcp_connector_id": mcp}]}
    llm = {"model_id": model, "parameters": {"prompt": "${parameters.question}"}}
    memory = {"type": "conversation_index"}
    _, agent_id = register(modern, type="conversational", llm=llm, parameters=parameters, memory=memory)
    result = modern.execute(agent_id, {"parameters": {"question": "hi"}})
    assert result.status == 200, result.body
    ask(modern, "PUT", "/_cluster/settings", {"persistent": {"plugins.ml_commons.mcp_connector_enabled": None}})
    result = modern.execute(agent_id, {"parameters": {"question": "hi"}})
    assert (result.status, result.body["error"]["details"]) == (500, OFF)


# Paths and filters


@pytest.mark.parametrize("slashes", ["/", "//"])
def test_slashes_at_the_end_of_a_path_are_ignored(modern: ClusterCore, slashes: str) -> None:
    made = ask(modern, "POST", f"/_plugins/_ml/memory{slashes}", {"name": "n"})
    path = f"/_plugins/_ml/memory/{made.body['memory_id']}"
    assert ask(modern, "GET", path + slashes) == ask(modern, "GET", path)
    assert ask(modern, "GET", "/_plugins/_ml/nothing/").status == 400


def test_a_filter_leaves_out_what_it_names_with_a_minus(modern: ClusterCore) -> None:
    def shown(query: str) -> Any:
        return ask(modern, "GET", f"/_plugins/_ml/memory/{id_}?filter_path={query}").body

    id_ = ask(modern, "POST", "/_plugins/_ml/memory", {"name": "n", "additional_info": {"a": "1", "b": "2"}}).body[
        "memory_id"
    ]
    whole = ask(modern, "GET", f"/_plugins/_ml/memory/{id_}").body
    info = whole.pop("additional_info")
    assert info == {"a": "1", "b": "2"}
    assert shown("-additional_info") == whole
    assert shown("-*.b") == {**whole, "additional_info": {"a": "1"}}
    assert shown("-**.a,-**.b") == whole
    assert shown("additional_info,-additional_info.a") == {"additional_info": {"b": "2"}}
    assert shown("-*") == {}


# Settings


def test_settings_as_the_gateway_reads_them(modern: ClusterCore) -> None:
    name = "plugins.ml_commons.mcp_connector_enabled"

    def shown(query: str) -> Any:
        return ask(modern, "GET", f"/_cluster/settings?{query}").body

    off = {"defaults": {"plugins": {"ml_commons": {"mcp_connector_enabled": "false"}}}}
    assert shown(f"include_defaults=true&filter_path=*.{name}") == off
    assert shown(f"include_defaults=true&filter_path=*.{name},*.plugins.ml_commons.unified_agent_api_enabled") == off
    assert shown(f"filter_path=*.{name}") == {}
    # As recorded, no such filter matches flat keys, unless a star matches the dots.
    assert shown(f"include_defaults=true&flat_settings=true&filter_path=*.{name}") == {}
    assert shown("include_defaults=true&flat_settings=true&filter_path=**.mcp_connector_enabled") == {}
    assert shown("include_defaults=true&flat_settings=true&filter_path=**.plugins.ml_commons*") == {}
    starred = shown("include_defaults=true&flat_settings=true&filter_path=*.plugins*mcp_connector_enabled")
    assert starred == {"defaults": {name: "false"}}
    assert shown("") == {"persistent": {}, "transient": {}}
    change = ask(modern, "PUT", "/_cluster/settings", SWITCH)
    on = {"plugins": {"ml_commons": {"mcp_connector_enabled": "true"}}}
    assert change.body == {"acknowledged": True, "persistent": on, "transient": {}}
    assert shown("") == {"persistent": on, "transient": {}}
    assert shown("flat_settings=true") == {"persistent": {name: "true"}, "transient": {}}
    assert shown(f"include_defaults=true&filter_path=*.{name}") == {"persistent": on}
    assert shown("include_defaults=true&filter_path=**.mcp_connector_enabled") == {"persistent": on}
    reset = ask(
        modern, "PUT", "/_cluster/settings", {"persistent": {"plugins.ml_commons": {"mcp_connector_enabled": None}}}
    )
    assert reset.body == {"acknowledged": True, "persistent": {}, "transient": {}}
    assert ask(modern, "GET", "/_cluster/settings?nope=1").status == 400


def test_settings_that_are_refused(core: ClusterCore) -> None:
    def refusal(body: Any) -> tuple[int, str]:
        response = ask(core, "PUT", "/_cluster/settings", body)
        return response.status, reason(response)

    unified = "plugins.ml_commons.unified_agent_api_enabled"
    assert refusal({}) == (400, "Validation Failed: 1: no settings to update;")
    assert refusal({"persistent": {unified: True}}) == (400, f"persistent setting [{unified}], not recognized")
    maybe = {"plugins.ml_commons.agent_framework_enabled": "maybe"}
    message = "Failed to parse value [maybe] as only [true] or [false] are allowed."
    assert refusal({"transient": maybe}) == (400, message)
    assert core.settings.shown(flat=True, include_defaults=False) == {"persistent": {}, "transient": {}}


@pytest.mark.parametrize("version", ["2.19.0", "3.4.0"])
def test_names_and_descriptions_of_models(version: str) -> None:
    """From 3.1 on they may have only letters, digits, spaces and some marks; a real 3.6.0 has the same errors."""
    core = ClusterCore(version)
    action = {"action_type": "predict", "method": "POST", "url": "http://127.0.0.1:1", "request_body": "{}"}
    connector = {"name": "c", "version": 1, "protocol": "http", "credential": {"k": "v"}, "actions": [action]}
    body = {"name": "a café, 2", "function_name": "remote", "description": "one; two", "connector": connector}
    if version == "2.19.0":
        assert core.resources.register_model(body, False)["status"] == "CREATED"
        return
    with pytest.raises(RestFailure) as refused:
        core.resources.register_model(body, False)
    assert refused.value.status == 400
    assert refused.value.body["error"]["reason"] == (
        "Validation Failed: 1: Model description can only contain letters, numbers, spaces, "
        "and basic punctuation (.,!?():@-_'/\");"
    )
