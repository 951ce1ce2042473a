"""The emulator answers as AgentCore is known to, and its faults are there."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from gateway.config.memory import AgentCoreStore as Settings
from tests.memory.agentcore.conftest import connect
from tests.memory.agentcore.emulator import Emulator, Faults

WHERE = {"memoryId": Emulator.memory_id, "actorId": "actor", "sessionId": "session"}


@pytest.fixture
def client(emulator: Emulator) -> Any:
    return connect(Settings(endpoint=emulator.url))


def create(client: Any, text: str, when: int, **more: Any) -> str:
    payload = [{"conversational": {"role": "USER", "content": {"text": text}}}]
    return str(client.create_event(**WHERE, eventTimestamp=when, payload=payload, **more)["event"]["eventId"])


def listed(client: Any, **more: Any) -> list[str]:
    events = client.list_events(**WHERE, includePayloads=True, **more)["events"]
    return [event["payload"][0]["conversational"]["content"]["text"] for event in events]


def test_events_are_listed_newest_first_and_by_branch(client: Any) -> None:
    root = create(client, "1", 1)
    create(client, "2", 2)
    create(client, "3", 3, branch={"name": "b", "rootEventId": root})
    assert listed(client) == ["3", "2", "1"]
    assert listed(client, filter={"branch": {"name": "b"}}) == ["3"]
    assert listed(client, filter={"branch": {"name": "b", "includeParentBranches": True}}) == ["3", "2", "1"]
    assert client.list_events(**{**WHERE, "actorId": "unknown"})["events"] == []
    assert client.list_sessions(memoryId=Emulator.memory_id, actorId="actor")["sessionSummaries"][0]["sessionId"]
    assert client.list_actors(memoryId=Emulator.memory_id)["actorSummaries"] == [{"actorId": "actor"}]


def test_token_counts_once(client: Any) -> None:
    assert create(client, "1", 1, clientToken="x") == create(client, "2", 2, clientToken="x")
    assert listed(client) == ["1"]


def test_lists_by_metadata_lack_the_newest_events(emulator: Emulator, client: Any) -> None:
    emulator.reset(Faults(lag=1))
    for number in (1, 2):
        create(client, f"{number}", number, metadata={"a": {"stringValue": "b"}})
    expression = {"left": {"metadataKey": "a"}, "operator": "EXISTS"}
    assert listed(client, filter={"eventMetadata": [expression]}) == ["1"]
    assert listed(client) == ["2", "1"]


def test_pages(emulator: Emulator, client: Any) -> None:
    emulator.reset(Faults(pages=(0, 1, 2)))
    for number in range(5):
        create(client, f"{number}", number + 1)
    pages = [len(page["events"]) for page in client.get_paginator("list_events").paginate(**WHERE)]
    assert sum(pages) == 5
    assert max(pages) == 2
    assert 0 in pages


def test_requests_that_break_the_model_are_refused(emulator: Emulator, client: Any) -> None:
    broken: list[dict[str, Any]] = [
        {"metadata": {"a": {"stringValue": "{}"}}},
        {"metadata": {f"{n}": {"stringValue": ""} for n in range(16)}},
        {"branch": {"name": "-"}},
        {"sessionId": "_"},
    ]
    for more in broken:
        with pytest.raises(ClientError, match="ValidationException"):
            client.create_event(**{**WHERE, "eventTimestamp": 1, "payload": [], **more})
    assert len(emulator.state.violations) == len(broken)
    emulator.state.violations.clear()


def test_other_refusals(emulator: Emulator, client: Any) -> None:
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        client.get_event(**WHERE, eventId="1#a")
    with pytest.raises(ClientError, match="ValidationException"):
        create(client, "1", 1, branch={"name": "b", "rootEventId": "1#a"})
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        client.list_events(**{**WHERE, "memoryId": "other-abcdefghij"})
    other = boto3.session.Session("key", "secret", region_name="us-east-1").client(
        "bedrock-agentcore", endpoint_url=emulator.url
    )
    with pytest.raises(ClientError, match="413"):
        other.create_event(**WHERE, eventTimestamp=1, payload=[{"blob": "x" * 6_000_001}])
