"""No cluster is sent a secret of another one, or of its callers, whatever the route says."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from gateway.routing.caller import OPEN_HEADERS, open_target
from gateway.routing.table import mark_of
from tests.recording.memory_sink import MemorySink
from tests.routing.conftest import ML, PASSWORD, Place
from tests.wire import PATIENCE, RecordingUpstream

CANARY = "canary-of-alice"
SECRETS = {
    "Authorization": "Basic " + base64.b64encode(f"alice:{CANARY}".encode()).decode(),
    "Cookie": f"security_authentication={CANARY}",
    "X-Proxy-User": CANARY,
    "X-Proxy-Roles": CANARY,
    "X-Forwarded-Client-Cert": f"Subject={CANARY}",
    "X-Api-Key": CANARY,
    "X-Of-A-Plugin": CANARY,
    "Proxy-Authorization": CANARY,
    "Securitytenant": CANARY,
    "X-Amz-Security-Token": CANARY,
    "Forwarded": f"for={CANARY}",
}
GATEWAY_MEMORY = {"agent": "*", "memory": "gateway"}


def everything(place: Place, cluster: str) -> str:
    """Return all headers and bodies that a cluster and its LLMs were sent, Basic credentials decoded, too."""
    seen = getattr(place, cluster).front.seen
    texts = [json.dumps([one.path, one.headers, one.body.decode("latin-1")]) for one in seen]
    basic = (one.headers.get(name, "") for one in seen for name in ("Authorization", "authorization"))
    texts += [base64.b64decode(value.removeprefix("Basic ")).decode("latin-1") for value in basic if value]
    return "\n".join((*texts, json.dumps(getattr(place, cluster).simulator.received)))


@pytest.mark.parametrize("callers", ["checked", "trusted"])
@pytest.mark.parametrize("memory", ["cluster", "gateway"])
async def test_no_secret_reaches_the_wrong_cluster(place: Place, callers: str, memory: str) -> None:
    """Runs whole, streamed and legacy, with and without a session, their copies, their retries, and memory paths."""
    sink = MemorySink()
    place.new.simulator.core.streams = True
    rules = [GATEWAY_MEMORY] if memory == "gateway" else []
    mirror = {"agent": place.new.agents["fc-openai_upgraded"], "tools": ["ListIndexTool"]}
    routes = [
        place.route("conv-b", "fc-openai_upgraded", (1, 0), callers=callers, mirror=mirror),
        place.route("cflow-b", "cflow-openai_upgraded", (0, 1), callers=callers),
        place.route("flow-b", "flow-openai_messages", (0, 1), callers=callers, on_failure="next"),
    ]
    await place.start(
        *routes,
        rules=rules,
        memory={**place.settings["memory"], "cluster_copies": "after_turn"},
        inspector={"enabled": True},
        sinks=sink,
    )
    for agent in ("conv-b", "cflow-b", "flow-b"):
        for body in ({"input": "Hello."}, {"parameters": {"question": "Hello."}}):
            begun = await place.ask(agent, body, headers=SECRETS)
            if begun.status == 200 and begun.memory_id:
                again = await place.ask(agent, body, begun.memory_id, headers=SECRETS)
                assert again.status == 200
                await place.send("GET", f"{ML}/memory/{begun.memory_id}", headers=SECRETS)
                await place.send("DELETE", f"{ML}/memory/{begun.memory_id}", headers=SECRETS)
        await place.stream(agent, "Hello.", headers=SECRETS)
    await place.copied(3)
    await place.gateways[-1].stop()
    assert place.new.runs >= 6
    assert CANARY not in everything(place, "new")
    assert PASSWORD in everything(place, "new")
    assert PASSWORD not in everything(place, "old")
    assert CANARY in everything(place, "old")
    records = "\n".join(repr(record) for record in sink.records)
    assert SECRETS["Authorization"].split()[1] not in records
    assert PASSWORD not in records


async def test_the_clients_headers_pass_if_the_route_says_so(place: Place) -> None:
    new = {**place.settings["clusters"]["new"], "auth": {"mode": "pass"}}
    await place.start(place.route("flow-b", "flow-openai_messages", (0, 1), callers="passed"), clusters={"new": new})
    assert (await place.ask("flow-b", "Hello.", headers=SECRETS)).status == 200
    [run] = place.new.front.calls("POST", f"{ML}/agents/")
    assert (run.headers["Authorization"], run.headers["X-Of-A-Plugin"]) == (SECRETS["Authorization"], CANARY)
    assert place.old.front.seen == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "memory/gwr-MARK-_search"),
        ("GET", "agents/gwr-MARK-AGENT"),
        ("DELETE", "agents/gwr-MARK-AGENT"),
        ("POST", "agents/gwr-MARK-AGENT/_execute"),
        ("POST", "models/gwr-MARK-_search"),
    ],
)
async def test_a_mark_opens_no_path_but_those_of_conversations(place: Place, method: str, path: str) -> None:
    """What is sent to the other cluster has the rights of the gateway's account there."""
    await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    agent = place.new.agents["fc-openai_upgraded"]
    named = path.replace("MARK", mark_of(agent)).replace("AGENT", agent)
    refused = await place.send(method, f"{ML}/{named}", {"query": {"match_all": {}}}, headers=SECRETS)
    assert (refused.status // 100, place.new.front.seen) == (4, [])


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("", ""),
        ("?jwtToken=secret", ""),
        ("?pretty&jwtToken=secret;async=false&X-Amz-Security-Token=secret", "?pretty&async=false"),
        ("?%61sync=true#jwtToken=secret", "?%61sync=true"),
        ("?a=?pretty", ""),
    ],
)
def test_a_query_is_sent_without_what_may_be_a_secret(query: str, sent: str) -> None:
    assert open_target(f"{ML}/tasks/t{query}".encode()) == f"{ML}/tasks/t{sent}".encode()


async def test_no_token_in_a_query_reaches_another_cluster(place: Place) -> None:
    await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    path = f"{ML}/agents/{place.old.agents['conv-b']}/_execute"
    begun = await place.send("POST", f"{path}?jwtToken={CANARY}", {"input": "Hello."})
    read = await place.send("GET", f"{ML}/memory/{begun.memory_id}/messages?max_results=1&jwtToken={CANARY}")
    assert (begun.status, read.status, len(read.body["messages"])) == (200, 200, 1)
    assert CANARY not in everything(place, "new")


async def test_cookies_of_another_cluster_reach_no_client(place: Place) -> None:
    """A browser would send them to the gateway, and so to `upstream`, from then on."""
    fields = b"Set-Cookie: a=b\r\nContent-Type: application/json\r\nX-Other: kept\r\nContent-Length: 2"
    async with RecordingUpstream([b"HTTP/1.1 200 OK\r\n%b\r\n\r\n{}" % fields]) as new:
        await place.start(place.route("flow-b", "flow-openai_messages", (0, 1)), clusters={"new": {"url": new.url}})
        answered = await place.ask("flow-b", {"parameters": {"question": "Hello."}})
    assert (answered.status, answered.headers["X-Other"], "Set-Cookie" in answered.headers) == (200, "kept", False)


async def test_no_cookie_comes_in_an_interim_response(place: Place) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nSet-Cookie: a=b\r\nLink: kept\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    async with RecordingUpstream([hints + answer]) as new:
        gateway = await place.start(
            place.route("flow-b", "flow-openai_messages", (0, 1)), clusters={"new": {"url": new.url}}
        )
        body = b'{"parameters": {"question": "Hello."}}'
        head = b"Host: a\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d" % len(body)
        path = f"{ML}/agents/{place.old.agents['flow-b']}/_execute".encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(b"POST %b HTTP/1.1\r\n%b\r\n\r\n%b" % (path, head, body))
        answered = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
    assert b"Link: kept" in answered
    assert b"200 OK" in answered
    assert b"set-cookie" not in answered.lower()


def test_no_header_that_may_hold_a_secret_is_open() -> None:
    held = {name.lower() for name in SECRETS}
    assert not OPEN_HEADERS & held
