"""Execute requests end to end: client, gateway, a simulated cluster and its LLMs, all on loopback."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from gateway.execute.deliveries import BOTH_SENT, DELIVERY, NOTICE
from gateway.simulator.fixtures import CLASSIC, FLOW_PROMPT, MODERN, connector_body
from gateway.unified.payloads import THRESHOLD
from tests.conftest import StartGateway
from tests.delivery.cases import IMAGE, PNG
from tests.execute.conftest import Deployment, StartDeployment
from tests.wire import RecordingUpstream, send_request

BLOCKS = [{"type": "text", "text": "what is this?"}, IMAGE]
TALK = [
    {"role": "user", "content": BLOCKS},
    {"role": "assistant", "content": [{"type": "text", "text": "a dot"}]},
    {"role": "user", "content": [{"type": "text", "text": "which colour?"}]},
]


def asked(question: str) -> str:
    return FLOW_PROMPT.replace("${parameters.question}", question)


def bedrock_image(data: str = PNG) -> dict[str, Any]:
    return {"image": {"format": "png", "source": {"bytes": data}}}


def llm_body(messages: list[Any]) -> dict[str, Any]:
    """Return what the LLM with template a receives."""
    return {"system": [{"text": "Be brief."}], "messages": messages, "inferenceConfig": {"maxTokens": 500}}


EACH_INPUT = {
    "text": ("text", "hello", [{"role": "user", "content": [{"text": asked("hello")}]}]),
    "blocks": (
        "content_blocks",
        BLOCKS,
        [{"role": "user", "content": [{"text": asked("what is this?")}, bedrock_image()]}],
    ),
    "messages": (
        "messages",
        TALK,
        [
            {"role": "user", "content": [{"text": "what is this?"}, bedrock_image()]},
            {"role": "assistant", "content": [{"text": "a dot"}]},
            {"role": "user", "content": [{"text": asked("which colour?")}]},
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EACH_INPUT)
async def test_each_input_type_arrives_and_the_answer_says_how(deployment: Deployment, name: str) -> None:
    kind, sent_input, messages = EACH_INPUT[name]
    answer = await deployment.execute("flow-a", {"input": sent_input})
    assert deployment.simulator.received == [llm_body(messages)]
    assert answer.status == 200
    assert answer.headers[DELIVERY] == f"strategy=wrap; provider=bedrock/converse; input={kind}"
    assert NOTICE not in answer.headers
    assert "Warning" not in answer.headers
    text = (await answer.json())["inference_results"][0]["output"][0]["result"]
    assert text == "This is the simulated model's answer."


async def test_a_limitation_that_was_met_is_named_in_a_header(deployment: Deployment) -> None:
    answer = await deployment.execute("flow-d", {"input": [{"type": "text", "text": t} for t in ("one", "two")]})
    assert answer.status == 200
    assert answer.headers[NOTICE] == "TEXT_JOINED"
    assert deployment.simulator.received[0]["messages"][0]["content"] == [{"text": asked("one\ntwo")}]


async def test_both_headers_can_be_turned_off(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment("2.19.0", {"answers": {"delivery_header": False, "notice_header": False}})
    answer = await deployment.execute("flow-d", {"input": [{"type": "text", "text": t} for t in ("one", "two")]})
    assert answer.status == 200
    assert [name for name in answer.headers if name.startswith("X-MLC")] == []


@pytest.mark.parametrize("agent", ["flow-a", "flow-d"])
async def test_input_wins_over_the_question_and_a_warning_says_so(deployment: Deployment, agent: str) -> None:
    answer = await deployment.execute(agent, {"input": "from input", "parameters": {"question": "from question"}})
    assert answer.headers.getall("Warning") == [BOTH_SENT]
    assert BOTH_SENT.startswith("299 ")
    sent = json.dumps(deployment.simulator.received)
    assert ("from input" in sent, "from question" in sent) == (True, False)


LEGACY = {
    "question": b'{"parameters": {"question":  "hi", "question2": 1.10}}',
    "odd spelling": b' {\n"parameters":{"question":"caf\\u00e9 \\/ ","messages":"[]","n":1E2}}\n',
    "empty object": b"{}",
    "duplicate keys": b'{"parameters":{"a":1},"parameters":{"question":"x"}}',
    "long": b'{"parameters":{"question":"' + b"x" * (2 * THRESHOLD) + b'"}}',
}


@pytest.mark.parametrize("name", LEGACY)
async def test_a_legacy_request_goes_byte_for_byte_and_without_a_warning(
    start_gateway: StartGateway, name: str
) -> None:
    body = LEGACY[name]
    head = (
        b"POST /_plugins/_ml/agents/a%2Db/_execute?x=%20y HTTP/1.1\r\nHost: c.example\r\nX-Dup: 1\r\nX-Dup: 2\r\n"
        b"Content-Type: application/json\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n"
    )
    async with RecordingUpstream() as cluster:
        gateway = await start_gateway(cluster.url)
        answer = await send_request(gateway.data_port, head + body)
        (received,) = [request for request in cluster.requests if request.line.startswith(b"POST")]
    assert received.body == body
    assert received.line == b"POST /_plugins/_ml/agents/a%2Db/_execute?x=%20y HTTP/1.1"
    assert received.values("X-Dup") == [b"1", b"2"]
    assert received.values("Content-Type") == [b"application/json"]
    assert answer.values("Warning") == answer.values(DELIVERY) == answer.values(NOTICE) == []


async def test_a_legacy_request_reaches_the_agent_as_without_a_gateway(deployment: Deployment) -> None:
    answer = await deployment.execute("flow-d", {"parameters": {"question": "hello"}})
    assert answer.status == 200
    assert deployment.simulator.received == [{"messages": [{"role": "user", "content": [{"text": asked("hello")}]}]}]
    assert DELIVERY not in answer.headers


async def test_parameters_of_the_client_stay(deployment: Deployment) -> None:
    await deployment.execute("flow-a", {"input": "hello", "parameters": {"max_tokens": 7, "system_prompt": "Be long."}})
    (received,) = deployment.simulator.received
    assert received["inferenceConfig"] == {"maxTokens": 7}
    assert received["system"] == [{"text": "Be long."}]


async def test_an_unknown_agent_is_a_404_with_the_clusters_words(deployment: Deployment) -> None:
    """The cluster's own error would be an empty input, because it does not know `input`."""
    answer = await deployment.execute("no-such-agent", {"input": "hello"})
    reason = "there is no agent no-such-agent"
    detail = "the cluster answered 404: Failed to find agent with the provided agent id: no-such-agent"
    assert (answer.status, await answer.json()) == (
        404,
        {
            "status": 404,
            "error": {
                "root_cause": [{"type": "UnresolvedAgent", "reason": reason}],
                "type": "UnresolvedAgent",
                "reason": reason,
                "message": reason,
                "details": {"field": "agents/no-such-agent", "expected": "200", "received": "404"},
                "problems": [{"field": "agents/no-such-agent", "reason": detail, "expected": "200", "received": "404"}],
            },
        },
    )


async def test_an_unknown_agent_asked_the_old_way_gets_the_clusters_own_answer(deployment: Deployment) -> None:
    body = {"parameters": {"question": "hello"}}
    through = await deployment.execute("no-such-agent", body)
    path = "/_plugins/_ml/agents/no-such-agent/_execute"
    direct = await deployment.client.post(f"{deployment.simulator.url}{path}", json=body)
    assert through.status == direct.status == 404
    assert await through.json() == await direct.json()


async def test_content_without_a_way_is_refused_and_nothing_is_sent(deployment: Deployment) -> None:
    answer = await deployment.execute("flow-d", {"input": BLOCKS})
    body = await answer.json()
    remedy = body["error"].pop("help")
    reason = "[input[1]] this agent's connector has no place for media"
    upgrade = f"Upgrade the agent with `mlc-gateway upgrade {deployment.agents['flow-d']}`."
    whole = f"{reason} [MEDIA_NEEDS_UPGRADE]. {upgrade}"
    problem = {
        "field": "input[1]", "reason": "this agent's connector has no place for media", "expected": "text",
        "received": "image (png)", "code": "MEDIA_NEEDS_UPGRADE", "help": remedy,
    }  # fmt: skip
    assert body == {
        "status": 400,
        "error": {
            "root_cause": [{"type": "UndeliverableContent", "reason": whole}],
            "type": "UndeliverableContent",
            "reason": whole,
            "message": reason,
            "details": {"field": "input[1]", "expected": "text", "received": "image (png)"},
            "problems": [problem],
        },
    }
    assert remedy.startswith("upgrade the agent with `mlc-gateway upgrade ")
    assert "in the parameter messages; requests without this parameter are not affected" in remedy
    assert deployment.simulator.received == []


async def _upgrade(deployment: Deployment, url: str) -> None:
    """Give flow-d's model the connector that the refusal suggests. url: the gateway's or the cluster's."""
    ml = f"{url.rstrip('/')}/_plugins/_ml"
    upgraded = connector_body("u", CLASSIC["h"], deployment.simulator.llm_url)
    made = await (await deployment.client.post(f"{ml}/connectors/_create", json=upgraded)).json()
    agent = await (await deployment.client.get(f"{ml}/agents/{deployment.agents['flow-d']}")).json()
    model_id = agent["tools"][0]["parameters"]["model_id"]
    changed = await deployment.client.put(f"{ml}/models/{model_id}", json={"connector_id": made["connector_id"]})
    assert changed.status == 200


async def test_the_named_upgrade_makes_it_work_and_the_cached_profile_is_forgotten(deployment: Deployment) -> None:
    """The connector is changed through the gateway, so the next request uses it."""
    assert (await deployment.execute("flow-d", {"input": BLOCKS})).status == 400
    await _upgrade(deployment, deployment.url)
    assert (await deployment.execute("flow-d", {"input": BLOCKS})).status == 200
    content = [{"text": asked("what is this?")}, bedrock_image()]
    assert deployment.simulator.received == [{"messages": [{"role": "user", "content": content}]}]


async def test_a_change_behind_the_gateways_back_is_seen_when_the_cache_is_old(
    start_deployment: StartDeployment,
) -> None:
    deployment = await start_deployment("2.19.0", {"agents": {"cache_ttl": 0.0}})
    assert (await deployment.execute("flow-d", {"input": BLOCKS})).status == 400
    await _upgrade(deployment, deployment.simulator.url)
    assert (await deployment.execute("flow-d", {"input": BLOCKS})).status == 200


async def test_describe_puts_a_note_where_the_operator_chose_it(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment("2.19.0", {"agents": {"rules": [{"agent": "flow-d", "delivery": "describe"}]}})
    answer = await deployment.execute("flow-d", {"input": BLOCKS})
    assert answer.status == 200
    assert answer.headers[NOTICE] == "TEXT_JOINED, MEDIA_DESCRIBED"
    (received,) = deployment.simulator.received
    note = "[image (png, 70 bytes) was not delivered]"
    assert received["messages"][0]["content"] == [{"text": asked(f"what is this?\n{note}")}]
    assert (await deployment.execute("flow-e", {"input": BLOCKS})).status == 400


async def test_a_role_that_is_mapped_from_tool_needs_no_call(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment("2.19.0", {"agents": {"roles": {"tool": "user"}}})
    for text in ("sunny", "rainy"):  # the second one on the fast path
        answer = await deployment.execute("flow-a", {"input": [{"role": "tool", "content": text}]})
        assert (answer.status, answer.headers.get(NOTICE)) == (200, "ROLE_MAPPED")
        assert deployment.simulator.received[-1] == llm_body([{"role": "user", "content": [{"text": asked(text)}]}])


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compressed_body_is_rewritten(deployment: Deployment, encoding: str) -> None:
    raw = json.dumps({"input": BLOCKS}).encode()
    packed = gzip.compress(raw) if encoding == "gzip" else zlib.compress(raw)
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    answer = await deployment.execute("flow-a", data=packed, headers=headers)
    assert answer.status == 200
    content = [{"text": asked("what is this?")}, bedrock_image()]
    assert deployment.simulator.received == [llm_body([{"role": "user", "content": content}])]


async def test_a_large_medium_arrives_uncut(deployment: Deployment) -> None:
    data = "QUJD" * 300_000
    image = {"type": "image", "source": {"type": "base64", "format": "png", "data": data}}
    assert (await deployment.execute("flow-a", {"input": [BLOCKS[0], image]})).status == 200
    content = [{"text": asked("what is this?")}, bedrock_image(data)]
    assert deployment.simulator.received == [llm_body([{"role": "user", "content": content}])]


async def test_memory_goes_on_through_the_gateway(deployment: Deployment) -> None:
    first = await deployment.execute("conv-a", {"input": "first question"})
    outputs = (await first.json())["inference_results"][0]["output"]
    memory_id = next(one["result"] for one in outputs if one["name"] == "memory_id")
    second = await deployment.execute("conv-a", {"input": "second question", "parameters": {"memory_id": memory_id}})
    assert second.status == 200
    stored = await (await deployment.client.get(f"/_plugins/_ml/memory/{memory_id}/messages")).json()
    assert [one["input"] for one in stored["messages"]] == ["first question", "second question"]
    assert "first question" in json.dumps(deployment.simulator.received[-1])


async def test_every_modern_connector_takes_blocks(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment("3.4.0")
    for name in MODERN:
        deployment.simulator.llm.clear()
        answer = await deployment.execute(f"flow-{name}", {"input": BLOCKS})
        assert (name, answer.status) == (name, 200)
        assert PNG in json.dumps(deployment.simulator.received)
