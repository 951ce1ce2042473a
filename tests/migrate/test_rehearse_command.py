"""The command `rehearse`: from the inspector's store and from HAR files, as a table and as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.inspector import SqliteExchanges
from gateway.inspector.har import write_har
from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from gateway.recording.sinks.sqlite import SqliteStore
from tests.migrate.conftest import Command, Deployment, StartDeployment

MARK = f"[MEDIA type=image/png length=100 sha256={'0' * 64}]"
IMAGE = {"type": "image", "source": {"type": "base64", "format": "png", "data": MARK}}
BODIES: list[Any] = [
    {"parameters": {"question": "Where is it?"}},
    {"input": "Where is it?"},
    {"input": [{"type": "text", "text": "What is it?"}, IMAGE]},
    {"input": "Where is [REDACTED length=9 sha256=0f1e2d3c4b5a]?"},
]
READS = ("GET /_plugins/_ml/agents/", "GET /_plugins/_ml/models/", "GET /_plugins/_ml/connectors/")
SEARCHES = ("POST /_plugins/_ml/agents/_search", "POST /_plugins/_ml/models/_search")


def _record(agent_id: str, body: Any, number: int, **values: Any) -> ExchangeRecord:
    text = json.dumps(body)
    message = HttpMessage((("Host", "h"), ("Content-Type", "application/json")), Body(len(text), text))
    fields: dict[str, Any] = {
        "id": f"exchange-{number}",
        "started": 1_760_000_000.0 + number,
        "seconds": 1.0,
        "method": "POST",
        "target": f"/_plugins/_ml/agents/{agent_id}/_execute",
        "intent": "execute",
        "status": 200,
        "agent_id": agent_id,
        "request": message,
    }
    return ExchangeRecord(**{**fields, **values})


Settings = Callable[..., str]


@pytest.fixture
def recorded(deployment: Deployment, tmp_path: Path) -> Settings:
    """Records exchanges of the agent in the inspector's store; returns the settings file."""

    def record(records: list[ExchangeRecord]) -> str:
        directory = tmp_path / "exchanges"
        store = SqliteStore(SqliteExchanges(str(directory)))
        store.add(records)
        store.close()
        inspector = {"enabled": True, "sqlite": {"directory": str(directory), "seconds": 0}}
        (tmp_path / "gateway.yaml").write_text(
            json.dumps({"upstream": {"url": deployment.url}, "inspector": inspector})
        )
        return str(tmp_path / "gateway.yaml")

    return record


def _records(agent_id: str) -> list[ExchangeRecord]:
    return [_record(agent_id, body, number) for number, body in enumerate(BODIES)]


def test_another_agent_is_compared_and_nothing_is_sent_but_reads(
    deployment: Deployment, recorded: Settings, command: Command
) -> None:
    old, new = deployment.agents["flow-d"], deployment.agents["flow-a"]
    others = [_record(new, BODIES[1], 8), _record("", {}, 9, intent="passthrough", target="/")]
    settings = recorded([*_records(old), *others])
    status, out, err = command("rehearse", "-c", settings, "flow-d", "--as", new)
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert report["requests"] == 4
    assert report["counts"] == {
        "same": 0,
        "different": 1,
        "arrives_now": 1,
        "refused": 1,
        "refused_by_both": 0,
        "not_judged": 1,
    }
    rows = {row["result"]: row for row in report["rows"]}
    assert rows["different"]["differences"] == ["system text", "inferenceConfig"]
    assert (rows["refused"]["codes"], rows["refused"]["examples"]) == (["FAILS_ON_CLUSTER"], ["exchange-0"])
    assert rows["refused"]["help"].startswith("Let clients send `input`")
    assert (rows["arrives now"]["codes"], rows["arrives now"]["examples"]) == (["MEDIA_NEEDS_UPGRADE"], ["exchange-2"])
    assert (rows["not judged"]["codes"], rows["not judged"]["examples"]) == (["SECRET_REMOVED"], ["exchange-3"])
    assert (report["old"]["id"], report["new"]["id"], report["same_percent"]) == (old, new, 0)
    sent = [call for call in deployment.cluster.calls if call != "GET /"]
    assert sent
    assert [call for call in sent if not call.startswith((*READS, *SEARCHES))] == []
    assert deployment.take_received() == []


def _with_copies(records: list[ExchangeRecord]) -> list[ExchangeRecord]:
    """Return the records, and copies of the runs by a route, which no client has asked for."""
    return [*records, *(replace(one, id=f"copy-{one.id}", mirror_of=one.id) for one in records)]


def test_an_upgrade_is_rehearsed_before_it_is_applied(
    deployment: Deployment, recorded: Settings, command: Command
) -> None:
    agent = deployment.agents["flow-d"]
    settings = recorded(_with_copies(_records(agent)))
    status, out, _ = command("rehearse", "-c", settings, agent, "--upgrade", "--min-same", "66")
    report = json.loads(out)
    assert (status, report["met"], report["same_percent"]) == (0, True, 66.667)
    assert (report["counts"]["same"], report["counts"]["arrives_now"]) == (2, 1)
    status, out, _ = command("rehearse", "-c", settings, agent, "--upgrade", "--min-same", "67")
    assert (status, json.loads(out)["met"]) == (1, False)
    status, _, err = command("rehearse", "-c", settings, deployment.agents["flow-c"], "--upgrade")
    assert status == 2
    assert "There is no upgrade for" in err
    assert "TEXT_ENDPOINT" in err


def test_another_version_says_what_it_assumes(deployment: Deployment, recorded: Settings, command: Command) -> None:
    agent = deployment.agents["flow-h"]
    status, out, _ = command("rehearse", "-c", recorded(_records(agent)), agent, "--on", "3.8.0")
    report = json.loads(out)
    assert (status, report["counts"]["same"], report["new"]["version"]) == (0, 3, "3.8.0")
    assumed = " ".join(report["assumptions"])
    assert "taken to be on a cluster of 3.8.0" in assumed
    assert "unified_agent_api_enabled is taken to be true" in assumed


def test_a_har_file_is_read_in_place_of_the_store(deployment: Deployment, tmp_path: Path, command: Command) -> None:
    agent = deployment.agents["flow-d"]
    har = tmp_path / "traffic.har"
    har.write_bytes(b"".join(write_har(_with_copies(_records(agent)))))
    status, out, _ = command("rehearse", "--url", deployment.url, agent, "--upgrade", "--har", str(har))
    assert (status, json.loads(out)["counts"]["same"]) == (0, 2)
    har.write_text("{}")
    assert command("rehearse", "--url", deployment.url, agent, "--upgrade", "--har", str(har))[0] == 2


def test_a_document_that_was_kept_is_judged_by_its_text(
    deployment: Deployment, recorded: Settings, command: Command, tmp_path: Path
) -> None:
    agent = deployment.agents["flow-b"]
    text = b"a text with ${parameters.question} in it"
    sha256 = hashlib.sha256(text).hexdigest()
    mark = f"[MEDIA type=text/plain length={len(text)} sha256={sha256}]"
    source = {"type": "base64", "format": "txt", "data": f"data:text/plain;base64,{mark}"}
    document = {"type": "document", "source": source}
    settings = recorded([_record(agent, {"input": [{"type": "text", "text": "?"}, document]}, 1)])
    ask = ("rehearse", "-c", settings, agent, "--on", "2.19.0")
    assert json.loads(command(*ask)[1])["rows"][0]["codes"] == ["TEXT_NOT_RECORDED"]
    store = SqliteStore(SqliteExchanges(str(tmp_path / "exchanges")))
    store.keep_medium(sha256, "text/plain", text)
    store.close()
    report = json.loads(command(*ask)[1])
    assert report["counts"]["same"] == 1, report["rows"]


def test_what_was_cut_or_is_no_json_is_not_judged(deployment: Deployment, recorded: Settings, command: Command) -> None:
    agent = deployment.agents["flow-d"]
    cut = HttpMessage((), Body(900, '{"input": "W', omitted="Cut: 900 bytes came, and the first 12 were recorded."))
    form = HttpMessage((("content-type", "text/plain"),), Body(14, '{"input": "?"}'))
    records = [_record(agent, {}, number, request=request) for number, request in enumerate((cut, form))]
    status, out, _ = command("rehearse", "-c", recorded(records), agent, "--on", "2.19.0", "--min-same", "1")
    report = json.loads(out)
    assert (status, report["counts"]["not_judged"], report["same_percent"]) == (1, 2, 0)
    assert report["rows"][0]["codes"] == ["BODY_NOT_RECORDED"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Give --as, --upgrade or --on."),
        (("--as", "flow-a", "--upgrade"), "Give either --as or --upgrade."),
        (("--as", "no-such-agent"), "There is no agent no-such-agent"),
        (("--on", "3"), "is not a version such as 3.8.0"),
        (("--as", "flow-b"), "run this again once clients have sent some through the gateway, or give --har"),
    ],
)
def test_what_can_not_be_rehearsed_is_said(
    deployment: Deployment, recorded: Settings, command: Command, arguments: tuple[str, ...], words: str
) -> None:
    settings = recorded([])
    status, out, err = command("rehearse", "-c", settings, "flow-d", *arguments)
    assert (status, out) == (2, "")
    assert words in err


def test_without_a_store_it_says_what_to_set(deployment: Deployment, command: Command) -> None:
    status, _, err = command("rehearse", "--url", deployment.url, "flow-d", "--as", "flow-a")
    assert status == 2
    assert "inspector.enabled" in err


def test_the_table_fits_into_80_columns(
    deployment: Deployment, recorded: Settings, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    old = deployment.agents["flow-d"]
    argv = ("rehearse", "-c", recorded(_records(old)), old, "--as", "flow-a", "--min-same", "10", "--table")
    status, out, _ = command(*argv)
    assert status == 1
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[:2] for line in lines if "exchange-" in line] == [
        ["1", "different"],
        ["1", "arrives"],
        ["1", "refused"],
        ["1", "not"],
    ]
    assert "0 of 3 requests arrive the same (0 %)" in out
    assert "/inspector/exchanges/ID" in out


def test_one_request_is_not_several(deployment: Deployment, recorded: Settings, command: Command) -> None:
    old = deployment.agents["flow-d"]
    argv = ("rehearse", "-c", recorded(_records(old)[1:3]), old, "--as", old, "--min-same", "100%", "--table")
    status, out, _ = command(*argv)
    assert status == 0
    summary = "1 of 1 request arrives the same (100 %); the old agent refuses 1 more, which doesn't count"
    assert f"{summary}; --min-same 100 is met." in " ".join(out.split())


def test_an_agent_that_can_not_be_read_is_the_reason_of_all(
    deployment: Deployment, recorded: Settings, command: Command
) -> None:
    old, new = deployment.agents["flow-d"], deployment.agents["flow-b"]
    model = deployment.cluster.core.resources.agent(new)["tools"][0]["parameters"]["model_id"]
    deployment.cluster.refusals[f"GET /_plugins/_ml/models/{model}"] = 404
    status, out, err = command("rehearse", "-c", recorded(_records(old)[:2]), old, "--as", new)
    assert status == 0, err
    (row,) = json.loads(out)["rows"]
    assert (row["codes"], row["count"]) == (["AGENT_UNREADABLE"], 2)
    assert model in row["reason"]


def test_an_agent_of_an_unknown_type_is_not_judged(
    deployment: Deployment, recorded: Settings, command: Command
) -> None:
    old, new = deployment.agents["flow-d"], deployment.agents["flow-b"]
    shown = deployment.cluster.core.resources.agent(new)
    llm = {"model_id": shown["tools"][0]["parameters"]["model_id"]}
    document = {**shown, "type": "ag_ui", "llm": llm}
    deployment.cluster.refusals[f"GET /_plugins/_ml/agents/{new}"] = lambda: document
    (row,) = json.loads(command("rehearse", "-c", recorded(_records(old)[:2]), old, "--as", new)[1])["rows"]
    assert row["codes"] == ["AGENT_UNREADABLE"]
    assert "agents of type ag_ui" in row["reason"]


def test_the_agent_that_a_flow_runs_is_read(
    start_deployment: StartDeployment, command: Command, tmp_path: Path
) -> None:
    deployment = start_deployment("3.8.0")
    inner = {"type": "AgentTool", "parameters": {"agent_id": deployment.agents["flow-bedrock_upgraded"]}}
    agent = deployment.register({"name": "outer", "type": "flow", "tools": [inner]})
    har = tmp_path / "traffic.har"
    har.write_bytes(b"".join(write_har(_records(agent)[:2])))
    status, out, _ = command("rehearse", "--url", deployment.url, agent, "--on", "3.8.0", "--har", str(har))
    assert (status, json.loads(out)["counts"]["same"]) == (0, 2), out


def test_an_agent_of_another_cluster(
    deployment: Deployment, start_deployment: StartDeployment, recorded: Settings, command: Command
) -> None:
    other = start_deployment("3.8.0")
    old, new = deployment.agents["flow-h"], other.agents["flow-bedrock_tutorial"]
    settings = Path(recorded(_records(old)))
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "clusters": {"new": {"url": other.url}}}))
    argv = ("rehearse", "-c", str(settings), old, "--as", "flow-bedrock_tutorial")
    status, out, err = command(*argv, "--in-cluster", "new")
    assert status == 0, err
    report = json.loads(out)
    assert (report["old"]["version"], report["new"]["version"]) == ("2.19.0", "3.8.0")
    assert (report["old"]["id"], report["new"]["id"]) == (old, new)
    assert "Prompts of the cluster's own are counted as different on 3.8.0" in str(report["assumptions"])
    sent = [call for call in other.cluster.calls if call != "GET /"]
    assert [call for call in sent if not call.startswith((*READS, *SEARCHES, "GET /_cluster/settings"))] == []
    status, _, err = command(*argv[:-1], new)
    assert (status, "If the agent of --as is on another cluster, add --in-cluster new." in err) == (2, True)
    assert command(*argv[:-1], "nobody", "--in-cluster", "new")[0] == 2
    assert command(*argv[:-2], "--on", "3.8.0", "--in-cluster", "new")[0] == 2
