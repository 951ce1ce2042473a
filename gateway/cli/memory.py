"""``mlc-gateway memory``: the gateway's sessions, in the store of the settings. The gateway need not run."""

from __future__ import annotations

import click

from gateway.cli import memory_sessions as sessions
from gateway.cli.command import Group
from gateway.cli.memory_copy import copy_, import_
from gateway.cli.memory_import import import_agentcore, import_cluster

_EXAMPLES = """\
mlc-gateway memory list -c config/gateway.yaml --agent my-agent-id
mlc-gateway memory export -c config/gateway.yaml gws-my-agent-id-0123456789abcdef01234567 > session.jsonl
mlc-gateway memory copy -c config/gateway.yaml --from sqlite --to opensearch"""


@click.group("memory", cls=Group, examples=_EXAMPLES)
def command() -> None:
    """List, show, export, delete, pin and copy the sessions that the gateway keeps, of all owners.

    The settings name the store. The gateway may run or not.
    """


for _one in (
    sessions.list_,
    sessions.show,
    sessions.export,
    sessions.delete,
    sessions.pin,
    sessions.unpin,
    copy_,
    import_,
    import_cluster,
    import_agentcore,
):
    command.add_command(_one)
