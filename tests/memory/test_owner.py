"""Whom a session belongs to, and what its id tells."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import msgspec
import pytest
from multidict import CIMultiDict

from gateway.config.memory import Memory
from gateway.config.schema import Agents, Auth
from gateway.errors import InvalidInput
from gateway.memory.model import PREFIX, Owner
from gateway.memory.owner import (
    agent_of,
    caller_of,
    is_signed,
    knows_users,
    message_id,
    new_session_id,
    owner_of,
    read_message_id,
)
from tests.conftest import settings_for

BASIC = {"Authorization": "Basic Ym9iOnNlY3JldA=="}
SIGNED = "AWS4-HMAC-SHA256 Credential=%s/20261122/eu-west-1/es/aws4_request, SignedHeaders=host, Signature=%s"
AGENT = "Ym9iOn-lY3_ldA9012xy"


async def test_callers_with_other_credentials_are_other_owners() -> None:
    other = {"Authorization": "Basic Ym9iOm90aGVy"}
    assert await owner_of(BASIC, AGENT, Memory()) == await owner_of(
        {"authorization": BASIC["Authorization"]}, AGENT, Memory()
    )
    assert await owner_of(BASIC, AGENT, Memory()) != await owner_of(other, AGENT, Memory())
    assert caller_of(BASIC) != caller_of({})


def test_the_caller_is_a_hash_that_shows_no_credential() -> None:
    assert re.fullmatch(r"[0-9a-f]{32}", caller_of(BASIC))


async def test_a_request_without_credentials_has_no_caller() -> None:
    assert await owner_of({"Accept": "*/*", "Cookie": "a=b"}, AGENT, Memory()) == Owner(AGENT)


async def test_by_caller_off_leaves_agent_and_tenant() -> None:
    settings = Memory(by_caller=False, tenant_header="X-Tenant")
    assert await owner_of({**BASIC, "x-tenant": "blue"}, AGENT, settings) == Owner(AGENT, "blue")


@pytest.mark.parametrize("values", [(), ("",), ("  ",), ("blue", "green"), ("blue", "blue")])
async def test_a_request_that_does_not_name_one_tenant_is_refused(values: tuple[str, ...]) -> None:
    headers = CIMultiDict([("X-Tenant", value) for value in values])
    with pytest.raises(InvalidInput) as caught:
        await owner_of(headers, AGENT, Memory(tenant_header="X-Tenant"))
    [problem] = caught.value.problems
    assert problem.place == "header X-Tenant"
    assert problem.help.startswith("Send X-Tenant once, with the tenant's name.")


def test_a_signature_counts_by_its_access_key() -> None:
    first, second = (caller_of({"Authorization": SIGNED % ("AKIA1", end)}) for end in ("00", "11"))
    assert first == second != caller_of({"Authorization": SIGNED % ("AKIA2", "00")})
    assert is_signed({"authorization": SIGNED % ("AKIA1", "00")})
    assert not is_signed(BASIC)


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [
        ("X-Forwarded-Client-Cert", 'Hash=aa;Subject="CN=bob"', 'Hash=bb;Subject="CN=bob"'),
        ("X-Forwarded-Client-Cert", r'Subject="CN=\"x\",OU=bob";Hash=aa', r'Hash=bb;Subject="CN=\"x\",OU=bob"'),
        ("X-Forwarded-Client-Cert", 'Hash=aa;Subject="";URI=spiffe://a/bob', 'Hash=bb;Subject="";URI=spiffe://a/bob'),
        ("X-Forwarded-Client-Cert", 'Hash=aa;Subject="";DNS=bob;DNS=a', 'Hash=bb;Subject="";DNS=bob;DNS=a'),
        ("X-Forwarded-Client-Cert", 'Hash=bob;Subject=""', 'Hash=bob;Subject=""'),
        ("X-SSL-Client-S-DN", "CN=bob", "CN=bob"),
    ],
)
def test_a_certificate_counts_by_its_subject(name: str, value: str, same: str) -> None:
    assert caller_of({name: value}) == caller_of({name: same}) != caller_of({name: value.replace("bob", "eve")})
    assert caller_of({name: value, **BASIC}) != caller_of(BASIC)


@pytest.mark.parametrize("agent_id", [AGENT, "a", "a-b--c-", "x" * 70])
def test_a_session_id_tells_its_agent(agent_id: str) -> None:
    session_id = new_session_id(agent_id)
    assert agent_of(session_id) == agent_id
    assert session_id.startswith(PREFIX)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,100}", session_id)
    assert new_session_id(agent_id) != session_id


def test_an_agent_id_that_does_not_fit_is_left_out() -> None:
    assert agent_of(new_session_id("a b")) == agent_of(new_session_id("x" * 71)) == agent_of("gws-other") == ""


def test_a_seed_gives_the_same_id_again() -> None:
    assert new_session_id(AGENT, "old") == new_session_id(AGENT, "old") != new_session_id(AGENT, "other")


def test_a_message_id_tells_session_and_turn() -> None:
    session_id = new_session_id("x" * 70)
    assert read_message_id(message_id(session_id, 12)) == (session_id, 12)
    assert read_message_id("gws-x-0") is read_message_id("abc-1") is read_message_id(session_id + "-") is None


def basic(credentials: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


def jwt(signature: str = "s", **claims: Any) -> dict[str, str]:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return {"Authorization": f"Bearer e30.{payload}.{signature}"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (basic("bob:one"), basic("bob:two:three")),
        (jwt(sub="bob", iss="i", exp=1), jwt("t", iss="i", sub="bob", exp=2)),
        (jwt(sub="bob"), {"authorization": jwt("t", sub="bob", iat=1)["Authorization"].replace("Bearer", "bearer")}),
    ],
    ids=["password", "token", "token without an issuer"],
)
def test_a_user_with_new_credentials_is_the_same_caller(first: dict[str, str], second: dict[str, str]) -> None:
    assert caller_of(first, by_user=True) == caller_of(second, by_user=True)
    assert caller_of(first) != caller_of(second)


def test_users_are_kept_apart() -> None:
    others = [
        basic("bob:x"),
        basic("eve:x"),
        basic(":x"),
        basic("bob"),
        {"Authorization": "Basic bob"},
        jwt(sub="bob"),
        jwt(sub="bob", iss="i"),
        jwt(sub="i", iss="bob"),
        jwt(sub=""),
        jwt(sub=1),
        jwt("t", name="bob"),
        {"Authorization": "Bearer a.b"},
        {"Authorization": "Bearer ä.ö.ü"},
        {"Authorization": "Bearer " + ".".join([base64.b64encode(b"[" * 100_000).decode()] * 3)},
        {"Authorization": SIGNED % ("bob", "00")},
        {},
    ]
    assert len({caller_of(one, by_user=True) for one in others}) == len(others)


@pytest.mark.parametrize(
    ("memory", "auth", "agents", "known"),
    [
        (Memory(), Auth(), Agents(), True),
        (Memory(by_user=False), Auth(), Agents(), False),
        (Memory(), Auth("basic"), Agents(), False),
        (Memory(), Auth("sigv4"), Agents(), False),
        (Memory(), Auth(), Agents(lookup="service_account"), False),
    ],
    ids=str,
)
def test_users_are_known_only_where_the_cluster_checks_them(
    memory: Memory, auth: Auth, agents: Agents, known: bool
) -> None:
    settings = msgspec.structs.replace(settings_for("http://127.0.0.1:9"), memory=memory, agents=agents)
    upstream = msgspec.structs.replace(settings.upstream, auth=auth)
    assert knows_users(msgspec.structs.replace(settings, upstream=upstream)) is known
