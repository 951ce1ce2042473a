"""`mlc-gateway rewrite`: the same decisions without a cluster, with documents recorded on real clusters."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import run
from gateway.simulator.fixtures import FLOW_PROMPT, connector_body, templates
from tests.agents.recorded import recorded
from tests.delivery.cases import IMAGE, PNG

TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "what is this?"}, IMAGE]},
]


@pytest.fixture
def rewrite(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command with a body on standard input. Return its exit status, its JSON and its errors."""

    def call(body: Any, *options: str) -> tuple[int, Any, str]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        status = run(["rewrite", *options])
        out, err = capsys.readouterr()
        return status, json.loads(out) if out else None, err

    return call


def test_a_stream(rewrite: Any, tmp_path: Path) -> None:
    """The cluster can't stream a flow: what is sent is the request for its whole answer."""
    options, body = _seeded(tmp_path, "d"), {"input": "hello"}
    status, shown, _ = rewrite(body, *options, "--stream")
    whole = rewrite(body, *options)[1]
    assert (status, shown["notices"].pop()["code"]) == (0, "STREAM_IN_ONE_PIECE")
    assert shown == whole
    status, shown, _ = rewrite(body, "--provider", "openai", "--stream")
    assert status == 0
    assert shown["request"]["parameters"]["skip_validating_missing_parameters"] == "true"
    assert "stream" not in shown["request"]["parameters"]


def test_the_whole_answer_for_a_provider(rewrite: Any) -> None:
    status, shown, _ = rewrite({"input": TALK, "parameters": {"mine": 1}, "other": 2}, "--provider", "bedrock")
    message = {
        "role": "user",
        "content": [{"text": "what is this?"}, {"image": {"format": "png", "source": {"bytes": PNG}}}],
    }
    messages = shown["request"]["parameters"].pop("messages")
    assert json.loads(messages) == [{"role": "user", "content": [{"text": "Be kind."}, *message["content"]]}]
    notices = shown.pop("notices")
    assert [set(notice) for notice in notices] == [{"code", "place", "reason"}] * len(notices)
    assert "NOT_PROVED" in [notice["code"] for notice in notices]
    assert (status, shown) == (
        0,
        {
            "input_type": "messages",
            "provider": "bedrock/converse",
            "strategy": "assumed",
            "question": "what is this?",
            "request": {"other": 2, "parameters": {"mine": 1, "question": "what is this?"}},
            "provider_request": {"system": [{"text": "Be kind."}], "messages": [message]},
        },
    )


@pytest.mark.parametrize(
    ("provider", "field"),
    [("bedrock/converse", "messages"), ("openai/v1/chat/completions", "messages"), ("gemini", "contents")],
)
def test_each_provider_has_its_own_fields(rewrite: Any, provider: str, field: str) -> None:
    status, shown, _ = rewrite({"input": "hello"}, "--provider", provider)
    assert status == 0
    assert list(shown["provider_request"]) == [field]


def test_the_body_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text('{"input": "hello"}')
    command = [sys.executable, "-m", "gateway", "rewrite", str(tmp_path / "body.json"), "--provider", "openai"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["provider_request"] == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    }


def _seeded(tmp_path: Path, template: str) -> list[str]:
    """Return the options for a flow agent on a 2.19 cluster with one of the usual connectors."""
    connector = connector_body(template, templates("2.19.0")[template], "http://127.0.0.1:1")
    tool = {"type": "MLModelTool", "name": "llm", "parameters": {"model_id": "m1", "prompt": FLOW_PROMPT}}
    documents = {
        "agent": {"name": "a", "type": "flow", "tools": [tool]},
        "model": {"name": "m", "algorithm": "REMOTE", "connector_id": "c1"},
        "connector": connector,
    }
    options = []
    for name, document in documents.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(document))
        options += [f"--{name}", str(file)]
    return options


def test_an_agent_is_proved_as_in_the_gateway(rewrite: Any, tmp_path: Path) -> None:
    status, shown, _ = rewrite({"input": TALK[1:]}, *_seeded(tmp_path, "a"))
    assert (status, shown["strategy"], shown["question"]) == (0, "wrap", "what is this?")
    (turn,) = json.loads(shown["request"]["parameters"]["messages"])
    assert turn["content"][0] == {"text": "${parameters.prompt}"}


@pytest.mark.parametrize(("version", "codes"), [("3.9.0", []), ("3.10.0", ["VERSION_NOT_KNOWN"])])
def test_a_version_that_is_not_known_is_listed(rewrite: Any, tmp_path: Path, version: str, codes: list[str]) -> None:
    status, shown, _ = rewrite({"input": "hi"}, *_seeded(tmp_path, "a"), "--cluster-version", version)
    assert (status, [notice["code"] for notice in shown["notices"]]) == (0, codes)


def test_what_the_gateway_would_refuse_exits_1_with_the_same_body(rewrite: Any, tmp_path: Path) -> None:
    status, shown, _ = rewrite({"input": TALK[1:]}, *_seeded(tmp_path, "d"))
    assert (status, shown["status"], shown["error"]["type"]) == (1, 400, "UndeliverableContent")
    assert [problem["code"] for problem in shown["error"]["problems"]] == ["MEDIA_NEEDS_UPGRADE"]


@pytest.mark.parametrize("body", [b"no json", b"{}", b'{"parameters":{"question":"x"}}', b'{"input":[]}'])
def test_a_body_without_a_valid_input_exits_1(rewrite: Any, body: bytes) -> None:
    status, shown, _ = rewrite(body, "--provider", "openai")
    assert (status, shown["error"]["type"]) == (1, "ValidationException")


def test_what_can_not_be_read_exits_2(rewrite: Any, tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text("[]")
    for options, reason in (
        (["--agent", str(tmp_path / "none.json")], "none.json"),
        (["--agent", str(tmp_path / "agent.json")], "must be a JSON object"),
        (["--agent", str(tmp_path / "agent.json"), "--cluster-version", "new"], "is not a version"),
        (["--provider", "nobody"], "nobody"),
    ):
        status, shown, err = rewrite({"input": "x"}, *options)
        assert (status, shown) == (2, None)
        assert err.startswith("mlc-gateway rewrite: ")
        assert reason in err


def _recorded(version: str) -> list[Any]:
    return [
        pytest.param(version, id_, id=f"{version} {agent['name']}")
        for id_, agent in recorded(version)["agents"].items()
    ]


@pytest.mark.parametrize(
    ("version", "agent_id"), [one for v in ("2.19.0", "3.4.0", "3.6.0", "3.8.0") for one in _recorded(v)]
)
def test_every_recorded_agent_takes_a_text(rewrite: Any, tmp_path: Path, version: str, agent_id: str) -> None:
    documents = recorded(version)
    options = ["--cluster-version", version, "--agent", str(tmp_path / "agent.json")]
    (tmp_path / "agent.json").write_text(json.dumps(documents["agents"][agent_id]))
    for kind in ("model", "connector"):
        for id_, document in documents[f"{kind}s"].items():
            (tmp_path / f"{kind}-{id_}.json").write_text(json.dumps(document))
            options += [f"--{kind}", f"{id_}={tmp_path / f'{kind}-{id_}.json'}"]
    status, shown, err = rewrite({"input": "hello"}, *options)
    if documents["agents"][agent_id]["name"].startswith("v2_gemini"):  # recorded: every run of it is a 500
        assert (status, err, shown["error"]["problems"][0]["code"]) == (1, "", "ANSWER_NOT_READ")
        return
    assert (status, err) == (0, ""), shown
    assert shown["question"] == "hello"
