"""`delivery: describe`: what can't be delivered is a note in its place, in user turns and in tool results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.execute.rewrite import RewriteOptions
from tests.delivery.cases import CALL, DOCUMENT, IMAGE, VIDEO, media, text, turn
from tests.delivery.simulated_cluster import Sent, cluster_of
from tests.oracle import Oracle, Outcome

AGENTS = {"bedrock": ("3.4.0", "fc-bedrock_upgraded"), "openai": ("2.19.0", "flow-b"), "gemini": ("2.19.0", "flow-e2")}
MEDIA: Mapping[str, Any] = {
    "image": IMAGE,
    "gif": media("image", "gif", "R0lGODlh"),
    "document": DOCUMENT,
    "office": media("document", "docx", "UEsDBAo="),
    "video": VIDEO,
    "audio": media("audio", "wav", "UklGRg=="),
}
NOTES = {
    "image": "[image (png, 70 bytes) was not delivered]",
    "gif": "[image (gif, 6 bytes) was not delivered]",
    "document": "[document 'Report' (pdf, 15 bytes) was not delivered]",
    "office": "[document (docx, 5 bytes) was not delivered]",
    "video": "[video (mp4, 24 bytes) was not delivered]",
    "audio": "[audio (wav, 4 bytes) was not delivered]",
}
# What the provider takes: in a user turn, in a tool result (docs/evidence/providers.md).
TAKES = {
    "bedrock": ({*MEDIA}, {*MEDIA} - {"audio"}),
    "openai": ({"image", "gif", "document", "audio"}, {"image", "gif", "document", "audio"}),
    "gemini": ({"image", "document", "video", "audio"}, {"image", "document"}),
}


def in_user_turn(*blocks: Any) -> list[Any]:
    return [turn("user", text("Look:"), *blocks)]


def in_tool_result(*blocks: Any) -> list[Any]:
    result = {"toolResult": {"toolUseId": "t1", "content": [text("seen:"), *blocks]}}
    return [turn("user", "Weather?"), turn("assistant", CALL), turn("user", result, text("And now?"))]


WHERE = {
    "user turn": (in_user_turn, "input[0].content"),
    "tool result": (in_tool_result, "input[2].content[0].toolResult.content"),
}


def send(provider: str, value: Any, describe: bool) -> Sent:
    version, agent = AGENTS[provider]
    return cluster_of(version).send(agent, {"input": value}, policy=RewriteOptions(describe=describe))


def notes(sent: Sent) -> list[str]:
    """The notes in what the LLM received, and their places as reported."""
    assert sent.rewritten is not None, sent.error
    assert sent.executed is not None
    assert sent.executed.status == 200
    return [note for note in NOTES.values() if json.dumps(note)[1:-1] in sent.executed.llm_bodies[0]]


def described(sent: Sent) -> list[str]:
    assert sent.rewritten is not None
    return [notice.place for notice in sent.rewritten.plan.notices if notice.code == "MEDIA_DESCRIBED"]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", MEDIA)
@pytest.mark.parametrize("provider", AGENTS)
def test_what_cannot_be_delivered_is_described_where_it_stands(provider: str, kind: str, where: str) -> None:
    conversation, place = WHERE[where]
    takes = kind in TAKES[provider][where == "tool result"]
    value = conversation(MEDIA[kind])
    assert (send(provider, value, describe=False).error is None) is takes
    sent = send(provider, value, describe=True)
    assert notes(sent) == ([] if takes else [NOTES[kind]])
    assert described(sent) == ([] if takes else [f"{place}[1]"])


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("provider", AGENTS)
def test_what_can_be_delivered_is_not_described(provider: str, where: str) -> None:
    conversation, place = WHERE[where]
    takes = TAKES[provider][where == "tool result"]
    sent = send(provider, conversation(*MEDIA.values()), describe=True)
    assert notes(sent) == [note for kind, note in NOTES.items() if kind not in takes]
    assert described(sent) == [f"{place}[{at}]" for at, kind in enumerate(MEDIA, 1) if kind not in takes]


def test_the_note_stands_inside_the_tools_result() -> None:
    sent = send("gemini", in_tool_result(VIDEO, IMAGE), describe=True)
    assert sent.executed is not None
    _, _, answer = json.loads(sent.executed.llm_bodies[0])["contents"]
    response = answer["parts"][0]["functionResponse"]
    assert response["response"] == {"output": ["seen:", NOTES["video"]]}
    assert [part["inlineData"]["mimeType"] for part in response["parts"]] == ["image/png"]


def test_a_tools_result_with_a_note_is_text_where_the_connector_carries_no_results() -> None:
    cluster = cluster_of("2.19.0")
    sent = cluster.send("flow-d", {"input": in_tool_result(VIDEO)}, policy=RewriteOptions(describe=True))
    verdict = Oracle(cluster).judge("flow-d", {}, (), sent)
    assert verdict.outcome is Outcome.ARRIVED, verdict
    assert {"MEDIA_DESCRIBED", "TOOLS_AS_TEXT"} <= {*verdict.notices}
