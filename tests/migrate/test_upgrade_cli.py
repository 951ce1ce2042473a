"""The commands `upgrade` and `rollback`: what they print, what they refuse, and their exit statuses."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from rich.console import Console

from gateway.cli import run
from gateway.cli.cluster import rules_of
from gateway.delivery.advice import COMPLETES_TEXT
from gateway.delivery.template_change import Code
from gateway.migrate.backup import Journal
from gateway.migrate.display import show
from gateway.migrate.steps import Call
from gateway.migrate.upgrade import Offer
from gateway.migrate.writer import StepFailed, Writer
from gateway.storage.files import replace_file
from tests.migrate.conftest import Command, Deployment
from tests.migrate.upgrading import (
    ADDED,
    NEW,
    OLD,
    SECRET,
    cluster_at,
    credential_file,
    documents_of,
    flow,
    internal,
    llm_body,
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


def _writes(deployment: Deployment) -> list[str]:
    return [call for call in deployment.cluster.calls if not call.startswith("GET") and "_search" not in call]


def test_a_table_at_80_columns(deployment: Deployment, command: Command) -> None:
    own, shared = internal(deployment), standalone(deployment)[0]
    agents = [flow(deployment, own, "own"), flow(deployment, model_on(deployment, shared), "one")]
    flow(deployment, model_on(deployment, shared), "another")
    text = deployment.cluster.core.resources.agents[deployment.agents["flow-c"]]["tools"][0]["parameters"]["model_id"]
    old = deployment.cluster.core.resources.models[text]["connector_id"]
    status, out, err = command("upgrade", *agents, "flow-c", "--url", deployment.url)
    assert (status, err) == (1, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[:8] == [
        "2 of 3 connectors can be upgraded: 3 agents would take more, 3 of them images.",
        "connector                        agents        would gain",
        "────────────────────────────────────────────────────────────────────────────────",
        f"models/{own}      own           image, document, video; fewer",
        "                                               changes to turns, tools",
        f"connectors/{shared}  one, another  image, document, video; fewer",
        "                                               changes to turns, tools",
        f"connectors/{old}  flow-c        unchanged: TEXT_ENDPOINT",
    ]
    assert " ".join(lines[8:]) == (
        f"TEXT_ENDPOINT: {Code.TEXT_ENDPOINT.value}; {COMPLETES_TEXT} "
        f"connectors/{shared} is also used by agents that you did not name: another. To change it, add --shared. "
        "-v shows the calls, the diff and the agents. "
        "Nothing was changed. Run again with --apply to make the changes."
    )


def test_verbose_shows_everything_and_nothing_is_changed(deployment: Deployment, command: Command) -> None:
    connector_id, model = standalone(deployment)
    agent = flow(deployment, model)
    before = state(deployment)
    deployment.cluster.requests.clear()
    status, out, err = command("upgrade", "flow-books", "-v", "--url", deployment.url)
    assert (status, err) == (0, "")
    assert _writes(deployment) == []
    assert state(deployment) == before
    assert not Path("mlc-backups").exists()
    action = deployment.cluster.core.resources.connectors[connector_id]["actions"][0]
    body = {"parameters": ADDED, "actions": [{**action, "request_body": NEW}]}
    unload = f'POST /_plugins/_ml/models/_undeploy {{"model_ids": ["{model}"]}}\n'
    assert out.count(unload) == 2
    (call,) = [line for line in out.splitlines() if f"PUT /_plugins/_ml/connectors/{connector_id} " in line]
    assert json.loads(call.partition(connector_id)[2]) == body
    assert f"POST /_plugins/_ml/models/{model}/_deploy\n" in out
    assert f"agent {agent} (flow-books)" in out
    assert (
        "takes now: text, turns, system, tools\n"
        "    takes afterwards: text, image, document, video, turns, system, tools\n" in out
    )
    assert "proof: 60 legacy calls render the same text before and after" in out
    assert f'-      "request_body": {json.dumps(OLD)},' in out
    assert f'+      "request_body": {json.dumps(NEW)},' in out
    assert "\x1b" not in out


def test_a_terminal_gets_colours(deployment: Deployment) -> None:
    flow(deployment, standalone(deployment)[1])
    stream = io.StringIO()
    show(
        Console(file=stream, force_terminal=True, color_system="standard", width=200),
        offered(deployment, "flow-books"),
        verbose=True,
    )
    assert "\x1b[31m-" in stream.getvalue()
    assert "\x1b[32m+" in stream.getvalue()


def test_the_machine_form(deployment: Deployment, command: Command) -> None:
    model = internal(deployment)
    agent = flow(deployment, model)
    status, out, _ = command("upgrade", agent, "flow-c", "--url", deployment.url, "--json")
    assert status == 1  # flow-c could take more, and is left alone
    offer, refusal = json.loads(out)
    assert refusal["code"] == "TEXT_ENDPOINT"
    assert refusal["agents"] == {"named": [deployment.agents["flow-c"]]}
    connector = deployment.cluster.core.resources.models[model]["connector"]
    actions = [{**connector["actions"][0], "request_body": NEW}]
    body = {"connector": {"parameters": ADDED, "actions": actions}}
    diff = offer.pop("diff")
    assert [line for line in diff.splitlines() if line.startswith(("- ", "+ "))] == [
        f'-      "request_body": {json.dumps(OLD)},',
        f'+      "request_body": {json.dumps(NEW)},',
        '-    "model": "claude-3"',
        f'+    "messages": {json.dumps(ADDED["messages"])},',
        '+    "model": "claude-3",',
        f'+    "tools_member": {json.dumps(ADDED["tools_member"])}',
    ]
    assert offer == {
        "key": f"models/{model}",
        "offered": True,
        "provider": "bedrock/converse",
        "parameter": "messages",
        "models": [model],
        "agents": {"named": [agent], "others": []},
        "calls": [
            {"method": "PUT", "path": f"/_plugins/_ml/models/{model}", "body": body},
            {"method": "POST", "path": "/_plugins/_ml/models/_undeploy", "body": {"model_ids": [model]}},
            {"method": "POST", "path": f"/_plugins/_ml/models/{model}/_deploy"},
        ],
        "proof": {"calls": 60, "differing": []},
        "effects": [
            {
                "id": agent,
                "name": "flow-books",
                "gained": ["image", "document", "video"],
                "improved": ["turns", "tools"],
                "before": {"text": "text", "turns": "text", "system": "text", "tools": "text"},
                "after": dict.fromkeys(["text", "image", "document", "video", "turns", "system", "tools"], "wrap"),
            }
        ],
    }


def test_apply_and_rollback(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    before, legacy = state(deployment), llm_body(deployment, agent)
    status, out, err = command("upgrade", agent, "--apply", "--url", deployment.url)
    assert (status, err) == (0, "")
    assert f"backup: {only_backup()}" in out
    assert f"to undo it: mlc-gateway rollback --url {deployment.url} {only_backup()}\n" in out
    assert stat.S_IMODE(only_backup().stat().st_mode) == 0o600
    assert llm_body(deployment, agent) == legacy
    status, out, err = command("rollback", str(only_backup()), "--url", deployment.url)
    assert (status, err) == (0, "")
    assert "still has parameters that are not used any more (messages, tools_member)" in out
    assert without_parameter(state(deployment)) == before
    assert command("rollback", str(only_backup()), "--url", deployment.url)[0] == 0


def test_a_new_connector_from_a_credential_file(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    before = state(deployment)
    status, out, err = command(
        "upgrade", agent, "--apply", "--credential-file", credential_file(), "--json", "--url", deployment.url
    )
    assert status == 0, err
    done = json.loads(out)["done"]
    key = json.loads(out)["found"][0]["key"]
    assert done == [{"key": key, "backup": str(only_backup()), "result": "upgraded", "outcome": "applied"}]
    made = [doc for id_, doc in deployment.cluster.core.resources.connectors.items() if id_ not in before["connectors"]]
    assert [doc["credential"] for doc in made] == [{"key": SECRET}]
    assert SECRET not in out + err + only_backup().read_text()
    assert command("rollback", str(only_backup()), "--url", deployment.url)[0] == 0
    assert state(deployment) == before


def test_a_credential_is_asked_for_on_a_terminal(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    status, _, err = command("upgrade", agent, "--apply", "--ask-credential", "--url", deployment.url)
    assert status == 2
    assert "give --credential-file FILE" in err
    prompts: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", lambda prompt: prompts.append(prompt) or SECRET)
    status, out, err = command("upgrade", agent, "--apply", "--ask-credential", "--url", deployment.url)
    assert (status, prompts) == (0, ["credential.key: "]), err
    assert SECRET not in out + err


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ('{"key":"s3cr3t-of-the-test"}', 0o644, "chmod 600"),
        ("[]", 0o600, "must hold a JSON object of strings"),
        ('{"key":1}', 0o600, "must hold a JSON object of strings"),
        ("{", 0o600, "is not JSON"),
    ],
)
def test_credential_files_that_are_not_taken(
    deployment: Deployment, command: Command, text: str, mode: int, message: str
) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    file = Path("credential.json")
    file.write_text(text)
    file.chmod(mode)
    before = state(deployment)
    status, out, err = command("upgrade", agent, "--apply", "--credential-file", str(file), "--url", deployment.url)
    assert status == 2
    assert message in err
    assert SECRET not in out + err
    assert state(deployment) == before


def test_a_credential_that_the_cluster_repeats_in_its_error_is_blotted_out(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.migrate.writer._LAG", 0.2)  # it is looked for: a 500 may have done it
    agent = flow(deployment, standalone(deployment)[1])
    answer = {"error": {"reason": f"bad key {SECRET}"}}
    deployment.cluster.refusals["POST /_plugins/_ml/connectors/_create"] = lambda: answer
    status, out, err = command(
        "upgrade", agent, "--apply", "--credential-file", credential_file(), "--url", deployment.url
    )
    assert status == 3
    assert "bad key ***" in err
    assert SECRET not in out + err + only_backup().read_text()


def test_agents_that_nobody_named_need_consent(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector_id, model = standalone(deployment)
    agent = flow(deployment, model)
    other = flow(deployment, model_on(deployment, connector_id, "other"), "other")
    before = state(deployment)
    status, _, err = command("upgrade", agent, "--apply", "--url", deployment.url)
    assert status == 2
    assert f"also serves {other}" in err
    assert "--shared" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda: "n")
    assert command("upgrade", agent, "--apply", "--url", deployment.url)[0] == 2
    assert state(deployment) == before
    monkeypatch.setattr("builtins.input", lambda: "yes")
    status, out, err = command("upgrade", agent, "--apply", "--json", "--url", deployment.url)
    assert status == 0
    assert json.loads(out)["done"]
    assert f"also serves {other}. Upgrade for these, too? [y/N] " in err


@pytest.mark.slow
def test_all_agents_at_once_and_again(deployment: Deployment, command: Command) -> None:
    legacy = {
        name: llm_body(deployment, agent)
        for name, agent in deployment.agents.items()
        if name[-2:] in ("-d", "-e", "-f", "-g", "-i")
    }
    assert len(legacy) == 15
    before = state(deployment)
    status, _, err = command("upgrade", "--all", "--apply", "--url", deployment.url)
    assert status == 1, err  # c stays as it is
    files = sorted(Path("mlc-backups").glob("*.json"))
    assert len(files) == 9  # three of them gain a slot for tools alone
    assert {name: llm_body(deployment, deployment.agents[name]) for name in legacy} == legacy
    deployment.cluster.requests.clear()
    assert command("upgrade", "--all", "--apply", "--url", deployment.url)[0] == 1
    assert _writes(deployment) == []
    assert command("rollback", *map(str, files), "--url", deployment.url)[0] == 0
    left = {id_ for id_, doc in state(deployment)["connectors"].items() if doc != before["connectors"][id_]}
    assert len(left) == 9  # the added parameters
    for id_ in left:
        assert state(deployment)["connectors"][id_]["actions"] == before["connectors"][id_]["actions"]
    assert state(deployment)["models"] == before["models"]


def test_a_failed_execute_probe_takes_it_back(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    before = state(deployment)
    deployment.cluster.refusals[f"POST /_plugins/_ml/agents/{agent}/_execute"] = 500
    status, _, err = command("upgrade", agent, "--apply", "--probe", "execute", "--url", deployment.url)
    assert status == 3
    assert "failed and was undone" in err
    assert "still has parameters that are not used any more (messages, tools_member)" in err
    assert "everything is as it was before" not in err
    assert without_parameter(state(deployment)) == before


def test_a_finished_upgrade_has_nothing_to_resume(deployment: Deployment, command: Command) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    assert command("upgrade", agent, "--apply", "--url", deployment.url)[0] == 0
    status, out, _ = command("upgrade", "--resume", str(only_backup()), "--url", deployment.url)
    assert status == 0
    assert "already applied, nothing to do" in out
    status, out, err = command("upgrade", "--resume", str(only_backup()), "--json", "--url", deployment.url)
    assert (status, json.loads(out)) == (0, {"found": [], "done": []})
    assert "already applied, nothing to do" in err


def test_what_was_being_taken_back_goes_on_being_taken_back(deployment: Deployment, command: Command) -> None:
    connector_id, model = standalone(deployment)
    agent = flow(deployment, model)
    before = state(deployment)
    assert command("upgrade", agent, "--apply", "--url", deployment.url)[0] == 0
    deployment.cluster.refusals[f"PUT /_plugins/_ml/connectors/{connector_id}"] = 403
    assert command("rollback", str(only_backup()), "--url", deployment.url)[0] == 4
    deployment.cluster.refusals.clear()
    status, out, err = command("upgrade", "--resume", str(only_backup()), "--url", deployment.url)
    assert (status, err) == (0, "")
    assert "undone; an earlier run had begun to undo it" in out
    assert without_parameter(state(deployment)) == before


def test_an_agent_that_is_deleted_between_search_and_reading_is_left_out(
    deployment: Deployment, command: Command
) -> None:
    _, model = standalone(deployment)
    agent, gone = flow(deployment, model), flow(deployment, model)
    deployment.cluster.refusals[f"GET /_plugins/_ml/agents/{gone}"] = 404
    status, out, _ = command("upgrade", "--all", "--json", "--url", deployment.url)
    assert status == 1  # flow-c
    assert [one["agents"]["named"] for one in json.loads(out) if model in one.get("models", ())] == [[agent]]


def test_a_backup_holds_only_what_its_agents_use(deployment: Deployment) -> None:
    (one, model), (_, other) = standalone(deployment), standalone(deployment)
    agents = [flow(deployment, model), flow(deployment, other)]
    found = [offer for offer in offered(deployment, *agents) if isinstance(offer, Offer)]
    journal = Journal.create(Path("mlc-backups"), found[0], documents_of(deployment, *agents)[0], deployment.url)
    assert list(journal.record.documents) == [f"agents/{agents[0]}", f"models/{model}", f"connectors/{one}"]


def test_an_agent_that_got_another_model_meanwhile(deployment: Deployment, command: Command) -> None:
    model, other = standalone(deployment)[1], standalone(deployment)[1]
    agent = flow(deployment, model)
    (offer,) = (one for one in offered(deployment, agent) if isinstance(one, Offer))
    journal = Journal.create(Path("mlc-backups"), offer, documents_of(deployment, agent)[0], deployment.url)
    deployment.cluster.core.resources.agents[agent]["tools"][0]["parameters"]["model_id"] = other
    status, _, err = command("upgrade", "--resume", str(journal.path), "--url", deployment.url)
    assert (status, err) == (0, "")
    assert Journal.load(journal.path).record.outcome == "applied"


@pytest.fixture
def without_reader() -> Iterator[TextIO]:
    """A stream whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        yield stream


def test_a_change_goes_on_if_nobody_reads_its_output(
    deployment: Deployment, command: Command, without_reader: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    before = state(deployment)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", without_reader)
        assert run(["upgrade", agent, "--apply", "--json", "--url", deployment.url]) == 0
    assert Journal.load(only_backup()).record.outcome == "applied"
    monkeypatch.setattr(sys, "stdout", without_reader)
    assert run(["rollback", str(only_backup()), "--url", deployment.url]) == 0
    assert without_parameter(state(deployment)) == before


def test_a_backup_that_can_not_be_written_any_more(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = flow(deployment, standalone(deployment)[1])
    before = state(deployment)
    writes: list[Path] = []

    def write_until_the_disk_is_full(new: Path, path: Path) -> None:
        writes.append(path)
        if len(writes) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(new, path)

    with monkeypatch.context() as patch:
        patch.setattr("gateway.migrate.backup.replace_file", write_until_the_disk_is_full)
        status, _, err = command("upgrade", agent, "--apply", "--url", deployment.url)
    assert status == 4
    assert f"{only_backup()}: the backup can't be written: No space left on device" in err
    assert f"The change is half done. `mlc-gateway rollback --url {deployment.url} {only_backup()}` sends " in err
    assert state(deployment) != before
    assert command("rollback", str(only_backup()), "--url", deployment.url)[0] == 0
    assert without_parameter(state(deployment)) == before


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["upgrade"], "Give the agents, --all, or --resume FILE."),
        (["upgrade", "x", "--all"], "Give the agents, --all, or --resume FILE."),
        (["upgrade", "nobody"], "There is no agent nobody"),
        (["upgrade", "twin"], "2 agents are called twin"),
        (["upgrade", "--resume", "missing.json"], "No such file"),
        (["rollback", "missing.json"], "No such file"),
        (["upgrade", "flow-d", "--apply", "--backup-dir", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_options_that_cannot_be_used(deployment: Deployment, command: Command, argv: list[str], message: str) -> None:
    for _ in range(2):
        deployment.register({"name": "twin", "type": "flow", "tools": [{"type": "CatIndexTool"}]})
    status, out, err = command(*argv, "--url", deployment.url)
    assert (status, out) == (2, "")
    assert message in err


def test_an_account_that_may_not_write_leaves_everything_as_it_was(deployment: Deployment, command: Command) -> None:
    connector_id, model = standalone(deployment)
    agent = flow(deployment, model)
    before = state(deployment)
    deployment.cluster.refusals[f"PUT /_plugins/_ml/connectors/{connector_id}"] = 403
    status, _, err = command("upgrade", agent, "--apply", "--url", deployment.url)
    assert status == 3
    assert "403: no permissions" in err
    assert state(deployment) == before


def test_a_change_that_is_accepted_without_effect(deployment: Deployment) -> None:
    connector_id, _ = standalone(deployment)
    path = f"/_plugins/_ml/connectors/{connector_id}"
    deployment.cluster.refusals[f"PUT {path}"] = dict
    writer = Writer(cluster_at(deployment.url), patience=0.0)
    with pytest.raises(StepFailed) as failed:
        writer.put(Call("PUT", path, {}), f"connectors/{connector_id}", ("another",))
    assert str(failed.value) == f"PUT {path}: accepted, but it did not take effect"


def test_the_rules_of_the_settings_tell_a_provider(deployment: Deployment, command: Command) -> None:
    body = '{"anthropic":true,"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}'
    connector_id, model = standalone(deployment, body)
    resources = deployment.cluster.core.resources
    resources.connectors[connector_id]["actions"][0]["url"] = f"{deployment.cluster.llm_url}/bedrock/model/x/invoke"
    agent = flow(deployment, model)
    assert command("upgrade", agent, "--url", deployment.url)[0] == 1
    Path("gateway.yaml").write_text(
        f"upstream: {{url: '{deployment.url}'}}\nagents: {{rules: [{{agent: '*', provider: bedrock/converse}}]}}\n"
    )
    status, out, _ = command("upgrade", agent, "-c", "gateway.yaml")
    assert status == 0, out
    assert rules_of(cluster_at(deployment.url)) == ()


def test_connectors_of_two_kinds_need_two_credentials(deployment: Deployment, command: Command) -> None:
    agents = [flow(deployment, standalone(deployment)[1], name) for name in ("one", "two")]
    status, _, err = command(
        "upgrade", *agents, "--apply", "--credential-file", credential_file(), "--url", deployment.url
    )
    assert status == 2
    assert "there is one credential" in err


def test_help_has_the_options_of_the_cluster_and_the_exit_codes(command: Command) -> None:
    for name in ("upgrade", "rollback", "promote"):
        status, out, _ = command(name, "--help")
        assert status == 0
        assert "--url URL" in out
        assert "  4    A change could not be undone.\n" in out
