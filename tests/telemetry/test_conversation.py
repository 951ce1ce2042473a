from __future__ import annotations

import pytest

from gateway.recording.messages import read_conversation


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
