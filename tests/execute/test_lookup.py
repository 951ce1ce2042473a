"""An agent that can't be read: refused, or delivered unproved if the operator allows it, and reported."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.agents.lookup import lookup_error
from gateway.cli import run
from gateway.execute.deliveries import DELIVERY, NOTICE
from tests.conftest import StartGateway
from tests.delivery.cases import IMAGE
from tests.execute.stub_cluster import FLOW, RAN, Client, Cluster, server_of

BLOCKS = [{"type": "text", "text": "what is this?"}, IMAGE]
ASSUME = {"agents": {"on_unproved": "assume", "rules": [{"agent": FLOW, "provider": "openai"}]}}
Connect = Callable[[Any], Awaitable[Client]]


@pytest.fixture
async def connect(start_gateway: StartGateway) -> AsyncIterator[Connect]:
    """``await connect(settings)``: a client of a gateway with its own cluster."""
    ends: list[Callable[[], Awaitable[Any]]] = []

    async def start(over: Any) -> Client:
        cluster = Cluster()
        server = server_of(cluster)
        await server.start_server()
        gateway = await start_gateway(str(server.make_url("")).rstrip("/"), None, over)
        session = aiohttp.ClientSession(
            f"http://127.0.0.1:{gateway.data_port}", headers={"Authorization": "Basic eHg6"}
        )
        ends.extend((session.close, server.close))
        return Client(cluster, session)

    yield start
    for end in ends:
        await end()


async def test_a_lookup_is_made_with_the_callers_own_credentials(connect: Connect) -> None:
    client = await connect({})
    assert (await client.execute(FLOW, {"input": "hello"})).status == 200
    assert {headers.get("Authorization") for headers in client.cluster.lookups} == {"Basic eHg6"}


async def test_a_service_account_reads_where_the_operator_chose_it(connect: Connect, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("secret word")
    account = {"username": "reader", "password": {"file": str(secret)}}
    client = await connect({"agents": {"lookup": "service_account", "service_account": account}})
    assert (await client.execute(FLOW, {"input": "hello"})).status == 200
    expected = base64.b64encode(b"reader:secret word").decode()
    assert {headers.get("Authorization") for headers in client.cluster.lookups} == {f"Basic {expected}"}


async def test_a_denied_lookup_is_refused_with_the_permission_it_needs(connect: Connect) -> None:
    client = await connect({})
    client.cluster.lookup_status = 403
    answer = await client.execute(FLOW, {"input": "hello"})
    error = (await answer.json())["error"]
    assert (answer.status, error["type"]) == (400, "UnresolvedAgent")
    assert "cluster:admin/opensearch/ml/agents/get" in error["help"]
    assert client.cluster.bodies == []


async def test_a_denied_lookup_is_delivered_on_the_operators_word(connect: Connect) -> None:
    client = await connect(ASSUME)
    client.cluster.lookup_status = 403
    answer = await client.execute(FLOW, {"input": BLOCKS, "parameters": {"mine": "stays"}})
    assert (answer.status, await answer.json()) == RAN
    expected = "strategy=assumed; provider=openai/v1/chat/completions; input=content_blocks; proved=no"
    assert answer.headers[DELIVERY] == expected
    assert answer.headers[NOTICE] == "NOT_PROVED"
    (sent,) = client.cluster.sent
    messages = json.loads(sent["parameters"].pop("messages"))
    assert sent == {"parameters": {"mine": "stays", "question": "what is this?"}}
    url = f"data:image/png;base64,{IMAGE['source']['data']}"
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    assert messages == [{"role": "user", "content": parts}]


async def test_no_rule_no_assumption(connect: Connect) -> None:
    client = await connect({"agents": {"on_unproved": "assume"}})
    client.cluster.lookup_status = 403
    assert (await client.execute(FLOW, {"input": "hello"})).status == 400


async def test_who_is_not_known_gets_the_clusters_own_challenge(connect: Connect) -> None:
    client = await connect(ASSUME)
    client.cluster.lookup_status = 401
    client.cluster.answers = [(401, {"error": "Unauthorized", "status": 401})]
    answer = await client.execute(FLOW, {"input": "hello"})
    assert (answer.status, await answer.json()) == client.cluster.answers[0]
    assert client.cluster.sent == [{"input": "hello"}]


async def test_a_client_is_not_asked_for_credentials_if_the_service_accounts_are_wrong(
    connect: Connect, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("wrong")
    account = {"username": "reader", "password": {"file": str(password)}}
    client = await connect({"agents": {"lookup": "service_account", "service_account": account}})
    client.cluster.lookup_status = 401
    answer = await client.execute(FLOW, {"input": "hello", "parameters": {"question": "hello"}})
    problem = (await answer.json())["error"]
    assert (answer.status, problem["type"]) == (400, "UnresolvedAgent")
    assert "with an account that has it" in problem["help"]
    assert client.cluster.sent == []


@pytest.mark.parametrize(("status", "expected"), [(200, "200 with a JSON object"), (302, "200")])
def test_a_page_in_place_of_a_document_says_what_was_expected(status: int, expected: str) -> None:
    [problem] = lookup_error("agents", "a", status, None).problems
    assert (problem.expected, problem.received) == (expected, str(status))


async def test_a_lookup_that_fails_for_now_is_a_502(connect: Connect) -> None:
    client = await connect({})
    client.cluster.lookup_status = 503
    answer = await client.execute(FLOW, {"input": "hello"})
    assert (answer.status, (await answer.json())["error"]["type"]) == (502, "UnresolvedAgent")


@pytest.mark.parametrize("path", [f"/_plugins/_ml/agents/{FLOW}", "/", "/_cluster/settings"])
async def test_a_lookup_that_breaks_off_says_that_nothing_was_sent_to_the_agent(connect: Connect, path: str) -> None:
    client = await connect({})
    answer = client.cluster.answer

    async def broken(request: web.Request) -> web.Response:
        if request.path == path and request.transport is not None:
            request.transport.close()
        return await answer(request)

    client.cluster.answer = broken  # type: ignore[method-assign]
    response = await client.execute(FLOW, {"input": "hello"})
    error = (await response.json())["error"]
    assert (response.status, error["type"]) == (502, "UpstreamUnavailable")
    assert error["help"] == (
        f"Nothing was sent to the agent: the gateway was reading {path}. "
        "Check the cluster's log, and any proxy between the gateway and the cluster."
    )
    assert client.cluster.bodies == []


def test_a_rule_that_names_no_provider_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("agents:\n  rules:\n    - {agent: a, provider: openai}\n    - {agent: b, provider: nobody}\n")
    for command in ("check-config", "serve"):
        assert run([command, "-c", str(file)]) == 2
        (problem,) = capsys.readouterr().err.splitlines()
        assert problem.startswith("agents.rules[1].provider: no provider 'nobody'")
        assert "bedrock/converse" in problem
