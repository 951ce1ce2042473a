"""Every command of the page on migration, run as it stands there, against simulated clusters and a real 3.6.0."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import urllib3

from gateway import cli
from gateway.config.inspector import SqliteExchanges
from gateway.delivery.template_change import Code
from gateway.migrate.llm_call import Difference
from gateway.migrate.promote import Obstacle
from gateway.migrate.recorded import Reason
from gateway.migrate.rehearse import Kind
from gateway.observe.record import Body, HttpMessage
from gateway.recording.sinks.sqlite import SqliteStore
from tests.docs.pages import ROOT, files_of, page
from tests.migrate.conftest import (
    Deployment,
    StartDeployment,
    _loop,
    _no_waiting,
    _plain_environment,
    deployment,
    start_deployment,
)
from tests.real_cluster.agents import WIRES, Api, agent_body, connect, register
from tests.real_cluster.conftest import api, endpoint, llm, real_cluster
from tests.real_cluster.llm import LLM
from tests.real_cluster.unified import switch
from tests.recording.records import record
from tests.wire import reserved

__all__ = [
    "_loop",
    "_no_waiting",
    "_plain_environment",
    "api",
    "deployment",
    "endpoint",
    "llm",
    "real_cluster",
    "start_deployment",
]

STEPS = re.split(r"^## ", page("operate/upgrade.md"), flags=re.MULTILINE)[1:]
_CLUSTER = "http://127.0.0.1:9200"
_GATEWAY = [sys.executable, "-m", "gateway"]


def commands(step: int) -> list[str]:
    """The commands of a step's shell blocks, one a line."""
    blocks = re.findall(r"^```sh\n(.*?)^```", STEPS[step - 1], re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command of the page in an empty directory that holds the page's file, the cluster at `url`.

    The gateway's own commands run in this process, which takes a tenth of the time.
    """
    monkeypatch.chdir(tmp_path)

    def call(command: str, url: str) -> tuple[int, str]:
        Path("gateway.yaml").write_text(files_of("operate/upgrade.md")["gateway.yaml"].replace(_CLUSTER, url))
        argv = _argv(command, url)
        if argv[:3] == _GATEWAY:
            capsys.readouterr()
            status = cli.run(argv[3:])
            shown = capsys.readouterr()
            return status, shown.out + shown.err
        done = subprocess.run(argv, capture_output=True, text=True, env=_environment(), timeout=120)
        return done.returncode, done.stdout + done.stderr

    return call


def _argv(command: str, url: str) -> list[str]:
    arguments = shlex.split(command.replace(_CLUSTER, url))
    if arguments[0] == "mlc-gateway":
        arguments[:1] = _GATEWAY
    return [
        found
        for argument in arguments
        for found in (sorted(map(str, Path().glob(argument))) if "*" in argument else [argument])
    ]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _executed(url: str, agent_id: str, body: Any) -> tuple[int, Any]:
    answer = urllib3.request("POST", f"{url}/_plugins/_ml/agents/{agent_id}/_execute", json=body, timeout=120)
    return answer.status, answer.json()


def test_the_page_has_five_steps_with_commands() -> None:
    assert [len(commands(step)) for step in range(1, len(STEPS) + 1)] == [2, 1, 3, 1, 2, 3]


@pytest.mark.slow
def test_step_1_the_gateway_in_front(deployment: Deployment, run: Run) -> None:
    check, serve = commands(1)
    status, shown = run(check, deployment.url)
    assert status == 0, shown
    with reserved() as port:  # the page's own port may be in use here
        ports = {"GATEWAY__LISTEN__DATA_PORT": str(port), "GATEWAY__LISTEN__ADMIN_PORT": "0"}
        with Path("serve.log").open("w") as log:
            process = subprocess.Popen(_argv(serve, deployment.url), stdout=log, stderr=log, env=_environment() | ports)
        try:
            deadline = time.monotonic() + 120
            while not _listens(port):
                assert process.poll() is None, Path("serve.log").read_text()
                assert time.monotonic() < deadline, Path("serve.log").read_text()
                time.sleep(0.05)
            status, answer = _executed(f"http://127.0.0.1:{port}", deployment.agents["flow-d"], {"input": "hello"})
            assert status == 200, answer
        finally:
            process.terminate()
            process.communicate(timeout=120)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_steps_2_and_3_the_table_the_upgrade_and_the_way_back(deployment: Deployment, run: Run) -> None:
    (table,) = commands(2)
    status, shown = run(table, deployment.url)
    assert status == 0, shown
    agents = {agent["name"]: agent for agent in json.loads(shown)["agents"]}
    assert agents["flow-d"]["abilities"]["image"]["arrives"] is False
    legacy = {"parameters": {"question": "hello"}}
    bodies = []
    look, apply, back = commands(3)
    for command in (look, apply, back):
        assert _executed(deployment.url, deployment.agents["flow-d"], legacy)[0] == 200
        bodies.append(deployment.cluster.received[-1])
        status, shown = run(command, deployment.url)
        assert status == (0 if command == back else 1), shown  # agents on text endpoints stay as they are
        if command == apply:
            status, shown = run(table, deployment.url)
            agents = {agent["name"]: agent for agent in json.loads(shown)["agents"]}
            assert agents["flow-d"]["abilities"]["image"]["arrives"] is True
    assert _executed(deployment.url, deployment.agents["flow-d"], legacy)[0] == 200
    assert [*bodies, deployment.cluster.received[-1]] == [bodies[0]] * 4


def test_step_4_the_setting_of_a_newer_cluster(start_deployment: StartDeployment, run: Run) -> None:
    (setting,) = commands(4)
    (url,) = re.findall(r"http://\S+", setting)
    (body,) = re.findall(r"-d '(.*)'", setting)
    assert url == f"{_CLUSTER}/_cluster/settings"
    assert json.loads(body) == {"persistent": {"plugins.ml_commons.unified_agent_api_enabled": True}}


def test_step_5_is_refused_before_step_4(deployment: Deployment, run: Run) -> None:
    deployment.register({"name": "my-agent", "type": "flow", "tools": [{"type": "CatIndexTool"}]})
    for command in commands(5):
        status, shown = run(command, deployment.url)
        assert status == 1
        assert "CLUSTER_TOO_OLD" in shown


@pytest.mark.real_cluster
def test_steps_4_and_5_on_a_real_cluster(api: Api, llm: LLM, run: Run, tmp_path: Path) -> None:
    _forget(api)
    _, model_id = connect(api, llm.url, "openai", "tutorial")
    old = register(api, agent_body("my-agent", "conv_tools", WIRES["openai"], model_id))
    api.must("POST", "/.plugins-ml-agent/_refresh")
    credential = tmp_path / "credential.json"
    credential.write_text('{"openai_api_key": "sk"}')
    credential.chmod(0o600)
    (setting,) = commands(4)
    try:
        status, shown = run(setting, api.url)
        assert status == 0, shown
        look, apply = commands(5)
        status, shown = run(look, api.url)
        assert status == 0, shown
        status, shown = run(apply, api.url)
        assert status == 0, shown
        (new,) = re.findall(rf"- agent: {old}\n +targets:\n +- {{agent: (\S+), weight: 1}}", shown)
        status, answer = _executed(api.url, new, {"input": "hello"})
        assert status == 200, answer
    finally:
        switch(api, None)
        _forget(api)


def _forget(api: Api) -> None:
    """Removes what an earlier run left under the page's name, which has to be the only one."""
    if api.call("POST", "/.plugins-ml-agent/_refresh")[0] == 404:
        return  # nobody has registered an agent there yet
    found = api.must(
        "POST", "/_plugins/_ml/agents/_search", {"query": {"match_phrase": {"name": "my-agent"}}, "size": 100}
    )
    for hit in found["hits"]["hits"]:
        if hit["_source"]["name"] == "my-agent":
            api.must("DELETE", f"/_plugins/_ml/agents/{hit['_id']}")
    api.must("POST", "/.plugins-ml-agent/_refresh")


def test_a_step_is_rehearsed(deployment: Deployment, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    resources = deployment.cluster.core.resources
    ids = [
        deployment.register({**resources.agent(deployment.agents[model]), "name": name})
        for name, model in (("my-agent", "flow-d"), ("new-agent", "flow-d"))
    ]
    monkeypatch.setenv("GATEWAY__INSPECTOR__ENABLED", "true")
    monkeypatch.setenv("GATEWAY__INSPECTOR__SQLITE__DIRECTORY", str(tmp_path / "exchanges"))
    store = SqliteStore(SqliteExchanges(str(tmp_path / "exchanges"), seconds=0))
    store.add([
        record(
            id=f"exchange-{number}",
            agent_id=ids[0],
            intent="execute",
            request=HttpMessage((("Content-Type", "application/json"),), Body(len(text), text)),
        )
        for number, text in enumerate(['{"input": "hello"}', '{"parameters": {"question": "hello"}}'])
    ])  # fmt: skip
    store.close()
    upgrade, other, version = commands(6)
    for command in (upgrade, other, version):
        status, shown = run(command, deployment.url)
        assert (status, json.loads(shown)["counts"]["same"]) == (0, 2), shown


def test_every_code_is_explained() -> None:
    explained = set(
        re.findall(r"`([A-Z][A-Z_]+)`", "".join(re.findall(r"^\| `.*$", page("operate/upgrade.md"), re.MULTILINE)))
    )
    assert explained == {*Code.__members__, *Obstacle.__members__, *Reason.__members__} - {Reason.FAILS_ON_CLUSTER.name}
    assert f"`{Reason.FAILS_ON_CLUSTER.name}`" in page("operate/upgrade.md")


def test_every_result_and_difference_is_explained() -> None:
    for name in (*Kind, *Difference):
        assert re.search(rf"^\| .*`?{name}`?.* \| ", STEPS[5], re.MULTILINE), name
