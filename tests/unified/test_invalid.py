"""Invalid inputs, each with the whole list of problems. The table is in `invalid_inputs.json`."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import InvalidInput
from gateway.unified.request import read_execute

CASES = json.loads((Path(__file__).parent / "invalid_inputs.json").read_text("utf-8"))


def problems_of(body: bytes) -> list[dict[str, str]]:
    with pytest.raises(InvalidInput) as raised:
        read_execute(body)
    return [problem.as_dict() for problem in raised.value.problems]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_every_problem_is_named(case: dict[str, Any]) -> None:
    assert problems_of(json.dumps({"input": case["input"]}).encode()) == case["problems"]


def test_the_error_has_the_shape_of_the_design() -> None:
    with pytest.raises(InvalidInput) as raised:
        read_execute(b'{"input":{}}')
    reason = "[input] Invalid input format"
    expected = "string, array of content blocks, or array of messages"
    cause = {"type": "ValidationException", "reason": f"{reason}. Expected {expected}."}
    received = {
        "field": "input",
        "expected": expected,
        "received": "object",
    }
    assert raised.value.body() == {
        "error": {
            "root_cause": [cause],
            **cause,
            "message": reason,
            "details": received,
            "problems": [{**received, "reason": "Invalid input format"}],
        },
        "status": 400,
    }


def test_input_and_parameters_are_judged_together() -> None:
    body = b'{"input":[],"parameters":{"a":null,"b c":null}}'
    assert [problem["field"] for problem in problems_of(body)] == ["input", "parameters.a", 'parameters["b c"]']


def test_the_answer_is_bounded() -> None:
    problems = problems_of(json.dumps({"input": [{"type": "text"}] * 5000}).encode())
    assert len(problems) == 101
    assert problems[-1] == {
        "field": "input[100].text",
        "reason": "Too many problems: the rest of the input was not checked",
    }


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_payload_is_never_shown(size: int) -> None:
    secret = "S3cr" * size
    source = {"type": "base64", "format": "png", "data": secret + "*"}
    with pytest.raises(InvalidInput) as raised:
        read_execute(json.dumps({"input": [{"type": "image", "source": source}]}).encode())
    assert "S3cr" not in json.dumps(raised.value.body())


def test_the_query_of_a_url_is_never_shown() -> None:
    source = {"type": "url", "format": "png", "data": "ftp://h/a?X-Amz-Signature=S3cr"}
    with pytest.raises(InvalidInput) as raised:
        read_execute(json.dumps({"input": [{"type": "image", "source": source}]}).encode())
    assert "S3cr" not in json.dumps(raised.value.body())


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xff", "invalid UTF-8 at byte 4000 of the string"),
        (b"\n", "unescaped control character at character 4000 of the string"),
    ],
)
def test_a_long_text_that_is_not_json_is_refused(raw: bytes, reason: str) -> None:
    body = b'{"input":[{"text":"' + b"a" * 4000 + raw + b'"}]}'
    assert problems_of(body) == [
        {"field": "input[0].text", "reason": f"Invalid string: {reason}", "expected": "valid JSON text in UTF-8"}
    ]


@pytest.mark.parametrize("raw", [b"\n", b"\t", b"\x00", b"\xff", b"-", b"="])
@pytest.mark.parametrize("prefix", [b"", b"data:image/png;base64,", b"data:image/png\n;base64,"])
def test_long_data_with_a_foreign_byte_is_refused(raw: bytes, prefix: bytes) -> None:
    data = prefix + b"A" * 4000 + raw + b"AAAA"
    body = b'{"input":[{"type":"image","source":{"type":"base64","format":"png","data":"' + data + b'"}}]}'
    assert [problem["field"] for problem in problems_of(body)] == ["input[0].source.data"]
