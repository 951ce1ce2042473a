"""A session that Camunda's connectors wrote in AgentCore Memory goes on through the gateway, whole."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from gateway.config.memory import AgentCoreStore as Settings
from gateway.memory.copying import append_missing
from gateway.memory.model import Owner, SessionKey, Turn
from gateway.memory.owner import new_session_id
from gateway.memory.stores.agentcore.foreign import ForeignSessions
from gateway.memory.stores.sqlite import SqliteStore
from tests.memory.agentcore.conftest import connect, emulator, running_emulator  # noqa: F401  # fixtures
from tests.memory.agentcore.emulator import Emulator, Faults
from tests.memory.agentcore.payloads import calls, metadata, results, spoken
from tests.sessions.conftest import StartCluster

TURNS = 20
RETRIED = 9
"""The turn of which a first try failed, after its question was written."""


class Camunda:
    """Writes a session as the connectors do: each turn but the first on a branch, from the last event before."""

    def __init__(self, service: Emulator) -> None:
        self._service = connect(Settings(endpoint=service.url))
        self._memory = service.memory_id
        self._last = ""
        self._time = 1_750_000_000.0

    def write(self, name: str, *payloads: list[Any], failed: bool = False) -> None:
        """Write the messages of a turn on the branch `name`. failed: the next turn begins where this one did."""
        root, last = self._last, ""
        for seq, payload in enumerate(payloads):
            self._time += 0.001
            answer = self._service.create_event(
                memoryId=self._memory,
                actorId="ann",
                sessionId="s1",
                eventTimestamp=self._time,
                payload=payload,
                metadata={"seq": {"stringValue": str(seq)}},
                clientToken=f"{name}:{seq}",
                **({"branch": {"name": name, "rootEventId": root}} if root else {}),
            )
            last = answer["event"]["eventId"]
        if not failed:
            self._last = last

    def session(self) -> list[str]:
        """Write the session. Return its texts in order."""
        texts: list[str] = []
        for turn in range(TURNS):
            question = [spoken("USER", f"Question {turn}."), metadata({}, role="USER")]
            if turn == RETRIED:
                self.write(
                    "tried", question, [spoken("ASSISTANT", "Lost."), metadata({}, role="ASSISTANT")], failed=True
                )
            call = {"id": f"c{turn}", "name": "look", "arguments": {"at": turn}}
            found = {"id": f"c{turn}", "name": "look", "content": [{"type": "text", "text": f"Found {turn}."}]}
            self.write(
                f"turn-{turn}",
                question,
                [spoken("ASSISTANT", f"I look for {turn}."), calls(call), metadata({}, role="ASSISTANT")],
                [spoken("TOOL", f"Found {turn}."), results(found), metadata({}, role="TOOL")],
                [spoken("ASSISTANT", f"Answer {turn}."), metadata({}, role="ASSISTANT")],
            )
            texts += [f"Question {turn}.", f"I look for {turn}.", f"Found {turn}.", f"Answer {turn}."]
        return texts


async def test_a_session_of_camunda_goes_on(
    emulator: Emulator,  # noqa: F811
    start_cluster: StartCluster,
    tmp_path: Path,
) -> None:
    emulator.reset(Faults(shuffle=True, pages=(7,)))
    texts = Camunda(emulator).session()
    source = ForeignSessions(Settings(memory_id=emulator.memory_id, endpoint=emulator.url), connect)
    session = await source.read("ann", "s1")
    await source.close()
    assert (len(session.turns), session.left_out) == (TURNS, ["another branch"])

    cluster = await start_cluster("2.19.0")
    agent = cluster.agents["flow-b"]
    key = SessionKey(Owner(agent), new_session_id(agent, "s1"))
    store = SqliteStore(Path(cluster.settings["memory"]["sqlite"]["path"]))
    await store.start()

    async def turns(first: int) -> AsyncGenerator[Turn, None]:
        for turn in session.turns[first - 1 :]:
            yield turn

    assert await append_missing(store, key, turns, TURNS) == TURNS
    await store.close()
    answered = await cluster.ask(agent, {"input": "And now?"}, key.id)
    assert (answered.status, answered.notices) == (200, ""), answered.body
    sent = json.dumps(answered.llm[0])
    places = [sent.index(text) for text in [*texts, "And now?"]]
    assert places == sorted(places)
    assert {sent.count(text) for text in [*texts, "And now?"]} == {1}
    assert "Lost." not in sent
