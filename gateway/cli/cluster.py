"""The options of every command that talks to a cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
from msgspec.structs import fields

from gateway.cli.command import FILE, ClusterOption
from gateway.migrate.connection import PASSWORD, TENANT, ClusterOptions
from gateway.migrate.gateways import ADMIN_TOKEN

_option = functools.partial(click.option, cls=ClusterOption)
_NAMES = [field.name for field in fields(ClusterOptions)]
_OPTIONS = (
    _option("-c", "--config", type=FILE, metavar="FILE", help="The gateway's settings; `upstream` names the cluster."),
    _option("--url", metavar="URL", help="Address of the cluster (default: http://127.0.0.1:9200)."),
    _option("--user", metavar="NAME", help=f"Basic auth. The password is read from {PASSWORD}, or asked for."),
    _option("--aws-service", type=click.Choice(("es", "aoss")), help="Sign with SigV4 and boto3's credentials."),
    _option("--aws-region", metavar="REGION", help="Region to sign for (default: as boto3 finds it)."),
    _option("--aws-profile", metavar="NAME", help="Profile in the AWS configuration files."),
    _option("--ca-file", metavar="FILE", help="PEM file with the certificate authorities to trust."),
    _option("--cert-file", metavar="FILE", help="PEM file with the client certificate and its chain."),
    _option("--key-file", metavar="FILE", help="PEM file with the client's key, if it is not in --cert-file."),
    _option("--insecure", is_flag=True, help="Do not verify the cluster's certificate."),
    _option("--tenant", metavar="ID", help=f"Tenant of a multi-tenant ML Commons (sent as {TENANT})."),
    _option("--cluster-version", metavar="V", help="The cluster's version, such as 2.19.0, if GET / does not show it."),
)


gateway_option = click.option(
    "--gateway",
    "gateways",
    multiple=True,
    envvar="MLC_GATEWAYS",
    metavar="URL",
    help="Admin port of a running gateway, so that it loses no images meanwhile; may be repeated. MLC_GATEWAYS holds "
    f"several, with spaces between them, and {ADMIN_TOKEN} their token.",
)
"""The option of the commands that change templates."""


def cluster_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the cluster's options to a command; the function gets them as one argument, `cluster`."""

    @functools.wraps(function)
    def collected(**values: Any) -> int:
        cluster = ClusterOptions(**{name: values.pop(name) for name in _NAMES})
        return function(cluster=cluster, **values)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected
