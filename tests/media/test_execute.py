"""Media by URL end to end: a client, the gateway, a simulated cluster with its LLM, and the host of the media."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.execute.build import build_handler
from gateway.execute.deliveries import NOTICE
from tests.execute.conftest import Deployment, StartDeployment, start_deployment
from tests.media.server import HOST, PNG, MediaServer

__all__ = ["start_deployment"]

Start = Callable[..., Awaitable[Deployment]]


@pytest.fixture
def start(start_deployment: StartDeployment, server: MediaServer) -> Start:
    """``await start(fetch=True)``: a deployment whose gateway may fetch from `server`."""

    def use_case(known: Any, clusters: Any, log: Any, metrics: Any) -> Any:
        return build_handler(known, clusters[""], log, metrics, server.fetcher())

    async def start(over: Any = None, **media: Any) -> Deployment:
        settings = {"media": {"hosts": [f"{HOST}:{server.port}"], **media}, **(over or {})}
        return await start_deployment("2.19.0", settings, use_case)

    return start


def image(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "format": "png", "data": url}}


def blocks(*urls: str) -> dict[str, Any]:
    return {"input": [{"type": "text", "text": "what is this?"}, *map(image, urls)]}


async def test_an_image_by_url_reaches_bedrock_inline(start: Start, server: MediaServer) -> None:
    deployment = await start(fetch=True)
    answer = await deployment.execute("flow-a", blocks(server.serve("/one"), server.serve("/two", PNG + b"2")))
    assert answer.status == 200, await answer.text()
    assert answer.headers[NOTICE] == "MEDIA_FETCHED"
    (sent,) = deployment.simulator.received
    inline = [
        {"image": {"format": "png", "source": {"bytes": base64.b64encode(data).decode()}}} for data in (PNG, PNG + b"2")
    ]
    assert sent["messages"][0]["content"][1:] == inline


async def test_the_format_of_an_image_may_come_from_the_response(start: Start, server: MediaServer) -> None:
    deployment = await start(fetch=True)
    bare = {"type": "image_url", "image_url": {"url": server.serve("/render", PNG), "detail": "low"}}
    answer = await deployment.execute("flow-a", {"input": [{"type": "text", "text": "what is this?"}, bare]})
    assert answer.status == 200, await answer.text()
    assert sorted(answer.headers[NOTICE].split(", ")) == ["IMAGE_DETAIL_LEFT_OUT", "MEDIA_FETCHED"]
    (sent,) = deployment.simulator.received
    inline = {"image": {"format": "png", "source": {"bytes": base64.b64encode(PNG).decode()}}}
    assert sent["messages"][0]["content"][1] == inline


async def test_off_it_is_refused_with_how_to_allow_it(start: Start, server: MediaServer) -> None:
    deployment = await start()
    answer = await deployment.execute("flow-a", blocks(server.serve("/one")))
    error = (await answer.json())["error"]
    assert (answer.status, error["type"]) == (400, "UndeliverableContent")
    (problem,) = error["problems"]
    assert (problem["code"], problem["field"]) == ("MEDIA_SOURCE_UNSUPPORTED", "input[1]")
    assert problem["help"].endswith(", or let the gateway fetch it: settings media.fetch and media.hosts.")
    assert (deployment.simulator.received, server.requests) == ([], [])


async def test_what_the_provider_takes_by_url_stays_a_url(start: Start, server: MediaServer) -> None:
    deployment = await start(fetch=True)
    url = server.serve("/one")
    answer = await deployment.execute("flow-b", blocks(url))
    assert answer.status == 200, await answer.text()
    assert NOTICE not in answer.headers
    assert url in json.dumps(deployment.simulator.received)
    assert server.requests == []


@pytest.mark.parametrize("agent", ["flow-c", "flow-d"])
async def test_nothing_is_fetched_for_an_agent_that_has_no_place_for_it(
    start: Start, server: MediaServer, agent: str
) -> None:
    deployment = await start(fetch=True)
    answer = await deployment.execute(agent, blocks(server.serve("/one")))
    assert (answer.status, server.requests, deployment.simulator.received) == (400, [], [])


@pytest.mark.parametrize("fetch", [False, True])
async def test_all_that_keeps_an_image_by_url_from_an_agent_is_listed_at_once(
    start: Start, server: MediaServer, fetch: bool
) -> None:
    deployment = await start(fetch=fetch)
    answer = await deployment.execute("flow-d", blocks(server.serve("/one")))
    problems = (await answer.json())["error"]["problems"]
    by_url = ["MEDIA_SOURCE_UNSUPPORTED"] if not fetch else []  # else the gateway would fetch it after the upgrade
    assert [problem["code"] for problem in problems] == [*by_url, "MEDIA_NEEDS_UPGRADE"]
    assert problems[-1]["help"].startswith("upgrade the agent with `mlc-gateway upgrade ")
    if not fetch:
        assert problems[0]["help"] == (
            "Send the image as base64 data or an s3:// URL, "
            "or let the gateway fetch it: settings media.fetch and media.hosts."
        )


@pytest.mark.parametrize("status", [404, 500, 503])
async def test_a_failure_is_the_clients_and_nothing_is_sent(start: Start, server: MediaServer, status: int) -> None:
    deployment = await start(fetch=True)
    url = server.serve("/gone", b"", status)
    answer = await deployment.execute("flow-a", blocks(server.serve("/one"), url))
    error = (await answer.json())["error"]
    assert (answer.status, error["type"]) == (400, "UndeliverableContent")
    assert [(problem["field"], problem["code"]) for problem in error["problems"]] == [("input[2]", "MEDIA_NOT_FETCHED")]
    assert error["message"] == f"[input[2]] The image can't be fetched: its host answered with status {status}"
    assert deployment.simulator.received == []


async def test_a_rule_that_describes_does_so_only_where_nothing_is_fetched(start: Start, server: MediaServer) -> None:
    rule = {"agents": {"rules": [{"agent": "*", "delivery": "describe"}]}}
    described = await (await start(rule)).execute("flow-a", blocks(server.serve("/one")))
    assert (described.status, "MEDIA_DESCRIBED" in described.headers[NOTICE]) == (200, True)
    fetched = await (await start(rule, fetch=True)).execute("flow-a", blocks(server.serve("/one")))
    assert (fetched.status, fetched.headers[NOTICE]) == (200, "MEDIA_FETCHED")
