"""A gateway's admin port shows what any process has stored in the files of its settings."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from aiohttp import ClientSession

from gateway.config.inspector import SqliteExchanges
from gateway.observe.logs import configure
from gateway.recording.sinks.sqlite import SqliteStore
from tests.conftest import StartGateway, settings_for
from tests.inspector import exchanges
from tests.proxy.use_case import UseCase

UPSTREAM = "http://127.0.0.1:9"


def settings(tmp_path: Path, name: str) -> dict[str, dict[str, object]]:
    token = tmp_path / "token"
    token.write_text("t0ken-of-the-tests")
    directory = str(tmp_path / name)
    return {
        "listen": {"admin_token": {"file": str(token)}},
        "inspector": {"enabled": True, "media": "keep", "sqlite": {"directory": directory}},
    }


async def test_the_store_of_the_settings_is_shown(start_gateway: StartGateway, tmp_path: Path) -> None:
    gateway = await start_gateway(UPSTREAM, UseCase(), settings(tmp_path, "one"))
    for name, id in (("one", "image-1"), ("two", "image-2")):
        writer = SqliteStore(SqliteExchanges(directory=str(tmp_path / name)))
        writer.add([exchanges.image_request(id=id, started=time.time())])
        writer.keep_medium(exchanges.PICTURE_HASH, "image/png", exchanges.PICTURE)
        writer.close()
    headers = {"Authorization": "Bearer t0ken-of-the-tests"}
    async with ClientSession(f"http://127.0.0.1:{gateway.admin_port}", headers=headers) as client:
        for id in ("image-1", "image-2"):
            async with client.get("/inspector/api/exchanges?text=museum") as answer:
                assert [row["id"] for row in (await answer.json())["rows"]] == [id]
            async with client.get(f"/inspector/exchanges/{id}?tab=request") as answer:
                assert "input[1].source.data" in await answer.text()
            async with client.get(f"/inspector/media/{exchanges.PICTURE_HASH}") as answer:
                assert await answer.read() == exchanges.PICTURE
            async with client.get("/inspector/api/migration?days=1") as answer:
                assert [row["unified"] for row in (await answer.json())["adoption"]] == [1]
            other = settings_for(UPSTREAM, settings(tmp_path, "two"))
            await gateway.reload(other, configure("critical", "json"))
            await asyncio.gather(*gateway._retiring)
    assert not list((tmp_path / "one").glob("*-wal"))  # the store that was replaced is closed


@pytest.mark.parametrize(("host", "named"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")])
async def test_the_page_names_the_real_address(
    start_gateway: StartGateway, tmp_path: Path, host: str, named: str
) -> None:
    over = settings(tmp_path, "one")
    over["listen"]["data_host"] = host
    gateway = await start_gateway(UPSTREAM, UseCase(), over)
    headers = {"Authorization": "Bearer t0ken-of-the-tests"}
    url = f"http://127.0.0.1:{gateway.admin_port}/inspector/"
    async with ClientSession(headers=headers) as client, client.get(url) as answer:
        assert f"curl http://{named}:{gateway.data_port}/_plugins/_ml/agents/" in await answer.text()


async def test_without_the_inspector_no_file_is_made(start_gateway: StartGateway, tmp_path: Path) -> None:
    over = settings(tmp_path, "none")
    over["inspector"]["enabled"] = False
    gateway = await start_gateway(UPSTREAM, UseCase(), over)
    headers = {"Authorization": "Bearer t0ken-of-the-tests"}
    url = f"http://127.0.0.1:{gateway.admin_port}/inspector/"
    async with ClientSession(headers=headers) as client, client.get(url) as answer:
        assert "enabled: true" in await answer.text()
    assert not (tmp_path / "none").exists()
