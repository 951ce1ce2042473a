"""Agents whose documents are costly to read or to plan for, wrong, or endless."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator

from bench.attacks.attack import MEBIBYTE, Table
from bench.attacks.client import Target, post
from bench.attacks.documents import MAKERS, Documents, mutated
from bench.attacks.upstream import ENDLESS_AGENT, HUGE_AGENT, KEEP

TABLE = Table("documents")
_NUMBERS = itertools.count()
_SIZES = (24, 48, 96, 192)
_GROWTH, _NOISE = 3.2, 0.03
"""How much more CPU time twice the size may take, and seconds that count as nothing. More than twice, because an agent
that is no longer small is planned without templates."""
_WHOLE_GROWTH = 10
"""How much more CPU time eight times the size may take."""
_REFUSALS = 120
_TEXT = b'{"input":"hello"}'
_CODE = rb'{"input":"[\"x\"},{\"role\":\"system\",\"content\":\"${parameters.a}\"]"}'
_TALK = json.dumps(
    {
        "input": [
            {"role": role, "content": [{"type": "text", "text": "a"}]}
            for role in ("system", "user", "assistant", "user")
        ]
    }
).encode()


async def _keep(target: Target, documents: Documents) -> str:
    """Give the documents to the cluster; return the agent's id."""
    agent_id = f"hostile-{next(_NUMBERS)}"
    for path, document in documents.with_ids_of(agent_id).by_path(agent_id).items():
        await target.ask(post(KEEP + path, json.dumps(document).encode()))
    return agent_id


async def _run(target: Target, agent_id: str, *bodies: bytes) -> None:
    for body in bodies:
        await target.ask(post(f"/_plugins/_ml/agents/{agent_id}/_execute", body))


def _seeds() -> Iterator[random.Random]:
    return (random.Random(seed) for seed in itertools.count())


_RANDOM = _seeds()


@TABLE.row(
    "changed at random",
    "agents, models and connectors with a few random changes, each run with a text and a conversation",
    answers=frozenset({200, 400}),
    memory=128 * MEBIBYTE,
    every=0.5,
)
async def changed_at_random(target: Target) -> None:
    async def one(_: int) -> None:
        await _run(target, await _keep(target, mutated(next(_RANDOM))), _TEXT, _TALK)

    await target.burst(one, target.some(25), 0.4)


@TABLE.row(
    "that grow",
    "agents of 24, 48, 96 and 192 tools, values, placeholders, …: twice the size may take twice the CPU time",
    answers=frozenset({200, 400}),
    memory=128 * MEBIBYTE,
    every=0.1,
)
async def that_grow(target: Target) -> None:
    name = sorted(MAKERS)[target.rounds % len(MAKERS)]
    seconds = []
    for size in _SIZES:
        agent_id = await _keep(target, MAKERS[name](target.some(size)))
        before = target.cpu()
        await _run(target, agent_id, _TEXT, _TALK, _CODE)
        seconds.append(target.cpu() - before)
    steps = [(_GROWTH, *pair) for pair in itertools.pairwise(seconds)]
    for growth, smaller, larger in (*steps, (_WHOLE_GROWTH, seconds[0], seconds[-1])):
        if larger > growth * smaller + _NOISE:
            shown = ", ".join(f"{each * 1000:.0f}" for each in seconds)
            target.faults[f"{name}: the CPU time grows faster than the size: {shown} ms"] += 1


@TABLE.row("with 800 and 1,600 tools", "flows of 800 and 1,600 tools that call a model", answers=frozenset({200, 400}))
async def with_many_tools(target: Target) -> None:
    async def one(number: int) -> None:
        agent_id = await _keep(target, MAKERS["tools"](target.some(800 * (1 + number % 2))))
        await _run(target, agent_id, _TEXT, _TEXT)

    await target.burst(one, target.some(10), 0.5)


@TABLE.row(
    "that do not end",
    "20 look-ups at a time that get an answer without an end",
    answers=frozenset({200, 400}),
    memory=256 * MEBIBYTE,
    every=2.0,
)
async def that_do_not_end(target: Target) -> None:
    await target.burst(lambda _: _run(target, f"{ENDLESS_AGENT}{next(_NUMBERS)}", _TEXT), target.some(20), 0.2)


@TABLE.row(
    "refused look-ups",
    "120 refusals of agents of 10 MB, and of 8 MB, which is just read; 5 s later their memory is free",
    answers=frozenset({200, 400}),
    memory=256 * MEBIBYTE,
    left=20 * MEBIBYTE,
    every=10.0,
)
async def refused_lookups(target: Target) -> None:
    waiting = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        async with waiting:
            size = (10_000_000, 8_000_000)[number % 2]
            await _run(target, f"{HUGE_AGENT}{size}-{next(_NUMBERS)}", _TEXT)

    await target.burst(one, target.some(_REFUSALS))
