"""The steps of a registration: each makes one document, is looked for when its answer is lost, and can be undone."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from gateway.agents.lookup import document_path
from gateway.errors import Problem, RegistrationFailed
from gateway.register.calls import LOST, Calls, Reply
from gateway.register.documents import TAG
from gateway.register.parts import ML, Found, Made, SearchRefused, insisted, parts_of, query_of, remove, tagged

ATTEMPT_PARAMETER = "mlc_gateway_attempt"
OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"

_CREATE = {
    "connectors": ("connectors/_create", "connector_id"),
    "models": ("models/_register?deploy=true", "model_id"),
    "agents": ("agents/_register", "agent_id"),
}
"""Kind → the call that makes one, and what its answer calls the id."""


class Steps:
    """What one attempt of a registration has made so far, in order.

    Raised by what it does: `RegistrationFailed` and the errors of a lost answer, with what is to be known about the
    step as their problems.
    """

    def __init__(self, calls: Calls, tag: str) -> None:
        self._calls = calls
        self.tag = tag
        self.attempt = secrets.token_hex(8)
        self.made: list[Made] = []
        self.made_by_cluster: set[Made] = set()
        """Those of `made` that came along with the agent; no tag is in the model of a `model` block."""

    async def make(self, kind: str, body: Mapping[str, Any]) -> Reply:
        """Make a document; the cluster's answer, or what it would have been where that was lost."""
        path, field = _CREATE[kind]
        body = self._marked(kind, body)
        try:
            reply = await self._calls("POST", f"{ML}/{path}", body)
        except LOST as lost:
            if not await self._found(kind):
                lost.problems = (*lost.problems, self._unknown(kind))
                raise
            answer = {field: self.made[-1].id}
            return Reply(200, answer, json.dumps(answer).encode(), "")
        if not reply.good:
            if reply.status >= 500:  # it may have got half way; what it made is to be undone
                await self._found(kind)
            said = f"The cluster refused to make the {kind.removesuffix('s')}: {reply.reason}"
            raise RegistrationFailed(said, reply.status, repeats=reply.reason)
        assert reply.document is not None
        self.made.append(Made(kind, str(reply.document[field])))
        return reply

    def _marked(self, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with a mark of this attempt's own: two attempts of one registration share its tag."""
        if kind == "agents":
            return {**body, "parameters": {**(body.get("parameters") or {}), ATTEMPT_PARAMETER: self.attempt}}
        description = str(body.get("description") or "")
        ends = f"{TAG} {self.tag}"
        return {**body, "description": f"{description.removesuffix(ends)}attempt {self.attempt}, {ends}"}

    async def _found(self, kind: str) -> bool:
        """Look for what was made though no good answer came; whether there is what was to be made."""
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
        reason = f"no answer came when the {what} was to be made, and no search shows one: it may still turn up"
        return Problem("", reason, code=OUTCOME_UNKNOWN, help=f"{call} shows it; a registration sent again finds it.")

    async def undo(self) -> list[Problem]:
        """Remove what was made, last first; what is left."""
        return await remove(self._calls, reversed(self.made))


async def note_parts(calls: Calls, steps: Steps) -> None:
    """Count as made what the cluster made along with the agent: a planner's executor, the model of a `model` block."""
    agent = steps.made[-1]
    shown = await insisted(calls, "GET", document_path("agents", agent.id))
    if isinstance(shown, Reply) and shown.document is not None:
        known = {one.id for one in steps.made}
        parts = [part for part in await parts_of(calls, shown.document) if part.id not in known]
        steps.made[-1:-1] = reversed(parts)
        steps.made_by_cluster.update(parts)
