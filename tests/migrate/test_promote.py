"""What a legacy agent is registered as when it is promoted, what that changes, and when it is refused.

On a real cluster: tests/real_cluster/test_migration.py. The simulator has no `model` block, so here the cluster's
answers to it are given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.load import load
from gateway.config.schema import AgentRoute, RouteTarget
from gateway.migrate.promote import (
    PROMOTED,
    QUESTION,
    V2,
    NotPromoted,
    Obstacle,
    Promotion,
    connector_change,
    differences,
    promotion,
    routes_of,
)
from gateway.migrate.steps import Call
from gateway.migrate.upgrade import Documents
from gateway.mlcommons.profile import MARKS
from gateway.providers import registry
from gateway.providers.openai_chat import OpenAIChat
from gateway.simulator.core import ClusterCore
from gateway.simulator.fixtures import seed_core
from gateway.simulator.settings import UNIFIED_API


class Unified:
    """A simulated cluster with the unified API on, and the usual legacy agents."""

    def __init__(self, version: str) -> None:
        self.core = ClusterCore(version)
        self.core.settings.change({"persistent": {UNIFIED_API: True}})
        self.agents = seed_core(self.core, "https://llm.invalid")
        resources = self.core.resources
        self.documents = Documents(
            tuple(map(int, version.split("."))),
            {id_: resources.agent(id_) for id_ in resources.agents},
            {id_: resources.model(id_) for id_ in resources.models},
            {id_: resources.connector(id_) for id_ in resources.connectors},
            unified_api=True,
        )

    def register(self, found: Promotion) -> str:
        """Register the promoted agent as the command does."""
        body = {**found.body, "model": {**found.body["model"], "credential": dict.fromkeys(found.credential, "x")}}
        agent_id: str = self.core.register_agent(body)["agent_id"]
        resources = self.core.resources
        model_id = resources.agents[agent_id]["llm"]["model_id"]
        if change := connector_change(found, resources.model(model_id)):
            resources.update_model(model_id, change)
        assert not connector_change(found, resources.model(model_id))
        return agent_id

    def first_call(self, agent_id: str, **body: Any) -> dict[str, Any]:
        executed = self.core.execute(agent_id, body)
        first: dict[str, Any] = json.loads(executed.llm_bodies[0])
        return first


AGENTS = "/_plugins/_ml/agents"


def _documents(
    version: tuple[int, ...] = (3, 6, 0), unified_api: bool | None = True
) -> tuple[Documents, dict[str, str]]:
    core = ClusterCore("3.4.0")
    ids = seed_core(core, "https://llm.invalid")
    resources = core.resources
    documents = Documents(
        version,
        {id_: resources.agent(id_) for id_ in resources.agents},
        {id_: resources.model(id_) for id_ in resources.models},
        {id_: resources.connector(id_) for id_ in resources.connectors},
        unified_api=unified_api,
    )
    return documents, ids


def test_a_function_calling_agent() -> None:
    documents, ids = _documents()
    agent_id = ids["fc-bedrock_tutorial"]
    found = promotion(documents, agent_id)
    assert found.call == Call(
        "POST",
        f"{AGENTS}/_register",
        {
            "name": "fc-bedrock_tutorial",
            "type": "conversational",
            "app_type": "rag",
            "memory": {"type": "conversation_index"},
            "tools": documents.agents[agent_id]["tools"],
            "model": {
                "model_id": "claude-3-7",
                "model_provider": "bedrock/converse",
                "model_parameters": {"max_iteration": "5", "system_prompt": "Be brief."},
            },
            "parameters": {PROMOTED: agent_id},
        },
    )
    assert found.url == "https://llm.invalid/bedrock/model/claude-3-7/converse"
    assert found.credential == ("access_key", "secret_key", "session_token")
    assert found.changes == (
        "requests are signed with SigV4, with AWS keys as the credential",
        "old conversations continue: a memory_id is valid for any agent of the cluster",
    )


def test_what_a_react_agent_and_later_versions_change() -> None:
    documents, ids = _documents((3, 8, 0))
    agent_id = ids["conv-openai_tutorial"]
    agent = dict(documents.agents[agent_id])
    agent["llm"] = {**agent["llm"], "parameters": {**agent["llm"]["parameters"], "prompt": "You keep the library."}}
    found = promotion(replace(documents, agents={agent_id: agent}), agent_id)
    assert found.changes == (
        "tools are called through the LLM's function calling, and no longer explained in a prompt",
        "the agent's own prompt is not sent: put its important parts into system_prompt",
        'the LLM request has messages[1].content[0].text: "What does it say?" in place of "You keep the library."',
        "the LLM request gets max_completion_tokens: 4096",
        "the LLM request gets temperature: 1.0",
        "old conversations continue: a memory_id is valid for any agent of the cluster",
    )
    assert "response_filter" not in found.body["model"]["model_parameters"]


@pytest.mark.parametrize("agent_type", ["", V2])
def test_what_the_gateway_did_for_the_agent_ends(agent_type: str) -> None:
    documents, ids = _documents()
    agent_id = ids["fc-bedrock_tutorial"]
    agent = dict(documents.agents[agent_id])
    agent["parameters"] = {**agent["parameters"], "gw_memory": "sessions", "gw_output": "unified"}
    found = promotion(replace(documents, agents={agent_id: agent}), agent_id, agent_type, "container")
    assert not MARKS & found.body["parameters"].keys()
    assert "the cluster keeps what the agent remembers: the gateway's sessions are not continued" in found.changes
    assert ("answers have the legacy form" in found.changes) is (agent_type == "")
    assert not any("old conversations continue" in change for change in found.changes)


def test_members_of_the_template_that_are_lost_are_named() -> None:
    documents, ids = _documents()
    found = promotion(documents, ids["conv-bedrock_messages"])
    assert "the LLM request no longer has inferenceConfig.maxTokens: 500" in found.changes
    assert found.body["model"]["model_parameters"]["max_tokens"] == "500"


@pytest.mark.parametrize("agent_type", ["", V2])
@pytest.mark.parametrize("version", ["3.6.0", "3.8.0"])
def test_every_difference_of_the_first_llm_call_is_listed(version: str, agent_type: str) -> None:
    """Both agents are run on a simulated cluster, and what the LLM received is compared with the list."""
    cluster = Unified(version)
    compared = 0
    for name, agent_id in cluster.agents.items():
        try:
            found = promotion(cluster.documents, agent_id, agent_type, "container")
        except NotPromoted:
            continue
        provider = registry.provider(found.provider)
        turn = {"role": "user", provider.content_field: [provider.text_part(QUESTION)]}
        messages = {provider.messages_field: [turn]} if name.endswith(("_messages", "_contents")) else {}
        old = cluster.first_call(agent_id, parameters={"question": QUESTION, **messages})
        asked = {"input": QUESTION} if agent_type else {"parameters": {"question": QUESTION}}
        new = cluster.first_call(cluster.register(found), **asked)
        listed = {path for path in differences(old, new, provider) if any(f" {path}: " in one for one in found.changes)}
        assert listed == set(differences(old, new, provider)), name
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize("agent_type", ["", V2])
@pytest.mark.parametrize("name", ["conv-openai_tutorial", "fc-openai_tutorial"])
def test_openai_keeps_the_system_turn_and_its_role(name: str, agent_type: str) -> None:
    cluster = Unified("3.6.0")
    old = cluster.first_call(cluster.agents[name], parameters={"question": QUESTION})
    found = promotion(cluster.documents, cluster.agents[name], agent_type, "container")
    assert found.system_role == "developer"
    asked = {"input": QUESTION} if agent_type else {"parameters": {"question": QUESTION}}
    new = cluster.first_call(cluster.register(found), **asked)
    assert new["messages"][0] == old["messages"][0] == {"role": "developer", "content": "Be brief."}
    assert not [change for change in found.changes if "messages[0]" in change]


def test_a_template_without_messages_takes_no_system_turn() -> None:
    documents, ids = _documents()
    found = promotion(documents, ids["fc-openai_tutorial"])
    model = {"connector": {"actions": [{"url": found.url, "request_body": '{"contents":${parameters.contents}}'}]}}
    with pytest.raises(NotPromoted, match="no list of messages"):
        connector_change(found, model)


TURNS: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]], dict[str, tuple[Any, Any]]]] = {
    "the same": ([("user", "a")], [("user", "a")], {}),
    "another name of the system": (
        [("developer", "s"), ("user", "a")],
        [("system", "s"), ("user", "a")],
        {"messages[0].role": ("developer", "system")},
    ),
    "a turn less": (
        [("system", "s"), ("user", "a")],
        [("user", "a")],
        {"messages[0].role": ("system", None), "messages[0].content": ("s", None)},
    ),
    "a turn more": (
        [("user", "a")],
        [("system", "s"), ("user", "b")],
        {
            "messages[1].content": ("a", "b"),
            "messages[0].role": (None, "system"),
            "messages[0].content": (None, "s"),
        },
    ),
}


@pytest.mark.parametrize("name", TURNS)
def test_turns_are_compared_by_their_part_in_the_conversation(name: str) -> None:
    class Plain(OpenAIChat):
        def canonical(self, messages: Any) -> Any:
            return messages

    before, after, different = TURNS[name]
    bodies = [{"messages": [{"role": r, "content": t} for r, t in turns]} for turns in (before, after)]
    assert differences(bodies[0], bodies[1], Plain()) == different


@pytest.mark.parametrize("agent_type", ["", V2])
def test_the_system_prompt_is_kept_wherever_it_was(agent_type: str) -> None:
    cluster = Unified("3.6.0")
    agent_id = cluster.agents["fc-bedrock_tutorial"]
    old = cluster.first_call(agent_id, parameters={"question": QUESTION})
    found = promotion(cluster.documents, agent_id, agent_type, "container")
    asked = {"input": QUESTION} if agent_type else {"parameters": {"question": QUESTION}}
    new = cluster.first_call(cluster.register(found), **asked)
    assert new["system"] == old["system"] == [{"text": "Be brief."}]
    # Also if the template holds it.
    model = cluster.documents.models[cluster.documents.agents[agent_id]["llm"]["model_id"]]
    connector = dict(cluster.documents.connectors[model["connector_id"]])
    body = connector["actions"][0]["request_body"].replace("${parameters.system_prompt}", "Answer in verse.")
    connector["actions"] = [{**connector["actions"][0], "request_body": body}]
    documents = replace(
        cluster.documents, connectors={**cluster.documents.connectors, model["connector_id"]: connector}
    )
    found = promotion(documents, agent_id, agent_type, "container")
    assert cluster.first_call(cluster.register(found), **asked)["system"] == [{"text": "Answer in verse."}]


def test_v2_ignores_the_registered_number_of_iterations() -> None:
    documents, ids = _documents()
    agent_id = ids["fc-bedrock_tutorial"]
    agent = {**documents.agents[agent_id]}
    agent["llm"] = {**agent["llm"], "parameters": {**agent["llm"]["parameters"], "max_iteration": "9"}}
    found = promotion(replace(documents, agents={agent_id: agent}), agent_id, V2, "container")
    assert "max_iteration 9 is ignored, and 5 is used: send it with each request" in found.changes


def test_a_planner_gets_a_new_executor() -> None:
    documents, ids = _documents()
    found = promotion(documents, ids["per-bedrock_tutorial"])
    assert found.body["type"] == "plan_execute_and_reflect"
    assert "executor_agent_id" not in found.body["parameters"]
    assert "a new executor agent is created with it" in found.changes


def test_the_public_url_needs_no_second_call() -> None:
    documents, ids = _documents()
    agent_id = ids["fc-openai_tutorial"]
    model = documents.models[documents.agents[agent_id]["llm"]["model_id"]]
    connector = dict(documents.connectors[model["connector_id"]])
    action = {**connector["actions"][0], "url": "https://api.openai.com/v1/chat/completions"}
    changed = {**documents.connectors, model["connector_id"]: {**connector, "actions": [action]}}
    assert promotion(replace(documents, connectors=changed), agent_id).url == ""
    assert promotion(documents, agent_id).url == "https://llm.invalid/openai/v1/chat/completions"


def test_a_v2_agent() -> None:
    documents, ids = _documents()
    found = promotion(documents, ids["fc-openai_tutorial"], "conversational_v2", "container")
    assert found.body["type"] == "conversational_v2"
    assert found.body["memory"] == {"type": "agentic_memory", "memory_container_id": "container"}
    assert any("the cluster itself refuses `parameters.question`" in change for change in found.changes)


REFUSED: dict[str, tuple[dict[str, Any], str, tuple[str, str], Obstacle]] = {
    "2.19": ({"version": (2, 19, 0)}, "fc-bedrock_tutorial", ("", ""), Obstacle.CLUSTER_TOO_OLD),
    "3.4": ({"version": (3, 4, 0)}, "fc-bedrock_tutorial", ("", ""), Obstacle.CLUSTER_TOO_OLD),
    "off": ({"unified_api": False}, "fc-bedrock_tutorial", ("", ""), Obstacle.UNIFIED_API_OFF),
    "flow": ({}, "flow-bedrock_tutorial", ("", ""), Obstacle.TYPE_NOT_UNIFIED),
    "flow with memory": ({}, "cflow-bedrock_tutorial", ("", ""), Obstacle.TYPE_NOT_UNIFIED),
    "planner as v2": ({}, "per-bedrock_tutorial", ("conversational_v2", "c"), Obstacle.TYPE_NOT_UNIFIED),
    "v2 on 3.5": (
        {"version": (3, 5, 0)},
        "fc-bedrock_tutorial",
        ("conversational_v2", "c"),
        Obstacle.CLUSTER_TOO_OLD,
    ),
    "v2 with gemini": ({}, "conv-gemini_text", ("conversational_v2", "c"), Obstacle.PROVIDER_FAILS),
    "v2 without memory": ({}, "fc-bedrock_tutorial", ("conversational_v2", ""), Obstacle.NO_MEMORY_CONTAINER),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    options, name, (type_, container), obstacle = REFUSED[case]
    documents, ids = _documents(**options)
    with pytest.raises(NotPromoted) as refused:
        promotion(documents, ids[name], type_, container)
    assert refused.value.obstacle is obstacle


def test_refusals_by_what_stands_behind() -> None:
    documents, ids = _documents()
    agent_id = ids["fc-bedrock_tutorial"]
    unified = {**documents.agents[agent_id], "model": {"model_id": "m", "model_provider": "bedrock/converse"}}
    with pytest.raises(NotPromoted) as refused:
        promotion(replace(documents, agents={agent_id: unified}), agent_id)
    assert refused.value.obstacle is Obstacle.ALREADY_UNIFIED
    with pytest.raises(NotPromoted) as refused:
        promotion(replace(documents, models={}), agent_id)
    assert refused.value.obstacle is Obstacle.AGENT_UNREADABLE
    bare = {id_: {**doc, "parameters": {}} for id_, doc in documents.connectors.items()}
    with pytest.raises(NotPromoted) as refused:
        promotion(replace(documents, connectors=bare), agent_id)
    assert refused.value.obstacle is Obstacle.MODEL_UNKNOWN


def test_the_route_is_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(routes_of({"old-id": "new-id"}))
    assert load(file).agents.routes == [AgentRoute("old-id", [RouteTarget("new-id", weight=1)])]
    file.write_text(routes_of({"a": "b", "c": "d"}))
    assert [route.agent for route in load(file).agents.routes] == ["a", "c"]
