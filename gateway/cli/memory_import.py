"""``mlc-gateway memory import-cluster`` and ``import-agentcore``: bring conversations in as sessions.

They are those of the cluster's own memory, of its memory containers, and of other programs in AgentCore Memory.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from gateway.agents.lookup import document_path
from gateway.cli.cluster import cluster_options
from gateway.cli.command import Command, config_option
from gateway.cli.output import PlainConsole, bar, fail, form_options, plural, print_json, show_rows
from gateway.config.load import ConfigError, load
from gateway.config.schema import Settings
from gateway.memory.copying import append_turns
from gateway.memory.management import AmbiguousSession
from gateway.memory.model import Message, Metadata, Owner, Turn, as_failed
from gateway.memory.owner import caller_of, imported_key, knows_users
from gateway.memory.store import SessionNotFound, Store, StoreError
from gateway.memory.stores.agentcore.foreign import ForeignSessions
from gateway.memory.stores.registry import build_store, first_address
from gateway.memory.stores.registry import check_store as check_settings
from gateway.memory.stores.strands.mapping import starts_turn
from gateway.memory.structured import from_structured
from gateway.migrate.connection import Cluster, ClusterError, ClusterOptions, Connected, connect, refusal
from gateway.migrate.reading import existing_agent
from gateway.migrate.search import WINDOW
from gateway.mlcommons.memory_form import show_original

_EXAMPLES = """\
mlc-gateway memory import-cluster -c config/gateway.yaml --agent my-agent-id --user bob
mlc-gateway memory import-cluster --url http://127.0.0.1:9200 --agent my-agent-id k3Xx_6EBm8w0PCMjLWNL
mlc-gateway memory import-cluster --agent my-agent-id --container HudiIZQBPX4mTe5Fl1Rb"""


@asynccontextmanager
async def opened(settings: Settings, name: str = "") -> AsyncIterator[Store]:
    """Open the store `name`, by default that of the settings, and close it at the end.

    Raises:
        ConfigError: its settings are wrong. StoreError: it can't be used.
    """
    store = build_store(settings.memory, first_address(settings), name)
    try:
        await store.start()
        yield store
    finally:
        await store.close()


def run_reporting(
    command: str, config: Path | Settings | None, work: Callable[[Settings], Coroutine[Any, Any, int]]
) -> int:
    """Run `work` with the settings, given or in a file. Report its error, and return the exit code."""
    try:
        return asyncio.run(work(config if isinstance(config, Settings) else load(config)))
    except BrokenPipeError:
        raise  # click ends the command
    except (SessionNotFound, AmbiguousSession) as error:
        return fail(command, 1, str(error))
    except (ConfigError, StoreError, OSError) as error:
        return fail(command, 2, str(error))


class Summary(msgspec.Struct):
    """What was done. copied, present: sessions. turns: those that were written. failed: session id → reason."""

    copied: int = 0
    present: int = 0
    turns: int = 0
    failed: dict[str, str] = msgspec.field(default_factory=dict)

    def add(self, turns: int) -> None:
        """Count a session of which `turns` turns were written."""
        self.turns += turns
        self.copied += turns > 0
        self.present += turns == 0

    def report(self, as_json: bool, verb: str, more: dict[str, Any] | None = None) -> int:
        """Print the summary, and return the exit code."""
        for id, reason in self.failed.items():
            sys.stderr.write(f"{id}: {reason}\n")
        if as_json:
            counts = {verb: self.copied, "present": self.present, "turns": self.turns, "failed": self.failed}
            print_json({**counts, **(more or {})})
        else:
            sys.stdout.write(
                f"{self.copied} {plural(self.copied, 'session')} {verb} ({self.turns} {plural(self.turns, 'turn')}), "
                f"{self.present} already there, {len(self.failed)} failed\n"
            )
        return 1 if self.failed else 0


@click.command(
    "import-cluster",
    cls=Command,
    short_help="Import an agent's conversations from the cluster's memory.",
    examples=_EXAMPLES,
)
@click.argument("ids", nargs=-1, metavar="[MEMORY]...", help="Ids of conversations (default: all of the account).")
@click.option("--agent", required=True, metavar="AGENT", help="Agent that gets them: id, its beginning, or name.")
@click.option(
    "--container",
    metavar="ID",
    help="Memory container whose sessions are imported, as `conversational_v2` agents keep them (default: the "
    "conversations of `/_plugins/_ml/memory`).",
)
@click.option("--to-tenant", default="", metavar="TENANT", help="Tenant whose sessions they become.")
@click.option(
    "--to-caller",
    metavar="HASH",
    help="Caller whose sessions they become, as `memory list` shows it (default: the account of --user, unless "
    "memory.by_caller is off).",
)
@form_options
@cluster_options
def import_cluster(
    cluster: ClusterOptions,
    ids: tuple[str, ...],
    agent: str,
    container: str | None,
    to_tenant: str,
    to_caller: str | None,
    as_json: bool,
) -> int:
    """Import conversations of the cluster's own memory (`/_plugins/_ml/memory`) as sessions of an agent.

    Questions and answers become messages with their times. Of a memory container (`--container`), whole messages are
    imported, with media and tool calls. The cluster does not record which agent a conversation
    belongs to: without ids, all conversations of the account are imported. The new id of each is printed; the old one
    leads to the session, too. It is safe to run this again: only what is new is imported.
    """
    try:
        connected = connect(cluster)
        agent = existing_agent(connected, agent)
        if ids:
            found = list(ids)
        elif container:
            found = list_container_sessions(connected, container)
        else:
            found = list(list_conversations(connected))
    except ClusterError as error:
        return fail("memory import-cluster", 2, str(error))
    owner = Owner(agent, to_tenant, account_of(connected) if to_caller is None else to_caller)

    async def read(id: str) -> list[Turn]:
        if container:
            stored = read_container_session(connected, container, id)
            if ids and not stored:
                raise ClusterError(f"The container {container} has no session {id} that this account may read.")
            return turns_of(agent, stored)
        return [turn_of(agent, exchange) for exchange in read_conversation(connected, id)]

    async def work(settings: Settings) -> int:
        async with opened(settings) as store:
            summary, new_ids = await import_all(store, owner, found, read)
        return report(summary, new_ids, as_json)

    return run_reporting("memory import-cluster", connected.settings, work)


def account_of(cluster: Connected) -> str:
    """Return the caller as whose sessions an account's conversations are imported: that of `--user`, if callers count.

    "" stands for callers without credentials.
    """
    if not (cluster.settings.memory.by_caller and cluster.authorization):
        return ""
    return caller_of({"Authorization": cluster.authorization}, knows_users(cluster.settings))


async def import_all(
    store: Store, owner: Owner, ids: Sequence[str], read: Callable[[str], Awaitable[Sequence[Turn]]], origin: str = ""
) -> tuple[Summary, dict[str, str]]:
    """Import the conversations `ids`, the last one first; return what was done, and the new id of each old one.

    read: returns a conversation's turns. origin: keeps apart conversations of the same id.
    """
    summary, new_ids = Summary(), {}
    with bar("importing conversations", len(ids)) as done:
        for id in reversed(ids):
            key = imported_key(owner, id, origin)
            try:
                if turns := await read(id):  # an empty conversation becomes no session
                    summary.add(await append_turns(store, key, turns))
                    new_ids[id] = key.id
            except (ClusterError, StoreError) as error:
                summary.failed[id] = str(error)
            done()
    return summary, new_ids


class Imported(msgspec.Struct, frozen=True):
    """What was imported. sessions: new id of each conversation. failed: reason by conversation."""

    summary: Summary
    sessions: dict[str, str]

    @property
    def failed(self) -> dict[str, str]:
        """The reason for each conversation that is not imported; for all of them under ``all``."""
        return self.summary.failed

    def line(self) -> str:
        """Return the numbers as a sentence."""
        one = self.summary
        rest = f"{one.present} already there, {len(one.failed)} failed"
        turns = f"{one.turns} {plural(one.turns, 'turn')}"
        return f"Conversations that became sessions: {one.copied} ({turns}), {rest}."

    def as_json(self, rules: Sequence[str]) -> dict[str, Any]:
        """Return JSON data. rules: those that the settings lack."""
        one = self.summary
        counts = {"imported": one.copied, "present": one.present, "turns": one.turns, "failed": one.failed}
        return {**counts, "sessions": self.sessions, "rules": list(rules)}


async def check_store(cluster: Connected) -> None:
    """Open the store of the settings, and close it.

    Raises:
        ConfigError: its settings are wrong. StoreError: it can't be used.
    """
    async with opened(cluster.settings):
        pass


async def import_conversations(cluster: Connected, agent: str, route: str) -> Imported:
    """Import all conversations of the account as sessions of a route. agent: the one that held them.

    Run it again for those that failed, and for what is new.
    """
    summary, owner = Summary(), Owner(route, "", account_of(cluster))

    async def read(id: str) -> list[Turn]:
        return [turn_of(agent, exchange) for exchange in read_conversation(cluster, id)]

    try:
        async with opened(cluster.settings) as store:
            return Imported(*await import_all(store, owner, list(list_conversations(cluster)), read))
    except (ClusterError, StoreError, ConfigError) as error:
        summary.failed["all"] = str(error)
        return Imported(summary, {})


def report(
    summary: Summary, new_ids: dict[str, str], as_json: bool, more: Mapping[str, Mapping[str, list[str]]] | None = None
) -> int:
    """Print what was done, with the new id of each conversation, and return the exit code. more: of the JSON."""
    if not as_json:
        _show(new_ids)
    return summary.report(as_json, "imported", {"sessions": new_ids, **(more or {})})


def turn_of(agent_id: str, exchange: Exchange) -> Turn:
    """Return a question and its answer as a turn, whose id is made of the message's."""
    metadata = Metadata(created=exchange.created, input_type="text", agent_id=agent_id)
    asked = Message("user", ({"text": exchange.question},), metadata)
    if not exchange.answer:
        return as_failed(Turn(f"cluster-{exchange.id}", (asked,)))
    answered = Metadata(created=exchange.created, agent_id=agent_id)
    answer = Message("assistant", ({"text": exchange.answer},), answered)
    return Turn(f"cluster-{exchange.id}", (asked, answer))


def turns_of(agent_id: str, stored: Sequence[StoredByAgent]) -> list[Turn]:
    """Return the messages of a session in a container as turns, whose ids are made of those of their first messages."""
    turns: list[tuple[str, list[Message]]] = []
    for id, message, created in stored:
        if starts_turn(message) or not turns:
            turns.append((f"cluster-{id}", []))
        input_type = "messages" if message.role == "user" else ""
        metadata = Metadata(created=created, input_type=input_type, agent_id=agent_id)
        turns[-1][1].append(Message(message.role, message.content, metadata))
    return [Turn(id, tuple(messages)) for id, messages in turns]


def _show(new_ids: dict[str, str]) -> None:
    if new_ids:
        show_rows(PlainConsole(), ("conversation", "session"), list(new_ids.items()), naming=2)


@click.command(
    "import-agentcore",
    cls=Command,
    short_help="Import sessions of other programs from AgentCore Memory.",
    examples="mlc-gateway memory import-agentcore -c config/gateway.yaml --actor user-1 --agent my-agent-id\n"
    "mlc-gateway memory import-agentcore --actor user-1 --agent my-agent-id session-7",
)
@click.argument("ids", nargs=-1, metavar="[SESSION]...", help="Ids of sessions (default: all of the actor).")
@click.option("--actor", required=True, metavar="ID", help="Actor in AgentCore whose sessions these are.")
@click.option("--agent", required=True, metavar="ID", help="Agent whose sessions they become.")
@click.option("--to-tenant", default="", metavar="TENANT", help="Tenant whose sessions they become.")
@click.option(
    "--to-caller",
    default="",
    metavar="HASH",
    help="Caller whose sessions they become, as `memory list` shows it (default: callers without credentials).",
)
@form_options
@config_option
def import_agentcore(
    config: Path | None, ids: tuple[str, ...], actor: str, agent: str, to_tenant: str, to_caller: str, as_json: bool
) -> int:
    """Import sessions that Camunda's connectors or AWS's plug-in for Strands keep in a memory of AgentCore.

    `memory.agentcore` in the settings names the memory; the sessions are written to the store of the settings. The new
    id of each is printed. It is safe to run this again: only what is new is imported.

    A session that has branches is read along those that lead to its newest event. What no agent could be sent is left
    out, and reported.
    """
    left_out: dict[str, list[str]] = {}

    async def work(settings: Settings) -> int:
        problems = check_settings(settings.memory, "agentcore")
        if problems:
            raise ConfigError(problems)
        source = ForeignSessions(settings.memory.agentcore)

        async def read(id: str) -> list[Turn]:
            session = await source.read(actor, id)
            if session.left_out:
                left_out[id] = session.left_out
            return session.turns

        try:
            async with opened(settings) as store:
                found = ids or await source.names(actor)
                owner = Owner(agent, to_tenant, to_caller)
                summary, new_ids = await import_all(store, owner, found, read, actor)
        finally:
            await source.close()
        for id, parts in left_out.items():
            sys.stderr.write(f"{id}: left out: {'; '.join(parts)}\n")
        return report(summary, new_ids, as_json, {"left_out": left_out})

    return run_reporting("memory import-agentcore", config, work)


# What the cluster keeps

_PAGE = 1000
_FAILED = "Agent execution failed: "
"""How the response of a failed run begins (3.x). On 2.x, it has none (docs/evidence/facts.md)."""


class Exchange(NamedTuple):
    """A question with its answer. created: seconds since the epoch, 0 if unknown. answer: "" if the run failed."""

    id: str
    question: str
    answer: str
    created: float


class StoredByAgent(NamedTuple):
    """A message in a memory container. id: of its working memory. created: seconds since the epoch; 0 if unknown."""

    id: str
    message: Message
    created: float


def list_conversations(cluster: Cluster) -> Iterator[str]:
    """Yield the ids of the conversations that the account may read, the last updated first.

    Raises:
        ClusterError: they can't be read.
    """
    for memory in _pages(cluster, "/_plugins/_ml/memory", "memories", ""):
        yield str(memory["memory_id"])


def read_conversation(cluster: Cluster, id: str) -> list[Exchange]:
    """Return the questions and answers of a conversation, oldest first, as they were written.

    Raises:
        ClusterError: there is no such conversation, or it can't be read.
    """
    path = document_path("memory", id, "/messages")
    return [
        Exchange(
            str(message["message_id"]),
            show_original(str(message.get("input") or "")),
            _answer(str(message.get("response") or "")),
            _seconds(message.get("create_time")),
        )
        for message in _pages(cluster, path, "messages", id)
    ]


def list_container_sessions(cluster: Cluster, container: str) -> list[str]:
    """Return the ids of the sessions in a memory container that the account may read, the last updated first.

    Raises:
        ClusterError: they can't be read.
    """
    hits = _search_container(cluster, container, "sessions", {"match_all": {}}, [{"last_updated_time": "desc"}])
    return [id for id, _ in hits]


def read_container_session(cluster: Cluster, container: str, session: str) -> list[StoredByAgent]:
    """Return the messages of a session in a memory container as agents of type ``conversational_v2`` keep them.

    Raises:
        ClusterError: it can't be read.
    """
    query = {"bool": {"filter": [
        {"term": {"namespace.session_id": session}}, {"term": {"metadata.type": "structured_message"}},
    ]}}  # fmt: skip
    found = []
    for id, source in _search_container(cluster, container, "working", query, [{"message_id": "asc"}]):
        try:
            message = from_structured(source["structured_data_blob"]["message"])
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise ClusterError(f"The working memory {id} is no message of an agent: {error!r}") from error
        created = source.get("created_time")
        found.append(StoredByAgent(id, message, created / 1000 if isinstance(created, int | float) else 0.0))
    return found


def _search_container(
    cluster: Cluster, container: str, kind: str, query: dict[str, Any], sort: list[dict[str, str]]
) -> list[tuple[str, dict[str, Any]]]:
    path = document_path("memory_containers", container, f"/memories/{kind}/_search")
    status, body = cluster.call("POST", path, {"query": query, "sort": sort, "size": WINDOW})
    if status != 200:
        raise refusal(status, "read memories", "cluster:admin/opensearch/ml/memory_containers/memory/search", body)
    hits = body.get("hits", {}).get("hits", [])
    if len(hits) == WINDOW:
        raise ClusterError(f"The container {container} has more than {WINDOW:,} of these: name sessions by id.")
    return [(str(hit["_id"]), hit["_source"]) for hit in hits]


def _answer(response: str) -> str:
    return "" if response.startswith(_FAILED) else response


def _seconds(time: Any) -> float:
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return 0.0


def _pages(cluster: Cluster, path: str, name: str, id: str) -> Iterator[dict[str, Any]]:
    start: int | None = 0
    while start is not None:
        query = f"?max_results={_PAGE}" + (f"&next_token={start}" if start else "")
        status, body = cluster.call("GET", path + query)
        if status == 404 and id:
            raise ClusterError(f"The cluster has no conversation {id} that this account may read.")
        if status != 200:
            raise refusal(status, "read conversations", "cluster:admin/opensearch/ml/memory/*", body)
        found = body.get(name)
        if not isinstance(found, list):
            raise ClusterError(f"GET {path} answered without a list of {name}.")
        yield from found
        following = body.get("next_token")
        start = following if isinstance(following, int) and following > start else None
