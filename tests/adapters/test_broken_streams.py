"""Streams of a cluster, changed at random: each adapter ends them once, with valid events and no fault of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from ag_ui.core import Event, RunAgentInput
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.adapters.ag_ui import EventWriter
from gateway.adapters.errors import AdapterError
from gateway.adapters.openai_chat import NO_TOOLS, Completion
from gateway.adapters.openai_responses import Answer, ResponsesRequest
from gateway.adapters.run import AgentRun, RunResult, failed
from gateway.execute.run_events import RunEnded, RunEvent, RunFailed
from gateway.mlcommons.profile import AgentProfile
from gateway.proxy.local_client import LocalResponse
from tests.adapters.verifier import verify
from tests.conftest import examples
from tests.execute.test_answers import AG_UI, STREAMED, STREAMS
from tests.execute.test_stream_watch import Watched

CASES = [(profile, STREAMS[name].encode()) for profile, name, _ in STREAMED.values()]
CASES += [
    (AG_UI, stream.encode())
    for stream in json.loads((Path(__file__).parent / "recorded/ag_ui_3.8.0.json").read_text())["streams"].values()
]
WORDS = [
    b'"', b"\\", b"\n", b"\r", b"\r\n", b"\n\n", b"data:", b"{", b"}", b"[", b"]", b"null", b'"is_last":true', b"\xff",
    b"\0", b"event: x\n", b": c\n", b'"error":', b"[DONE]", b"\\ud800", b'data: {"error": "a \\d"}\n\n',
]  # fmt: skip
_EVENT: TypeAdapter[Any] = TypeAdapter(Event)

Change = tuple[str, float, float, bytes]
changes = st.tuples(
    st.sampled_from(["insert", "delete", "repeat", "cut", "again"]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(WORDS),
)


def changed(stream: bytes, change: Change) -> bytes:
    kind, where, much, word = change
    at = int(where * len(stream))
    some = 1 + int(much * 300)
    match kind:
        case "insert":
            return stream[:at] + word + stream[at:]
        case "delete":
            return stream[:at] + stream[at + some :]
        case "repeat":
            return stream[:at] + stream[at : at + some] + stream[at:]
        case "cut":
            return stream[:at]
    events = stream.split(b"\n\n")
    events.insert(int(where * len(events)), events[int(much * (len(events) - 1))])
    return b"\n\n".join(events)


class Given:
    """A response of the data port."""

    def __init__(self, body: bytes, size: int) -> None:
        self._body, self._size = body, size

    def header(self, name: str) -> str:
        return "text/event-stream" if name == "content-type" else ""

    async def pieces(self) -> AsyncIterator[bytes]:
        for begin in range(0, len(self._body), self._size):
            yield self._body[begin : begin + self._size]


@given(
    case=st.integers(0, len(CASES) - 1),
    made=st.lists(changes, max_size=4),
    size=st.sampled_from([7, 100, 4000, 1 << 20]),
)
@examples(300)
async def test_a_stream_that_breaks_in_any_way(case: int, made: list[Change], size: int) -> None:
    profile, stream = CASES[case]
    for change in made:
        stream = changed(stream, change)
    watched = Watched(profile=profile)
    shown = await watched.send(*(stream[begin : begin + size] for begin in range(0, len(stream), size)))
    response = cast(LocalResponse, Given(shown, size))
    events = [event async for event in AgentRun(response, profile).events()]
    assert [isinstance(event, RunEnded | RunFailed) for event in events] == [False] * (len(events) - 1) + [True]
    written = [json.loads(frame.removeprefix(b"data: ")) for frame in as_ag_ui(profile, events)]
    for event in written:
        _EVENT.validate_python(event)
    verify(written)
    as_openai(events)


def as_ag_ui(profile: AgentProfile, events: list[RunEvent]) -> list[bytes]:
    writer = EventWriter(RunAgentInput(thread_id="t", run_id="r", messages=[]))
    frames = [writer.started()]
    try:
        for event in events:
            if isinstance(event, RunFailed):
                raise failed(event)
            frames += writer.write(event)
    except AdapterError as error:
        frames.append(writer.error(error.fault))
    return frames


def as_openai(events: list[RunEvent]) -> None:
    result, answer = (
        RunResult(),
        Answer(ResponsesRequest("a", [], [], "", None, True, True, {}, NO_TOOLS, {}, False), "id", False),
    )
    try:
        for event in events:
            result.take(event)
            list(answer.take(event))
        json.dumps(Completion("m").whole(result))
        json.dumps(answer.document(answer.status()))
    except AdapterError as error:
        answer.failed(error.fault)
