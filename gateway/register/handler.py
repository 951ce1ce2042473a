"""The use cases that register, update and delete agents. The gateway does what the cluster can't do itself."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.agents.lookup import Credentials, FailedLookup
from gateway.codes import Notice
from gateway.config.schema import Settings
from gateway.errors import GatewayError, InvalidInput, Problem, RegistrationFailed, SignatureConflict
from gateway.execute.body import is_json
from gateway.execute.build import service_headers
from gateway.execute.deliveries import NOTICE, end_step
from gateway.observe.logs import Logger, describe_problems
from gateway.observe.metrics import Metrics
from gateway.offload import run_here_if
from gateway.ports import Answer, ClusterReader, ExecuteCall, ExecuteHandler, Forward, ProfileCache
from gateway.providers import registry
from gateway.providers.connector import ModelSpec
from gateway.register.calls import AT_ONCE, Calls, retry_busy
from gateway.register.documents import (
    answers_unified,
    as_native,
    keeps_sessions,
    made_members,
    marks,
    memory_changed,
    native_notices,
    needs_placeholder,
    wants_model,
)
from gateway.register.making import finish_other, make_agent, read_target, secrets_of
from gateway.register.parts import LEFT_BEHIND, left_text
from gateway.register.quick import QuickRun, check_query, parts_of
from gateway.register.registration import concerns_gateway, read_newer, read_registration, read_without_parts
from gateway.register.reuse import BODY_PARAMETER, KEY, Identity, Reuse, identify
from gateway.register.steps import CLEANUP, Steps, delete_agent, read_cascade
from gateway.register.target import FLOWS, Registration, Target, check, makes_model, takes
from gateway.unified.limits import ParseLimits, is_small

_KEY_LENGTH = 256
_Read = TypeVar("_Read")

_REUSED = Notice("REGISTRATION_REUSED", "an earlier, equal registration made this agent")
_UNCHECKED = Notice(
    "REUSE_NOT_CHECKED", "it could not be checked whether an equal registration made an agent before: the search failed"
)
_LEFT = Notice(LEFT_BEHIND, "documents that are not needed could not be removed")


class Manager:
    """See `gateway.ports.ManageHandler`."""

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterReader,
        execute: ExecuteHandler,
        profiles: ProfileCache,
        log: Logger,
        metrics: Metrics,
    ) -> None:
        self._settings = settings.registration
        self._payloads = settings.logs.payloads
        self._answers = settings.answers
        self._run_seconds = settings.upstream.timeouts.execute
        self._cluster = cluster
        self._execute = execute
        self._profiles = profiles
        self._log = log
        self._metrics = metrics
        self._credentials = Credentials()
        self._service_headers = service_headers(settings)
        self._shared_tasks = SharedTasks()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._limits = ParseLimits.from_limits(settings.limits)

    async def register(self, call: ExecuteCall) -> Forward | Answer:
        """Forward a registration that the cluster accepts; otherwise make model and agent with several calls.

        Raises:
            GatewayError: the registration is invalid, not supported by this cluster, or failed.
        """
        if not is_json(call.headers.get("Content-Type", "")):
            return Forward()
        registration = await self._read(_read_concerned, call.body)
        if registration is None:
            return await self._register_without_parts(call)
        target = await self._target(call, registration)
        if target is None:
            return Forward()
        if takes(target, registration):
            return self._forward(call, registration, target)
        self._refuse_signed(call)
        check(registration, target)
        return await self._make(call, registration, target)

    async def _register_without_parts(self, call: ExecuteCall) -> Forward | Answer:
        """Make an agent whose sessions the gateway keeps, as the cluster can't; forward any other registration."""
        asked = await self._read(read_newer, call.body)
        if asked is None or call.signed:
            return Forward()
        try:
            target = await self._target(call, asked)
        except FailedLookup:
            return Forward()
        if target is None or not marks(asked, target):
            return Forward()
        registration = await self._read(read_without_parts, call.body)
        assert registration is not None
        check(registration, target)
        return await self._make(call, registration, target)

    async def _read(self, reader: Callable[[bytes, ParseLimits], _Read], body: bytes) -> _Read:
        """Apply a reader to a body, on the reading thread if it is large."""
        return await run_here_if(is_small(body), reader, body, self._limits)

    def _forward(self, call: ExecuteCall, registration: Registration, target: Target) -> Forward:
        """Forward a registration that the cluster accepts, with the edits of `as_native`."""
        if call.signed:
            if registration.type_given.lower() != registration.type:
                self._refuse_signed(call)
            return Forward()  # without the edits that the agent would profit from
        body = as_native(call.body, registration, target)
        headers = self._notice_headers(notices(registration, target))
        calls = self._calls(call, registration)
        retry = retry_busy(calls, self._turns, call.raw_target, call.body if body is None else body, headers)
        return Forward(None if body is None else [body], headers, retry)

    async def _make(self, call: ExecuteCall, registration: Registration, target: Target) -> Answer:
        if len(call.headers.getall(KEY, ())) > 1 or len(call.headers.get(KEY, "")) > _KEY_LENGTH:
            raise InvalidInput.of([Problem(KEY, "must be one header", f"at most {_KEY_LENGTH} characters")])
        identity = await asyncio.to_thread(identify, call.headers, call.body)

        def begin() -> Coroutine[Any, Any, Answer]:
            return self._attempt(call, registration, target, identity)

        return await self._shared_tasks.share(identity, begin)

    async def _attempt(
        self, call: ExecuteCall, registration: Registration, target: Target, identity: Identity
    ) -> Answer:
        """Find the existing agent or make it. If that fails, everything that was made is removed."""
        calls = self._calls(call, registration)
        reuse = Reuse(calls, identity, self._settings.retry_window)
        changes = notices(registration, target)
        found = await reuse.existing()
        end_step(call, "look up")
        if found is not None:
            await finish_other(calls, self._turns, registration, target, found)
            self._count("reused", ())
            return self._answer(found, (*changes, _REUSED))
        steps = Steps(calls, identity.tag, self._turns, call)
        try:
            try:
                reply = await make_agent(calls, steps, registration, target, {BODY_PARAMETER: identity.digest})
                settled = await reuse.settle(steps)
            except RegistrationFailed as failed:
                settled = await reuse.superseded(steps, failed)
            if not settled.own:
                await finish_other(calls, self._turns, registration, target, settled.agent_id)
            end_step(call, "finish")
        except asyncio.CancelledError:
            self._log.error("registration cut short", made=[str(one) for one in steps.made], tag=identity.tag)
            raise
        except Exception as error:
            self._note_failure(error, await steps.undo())
            raise
        left = settled.left
        extra = [] if settled.own else [_REUSED]
        extra += [] if settled.checked else [_UNCHECKED]
        extra += [_LEFT] if left else []
        self._count("made" if settled.own else "reused", left)
        return self._answer(settled.agent_id, (*changes, *extra), reply.body if settled.own else b"", left)

    def _note_failure(self, error: BaseException, left: Sequence[Problem]) -> None:
        """Count and log a failure, and add `left`, the problems with removals, to those of `error`."""
        self._count("failed", left)
        if left:
            self._log.error("left behind", problems=describe_problems(left, self._payloads))
        if isinstance(error, GatewayError):
            error.problems = (*error.problems, *left)
            error.hint = error.hint or next((problem.help for problem in error.problems if problem.help), "")

    def _count(self, outcome: str, left: Sequence[Problem]) -> None:
        self._metrics.registration(outcome)
        for problem in left:
            self._metrics.notice(problem.code)

    def _answer(
        self, agent_id: str, notices: Sequence[Notice], body: bytes = b"", left: Sequence[Problem] = ()
    ) -> Answer:
        headers = dict(self._notice_headers(notices))
        if left:
            headers[CLEANUP] = left_text(left)
        return Answer(200, headers, body or json.dumps({"agent_id": agent_id}).encode())

    def _notice_headers(self, notices: Sequence[Notice]) -> dict[str, str]:
        for notice in notices:
            self._metrics.notice(notice.code)
        codes = ", ".join(dict.fromkeys(notice.code for notice in notices))
        return {NOTICE: codes} if codes and self._answers.notice_header else {}

    async def quick_execute(self, call: ExecuteCall) -> Forward | Answer:
        """Make an agent for this run, run it, and remove it.

        Raises:
            GatewayError: as `register`, or from the run.
        """
        if not is_json(call.headers.get("Content-Type", "")):
            return Forward()
        parts = await self._read(parts_of, call.body)
        if parts is None:
            return Forward()
        self._refuse_signed(call)
        check_query(call.raw_target)
        registration = await self._read(read_registration, parts[0])
        if registration is None:  # `model` is null
            return Forward()
        target = await self._target(call, registration)
        if target is None:
            return Forward()
        # The gateway always makes it itself, so that it knows what to remove.
        target = replace(target, unified_api=False, keeps_sessions=False)
        check(registration, target)
        run = QuickRun(self._calls(call, registration), self._execute, call, self._run_seconds, self._turns)
        task = self._shared_tasks.start(self._quick(run, registration, target, parts[1]))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            run.leave()
            raise

    async def _quick(self, run: QuickRun, registration: Registration, target: Target, body: bytes) -> Answer:
        try:
            answer = await run(registration, target, body)
        except BaseException as error:
            self._note_failure(error, run.left)
            raise
        self._count("quick", run.left)
        own = self._notice_headers(notices(registration, target))
        codes = ", ".join(filter(None, (answer.headers.get(NOTICE, ""), own.get(NOTICE, ""))))
        return replace(answer, headers={**answer.headers, **({NOTICE: codes} if codes else {})})

    async def update_agent(self, call: ExecuteCall) -> Forward:
        """Forward the request. If the cluster can't update agents, add an explanation to its refusal."""
        return Forward(retry=explain_refusal)

    async def delete_agent(self, call: ExecuteCall) -> Forward | Answer:
        """See `gateway.register.steps.delete_agent`.

        Raises:
            GatewayError: as there.
        """
        if call.signed:
            if read_cascade(call.raw_target)[1] != call.raw_target:
                self._refuse_signed(call)
            return Forward()
        return await asyncio.shield(self._shared_tasks.start(self._delete(call)))

    async def _delete(self, call: ExecuteCall) -> Forward | Answer:
        try:
            return await delete_agent(call, self._calls(call))
        finally:
            self._profiles.invalidate("agents", call.agent_id)

    async def ended(self) -> None:
        """See `gateway.ports.ManageHandler`."""
        await self._shared_tasks.ended()

    def _calls(self, call: ExecuteCall, registration: Registration | None = None) -> Calls:
        secrets = () if registration is None else tuple(secrets_of(registration))
        return self._calls_with(self._credentials.of(call.headers), secrets)

    def _calls_with(self, headers: Mapping[str, str], secrets: Sequence[Any] = ()) -> Calls:
        return Calls(self._cluster, headers, self._settings.timeout, self._settings.visible_within, secrets)

    async def _target(self, call: ExecuteCall, registration: Registration) -> Target | None:
        """Read what the cluster supports; None if it responds to the caller with 401, which the client then gets."""
        calls = self._calls(call)
        if self._service_headers is not None:
            calls = self._calls_with(self._service_headers)
        else:
            self._refuse_signed(call)
        try:
            return replace(await read_target(calls), has_container=not registration.lacks_container)
        except FailedLookup as failed:
            if failed.cluster_status == 401 and self._service_headers is None:
                return None
            raise

    def _refuse_signed(self, call: ExecuteCall) -> None:
        if call.signed:
            raise SignatureConflict(
                "The request is signed with SigV4. The gateway has to make calls of its own for it, and the signature "
                "would not hold for those.",
                help="Let the gateway sign (`upstream.auth.mode: sigv4`) and send the request to it unsigned.",
            )


def _read_concerned(body: bytes, limits: ParseLimits) -> Registration | None:
    return read_registration(body, limits) if concerns_gateway(body, limits) else None


def notices(registration: Registration, target: Target) -> tuple[Notice, ...]:
    """Return the notices about differences between the registration and the agent that is made."""
    return tuple(_notices(registration, target))


def _notices(registration: Registration, target: Target) -> Iterator[Notice]:
    spec = registration.model
    if spec is not None and not makes_model(target, registration):
        yield from native_notices(registration)
        return
    members = made_members(registration, target)
    yield from _of_type(registration, target, members)
    yield from _of_memory(registration, target, members)
    yield from _of_tools(registration, target, members)
    if spec is not None:
        yield from _of_model(spec, members)


_NO_CONTAINER = "the memory names no container (memory_container_id), which the cluster requires in each run"


def _of_type(registration: Registration, target: Target, members: Mapping[str, Any]) -> Iterator[Notice]:
    if members["type"] != registration.type:
        missing = f"the cluster has no {registration.type} agents"
        reason = f"{missing if target.has_container else _NO_CONTAINER}: this one is {members['type']}"
        yield Notice("V2_AS_LEGACY", f"{reason}, and the gateway answers for it in the unified form", "type")


def _of_memory(registration: Registration, target: Target, members: Mapping[str, Any]) -> Iterator[Notice]:
    document = registration.document
    if keeps_sessions(registration, target):
        missing = f"{registration.type} agents" if answers_unified(registration, target) else registration.memory_type
        reason = f"the cluster has no {missing}" if target.has_container else _NO_CONTAINER
        reason += ", so the gateway keeps this agent's sessions"
        yield Notice("GATEWAY_MEMORY", reason, "memory")
    elif memory_changed(document.get("memory") or {}, members.get("memory")):
        reason = f"the cluster has no {registration.memory_type}" if target.has_container else _NO_CONTAINER
        reason += ", so this agent has a conversation_index"
        yield Notice("MEMORY_AS_CONVERSATION_INDEX", reason, "memory")
    for name in ("app_type", "memory"):
        if "app_type" in members and name not in document:
            reason = f"a conversational_flow remembers only with `app_type` and `memory`, so `{name}` was set"
            yield Notice("FLOW_MEMORY_SET", reason, name)


def _of_tools(registration: Registration, target: Target, members: Mapping[str, Any]) -> Iterator[Notice]:
    for index, (tool, made) in enumerate(
        zip(registration.document.get("tools") or (), members.get("tools") or (), strict=False)
    ):
        if tool["type"] != made["type"]:
            reason = f"{tool['type']} is called {made['type']} on this cluster"
            yield Notice("TOOL_RENAMED", reason, f"tools[{index}].type")
    if needs_placeholder(registration, target):
        reason = "this agent can't run without a tool, so it has one that does nothing, called none"
        yield Notice("PLACEHOLDER_TOOL", reason, "tools")


def _of_model(spec: ModelSpec, members: Mapping[str, Any]) -> Iterator[Notice]:
    if members["type"] in FLOWS and not any(map(wants_model, members["tools"])):
        reason = "no tool of the flow ran the model, so an MLModelTool was added at its end; its prompt is the question"
        yield Notice("FLOW_MODEL_TOOL", reason, "tools")
    for name in registry.connectors()[spec.provider].left_out(spec):
        reason = f"{name} is not sent: the model does not take it beside the other parameters given"
        yield Notice("SAMPLING_LEFT_OUT", reason, f"model.model_parameters.{name}")


_ALLOWED = re.compile(r"allowed: \[([A-Z, ]+)\]")
_IMMUTABLE = (
    "Agents of this version can't be changed. Register the changed agent as a new one and, so that clients keep their "
    "id, make it the target of a route in the gateway's settings (agents.routes)."
)


def explain_refusal(status: int, body: bytes) -> Answer | None:
    """Return the cluster's refusal to update an agent with an alternative; None for any other response."""
    if status != 405:
        return None
    try:
        document = json.loads(body)
        reason = document["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(reason, str):
        return None
    allowed = _ALLOWED.search(reason)
    document["error"] = f"{reason}. {_IMMUTABLE}"
    return Answer(405, {"Allow": allowed[1]} if allowed else {}, msgspec.json.encode(document))


T = TypeVar("T")


class SharedTasks:
    """Running tasks, for use on one event loop."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task. Shield it when you await it."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    async def share(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the running task for `key`; start one if there is none."""
        task = self._shared.get(key)
        if task is None:
            task = self._shared[key] = self.start(begin())
            task.add_done_callback(lambda _: self._shared.pop(key, None))
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it if nobody is waiting

    async def ended(self) -> None:
        """Wait until no task is running. If this is cancelled, so are the tasks."""
        try:
            while self._running:
                await asyncio.wait(self._running)
        except asyncio.CancelledError:
            late = list(self._running)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            raise
