"""``mlc-gateway move``: what is copied, mapped, compared and written, and what keeps an agent from being moved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import load
from gateway.migrate.display import next_shift
from tests.migrate.conftest import Command, Deployment, StartDeployment
from tests.migrate.moving import COMMENT, LLM_SECRET, NEW_SECRET, Move, documents, llm_tool
from tests.migrate.upgrading import connector_body, flow, llm_body, make, model_on, standalone

NOTHING: dict[str, Any] = {"connectors": {}, "model_groups": {}, "models": {}, "agents": {}}


@pytest.fixture
def move(start_deployment: StartDeployment, tmp_path: Path) -> Move:
    """An agent on 2.19.0, and an empty cluster of 3.8.0."""
    return empty(Move(start_deployment("2.19.0"), start_deployment("3.8.0"), tmp_path))


def empty(move: Move) -> Move:
    for found in move.made().values():
        assert found  # those of the simulator
    resources = move.new.cluster.core.resources
    for found in (resources.agents, resources.models, resources.connectors, resources.groups):
        found.clear()
    return move


def _report(command: Command, move: Move, *more: str, status: int = 0) -> dict[str, Any]:
    """Run the command with its credentials and return its JSON."""
    code, out, err = command(*move.argv_with_credentials("--json", *more))
    assert code == status, (out, err)
    found: dict[str, Any] = json.loads(out)
    return found


def _writes(deployment: Deployment) -> list[str]:
    reads = ("GET ", "POST /_plugins/_ml/agents/_search", "POST /_plugins/_ml/models/_search")
    others = ("POST /_plugins/_ml/connectors/_search", "POST /_plugins/_ml/model_groups/_search")
    return [call for call in deployment.cluster.calls if not call.startswith((*reads, *others))]


def test_an_agent_with_all_that_it_uses_answers_on_the_other_cluster(move: Move, command: Command) -> None:
    before = documents(move.old.cluster.core)
    move.old.cluster.requests.clear()
    report = _report(command, move)
    made = move.made()
    assert {kind: len(found) for kind, found in made.items()} == {
        "connectors": 2,
        "model_groups": 2,
        "models": 2,
        "agents": 2,
    }
    new_id = report["agents"][0]["new_id"]
    assert (new_id, report["result"]) == (move.target, "moved")
    agent = made["agents"][new_id]
    ids = {copy["id"]: copy["new_id"] for copy in report["copies"]}
    names = ("model_id", "agent_id", "connector_id")
    named = [tool["parameters"][name] for name, tool in zip(names, agent["tools"], strict=True)]
    assert named == [ids[move.model], ids[move.sub], ids[move.tool_connector]]
    assert (agent["name"], agent["description"]) == ("main", "an agent that is moved")
    connector = made["connectors"][ids[move.connector]]
    assert connector["credential"] == {"key": LLM_SECRET}
    assert connector["actions"] == before["connectors"][move.connector]["actions"]
    assert made["models"][ids[move.model]]["connector_id"] == ids[move.connector]
    assert move.new.cluster.core.resources.is_deployed(ids[move.model])
    assert made["model_groups"][ids[move.group]]["name"] == "group of the test"
    assert _writes(move.old) == []
    assert documents(move.old.cluster.core) == before
    # It runs there, and the LLM gets the same: its address is that of the old agent's.
    legacy = llm_body(move.old, move.sub)
    body = {"parameters": {"question": 'say "hi" ${x} ü'}}
    status, answer, _ = move.new.post(f"/_plugins/_ml/agents/{ids[move.sub]}/_execute", body, move.new.url)
    assert status == 200, answer
    assert move.old.cluster.received[-2:] == [legacy, legacy]


def test_the_route_is_written_with_weight_0_and_all_comments_kept(move: Move, command: Command) -> None:
    before = move.config.read_text()
    _report(command, move)
    (route,) = move.settings.agents.routes
    assert route.agent == move.agent
    targets = [(one.agent, one.cluster, one.weight) for one in route.targets]
    assert targets == [(move.agent, "", 100), (move.target, "new", 0)]
    after = move.config.read_text()
    assert all(line in after for line in (COMMENT, "# the new one", "# few"))
    (backup,) = move.folder.glob("gateway.yaml.before-*")
    assert backup.read_text() == before


def test_what_it_says_on_a_terminal(move: Move, command: Command) -> None:
    status, out, err = command(*move.argv_with_credentials())
    assert (status, err) == (0, "")
    assert f"8 of 8: agents/{move.agent} is agents/{move.target} there" in out
    checks = _report(command, move)["agents"][0]["checks"]
    same = sum(check["result"] == "same" for check in checks)
    assert f"main ({move.agent}): {same} of {len(checks)} kinds of requests reach its LLM there as here" in out
    assert all((check["result"] == "refused by both") == (f" {check['request']}" in out) for check in checks)
    assert "Reload the gateways to use the new ones: POST /reload of the admin port, or SIGHUP." in out
    assert f"main ({move.agent}) is {move.target} on new, and gets 0 % of new conversations." in out
    assert f"mlc-gateway shift --to new --percent 5 --config {move.config} {move.agent}\n" in out
    compare = f"mlc-gateway rehearse --as {move.target} --in-cluster new --config {move.config} {move.agent}\n"
    assert compare in out


def test_what_it_says_of_a_copy_that_gets_requests(move: Move, command: Command) -> None:
    """Nothing that would take a share away from it."""
    _report(command, move)
    move.config.write_text(move.config.read_text().replace("weight: 0}", "weight: 300}"))
    status, out, _ = command(*move.argv())
    assert (status, "mlc-gateway shift" in out) == (0, False)
    assert f"main ({move.agent}) is {move.target} on new, and gets 75 % of new conversations." in out
    assert len([line for line in out.splitlines() if line.endswith("  existed")]) == 8


def test_the_beginning_of_an_id_that_is_an_option(move: Move, command: Command) -> None:
    """`--` keeps an id from being one in the commands that are shown."""
    shown = next_shift(move.config, "-abc", "new", 5)
    assert shown == f"mlc-gateway shift --to new --percent 5 --config {move.config} -- -abc"


def test_a_dry_run_changes_nothing(move: Move, command: Command) -> None:
    before = move.config.read_text()
    move.old.cluster.requests.clear()
    move.new.cluster.requests.clear()
    report = _report(command, move, "--dry-run")
    assert report["result"] == "planned"
    assert [copy["exists_already"] for copy in report["copies"]] == [False] * 8
    assert f"+    - agent: {move.agent}" in report["settings"]["diff"]
    assert report["settings"]["backup"] is None
    assert (_writes(move.old), _writes(move.new), move.made()) == ([], [], NOTHING)
    assert move.config.read_text() == before
    assert not (move.folder / "backups").exists()
    planned = [{**check, "help": ""} for check in report["agents"][0]["checks"]]  # the help names ids
    assert [{**check, "help": ""} for check in _report(command, move)["agents"][0]["checks"]] == planned


def test_it_can_be_run_again(move: Move, command: Command) -> None:
    first = _report(command, move)
    made, settings = move.made(), move.config.read_text()
    move.new.cluster.requests.clear()
    status, out, _ = command(*move.argv("--json"))  # no credential is needed
    again = json.loads(out)
    assert status == 0
    assert [copy["new_id"] for copy in again["copies"]] == [copy["new_id"] for copy in first["copies"]]
    assert all(copy["exists_already"] for copy in again["copies"])
    assert (_writes(move.new), move.made(), move.config.read_text()) == ([], made, settings)


@pytest.mark.parametrize("journal_is_there", [True, False])
def test_a_copy_that_somebody_deleted_is_made_again(move: Move, command: Command, journal_is_there: bool) -> None:
    _report(command, move)
    old_target = move.target
    del move.new.cluster.core.resources.agents[old_target]
    if not journal_is_there:
        (file,) = (move.folder / "backups").glob("move-*.json")
        file.unlink()
    report = _report(command, move)
    assert [copy["kind"] for copy in report["copies"] if not copy["exists_already"]] == ["agents"]
    assert len(move.made()["agents"]) == 2
    assert report["agents"][0]["new_id"] != old_target


def test_what_a_move_made_is_removed_again(move: Move, command: Command) -> None:
    _report(command, move)
    removed = _report(command, move, "--undo")["removed"]
    assert len(removed) == 8
    assert move.made() == NOTHING
    assert move.settings.agents.routes == []
    assert COMMENT in move.config.read_text()
    assert _report(command, move, "--undo")["removed"] == []


def test_a_target_with_a_weight_is_not_removed(move: Move, command: Command) -> None:
    _report(command, move)
    move.config.write_text(move.config.read_text().replace("weight: 0}", "weight: 5}"))
    status, _, err = command(*move.argv("--undo"))
    assert status == 2
    assert f"`{next_shift(move.config, move.agent, move.agent, 100)}`" in err
    assert len(move.made()["agents"]) == 2


def test_what_another_agent_uses_stays(move: Move, command: Command) -> None:
    _report(command, move)
    (model,) = (id_ for id_, found in move.made()["models"].items() if found["name"] == "outer")
    own = flow(move.new, model, "of the new cluster")
    report = _report(command, move, "--undo")
    left = move.made()
    assert len(report["removed"]) == 5
    assert (list(left["agents"]), list(left["models"])) == ([own], [model])
    assert len(left["connectors"]) == 1
    assert len(left["model_groups"]) == 1


def _second(move: Move) -> str:
    """Another agent of the old cluster, with the model of the first and one of its own."""
    own = model_on(move.old, make(move.old, "connectors/_create", connector_body(move.old))["connector_id"], "own")
    tools = [llm_tool(move.model), {**llm_tool(own), "name": "second"}]
    return move.old.register({"name": "second", "type": "flow", "tools": tools})


def test_what_two_agents_share_is_copied_once(move: Move, command: Command) -> None:
    second = _second(move)
    own = documents(move.old.cluster.core)["agents"][second]["tools"][1]["parameters"]["model_id"]
    connector = documents(move.old.cluster.core)["models"][own]["connector_id"]
    found = json.loads(move.credentials.read_text())
    move.write_credentials({**found, f"connectors/{connector}": {"key": LLM_SECRET}})
    argv = move.argv_with_credentials("--json")
    status, out, err = command(argv[0], second, *argv[1:])
    assert status == 0, err
    assert [agent["id"] for agent in json.loads(out)["agents"]] == [second, move.agent]
    assert {kind: len(found) for kind, found in move.made().items()} == {
        "connectors": 3,
        "model_groups": 3,
        "models": 3,
        "agents": 3,
    }
    assert [route.agent for route in move.settings.agents.routes] == [second, move.agent]
    # To take back the first leaves what the second uses.
    report = _report(command, move, "--undo")
    assert {kind: len(found) for kind, found in move.made().items()} == {
        "connectors": 2,
        "model_groups": 2,
        "models": 2,
        "agents": 1,
    }
    assert len(report["removed"]) == 5
    assert [route.agent for route in move.settings.agents.routes] == [second]


def test_a_second_move_that_fails_leaves_what_the_first_has_made(move: Move, command: Command) -> None:
    _report(command, move)
    made, settings = move.made(), move.config.read_text()
    move.agent = _second(move)
    move.write_credentials({"key": LLM_SECRET})
    move.new.cluster.refusals["POST /_plugins/_ml/agents/_register"] = 403
    status, out, err = command(*move.argv_with_credentials())
    assert status == 3, (out, err)
    assert (move.made(), move.config.read_text()) == (made, settings)


# Ids that are not copied


LOCAL = {"name": "embeddings", "algorithm": "TEXT_EMBEDDING", "created_time": 1, "last_updated_time": 1}


def _searching(move: Move, **parameters: str) -> str:
    """An agent that searches an index by a model which is made of files."""
    resources = move.old.cluster.core.resources
    resources.models["local"] = dict(LOCAL)
    resources.deployments.add("local", None)
    tool = {
        "type": "VectorDBTool",
        "name": "search",
        "parameters": {"model_id": "local", "index": "books", **parameters},
    }
    move.agent = move.old.register({"name": "searcher", "type": "flow", "tools": [tool, llm_tool(move.model)]})
    return move.agent


def test_ids_that_only_the_old_cluster_has_keep_it_from_being_moved(move: Move, command: Command) -> None:
    _searching(move)
    status, _, err = command(*move.argv_with_credentials())
    place = f"agents/{move.agent}.tools[0].parameters"
    assert status == 2
    assert f"{place}.model_id names models/local" in err
    assert f"{place}.index names indices/books" in err
    assert "say what each is called there with --map OLD=NEW, or add --keep-ids" in err
    assert move.made() == NOTHING
    report = _report(command, move, "--dry-run", status=1)
    assert {one["id"]: one["state"] for one in report["references"]} == {"local": "unmapped", "books": "unmapped"}
    _report(command, move, "--keep-ids")
    assert move.made()["agents"][move.target]["tools"][0]["parameters"]["index"] == "books"


def test_ids_are_mapped(move: Move, command: Command) -> None:
    _searching(move, input='{"index_name": "books", "model_id": "local"}', name="books")
    own = model_on(move.new, make(move.new, "connectors/_create", connector_body(move.new))["connector_id"], "own")
    move.new.cluster.refusals["GET /_resolve/index/books-v2"] = lambda: {"indices": [{"name": "books-v2"}]}
    report = _report(command, move, "--map", f"local={own}", "--map", "books=books-v2")
    assert report["references"] == []
    parameters = move.made()["agents"][move.target]["tools"][0]["parameters"]
    assert parameters == {
        "model_id": own,
        "index": "books-v2",
        "input": f'{{"index_name": "books-v2", "model_id": "{own}"}}',
        "name": "books",
    }


def test_what_the_new_cluster_has_under_the_same_id_is_no_obstacle(move: Move, command: Command) -> None:
    _searching(move)
    move.new.cluster.core.resources.models["local"] = dict(LOCAL)
    move.new.cluster.core.resources.deployments.add("local", None)
    move.new.cluster.refusals["GET /_resolve/index/books"] = lambda: {"indices": [], "aliases": [{"name": "books"}]}
    report = _report(command, move)
    assert [one["state"] for one in report["references"]] == ["same", "same"]


def test_a_model_is_not_copied_if_it_is_mapped(move: Move, command: Command) -> None:
    own = model_on(move.new, make(move.new, "connectors/_create", connector_body(move.new))["connector_id"], "own")
    report = _report(command, move, "--map", f"{move.model}={own}")
    assert move.made()["agents"][move.target]["tools"][0]["parameters"]["model_id"] == own
    assert move.model not in [copy["id"] for copy in report["copies"]]


@pytest.mark.parametrize(
    ("mapped", "message"),
    [
        ("nobody=x", "nothing that is moved names nobody"),
        ("local=x", "the new cluster has no x among its models"),
        ("local", "--map local is not OLD=NEW."),
    ],
)
def test_a_wrong_map(move: Move, command: Command, mapped: str, message: str) -> None:
    _searching(move)
    status, _, err = command(*move.argv_with_credentials("--map", mapped))
    assert status == 2
    assert message in err
    assert move.made() == NOTHING


# Credentials


def test_credentials_are_asked_for(move: Move, command: Command) -> None:
    status, _, err = command(*move.argv())
    assert status == 2
    assert "give --credential-file FILE" in err
    assert move.made() == NOTHING


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda all, move: all.pop(f"models/{move.inner}"), "has no credential for models/{inner}: it must hold {"),
        (
            lambda all, move: all[f"models/{move.inner}"].update(k="x"),
            "has no `key` for models/{inner}: it must hold {",
        ),
        (lambda all, move: all[f"models/{move.inner}"].pop("key"), "has no credential for models/{inner}"),
    ],
)
def test_a_credential_is_missing(
    move: Move, command: Command, change: Callable[[dict[str, Any], Move], object], message: str
) -> None:
    found = json.loads(move.credentials.read_text())
    change(found, move)
    if "k" in found.get(f"models/{move.inner}", {}):
        del found[f"models/{move.inner}"]["key"]
    move.write_credentials(found)
    status, _, err = command(*move.argv_with_credentials())
    assert status == 2
    assert message.replace("{inner}", move.inner) in err
    assert move.made() == NOTHING


def test_one_connector_takes_the_plain_form_of_a_credential(move: Move, command: Command) -> None:
    move.agent = move.sub
    move.write_credentials({"key": LLM_SECRET})
    report = _report(command, move)
    (model,) = move.made()["models"].values()
    assert model["connector"]["credential"] == {"key": LLM_SECRET}
    assert [check["result"] for check in report["agents"][0]["checks"]][:2] == ["same", "same"]


# What can't be the same


def test_what_can_not_be_the_same_is_said(start_deployment: StartDeployment, tmp_path: Path, command: Command) -> None:
    old, new = start_deployment("2.19.0"), start_deployment("3.8.0")
    move = empty(Move(old, new, tmp_path))
    body = {**connector_body(old), "name": "books & more"}
    connector = str(make(old, "connectors/_create", body)["connector_id"])
    stored = old.cluster.core.resources.connectors[connector]
    stored |= {"access": "private", "backend_roles": ["readers"]}
    stored["actions"][0]["headers"]["Authorization"] = "Bearer abc"
    model = model_on(old, connector, "of books")
    make(new, "model_groups/_register", {"name": "of books"})
    tools = [{"type": "CatIndexTool"}, llm_tool(model)]
    move.agent = old.register({"name": "notes", "type": "flow", "tools": tools})
    move.write_credentials({"key": LLM_SECRET})
    notes = [(note["place"], note["text"]) for note in _report(command, move)["notes"]]
    group = old.cluster.core.resources.models[model]["model_group_id"]
    assert (f"connectors/{connector}", "its name becomes books - more: later versions refuse some characters") in notes
    assert any(place == f"connectors/{connector}" and "access rights are not copied" in text for place, text in notes)
    assert any("its header Authorization may hold a secret" in text for _, text in notes)
    assert "Bearer abc" not in str(notes)
    assert any(place == f"model_groups/{group}" and "its name is taken there" in text for place, text in notes)
    assert (f"agents/{move.agent}.tools[0]", "its type CatIndexTool is called ListIndexTool there") in notes
    made = move.made()
    assert made["agents"][move.target]["tools"][0] == {
        "type": "ListIndexTool",
        "name": "CatIndexTool",
        "include_output_in_agent_response": False,
    }
    assert not any("backend_roles" in one for one in made["connectors"].values())


def test_a_kind_of_request_that_only_the_old_agent_takes(
    start_deployment: StartDeployment, tmp_path: Path, command: Command
) -> None:
    """From 3.4 to 2.19, where nothing calls functions: the agent is moved, and the exit code is 1."""
    move = empty(Move(start_deployment("3.4.0"), start_deployment("2.19.0"), tmp_path))
    move.agent = move.old.agents["fc-openai_tutorial"]
    move.write_credentials({"key": LLM_SECRET})
    checks = _report(command, move, status=1)["agents"][0]["checks"]
    refused = {check["request"]: check["codes"] for check in checks if check["result"] == "refused"}
    assert refused == {"image": ["MEDIA_NEEDS_UPGRADE"], "document": ["MEDIA_NEEDS_UPGRADE"]}
    assert move.target in move.made()["agents"]


def test_an_agent_of_a_type_that_the_version_lacks(
    start_deployment: StartDeployment, tmp_path: Path, command: Command
) -> None:
    move = empty(Move(start_deployment("3.4.0"), start_deployment("2.19.0"), tmp_path))
    move.agent = next(
        id_ for id_, found in documents(move.old.cluster.core)["agents"].items() if "plan" in found["type"].lower()
    )
    status, _, err = command(*move.argv_with_credentials())
    assert status == 1
    assert "has the type plan_execute_and_reflect, which the new cluster (2.19.0) does not have" in err
    assert move.made() == NOTHING


def test_rules_that_are_not_about_the_copy(move: Move, command: Command) -> None:
    rules = (
        f"  rules:\n    - {{agent: main, provider: bedrock/converse}}\n    - {{agent: {move.sub}, memory: cluster}}\n"
    )
    move.config.write_text(move.config.read_text() + rules)
    assert _report(command, move)["notes"] == []
    move.agent = move.sub
    (note,) = _report(command, move)["notes"]
    assert note["place"] == "agents.rules[1]"
    assert "the copy needs one like it" in note["text"]


def test_connectors_of_mcp_servers_are_copied(
    start_deployment: StartDeployment, tmp_path: Path, command: Command
) -> None:
    move = empty(Move(start_deployment("3.8.0"), start_deployment("3.8.0"), tmp_path))
    switch = {"persistent": {"plugins.ml_commons.mcp_connector_enabled": True}}
    for deployment in (move.old, move.new):
        deployment.cluster.core.settings.change(switch)
    server = {"name": "mcp", "version": "1", "protocol": "mcp_sse", "url": "http://127.0.0.1:9/sse"}
    headers = {"Authorization": "Bearer ${credential.token}"}
    open_, closed = (
        make(move.old, "connectors/_create", {**server, **more})["connector_id"]
        for more in ({}, {"headers": headers, "credential": {"token": "of the old cluster"}})
    )
    listed = json.dumps([{"mcp_connector_id": open_}, {"mcp_connector_id": closed, "tool_filters": ["x"]}])
    move.agent = move.old.register(
        {"name": "m", "type": "flow", "tools": [llm_tool(move.inner)], "parameters": {"mcp_connectors": listed}}
    )
    move.write_credentials(
        {f"models/{move.inner}": {"key": LLM_SECRET}, f"connectors/{closed}": {"token": "of the new cluster"}}
    )
    ids = {copy["id"]: copy["new_id"] for copy in _report(command, move)["copies"]}
    made = move.made()
    assert made["agents"][move.target]["parameters"]["mcp_connectors"] == listed.replace(open_, ids[open_]).replace(
        closed, ids[closed]
    )
    assert "credential" not in made["connectors"][ids[open_]]
    assert made["connectors"][ids[closed]]["credential"] == {"token": "of the new cluster"}
    assert (made["connectors"][ids[closed]]["url"], made["connectors"][ids[closed]]["headers"]) == (
        server["url"],
        headers,
    )


def test_a_planner_brings_its_executor(start_deployment: StartDeployment, tmp_path: Path, command: Command) -> None:
    move = empty(Move(start_deployment("3.8.0"), start_deployment("3.8.0"), tmp_path))
    llm = {"model_id": move.model, "parameters": {"prompt": "${parameters.question}"}}
    body = {"name": "planner", "type": "plan_execute_and_reflect", "llm": llm, "parameters": {"x": "y"}}
    move.agent = move.old.register({**body, "tools": [{"type": "ListIndexTool"}]})
    move.write_credentials({"key": LLM_SECRET})
    _report(command, move)
    made = move.made()["agents"]
    assert len(made) == 2
    executor = made[made[move.target]["parameters"]["executor_agent_id"]]
    assert (executor["name"], executor["type"]) == ("planner (ReAct)", "CONVERSATIONAL")
    assert executor["llm"] == made[move.target]["llm"]


def test_the_gateways_notes_in_an_agent_name_the_copies(
    start_deployment: StartDeployment, tmp_path: Path, command: Command
) -> None:
    """So that deleting the copy through the gateway with ?cascade=true deletes its model."""
    move = empty(Move(start_deployment("3.8.0"), start_deployment("3.8.0"), tmp_path))
    block = {
        "model_id": "gpt-4o",
        "model_provider": "openai/v1/chat/completions",
        "credential": {"openai_api_key": "k"},
        "url": f"{move.old.cluster.llm_url}/openai/v1/chat/completions",
    }
    status, answer, _ = move.old.post(
        "/_plugins/_ml/agents/_register", {"name": "own", "type": "flow", "tools": [], "model": block}
    )
    assert status == 200, answer
    move.agent = answer["agent_id"]
    move.write_credentials({"openai_api_key": LLM_SECRET})
    _report(command, move)
    made = move.made()
    parameters = made["agents"][move.target]["parameters"]
    assert json.loads(parameters["mlc_gateway"])["model_id"] in made["models"]
    assert "mlc_gateway_registration" not in parameters


def test_agents_that_name_each_other(move: Move, command: Command) -> None:
    agents = move.old.cluster.core.resources.agents
    agents[move.sub]["tools"] = [{"type": "AgentTool", "parameters": {"agent_id": move.agent}}]
    status, _, err = command(*move.argv_with_credentials())
    assert status == 1
    assert f"agents/{move.agent} → agents/{move.sub} → agents/{move.agent}: these name each other" in err


# Unified agents


@pytest.fixture
def unified(start_deployment: StartDeployment, tmp_path: Path) -> Move:
    """A unified agent with an upgraded template on 3.6.0, and an empty cluster of 3.8.0."""
    move = empty(Move(start_deployment("3.6.0"), start_deployment("3.8.0"), tmp_path))
    move.agent = move.old.agents["v1-openai"]
    core = move.old.cluster.core
    inner = core.resources.models[core.resources.agents[move.agent]["llm"]["model_id"]]["connector"]
    action = inner["actions"][0]
    action["request_body"] = action["request_body"].replace('{"model"', '{"user":"${parameters.user}","model"')
    inner["parameters"]["user"] = "of the test"
    move.write_credentials({"openai_api_key": LLM_SECRET})
    return move


def test_a_unified_agent_gets_the_connector_of_the_old_one(unified: Move, command: Command) -> None:
    report = _report(command, unified)
    made = unified.made()
    agent = made["agents"][unified.target]
    model = made["models"][agent["llm"]["model_id"]]
    old = documents(unified.old.cluster.core)
    before = old["models"][old["agents"][unified.agent]["llm"]["model_id"]]["connector"]
    assert model["connector"]["actions"] == before["actions"]
    assert model["connector"]["parameters"].items() >= before["parameters"].items()
    assert model["connector"]["credential"] == {"openai_api_key": LLM_SECRET}
    assert agent["llm"]["parameters"] == {"system_prompt": "Be brief."}
    assert {kind: len(found) for kind, found in made.items()} == {
        "connectors": 0,
        "model_groups": 1,
        "models": 1,
        "agents": 1,
    }
    assert "not-a-secret" not in str(made)
    checks = {check["request"]: check["result"] for check in report["agents"][0]["checks"]}
    assert (checks["question"], checks["text"]) == ("same", "same")
    status, answer, _ = unified.new.post(
        f"/_plugins/_ml/agents/{unified.target}/_execute", {"input": "Who are you?"}, unified.new.url
    )
    assert status == 200, answer
    assert unified.old.cluster.received[-1]["user"] == "of the test"  # the URL is that of the old one
    removed = _report(command, unified, "--undo")["removed"]
    assert [place.partition("/")[0] for place in removed] == ["agents", "models", "model_groups"]
    assert unified.made() == NOTHING


def test_a_dry_run_of_a_unified_agent(unified: Move, command: Command) -> None:
    checks = _report(command, unified, "--dry-run")["agents"][0]["checks"]
    assert {check["request"]: check["result"] for check in checks}["text"] == "same"
    assert unified.made() == NOTHING


def test_a_unified_planner_gets_an_executor_of_its_own(unified: Move, command: Command) -> None:
    unified.agent = unified.old.agents["v1per-openai"]
    _report(command, unified)
    made, target = unified.made()["agents"], unified.target
    executor = made[target]["parameters"]["executor_agent_id"]
    assert (len(made), made[executor]["type"]) == (2, "CONVERSATIONAL")
    removed = _report(command, unified, "--undo")["removed"]
    assert removed[:2] == [f"agents/{target}", f"agents/{executor}"]
    assert unified.made() == NOTHING


def test_a_group_that_others_use_stays(unified: Move, command: Command) -> None:
    _report(command, unified)
    connector = make(unified.new, "connectors/_create", connector_body(unified.new))["connector_id"]
    own = model_on(unified.new, connector, "Auto-generated model for gpt-4o")
    _report(command, unified, "--undo")
    left = unified.made()
    assert list(left["models"]) == [own]
    assert list(left["model_groups"]) == [left["models"][own]["model_group_id"]]


def test_a_unified_agent_needs_the_unified_api(unified: Move, command: Command) -> None:
    setting = "plugins.ml_commons.unified_agent_api_enabled"
    unified.new.cluster.core.settings.change({"persistent": {setting: False}})
    status, _, err = command(*unified.argv_with_credentials())
    assert status == 1
    assert f"needs 3.5 or later, with {setting}" in err
    assert unified.made() == NOTHING


# The settings


def test_a_route_that_exists_gets_the_target(move: Move, command: Command) -> None:
    other = flow(move.old, standalone(move.old)[1])
    route = f"  routes:\n    - agent: {move.agent}  # ours\n      targets: [{{agent: {other}, weight: 7}}]\n"
    move.config.write_text(move.config.read_text() + route)
    _report(command, move)
    (found,) = move.settings.agents.routes
    assert [(one.agent, one.weight) for one in found.targets] == [(other, 7), (move.target, 0)]
    assert "# ours" in move.config.read_text()


def test_an_alias_becomes_a_route(move: Move, command: Command) -> None:
    other = flow(move.old, standalone(move.old)[1])
    move.config.write_text(move.config.read_text() + f"  aliases:\n    {move.agent}: {other}\n")
    _report(command, move)
    (found,) = move.settings.agents.routes
    assert [(one.agent, one.weight) for one in found.targets] == [(other, 100), (move.target, 0)]
    assert move.settings.agents.aliases == {}


def test_a_promoted_agent_gets_its_target_in_the_route_of_the_old_one(move: Move, command: Command) -> None:
    first = flow(move.old, standalone(move.old)[1])
    targets = f"[{{agent: {first}, weight: 1}}, {{agent: {move.agent}, weight: 9}}]"
    move.config.write_text(move.config.read_text() + f"  routes:\n    - agent: {first}\n      targets: {targets}\n")
    assert _report(command, move)["agents"][0]["route"] == first
    (found,) = move.settings.agents.routes
    assert [one.weight for one in found.targets] == [1, 9, 0]


def test_settings_that_can_not_be_edited_are_found_before_anything_is_made(move: Move, command: Command) -> None:
    toml = move.folder / "gateway.toml"
    toml.write_text(
        f'[upstream]\nurl = "{move.old.url}"\n[clusters.new]\nurl = "{move.new.url}"\n[agents]\ncache_size = 100\n'
    )
    assert load(toml).clusters["new"].url == move.new.url
    move.config = toml
    status, _, err = command(*move.argv_with_credentials())
    assert status == 2
    assert "is TOML" in err
    assert move.made() == NOTHING


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--to-cluster", "other"], "The settings have no cluster other in `clusters` (there: new)."),
        (["--undo", "--dry-run"], "Give either --undo or --dry-run."),
        (["nobody"], "There is no agent nobody"),
    ],
)
def test_options_that_are_wrong(move: Move, command: Command, argv: list[str], message: str) -> None:
    status, _, err = command(*move.argv_with_credentials(*argv))
    assert status == 2
    assert message in err


def test_the_settings_have_to_be_named(move: Move, command: Command) -> None:
    status, _, err = command("move", move.agent, "--to-cluster", "new", "--url", move.old.url)
    assert status == 2
    assert "Give -c FILE" in err


def test_a_cluster_is_not_moved_to_itself(move: Move, command: Command) -> None:
    move.write(move.old.url, move.old.url.replace("127.0.0.1", "localhost"))
    status, _, err = command(*move.argv_with_credentials())
    assert status == 2
    assert "clusters.new is the cluster of `upstream` itself" in err


def test_another_account_of_the_new_cluster(move: Move, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLC_TO_PASSWORD", "of-the-administrator")
    _report(command, move, "--to-user", "admin")
    sent = {request.headers["authorization"] for request in move.new.cluster.requests if "_register" in request.target}
    assert sent == {"Basic YWRtaW46b2YtdGhlLWFkbWluaXN0cmF0b3I="}
    assert NEW_SECRET not in str(sent)
