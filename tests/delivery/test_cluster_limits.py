"""Input that a unified agent's cluster can't serve is refused before it is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gateway.delivery.cluster_limits import refuse_cluster_limits
from gateway.errors import UndeliverableContent
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.unified.request import read_execute

V2 = AgentProfile("a", "a", "conversational_v2", (3, 6, 0), Generation.UNIFIED_V2, unified_api=True)
PDF = {"type": "document", "source": {"type": "base64", "format": "pdf", "data": "JVBERi0="}}
PNG = {"type": "image", "source": {"type": "url", "format": "png", "data": "https://example.org/a.png"}}
TEXT = {"type": "text", "text": "hello"}


def refused(profile: AgentProfile, *blocks: Any) -> list[tuple[str, str]]:
    conversation = read_execute(msgspec.json.encode({"input": blocks})).input
    assert conversation is not None
    try:
        refuse_cluster_limits(profile, conversation)
    except UndeliverableContent as error:
        return [(problem.place, problem.code) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("changes", "blocks", "expected"),
    [
        ({"provider": "bedrock/converse"}, [TEXT, PDF], []),
        ({"provider": "bedrock/converse", "unified_api": False}, [TEXT], [("input", "UNIFIED_API_OFF")]),
        ({"provider": "bedrock/converse", "unified_api": None}, [TEXT], []),
        ({"provider": "gemini/v1beta/generatecontent"}, [TEXT], [("input", "ANSWER_NOT_READ")]),
        ({"provider": "gemini/v1beta/generatecontent", "version": (3, 9, 0)}, [TEXT], []),
        ({"provider": "openai/v1/chat/completions"}, [TEXT, PNG], []),
        (
            {"provider": "openai/v1/chat/completions"},
            [PDF, TEXT, PDF],
            [("input[0]", "MEDIA_KIND_UNSUPPORTED"), ("input[2]", "MEDIA_KIND_UNSUPPORTED")],
        ),
        ({"provider": "gemini/v1beta/generatecontent", "generation": Generation.UNIFIED_V1}, [TEXT], []),
    ],
)
def test_what_the_cluster_cannot_serve(changes: dict[str, Any], blocks: list[Any], expected: list[Any]) -> None:
    assert refused(replace(V2, **changes), *blocks) == expected
