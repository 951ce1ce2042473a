"""``mlc-gateway memory import-agentcore``: bring sessions in that other programs keep in AgentCore Memory."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.command import Command
from gateway.cli.memory_import import import_all, report
from gateway.cli.memory_store import config_option, json_option, opened, run_reporting
from gateway.config.problems import ConfigError
from gateway.config.schema import Settings
from gateway.memory.model import Owner
from gateway.memory.stores.agentcore_foreign import ForeignSessions
from gateway.memory.stores.registry import check_store


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
@json_option
@config_option
def import_agentcore(
    config: Path | None, ids: tuple[str, ...], actor: str, agent: str, to_tenant: str, to_caller: str, as_json: bool
) -> int:
    """Import sessions that Camunda's connectors or AWS's plug-in for Strands keep in a memory of AgentCore.

    `memory.agentcore` in the settings names the memory; the sessions are written to the store of the settings. The new
    id of each is printed. It is safe to run this again: only what is new is imported.
    """

    async def work(settings: Settings) -> int:
        problems = check_store(settings.memory, "agentcore")
        if problems:
            raise ConfigError(problems)
        source = ForeignSessions(settings.memory.agentcore)
        try:
            async with opened(settings) as store:
                found = ids or await source.names(actor)
                owner = Owner(agent, to_tenant, to_caller)
                summary, new_ids = await import_all(store, owner, found, lambda id: source.turns(actor, id), actor)
        finally:
            await source.close()
        return report(summary, new_ids, as_json)

    return run_reporting("memory import-agentcore", config, work)
