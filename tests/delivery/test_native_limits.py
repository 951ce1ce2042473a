"""What a V2 agent's cluster does not bring to its LLM is refused before it is sent, at its place."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import UndeliverableContent
from gateway.mlcommons.generations import Generation
from tests.delivery.test_unified import BEDROCK, OPENAI, agent, rewritten

PDF = {"type": "document", "source": {"type": "base64", "format": "pdf", "data": "JVBERi0="}}
PNG = {"type": "image", "source": {"type": "url", "format": "png", "data": "https://example.org/a.png"}}
BARE = {"type": "image_url", "image_url": {"url": "https://example.org/render?id=7"}}
S3 = {"type": "image", "source": {"type": "url", "format": "png", "data": "s3://bucket/a.png"}}
AUDIO = {"type": "audio", "source": {"type": "base64", "format": "mp3", "data": "SUQz"}}
TEXT = {"type": "text", "text": "hello"}
CACHE = {"cachePoint": {"type": "default"}}
CACHE_IN_TURN = {"role": "user", "content": [TEXT, {"type": "cachePoint", **CACHE}]}


def refused(provider: str, blocks: list[Any]) -> list[tuple[str, str]]:
    try:
        rewritten(agent(provider, Generation.UNIFIED_V2), blocks)
    except UndeliverableContent as error:
        return [(problem.place, problem.code) for problem in error.problems if problem.help]
    return []


@pytest.mark.parametrize(
    ("provider", "blocks", "expected"),
    [
        (BEDROCK, [TEXT, PDF], []),
        (OPENAI, [TEXT, PNG], []),
        (
            OPENAI,
            [PDF, TEXT, PDF],
            [("input[0]", "MEDIA_FORMAT_UNSUPPORTED"), ("input[2]", "MEDIA_FORMAT_UNSUPPORTED")],
        ),
        (BEDROCK, [TEXT, CACHE], [("input[1]", "NATIVE_BLOCK_UNSUPPORTED")]),
        (OPENAI, [CACHE, TEXT], [("input[0]", "NATIVE_BLOCK_UNSUPPORTED")]),
        (BEDROCK, [CACHE_IN_TURN], [("input[0].content[1]", "NATIVE_BLOCK_UNSUPPORTED")]),
        (BEDROCK, [TEXT, AUDIO], [("input[1]", "MEDIA_KIND_UNSUPPORTED")]),
        (OPENAI, [TEXT, AUDIO], [("input[1]", "MEDIA_KIND_UNSUPPORTED")]),
        (BEDROCK, [TEXT, S3], [("input[1]", "MEDIA_SOURCE_UNSUPPORTED")]),
        (BEDROCK, [TEXT, PNG], [("input[1]", "MEDIA_SOURCE_UNSUPPORTED")]),
        (OPENAI, [TEXT, S3], [("input[1]", "MEDIA_SOURCE_UNSUPPORTED")]),
        (OPENAI, [TEXT, BARE], [("input[1]", "MEDIA_FORMAT_MISSING")]),
        (BEDROCK, [TEXT, PDF, PDF], [("input[2]", "COMBINATION_NOT_DELIVERABLE")]),
    ],
)
def test_what_the_cluster_can_not_bring_to_the_llm(provider: str, blocks: list[Any], expected: list[Any]) -> None:
    assert refused(provider, blocks) == expected
