"""Shows requests and answers to guardrails, and writes what these change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from gateway.agents.resolver import ResolvedAgent
from gateway.errors import GuardrailUnavailable, InvalidInput
from gateway.execute.body import is_json, replace_members
from gateway.execute.deliveries import model_name
from gateway.execute.run_answer import decode
from gateway.mlcommons.query import read_async
from gateway.notices import Notice
from gateway.offload import run_here_if
from gateway.policy.content import NoContent, answer_content, input_content, write_changes
from gateway.policy.guardrails import AgentGuardrails, Checks
from gateway.ports import ExecuteCall
from gateway.unified.budget import Budget, is_small
from gateway.unified.request import ExecuteRequest, read_execute

_SMALL = 64 * 1024


class GuardedCall:
    """A request to run an agent, and its answer, under the agent's guardrails.

    agent: None if it can't be read. roles: the operator's table (`agents.roles`).
    """

    def __init__(
        self,
        guardrails: AgentGuardrails,
        call: ExecuteCall,
        agent: ResolvedAgent | None,
        budget: Budget,
        roles: Mapping[str, str],
    ) -> None:
        self._guardrails = guardrails
        self._call = call
        self._budget = budget
        self._roles = roles
        self._about = _about(call, agent)

    async def check_input(self) -> tuple[ExecuteCall, tuple[Notice, ...]]:
        """Return the call as the guardrails changed it, with a notice for each change.

        Raises:
            GuardrailRefused, GuardrailUnavailable: see `AgentGuardrails.check`.
            InvalidInput, BodyTooLarge: the body breaks a rule.
        """
        call, guardrails = self._call, self._guardrails
        if call.streaming or read_async(call.raw_target) != "false":
            guardrails.require_whole_answer()
        if not is_json(call.headers.get("Content-Type", "")):
            guardrails.report_unchecked("input", "the body is not JSON")
            return call, ()
        request = await run_here_if(is_small(call.body), read_execute, call.body, self._budget, self._roles)
        try:
            content = input_content(request)
        except NoContent as error:
            guardrails.report_unchecked("input", str(error))
            return call, ()
        notices = await guardrails.check("input", self._about, content)
        if not content.changes:
            return call, ()
        body = await run_here_if(request.is_small, _changed_body, request, content.changes)
        return replace(call, body=body), notices

    @property
    def checks(self) -> Checks:
        """What the guardrails did."""
        return self._guardrails.checks

    @property
    def checks_answers(self) -> bool:
        """True if a guardrail checks the answer, too."""
        return self._guardrails.checks_answers

    async def check_answer(self, body: bytes) -> tuple[bytes, tuple[Notice, ...]]:
        """Return the answer's body as the guardrails changed it, with a notice for each change.

        Raises:
            GuardrailRefused, GuardrailUnavailable: see `AgentGuardrails.check`.
        """
        document = await run_here_if(len(body) <= _SMALL, decode, body)
        try:
            content = answer_content(document)
        except NoContent as error:
            self._guardrails.report_unchecked("answer", str(error))
            return body, ()
        notices = await self._guardrails.check("answer", self._about, content)
        if not content.changes:
            return body, ()
        return msgspec.json.encode(write_changes(document, content.changes)), notices

    def report_unread(self) -> None:
        """Report an answer that is too large to hold, or can't be decoded; see `gateway.ports.Forward`.

        Raises:
            GuardrailUnavailable: failures of a guardrail refuse the request.
        """
        try:
            self._guardrails.report_unchecked("answer", "the answer is too large, or can't be decoded")
        except GuardrailUnavailable:
            raise GuardrailUnavailable(
                "The answer of the agent is too large, or can't be decoded, for the guardrails that check it",
                help="Ask for a shorter answer. The operator chooses with policy.guardrails[] if answers are checked "
                "(answers), and if they pass where that is not possible (on_failure).",
            ) from None


def _about(call: ExecuteCall, agent: ResolvedAgent | None) -> dict[str, Any]:
    about = {"id": call.agent_id, "name": "", "type": "", "provider": "", "model": ""}
    if agent is not None:
        known = agent.profile
        about |= {"name": known.name, "type": known.type, "provider": known.provider, "model": model_name(known)}
    return {"request_id": call.request_id, "agent": about}


def _changed_body(request: ExecuteRequest, changes: dict[str, str]) -> bytes:
    """Return the client's body with new texts. All other values keep their meaning; long strings keep their bytes."""
    document = json.loads(request.extracted.text)
    if any(token in text for text in changes.values() for token in request.extracted.blobs):
        raise InvalidInput("A guardrail's text holds a name that the gateway uses for a payload of this request")
    return b"".join(replace_members(request.extracted, write_changes(document, changes)))
