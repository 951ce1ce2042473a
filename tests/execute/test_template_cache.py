"""A request that is filled into a template is the one that would have been planned."""

from __future__ import annotations

import ast
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
from gateway.delivery.slots import PROBE
from gateway.delivery.slots import QUESTION as PLACEHOLDER
from gateway.errors import GatewayError, Problem
from gateway.execute import rewriter
from gateway.execute.build import build_handler
from gateway.execute.handler import Handler
from gateway.execute.template_cache import Template, TemplateCache, is_plain_text, read_shape, specimen_text
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from gateway.ports import ExecuteCall, Forward
from gateway.unified.request import read_execute
from tests.conftest import examples
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.delivery.test_client_tools import clusters
from tests.docs.pages import GATEWAY
from tests.matrix import VERSIONS
from tests.media.test_magic import STARTS
from tests.strategies import hostile_text, spoken_text

AGENTS = [(version, name) for version in VERSIONS for name in sorted(cluster_of(version).agents)]
TAKES_MESSAGES = "flow-b"
DOCUMENTS_AGENT = "flow-b"
HEADERS = CIMultiDictProxy(CIMultiDict({"Content-Type": "application/json", "Authorization": "Basic YTpi"}))
ML = "/_plugins/_ml/"


class Documents:
    """Reads the documents of a simulated cluster without a network."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.core, self.version = cluster.core, cluster.version

    async def get_json(self, path: str, headers: Any) -> tuple[int, Any]:
        resources = self.core.resources
        if path == "/":
            return 200, {"version": {"distribution": "opensearch", "number": self.version}}
        kind, _, id = path.removeprefix(ML).partition("/")
        read = {"agents": resources.agent, "models": resources.model, "connectors": resources.connector}
        return (200, read[kind](id)) if kind in read else (404, None)


def handler_of(version: str, level: Any = "warning") -> tuple[Handler, Metrics]:
    return handler_before(cluster_of(version), level)


def handler_before(cluster: SimulatedCluster, level: Any = "warning") -> tuple[Handler, Metrics]:
    metrics = Metrics()
    made, _ = build_handler(Settings(logs=Logs(level=level)), Documents(cluster), configure("error", "json"), metrics)  # type: ignore[arg-type]
    return made, metrics


cached_handler = cache(handler_of)


def call(agent: str, body: bytes, streaming: bool = False) -> ExecuteCall:
    return ExecuteCall(agent, "POST", f"{ML}agents/{agent}/_execute", HEADERS, body, "id", streaming)


def asked(handler: Handler, agent: str, body: bytes, streaming: bool = False) -> Forward | GatewayError:
    try:
        return asyncio.run(handler(call(agent, body, streaming)))  # type: ignore[arg-type]
    except GatewayError as error:
        return error


def body_of(value: Any, **other: Any) -> bytes:
    return json.dumps({"input": value, **other}, ensure_ascii=False).encode()


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
DOCUMENTS = st.builds(
    lambda data, format, name: {
        "type": "document",
        "source": {"type": "base64", "format": format, "data": base64.b64encode(data).decode()},
        **({"name": name} if name else {}),
    },
    st.binary(min_size=1, max_size=40).map(lambda data: b"%PDF-1.4 " + data),
    st.sampled_from(["pdf", "txt", "csv"]),
    st.sampled_from(["", "report", "a/b"]),
)
BLOCKS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXTS) | IMAGES | DOCUMENTS, max_size=4)
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


def same(filled: Forward | GatewayError, planned: Forward | GatewayError) -> bool:
    """Compare what two handlers answer."""
    if isinstance(planned, GatewayError):
        return isinstance(filled, GatewayError) and filled.body() == planned.body()
    assert isinstance(filled, Forward)
    return (_without_turn(filled), filled.response_headers, filled.delivery) == (
        _without_turn(planned),
        planned.response_headers,
        planned.delivery,
    )


def templates_of(handler: Handler, agent: str) -> list[Template | tuple[Problem, ...]]:
    resolved = handler._resolver.peek(agent, handler._resolver.caller(HEADERS))
    return list(resolved.derive(TemplateCache)._templates) if resolved is not None else []


PARAMETERS = st.none() | st.dictionaries(
    st.sampled_from(["a", "system_prompt", "max_tokens", "context", "question"]),
    st.sampled_from(["x", "${parameters.question}", '"q"', 3, {"b": [1]}]),
    max_size=2,
)


@examples(400)
@given(st.sampled_from(AGENTS), TEXTS | BLOCKS | MESSAGES, PARAMETERS, st.booleans())
@example(AGENTS[0], [{"role": "tool", "content": "x"}], None, False)
@example(AGENTS[0], "naïve 😀 [1] / \x7f: -", None, False)
@example(AGENTS[0], "  \n a \t", {"a": "x"}, True)
def test_what_is_filled_is_what_would_be_planned(
    agent: tuple[str, str], value: Any, parameters: dict[str, Any] | None, streaming: bool
) -> None:
    version, name = agent
    id = cluster_of(version).agents[name]
    body = body_of(value) if parameters is None else body_of(value, parameters=parameters)
    filled = asked(cached_handler(version)[0], id, body, streaming)
    planned = asked(cached_handler(version, "debug")[0], id, body, streaming)
    event(f"delivered: {isinstance(planned, Forward)}")
    assert same(filled, planned)


CLIENT_TOOLS = st.fixed_dictionaries(
    {
        "tools": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from(["f", "g", "a b"]), "description": TEXTS}),
            max_size=2,
            unique_by=lambda tool: tool["name"],
        )
    },
    optional={"tool_choice": st.sampled_from(["auto", "required", "none"])},
)
RAW = [("2.19.0", "raw-a"), ("2.19.0", "raw-j"), ("3.4.0", "raw-openai_tutorial"), ("3.4.0", "raw-gemini_contents")]


@cache
def raw_handler(version: str, level: str) -> Handler:
    return handler_before(clusters(version, upgraded=True), level)[0]


@examples(100)
@given(st.sampled_from(RAW), TEXTS | MESSAGES, CLIENT_TOOLS)
@example(RAW[0], "hi", {"tools": [{"name": "f", "description": "\uf8f30"}]})
def test_tools_of_the_client_are_filled_as_they_are_planned(
    agent: tuple[str, str], value: Any, tools: dict[str, Any]
) -> None:
    version, name = agent
    id, body = clusters(version, upgraded=True).agents[name], body_of(value, **tools)
    filled = asked(raw_handler(version, "warning"), id, body)
    planned = asked(raw_handler(version, "debug"), id, body)
    event(f"delivered: {isinstance(planned, Forward)}")
    assert same(filled, planned)


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
def test_a_body_is_answered_alike_each_time(agent: tuple[str, str], body: bytes) -> None:
    version, name = agent
    handler, _ = cached_handler(version)
    id = cluster_of(version).agents[name]
    asked(handler, id, body_of("first"))  # a legacy request is described better if the agent is known
    first = asked(handler, id, body)
    assert same(asked(handler, id, body), first)
    if isinstance(first, GatewayError):
        assert first.status < 500
        assert all(problem.reason for problem in first.problems)


@pytest.mark.parametrize("agent", AGENTS, ids="-".join)
def test_every_agent_that_takes_text_has_a_template_for_it(agent: tuple[str, str]) -> None:
    version, name = agent
    id, handler = cluster_of(version).agents[name], handler_of(version)[0]
    body = body_of('He said: "100 % of /a\\b",\nthen naïvely 😀 left; why?')
    asked(handler, id, body_of("first"))
    filled, planned = (asked(one, id, body) for one in (handler, handler_of(version, "debug")[0]))
    assert same(filled, planned)
    templates = templates_of(handler, id)
    assert len(templates) <= 1
    assert all(isinstance(one, Template) == isinstance(planned, Forward) for one in templates)


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n", "[1]", " \t[", "a $", "{", "}", "x:-y", f"a {PLACEHOLDER}", f"{PROBE} b", specimen_text(0)],
)
def test_a_text_with_signs_is_not_plain(text: str) -> None:
    assert not is_plain_text(text)


@pytest.mark.parametrize(
    "text", ["a", "a [1] b", 'say "x"', "back\\slash", "tab\tnewline\n", "ünï 😀", "a: b - c", "\x7f"]
)
def test_any_other_text_is_plain(text: str) -> None:
    assert is_plain_text(text)


def test_a_cache_holds_a_bounded_number_of_templates() -> None:
    handler, _ = handler_of("2.19.0")
    id = cluster_of("2.19.0").agents[TAKES_MESSAGES]
    for number in range(TemplateCache.MAX_ENTRIES + 5):
        assert isinstance(asked(handler, id, body_of("hi", parameters={"a": f"b{number}"})), Forward)
    assert len(templates_of(handler, id)) == TemplateCache.MAX_ENTRIES


def test_nothing_is_kept_by_the_address_of_an_object() -> None:
    uses = [
        f"{file.name}:{node.lineno}"
        for folder in ("agents", "delivery", "execute", "providers", "unified")
        for file in (GATEWAY / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"
    ]
    assert uses == []


QUESTION = {"type": "text", "text": 'What is\n"this"?'}
IMAGE = {"type": "image", "source": {"type": "base64", "format": "png", "data": "aW1hZ2U="}}
FREQUENT = {
    "text": "hello",
    "escaped": 'say "hi"\nto \\me\n',
    "image": [QUESTION, IMAGE],
    "large image": [QUESTION, {**IMAGE, "source": {**IMAGE["source"], "data": "aW1h" * 50_000}}],  # type: ignore[dict-item]
    "document": [
        QUESTION,
        {"type": "document", "source": {"type": "base64", "format": "pdf", "data": "JVBERi0xLjQ="}},
    ],
    "long text": "a" * 100_000,
    "many turns": [
        {"role": "assistant" if number % 2 else "user", "content": f"turn {number}"} for number in range(201)
    ],
    "messages": [
        {"role": "user", "content": [QUESTION, IMAGE]},
        {"role": "assistant", "content": 'A "cat".'},
        {"role": "user", "content": [QUESTION]},
    ],
}


@pytest.mark.parametrize("form", FREQUENT)
def test_the_frequent_forms_have_a_template(form: str) -> None:
    handler, _ = handler_of("2.19.0")
    id = cluster_of("2.19.0").agents[TAKES_MESSAGES if form != "document" else DOCUMENTS_AGENT]
    for _ in range(2):
        filled = asked(handler, id, body_of(FREQUENT[form]))
        assert isinstance(filled, Forward), filled
    assert [type(one) for one in templates_of(handler, id)] == [Template]
    assert same(filled, asked(handler_of("2.19.0", "debug")[0], id, body_of(FREQUENT[form])))


def test_requests_of_one_shape_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = 0
    planned = rewriter.rewrite_input

    def plan(*args: Any) -> Any:
        nonlocal plans
        plans += 1
        return planned(*args)

    monkeypatch.setattr(rewriter, "rewrite_input", plan)
    handler, metrics = handler_of("2.19.0")
    id = cluster_of("2.19.0").agents[TAKES_MESSAGES]
    for number in range(5):
        assert isinstance(asked(handler, id, body_of(f"hello {number}")), Forward)
    assert plans == 1
    assert [line.split()[-1] for line in metrics.render().splitlines() if b"rewrites_total{" in line] == [b"5.0"]


@pytest.mark.parametrize(
    "value",
    [
        "$5", "{", "}", "a:-b", "[1]", " " * 17 + "x", "\uf8f3 1", [QUESTION] * 1001,
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "toolCalls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
         {"role": "tool", "toolCallId": "1", "content": "c"}],
        [QUESTION, {"type": "document", "source": {"type": "base64", "format": "txt", "data": "aGk="}}],
    ],
)  # fmt: skip
def test_anything_else_is_planned_itself(value: Any) -> None:
    request = read_execute(body_of(value))
    assert request.input is not None
    assert read_shape(request, request.input, False) is None


def test_long_parameters_are_planned_themselves() -> None:
    for size, has_shape in ((16_000, True), (17_000, False)):
        request = read_execute(body_of("a", parameters={"b": "c" * size}))
        assert request.input is not None
        assert (read_shape(request, request.input, False) is not None) == has_shape


@pytest.mark.parametrize(("kind", "id"), [("agents", "flow-a"), ("agents", None), ("models", None), ("cluster", None)])
@pytest.mark.usefixtures("small_heap")
def test_a_profile_that_was_dropped_is_freed_with_its_plans(kind: str, id: str | None) -> None:
    handler, cache = build_handler(Settings(), Documents(cluster_of("2.19.0")), configure("error", "json"), Metrics())  # type: ignore[arg-type]
    agent = cluster_of("2.19.0").agents["flow-a"]

    def alive() -> int:
        gc.collect()
        return sum(isinstance(found, AgentProfile) and found.id == agent for found in gc.get_objects())

    before = alive()
    for body in (body_of("first"), body_of("second"), body_of('one "quoted" ${parameters.x}')):
        assert isinstance(asked(handler, agent, body), Forward)
    assert alive() == before + 1
    cache.invalidate(kind, agent if id else None)
    assert alive() == before
