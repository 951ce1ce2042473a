"""Registrations as clients send them: what is forwarded, made, refused, and never shown."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from opensearchpy import AsyncOpenSearch

from gateway.app import build
from gateway.config.load import load
from gateway.observe.logs import configure
from gateway.upstream import client
from tests.conftest import StartGateway
from tests.delivery.cases import IMAGE
from tests.execute.stub_cluster import Cluster, server_of
from tests.faulty_cluster import Fault
from tests.register.deployment import ENABLE_MCP, ML, QUICK, REGISTER, SECRETS, Deadlines, basic, deploy, left_alone

VERSIONS = ("2.19.0", "3.4.0")
MCP = {"url": "https://tools.example.org/sse", "headers": {"X-Key": "mcp-header-secret"}}
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=A/20260101/eu-west-1/es/aws4_request, SignedHeaders=host"}
FLOW = b'{"name":"f","type":"flow","tools":[{"type":"CatIndexTool"}]}'
JSON = {"Content-Type": "application/json"}
UNTOUCHED: dict[str, tuple[bytes, dict[str, str]]] = {
    "legacy": (FLOW, JSON),
    "no content type": (FLOW, {}),
    "not JSON": (b'{"name": "f", "model": {', JSON),
    "empty": (b"", JSON),
    "an array": (b'[{"model": {}}]', JSON),
    "null blocks": (b'{"model": null, "mcp": null, "name": "f", "type": "flow"}', JSON),
    "a model of another kind": (b'{"type":"flow","name":"f","app_type":"model","tools":[]}', JSON),
    "what strict JSON has not": (
        b'\xef\xbb\xbf{"name":"f","name":"g","type":"flow","tools":[],"llm":{"parameters":{"model":NaN}}}',
        JSON,
    ),
    "a lone surrogate": (b'{"name":"\\ud800","type":"flow","tools":[],"description":"\\u006dodel"}', JSON),
    "nested too deep": (b'{"model":' + b"[" * 5000 + b"]" * 5000 + b"}", JSON),
    "YAML": (b"name: f\ntype: flow\nmodel: {}\n", {"Content-Type": "application/yaml"}),
    "gzip": (gzip.compress(FLOW), {**JSON, "Content-Encoding": "gzip"}),
    "no gzip after all": (FLOW, {**JSON, "Content-Encoding": "gzip"}),
    "zstd": (FLOW, {**JSON, "Content-Encoding": "zstd"}),
    "signed": (FLOW, {**JSON, **SIGNED}),
}


@pytest.mark.parametrize("name", UNTOUCHED)
async def test_what_has_no_model_and_no_mcp_passes_byte_for_byte(name: str) -> None:
    data, headers = UNTOUCHED[name]
    async with deploy() as deployment:
        async with deployment.client.post(REGISTER, data=data, headers=headers) as response:
            status = response.status
        [seen] = deployment.front.seen
        assert (seen.body, seen.status) == (data, status)
        assert headers.items() <= seen.headers.items()


async def test_switched_off_nothing_is_touched() -> None:
    async with deploy(over={"registration": {"enabled": False}}) as deployment:
        status, document = await deployment.register()
        assert status == 400
        assert document["error"]["reason"] == "We need model information for the conversational agent type"
        status, _, headers = await deployment.call("DELETE", f"{ML}/agents/x?cascade=true")
        assert "X-MLC-Cleanup" not in headers
        [seen, deleted] = deployment.front.seen
        assert json.loads(seen.body) == deployment.body()
        assert deleted.path.endswith("?cascade=true")


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_rfcs_registration_with_opensearch_py(version: str) -> None:
    async with deploy(version) as deployment:
        refused = AsyncOpenSearch(deployment.simulator.url)
        client = AsyncOpenSearch(f"http://127.0.0.1:{deployment.gateway.data_port}")
        try:
            with pytest.raises(Exception, match="We need model information"):
                await refused.transport.perform_request("POST", REGISTER, body=deployment.body())
            made = await client.transport.perform_request("POST", REGISTER, body=deployment.body())
            inputs = [
                "hello",
                [{"type": "text", "text": "what is this?"}, IMAGE],
                [
                    {"role": "user", "content": [{"type": "text", "text": "first"}, IMAGE]},
                    {"role": "assistant", "content": [{"type": "text", "text": "a dot"}]},
                    {"role": "user", "content": [{"type": "text", "text": "which colour?"}]},
                ],
            ]
            for one in inputs:
                path = f"{ML}/agents/{made['agent_id']}/_execute"
                await client.transport.perform_request("POST", path, body={"input": one})
        finally:
            await refused.close()
            await client.close()
        text, image, conversation = (json.dumps(body["messages"]) for body in deployment.simulator.received)
        assert "hello" in text
        assert IMAGE["source"]["data"] in image
        assert [message["role"] for message in json.loads(conversation)] == ["user", "assistant", "user"]
        assert IMAGE["source"]["data"] in conversation
        assert deployment.orphans == []


@pytest.mark.parametrize("provider", ["bedrock/converse", "openai/v1/chat/completions"])
async def test_an_agent_without_tools_sends_no_empty_list_of_them(provider: str) -> None:
    async with deploy("3.4.0") as deployment:
        model = deployment.model()
        if provider.startswith("openai"):
            model |= {"model_provider": provider, "credential": {"openai_api_key": "k"}, "model_parameters": {}}
            model["url"] = f"{deployment.simulator.llm_url}/openai/v1/chat/completions"
        _, document = await deployment.register(deployment.body(model=model, tools=[]))
        status, answer = await deployment.execute(document["agent_id"], "hello")
        assert status == 200, answer
        [received] = deployment.simulator.received
        assert not {"tools", "toolConfig", "tool_choice"} & received.keys()


@pytest.mark.parametrize("version", VERSIONS)
async def test_credentials_go_into_the_connector_and_nowhere_else(version: str) -> None:
    async with deploy(version) as deployment:
        await deployment.register()
        deployment.front.faults.append(Fault("error", "POST", REGISTER))
        await deployment.register(deployment.body(name="other"))
        await deployment.register(deployment.body(type="no such type"))
        await deployment.register(
            deployment.body(model={**deployment.model(), "credential": {"access_key": list(SECRETS)}})
        )
        await deployment.register(deployment.body(model={**deployment.model(), "model_provider": "no such provider"}))
        resources = deployment.simulator.core.resources
        [model] = resources.models.values()
        assert set(SECRETS) <= set(model["connector"].pop("credential").values())
        stored = json.dumps([*resources.agents.values(), model])
        assert deployment.log.getvalue().count('"intent": "register"') == 5
        for secret in (*SECRETS, json.dumps(SECRETS[1])[1:-1]):
            assert secret not in deployment.log.getvalue() + stored
            assert all(secret not in answer for answer in deployment.answers)


async def test_the_clusters_words_are_passed_on_without_the_credential() -> None:
    async with deploy() as deployment:
        deployment.front.faults.append(refusal(f"no {SECRETS[0]}, {json.dumps(SECRETS[1])}!", REGISTER))
        status, document = await deployment.register()
        assert status == 400
        assert document["error"]["reason"] == 'The cluster refused to make the agent: no [hidden], "[hidden]"!'


async def test_a_signed_registration_that_needs_calls_of_the_gateways_own_is_refused() -> None:
    async with deploy() as deployment:
        status, document = await deployment.register(headers=SIGNED)
        assert (status, document["error"]["type"]) == (400, "SignatureConflict")
        assert deployment.front.seen == []


async def test_with_credentials_of_the_gateways_own_every_call_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDGATEWAY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "gateway-secret")
    auth = {"auth": {"mode": "sigv4", "sigv4": {"region": "eu-west-1"}}}
    async with deploy(over={"upstream": auth, "registration": {}}) as deployment:
        status, document = await deployment.register(headers=basic("anna"))
        assert status == 200
        await deployment.call("DELETE", f"{ML}/agents/{document['agent_id']}?cascade=true", headers=SIGNED)
        assert deployment.counts == (0, 0, 0)
        assert len(deployment.front.seen) >= 8
        for seen in deployment.front.seen:
            assert seen.headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDGATEWAY/")


async def test_calls_are_made_in_the_callers_name() -> None:
    async with deploy() as deployment:
        caller = basic("anna") | {"securitytenant": "blue", "X-Other": "no"}
        await deployment.register(headers=caller)
        assert len(deployment.front.seen) >= 5
        for seen in deployment.front.seen:
            headers = {name.lower(): value for name, value in seen.headers.items()}
            assert (headers["authorization"], headers["securitytenant"]) == (caller["Authorization"], "blue")
            assert "x-other" not in headers


@pytest.mark.parametrize("kind", ["flow", "conversational_flow", "conversational_v2", "conversational/v2"])
async def test_other_types(kind: str) -> None:
    async with deploy() as deployment:
        status, document = await deployment.register(deployment.body(type=kind))
        assert status == 200
        assert (await deployment.execute(document["agent_id"], [{"type": "text", "text": "hello"}, IMAGE]))[0] == 200
        assert IMAGE["source"]["data"] in json.dumps(deployment.simulator.received)
        assert deployment.orphans == []


async def test_what_the_version_has_not_is_refused_before_anything_is_made() -> None:
    async with deploy() as deployment:
        status, document = await deployment.register(deployment.body(type="plan_execute_and_reflect", mcp=MCP))
        assert status == 400
        codes = [problem["code"] for problem in document["error"]["problems"]]
        assert codes == ["TYPE_NOT_ON_VERSION", "MCP_NOT_ON_VERSION"]
        assert [seen.method for seen in deployment.front.seen] == ["GET"]


async def test_mcp_needs_a_setting_and_the_call_that_sets_it_is_told() -> None:
    async with deploy("3.4.0") as deployment:
        status, document = await deployment.register(deployment.body(mcp=MCP))
        assert (status, document["error"]["problems"][0]["code"]) == (400, "MCP_DISABLED")
        _, path, body = document["error"]["help"].removeprefix("An administrator runs: ").split(" ", 2)
        assert (await deployment.call("PUT", path, json.loads(body)))[0] == 200
        status, document = await deployment.register(deployment.body(mcp=MCP))
        assert status == 200
        assert deployment.counts == (1, 1, 1)
        [connector] = deployment.simulator.core.resources.connectors.values()
        assert connector["headers"] == MCP["headers"]
        [connector_id] = deployment.simulator.core.resources.connectors
        [agent] = deployment.simulator.core.resources.agents.values()
        assert connector_id in agent["parameters"]["mcp_connectors"]
        assert "mcp-header-secret" not in deployment.shown() + json.dumps(agent)


async def test_mcp_without_a_model_block() -> None:
    async with deploy("3.4.0") as deployment:
        deployment.simulator.core.settings.change(ENABLE_MCP)
        await deployment.register()
        [model_id] = deployment.simulator.core.resources.models
        body = {"name": "m", "type": "conversational", "llm": {"model_id": model_id, "parameters": {}}, "mcp": MCP}
        assert (await deployment.register({**body, "memory": {"type": "conversation_index"}}))[0] == 200
        assert deployment.counts == (2, 1, 1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_address_the_cluster_does_not_trust_is_told_with_the_call_that_mends_it(version: str) -> None:
    async with deploy(version) as deployment:
        name = "plugins.ml_commons.trusted_connector_endpoints_regex"
        deployment.simulator.core.settings.change({"persistent": {name: ["^https://a[.]example/.*$"]}})
        deployment.front.faults.append(refusal(f"{UNTRUSTED}https://b.example:8443/x", f"{ML}/models/_register"))
        status, document = await deployment.register()
        assert status == 400
        call = document["error"]["help"].removeprefix("An administrator runs: ")
        _, _, body = call.split(" ", 2)
        expected = {"persistent": {name: ["^https://a[.]example/.*$", r"^https://b\.example:8443(/.*)?$"]}}
        assert json.loads(body) == expected
        assert deployment.counts == (0, 0, 0)


UNTRUSTED = "Connector URL is not matching the trusted connector endpoint regex, URL is: "


def refusal(reason: str, path: str) -> Fault:
    """A response of the cluster that the simulator does not have."""
    return Fault("error", "POST", path, status=400, body=json.dumps({"error": {"reason": reason}}).encode())


async def test_an_update_where_agents_can_not_be_changed_is_explained() -> None:
    async with deploy() as deployment:
        _, made = await deployment.register()
        status, document, headers = await deployment.call("PUT", f"{ML}/agents/{made['agent_id']}", {"name": "new"})
        assert (status, document["status"]) == (405, 405)
        assert document["error"].startswith(f"Incorrect HTTP method for uri [{ML}/agents/{made['agent_id']}]")
        assert "agents.routes" in document["error"]
        assert {name.strip() for name in headers["Allow"].split(",")} == {"GET", "DELETE"}


async def test_an_update_where_agents_can_be_changed_passes() -> None:
    async with deploy("3.4.0") as deployment:
        _, made = await deployment.register()
        body = {"name": "new"}
        status, document, _ = await deployment.call("PUT", f"{ML}/agents/{made['agent_id']}", body)
        assert (status, document["result"]) == (200, "updated")
        assert json.loads(deployment.front.seen[-1].body) == body


@pytest.mark.parametrize("path", [f"{ML}/models/_register", REGISTER])
@pytest.mark.parametrize(("kind", "count"), [("late", 1), ("stall", 0)])
async def test_a_client_that_goes_away_leaves_nothing_half_made(kind: Any, count: int, path: str) -> None:
    async with deploy("3.4.0") as deployment:
        deployment.front.faults.append(Fault(kind, "POST", path))
        await left_alone(deployment, deployment.register())
        await deployment.gateway.stop()  # which waits for running work
        assert deployment.counts == (count, count, 0)
        assert deployment.orphans == []


async def test_a_gateway_that_has_no_more_time_says_what_it_left() -> None:
    over = {"registration": {"timeout": 60}, "listen": {"shutdown_seconds": 0.2}}
    async with deploy(over=over) as deployment:
        deployment.front.faults.append(Fault("stall", "POST", REGISTER))
        deployment.front.expire = None
        await left_alone(deployment, deployment.register())
        await deployment.gateway.stop()
        [model_id] = deployment.simulator.core.resources.models
        [line] = [json.loads(line) for line in deployment.log.getvalue().splitlines() if "cut short" in line]
        [group_id] = deployment.simulator.core.resources.groups
        assert line["made"] == [f"model group {group_id}", f"model {model_id}"]


async def test_a_body_over_the_limit_is_refused_as_for_execute() -> None:
    async with deploy(over={"limits": {"body": 1000}}) as deployment:
        status, document = await deployment.register(deployment.body(description="x" * 1000))
        assert (status, document["error"]["type"]) == (413, "BodyTooLarge")


async def test_profiles_are_forgotten_when_an_agent_is_registered_or_deleted() -> None:
    async with deploy() as deployment:
        _, made = await deployment.register()
        assert (await deployment.execute(made["agent_id"], "hello"))[0] == 200
        assert (await deployment.call("DELETE", f"{ML}/agents/{made['agent_id']}"))[0] == 200
        assert (await deployment.execute(made["agent_id"], "hello"))[0] == 404


async def test_registrations_are_counted() -> None:
    async with deploy(over={"registration": QUICK}) as deployment:
        await deployment.register()
        await deployment.register()
        deployment.front.faults.append(Fault("error", "POST", REGISTER))
        await deployment.register(deployment.body(name="other"))
        text = deployment.gateway.metrics.render().decode()
        for outcome in ("made", "reused", "failed"):
            assert f'mlc_gateway_registrations_total{{outcome="{outcome}"}} 1.0' in text
        assert 'mlc_gateway_requests_total{intent="register",status="200"} 2.0' in text


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("conversational", "conversational"), ("conversational/v2", "conversational_v2"), ("", "conversational")],
)
async def test_a_cluster_that_takes_the_model_block_gets_it(start_gateway: StartGateway, kind: str, sent: str) -> None:
    cluster = Cluster()
    cluster.answers = [(200, {"agent_id": "made"})]
    async with server_of(cluster) as server:
        gateway = await start_gateway(f"http://127.0.0.1:{server.port}")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
            model = {
                "model_id": "m",
                "model_provider": "openai/v1/chat/completions",
                "credential": {"openai_api_key": "k"},
            }
            tools = [{"type": "ListIndexTool"}]
            body = {"name": "a", "model": model, "tools": tools, **({"type": kind} if kind else {})}
            data = json.dumps(body, indent=3).encode()
            async with client.post(REGISTER, data=data, headers=JSON) as response:
                assert (response.status, await response.json()) == (200, {"agent_id": "made"})
            assert (cluster.bodies == [data]) is (kind == sent)
            assert cluster.sent == [{**body, "type": sent}]
            # A signed request can't be used to read what the cluster supports, so nothing is sent.
            async with client.post(REGISTER, data=data, headers={**JSON, **SIGNED}) as response:
                assert response.status == 400
            assert len(cluster.bodies) == 1


async def test_with_a_service_account_a_signed_registration_may_pass(start_gateway: StartGateway) -> None:
    cluster = Cluster()
    account = {"username": "reader", "password": {"env": "PATH"}}
    over = {"agents": {"lookup": "service_account", "service_account": account}}
    model = {"model_id": "m", "model_provider": "openai/v1/chat/completions", "credential": {"openai_api_key": "k"}}
    async with server_of(cluster) as server:
        data = {"listen": {"data_port": 0, "admin_port": 0}, "upstream": {"url": f"http://127.0.0.1:{server.port}"}}
        gateway = build(load(None, {"PATH": "secret"}, {**data, **over}), log=configure("error", "json"))
        await gateway.start()
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
                for kind, status in (("conversational", 200), ("conversational/v2", 400)):
                    body = {"name": "a", "type": kind, "model": model}
                    async with client.post(REGISTER, json=body, headers=SIGNED) as response:
                        assert response.status == status
        finally:
            await gateway.stop()
    assert len(cluster.bodies) == 1
    assert cluster.lookups
    assert all(headers["Authorization"].startswith("Basic ") for headers in cluster.lookups)


async def test_where_the_setting_is_off_the_gateway_makes_model_and_agent(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "asyncio", Deadlines())  # no search takes longer than `visible_within` allows
    cluster = Cluster()
    cluster.api_on = "false"
    none = {"hits": {"hits": []}}
    made = [(200, {"model_group_id": "g1"}), (200, {"model_id": "m1"}), (200, {"agent_id": "a1"})]
    cluster.answers = [(200, none), *made, (200, none)]
    async with server_of(cluster) as server:
        gateway = await start_gateway(f"http://127.0.0.1:{server.port}", None, {"registration": QUICK})
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as session:
            model = {
                "model_id": "m",
                "model_provider": "openai/v1/chat/completions",
                "credential": {"openai_api_key": "k"},
            }
            body = {"name": "a", "type": "conversational", "model": model}
            async with session.post(REGISTER, json=body) as response:
                assert (response.status, await response.json()) == (200, {"agent_id": "a1"})
                assert response.headers["X-MLC-Gateway-Notice"] == "REUSE_NOT_CHECKED"
    assert cluster.sent[2]["model_group_id"] == "g1"
    agent = cluster.sent[3]
    assert agent["llm"]["model_id"] == "m1"
    assert agent["parameters"]["_llm_interface"] == "openai/v1/chat/completions"


async def test_wrong_credentials_of_the_service_account_are_no_question_to_the_client(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("wrong")
    account = {"username": "reader", "password": {"file": str(password)}}
    async with deploy(over={"agents": {"lookup": "service_account", "service_account": account}}) as deployment:
        deployment.front.faults.append(Fault("error", "GET", "/$", status=401))
        status, document = await deployment.register()
        assert (status, document["error"]["type"]) == (400, "UnresolvedAgent")
        assert [seen.method for seen in deployment.front.seen] == ["GET"]


async def test_who_is_not_known_gets_the_clusters_own_question() -> None:
    async with deploy() as deployment:
        deployment.front.faults.append(Fault("error", "GET", "/$", status=401))
        status, document = await deployment.register()
        assert status == 400
        assert document["error"]["reason"] == "We need model information for the conversational agent type"
        assert [seen.method for seen in deployment.front.seen] == ["GET", "POST"]
