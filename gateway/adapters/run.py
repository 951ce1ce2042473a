"""One run of an agent: a request to the data port, and what its answer says, event by event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct
from multidict import CIMultiDict

from gateway.adapters.agents import Profiles
from gateway.adapters.errors import AdapterError, Fault, of_answer
from gateway.codes import NOTICE_HEADER
from gateway.errors import GatewayError
from gateway.execute.run_answer import decode, read_answer
from gateway.execute.run_events import (
    MOST,
    CallArguments,
    CallEnd,
    CallStart,
    RunEnded,
    RunEvent,
    RunFailed,
    StreamReader,
    TextDelta,
    TokensUsed,
    ToolResult,
    events_of,
)
from gateway.execute.streams import google_signature
from gateway.memory.model import Usage
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.ports import SessionUse
from gateway.providers.responses import member
from gateway.proxy.data_port import DataPort
from gateway.proxy.local_client import LocalResponse, send_request
from gateway.unified.limits import SMALL_TEXT

CUT = "The agent's answer broke off before it was whole."
UNREADABLE = "The agent's answer has no text that can be read."
TOO_LONG = f"The agent's answer is longer than {MOST >> 20} MiB."
BROKEN_CALL = "The arguments of a tool call are not a JSON object: the cluster joins calls that an LLM makes at a time."


class RunInput(Struct, frozen=True):
    """What a run is asked. body: of the request to the data port. session: see `SessionUse`. address: the client's."""

    agent: AgentProfile
    body: bytes
    caller: CIMultiDict[str]
    session: SessionUse
    address: tuple[str, int] | None = None


class AgentRun:
    """A run whose answer has begun. notices: codes, as in the header of the data port's answers. Close it."""

    def __init__(self, response: LocalResponse, agent: AgentProfile) -> None:
        self._response = response
        self._agent = agent
        self.notices: Sequence[str] = tuple(filter(None, response.header(NOTICE_HEADER.lower()).split(", ")))

    async def events(self) -> AsyncIterator[RunEvent]:
        """Yield what the answer says. The last one is a `RunEnded` or a `RunFailed`, and no other one is."""
        arguments: dict[str, str] = {}
        last: RunEvent | None = None
        try:
            async for event in self._read():
                if last is not None:  # the run is stored, and counted, with the end of its stream
                    last = event if isinstance(event, RunFailed) and isinstance(last, RunEnded) else last
                    continue
                match event:
                    case CallStart():
                        arguments[event.id] = ""
                    case CallArguments():
                        arguments[event.id] = arguments.get(event.id, "") + event.text
                    case CallEnd() if not is_object(arguments.get(event.id, "")):
                        event = RunFailed("TOOL_CALL_BROKEN", BROKEN_CALL)
                if isinstance(event, RunEnded | RunFailed):
                    last = event
                else:
                    yield event
        except ConnectionResetError:
            last = last if isinstance(last, RunFailed) else None
        yield last or RunFailed("", CUT)

    async def _read(self) -> AsyncIterator[RunEvent]:
        if not self._response.header("content-type").lower().startswith("text/event-stream"):
            body = await self._response.read()
            answer = await run_here_if(len(body) <= SMALL_TEXT, read_answer, self._agent, body)
            for event in [*events_of(answer)] or [_unreadable(body)]:
                yield event
            return
        reader = StreamReader(self._agent)
        async for piece in self._response.pieces():
            for event in reader.feed(piece):
                yield event

    def close(self) -> None:
        """End the run, which is abandoned if it is not over."""
        self._response.close()


async def begin_run(port: DataPort, given: RunInput, profiles: Profiles) -> AgentRun:
    """Send the request; return the run once its answer begins. profiles: reads the agent that a route has chosen.

    Raises:
        AdapterError: it was refused, or has failed.
    """
    target = f"/_plugins/_ml/agents/{quote(given.agent.id, safe='')}/_execute/stream"
    headers = [*given.caller.items(), ("content-type", "application/json"), ("accept-encoding", "identity")]
    try:
        response = await send_request(port, "POST", target, headers, given.body, given.address, given.session)
    except ConnectionResetError:
        raise AdapterError(Fault(502, "UpstreamUnavailable", CUT, may_have_run=True)) from None
    if response.status == 200:
        return AgentRun(response, await _that_ran(response, given, profiles))
    try:
        body = await response.read()
    except ConnectionResetError:
        body = b""
    finally:
        response.close()
    raise of_answer(response.status, body, response.header("retry-after"))


async def _that_ran(response: LocalResponse, given: RunInput, profiles: Profiles) -> AgentProfile:
    """Return the agent that an answer is from: the one that was asked, or the target of its route."""
    agent_id = unquote(response.header("x-mlc-agent"))
    if not agent_id or agent_id == given.agent.id:
        return given.agent
    try:
        return await profiles.that_ran(agent_id, response.header("x-mlc-cluster"), given.caller)
    except GatewayError:
        return given.agent
    except BaseException:
        response.close()
        raise


def _unreadable(body: bytes) -> RunFailed:
    """Return the failure of a run whose whole answer has no text: the error in it, if it is one."""
    if member(decode(body), "error") is None:
        return RunFailed("", UNREADABLE)
    fault = of_answer(200, body).fault
    return RunFailed(fault.code, fault.message)


def is_object(written: str) -> bool:
    """Return True for the arguments of a call: a JSON object, or nothing."""
    return not written or isinstance(decode(written), dict)


class RunResult:
    """What a run says, event by event: its text, the calls that nobody has answered, its tokens, why it ended.

    calls: by id, as OpenAI writes a call: `function` with name and arguments, and the call's signature.
    """

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        self.usage: Usage | None = None
        self.reason = ""
        self._texts: list[str] = []
        self._size = 0

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    def take(self, event: RunEvent) -> None:
        """Take the next event.

        Raises:
            AdapterError: the run has failed, or says more than can be held.
        """
        if isinstance(event, TextDelta | CallArguments):
            self._size += len(event.text)
            if self._size > MOST:
                raise failed(RunFailed("", TOO_LONG))
        match event:
            case TextDelta():
                self._texts.append(event.text)
            case CallStart():
                function = {"name": event.name, "arguments": ""}
                self.calls[event.id] = {"function": function, **google_signature(event.signature)}
            case CallArguments():
                self.calls[event.id]["function"]["arguments"] += event.text
            case ToolResult():
                self.calls.pop(event.id, None)
            case TokensUsed():
                self.usage = event.usage
            case RunEnded():
                self.reason = event.reason
            case RunFailed():
                raise failed(event)


def failed(event: RunFailed) -> AdapterError:
    """Return the error for a run that has failed."""
    return AdapterError(Fault(502, event.code or "RunFailed", event.text or CUT, event.code, may_have_run=True))
