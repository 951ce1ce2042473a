"""Bodies of records: without secrets and media, whatever their coding."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given

from gateway.observe.record import Body
from gateway.observe.redaction import Redactor
from gateway.observe.secrets import Secrets
from gateway.proxy.capture import BodyCopy
from gateway.recording.records import BodyMaker, read_conversation
from tests.conftest import examples
from tests.observe.test_redaction import CANARY, PLAIN, WITH_SECRET, WRITERS

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(200)).decode()


def made(content: bytes, *codings: str) -> Body:
    return BodyMaker(Redactor(), None).make((content,), codings, Secrets())


@examples(1500)
@given(WITH_SECRET, WRITERS)
def test_no_secret_survives(value: Any, write: Any) -> None:
    assert CANARY not in (made(write(value).encode()).text or "")


@examples(500)
@given(PLAIN, WRITERS)
def test_what_is_no_secret_is_unchanged(value: Any, write: Any) -> None:
    text = write(value)
    assert made(text.encode()) == Body(len(text.encode()), text)


def test_bodies_that_are_no_text_are_kept_unless_they_may_hold_a_secret() -> None:
    content = bytes(range(128, 256))
    assert made(content) == Body(128, base64.b64encode(content).decode(), "base64")
    body = made(content + b"password=hunter2")
    assert body.text is None
    assert "secret" in body.omitted


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b'{"password": "hunter2"}', mtime=0),
        b"\xbf\x68password\x67hunter2\xff",  # CBOR: {"password": "hunter2"}
        *(
            json.dumps({"password": "hunter2"}).encode(coding)
            for coding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")
        ),
    ],
)
def test_other_encodings_of_json_that_hold_a_secret_are_not_kept(content: bytes) -> None:
    body = made(content)
    assert (body.text, body.size) == (None, len(content))
    assert body.omitted == "Not recorded: it is not text, and may hold a secret."


def test_content_codings() -> None:
    content = json.dumps({"password": CANARY}).encode()
    body = made(gzip.compress(content), "gzip")
    assert json.loads(body.text or "")["password"].startswith("[REDACTED")
    assert made(b"nonsense", "gzip").omitted == "Not recorded: its content coding can't be decoded."
    assert made(b"nonsense", "br").text is None


def test_a_body_that_is_cut_within_a_character() -> None:
    copy = BodyCopy(4)
    copy.add("abcü".encode(), True)
    body = BodyMaker(Redactor(), None).copied(copy, False, (), Secrets())
    assert (body.text, body.size) == ("abc", 5)
    assert body.omitted.startswith("Cut: 5 bytes came, and the first 4")


def test_media_in_pieces() -> None:
    pieces = [b'{"a": "data:image/png;base64,', memoryview(PNG.encode()), b'", "token": "hunter2"}']
    body = BodyMaker(Redactor(), None).make(pieces, (), Secrets())
    value = json.loads(body.text or "")
    assert value["a"].startswith("data:image/png;base64,[MEDIA type=image/png length=208 ")
    assert value["token"].startswith("[REDACTED")
    assert body.size == sum(map(len, pieces))


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_medium_that_came_in_pieces_is_one(is_chunked: bool) -> None:
    content = b'{"data": "%b"}' % PNG.encode()
    copy = BodyCopy(10_000)
    kept: list[tuple[str, str, bytes]] = []
    for start in range(0, len(content), 100):
        piece = content[start : start + 100]
        copy.add(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece, False)
    copy.complete = True
    body = BodyMaker(Redactor(), lambda *medium: kept.append(medium)).copied(copy, is_chunked, (), Secrets())
    digest = hashlib.sha256(base64.b64decode(PNG)).hexdigest()
    assert body.text == f'{{"data": "[MEDIA type=image/png length=208 sha256={digest}]"}}'
    assert kept == [(digest, "image/png", base64.b64decode(PNG))]


@pytest.mark.parametrize(
    ("request_body", "response", "expected"),
    [
        (b'{"input": "x"}', b'{"inference_results": []}', ""),
        (b'{"input": "x", "parameters": {"memory_id" : "gws-1"}}', b"", "gws-1"),
        (b'{"parameters": {"session_id":"s_1"}}', b"{}", "s_1"),
        (b"{}", b'{"inference_results":[{"output":[{"name":"memory_id","result":"m1"},{"name":"x"}]}]}', "m1"),
        (b'{"parameters": {"memory_id": "old"}}', b'{"message": {}, "memory_id": "new"}', "new"),
        (b"{}", b'data: {"inference_results":[{"output":[{"name":"memory_id","result":"m1"}]}]}\n\n', "m1"),
        (rb'{"input": "say \"memory_id\": \"no\""}', b"", ""),
        (b'{"input": "' + b"A" * 200_000 + b'", "parameters": {"memory_id": "late"}}', b"", "late"),
        (b'{"parameters": {"memory_id": 7}}', b"", ""),
    ],
)
def test_the_id_of_the_conversation(request_body: bytes, response: bytes, expected: str) -> None:
    assert read_conversation(request_body, response) == expected
