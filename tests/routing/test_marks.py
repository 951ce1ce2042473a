"""Marks of ids: put before the ids of an answer, and taken away again, with all other bytes as they were."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.marks import (
    MarkedStream,
    mark_memory,
    mark_run,
    marks_in,
    split_mark,
    split_path,
    without_marks,
)

MARK = "0123abcd"
_ids = st.from_regex(r"[A-Za-z0-9_-]{20}", fullmatch=True).filter(lambda id: not id.startswith(("gws-", "gwr-")))


def legacy(**ids: str) -> dict[str, Any]:
    outputs = [{"name": name, "result": id} for name, id in ids.items()]
    return {"inference_results": [{"output": [*outputs, {"name": "response", "result": "memory_id"}]}]}


@given(_ids, _ids, st.text())
def test_ids_come_back_as_their_cluster_knows_them(memory_id: str, message_id: str, text: str) -> None:
    answer = legacy(memory_id=memory_id, parent_interaction_id=message_id)
    answer["inference_results"][0]["output"][2]["result"] = text
    marked = json.loads(mark_run(json.dumps(answer).encode(), MARK))
    outputs = {output["name"]: output["result"] for output in marked["inference_results"][0]["output"]}
    assert outputs["memory_id"] == f"gwr-{MARK}-{memory_id}"
    assert outputs["response"] == text
    sent = {"memory_id": outputs["memory_id"], "parent_interaction_id": outputs["parent_interaction_id"], "x": text}
    assert marks_in(sent) == {MARK}
    unmarked = json.loads(without_marks(json.dumps({"parameters": sent, "input": text}).encode()))
    assert unmarked == {
        "parameters": {"memory_id": memory_id, "parent_interaction_id": message_id, "x": text},
        "input": text,
    }


@pytest.mark.parametrize(
    ("answer", "marked"),
    [
        ({"memory_id": "m1", "response": {"message_id": "i1"}}, {"memory_id": "gwr-0123abcd-m1"}),
        ({"task_id": "t1", "status": "RUNNING"}, {"task_id": "gwr-0123abcd-t1", "status": "RUNNING"}),
        ({"memory_id": "gws-a-1"}, {"memory_id": "gws-a-1"}),
        ({"memory_id": 7}, {"memory_id": 7}),
        ([1, "m1"], [1, "m1"]),
    ],
)
def test_ids_of_every_form_of_answer_are_marked(answer: Any, marked: Any) -> None:
    found = json.loads(mark_run(json.dumps(answer).encode(), MARK))
    if isinstance(found, dict) and "response" in found:
        assert found.pop("response") == {"message_id": "gwr-0123abcd-i1"}
    assert found == marked


def test_an_id_within_a_text_is_left_as_it_is() -> None:
    texts = ['He said "m1"', 'He said "m1', '"m1" was said', "m1 m1", "\\", '\\"m1']
    outputs = [{"name": "response", "result": text} for text in texts]
    answer = {"memory_id": "m1", "inference_results": [{"output": outputs}]}
    marked = json.loads(mark_run(json.dumps(answer).encode(), MARK))
    assert marked == {**answer, "memory_id": f"gwr-{MARK}-m1"}


def test_what_is_no_json_is_left_as_it_is() -> None:
    assert mark_run(b'{"memory_id": "m1"', MARK) == b'{"memory_id": "m1"'


def test_lists_and_searches_of_a_memory_are_marked() -> None:
    listed = {"messages": [{"memory_id": "m1", "message_id": "i1", "input": "m1 and more"}], "next_token": 10}
    assert json.loads(mark_memory(json.dumps(listed).encode(), MARK)) == {
        "messages": [{"memory_id": f"gwr-{MARK}-m1", "message_id": f"gwr-{MARK}-i1", "input": "m1 and more"}],
        "next_token": 10,
    }
    hits = {"hits": {"hits": [{"_id": "i1", "_source": {"memory_id": "m1", "input": "x"}}]}}
    working = {"namespace": {"session_id": "s1", "user_id": "u1"}, "message_id": 1}
    assert json.loads(mark_memory(json.dumps(working).encode(), MARK))["namespace"] == {
        "session_id": f"gwr-{MARK}-s1",
        "user_id": "u1",
    }
    [hit] = json.loads(mark_memory(json.dumps(hits).encode(), MARK))["hits"]["hits"]
    assert hit == {"_id": f"gwr-{MARK}-i1", "_source": {"memory_id": f"gwr-{MARK}-m1", "input": "x"}}


@given(st.data())
def test_a_stream_is_marked_wherever_it_is_cut(data: st.DataObject) -> None:
    events = [legacy(memory_id="m1", parent_interaction_id="i1"), {"no": "ids"}, legacy(memory_id="m1")]
    text = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    stream = MarkedStream(MARK)
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    fed = b"".join(map(stream.feed, pieces)) + stream.end()
    wanted = text.replace(b'"m1"', b'"gwr-%b-m1"' % MARK.encode()).replace(b'"i1"', b'"gwr-%b-i1"' % MARK.encode())
    assert fed == wanted


def test_a_stream_without_an_end_of_line_is_not_held_for_ever() -> None:
    stream, piece = MarkedStream(MARK), b"x" * (1 << 20)
    fed = [len(stream.feed(piece)) for _ in range(40)]
    assert sum(fed) + len(stream.end()) == 40 << 20
    assert sum(fed) >= 24 << 20


ML = b"/_plugins/_ml/"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", b"memory/%b"),
        ("DELETE", b"memory/%b/"),
        ("PUT", b"memory/%b"),
        ("GET", b"memory/%b/messages?max_results=1&x=/gwr-0123abcd-y"),
        ("POST", b"memory/%b/_search"),
        ("GET", b"memory/message/%b"),
        ("GET", b"memory/message/%b/traces"),
        ("DELETE", b"memory_containers/c_-1/memories/sessions/%b"),
        ("GET", b"memory_containers/c_-1/memories/working/%b"),
        ("GET", b"tasks/%b"),
    ],
)
def test_the_mark_of_a_path(method: str, path: bytes) -> None:
    for id in (b"m1", b"_7x-Kq", b"_searcH"):
        assert split_path(method, ML + path % (b"gwr-0123abcd-" + id)) == ("0123abcd", ML + path % id)
        assert split_path(method, ML + path % id) == ("", ML + path % id)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", b"memory/gwr-0123abcd-_search"),  # all conversations of the gateway's account
        ("GET", b"memory/gwr-0123abcd-_search/"),
        ("GET", b"tasks/gwr-0123abcd-_search"),
        ("GET", b"memory/gwr-0123abcd-.."),  # a proxy may resolve it
        ("GET", b"memory/gwr-0123abcd-%2e%2e"),
        ("GET", b"memory/gwr-0123abcd-a%2F_search"),
        ("GET", b"memory/gwr-0123abcd-../gwr-0123abcd-../_cat"),
        ("GET", b"memory_containers/../memories/sessions/gwr-0123abcd-m1"),
        ("GET", b"agents/gwr-0123abcd-a1"),
        ("DELETE", b"agents/gwr-0123abcd-a1"),
        ("POST", b"agents/gwr-0123abcd-a1/_execute"),
        ("PUT", b"models/gwr-0123abcd-m1"),
        ("POST", b"connectors/gwr-0123abcd-_search"),
        ("POST", b"memory/gwr-0123abcd-m1"),
        ("DELETE", b"memory/gwr-0123abcd-m1/messages"),
        ("GET", b"memory/gwr-0123abcd-"),
        ("GET", b"memory/gwr-0123abcd-m\xe4"),
    ],
)
def test_no_other_path_has_a_mark(method: str, path: bytes) -> None:
    """Another cluster gets what has a mark, perhaps with the credentials of the gateway."""
    assert split_path(method, ML + path) == ("", ML + path)


def test_what_is_no_mark() -> None:
    assert split_mark("gwr-zzzzzzzz-m1") == ("", "gwr-zzzzzzzz-m1")
