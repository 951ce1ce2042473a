"""The fast path sends the same request as the whole use case."""

from __future__ import annotations

import asyncio
import gc
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.config.schema import Logs, Settings
from gateway.delivery.slots import MARK
from gateway.errors import GatewayError
from gateway.execute.build import build_handler
from gateway.execute.fast_path import SPECIMEN, read_headers, read_plain_text
from gateway.execute.handler import Handler
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from gateway.ports import ExecuteCall, Forward
from tests.conftest import examples
from tests.delivery.simulated_cluster import cluster_of
from tests.matrix import VERSIONS
from tests.strategies import hostile_text, spoken_text

AGENTS = [(version, name) for version in VERSIONS for name in sorted(cluster_of(version).agents)]
LINES = [b"Host: x", b"Content-Type: application/json", b"Authorization: Basic YTpi"]
ML = "/_plugins/_ml/"


class Documents:
    """Reads the documents of a simulated cluster without a network."""

    def __init__(self, version: str) -> None:
        self.core, self.version = cluster_of(version).core, version

    async def get_json(self, path: str, headers: Any) -> tuple[int, Any]:
        resources = self.core.resources
        if path == "/":
            return 200, {"version": {"distribution": "opensearch", "number": self.version}}
        kind, _, id = path.removeprefix(ML).partition("/")
        read = {"agents": resources.agent, "models": resources.model, "connectors": resources.connector}
        return (200, read[kind](id)) if kind in read else (404, None)


def handler_of(version: str, level: Any = "warning") -> tuple[Handler, Metrics]:
    metrics = Metrics()
    made, _ = build_handler(Settings(logs=Logs(level=level)), Documents(version), configure("error", "json"), metrics)  # type: ignore[arg-type]
    return made, metrics


cached_handler = cache(handler_of)


def call(agent: str, body: bytes) -> ExecuteCall:
    headers = CIMultiDict((line.decode().partition(": ")[::2]) for line in LINES)
    return ExecuteCall(agent, "POST", f"{ML}agents/{agent}/_execute", CIMultiDictProxy(headers), body, "id", False)


def asked(handler: Handler, agent: str, body: bytes) -> Forward | GatewayError:
    try:
        return asyncio.run(handler(call(agent, body)))  # type: ignore[arg-type]
    except GatewayError as error:
        return error


def body_of(text: str) -> bytes:
    return json.dumps({"input": text}, ensure_ascii=False).encode()


TEXTS = spoken_text() | hostile_text() | st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1)


@examples(200)
@given(st.sampled_from(AGENTS), TEXTS)
@example(AGENTS[0], "naïve 😀 [1] / \x7f: -")
def test_on_the_spot_is_as_the_use_case_says(agent: tuple[str, str], text: str) -> None:
    version, name = agent
    handler, _ = cached_handler(version)
    id = cluster_of(version).agents[name]
    asked(handler, id, body_of("first"))
    try_fast = handler.try_fast(id, handler.caller(LINES), body_of(text))
    if try_fast is not None:
        whole = asked(handler, id, body_of(text))
        assert isinstance(whole, Forward)
        assert b"".join(try_fast.body or ()) == b"".join(whole.body or ())
        assert try_fast.response_headers == whole.response_headers
        assert whole.retry is None


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent[1].startswith(("flow-", "fc-"))], ids="-".join)
def test_an_agent_that_was_asked_is_known(agent: tuple[str, str]) -> None:
    handler, metrics = handler_of(agent[0])
    id = cluster_of(agent[0]).agents[agent[1]]
    assert handler.try_fast(id, handler.caller(LINES), body_of("hello")) is None
    first = asked(handler, id, body_of("hello"))
    assert isinstance(first, Forward)
    again = handler.try_fast(id, handler.caller(LINES), body_of("hello"))
    assert again is not None
    assert b"".join(again.body or ()) == b"".join(first.body or ())
    assert b'outcome="sent"' in metrics.render()
    assert [line.split()[-1] for line in metrics.render().splitlines() if b"rewrites_total{" in line] == [b"2.0"]
    assert handler.try_fast(id, handler.caller([*LINES[:2], b"Authorization: Basic other"]), body_of("hello")) is None


@pytest.mark.parametrize(("kind", "id"), [("agents", "flow-a"), ("agents", None), ("models", None), ("cluster", None)])
def test_a_profile_that_was_dropped_is_freed_with_its_plans(kind: str, id: str | None) -> None:
    handler, cache = build_handler(Settings(), Documents("2.19.0"), configure("error", "json"), Metrics())  # type: ignore[arg-type]
    agent = cluster_of("2.19.0").agents["flow-a"]

    def alive() -> int:
        gc.collect()
        return sum(isinstance(found, AgentProfile) and found.id == agent for found in gc.get_objects())

    before = alive()
    for body in (body_of("first"), body_of("second"), body_of('one "quoted" ${parameters.x}')):
        assert isinstance(asked(handler, agent, body), Forward)
    assert handler.try_fast(agent, handler.caller(LINES), body_of("third")) is not None
    assert alive() == before + 1
    cache.invalidate(kind, agent if id else None)
    assert alive() == before


def test_every_step_is_told_when_the_log_wants_them() -> None:
    handler, _ = handler_of("2.19.0", "debug")
    id = cluster_of("2.19.0").agents["flow-a"]
    asked(handler, id, body_of("hello"))
    assert handler.caller(LINES) == b""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"input":"hello"}', b"hello"),
        (b' {\r\n"input" :\t"a [b] c: d" } \n', b"a [b] c: d"),
        ('{"input":"naïve 😀"}'.encode(), "naïve 😀".encode()),
    ],
)
def test_a_plain_text(body: bytes, text: bytes) -> None:
    assert read_plain_text(body) == text


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b'{"input":""}', b'{"input":" "}', b'{"input":" x"}', b'{"input":"[1]"}',
        b'{"input":"a","input":"b"}',
        b'{"input":"a","parameters":{}}', b'{"input":"a\\n"}', b'{"input":"a\nb"}', b'{"input":"$"}', b'{"input":"{"}',
        b'{"input":"}"}', b'{"input":"a:-b"}', b'{"input":"\xff"}', '{"input":"\u00a0"}'.encode(), b'{"input":"a"}}',
        b'{"input":"a"} x', b'\xef\xbb\xbf{"input":"a"}', b'{"input":["a"]}', b'{"input":"a', b'{"input":"\x0b"}',
        b'\x0b{"input":"a"}', f'{{"input":"{MARK}"}}'.encode(), f'{{"input":"{SPECIMEN}"}}'.encode(), b'["input":"a"]',
        b'{"input":"\xed\xa0\x80"}', b'{"input":"a"', b'{"inputs":"a"}', b'{"input":"a""}',
    ],
)  # fmt: skip
def test_anything_else_is_read_whole(body: bytes) -> None:
    assert read_plain_text(body) is None


@pytest.mark.parametrize("byte", range(256))
def test_each_byte_in_each_place(byte: int) -> None:
    for length in (1, 2, 15, 16, 17, 40):  # JSON parsers read several bytes at a time
        for place in {0, length // 2, length - 1}:
            text = b"a" * place + bytes([byte]) + b"a" * (length - place - 1)
            plain = byte not in b'"\\${}' and 0x20 <= byte < 0x80 and not (place == 0 and byte in b" [")
            assert read_plain_text(b'{"input":"%b"}' % text) == (text if plain else None)


BITS = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
        "\\",
        '"input"',
        '"x"',
        '"input":"a"',
        " ",
        "\n",
        "a",
        "é",
        "null",
        "\\u0069nput",
    ]
)


@examples(500)
@given(st.lists(BITS, max_size=12).map("".join))
@example('{"input":"a","input":"b"}')
@example('{"input":"a",}')
@example('{"input":' + "[" * 100_000)
@example('{"x":' + "[" * 100_000)
def test_what_is_taken_for_a_plain_text_is_json_of_that_one_member(body: str) -> None:
    text = read_plain_text(body.encode())
    if text is not None:
        assert json.loads(body, object_pairs_hook=list) == [("input", text.decode())]


def test_headers_that_take_a_closer_look() -> None:
    wanted = frozenset({b"authorization", b"cookie"})
    assert read_headers(LINES, wanted) == {"authorization": "Basic YTpi"}
    assert read_headers([b"content-type:application/json; charset=UTF-8"], wanted) == {}
    for lines in (
        [b"Host: x"],
        [b"Content-Type: text/plain"],
        [*LINES, b"Content-Type: application/json"],
        [*LINES, b"Content-Encoding: gzip"],
        [*LINES, b"authorization: Basic YTpi"],
        [*LINES[:2], b"Authorization: AWS4-HMAC-SHA256 x"],
    ):
        assert read_headers(lines, wanted) is None
