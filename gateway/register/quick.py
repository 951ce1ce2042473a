"""Runs an agent that is not registered: makes it, runs it once, and removes it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.agents.lookup import document_path
from gateway.errors import InvalidInput, Problem
from gateway.execute.body import read_async
from gateway.execute.deliveries import TimedStep, note_delivery
from gateway.ports import Answer, ExecuteCall, ExecuteHandler, Forward
from gateway.register.calls import Calls
from gateway.register.making import make_agent
from gateway.register.parts import left_text
from gateway.register.steps import CLEANUP, Steps
from gateway.register.target import Registration, Target
from gateway.unified.jsonstrings import find
from gateway.unified.jsontext import count_values
from gateway.unified.limits import ParseLimits, too_many_values
from gateway.unified.payloads import extract, insert

QUICK_PARAMETER = "mlc_gateway_quick"
"""Marks the agent of a quick run, so that one that was left behind can be recognised."""

_LONGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of the run's answer, which is held whole like any answer that is changed."""
_RUN = ("input", "parameters")
"""Members of the body for the run; all others are for the agent."""

Members = Mapping[str, msgspec.Raw]


def parts_of(body: bytes, limits: ParseLimits | None = None) -> tuple[bytes, bytes] | None:
    """Split a quick run's body into registration and execute body; None if `model` or `input` is missing.

    limits: the default ones if it is None.

    Raises:
        InvalidInput, BodyTooLarge: reading it costs more than the limits allow.
    """
    if find(body, b'"model"') < 0 and find(body, b"\\u") < 0:
        return None
    extracted = extract(body, limits=limits)
    most = extracted.limits.values
    if count_values(extracted.text, most) > most:
        raise too_many_values(most)
    try:
        members = msgspec.json.decode(extracted.text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
    if "model" not in members or "input" not in members:
        return None
    run = {name: members[name] for name in _RUN if name in members}
    agent = {name: value for name, value in members.items() if name not in _RUN}
    if bytes(agent.get("name", b"null")) == b"null":
        agent["name"] = msgspec.Raw(b'"quick execute"')
    written, blobs = map(msgspec.json.encode, (agent, run)), extracted.blobs
    registration, execute_body = (b"".join(insert(text, blobs)) for text in written)
    return registration, execute_body


def check_query(raw_target: str) -> None:
    """Refuse options that are impossible for an agent that is removed after its run.

    Raises:
        InvalidInput: it would run in the background.
    """
    if read_async(raw_target) != "false":
        raise InvalidInput.of(
            [Problem("?async", "an agent that is removed after its run can't run in the background", "false", "true")]
        )


class QuickRun:
    """One run. After `leave` it only cleans up. left: a problem for each document that could not be removed."""

    def __init__(
        self, calls: Calls, execute: ExecuteHandler, call: ExecuteCall, seconds: float, turns: asyncio.Semaphore
    ) -> None:
        self._calls = calls
        self._turns = turns
        self._execute = execute
        self._call = call
        self._seconds = seconds
        self.left: list[Problem] = []
        self._gone = False
        self._run: asyncio.Task[Answer] | None = None

    def leave(self) -> None:
        """Cancel the run, because the client has disconnected."""
        self._gone = True
        if self._run is not None:
            self._run.cancel()

    async def __call__(self, registration: Registration, target: Target, body: bytes) -> Answer:
        """Make the agent, run it with `body`, and remove it. A header of the response lists what could not be removed.

        Raises:
            GatewayError: from the steps (see `make_agent`) or the run (see `ExecuteHandler`).
        """
        steps = Steps(self._calls, secrets.token_hex(16), self._turns, self._call)
        try:
            made = await make_agent(self._calls, steps, registration, target, {QUICK_PARAMETER: "true"})
            with TimedStep(self._call, "run"):
                answer = await self._run_agent(str((made.document or {})["agent_id"]), body)
        finally:
            self.left = await steps.undo()
        if not self.left:
            return answer
        return replace(answer, headers={**answer.headers, CLEANUP: left_text(self.left)})

    async def _run_agent(self, agent_id: str, body: bytes) -> Answer:
        if self._gone:
            raise asyncio.CancelledError
        self._run = asyncio.create_task(self._run_once(agent_id, body))
        return await self._run

    async def _run_once(self, agent_id: str, body: bytes) -> Answer:
        query = self._call.raw_target.partition("?")[2]
        target = document_path("agents", agent_id, "/_execute" + (f"?{query}" if query else ""))
        call = replace(self._call, agent_id=agent_id, raw_target=target, body=body, temporary=True)
        forward = await self._execute(call)
        if forward.delivery is not None:
            note_delivery(self._call, forward.delivery)
        reply = Answer(0, {}, b"")
        try:
            reply = await self._send(target, forward, body)
            return await self._answer(target, forward, body, reply)
        finally:
            forward.abandon()
            for stage in forward.stages:
                left = stage.report(reply.status, reply.body) if stage.reports else None
                if left is not None:
                    await left

    async def _answer(self, target: str, forward: Forward, body: bytes, reply: Answer) -> Answer:
        if reply.status >= 400 and forward.retry is not None:
            again = forward.retry(reply.status, reply.body)
            if isinstance(again, Awaitable):
                again = await again
            if isinstance(again, Answer):
                return again
            if again is not None:
                forward, reply = again, await self._send(target, again, body)
        finished = await forward.finish(reply)
        return replace(finished, headers={**forward.response_headers, **finished.headers})

    async def _send(self, target: str, forward: Forward, body: bytes) -> Answer:
        pieces: Any = forward.body if forward.body is not None else [body]
        reply = await self._calls("POST", target, pieces, seconds=self._seconds, most=_LONGEST_ANSWER)
        return Answer(reply.status, {}, reply.body)
