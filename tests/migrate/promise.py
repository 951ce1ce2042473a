"""What became of a sample that was sent through a gateway, in the words of the table of agents."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gateway.execute.response_headers import DELIVERY, NOTICE
from gateway.migrate.samples import sample

Post = Callable[[str, Any], tuple[int, Any, Mapping[str, str]]]
Happened = dict[str, Any]


def happened(post: Post, taken: Callable[[], list[Any]], agent_id: str, kind: str, provider: str) -> Happened:
    """An ability as the table's JSON has it, from what the gateway answered and what the LLM received.

    taken: what the LLM received since the last call. An answer that is neither a delivery that arrived whole nor a
    refusal that sent nothing is shown as it is, and equals nothing in a table.
    """
    taken()
    said = sample(kind, provider)
    status, answer, headers = post(f"/_plugins/_ml/agents/{agent_id}/_execute", {"input": said})
    received = taken()
    notices = list(filter(None, headers.get(NOTICE, "").split(", ")))
    if status == 200 and DELIVERY in headers and bool(received) != ("NO_LLM" in notices):
        first = json.dumps(received[:1], ensure_ascii=False)
        if lost := [word for word in words(said) if received and word not in first]:
            return {"lost": lost, "received": received[0]}
        told = dict(item.split("=", 1) for item in headers[DELIVERY].split("; "))
        return {"arrives": True, "strategy": told["strategy"], "notices": notices}
    problems = answer["error"].get("problems") if isinstance(answer.get("error"), dict) else None
    if status == 400 and problems and not received:
        return {"arrives": False, "code": problems[0].get("code", ""), "reason": problems[0]["reason"]}
    return {"status": status, "answer": answer, "received": received}


def words(value: Any) -> list[str]:
    """What a sample says, and the payload of its media."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [word for item in value for word in words(item)]
    inner = [value.get(name) for name in ("text", "content", "source", "data") if value.get(name)]
    return [word for item in inner for word in words(item)]


def upgrade_command(agent_id: str) -> str:
    """What mends an agent, as the table names it: generated ids may begin with a dash."""
    return f"mlc-gateway upgrade {'-- ' * agent_id.startswith('-')}{agent_id}"
