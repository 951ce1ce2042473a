"""Differences between a recorded response and another one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.inspector.compare import Difference, differences
from gateway.observe.record import Body, HttpMessage


def _json(value: Any, **headers: str) -> HttpMessage:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return HttpMessage(tuple((name.replace("_", "-"), item) for name, item in headers.items()), Body(1, text))


@pytest.mark.parametrize(
    ("expected", "actual", "found"),
    [
        ({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1.0}, []),
        ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "y"}]}, [Difference("body.a[1].b", "x", "y")]),
        ({"a": 1}, {"b": 1}, [Difference("body.a", 1, None), Difference("body.b", None, 1)]),
        ([1], [1, 2], [Difference("body[1]", None, 2)]),
        ({"a": 1}, {"a": True}, [Difference("body.a", 1, True)]),
        ({"a": None}, {}, [Difference("body.a", None, None)]),
        ("text", "other", [Difference("body", "text", "other")]),
        ({"took": 1, "a": 2}, {"took": 3, "a": 2}, []),
        ({"memory_id": "a", "task_id": "b"}, {"memory_id": "c", "task_id": "d"}, []),
        ([{"name": "memory_id", "result": "a"}], [{"name": "memory_id", "result": "b"}], []),
        ([{"name": "a", "result": 1}], [{"name": "a", "result": 2}], [Difference("body[0].result", 1, 2)]),
    ],
)
def test_bodies(expected: Any, actual: Any, found: list[Difference]) -> None:
    assert differences(200, _json(expected), 200, _json(actual)) == found


def test_status_and_headers() -> None:
    before, after = _json({}, Server="a", Date="b", X_Y="1"), _json({}, server="a", date="c", X_Z="1")
    assert differences(200, before, 404, after) == [
        Difference("status", 200, 404),
        Difference("headers.x-y", "1", None),
        Difference("headers.x-z", None, "1"),
    ]
    assert differences(200, before, 404, after, ["headers.*", "status"]) == []


@pytest.mark.parametrize("name", ["X-Request-Id", "X-Opaque-Id", "X-MLC-Gateway-Delivery", "Date"])
def test_what_differs_in_any_two_responses_is_not_compared(name: str) -> None:
    refusal = {"error": {"type": "ValidationException"}, "status": 400}
    assert differences(400, _json(refusal, **{name: "a"}), 400, _json(refusal, **{name: "b"})) == []


def test_what_was_not_recorded_is_not_compared() -> None:
    assert differences(200, None, 200, _json({})) == []
    assert differences(200, HttpMessage((), Body(9)), 200, _json({})) == []
    assert differences(200, HttpMessage((), Body(9, '{"a', omitted="It is cut.")), 200, _json({})) == []


def test_long_values_are_cut() -> None:
    (found,) = differences(200, _json("x" * 1000), 200, _json("y"))
    assert found.expected.endswith("… (1000 characters)")
    assert len(found.expected) < 300
