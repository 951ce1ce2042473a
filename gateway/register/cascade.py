"""Deletes an agent and, with ``?cascade=true``, what was made for it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

from gateway.agents.lookup import document_path
from gateway.errors import InvalidInput, Problem
from gateway.ports import Answer, ExecuteCall, Forward
from gateway.register.calls import LOST, Calls
from gateway.register.parts import Made, header_text, parts_of, remove, users_of

CLEANUP = "X-MLC-Cleanup"
CASCADE = "cascade"


def read_cascade(raw_target: str) -> tuple[bool, str]:
    """Return the value of the parameter ``cascade``, and the target without it.

    Raises:
        InvalidInput: the parameter is neither ``true`` nor ``false``.
    """
    path, mark, query = raw_target.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    values = [value for name, value in pairs if name == CASCADE]
    if not values:
        return False, raw_target
    if set(values) - {"true", "false"} or len(values) > 1:
        shown = ", ".join(values)
        raise InvalidInput.of([Problem(f"?{CASCADE}", "has an unknown value", "true or false", shown[:60])])
    rest = urlencode([pair for pair in pairs if pair[0] != CASCADE])
    return values == ["true"], f"{path}{mark}{rest}" if rest else path


async def delete_agent(call: ExecuteCall, calls: Calls) -> Forward | Answer:
    """Delete an agent, and report or remove what was made for it.

    Raises:
        InvalidInput: see `read_cascade`. UpstreamUnavailable, UpstreamTimeout: there was no response to the deletion.
    """
    cascades, target = read_cascade(call.raw_target)
    parts = await _parts(call, calls)
    if target == call.raw_target:
        return Forward(response_headers={CLEANUP: _offer(parts)} if parts else {})
    reply = await calls("DELETE", target)
    headers = {}
    if cascades and reply.good:
        headers = {CLEANUP: await _clean_up(call.agent_id, parts, calls)}
    return Answer(reply.status, headers, reply.body)


async def _parts(call: ExecuteCall, calls: Calls) -> list[Made]:
    """Return what was made for the agent; nothing if the agent can't be read."""
    try:
        reply = await calls("GET", document_path("agents", call.agent_id))
    except LOST:
        return []
    return await parts_of(calls, reply.document or {}) if reply.good else []


def _offer(parts: Sequence[Made]) -> str:
    named = ", ".join(map(str, parts))
    by_hand = ", ".join(part.by_hand for part in parts)
    it = "it" if len(parts) == 1 else "them"
    return header_text(f"kept {named}; delete with ?{CASCADE}=true to remove {it}, too; by hand: {by_hand}")


async def _clean_up(agent_id: str, parts: Sequence[Made], calls: Calls) -> str:
    """Remove what was made for a deleted agent. Return a report."""
    if not parts:
        return "nothing was made for this agent"
    gone = {agent_id, *(part.id for part in parts if part.kind == "agents")}
    report = []
    for part in parts:
        users = await users_of(calls, part, gone)
        if users is None:
            report.append(f"kept {part}, as it is not known who else uses it; by hand: {part.by_hand}")
        elif users:
            user = "model" if part.kind == "model_groups" else "agent"
            report.append(f"kept {part}, used by {user} {users[0]}")
        elif left := await remove(calls, [part]):
            report.append(f"{left[0].reason}; by hand: {part.by_hand}")
        else:
            gone.add(part.id)
            report.append(f"removed {part}")
    return header_text("; ".join(report))
