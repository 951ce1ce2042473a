"""The agents that a client may name: how the cluster's are listed and found."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp.web
import openai
import pytest

from tests.adapters.test_listener import PORT, QUESTION, serving
from tests.conftest import StartGateway
from tests.execute.stub_cluster import V1, Cluster


class Registry:
    """A cluster with many agents. Without a `sort` it shows them in another order with each search, as it may."""

    def __init__(self, count: int = 0) -> None:
        self.agents = [{"_id": f"id-{n}", "_source": {"name": f"agent {n}", "prompt": "x"}} for n in range(count)]
        self.searches: list[Any] = []
        self.answer: tuple[int, Any] | None = None
        self.failed = 0
        self.cluster = Cluster()

    async def serve(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if not request.path.endswith("/agents/_search"):
            return await self.cluster.answer(request)
        body = json.loads(await request.read())
        self.searches.append(body)
        if self.answer is not None:
            return aiohttp.web.json_response(self.answer[1], status=self.answer[0])
        turn = 7 * len(self.searches) % (len(self.agents) or 1)
        shown = [*self.agents[turn:], *self.agents[:turn]]
        start, size = body.get("from", 0), body.get("size", 10)
        assert start + size <= 10_000, "index.max_result_window"
        hits = [
            {
                "_id": one["_id"],
                "_source": {name: one["_source"].get(name) for name in body.get("_source", one["_source"])},
            }
            for one in shown[start : start + size]
        ]
        counted = {"total": {"value": len(self.agents), "relation": "eq"}, "hits": hits}
        return aiohttp.web.json_response({"_shards": {"failed": self.failed}, "hits": counted})


@asynccontextmanager
async def listing(start_gateway: StartGateway, registry: Registry) -> AsyncIterator[openai.AsyncOpenAI]:
    async with serving(registry.serve) as url:
        base = f"http://127.0.0.1:{(await start_gateway(url, None, PORT)).adapters_port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="k", max_retries=0) as client:
            yield client


@pytest.mark.parametrize("count", [0, 3, 2500, 10_000])
async def test_each_agent_is_listed_once(start_gateway: StartGateway, count: int) -> None:
    registry = Registry(count)
    async with listing(start_gateway, registry) as client:
        models = (await client.models.list()).data
    assert sorted(model.id for model in models) == sorted(one["_id"] for one in registry.agents)
    assert registry.searches[0]["_source"] == ["name", "created_time"]


async def test_a_cluster_without_any_agent_has_an_empty_list(start_gateway: StartGateway) -> None:
    registry = Registry()
    error = {"type": "index_not_found_exception", "reason": "no such index [.plugins-ml-agent]"}
    registry.answer = 404, {"error": error, "status": 404}
    async with listing(start_gateway, registry) as client:
        assert (await client.models.list()).data == []


async def test_more_agents_than_a_search_shows_are_not_cut_off_in_silence(start_gateway: StartGateway) -> None:
    registry = Registry(10_001)
    async with listing(start_gateway, registry) as client:
        with pytest.raises(openai.BadRequestError, match=r"10001 such agents.*adapters\.agents"):
            await client.models.list()
        with pytest.raises(openai.BadRequestError, match="by its id"):
            await client.chat.completions.create(model="agent 10000", messages=QUESTION)
        await client.chat.completions.create(model=V1, messages=QUESTION)


async def test_a_search_that_a_shard_did_not_answer_is_no_list(start_gateway: StartGateway) -> None:
    registry = Registry(3)
    registry.failed = 1
    async with listing(start_gateway, registry) as client:
        with pytest.raises(openai.InternalServerError, match="all of its agents"):
            await client.models.list()
        registry.answer = 200, {"hits": "none"}
        with pytest.raises(openai.InternalServerError, match="can't be read"):
            await client.models.list()
