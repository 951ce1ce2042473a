"""The steps of a registration. Each makes one document, searches for it if the response is lost, and can be undone.

The deletion of an agent with all that was made for it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from gateway.agents.lookup import document_path
from gateway.errors import InvalidInput, Problem, RegistrationFailed
from gateway.execute.deliveries import TimedStep
from gateway.ports import Answer, ExecuteCall, Forward
from gateway.register.calls import LOST, Calls, Reply, made_nothing, send_write
from gateway.register.documents import TAG
from gateway.register.parts import (
    ML,
    Found,
    Made,
    SearchRefused,
    header_text,
    parts_of,
    query_of,
    remove,
    retry_call,
    tagged,
    users_of,
)

ATTEMPT_PARAMETER = "mlc_gateway_attempt"
OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"

_OVERLOADED = 429
_TRIES = 4
"""How often a step is tried on an overloaded cluster. Between two tries, a search looks for what it made."""

_CREATE = {
    "connectors": ("connectors/_create", "connector_id"),
    "model_groups": ("model_groups/_register", "model_group_id"),
    "models": ("models/_register?deploy=true", "model_id"),
    "agents": ("agents/_register", "agent_id"),
}
"""Kind → the call that makes one, and the name of the id in its response."""


class Steps:
    """The documents that one attempt of a registration has made so far, in order.

    Its methods raise `RegistrationFailed` and the errors of a lost response, with the details of the step as problems.
    turns: see `send_write`. call: the request, whose steps are noted.
    """

    def __init__(self, calls: Calls, tag: str, turns: asyncio.Semaphore, call: ExecuteCall) -> None:
        self._calls = calls
        self._call = call
        self.turns = turns
        self.tag = tag
        self.attempt = secrets.token_hex(8)
        self.made: list[Made] = []
        self.made_by_cluster: set[Made] = set()
        """Those of `made` that the cluster made with the agent. The model of a `model` block has no tag."""

    async def make(self, kind: str, body: Mapping[str, Any]) -> Reply:
        """Make a document. Return the cluster's response, or an equivalent one if that was lost."""
        with TimedStep(self._call, f"make {kind.removesuffix('s').replace('_', ' ')}"):
            return await self._make(kind, body)

    async def _make(self, kind: str, body: Mapping[str, Any]) -> Reply:
        path, field = _CREATE[kind]
        body = self._mark(kind, body)
        for _ in range(_TRIES):
            try:
                reply = await send_write(self._calls, self.turns, "POST", f"{ML}/{path}", body)
            except LOST as lost:
                if not await self._find(kind):
                    lost.problems = (*lost.problems, self._unknown(kind))
                    raise
                return self._found(field)
            # An overloaded cluster may reject a later part of what it has begun.
            if reply.status != _OVERLOADED:
                break
            if await self._find(kind):
                return self._found(field)
        if not reply.good:
            if reply.status >= 500 and not made_nothing(reply):  # it may have made something, which must be undone
                await self._find(kind)
            text = f"The cluster refused to make the {kind.removesuffix('s').replace('_', ' ')}: {reply.reason}"
            raise RegistrationFailed(text, reply.status, repeats=reply.reason)
        assert reply.document is not None
        self.made.append(Made(kind, str(reply.document[field])))
        return reply

    def _found(self, field: str) -> Reply:
        """Return the response for the document that was found last."""
        answer = {field: self.made[-1].id}
        return Reply(200, answer, json.dumps(answer).encode(), "")

    def _mark(self, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with the mark of this attempt. Two attempts of one registration have the same tag."""
        if kind == "agents":
            return {**body, "parameters": {**(body.get("parameters") or {}), ATTEMPT_PARAMETER: self.attempt}}
        if kind == "model_groups":  # two groups can't have the same name
            body = {**body, "name": f"{body['name']} {self.attempt}"}
        description = str(body.get("description") or "")
        ends = f"{TAG} {self.tag}"
        return {**body, "description": f"{description.removesuffix(ends)}attempt {self.attempt}, {ends}"}

    async def _find(self, kind: str) -> bool:
        """Search for what was made without a good response. Return True if the document was made."""
        known = {made.id for made in self.made}
        executors: list[Made] = []

        async def look() -> Made | None:
            nonlocal executors
            try:
                found = await tagged(self._calls, kind, self.tag)
            except SearchRefused:
                return None
            mine = [one for one in found if one.made.id not in known and self._is_mine(one)]
            executors = [one.made for one in mine if one.is_executor]
            return next((one.made for one in mine if not one.is_executor), None)

        made = await self._calls.until(look)
        self.made += [*executors, *([made] if made else [])]
        return made is not None

    def _is_mine(self, found: Found) -> bool:
        if found.made.kind == "agents":
            return found.parameters.get(ATTEMPT_PARAMETER) == self.attempt
        return f"attempt {self.attempt}" in str(found.source.get("description"))

    def _unknown(self, kind: str) -> Problem:
        call = f"POST {ML}/{kind}/_search {json.dumps(query_of(kind, self.tag))}"
        what = kind.removesuffix("s")
        reason = (
            f"the cluster did not answer the request to create the {what}, and no search finds one: it may still appear"
        )
        return Problem(
            "",
            reason,
            code=OUTCOME_UNKNOWN,
            help=f"Search for it with {call}, or send the registration again: the gateway then finds it.",
        )

    async def undo(self) -> list[Problem]:
        """Remove what was made, last first. Return a problem for each document that remains."""
        if not self.made:
            return []
        with TimedStep(self._call, "undo"):
            return await remove(self._calls, reversed(self.made))


async def note_parts(calls: Calls, steps: Steps) -> bool:
    """Add to `steps.made` what the cluster made with the agent: a planner's executor, the model of a `model` block.

    Return False if the agent could not be read.
    """
    agent = steps.made[-1]
    shown = await retry_call(calls, "GET", document_path("agents", agent.id))
    if isinstance(shown, Reply) and shown.good and shown.document is not None:
        known = {one.id for one in steps.made}
        parts = [part for part in await parts_of(calls, shown.document) if part.id not in known]
        steps.made[-1:-1] = reversed(parts)
        steps.made_by_cluster.update(parts)
        return True
    return False


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
