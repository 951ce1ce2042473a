"""``mlc-gateway memory import-cluster``: bring conversations of the cluster's own memory in as sessions."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from gateway.cli.cluster import cluster_options
from gateway.cli.command import Command
from gateway.cli.listing import form_options, show_rows
from gateway.cli.memory_copy import Summary
from gateway.cli.memory_store import bar, config_option, opened, run_reporting
from gateway.cli.output import PlainConsole, fail
from gateway.config.problems import ConfigError
from gateway.config.schema import Settings
from gateway.memory.copying import append_turns
from gateway.memory.model import Message, Metadata, Owner, Turn, as_failed
from gateway.memory.owner import caller_of, imported_key, knows_users
from gateway.memory.store import Store, StoreError
from gateway.memory.stores.agentcore.foreign import ForeignSessions
from gateway.memory.stores.registry import check_store as check_settings
from gateway.memory.stores.strands.mapping import starts_turn
from gateway.migrate.connection import ClusterError, ClusterOptions, Connected, connect
from gateway.migrate.reading import (
    Exchange,
    StoredByAgent,
    existing_agent,
    list_container_sessions,
    list_conversations,
    read_container_session,
    read_conversation,
)

_EXAMPLES = """\
mlc-gateway memory import-cluster -c config/gateway.yaml --agent my-agent-id --user bob
mlc-gateway memory import-cluster --url http://127.0.0.1:9200 --agent my-agent-id k3Xx_6EBm8w0PCMjLWNL
mlc-gateway memory import-cluster --agent my-agent-id --container HudiIZQBPX4mTe5Fl1Rb"""


@click.command(
    "import-cluster",
    cls=Command,
    group="memory",
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
        return f"Conversations that became sessions: {one.copied} ({one.turns} turns), {rest}."

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
    group="memory",
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
