import json
import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import InvalidInput
from gateway.unified.model import AgentInput, Base64, Media
from gateway.unified.payloads import insert
from gateway.unified.request import ExecuteRequest, RequestKind, read_execute
from tests.conftest import examples
from tests.strategies import bare, conversations, executes, hostile_text, spelled


@given(st.data())
def test_any_conversation_in_any_spelling_decodes_to_itself(data: st.DataObject) -> None:
    meant: AgentInput = data.draw(conversations())
    body = json.dumps({"input": data.draw(spelled(meant))}, ensure_ascii=data.draw(st.booleans())).encode()
    assert bare(read_execute(body).input) == meant


@given(executes(tools=False))
def test_tokens_are_distinct_and_stand_nowhere_in_the_body(drawn: tuple[bytes, Any]) -> None:
    body, request = drawn
    blocks = [block for message in request.input.messages for block in message.content]
    sources = [block.source for block in blocks if isinstance(block, Media) and isinstance(block.source, Base64)]
    tokens = [source.token for source in sources]
    assert len(set(tokens)) == len(tokens)
    assert not any(token.encode() in body or not re.fullmatch("[a-z0-9_]+", token) for token in tokens)
    text = json.dumps(tokens).encode()
    expected = json.dumps([bytes(source.data).decode() for source in sources]).encode()
    assert b"".join(insert(text, {source.token: source.data for source in sources})) == expected


_MEMBERS = [
    "type", "text", "image", "source", "format", "data", "role", "content", "toolCalls", "toolCallId", "tool_calls",
    "function", "name", "arguments", "toolUse", "toolResult", "input", "document", "bytes", "s3Location", "uri", "id",
    "json", "image_url", "url", "file", "cachePoint", "parameters", "question", "__bytes_encoded__",
]  # fmt: skip
_WORDS = [
    "text",
    "image",
    "base64",
    "url",
    "user",
    "tool",
    "QQ==",
    "png",
    "s3://a/b",
    "function",
    "",
    "{}",
    "[",
    "tool_use",
]
# JSON with member names of the input, so that a wrong value gets deep into the decoder.
near_inputs = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(_WORDS) | hostile_text(2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_MEMBERS), inner, max_size=4),
    max_leaves=25,
)


def outcome(body: bytes) -> ExecuteRequest | InvalidInput:
    """Return the result of reading `body`. Any other exception fails the test."""
    try:
        return read_execute(body)
    except InvalidInput as error:
        return error


@examples(300)
@given(near_inputs)
def test_any_value_is_read_or_refused_with_places(value: Any) -> None:
    match outcome(json.dumps({"input": value}).encode()):
        case InvalidInput() as error:
            assert all(problem.place and problem.reason for problem in error.problems)
            assert error.problems
            json.dumps(error.body()).encode()
        case request:
            assert request.kind is RequestKind.UNIFIED
            assert request.input is not None
            assert request.input.messages


_PIECES = [b'{"input":', b'"', b"[", b"]", b"}", b"\\", b"\xff", b"1", b",", b"\\u0000", b"\\ud800", b"e9", b"NaN"]


@examples(300)
@given(st.binary() | st.lists(st.sampled_from(_PIECES)).map(b"".join))
@example(b"{,}")
@example(b"{\x80}")
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    match outcome(body):
        case InvalidInput() as error:
            assert error.problems
        case request:
            try:
                document = json.loads(body)
            except ValueError:  # what is not strict JSON may only be forwarded as it is, see `test_lenient`
                document = {}
            named = isinstance(document, dict) and "input" in document
            assert (request.kind is RequestKind.LEGACY) is not named
