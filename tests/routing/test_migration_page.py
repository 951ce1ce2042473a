"""What gateways record of a route is what its migration page shows, and each number leads to its exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from msgspec.structs import replace

from gateway.app import Gateway
from gateway.config.inspector import SqliteExchanges
from gateway.config.schema import Settings
from gateway.recording.sinks.sqlite import SqliteStore
from tests.recording.memory_sink import MemorySink
from tests.routing.conftest import Place

VIDEO = {"type": "video", "source": {"type": "base64", "format": "mp4", "data": "aGVsbG8="}}
TOKEN = "t0ken-of-the-tests"


async def start(place: Place, folder: Path, sink: MemorySink, route: dict[str, Any]) -> Gateway:
    """Start a gateway that records in the folder's store, then in the sink."""
    token = folder / "token"
    token.write_text(TOKEN)
    directory = str(folder / "inspector")
    settings = {
        **place.settings,
        "listen": {"admin_token": {"file": str(token)}},
        "inspector": {"enabled": True, "sqlite": {"directory": directory}},
        "agents": {"routes": [route]},
    }
    stores = [SqliteStore(SqliteExchanges(directory)), sink]
    gateway = await place.start_gateway(place.old.front.url, None, settings, sinks=lambda *_: stores)
    place.gateways.append(gateway)
    return gateway


def with_weights(settings: Settings, weights: Sequence[float]) -> Settings:
    """Return the settings with these weights of their route's targets."""
    [route] = settings.agents.routes
    targets = [replace(target, weight=weight) for target, weight in zip(route.targets, weights, strict=True)]
    return replace(settings, agents=replace(settings.agents, routes=[replace(route, targets=targets)]))


async def read(gateway: Gateway, path: str) -> Any:
    """Return what the admin port answers."""
    url = f"http://127.0.0.1:{gateway.admin_port}/inspector{path}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as response:
        assert response.status == 200
        return await (response.json() if response.content_type == "application/json" else response.text())


async def test_a_migration_on_two_gateways_is_on_the_page_of_each(place: Place, tmp_path: Path) -> None:
    sinks = [MemorySink(), MemorySink()]
    new = place.new.agents["flow-openai_messages"]
    mirror = {"mirror": {"agent": new, "tools": "none"}}
    before = await start(place, tmp_path, sinks[0], place.route("flow-b", "flow-openai_messages", (1, 0), **mirror))
    assert [(await place.ask("flow-b", "Hello.")).on for _ in range(2)] == ["", ""]
    originals = [one for one in await sinks[0].wait_for(4) if not one.mirror_of]
    after = await start(place, tmp_path, sinks[1], place.route("flow-b", "flow-openai_messages", (0, 1)))
    answered = [(await place.ask("flow-b", question)).status for question in ("Hello.", [VIDEO])]
    await sinks[1].wait_for(2)
    assert answered == [200, 400]

    route = place.old.agents["flow-b"]
    for gateway in (before, after):
        report = await read(gateway, "/api/migration?days=1")
        [shown] = report["routes"]
        old_target, new_target = shown["targets"]
        assert (shown["route"], shown["in_force"]) == (route, True)
        assert [(one["agent"], one["cluster"]) for one in shown["targets"]] == [(route, ""), (new, "new")]
        assert (old_target["share"], new_target["share"]) == (0, 1)
        assert [change["shares"] for change in shown["weights"]] == [[1, 0], [0, 1]]
        counts = [[one["runs"][name] for name in ("runs", "failed", "refused")] for one in shown["targets"]]
        assert counts == [[2, 0, 0], [2, 0, 1]]
        [fault] = new_target["faults"]
        assert (fault["refused"], fault["status"], fault["runs"]) == (True, 400, 1)
        assert fault["remedy"]
        sums = new_target["mirrors"]
        assert [sums[name] for name in ("mirrors", "compared", "same", "differs")] == [2, 2, 2, 0]
        assert {pair["original"]["id"] for pair in shown["pairs"]} == {one.id for one in originals}
        links = {
            "intent=runs": 2,
            "status=refused": 1,
            f"status=refused&notice={fault['code']}": 1,
            "mirror=same": 2,
            "mirror=differs": 0,
        }
        for filters, number in links.items():
            where = f"since={report['since']}&route={route}&agent={new}&cluster=new"
            assert len((await read(gateway, f"/api/exchanges?{where}&{filters}"))["rows"]) == number, filters
    pair = shown["pairs"][0]
    for one, other in ((pair["mirror"], pair["original"]), (pair["original"], pair["mirror"])):
        assert f'href="/inspector/exchanges/{other["id"]}"' in await read(after, f"/exchanges/{one['id']}")
        beside = await read(after, f"/exchanges/{one['id']}?tab=mirror")
        assert 'aria-label="Original"' in beside
        assert 'aria-label="Mirror"' in beside
    assert {one.conversation for one in sinks[0].records if one.mirror_of} == {""}


async def test_a_reload_with_other_weights_is_noted_and_another_one_is_not(place: Place, tmp_path: Path) -> None:
    gateway = await start(place, tmp_path, MemorySink(), place.route("flow-b", "flow-openai_messages", (1, 0)))
    for weights in ((1.0, 0.0), (3.0, 1.0), (3.0, 1.0)):
        await gateway.reload(with_weights(gateway.settings, weights), gateway.log)
    await gateway.reload(replace(gateway.settings, agents=replace(gateway.settings.agents, routes=[])), gateway.log)
    [first, second, removed] = gateway._recording.store.weights(0.0)  # type: ignore[union-attr]
    assert [one.weight for one in (*first.targets, *second.targets)] == [1, 0, 3, 1]
    assert removed.targets == ()
    assert (await read(gateway, "/api/migration?days=1"))["routes"] == []
