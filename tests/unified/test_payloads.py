import base64
import json
import os
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import BodyTooLarge, InvalidInput
from gateway.unified import jsonstrings, payloads
from gateway.unified.jsonstrings import Unreadable
from gateway.unified.limits import ParseLimits
from gateway.unified.payloads import TOKEN, extract, insert
from gateway.unified.validate import Reading
from tests.strategies import json_values
from tests.unified.reading import decode_object

# Bytes in which quotes and backslashes are common.
_PIECES = [b'"', b"\\", b'\\"', b"a", b"bcd", b"{", b",", b" ", b"\xff", b"gwb_"]
bodies = st.lists(st.sampled_from(_PIECES)).map(b"".join)


@given(bodies | st.binary(), st.integers(1, 4))
@example(b'"', 1)
@example(b'"abc', 1)
@example(b'"abc\\', 1)
def test_putting_the_blobs_back_gives_the_body(body: bytes, threshold: int) -> None:
    extracted = extract(body, threshold)
    assert b"".join(insert(extracted.text, extracted.blobs)) == body


@given(bodies | st.binary(), st.integers(1, 4))
def test_every_token_is_extracted_once_and_is_new(body: bytes, threshold: int) -> None:
    extracted = extract(body, threshold)
    assert extracted.prefix.encode() not in body
    assert [
        match[0].decode() for match in TOKEN.finditer(extracted.text) if match[0].decode() in extracted.blobs
    ] == list(extracted.blobs)


@given(json_values(20), st.booleans(), st.integers(1, 3))
def test_the_small_json_decodes_to_the_same_value(value: object, ascii_only: bool, threshold: int) -> None:
    body = json.dumps({"value": value}, ensure_ascii=ascii_only).encode()
    extracted = extract(body, threshold)
    assert Reading(extracted).plain(decode_object(extracted), "") == json.loads(body)


@given(json_values(20))
def test_every_long_string_without_a_backslash_is_extracted(value: object) -> None:
    body = json.dumps([value], ensure_ascii=False).encode()
    strings: list[str] = []

    def collect(node: object) -> None:
        match node:
            case str():
                strings.append(node)
            case list():
                for item in node:
                    collect(item)
            case dict():
                for key, item in node.items():
                    strings.append(key)
                    collect(item)

    collect(value)
    written = [json.dumps(string, ensure_ascii=False)[1:-1].encode() for string in strings]
    expected = [string for string in written if len(string) >= 3 and b"\\" not in string]
    extracted = extract(body, 3)
    assert [bytes(blob) for token, blob in extracted.blobs.items() if token not in extracted.escaped] == expected


def test_a_blob_is_a_view_on_the_body() -> None:
    body = b'{"input":"' + b"A" * 4096 + b'"}'
    (blob,) = extract(body).blobs.values()
    assert blob.obj is body


def test_a_bytearray_is_extracted_uncopied() -> None:
    body = bytearray(b'{"input":"' + b"A" * 4096 + b'"}')
    extracted = extract(body)
    (blob,) = extracted.blobs.values()
    assert blob.obj is body
    assert b"".join(insert(extracted.text, extracted.blobs)) == body


def test_a_text_can_not_spell_a_token_even_with_escapes() -> None:
    payload = b"A" * 4096
    plain = b'{"input":"%s","data":"' + payload + b'"}'
    guess = extract(plain % b"").prefix + "0x"
    escaped = "".join(f"\\u{ord(char):04x}" for char in guess).encode()
    for text in (guess.encode(), escaped):
        extracted = extract(plain % text)
        assert decode_object(extracted)["input"] not in extracted.blobs


def test_a_token_inside_a_extracted_string_makes_another_one() -> None:
    template = b'["%s"]'
    first = extract(template % (b"A" * 4096))
    second = extract(template % (first.prefix.encode() + b"A" * 4096))
    assert second.prefix != first.prefix
    assert b"".join(insert(second.text, second.blobs)) == template % (first.prefix.encode() + b"A" * 4096)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"a" * 2048 + b"\xff", "invalid UTF-8 at byte 2048 of the string"),
        (b"a" * 2048 + b"\xed\xa0\x80", "invalid UTF-8 at byte 2048 of the string"),
        (b"a" * 2048 + b"\x00", "unescaped control character at character 2048 of the string"),
        (b"a" * 2048 + b"\n", "unescaped control character at character 2048 of the string"),
    ],
)
def test_a_blob_that_is_not_json_text_is_not_restored(blob: bytes, message: str) -> None:
    extracted = extract(b'["' + blob + b'"]')
    (token,) = extracted.blobs
    with pytest.raises(Unreadable) as raised:
        extracted.restore(token)
    assert str(raised.value) == message


def test_twenty_megabytes_leave_a_short_text() -> None:
    image = base64.b64encode(os.urandom(15_000_000))
    extracted = extract(b'{"a":"' + image + b'","b":"' + image + b'"}')
    assert len(extracted.text) < 100
    assert [blob == image for blob in extracted.blobs.values()] == [True, True]


@pytest.mark.parametrize(
    "body", [b'["' + b'","' * 500_000 + b'"]', b'["' + b'\\"","' * 300_000 + b'"]', b'"' * 1_000_001]
)
def test_many_short_strings(body: bytes) -> None:
    assert extract(body).text == body


def test_offset_is_the_place_in_the_body() -> None:
    body = b'["' + b"A" * 3000 + b'", "' + b"B" * 5000 + b'" x]'
    extracted = extract(body)
    assert extracted.offset(extracted.text.index(b"x]")) == body.index(b"x]")


def test_malformed_extracted_key_is_an_invalid_input() -> None:
    with pytest.raises(InvalidInput):
        decode_object(b'{"' + b"\xff" * 3000 + b'":1}')


TEXTS = st.text(st.sampled_from('a"\\/\n\u00e9\u20ac😀'), min_size=20, max_size=60)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans(), st.integers(13, 20))
def test_escapes_are_undone_wherever_a_window_cuts_them(texts: list[str], ascii_only: bool, window: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payloads, "WINDOW", window)
        for name in ("WINDOW", "_STRIDE", "_PIECE"):
            patch.setattr(jsonstrings, name, window)
        extracted = extract(json.dumps(texts, ensure_ascii=ascii_only).encode(), 4)
        assert [Reading(extracted).plain(token, "") for token in json.loads(extracted.text)] == texts


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"\\x", "Invalid \\escape"),
        (b"\\u12", "Invalid \\uXXXX escape"),
        (b"\\u12G4", "Invalid \\uXXXX escape"),
        (b"\\ud83d", "lone surrogate U+D83D"),
        (b"\\ud83d\\u0041", "lone surrogate U+D83D"),
        (b"\\ude00", "lone surrogate U+DE00"),
        (b"\\u0000", "U+0000"),
        (b"\\n\n", "Invalid control character"),
        (b"\\n\xff", "invalid UTF-8"),
        (b"\\n\xe2\x82\\n", "invalid UTF-8"),
    ],
)
@pytest.mark.parametrize("behind", [b"", b"z" * 100_000])
def test_a_blob_with_escapes_that_is_not_json_text_is_not_restored(blob: bytes, message: str, behind: bytes) -> None:
    extracted = extract(b'["' + b"a" * 100_000 + blob + behind + b'"]')
    (token,) = extracted.escaped
    with pytest.raises(Unreadable) as raised:
        extracted.restore(token)
    assert message in str(raised.value)


def test_a_text_with_escapes_can_not_spell_a_token_either() -> None:
    body = b'["' + b"A" * 4096 + b'","\\n' + b"b" * 100_000 + b'%s"]'
    guess = extract(body % b"").prefix
    extracted = extract(body % "".join(f"\\u{ord(char):04x}" for char in guess).encode())
    texts = [extracted.restore(token) for token in extracted.blobs]
    assert not any(extracted.prefix in text for text in texts)


def test_no_search_is_given_more_than_a_stride() -> None:
    class Watched(bytes):
        longest = 0

        def find(self, what: Any, start: Any = 0, end: Any = None) -> int:
            Watched.longest = max(Watched.longest, (len(self) if end is None else end) - start)
            return super().find(what, start, end)

    body = Watched(b'["' + b"_" * 20_000_000 + b'"]')
    assert len(extract(body).blobs) == 1
    assert Watched.longest <= 5_000_000


def test_the_walk_stops_where_too_much_would_be_left() -> None:
    class Watched(bytes):
        def find(self, *args: Any) -> int:
            pytest.fail("the walk went on")

    with pytest.raises(BodyTooLarge):
        extract(Watched(b"1," * 1_000_000 + b'"'), limits=ParseLimits(text=1000))
