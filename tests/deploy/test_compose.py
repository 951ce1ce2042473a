"""What `docker compose up` and the quickstart's `docker run` start, run as processes, as there may be no Docker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from gateway.config.load import load
from tests.deploy.test_manifests import DOCKERFILE
from tests.docs.pages import ROOT, page
from tests.wire import reserved

TEXT = (ROOT / "compose.yaml").read_text()
SERVICES: dict[str, Any] = yaml.safe_load(TEXT)["services"]
IMAGE = dict(re.findall(r"^(?:ENV|   ) (GATEWAY__\w+)=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE))
"""The gateway's variables in the image."""
PATIENCE = 60
"""Seconds."""


def test_compose_names_what_there_is() -> None:
    assert SERVICES["opensearch"]["image"] == "opensearchproject/opensearch:2.19.3"
    for name in ("gateway", "llm", "seed"):
        build = SERVICES[name]["build"]
        assert (ROOT / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE
        assert SERVICES[name]["image"] == "mlc-gateway"
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
    settings = load(None, {**IMAGE, **_environment()})
    assert settings.upstream.url == "http://opensearch:9200"
    published = {port.rpartition(":")[2] for port in SERVICES["gateway"]["ports"]}
    assert published == {str(settings.listen.data_port), str(settings.listen.admin_port)}
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["gateway"]["ports"])
    assert (settings.listen.data_host, settings.listen.admin_host) == ("0.0.0.0", "0.0.0.0")
    assert settings.inspector.enabled


def _environment() -> dict[str, str]:
    """The gateway's variables, with the defaults of those that compose fills in."""
    given: Mapping[str, str] = SERVICES["gateway"]["environment"]
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in given.items()}


@contextmanager
def running(command: list[str], folder: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("ab") as log:
        base = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY__")}
        process = subprocess.Popen(command, env={**base, **environ}, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)


def fetch(url: str, body: Any = None, token: str = "") -> tuple[int, str]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def until(ask: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until `ask` returns True; an OSError is a no."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None
        try:
            if ask():
                return
        except OSError:
            pass
        time.sleep(0.05)
    pytest.fail("it did not come up")


@pytest.fixture
def ports() -> Iterator[dict[str, str]]:
    """Port of compose.yaml → one that is free."""
    with ExitStack() as stack:
        yield {port: str(stack.enter_context(reserved())) for port in ("9209", "9601", "9210", "9211")}


def with_ports(text: str, ports: Mapping[str, str]) -> str:
    return re.sub(r"\b(9209|9601|9210|9211)\b", lambda match: ports[match[1]], text)


def serve(ports: Mapping[str, str]) -> list[str]:
    """The command of the image, on free ports."""
    command = re.search(r"^CMD (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    assert command is not None
    arguments = json.loads(command[1])
    assert arguments == ["serve", "-c", "/etc/mlc-gateway/gateway.yaml"]  # a copy of config/gateway.yaml
    return [sys.executable, "-m", "gateway", *arguments[:2], str(ROOT / "config" / "gateway.yaml")]


def free(ports: Mapping[str, str]) -> dict[str, str]:
    return {"GATEWAY__LISTEN__DATA_PORT": ports["9209"], "GATEWAY__LISTEN__ADMIN_PORT": ports["9601"]}


@pytest.mark.slow(15)
def test_compose_gives_a_gateway_with_agents_and_its_inspector(ports: dict[str, str], tmp_path: Path) -> None:
    """The LLMs' simulator is the cluster as well, in place of OpenSearch."""
    llm, seed = (with_ports(SERVICES[name]["command"][0], ports) for name in ("llm", "seed"))
    environ = {**IMAGE, **_environment(), **free(ports), "XDG_STATE_HOME": str(tmp_path)}
    environ["GATEWAY__UPSTREAM__URL"] = f"http://127.0.0.1:{ports['9211']}"
    with ExitStack() as stack:
        cluster = stack.enter_context(running([sys.executable, "-c", llm], tmp_path))
        until(lambda: fetch(environ["GATEWAY__UPSTREAM__URL"])[0] == 200, cluster)
        gateway = stack.enter_context(running(serve(ports), tmp_path, **environ))
        admin = f"http://127.0.0.1:{ports['9601']}"
        until(lambda: fetch(f"{admin}/health/ready")[0] == 200, gateway)
        script = seed.replace("http://gateway:", "http://127.0.0.1:")
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
        agents = json.loads(done.stdout)
        url, body = _curl()
        status, answer = fetch(with_ports(url, ports).replace("<id>", agents["flow-a"]), json.loads(body))
        assert (status, "inference_results" in answer) == (200, True)
        token = environ["MLC_ADMIN_TOKEN"]
        assert f"`{token}`" in TEXT
        assert fetch(f"{admin}/inspector/", token="wrong" * 5)[0] == 401
        assert fetch(f"{admin}/inspector/", token=token)[0] == 200
        listing = f"{admin}/inspector/api/exchanges"
        until(lambda: agents["flow-a"] in fetch(listing, token=token)[1], gateway)


def _curl() -> tuple[str, str]:
    """Address and body of the request in compose.yaml's comment."""
    found = re.search(r"curl (\S+/_execute) .*?-d '(.*?)'", TEXT, re.DOTALL)
    assert found is not None
    return found[1], found[2]


@pytest.mark.slow(10)
def test_the_quickstarts_curl_works_with_its_own_docker_line(ports: dict[str, str], tmp_path: Path) -> None:
    text = page("start/quickstart.md").replace("\\\n", "")
    [line] = re.findall(r"^docker run (.*)$", text, re.MULTILINE)
    published = re.findall(r"-p 127\.0\.0\.1:(\d+):(\d+)", line)
    variables = {**IMAGE, **{name: value.strip('"') for name, value in re.findall(r'-e (\w+)=("[^"]*"|\S+)', line)}}
    assert re.fullmatch(r"\$\(openssl rand -hex \d+\)", variables["MLC_ADMIN_TOKEN"])
    variables["MLC_ADMIN_TOKEN"] = "0123456789abcdef"
    listen = load(None, variables).listen
    hosts = {listen.data_port: listen.data_host, listen.admin_port: listen.admin_host}
    assert {int(inside): hosts[int(inside)] for _, inside in published} == dict.fromkeys((9209, 9601), "0.0.0.0")
    with ExitStack() as stack:
        llm = with_ports(SERVICES["llm"]["command"][0], ports)
        cluster = stack.enter_context(running([sys.executable, "-c", llm], tmp_path))
        variables["GATEWAY__UPSTREAM__URL"] = f"http://127.0.0.1:{ports['9211']}"
        until(lambda: fetch(variables["GATEWAY__UPSTREAM__URL"])[0] == 200, cluster)
        gateway = stack.enter_context(running(serve(ports), tmp_path, **variables, **free(ports)))
        [curl] = re.findall(r"^curl (http\S+/health/ready)$", text, re.MULTILINE)
        until(lambda: fetch(with_ports(curl, ports)) == (200, '{"status":"ready"}'), gateway)
        [execute] = re.findall(r"^curl -si .*? (http\S+/_execute)", text, re.MULTILINE)
        status, answer = fetch(with_ports(execute, ports), {"input": "Hello"})
        assert (status, json.loads(answer)["error"]["type"]) == (404, "UnresolvedAgent")
