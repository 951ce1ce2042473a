"""Pairs tool calls with their results, and gives both the same id.

A result answers a call of the assistant's turn right before it [I, all providers]. Ids are compared as the client
wrote them; then call and result get an id that the provider accepts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from itertools import groupby, islice

import msgspec

from gateway.providers.capabilities import Capabilities, Role
from gateway.providers.values import Findings
from gateway.unified.model import ContentBlock, ToolResult, ToolUse

_SHOWN = 80  # characters of an id shown in a problem; each unmatched result names several ids


class Turn(msgspec.Struct, frozen=True):
    """A message with a standard role.

    answers: the results of an assistant turn's calls. The turns after it hold them too.
    """

    role: Role
    content: tuple[ContentBlock, ...]
    at: str
    answers: tuple[ToolResult, ...] = ()

    @property
    def others(self) -> tuple[ContentBlock, ...]:
        """Return the blocks that are neither tool calls nor tool results."""
        return tuple(block for block in self.content if not isinstance(block, ToolUse | ToolResult))


def role_runs(turns: Iterable[Turn]) -> list[list[Turn]]:
    """Group consecutive turns: those of the assistant, and those of everyone else."""
    return [list(run) for _, run in groupby(turns, key=lambda turn: turn.role == "assistant")]


def run_content(run: Iterable[Turn]) -> list[ContentBlock]:
    """Return the blocks of a run: tool results first, tool calls last, everything else in the client's order."""
    ranks: dict[type[ContentBlock], int] = {ToolResult: 0, ToolUse: 2}
    return sorted((block for turn in run for block in turn.content), key=lambda block: ranks.get(type(block), 1))


class _Calls(msgspec.Struct):
    """The calls of a run that have no result yet, by the client's id; each list in the calls' order."""

    open: dict[str, deque[ToolUse]] = msgspec.field(default_factory=dict)

    def take(self, result: ToolResult) -> ToolUse | None:
        """Remove and return the first call with the result's id; calls without ids are matched by name, then order."""
        waiting = self.open.get(result.id, deque())
        call = next((use for use in waiting if result.id or result.name in ("", use.name)), None)
        if call is not None:
            waiting.remove(call)
            if not waiting:
                del self.open[result.id]
        return call


class _Ids(msgspec.Struct):
    """Gives every call the id that the provider gets.

    unchanged: given ids that are valid, so that no other call gets them.
    """

    limits: Capabilities
    findings: Findings
    unchanged: frozenset[str]
    used: set[str] = msgspec.field(default_factory=set)
    copies: dict[str, int] = msgspec.field(default_factory=dict)
    count: int = 0

    def next(self, use: ToolUse) -> str:
        self.count += 1
        clean = _clean(use.id, self.limits)
        wanted = clean or f"call_{self.count}"
        new = wanted if self._free(wanted, use.id) else self._vary(wanted)
        self.used.add(new)
        if not use.id:
            self.findings.note("TOOL_ID_ADDED", use.at, f"The tool call had no id and is sent as {new!r}")
        elif new != use.id:
            self.findings.note("TOOL_ID_CLEANED", use.at, f"The tool call's id is sent as {new!r}")
        return new

    def forget(self) -> None:
        """Allow ids to be used again."""
        self.used.clear()
        self.copies.clear()

    def _free(self, wanted: str, given: str) -> bool:
        return wanted not in self.used and (wanted == given or wanted not in self.unchanged)

    def _vary(self, wanted: str) -> str:
        while True:
            copy = self.copies[wanted] = self.copies.get(wanted, 1) + 1
            suffix = f"-{copy}"
            new = wanted[: self.limits.tool_id_length - len(suffix)] + suffix
            if self._free(new, ""):
                return new


def _clean(given: str, limits: Capabilities) -> str:
    if not limits.tool_id_characters:
        return given
    return re.sub(f"[^{limits.tool_id_characters}]", "_", given)[: limits.tool_id_length]


def pair_tool_calls(turns: list[Turn], limits: Capabilities, findings: Findings) -> list[Turn]:
    """Return the turns with final ids in calls and results, the call's name in each result, and `answers` filled.

    Only the last turn of a run may hold calls, right before their results. Where the provider does not join turns of
    one role, a run with earlier calls becomes one turn. A call without a result is refused, and so is a result without
    a call.
    """
    given = [block.id for turn in turns for block in turn.content if isinstance(block, ToolUse)]
    unchanged = frozenset(id for id in given if _clean(id, limits) == id)
    ids = _Ids(limits, findings, unchanged)
    done: list[Turn] = []
    calls = _Calls()
    for run in role_runs(turns):
        if run[0].role == "assistant":
            if not limits.unique_tool_ids:
                ids.forget()
            calls = _Calls()
            _note_moved_calls(run, limits, findings)
            joined = run if limits.merges_turns else _joined(run, findings)
            done += [_with_call_ids(turn, ids, calls) for turn in joined]
        else:
            answers: list[ToolResult] = []
            answered = [_with_result_ids(turn, calls, answers, findings) for turn in run]
            if answers:
                done[-1] = msgspec.structs.replace(done[-1], answers=tuple(answers))
            done += answered
            _note_moved_results(run, findings)
            _refuse_unanswered(calls, findings)
            calls = _Calls()
    _refuse_unanswered(calls, findings)
    return done


def _joined(run: list[Turn], findings: Findings) -> list[Turn]:
    if not any(isinstance(block, ToolUse) for turn in run[:-1] for block in turn.content):
        return run
    findings.note("TURNS_JOINED", run[1].at, "The assistant's turns are joined: a tool call's result must follow it")
    return [msgspec.structs.replace(run[0], content=tuple(block for turn in run for block in turn.content))]


def _with_call_ids(turn: Turn, ids: _Ids, calls: _Calls) -> Turn:
    content: list[ContentBlock] = []
    for block in turn.content:
        if isinstance(block, ToolUse):
            given, block = block.id, msgspec.structs.replace(block, id=ids.next(block))
            calls.open.setdefault(given, deque()).append(block)
        content.append(block)
    return msgspec.structs.replace(turn, content=tuple(content))


def _with_result_ids(turn: Turn, calls: _Calls, answers: list[ToolResult], findings: Findings) -> Turn:
    content: list[ContentBlock] = []
    for block in turn.content:
        if isinstance(block, ToolResult):
            call = calls.take(block)
            if call is None:
                _refuse_unmatched(block, calls, findings)
            else:
                block = msgspec.structs.replace(block, id=call.id, name=call.name)
                answers.append(block)
        content.append(block)
    return msgspec.structs.replace(turn, content=tuple(content))


def _refuse_unmatched(result: ToolResult, calls: _Calls, findings: Findings) -> None:
    open_ids = [id[:_SHOWN] or "(no id)" for id in islice(calls.open, 5)]
    findings.refuse(
        "TOOL_RESULT_UNMATCHED",
        result.at,
        "The tool result answers no call of the assistant's turn right before it",
        expected=f"one of the ids {', '.join(open_ids)}" if open_ids else "a turn with a tool call before it",
        received=result.id[:_SHOWN] or "no id",
        help="Send the assistant's tool call before its result, under the same id, and answer each call once.",
    )


def _refuse_unanswered(calls: _Calls, findings: Findings) -> None:
    for given, uses in calls.open.items():
        for use in uses:
            findings.refuse(
                "TOOL_CALL_UNANSWERED",
                use.at,
                "The tool call has no result in the turn after it",
                expected="a tool result with the call's id before the assistant's next turn",
                received=given[:_SHOWN] or "a call without id",
                help="Send the tool's result right after the assistant's turn, or leave the call out.",
            )


def _note_moved_calls(run: list[Turn], limits: Capabilities, findings: Findings) -> None:
    """Note the first block that follows a tool call, where the provider requires calls to be last."""
    blocks = [block for turn in run for block in turn.content]
    first = _moved([isinstance(block, ToolUse) for block in blocks])
    if limits.calls_apart and first is not None:
        findings.note("BLOCKS_REORDERED", blocks[first].at, "The block is moved before the turn's tool calls")


def _note_moved_results(run: list[Turn], findings: Findings) -> None:
    blocks = [block for turn in run for block in turn.content]
    first = _moved([not isinstance(block, ToolResult) for block in blocks])
    if first is not None:
        findings.note("BLOCKS_REORDERED", blocks[first].at, "The tool result is moved before the turn's other blocks")


def _moved(late: list[bool]) -> int | None:
    """Return the position of the first item that is not late but follows a late one; None if there is none."""
    start = next((i for i, is_late in enumerate(late) if is_late), len(late))
    return next((i for i in range(start, len(late)) if not late[i]), None)
