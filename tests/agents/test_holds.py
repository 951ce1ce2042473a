"""Documents that are held as they were: what a resolver then reads, and for how long."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from gateway.agents.holds import MOST_HOLDS, Holds, TooManyHolds
from gateway.agents.lookup import LookupDenied
from gateway.agents.resolver import Resolver
from tests.agents.conftest import ML, Clock, FakeCluster, HttpLookup
from tests.agents.test_resolver import AGENT, ALICE, BOB, CONNECTOR, CONNECTOR_PATH, MODEL

OLD = '{"old":"${parameters.prompt}"}'
DOCUMENT: dict[str, Any] = {
    "name": "c",
    "protocol": "http",
    "actions": [{"action_type": "PREDICT", "url": "http://llm", "request_body": OLD}],
}
STANDALONE = {f"connectors/{CONNECTOR}": DOCUMENT}


@pytest.fixture
def holds(clock: Clock) -> Holds:
    return Holds(clock)


@pytest.fixture
async def resolver(lookup: HttpLookup, clock: Clock, holds: Holds) -> Resolver:
    return Resolver(lookup, 60.0, clock, holds=holds)


async def template(resolver: Resolver) -> str:
    profile = await resolver.profile(AGENT, ALICE)
    assert profile.llm is not None
    assert profile.documents >= {f"models/{MODEL}"}
    return profile.llm.connector.request_body


async def test_a_cached_profile_follows_a_hold_and_its_end_at_once(resolver: Resolver, holds: Holds) -> None:
    own = await template(resolver)
    assert not holds.hold("upgrade", STANDALONE, 30)
    assert resolver.peek(AGENT, resolver.caller(ALICE)) is None
    assert await template(resolver) == OLD != own
    assert resolver.peek(AGENT, resolver.caller(ALICE)) is not None
    assert holds.release("upgrade")
    assert await template(resolver) == own
    assert not holds.release("upgrade")


async def test_a_hold_ends_unless_it_is_renewed(resolver: Resolver, holds: Holds, clock: Clock) -> None:
    own = await template(resolver)
    holds.hold("upgrade", STANDALONE, 30)
    since = clock.now
    clock.now += 29
    assert holds.hold("upgrade", copy.deepcopy(STANDALONE), 30)
    assert holds.since("upgrade") == since
    clock.now += 29
    assert await template(resolver) == OLD
    clock.now += 61  # the profile is read again, too
    assert await template(resolver) == own
    assert not holds.hold("upgrade", STANDALONE, 30)
    assert holds.since("upgrade") == clock.now


async def test_other_parts_under_the_same_name_are_another_hold(resolver: Resolver, holds: Holds, clock: Clock) -> None:
    holds.hold("upgrade", STANDALONE, 30)
    assert await template(resolver) == OLD
    clock.now += 1
    other = copy.deepcopy(DOCUMENT)
    other["actions"][0]["request_body"] = "{}"
    assert not holds.hold("upgrade", {f"connectors/{CONNECTOR}": other}, 30)
    assert holds.since("upgrade") == clock.now
    assert await template(resolver) == "{}"


async def test_a_models_own_connector_and_its_connectors_id_are_held(
    resolver: Resolver, holds: Holds, cluster: FakeCluster
) -> None:
    cluster.documents[f"{ML}connectors/other"] = {**DOCUMENT, "protocol": "other"}
    holds.hold("upgrade", {f"models/{MODEL}/connector_id": "other"}, 30)
    profile = await resolver.profile(AGENT, ALICE)
    assert (profile.llm and profile.llm.connector.id, await template(resolver)) == ("other", OLD)
    holds.release("upgrade")
    holds.hold("upgrade", {f"models/{MODEL}/connector": DOCUMENT}, 30)
    profile = await resolver.profile(AGENT, ALICE)
    assert (profile.llm and profile.llm.connector.id, await template(resolver)) == ("", OLD)


async def test_a_held_document_is_shown_to_nobody_who_may_not_read_it(
    resolver: Resolver, holds: Holds, cluster: FakeCluster
) -> None:
    holds.hold("upgrade", STANDALONE, 30)
    cluster.denied[CONNECTOR_PATH] = {BOB["Authorization"]}
    assert await template(resolver) == OLD
    with pytest.raises(LookupDenied):
        await resolver.agent(AGENT, BOB)


async def test_what_was_being_read_when_a_hold_began_is_not_kept(
    resolver: Resolver, holds: Holds, cluster: FakeCluster
) -> None:
    cluster.open.clear()
    reading = asyncio.create_task(template(resolver))
    await cluster.entered.wait()
    holds.hold("upgrade", STANDALONE, 30)
    holds.release("upgrade")
    cluster.documents[CONNECTOR_PATH] = DOCUMENT
    cluster.open.set()
    await reading
    assert await template(resolver) == OLD


async def test_there_are_not_too_many_holds(holds: Holds, clock: Clock) -> None:
    for number in range(MOST_HOLDS):
        holds.hold(str(number), {}, 30)
    assert holds.hold("0", {}, 30)
    with pytest.raises(TooManyHolds):
        holds.hold("one more", {}, 30)
    clock.now += 31
    assert not holds.hold("one more", {}, 30)
