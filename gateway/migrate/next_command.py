"""The commands that messages tell the user to run next, as lines to copy into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields

from gateway.migrate.connection import ClusterOptions, without_credentials


def next_command(
    cluster: ClusterOptions, name: str, *arguments: str, options: Sequence[str] = (), gateways: Sequence[str] = ()
) -> str:
    """Return the command `name` with the options by which this run reached its cluster, quoted for a shell.

    options: others than those. gateways: the admin ports that `--gateway` names. User names and passwords in
    addresses are left out.
    """
    named = [word for url in gateways for word in ("--gateway", without_credentials(url))]
    end = ["--"] if any(argument.startswith("-") for argument in arguments) else []
    return shlex.join(["mlc-gateway", name, *options, *_cluster_options(cluster), *named, *end, *arguments])


def _cluster_options(cluster: ClusterOptions) -> Iterator[str]:
    for field in fields(ClusterOptions):
        value = getattr(cluster, field.name)
        if not value:
            continue
        yield f"--{field.name.replace('_', '-')}"
        if value is not True:
            yield without_credentials(value) if field.name == "url" else str(value)
