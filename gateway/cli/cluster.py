"""What the commands that talk to a cluster share: their options, credentials, consent, and signals."""

from __future__ import annotations

import functools
import getpass
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIG_DFL, SIGHUP, SIGTERM, default_int_handler, getsignal, signal
from typing import Any

import click
from msgspec.structs import fields

from gateway.agents.documents import Rule
from gateway.cli.command import FILE, ClusterOption, collected
from gateway.migrate.connection import PASSWORD, TENANT, ClusterOptions, Connected
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


cluster_options = collected("cluster", ClusterOptions, dict(zip(_NAMES, _OPTIONS, strict=True)))
"""Adds the cluster's options to a command; the function gets them as one argument, `cluster`."""


def rules_of(cluster: Connected) -> tuple[Rule, ...]:
    """Return the rules in the gateway's settings that name an agent's provider."""
    return tuple(Rule(rule.agent, rule.provider or None, rule.delivery) for rule in cluster.settings.agents.rules)


def confirm(question: str) -> bool:
    """Ask a question on the terminal. Return False for any answer but yes, and without a terminal."""
    if not sys.stdin.isatty():
        return False
    sys.stderr.write(f"{question} [y/N] ")  # standard output may get JSON, or go to a file
    sys.stderr.flush()
    return input().strip().lower() in ("y", "yes")


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt a change as Ctrl-C does: models that are parked get their connector back."""
    numbers = [number for number in (SIGTERM, SIGHUP) if getsignal(number) == SIG_DFL]
    for number in numbers:
        signal(number, default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal(number, SIG_DFL)


_PRIVATE = 0o077


class CredentialError(Exception):
    """The credential can't be read. The message says what to do and never holds the credential."""


def read_credential(path: Path) -> dict[str, str]:
    """Return the JSON object of a file that only its owner can read, or its member `credential`.

    Raises:
        CredentialError: the file can't be read, others can read it, or it is not an object of strings.
    """
    value = _read_secrets(path)
    inner = value.get("credential", value) if isinstance(value, dict) else value
    if not _is_credential(inner):
        raise CredentialError(f'{path} must hold a JSON object of strings, such as {{"openai_api_key": "…"}}')
    credential: dict[str, str] = inner
    return credential


def read_credentials(path: Path, wanted: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """Return the credentials of several connectors, by the places where they are (``connectors/ID``, ``models/ID``).

    wanted: place → the names of its secrets. The file holds an object by place; for one connector also the form of
    `read_credential`.

    Raises:
        CredentialError: as `read_credential`, or one of them, or a name in it, is missing.
    """
    value = _read_secrets(path)
    if len(wanted) == 1 and not (isinstance(value, dict) and value.keys() & wanted.keys()):
        value = {next(iter(wanted)): read_credential(path)}
    form = credentials_form(wanted)
    if not isinstance(value, dict):
        raise CredentialError(f"{path} must hold a JSON object with the credential of each connector, as {form}")
    for place, names in wanted.items():
        if not _is_credential(value.get(place)):
            raise CredentialError(f"{path} has no credential for {place}: it must hold {form}")
        missing = [name for name in names if name not in value[place] and name not in _OPTIONAL]
        if missing and not value[place].keys() & _ROLES:
            raise CredentialError(f"{path} has no `{'`, `'.join(missing)}` for {place}: it must hold {form}")
    return {place: value[place] for place in wanted}


def credentials_form(wanted: Mapping[str, Sequence[str]]) -> str:
    """Return what a file must hold with the credentials that are `wanted`, as JSON without their values."""
    return json.dumps({place: dict.fromkeys(names, "…") for place, names in wanted.items()}, ensure_ascii=False)


_OPTIONAL = frozenset({"session_token"})
_ROLES = frozenset({"roleArn", "externalAccountRoleArn"})
"""Names of a credential of AWS that take the place of its keys."""


def _is_credential(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(one, str) for one in value.values())


def _read_secrets(path: Path) -> Any:
    """Return the JSON data of a file that only its owner can read."""
    try:
        if path.stat().st_mode & _PRIVATE:
            raise CredentialError(f"{path} holds a credential and others can read it: chmod 600 {path}")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CredentialError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise CredentialError(f"{path} is not JSON") from None


def ask_credential(names: Sequence[str], ask: Callable[[str], str] | None = None) -> dict[str, str]:
    """Ask for each of `names` on the terminal, without echo. Empty ones are left out.

    Raises:
        CredentialError: there is no terminal, or every answer was empty.
    """
    if ask is None and not sys.stdin.isatty():
        raise CredentialError("The credential can't be asked for without a terminal: give --credential-file FILE")
    given = {name: (ask or getpass.getpass)(f"credential.{name}: ") for name in names}
    found = {name: value for name, value in given.items() if value}
    if not found:
        raise CredentialError("No credential was given")
    return found
