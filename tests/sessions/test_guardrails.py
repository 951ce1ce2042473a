"""Sessions of agents with guardrails: what is remembered is what the agent was sent, and what the client got."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from gateway.policy import hooks
from tests.sessions.conftest import StartCluster

POLICY = {"guardrails": [{"name": "own", "entry_point": "own", "answers": True}]}


class Guardrail:
    """Hides a number in questions, and refuses the answer to a question with "secret"."""

    def __init__(self) -> None:
        self.secret = False

    def __call__(self, document: Any) -> Any:
        if document["stage"] == "answer":
            return {"verdict": "refuse" if self.secret else "allow", "reason": "no"}
        [message] = document["input"]["messages"]
        [block] = message["content"]
        self.secret = "secret" in block["text"]
        text = block["text"].replace("4111", "[card]")
        return {"verdict": "change", "texts": [{"place": block["place"], "text": text}]}


own = Guardrail()


async def test_a_session_holds_what_was_sent(start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("own", f"{__name__}:own", hooks.GROUP)
    monkeypatch.setattr(hooks, "entry_points", lambda group, name=None: [point])
    cluster = await start_cluster("2.19.0")
    await cluster.start({"policy": POLICY})
    first = await cluster.ask("flow-b", {"input": "is 4111 a card"})
    assert first.status == 200
    assert "GUARDRAIL_CHANGED" in first.notices
    refused = await cluster.ask("flow-b", {"parameters": {"question": "a secret"}}, first.memory_id)
    assert (refused.status, refused.body["error"]["type"]) == (403, "GuardrailRefused")
    third = await cluster.ask("flow-b", {"parameters": {"question": "and 4111"}}, first.memory_id)
    assert third.status == 200
    texts = str(third.llm)
    assert "is [card] a card" in texts
    assert "and [card]" in texts
    assert "4111" not in texts
