"""The fast path sends the same request as the whole use case."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.config.schema import Logs, Settings
from gateway.delivery.slots import MARK
from gateway.errors import GatewayError
from gateway.execute.build import build_handler
from gateway.execute.fast_path import read_headers
from gateway.execute.handler import Handler
from gateway.execute.shape import ShapedBody, read_shaped
from gateway.execute.shaped_template import specimen_body
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from gateway.ports import ExecuteCall, Forward
from gateway.unified.budget import Budget
from tests.conftest import examples
from tests.delivery.simulated_cluster import cluster_of
from tests.matrix import VERSIONS
from tests.media.test_magic import STARTS
from tests.strategies import hostile_text, spoken_text

AGENTS = [(version, name) for version in VERSIONS for name in sorted(cluster_of(version).agents)]
TAKES_MESSAGES = "flow-b"
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


def body_of(value: Any) -> bytes:
    return json.dumps({"input": value}, ensure_ascii=False).encode()


CHARACTERS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1)
TEXTS = spoken_text() | hostile_text() | CHARACTERS | st.sampled_from(['say "hi"\n', "C:\\x", "\x00", "a" * 3000])
IMAGES = st.builds(
    lambda data, format: {
        "type": "image",
        "source": {"type": "base64", "format": format, "data": base64.b64encode(data).decode()},
    },
    st.binary(max_size=40)
    | st.just(b"i" * 70_000)
    | st.sampled_from(list(STARTS["image"].values())).map(lambda start: start + bytes(99)),
    st.sampled_from(["png", "jpeg", "gif", "webp"]),
)
BLOCKS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXTS) | IMAGES, max_size=4)
MESSAGES = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "system", "User", "developer", "critic", "tool", "function", "ai", ""]),
        TEXTS | BLOCKS,
    ),
    max_size=5,
)


def _without_turn(forward: Forward) -> bytes:
    """The body without the turn's id, which differs."""
    body = b"".join(forward.body or ())
    assert len({*re.findall(rb"gw_([0-9a-f]{32})", body)}) <= 1
    return re.sub(rb"gw_[0-9a-f]{32}", b"gw_turn", body)


@examples(300)
@given(st.sampled_from(AGENTS), TEXTS | BLOCKS | MESSAGES)
@example(AGENTS[0], [{"role": "tool", "content": "x"}])
@example(AGENTS[0], "naïve 😀 [1] / \x7f: -")
def test_it_sends_what_the_use_case_sends(agent: tuple[str, str], value: Any) -> None:
    version, name = agent
    handler, _ = cached_handler(version)
    id = cluster_of(version).agents[name]
    asked(handler, id, body_of("first"))
    fast = handler.try_fast(id, handler.caller(LINES), body_of(value))
    whole = asked(handler, id, body_of(value))
    event(f"fast: {fast is not None}")
    if fast is not None:
        assert isinstance(whole, Forward)
        assert _without_turn(fast) == _without_turn(whole)
        assert fast.response_headers == whole.response_headers
        assert whole.retry is None


EXTRA = st.dictionaries(
    st.sampled_from(["toolCallId", "tool_call_id", "toolCalls", "name", "id", "type", "content", "role", "x"]),
    st.sampled_from([None, "", "c1", 1, [], {}, [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]]),
    max_size=2,
)
ODD_BLOCKS = st.sampled_from(
    [
        {"toolResult": {"toolUseId": "", "content": "x"}},
        {"toolUse": {"toolUseId": "c1", "name": "f", "input": None}},
        {"type": "image", "source": {"type": "url", "format": "png", "data": "http://[::1"}},
        {"type": "image_url", "image_url": "data:,"},
        {"text": None}, {}, None, 1,
    ]
)  # fmt: skip
ODD_MESSAGES = st.lists(
    st.builds(
        lambda message, extra: {**message, **extra},
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "assistant", "system", "tool", "TOOL", "é", "", None, 1]),
                "content": TEXTS | st.lists(ODD_BLOCKS, max_size=2) | st.none(),
            }
        ),
        EXTRA,
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Bodies that are nearly valid."""
    body = body_of(draw(TEXTS | BLOCKS | ODD_MESSAGES | st.lists(ODD_BLOCKS, max_size=3)))
    place = draw(st.integers(0, len(body)))
    kind = draw(st.sampled_from(["whole", "whole", "cut", "byte", "behind", "twice", "BOM"]))
    match kind:
        case "cut":
            return body[:place]
        case "byte":
            return body[:place] + bytes([draw(st.integers(0, 255))]) + body[place + 1 :]
        case "behind":
            return body + draw(st.sampled_from([b" ", b"x", b"\x00", b"{}"]))
        case "twice":
            return body.replace(b'"input"', b'"input":1,"input"', 1)
        case "BOM":
            return b"\xef\xbb\xbf" + body
    return body


@examples(200)
@given(st.sampled_from(AGENTS), damaged())
@example(AGENTS[0], body_of([{"role": "tool", "content": "x"}]))
def test_a_body_is_answered_alike_whether_the_agent_is_known_or_not(agent: tuple[str, str], body: bytes) -> None:
    version, name = agent
    handler, _ = cached_handler(version)
    id = cluster_of(version).agents[name]
    asked(handler, id, body_of("first"))
    for _ in range(2):  # the second time, its shape is known
        fast = handler.try_fast(id, handler.caller(LINES), body)
        whole = asked(handler, id, body)  # which raises what is no refusal
        if isinstance(whole, GatewayError):
            assert fast is None
            assert whole.status < 500
            assert all(problem.reason for problem in whole.problems)
        elif fast is not None:
            assert _without_turn(fast) == _without_turn(whole)


QUESTION = {"type": "text", "text": 'What is\n"this"?'}
IMAGE = {"type": "image", "source": {"type": "base64", "format": "png", "data": "aW1hZ2U="}}
FREQUENT = {
    "text": "hello",
    "escaped": 'say "hi"\nto \\me\n',
    "image": [QUESTION, IMAGE],
    "large image": [QUESTION, {**IMAGE, "source": {**IMAGE["source"], "data": "aW1h" * 50_000}}],  # type: ignore[dict-item]
    "messages": [
        {"role": "user", "content": [QUESTION, IMAGE]},
        {"role": "assistant", "content": 'A "cat".'},
        {"role": "user", "content": [QUESTION]},
    ],
}


@pytest.mark.parametrize("form", FREQUENT)
def test_the_frequent_forms_take_the_fast_path(form: str) -> None:
    handler, _ = cached_handler("2.19.0")
    id = cluster_of("2.19.0").agents[TAKES_MESSAGES]
    whole = asked(handler, id, body_of(FREQUENT[form]))
    fast = handler.try_fast(id, handler.caller(LINES), body_of(FREQUENT[form]))
    assert isinstance(whole, Forward)
    assert fast is not None
    assert b"".join(fast.body or ()) == b"".join(whole.body or ())


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


def test_bytes_of_another_format_are_refused_on_the_fast_path_too() -> None:
    handler, _ = handler_of("2.19.0")
    id = cluster_of("2.19.0").agents["flow-a"]

    def body(format: str) -> bytes:
        source = {"type": "base64", "format": "png", "data": base64.b64encode(STARTS["image"][format]).decode()}
        return body_of([{"type": "text", "text": "what"}, {"type": "image", "source": source}])

    assert isinstance(asked(handler, id, body("png")), Forward)
    assert isinstance(asked(handler, id, body("png")), Forward)
    assert handler.try_fast(id, handler.caller(LINES), body("png")) is not None
    assert handler.try_fast(id, handler.caller(LINES), body("jpeg")) is None
    refused = asked(handler, id, body("jpeg"))
    assert isinstance(refused, GatewayError)
    assert (refused.status, refused.problems[0].received) == (400, "bytes of format jpeg")


@pytest.mark.parametrize(("kind", "id"), [("agents", "flow-a"), ("agents", None), ("models", None), ("cluster", None)])
@pytest.mark.usefixtures("small_heap")
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


def read(body: bytes) -> ShapedBody | None:
    return read_shaped(body, Budget())


def parts(body: bytes) -> tuple[list[str], list[bytes]] | None:
    shaped = read(body)
    return None if shaped is None else (shaped.texts, list(map(bytes, shaped.images)))


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        (b'{"input":"hello"}', ["hello"]),
        (b' {\r\n"input" :\t"a [b] c: d" } \n', ["a [b] c: d"]),
        ('{"input":"naïve 😀"}'.encode(), ["naïve 😀"]),
        (b'{"input":"a\\n\\"b\\""}', ['a\n"b"']),
        (b'{"input":[{"type":"text","text":"a"},{"text":"b","type":"text"}]}', ["a", "b"]),
        (b'{"input":[{"role":"user","content":"a"},{"content":[{"type":"text","text":"b"}],"role":"x"}]}', ["a", "b"]),
    ],
)
def test_bodies_with_a_shape(body: bytes, texts: list[str]) -> None:
    assert parts(body) == (texts, [])


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b'{"input":""}', b'{"input":" "}', b'{"input":"   x"}', b'{"input":"[1]"}', b'{"input":[]}',
        b'{"input":"a","input":"b"}', b'{"input":"a\\u0000"}', b'{"input":"\\u0022"}', b'{"input":"\\ud800"}',
        b'{"input":"a","parameters":{}}', b'{"input":"a\nb"}', b'{"input":"$"}', b'{"input":"{"}',
        b'{"input":"}"}', b'{"input":"a:-b"}', b'{"input":"\xff"}', '{"input":"\u00a0"}'.encode(), b'{"input":"a"}}',
        b'{"input":"a"} x', b'\xef\xbb\xbf{"input":"a"}', b'{"input":["a"]}', b'{"input":"a', b'{"input":"\x0b"}',
        b'\x0b{"input":"a"}', f'{{"input":"{MARK}"}}'.encode(), specimen_body("|"), b'["input":"a"]',
        b'{"input":"\xed\xa0\x80"}', b'{"input":"a"', b'{"inputs":"a"}', b'{"input":"a""}',
        b'{"input":[{"type":"text","text":"a","text":"b"}]}', b'{"input":[{"type":"text","text":"a","x":"b"}]}',
        b'{"input":[{"role":"user","role":"user","content":"a"}]}', b'{"input":[{"role":"a b","content":"a"}]}',
        b'{"input":[{"role":"user","content":[]}]}', b'{"input":[{"role":"user"}]}', b'{"input":[{"text":"a"}]}',
        body_of([{**IMAGE, "source": {"type": "base64", "format": "png", "data": "aW1hZ2U"}}]),
        body_of([{**IMAGE, "source": {"type": "base64", "format": "png", "data": ""}}]),
        body_of([{**IMAGE, "source": {"type": "base64", "format": "tiff", "data": "aW1h"}}]),
        body_of([{**IMAGE, "source": {"type": "url", "format": "png", "data": "https://a/b.png"}}]),
        body_of([QUESTION] * 40), b'{"input":"%b"}' % (b"a" * 66_000), body_of([IMAGE] + [QUESTION] * 2000),
    ],
)  # fmt: skip
def test_anything_else_is_read_whole(body: bytes) -> None:
    assert read(body) is None


def test_the_limits_of_the_settings_count() -> None:
    body = body_of([QUESTION] * 3)
    assert read_shaped(body, Budget(items=6)) is not None
    assert read_shaped(body, Budget(items=5)) is None
    assert read_shaped(body, Budget(values=5)) is None
    assert read_shaped(body, Budget(text=20)) is None


@pytest.mark.parametrize("byte", range(256))
def test_each_byte_in_each_place(byte: int) -> None:
    for length in (1, 2, 15, 16, 17, 40):  # JSON parsers read several bytes at a time
        for place in {0, length // 2, length - 1}:
            text = b"a" * place + bytes([byte]) + b"a" * (length - place - 1)
            plain = byte not in b'"\\${}' and 0x20 <= byte < 0x80 and not (place == 0 and byte == ord("["))
            texts = [text.decode().strip()] if plain and text.strip() else None
            assert parts(b'{"input":"%b"}' % text) == ((texts, []) if texts else None)


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
def test_what_has_a_shape_is_json_of_that_one_member(body: str) -> None:
    shaped = read(body.encode())
    if shaped is not None:
        [(name, text)] = json.loads(body, object_pairs_hook=list)
        assert (name, [text.strip()]) == ("input", shaped.texts)


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
