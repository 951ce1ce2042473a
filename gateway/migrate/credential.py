"""The credential of a connector that is to be made anew: the cluster never shows the old one's, so it is given."""

from __future__ import annotations

import getpass
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway.agents.documents import Document

_REFERENCE = re.compile(r"\$\{credential\.([^}:]+)")
_PRIVATE = 0o077


class CredentialError(Exception):
    """The credential can't be had; the message says what to do, and holds nothing of it."""


def from_file(path: Path) -> dict[str, str]:
    """The JSON object of a file that its owner alone can read, or its member `credential`.

    Raises:
        CredentialError: it can't be read, others can read it, or it is no object of strings.
    """
    try:
        if path.stat().st_mode & _PRIVATE:
            raise CredentialError(f"{path} holds a credential and others can read it: chmod 600 {path}")
        value: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise CredentialError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise CredentialError(f"{path} is not JSON") from None
    inner = value.get("credential", value) if isinstance(value, dict) else value
    if not isinstance(inner, dict) or not inner or not all(isinstance(v, str) for v in inner.values()):
        raise CredentialError(f'{path} must hold a JSON object of strings, such as {{"openai_api_key": "…"}}')
    return inner


def asked(names: Sequence[str], ask: Callable[[str], str] | None = None) -> dict[str, str]:
    """Each of `names`, typed without being shown; those left empty are left out.

    Raises:
        CredentialError: there is no terminal, or nothing was typed.
    """
    if ask is None and not sys.stdin.isatty():
        raise CredentialError("The credential can't be asked for without a terminal: give --credential-file FILE")
    given = {name: (ask or getpass.getpass)(f"credential.{name}: ") for name in names}
    found = {name: value for name, value in given.items() if value}
    if not found:
        raise CredentialError("No credential was given")
    return found


def names_in(connector: Document) -> tuple[str, ...]:
    """The names a connector's credential has: those its actions refer to, or what its signature needs."""
    told = dict.fromkeys(_REFERENCE.findall(json.dumps(connector.get("actions"))))
    if told:
        return tuple(told)
    return ("access_key", "secret_key", "session_token") if connector.get("protocol") == "aws_sigv4" else ("key",)
