"""What is wrong with a request is reported, each time with a 400 or 413, and nothing is sent to the cluster."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.execute.conftest import Deployment, StartDeployment

JSON = {"Content-Type": "application/json"}


def nested(levels: int) -> bytes:
    return b'{"input":"x","parameters":{"a":' + b"[" * levels + b"]" * levels + b"}}"


BAD = {
    "100 nested levels": nested(100),
    "100,000 nested levels": nested(100_000),
    "duplicate keys": b'{"input":"a","input":"b"}',
    "duplicate keys, deep": b'{"input":[{"type":"text","type":"image","text":"a"}]}',
    "invalid UTF-8": b'{"input":"caf\xe9"}',
    "invalid UTF-8 in a long string": b'{"input":"' + b"x" * 5000 + b'\xe9"}',
    "half a surrogate pair": b'{"input":"\\ud800"}',
    "NaN": b'{"input":"x","parameters":{"a":NaN}}',
    "Infinity": b'{"input":"x","parameters":{"a":-Infinity}}',
    "64-bit overflow": b'{"input":"x","parameters":{"a":9223372036854775808}}',
    "float overflow": b'{"input":"x","parameters":{"a":1e999}}',
    "number": b'{"input":42}',
    "null": b'{"input":null}',
    "boolean": b'{"input":true}',
    "object": b'{"input":{"text":"x"}}',
    "empty array": b'{"input":[]}',
    "empty text": b'{"input":""}',
    "mixed array": b'{"input":[{"type":"text","text":"a"},{"role":"user","content":"b"}]}',
    "no content": b'{"input":[{"role":"user"}]}',
    "a tool's answer without the id of its call": b'{"input":[{"role":"tool","content":"x"}]}',
    "parameters an array": b'{"input":"x","parameters":[]}',
    "a body that is no object": b'["input"]',
    "no JSON": b"input=x",
    "half of it": b'{"input":"x"',
    "a zero byte": b'{"input":"a\\u0000b"}',
}


async def test_bad_input_is_a_400_with_its_problems(deployment: Deployment) -> None:
    async def check(name: str) -> None:
        answer = await deployment.execute("flow-a", data=BAD[name], headers=JSON)
        body = await answer.json()
        assert (answer.status, body["status"]) == (400, 400), name
        assert body["error"]["type"] in ("ValidationException", "UndeliverableContent")
        for problem in body["error"]["problems"]:
            assert problem["reason"]
            assert set(problem) <= {"field", "reason", "expected", "received", "code", "help"}

    for name in BAD:
        await check(name)
    assert deployment.simulator.received == []
    await deployment.execute("flow-a", {"input": "the agent is known after this"})
    for name in BAD:
        await check(name)
    assert len(deployment.simulator.received) == 1


async def test_every_problem_is_found_with_its_place(deployment: Deployment) -> None:
    source = {"type": "ftp", "data": "x"}
    sent_input = [{"type": "text"}, {"type": "image", "source": source}, {"type": "hologram"}]
    error = (await (await deployment.execute("flow-a", {"input": sent_input})).json())["error"]
    places = [problem["field"] for problem in error["problems"]]
    assert {place.partition(".")[0] for place in places} == {"input[0]", "input[1]", "input[2]"}
    assert error["details"]["field"] == places[0]


async def test_a_gzip_bomb_is_a_413_before_it_is_unpacked(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment("2.19.0", {"limits": {"decompressed": 100_000}})
    bomb = gzip.compress(b'{"input":"' + b"a" * 50_000_000 + b'"}')
    answer = await deployment.execute("flow-a", data=bomb, headers={**JSON, "Content-Encoding": "gzip"})
    error = (await answer.json())["error"]
    assert (answer.status, error["type"]) == (413, "BodyTooLarge")
    assert error["help"] == "Send less, or raise the gateway's setting limits.decompressed."
    assert deployment.simulator.received == []


async def test_a_body_over_the_limit_is_a_413(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment("2.19.0", {"limits": {"body": 1000}})
    answer = await deployment.execute("flow-a", {"input": "x" * 1000})
    error = (await answer.json())["error"]
    assert (answer.status, error["type"]) == (413, "BodyTooLarge")
    assert error["help"] == "Send less, or raise the gateway's setting limits.body."


async def test_an_unknown_encoding_is_a_415(deployment: Deployment) -> None:
    answer = await deployment.execute("flow-a", data=b"x", headers={**JSON, "Content-Encoding": "br"})
    assert (answer.status, (await answer.json())["error"]["type"]) == (415, "UnsupportedEncoding")


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 1.5, "1e5", [1, [2]], {"a": None}, True])
async def test_what_is_not_bad_is_taken(deployment: Deployment, value: Any) -> None:
    body = json.dumps({"input": "x", "parameters": {"mine": value}}).encode()
    assert (await deployment.execute("flow-a", data=body, headers=JSON)).status == 200
