"""The steps of a registration. Each makes one document, searches for it if the response is lost, and can be undone."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from typing import Any

from gateway.agents.lookup import document_path
from gateway.errors import Problem, RegistrationFailed
from gateway.register.busy import made_nothing, send
from gateway.register.calls import LOST, Calls, Reply
from gateway.register.documents import TAG
from gateway.register.parts import ML, Found, Made, SearchRefused, parts_of, query_of, remove, retry_call, tagged

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
    turns: see `gateway.register.busy`.
    """

    def __init__(self, calls: Calls, tag: str, turns: asyncio.Semaphore) -> None:
        self._calls = calls
        self.turns = turns
        self.tag = tag
        self.attempt = secrets.token_hex(8)
        self.made: list[Made] = []
        self.made_by_cluster: set[Made] = set()
        """Those of `made` that the cluster made with the agent. The model of a `model` block has no tag."""

    async def make(self, kind: str, body: Mapping[str, Any]) -> Reply:
        """Make a document. Return the cluster's response, or an equivalent one if that was lost."""
        path, field = _CREATE[kind]
        body = self._mark(kind, body)
        for _ in range(_TRIES):
            try:
                reply = await send(self._calls, self.turns, "POST", f"{ML}/{path}", body)
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
