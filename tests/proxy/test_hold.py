"""The page of the admin port that holds documents, and the runs in flight that it counts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.agents.holds import MOST_HOLDS, Holds
from gateway.app import Gateway
from gateway.app.wiring import UseCases
from gateway.config.types import Secret
from gateway.ports import ExecuteCall, Forward
from tests.conftest import StartGateway
from tests.proxy.use_case import UseCase
from tests.wire import OK, Parsed, RecordingUpstream, read_message, send_request

CONNECTOR = {"connectors/c": {"actions": []}}
HELD = {"status": "held", "known": False, "runs": 0}


class Holding(UseCase):
    """A use case that can hold documents. decide: set unless requests are to be decided on later."""

    def __init__(self) -> None:
        super().__init__(Forward(documents=frozenset({"models/m", "connectors/c"})))
        self.holds = Holds()
        self.decide = asyncio.Event()
        self.decide.set()
        self.asked = asyncio.Event()

    def __call__(self, *_: Any) -> UseCases:  # type: ignore[override]
        return UseCases(self.execute, self, holds=self.holds)

    async def execute(self, call: ExecuteCall) -> Forward:
        self.asked.set()
        await self.decide.wait()
        return await super().execute(call)


def wanted(name: str = "u", **over: Any) -> dict[str, Any]:
    return {"name": name, "seconds": 30, "connectors": CONNECTOR, "connector_ids": {}, **over}


async def post(gateway: Gateway, body: Any, *headers: str) -> tuple[int, Any]:
    return _read(await send_request(gateway.admin_port, _request("POST /profiles/hold", json.dumps(body), *headers)))


async def release(gateway: Gateway, name: str = "u", *headers: str) -> tuple[int, Any]:
    raw = _request(f"DELETE /profiles/hold?name={name}", "", *headers)
    return _read(await send_request(gateway.admin_port, raw))


def _request(line: str, body: str, *headers: str) -> bytes:
    host = () if any(header.startswith("Host:") for header in headers) else ("Host: localhost",)
    return "\r\n".join((f"{line} HTTP/1.1", *host, *headers, f"Content-Length: {len(body)}", "", body)).encode()


def _read(answer: Parsed) -> tuple[int, Any]:
    return int(answer.line.split()[1]), json.loads(answer.body)


async def test_documents_are_held_until_they_are_released(start_gateway: StartGateway) -> None:
    use_case = Holding()
    gateway = await start_gateway("http://127.0.0.1:1", use_case)
    assert await post(gateway, wanted()) == (200, HELD)
    assert use_case.holds.apply("connectors/c", {"actions": ["new"]}) == {"actions": []}
    assert await post(gateway, wanted()) == (200, {**HELD, "known": True})
    assert await post(gateway, wanted(connector_ids={"models/m/connector_id": "c"})) == (200, HELD)
    assert use_case.holds.apply("models/m", {"connector_id": "d"}) == {"connector_id": "c"}
    await gateway.reload(gateway.settings, gateway.log)
    assert await release(gateway) == (200, {"status": "released", "known": True, "runs": 0})
    assert await release(gateway) == (200, {"status": "released", "known": False, "runs": 0})
    assert use_case.holds.apply("connectors/c", {}) == {}


async def test_a_use_case_that_cannot_hold_documents_has_no_such_page(start_gateway: StartGateway) -> None:
    gateway = await start_gateway("http://127.0.0.1:1", UseCase())
    assert (await post(gateway, wanted()))[0] == 404


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ({"seconds": 301}, "Expected `float` <= 300.0 - at `$.seconds`"),
        ({"seconds": 0}, "Expected `float` > 0.0 - at `$.seconds`"),
        ({"name": ""}, "Expected `str` of length >= 1 - at `$.name`"),
        ({"more": 1}, "Object contains unknown field `more`"),
        ({"connectors": {"models/m": {}}}, "Expected `str` matching regex"),
        ({"connectors": {"connectors/c": "c"}}, "Expected `object`, got `str`"),
        ({"connector_ids": {"models/m/connector": "c"}}, "Expected `str` matching regex"),
        ({"connector_ids": {"models/m/connector_id": {}}}, "Expected `str`, got `object`"),
    ],
)
async def test_what_cannot_be_held_is_refused(over: dict[str, Any], reason: str, start_gateway: StartGateway) -> None:
    gateway = await start_gateway("http://127.0.0.1:1", Holding())
    status, answer = await post(gateway, wanted(**over))
    assert (status, answer["error"]["type"]) == (400, "ValidationException")
    assert reason in answer["error"]["reason"]


async def test_there_are_not_too_many(start_gateway: StartGateway) -> None:
    use_case = Holding()
    gateway = await start_gateway("http://127.0.0.1:1", use_case)
    for number in range(MOST_HOLDS):
        use_case.holds.hold(str(number), {}, 30)
    status, answer = await post(gateway, wanted())
    assert (status, answer["error"]["message"]) == (400, f"[name] There are {MOST_HOLDS} holds already.")


@pytest.mark.parametrize("header", ["Origin: http://elsewhere.example", "Origin: null", "Host: elsewhere.example"])
async def test_pages_of_other_sites_can_hold_nothing(header: str, start_gateway: StartGateway) -> None:
    use_case = Holding()
    gateway = await start_gateway("http://127.0.0.1:1", use_case)
    use_case.holds.hold("u", {}, 30)
    assert (await post(gateway, wanted("v"), header))[0] == 403
    assert (await release(gateway, "u", header))[0] == 403
    drop = await send_request(gateway.admin_port, _request("POST /profiles/drop", "", header))
    assert (_read(drop)[0], use_case.forgotten) == (403, [])
    assert list(use_case.holds._current()) == ["u"]


async def test_the_token_is_asked_for(start_gateway: StartGateway) -> None:
    token = "a token of the admin port"
    gateway = await start_gateway("http://127.0.0.1:1", Holding())
    gateway._admin_pages.token = Secret(token)
    assert (await post(gateway, wanted()))[0] == 401
    assert (await release(gateway))[0] == 401
    assert await post(gateway, wanted(), f"Authorization: Bearer {token}", "Host: gateway.example") == (200, HELD)


class Runs:
    """Sends runs of agents to a gateway, which the cluster answers when `end` is called."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self.upstream = RecordingUpstream(script=self._serve)

    async def _serve(self, _: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_message(reader)
            self._arrived.put_nowait(writer)

    def begin(self, gateway: Gateway) -> asyncio.Task[Parsed]:
        raw = _request("POST /_plugins/_ml/agents/a/_execute", "{}", "Content-Type: application/json")
        return asyncio.create_task(send_request(gateway.data_port, raw))

    async def arrived(self) -> asyncio.StreamWriter:
        return await self._arrived.get()


async def end(run: asyncio.Task[Parsed], at: asyncio.StreamWriter) -> None:
    at.write(OK)
    assert (await run).body == b"ok"


async def test_runs_that_were_planned_before_are_counted_until_they_end(start_gateway: StartGateway) -> None:
    runs = Runs()
    async with runs.upstream as upstream:
        gateway = await start_gateway(upstream.url, Holding())
        first = runs.begin(gateway)
        first_at = await runs.arrived()
        assert await post(gateway, wanted()) == (200, {**HELD, "runs": 1})
        assert await post(gateway, wanted("other", connectors={"connectors/d": {}})) == (200, HELD)
        later = runs.begin(gateway)
        later_at = await runs.arrived()
        assert await post(gateway, wanted()) == (200, {**HELD, "known": True, "runs": 1})
        await gateway.reload(gateway.settings, gateway.log)
        assert await post(gateway, wanted()) == (200, {**HELD, "known": True, "runs": 1})
        await end(first, first_at)
        assert await post(gateway, wanted()) == (200, {**HELD, "known": True})
        assert await post(gateway, wanted("new")) == (200, {**HELD, "runs": 1})
        await end(later, later_at)
        assert await post(gateway, wanted("new")) == (200, {**HELD, "known": True})


async def test_a_run_that_is_not_decided_yet_is_counted(start_gateway: StartGateway) -> None:
    runs, use_case = Runs(), Holding()
    use_case.decide.clear()
    async with runs.upstream as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        run = runs.begin(gateway)
        await use_case.asked.wait()
        other = wanted("other", connectors={"connectors/d": {}})
        assert await post(gateway, wanted()) == (200, {**HELD, "runs": 1})
        assert await post(gateway, other) == (200, {**HELD, "runs": 1})
        use_case.decide.set()
        at = await runs.arrived()
        assert await post(gateway, wanted()) == (200, {**HELD, "known": True, "runs": 1})
        assert await post(gateway, other) == (200, {**HELD, "known": True})
        await end(run, at)
        assert await post(gateway, wanted()) == (200, {**HELD, "known": True})
