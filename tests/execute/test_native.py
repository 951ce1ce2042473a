"""Clusters that accept `input` themselves: a stub with documents and answers recorded on 3.6.0."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.execute.deliveries import BOTH_SENT, DELIVERY, NOTICE
from tests.conftest import StartGateway
from tests.delivery.cases import IMAGE, PNG
from tests.execute.stub_cluster import FLOW, RAN, V1, V2, Client, Cluster, server_of

BLOCKS = [{"type": "text", "text": "what is this?"}, IMAGE]
_OFF = (
    "Standardized input cannot be used if unified agent API is not enabled. The agent must be created using unified "
    "agent API. To enable, please update the setting plugins.ml_commons.unified_agent_api_enabled"
)
OFF = (
    400,
    {
        "error": {
            "root_cause": [{"type": "illegal_argument_exception", "reason": _OFF}],
            "type": "illegal_argument_exception",
            "reason": _OFF,
        },
        "status": 400,
    },
)
NEEDS_V2 = (
    500,
    {
        "status": 500,
        "error": {
            "type": "UnsupportedOperationException",
            "reason": "System Error",
            "details": "V2 agents require executor-provided memory. Use runV2() instead.",
        },
    },
)


@pytest.fixture(params=["gzip", "identity"])
async def client(request: pytest.FixtureRequest, start_gateway: StartGateway) -> AsyncIterator[Client]:
    """The recorded answers are compressed, as clients request it; both must work."""
    cluster = Cluster()
    server = server_of(cluster)
    await server.start_server()
    gateway = await start_gateway(str(server.make_url("")).rstrip("/"))
    headers = {"Accept-Encoding": request.param}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}", headers=headers) as session:
        yield Client(cluster, session)
    await server.close()


@pytest.mark.parametrize(("agent", "sent_input"), [(V1, "hello"), (V2, "hello"), (V2, BLOCKS)])
async def test_what_the_agent_takes_itself_goes_untouched(client: Client, agent: str, sent_input: Any) -> None:
    client.cluster.answers = [RAN]
    answer = await client.execute(agent, {"input": sent_input})
    assert client.cluster.bodies == [json.dumps({"input": sent_input}).encode()]
    kind = "text" if sent_input == "hello" else "content_blocks"
    assert answer.headers[DELIVERY] == f"strategy=native; provider=bedrock/converse; input={kind}"
    assert await answer.json() == RAN[1]


@pytest.mark.parametrize("agent", [V1, V2])
async def test_input_wins_over_the_question_on_every_version(client: Client, agent: str) -> None:
    client.cluster.answers = [RAN]
    answer = await client.execute(agent, {"input": "hello", "parameters": {"question": "old", "memory_id": "m"}})
    assert client.cluster.sent == [{"input": "hello", "parameters": {"memory_id": "m"}}]
    assert answer.headers["Warning"] == BOTH_SENT


async def test_blocks_for_a_v1_agent_are_rewritten(client: Client) -> None:
    client.cluster.answers = [RAN]
    answer = await client.execute(V1, {"input": BLOCKS})
    assert answer.status == 200, await answer.text()
    (sent,) = client.cluster.sent
    assert "input" not in sent
    (helper,) = (name for name in sent["parameters"] if name.startswith("gw_"))
    assert sent["parameters"]["question"] == f"$${{parameters.{helper}:-what is this?\n[image: png]}}"
    assert PNG in sent["parameters"][helper]
    assert answer.headers[DELIVERY] == "strategy=splice; provider=bedrock/converse; input=content_blocks"
    assert "NEUTRAL_TEXT_ADDED" in answer.headers[NOTICE].split(", ")


@pytest.mark.parametrize("setting", [None, "true"])
async def test_input_that_the_cluster_has_turned_off_is_rewritten_and_sent_once_more(
    client: Client, setting: str | None
) -> None:
    client.cluster.api_on = setting
    client.cluster.answers = [OFF, RAN]
    answer = await client.execute(V1, {"input": "hello"})
    assert (answer.status, await answer.json()) == RAN
    first, second = client.cluster.sent
    assert first == {"input": "hello"}
    assert second["parameters"]["question"] == "hello"
    assert "input" not in second
    assert "strategy=native" not in answer.headers[DELIVERY]


async def test_a_second_refusal_is_the_answer(client: Client) -> None:
    client.cluster.answers = [OFF, OFF]
    answer = await client.execute(V1, {"input": "hello"})
    assert (answer.status, await answer.json()) == OFF
    assert len(client.cluster.bodies) == 2


async def test_any_other_error_of_the_cluster_is_the_answer(client: Client) -> None:
    failed = (400, {"status": 400, "error": {"type": "x", "reason": "Invalid Request", "details": "no"}})
    client.cluster.answers = [failed, RAN]
    answer = await client.execute(V1, {"input": "hello"})
    assert (answer.status, await answer.json()) == failed
    assert len(client.cluster.bodies) == 1


async def test_input_is_known_to_be_off_and_never_tried(client: Client) -> None:
    client.cluster.api_on = "false"
    client.cluster.answers = [RAN]
    assert (await client.execute(V1, {"input": "hello"})).status == 200
    (sent,) = client.cluster.sent
    assert sent["parameters"]["question"] == "hello"


async def test_a_v2_agent_is_served_as_soon_as_the_api_was_turned_on(client: Client) -> None:
    client.cluster.api_on = "false"
    answer = await client.execute(V2, {"input": "hello"})
    (problem,) = (await answer.json())["error"]["problems"]
    assert (answer.status, problem["code"]) == (400, "UNIFIED_API_OFF")
    assert client.cluster.bodies == []
    client.cluster.api_on = "true"
    assert (await client.execute(V2, {"input": "hello"})).status == 200
    assert client.cluster.sent == [{"input": "hello"}]


@pytest.mark.parametrize(("question", "text"), [("hello", "hello"), (5, "5"), (True, "true"), (["a", {}], '["a",{}]')])
async def test_a_question_for_a_v2_agent_becomes_input(client: Client, question: Any, text: str) -> None:
    client.cluster.answers = [NEEDS_V2, RAN]
    answer = await client.execute(V2, {"parameters": {"question": question, "memory_id": "m"}})
    assert (answer.status, await answer.json()) == RAN
    assert client.cluster.sent == [
        {"parameters": {"question": question, "memory_id": "m"}},
        {"parameters": {"memory_id": "m"}, "input": text},
    ]
    assert answer.headers[DELIVERY] == "strategy=native; provider=unknown; input=question"
    assert NOTICE not in answer.headers


async def test_without_a_question_there_is_nothing_to_turn_into_input(client: Client) -> None:
    client.cluster.answers = [NEEDS_V2, RAN]
    answer = await client.execute(V2, {"parameters": {"foo": "bar"}})
    assert (answer.status, await answer.json()) == NEEDS_V2
    assert len(client.cluster.bodies) == 1


@pytest.mark.parametrize("own", [{}, {"skip_validating_missing_parameters": "false"}], ids=["", "own"])
async def test_a_placeholder_in_a_text_is_not_looked_for_on_the_stream_endpoint(
    client: Client, own: dict[str, str]
) -> None:
    """The cluster writes ``$`` for ``\\u0024`` before it looks (docs/evidence/facts.md, 3.5 and later)."""
    client.cluster.answers = [RAN, RAN]
    body = {"input": "say ${parameters.x}", "parameters": own}
    assert (await client.execute(V1, body, stream=True)).status == 200
    assert client.cluster.sent[-1]["parameters"]["skip_validating_missing_parameters"] == "true"
    assert (await client.execute(V1, {"input": "hello"})).status == 200
    assert "skip_validating_missing_parameters" not in client.cluster.sent[-1].get("parameters", {})


@pytest.mark.parametrize("agent", [V2, FLOW], ids=["v2", "flow"])
async def test_an_agent_that_cannot_stream_answers_with_a_stream_of_its_whole_answer(
    client: Client, agent: str
) -> None:
    answer = await client.execute(agent, {"input": "hello"}, stream=True)
    assert (answer.status, answer.content_type) == (200, "text/event-stream")
    assert answer.headers.getall("Content-Type") == ["text/event-stream; charset=UTF-8"]
    assert answer.headers["X-MLC-Gateway-Notice"].split(", ")[-1] == "STREAM_IN_ONE_PIECE"
    event = 'data: {"inference_results":[{"output":[{"name":"response","dataAsMap":{"content":%s}}]}]}\n\n'
    assert await answer.text() == event % '"ran","is_last":false' + event % '"","is_last":true'
    assert [path.rpartition("/")[2] for path in client.cluster.paths] == ["_execute"]


async def test_an_error_before_a_stream_keeps_its_form(client: Client) -> None:
    client.cluster.answers = [(429, {"status": 429, "error": {"reason": "busy"}})]
    answer = await client.execute(FLOW, {"input": "hello"}, stream=True)
    assert (answer.status, answer.content_type) == (429, "application/json")
    assert await answer.json() == {"status": 429, "error": {"reason": "busy"}}


async def test_an_answer_that_is_no_text_is_an_error_in_its_stream(client: Client) -> None:
    client.cluster.answers = [(200, {"task_id": "t", "status": "CREATED"})]
    answer = await client.execute(FLOW, {"input": "hello"}, stream=True)
    event = json.loads((await answer.text()).removeprefix("data: "))
    assert event["error"].endswith("Send the request to `_execute`, without a stream.")
    client.cluster.answers, client.cluster.bodies = [(200, {"task_id": "t", "status": "CREATED"})], []
    answer = await client.execute(FLOW, {"input": "hello"})
    assert await answer.json() == {"task_id": "t", "status": "CREATED"}


async def test_the_stream_endpoint_gets_the_parameters_it_wants_beside_input(client: Client) -> None:
    client.cluster.answers = [RAN]
    assert (await client.execute(V1, {"input": "hello"}, stream=True)).status == 200
    assert client.cluster.sent == [{"input": "hello", "parameters": {}}]
