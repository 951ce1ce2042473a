"""The account that the OpenSearch stores use: a password, AWS credentials, TLS."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
import trustme
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import ClientError, CredentialRetrievalError

from gateway.config.memory import Memory
from gateway.config.memory import OpenSearchStore as Settings
from gateway.config.types import Secret
from gateway.memory.store import (
    StoreUnavailable,
)
from gateway.memory.stores.opensearch.cluster import HeldCredentials
from gateway.memory.stores.opensearch.store import OpenSearchStore
from gateway.memory.stores.registry import build_store
from tests.memory.conversations import key, turn
from tests.memory.opensearch_server import OpenSearchServer
from tests.memory.test_opensearch import store_on


@pytest.fixture
async def server() -> AsyncIterator[OpenSearchServer]:
    async with OpenSearchServer() as server:
        yield server


async def test_account_of_the_settings_is_used(server: OpenSearchServer) -> None:
    memory = Memory(opensearch=Settings(username="gateway", password=Secret("hunter2")))
    store = build_store(memory, server.url, "opensearch")
    assert isinstance(store, OpenSearchStore)
    await store.append(key(), turn(), 0)
    await store.close()
    assert server.authorizations == {"Basic Z2F0ZXdheTpodW50ZXIy"}


async def test_requests_are_signed_for_amazon(server: OpenSearchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = store_on(server, sigv4_region="eu-central-1")
    await store.append(key(), turn(), 0)
    await store.close()
    for authorization in server.authorizations:
        assert authorization.startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
        assert "/eu-central-1/es/aws4_request" in authorization


async def test_cluster_with_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with OpenSearchServer(tls=context) as server:
        for ca_file, reason in (
            ("", "can't be reached: .*certificate"),
            (str(tmp_path / "none"), "ca_file` can't be read"),
        ):
            store = store_on(server, ca_file=ca_file)
            with pytest.raises(StoreUnavailable, match=reason):
                await store.start()
            await store.close()
        store = store_on(server, ca_file=str(tmp_path / "ca.pem"))
        assert (await store.append(key(), turn(), 0)).turns == 1
        await store.close()


async def test_missing_aws_credentials(server: OpenSearchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    store = store_on(server, sigv4_region="eu-central-1")
    with pytest.raises(StoreUnavailable, match="finds no AWS credentials"):
        await store.start()
    await store.close()


@pytest.mark.parametrize(
    "error",
    [
        CredentialRetrievalError(provider="iam-role", error_msg="no answer"),
        ClientError({"Error": {"Code": "ExpiredToken", "Message": "no answer"}}, "AssumeRole"),
    ],
)
async def test_expired_aws_credentials_that_cannot_be_refreshed(
    error: Exception, server: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refresh() -> None:
        raise error

    expired = RefreshableCredentials(
        "AKIDEXAMPLE", "secret", "token", datetime(2026, 1, 1, tzinfo=UTC), refresh, "role"
    )
    monkeypatch.setattr(boto3.Session, "get_credentials", lambda _: expired)
    store = store_on(server, sigv4_region="eu-central-1")
    with pytest.raises(StoreUnavailable, match=r"can't be refreshed: .*no answer"):
        await store.start()
    await store.close()
    assert server.requests == []


def short_lived(fetch: Callable[[], None]) -> RefreshableCredentials:
    """Credentials that always expire in ten minutes, so that boto3 fetches them with each read."""

    def refresh() -> dict[str, str]:
        fetch()
        expiry = (datetime.now(UTC) + timedelta(minutes=11)).isoformat()
        return {"access_key": "AKIDEXAMPLE", "secret_key": "secret", "token": "token", "expiry_time": expiry}

    return RefreshableCredentials.create_from_metadata(refresh(), refresh, "role")


async def test_aws_credentials_are_not_fetched_on_the_event_loop(
    server: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    credentials = short_lived(lambda: threads.append(threading.current_thread()))
    threads.clear()
    monkeypatch.setattr(boto3.Session, "get_credentials", lambda _: credentials)
    store = store_on(server, sigv4_region="eu-central-1")
    await store.start()
    await store.close()
    assert threads
    assert threading.current_thread() not in threads


async def test_aws_credentials_are_fetched_every_five_seconds_at_most() -> None:
    now, fetched = [100.0], [0]

    def fetch() -> None:
        fetched[0] += 1

    held = HeldCredentials(short_lived(fetch), lambda: now[0])
    for time, expected in ((100.0, 2), (104.9, 2), (105.0, 3), (105.1, 3)):
        now[0] = time
        await asyncio.gather(*(held.refresh() for _ in range(3)))
        assert fetched == [expected]
    assert held.get_frozen_credentials().access_key == "AKIDEXAMPLE"
