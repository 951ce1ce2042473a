"""Executes a sample through a gateway and reports what happened, in the form of the JSON table of agents."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from gateway.execute.deliveries import DELIVERY, NOTICE
from gateway.migrate.proof import sample

Post = Callable[[str, Any], tuple[int, Any, Mapping[str, str]]]
Observed = dict[str, Any]


def observed_ability(
    post: Post, take_received: Callable[[], list[Any]], agent_id: str, kind: str, provider: str
) -> Observed:
    """An ability as the table's JSON has it, from what the gateway answered and what the LLM received.

    take_received: what the LLM received since the last call. An answer that is neither a complete delivery nor a
    refusal that sent nothing is returned as it is, which equals nothing in a table.
    """
    take_received()
    value = sample(kind, provider)
    status, answer, headers = post(f"/_plugins/_ml/agents/{agent_id}/_execute", {"input": value})
    received = take_received()
    notices = list(filter(None, headers.get(NOTICE, "").split(", ")))
    if status == 200 and DELIVERY in headers and bool(received) != ("NO_LLM" in notices):
        first = json.dumps(received[:1], ensure_ascii=False)
        if lost := [text for text in texts_of(value) if received and text not in first]:
            return {"lost": lost, "received": received[0]}
        delivery = dict(item.split("=", 1) for item in headers[DELIVERY].split("; "))
        return {"arrives": True, "strategy": delivery["strategy"], "notices": notices}
    problems = answer["error"].get("problems") if isinstance(answer.get("error"), dict) else None
    if status == 400 and problems and not received:
        return {"arrives": False, "code": problems[0].get("code", ""), "reason": problems[0]["reason"]}
    return {"status": status, "answer": answer, "received": received}


def texts_of(value: Any) -> list[str]:
    """The texts of a sample, and the payloads of its media, or what a document of plain text says."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in texts_of(item)]
    if value.get("type") == "document" and value["source"]["format"] == "txt":
        return [base64.b64decode(value["source"]["data"]).decode().strip()]
    inner = [value.get(name) for name in ("text", "content", "source", "data") if value.get(name)]
    return [text for item in inner for text in texts_of(item)]


def upgrade_command(agent_id: str) -> str:
    """The command that upgrades an agent, as the table shows it; a generated id may begin with a dash."""
    return f"mlc-gateway upgrade {'-- ' * agent_id.startswith('-')}{agent_id}"
