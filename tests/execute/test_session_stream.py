"""An event stream with the session's id in place of the cluster's, in pieces of any size."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.execute.streams import SessionStream
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile

PROFILE = AgentProfile("a", "name", "conversational", (3, 8, 0), Generation.FUNCTION_CALLING)


def event(content: str, is_last: bool, memory_id: str) -> bytes:
    outputs: list[dict[str, object]] = [
        *([{"name": "memory_id", "result": memory_id}] if memory_id else []),
        {"name": "parent_interaction_id", "result": "p"},
        {"name": "response", "dataAsMap": {"content": content, "is_last": is_last}},
    ]
    return b"data: " + json.dumps({"inference_results": [{"output": outputs}]}, separators=(",", ":")).encode()


def stream(memory_id: str, last: str, ending: bytes) -> bytes:
    events = [event("It is ", False, memory_id), event("größer.", False, memory_id), event("", True, last)]
    return b": comment" + ending * 2 + b"".join(one + ending * 2 for one in events)


@given(st.lists(st.integers(1, 900), max_size=8), st.sampled_from([b"\n", b"\r\n"]))
def test_the_id_is_replaced_and_the_answer_read(sizes: list[int], ending: bytes) -> None:
    for known, last in (("gws-a", "gws-a"), ("", "gws-a"), ("", "")):
        session = SessionStream(PROFILE, known)
        rest, sent = stream("cluster", "cluster", ending), b""
        for size in sizes:
            sent += session.feed(rest[:size])
            rest = rest[size:]
        sent += session.feed(rest)
        answer = session.answer()
        assert (answer.text, answer.failed) == ("It is größer.", False)
        whole = stream(known, last, ending)
        assert sent == whole[: whole.rindex(b"data:")]  # the last event waits for the store
        assert sent + session.end(last) == whole


def test_other_lines_stay_as_they_are() -> None:
    lines = b'data: {"error": "inference_results"}\n\nevent: x\nid: 5\n' + b"data: " + b"x" * (2 << 20)
    session = SessionStream(PROFILE, "gws-a")
    assert session.feed(lines) + session.feed(b"y\n") + session.end("gws-a") == lines + b"y\n"
