"""The whole way from an old cluster to a new one and back, under traffic: ``make gradual ARGS="--runs 5"``.

Two simulated clusters (2.19.0 and 3.8.0), two gateways with one settings file, and the commands as an operator gives
them: move, rehearse, mirror, 5, 50, 100 percent, the old cluster off; then all the way back. Meanwhile requests arrive
at a fixed rate: conversations of ten turns in the cluster's memory (unified and legacy), in the gateway's memory, and
whole in each request with an image and a tool call. Each turn has a word of its own. A request counts as

- lost: no answer of success,
- broken: its LLM call lacks its own word, the image or the tool call,
- misled: its LLM call lacks a word of an earlier turn: a target answered that does not know the conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.process import free_port
from gateway.config.load import load
from gateway.simulator.fixtures import agent_bodies, connector_body, templates
from gateway.simulator.server import Simulator
from tests.delivery.cases import IMAGE
from tests.wire import PATIENCE

ML = "/_plugins/_ml"
TURNS = 10
OPEN = 12
"""Conversations that are under way at a time."""
NO_TOOL = {"type": "VisualizationTool", "name": "none", "description": "Not available."}
"""An agent that reasons can't run without a tool."""
KINDS = {"unified": "chat", "legacy": "chat", "session": "talk", "whole": "see"}
"""The agent of each kind of conversation: one with the cluster's memory, one with the gateway's, one without."""
_PIXELS = IMAGE["source"]["data"]


@dataclass(eq=False)
class Conversation:
    """A conversation under way. words: of its turns so far. id: of its memory. messages: all of it, for ``whole``."""

    kind: str
    agent_id: str
    words: list[str] = field(default_factory=list)
    id: str = ""
    on: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return len(self.words) >= TURNS

    def next_body(self, word: str) -> dict[str, Any]:
        """Return the body of the next turn, which says `word`."""
        text = f"Turn {len(self.words)}: {word}."
        parameters = {"memory_id": self.id} if self.id else {}
        if self.kind == "legacy":
            return {"parameters": {"question": text, **parameters}}
        if self.kind != "whole":
            return {"input": text, "parameters": parameters} if parameters else {"input": text}
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if not self.messages:
            content.append(IMAGE)
        if len(self.words) == 2:
            self.messages += _tool_call(word)
        self.messages.append({"role": "user", "content": content})
        return {"input": self.messages}


def _tool_call(word: str) -> list[dict[str, Any]]:
    call = {"id": f"call-{word}", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    return [
        {"role": "user", "content": [{"type": "text", "text": "Look it up."}]},
        {"role": "assistant", "toolCalls": [call]},
        {"role": "tool", "toolCallId": call["id"], "content": [{"type": "text", "text": f"found-{word}"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "It is there."}]},
    ]


class Site:
    """Both clusters and both gateways. ids: of the old agents, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "gateway.yaml"
        self.clusters: list[Simulator] = []
        self.ids: dict[str, str] = {}
        self.gateways: list[Gateway] = []

    async def command(self, *arguments: str, expected: Sequence[int] = (0,)) -> str:
        """Run a command of the gateway; return what it prints."""
        argv = [sys.executable, "-m", "gateway", *arguments]
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, "MLC_GATEWAYS": " ".join(gateway.admin for gateway in self.gateways)}
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment, cwd=self.folder
        )
        out, err = await process.communicate()
        if process.returncode not in expected:
            shown = out.decode() + err.decode()
            raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}:\n{shown}")
        return out.decode()

    async def reload(self) -> None:
        """Have both gateways read the settings file again."""
        async with aiohttp.ClientSession() as client:
            for gateway in self.gateways:
                async with client.post(f"{gateway.admin}/reload") as response:
                    if response.status != 200:
                        raise RuntimeError(await response.text())

    async def restart(self) -> None:
        """Restart the gateways, one after the other; requests go to the other one meanwhile."""
        for gateway in self.gateways:
            await gateway.stop()
            await gateway.start(self.config)


class Gateway:
    """A gateway in a process of its own. busy: requests on their way to it."""

    def __init__(self) -> None:
        self.ports = free_port(), free_port()
        self.is_up = False
        self.busy = 0

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.ports[1]}"

    async def start(self, config: Path) -> None:
        addresses = [f"127.0.0.1:{port}" for port in self.ports]
        argv = ["serve", "-c", str(config), "--listen", addresses[0], "--admin", addresses[1], "--log-level", "error"]
        self._process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gateway", *argv)
        async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as client:
            while not self.is_up:
                try:
                    async with client.get(f"{self.admin}/health/live") as response:
                        self.is_up = response.status == 200
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Send it no more requests, wait for those on their way, and end it."""
        self.is_up = False
        while self.busy:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self._process.terminate()
        await self._process.wait()


class Traffic:
    """Requests at a fixed rate. counts: requests by what became of them. targets: by the cluster that answered."""

    def __init__(self, site: Site, rate: float, seed: int) -> None:
        self._site = site
        self._rate = rate
        self._random = random.Random(seed)
        self._words = (f"w{seed}x{number}z" for number in itertools.count())
        self._tasks: set[asyncio.Task[None]] = set()
        self._free: list[Conversation] = []
        self._open: set[Conversation] = set()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.targets: Counter[str] = Counter()

    async def run(self) -> None:
        """Send until cancelled, then wait for what is on its way."""
        due = time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as client:
            try:
                while True:
                    due += 1 / self._rate
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    task = asyncio.create_task(self._turn(client, self._next()))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            finally:
                await asyncio.gather(*self._tasks)

    def open_on(self, cluster: str) -> int:
        """Return how many conversations go on that only this cluster's memory knows."""
        return sum(1 for one in self._open if one.on == cluster and one.id and not one.id.startswith("gws-"))

    def _next(self) -> Conversation:
        if len(self._open) < OPEN or not self._free:
            kind = self._random.choice(list(KINDS))
            one = Conversation(kind, self._site.ids[KINDS[kind]])
            self._open.add(one)
            return one
        return self._free.pop(self._random.randrange(len(self._free)))

    async def _turn(self, client: aiohttp.ClientSession, one: Conversation) -> None:
        word = next(self._words)
        gateway = self._random.choice([gateway for gateway in self._site.gateways if gateway.is_up])
        url = f"http://127.0.0.1:{gateway.ports[0]}{ML}/agents/{one.agent_id}/_execute"
        gateway.busy += 1
        try:
            async with client.post(url, json=one.next_body(word)) as response:
                text = await response.text()
                status, cluster = response.status, response.headers.get("X-MLC-Cluster", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            status, text, cluster = 0, repr(error), ""
        finally:
            gateway.busy -= 1
        self._judge(one, word, status, text, cluster)
        if one.is_over or status != 200:
            self._open.discard(one)
        else:
            self._free.append(one)

    def _judge(self, one: Conversation, word: str, status: int, text: str, cluster: str) -> None:
        self.counts["requests"] += 1
        self.targets[cluster or "upstream"] += 1
        if status != 200:
            self._fault("lost", one, word, f"{status}: {text[:400]}")
            return
        one.on = cluster
        calls = [call for call in self._calls() if word in call]
        one.words.append(word)
        if not calls:
            self._fault("broken", one, word, "no LLM was called with its word")
        elif one.kind == "whole" and _PIXELS not in calls[0]:
            self._fault("broken", one, word, "the image is not there")
        elif one.kind == "whole" and len(one.words) > 3 and f"found-{one.words[2]}" not in calls[0]:
            self._fault("broken", one, word, "the tool's result is not there")
        elif not any(all(earlier in call for earlier in one.words) for call in calls):
            self._fault("misled", one, word, f"{one.words} are not all in {calls[0][:2000]}")
        answer = json.loads(text)
        outputs = answer["inference_results"][0]["output"] if "inference_results" in answer else []
        one.id = answer.get("memory_id") or next((o["result"] for o in outputs if o["name"] == "memory_id"), one.id)
        if one.kind == "whole":
            one.messages.append({"role": "assistant", "content": [{"type": "text", "text": "I see."}]})

    def _calls(self) -> list[str]:
        """Return the newest LLM calls of both clusters as texts."""
        return [json.dumps(body) for cluster in self._site.clusters for body in cluster.received[-100:]]

    def _fault(self, kind: str, one: Conversation, word: str, what: str) -> None:
        self.counts[kind] += 1
        self.faults.append(f"{kind}: {one.kind}, turn {len(one.words)}, {one.agent_id} on {one.on!r} ({word}): {what}")


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """Start both clusters, with the agents on the old one, and the gateways."""
    async with AsyncExitStack() as stack:
        made = Site(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        for version in ("2.19.0", "3.8.0"):
            simulator = Simulator(version, port=free_port(), llm_port=free_port())
            made.clusters.append(await stack.enter_async_context(simulator))
        old, new = made.clusters
        made.ids = _register(old, new.llm_url)  # the LLM goes on when the old cluster is off
        made.config.write_text(_settings(made))
        (made.folder / "credential.json").write_text('{"key": "sk"}')
        (made.folder / "credential.json").chmod(0o600)
        for _ in range(2):
            made.gateways.append(Gateway())
            await made.gateways[-1].start(made.config)
            stack.push_async_callback(made.gateways[-1].stop)
        yield made


def _register(old: Simulator, llm_url: str) -> dict[str, str]:
    """Register the agents, one of each kind, with one model; return their ids by name."""
    resources, template = old.core.resources, templates("3.8.0")["openai_upgraded"]
    made = resources.create_connector(connector_body("gradual", template, llm_url))
    model = {"name": "gradual", "function_name": "remote", "connector_id": made["connector_id"]}
    model_id = resources.register_model(model, deploy=True)["model_id"]
    flow, _, reasons, *_ = agent_bodies("2.19.0", "gradual", template, model_id)
    bodies = {"chat": {**reasons, "tools": [NO_TOOL]}, "talk": flow, "see": flow}
    return {name: resources.register_agent({**body, "name": name})["agent_id"] for name, body in bodies.items()}


def _settings(made: Site) -> str:
    return f"""\
# The gateways of this site.
upstream:
  url: {made.clusters[0].url}
clusters:
  new:
    url: {made.clusters[1].url}
memory:
  sqlite:
    path: {made.folder}/sessions.sqlite3
inspector:
  enabled: true
  sqlite:
    directory: {made.folder}/exchanges
agents:
  rules:
    - agent: talk  # its sessions are the gateway's
      memory: gateway
"""


async def there_and_back(rate: float, seconds: float, seed: int, say: Callable[[str], None]) -> Traffic:
    """Go all the way, and back. seconds: of traffic after each step."""
    async with site() as made:
        traffic = Traffic(made, rate, seed)
        running = asyncio.create_task(traffic.run())
        config = ["-c", str(made.config)]
        old_ids = list(made.ids.values())

        async def step(name: str) -> None:
            before, targets = traffic.counts.copy(), traffic.targets.copy()
            await asyncio.sleep(seconds)
            found, on = traffic.counts - before, traffic.targets - targets
            shown = ", ".join(f"{kind} {found[kind]}" for kind in ("requests", "lost", "broken", "misled"))
            say(f"  {name:<28} {shown}; on upstream {on['upstream']}, on new {on['new']}")

        async def shift(percent: int) -> None:
            for old, new in zip(old_ids, new_ids, strict=True):
                await made.command("shift", *config, old, "--to", new, "--percent", str(percent))
            await step(f"{percent} percent")

        async def drained(cluster: str) -> None:
            """Wait until no conversation goes on that only this cluster knows."""
            async with asyncio.timeout(PATIENCE + 100 * seconds):
                while traffic.open_on(cluster):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        try:
            await step("old cluster alone")
            credential = ("--credential-file", "credential.json")
            await made.command("move", *config, *old_ids, "--to-cluster", "new", *credential)
            routes = read_routes_of(made.config)
            new_ids = [routes[old] for old in old_ids]
            await made.reload()
            await step("moved")
            for old, new in zip(old_ids, new_ids, strict=True):
                wanted = ("--min-same", "90") if old == made.ids["see"] else ()  # what memory replays is not judged
                await made.command("rehearse", *config, old, "--as", new, "--in-cluster", "new", *wanted)
            await step("rehearsed")
            edit_mirrors(made.config, dict(zip(old_ids, new_ids, strict=True)))
            await made.reload()
            await step("mirrored")
            for percent in (5, 50, 100):
                await shift(percent)
            await drained("")
            before_the_swap = made.config.read_text()
            made.config.write_text(swapped(before_the_swap))
            await made.restart()
            await made.clusters[0].stop()
            await step("old cluster off")
            # And back.
            await made.clusters[0].start()
            made.config.write_text(before_the_swap)
            await made.restart()
            await step("old cluster on again")
            for percent in (50, 5, 0):
                for old in old_ids:
                    await made.command("shift", *config, old, "--back")
                await step(f"back to {percent} percent")
            await drained("new")
            await made.command("move", *config, *old_ids, "--to-cluster", "new", "--undo")
            await made.reload()
            await step("old cluster alone again")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            for fault in traffic.faults[:10]:
                say(fault)
        return traffic


def read_routes_of(config: Path) -> dict[str, str]:
    """Return the new agent of each route in the settings file."""
    routes = load(config).agents.routes
    return {route.agent: next(t.agent for t in route.targets if t.cluster) for route in routes}


def edit_mirrors(config: Path, agents: dict[str, str]) -> None:
    """Add a mirror to each route by hand, as an operator does with an editor."""
    document = yaml.safe_load(config.read_text())
    for route in document["agents"]["routes"]:
        route["mirror"] = {"agent": agents[route["agent"]], "ratio": 0.5, "tools": ["none"]}
    config.write_text(yaml.safe_dump(document, sort_keys=False))


def swapped(text: str) -> str:
    """Return the settings with the new cluster as `upstream`, and without the old one."""
    document = yaml.safe_load(text)
    document["upstream"] = document.pop("clusters")["new"]
    for route in document["agents"]["routes"]:
        route.pop("mirror", None)
        route["targets"] = [{"agent": t["agent"], "weight": 1} for t in route["targets"] if t.get("cluster")]
    return yaml.safe_dump(document, sort_keys=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of traffic after each step (%(default)s)")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    faults = []
    for run in range(arguments.runs):
        print(f"run {run + 1} of {arguments.runs}", flush=True)
        traffic = asyncio.run(
            there_and_back(arguments.rate, arguments.seconds, run, lambda line: print(line, flush=True))
        )
        total += traffic.counts
        faults += traffic.faults
    print(", ".join(f"{total[kind]} {kind}" for kind in ("requests", "lost", "broken", "misled")))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
