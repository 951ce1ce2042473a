"""Provokes each error of the data port, one function each: the examples of `openapi.yaml`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.conftest import StartGateway
from tests.execute.stub_cluster import FLOW, V2, Client, Cluster, server_of
from tests.faulty_cluster import Fault
from tests.policy.conftest import Start
from tests.policy.test_guardrails import Webhook, guardrail
from tests.proxy.use_case import UseCase
from tests.register.deployment import REGISTER, deploy
from tests.sessions.conftest import Cluster as SessionCluster
from tests.sessions.conftest import StartCluster
from tests.sessions.test_rules import AGENT
from tests.signing.test_gateway import SIGNED, sigv4
from tests.wire import PATIENCE, RecordingUpstream, reserved, send_request

Got = tuple[int, Mapping[str, str], Any]
"""Status, headers and JSON of an answer."""


@dataclass
class Place:
    """What starts gateways, and what stands behind them."""

    start_gateway: StartGateway
    start_with_policy: Start
    start_cluster: StartCluster
    webhook: Webhook
    patch: pytest.MonkeyPatch
    folder: Path


Ask = Callable[[Place], Awaitable[Got]]
ASKS: dict[str, Ask] = {}
"""Example → what provokes it."""

EXECUTE = f"/_plugins/_ml/agents/{FLOW}/_execute"
HI = {"input": "hi"}
IMAGE = {"type": "image", "source": {"type": "url", "format": "png", "data": "https://images.example.com/cat.png"}}


def _provokes(name: str) -> Callable[[Ask], Ask]:
    """Register a function that provokes the answer of the example `name`."""

    def register(ask: Ask) -> Ask:
        ASKS[name] = ask
        return ask

    return register


async def _got(response: aiohttp.ClientResponse) -> Got:
    return response.status, response.headers, await response.json()


async def _execute(
    place: Place, agent: str, body: Any, lookup: tuple[int, str] = (200, ""), headers: Mapping[str, str] | None = None
) -> Got:
    """Run an agent of a small cluster. lookup: the status of its documents, and the reason if it is an error."""
    cluster = Cluster()
    cluster.lookup_status, cluster.lookup_reason = lookup
    async with server_of(cluster) as server:
        gateway = await place.start_gateway(str(server.make_url("")).rstrip("/"))
        url = f"http://127.0.0.1:{gateway.data_port}"
        async with aiohttp.ClientSession(url, headers=headers) as session:
            return await _got(await Client(cluster, session).execute(agent, body))


async def _send(
    place: Place,
    *fields: str,
    url: str = "",
    over: Any = None,
    version: str = "1.1",
    body: bytes = b"{}",
    use_case: UseCase | None = None,
    line: str = f"POST {EXECUTE}",
) -> Got:
    """Send a request to a gateway with its own HTTP server, by default in front of a cluster that does not run."""
    over = {**(over or {}), "listen": {"http": "builtin", **(over or {}).get("listen", {})}}
    lines = (f"{line} HTTP/{version}", "Host: gateway", *fields)
    if not any(field.startswith(("Content-Length", "Transfer-Encoding")) for field in fields):
        lines = (*lines, f"Content-Length: {len(body)}")
    with reserved() as port:
        gateway = await place.start_gateway(url or f"http://127.0.0.1:{port}", use_case, over)
        answer = await send_request(gateway.data_port, "\r\n".join((*lines, "", "")).encode() + body)
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return int(answer.line.split()[1]), headers, json.loads(answer.body)


@_provokes("ValidationException")
async def _invalid(place: Place) -> Got:
    block = {"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo="}}
    return await _execute(place, FLOW, {"input": [block]})


@_provokes("UndeliverableContent")
async def _undeliverable(place: Place) -> Got:
    return await _execute(place, FLOW, {"input": [{"type": "text", "text": "What is this?"}, IMAGE]})


@_provokes("LookupDenied")
async def _denied(place: Place) -> Got:
    return await _execute(place, FLOW, HI, (403, "no permissions for [cluster:admin/opensearch/ml/agents/get]"))


@_provokes("LookupUnavailable")
async def _lookup_fails(place: Place) -> Got:
    return await _execute(place, FLOW, HI, (503, "the index is not available"))


@_provokes("AgentNotFound")
async def _no_agent(place: Place) -> Got:
    return await _execute(place, "nobody", HI)


@_provokes("SignatureConflict")
async def _signed(place: Place) -> Got:
    return await _execute(place, FLOW, HI, headers={"Authorization": SIGNED.decode()})


@_provokes("BodyTooLarge")
async def _large(place: Place) -> Got:
    return await _send(place, over={"limits": {"body": 1_000_000}}, body=b" " * 1_000_001)


@_provokes("UnsupportedEncoding")
async def _encoding(place: Place) -> Got:
    return await _send(place, "Content-Encoding: br")


@_provokes("TargetTooLong")
async def _target(place: Place) -> Got:
    return await _send(place, line=f"POST {EXECUTE}?q={'x' * 70_000}")


@_provokes("HeadTooLarge")
async def _head(place: Place) -> Got:
    return await _send(place, f"Cookie: {'x' * 70_000}")


async def _may_not_run(place: Place, status: bytes) -> Got:
    """Run an agent whose route leads to another cluster, for a caller whom the first one refuses."""
    async with RecordingUpstream([b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n{}" % status]) as upstream:
        target = {"agent": "another", "cluster": "new", "weight": 1}
        over = {
            "clusters": {"new": {"url": "http://127.0.0.1:1"}},
            "agents": {"routes": [{"agent": FLOW, "targets": [target]}]},
        }
        return await _send(place, "Content-Type: application/json", url=upstream.url, over=over)


@_provokes("CallerRefused")
async def _caller_refused(place: Place) -> Got:
    return await _may_not_run(place, b"403 Forbidden")


@_provokes("CallerUnknown")
async def _caller_unknown(place: Place) -> Got:
    return await _may_not_run(place, b"401 Unauthorized")


@_provokes("NotImplemented")
async def _coding(place: Place) -> Got:
    return await _send(place, "Transfer-Encoding: gzip, chunked")


@_provokes("VersionNotSupported")
async def _version(place: Place) -> Got:
    return await _send(place, version="1.2")


@_provokes("RequestTimeout")
async def _late(place: Place) -> Got:
    return await _send(place, "Content-Length: 100", over={"listen": {"timeouts": {"body": 0.05}}})


@_provokes("InternalError")
async def _fault(place: Place) -> Got:
    return await _send(place, use_case=UseCase(RuntimeError("a fault of the test")))


@_provokes("CredentialsUnavailable")
async def _no_credentials(place: Place) -> Got:
    patch = place.patch
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        patch.setenv(name, "/nowhere")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return await _send(place, over=sigv4(), use_case=UseCase())


@_provokes("UpstreamUnavailable")
async def _no_cluster(place: Place) -> Got:
    return await _send(place, use_case=UseCase())


class _Silent:
    """A cluster that reads requests and never answers. arrived: is released once for each request."""

    def __init__(self) -> None:
        self.arrived = asyncio.Semaphore(0)

    async def __call__(self, _: Any, input: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await input.readuntil(b"\r\n\r\n")
        self.arrived.release()
        await asyncio.Event().wait()


@_provokes("UpstreamTimeout")
async def _silence(place: Place) -> Got:
    async with RecordingUpstream(script=_Silent()) as upstream:
        over = {"upstream": {"timeouts": {"connect": PATIENCE, "execute": 0.05}}}
        return await _send(place, url=upstream.url, over=over, use_case=UseCase())


async def _one_too_many(place: Place, **admission: int) -> Got:
    """Send a request while two others run."""
    over = {"admission": {**admission, "queue": 0}, "upstream": {"timeouts": {"execute": 0}}}
    silent = _Silent()
    async with RecordingUpstream(script=silent) as upstream, aiohttp.ClientSession() as session:
        gateway = await place.start_gateway(upstream.url, UseCase(), over)

        async def send() -> Got:
            return await _got(await session.post(f"http://127.0.0.1:{gateway.data_port}{EXECUTE}", json=HI))

        running = [asyncio.create_task(send()) for _ in range(2)]
        for _ in running:
            await silent.arrived.acquire()
        got = await send()
        for task in running:
            task.cancel()
        return got


@_provokes("TooManyRequests")
async def _too_many(place: Place) -> Got:
    return await _one_too_many(place, per_client=2)


@_provokes("Overloaded")
async def _overloaded(place: Place) -> Got:
    return await _one_too_many(place, total=2)


@_provokes("BudgetSpent")
async def _spent(place: Place) -> Got:
    client = await place.start_with_policy({"budgets": [{"tokens": 18}]})
    await client.execute(V2, HI)
    return await _got(await client.execute(V2, HI))


@_provokes("BudgetUnavailable")
async def _no_budget(place: Place) -> Got:
    with reserved() as port:
        policy = {"budgets": [{"tokens": 1}], "budget_store": "opensearch"}
        memory = {"opensearch": {"url": f"http://127.0.0.1:{port}"}}
        client = await place.start_with_policy(policy, memory=memory)
        return await _got(await client.execute(V2, HI))


@_provokes("GuardrailRefused")
async def _refused(place: Place) -> Got:
    place.webhook.verdict = {"verdict": "refuse", "reason": "no card numbers", "place": "input", "code": "card"}
    client = await place.start_with_policy(guardrail(place.webhook))
    return await _got(await client.execute(V2, {"input": "4111"}))


@_provokes("GuardrailUnavailable")
async def _unchecked(place: Place) -> Got:
    with reserved() as port:
        policy = {"guardrails": [{"name": "pii", "url": f"http://127.0.0.1:{port}/"}]}
        client = await place.start_with_policy(policy)
        return await _got(await client.execute(V2, HI))


async def _ask(cluster: SessionCluster, body: Any) -> Got:
    """Run an agent with gateway memory."""
    path = f"/_plugins/_ml/agents/{cluster.agents[AGENT]}/_execute"
    async with aiohttp.ClientSession(f"http://127.0.0.1:{cluster.gateways[-1].data_port}") as session:
        return await _got(await session.post(path, json=body))


@_provokes("SessionNotFound")
async def _no_session(place: Place) -> Got:
    body = {**HI, "parameters": {"memory_id": "gws-0198c1f2e5a87d3d9b1e4f6a2c8d7e90"}}
    return await _ask(await place.start_cluster(), body)


@_provokes("SessionBusy")
async def _busy(place: Place) -> Got:
    cluster = await place.start_cluster("2.19.0", {"concurrent": "refuse"})
    first = await cluster.ask(AGENT, {"input": "Hello."})
    started, goes_on = asyncio.Event(), asyncio.Event()
    post = cluster.simulator._post

    async def waiting_post(call: Any) -> Any:
        started.set()
        await goes_on.wait()
        return await post(call)

    cluster.simulator._post = waiting_post  # type: ignore[method-assign]
    running = asyncio.create_task(cluster.ask(AGENT, {"input": "Slowly."}, first.memory_id))
    await started.wait()
    got = await _ask(cluster, {**HI, "parameters": {"memory_id": first.memory_id}})
    goes_on.set()
    await running
    return got


@_provokes("MemoryUnavailable")
async def _no_memory(place: Place) -> Got:
    folder = place.folder
    (folder / "file").write_text("")
    cluster = await place.start_cluster()
    await cluster.start({"memory": {"sqlite": {"path": str(folder / "file" / "sessions.sqlite3")}}})
    return await _ask(cluster, HI)


@_provokes("IdempotencyKeyReused")
async def _key_reused(place: Place) -> Got:
    key = {"Idempotency-Key": "deploy-17"}
    async with deploy() as deployment:
        await deployment.register(headers=key)
        status, document, headers = await deployment.call("POST", REGISTER, deployment.body(name="other"), key)
        return status, headers, document


@_provokes("RegistrationFailed")
async def _registration_fails(place: Place) -> Got:
    url = "https://llm.example.com/converse"
    reason = f"Connector URL is not matching the trusted connector endpoint regex, URL is: {url}"
    refusal = {"status": 400, "error": {"type": "illegal_argument_exception", "reason": reason}}
    async with deploy() as deployment:
        fault = Fault("error", "POST", ".*/models/_register", status=400, body=json.dumps(refusal).encode())
        deployment.front.faults.append(fault)
        body = deployment.body(model=deployment.model(url=url))
        status, document, headers = await deployment.call("POST", REGISTER, body)
        return status, headers, document
