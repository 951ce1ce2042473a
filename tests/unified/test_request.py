import base64
import json
import os

import pytest

from gateway.errors import InvalidInput
from gateway.unified.limits import ParseLimits
from gateway.unified.model import Base64, Media
from gateway.unified.request import ExecuteRequest, RequestKind, parameters_as_strings, read_execute
from tests.conftest import mostly_slow


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"parameters":{"question":"q"}}',
        b'{"parameters":[1,2]}',
        b'{"parameters":{"a":1,"a":2}}',
        b'{"parameters":{"a":null,"b":NaN,"c":"\\ud800\\u0000"}}',
        b'{"parameters":' + b"[" * 150 + b"]" * 150 + b"}",
        b'{"parameters":{"question":"' + b"\xff" * 5000 + b'"}}',
        b'{"parameters":{"input":"nested is not top-level"}}',
        b'{"parameters":}',
        b'{"parameters":"\xff"}',
    ],
)
def test_without_input_it_is_legacy_whatever_it_says(body: bytes) -> None:
    request = read_execute(body)
    assert (request.kind, request.input) == (RequestKind.LEGACY, None)


def test_legacy_parameters_are_read_when_they_can_be() -> None:
    long = "x" * 5000
    request = read_execute(json.dumps({"parameters": {"question": long, "n": 1}, "async": True}).encode())
    assert (request.parameters, request.other, request.has_question) == (
        {"question": long, "n": 1},
        {"async": True},
        True,
    )


def test_legacy_parameters_that_break_json_are_left_alone() -> None:
    request = read_execute(b'{"parameters":{"question":"q","question":"r"}}')
    assert (request.parameters, request.has_question) == ({}, False)


@pytest.mark.parametrize("body", [b"input", b'["input"]', b'"input"', b'{"input":', b'{"input":"q'])
def test_what_is_no_json_object_but_names_input_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_execute(body)


@pytest.mark.parametrize("key", ["input", "\\u0069nput"])
def test_input_is_found_however_its_name_is_written(key: str) -> None:
    assert read_execute(f'{{"{key}":"a"}}'.encode()).kind is RequestKind.UNIFIED


def test_what_stands_beside_input_is_kept_as_it_was() -> None:
    long = "x" * 5000
    parameters = {"question": "q", "n": 1, "f": 1.5, "t": True, "o": {"a": [None, long]}, "l": [], long: long}
    body = json.dumps({"input": "hi", "parameters": parameters, "async": False, "memory": {"k": long}}).encode()
    request = read_execute(body)
    assert request.parameters == parameters
    assert request.other == {"async": False, "memory": {"k": long}}
    assert request.has_question


@pytest.mark.parametrize(
    "body", [b'{"input":"a"}', b'{"input":"a","parameters":null}', b'{"input":"a","parameters":{}}']
)
def test_no_parameters(body: bytes) -> None:
    request = read_execute(body)
    assert (request.parameters, request.other, request.has_question) == ({}, {}, False)


def test_the_depth_is_the_callers() -> None:
    body = b'{"input":[{"text":"a"}]}'
    assert isinstance(read_execute(body, ParseLimits(depth=3)), ExecuteRequest)
    with pytest.raises(InvalidInput):
        read_execute(body, ParseLimits(depth=2))


def test_parameters_become_the_strings_the_cluster_makes() -> None:
    parameters = {"s": ' {"a": 1}', "i": 1, "f": 1.5, "t": True, "o": {"a": [None, "é<"]}, "l": [1, 2]}
    assert parameters_as_strings(parameters) == {
        "s": ' {"a": 1}',
        "i": "1",
        "f": "1.5",
        "t": "true",
        "o": '{"a":[null,"é<"]}',
        "l": "[1,2]",
    }


@pytest.mark.parametrize("escape", mostly_slow(["", "\\n", "\\/"], 3))
def test_twenty_megabytes_of_base64(escape: str) -> None:
    data = base64.b64encode(os.urandom(15_000_000)).decode().replace("/", escape if escape == "\\/" else "/")
    if escape == "\\n":
        data = data[:1_000_000] + escape + data[1_000_000:]
    body = b'{"input":[{"type":"image","source":{"type":"base64","format":"png","data":"' + data.encode() + b'"}}]}'
    request = read_execute(body)
    assert request.input is not None
    (block,) = request.input.messages[0].content
    assert isinstance(block, Media)
    assert isinstance(block.source, Base64)
    assert block.source.data == data.replace("\\n", "").replace("\\/", "/").encode()


@pytest.mark.parametrize("padding", [b"A===", b"AA==", b"AAA="])
def test_padding_before_the_end_is_refused_wherever_it_stands(padding: bytes) -> None:
    data = b"A" * (2**20 - 4) + padding + b"AAAA"
    body = b'{"input":[{"type":"image","source":{"type":"base64","format":"png","data":"' + data + b'"}}]}'
    with pytest.raises(InvalidInput) as raised:
        read_execute(body)
    place = 2**20 - 4 + padding.index(b"=")
    assert raised.value.problems[0].reason == f"Not base64: padding at character {place}, before the end"


def test_one_wrong_character_in_twenty_megabytes_is_named() -> None:
    data = b"A" * 15_000_000 + b"*" + b"A" * 4_999_999
    body = b'{"input":[{"type":"image","source":{"type":"base64","format":"png","data":"' + data + b'"}}]}'
    with pytest.raises(InvalidInput) as raised:
        read_execute(body)
    assert raised.value.problems[0].reason == "Not base64: character 15000000 is not in the alphabet"
