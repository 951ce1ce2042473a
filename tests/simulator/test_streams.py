"""The simulator's event streams against recordings of 3.8.0, and the bodies of streams against a real 3.6.0."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator.core import ClusterCore
from gateway.simulator.fixtures import seed_core
from gateway.simulator.llm import Call, LlmEndpoints
from gateway.simulator.streams import with_stream

RECORDED = Path(__file__).parents[1] / "execute" / "recorded" / "streams_3.8.0.json"
STREAMS: dict[str, str] = json.loads(RECORDED.read_text("utf-8"))


def without_ids(events: str) -> str:
    return re.sub(r'("result":)"[\w-]+"', r'\1"ID"', events)


def streamed(body: dict[str, Any], *script: Any) -> str:
    core = ClusterCore("3.8.0")
    agents = seed_core(core)
    core.llm = llm = LlmEndpoints(strict=False)
    llm.script(script)
    return str(core.execute_streamed(agents["fc-openai_tutorial"], body).body)


def said(stream: str) -> str:
    pieces = re.findall(r'"content":"((?:fake|answer|final|after)[^"]*|\d+ )"', STREAMS[stream])
    return "".join(pieces)


def test_an_answer_in_pieces() -> None:
    name = "stream.leg.question"
    events = streamed({"parameters": {"question": "hello"}}, said(name))
    assert without_ids(events) == without_ids(STREAMS[name])


@pytest.mark.parametrize("name", ["stream.leg.input"])
def test_an_error_of_the_cluster(name: str) -> None:
    assert streamed({"input": "hello"}) == STREAMS[name]


def test_the_pieces_of_a_tools_call() -> None:
    """The deltas of the call come as the LLM cuts them; then come the whole call, the tool's output and the answer."""
    events = streamed({"parameters": {"question": "use tool"}}, Call("ListIndexTool", {"index": "*"}, text=""), "a b ")
    contents = [json.loads(event.removeprefix("data:")) for event in events.split("\n\n") if event]
    pieces = [event["inference_results"][0]["output"][2]["dataAsMap"]["content"] for event in contents]
    recorded = [json.loads(event.removeprefix("data:")) for event in STREAMS["stream.leg.tool"].split("\n\n") if event]
    real = [event["inference_results"][0]["output"][2]["dataAsMap"]["content"] for event in recorded]
    kinds = [[_kind(piece) for piece in stream] for stream in (pieces, real)]
    assert [list(dict.fromkeys(stream)) for stream in kinds] == [["delta", "call", "text", "end"]] * 2
    shapes = [sorted(json.loads(next(filter(lambda p: _kind(p) == "call", s)))["choices"][0]) for s in (pieces, real)]
    assert shapes[0] == shapes[1]


def _kind(piece: str) -> str:
    return (
        "delta" if piece.startswith("[{") else "call" if piece.startswith('{"choices"') else "text" if piece else "end"
    )


@pytest.mark.parametrize(
    ("rendered", "sent"),
    [
        ('{"a":[1e400,12345678901234567890123,1.10,-0,-0.0,1E+2,0.1e-7]}', None),
        (r'{"a":"\u0024{parameters.x} \u003c \/ \u00e9"}', r'{"a":"${parameters.x} < / é"}'),
        (r'{"a":"\ud83d\ude00 \u0000 \u2028 \u2029 \u007f =&<>"}', '{"a":"😀 \\u0000 \\u2028 \\u2029 \x7f =&<>"}'),
        ('{"a" : null,  "b":[true , {}]}', '{"a":null,"b":[true,{}]}'),
    ],
)
def test_a_body_is_written_again_for_a_stream(rendered: str, sent: str | None) -> None:
    assert with_stream(rendered) == (sent or rendered)[:-1] + ',"stream":true}'
