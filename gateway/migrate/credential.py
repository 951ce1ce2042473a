"""The credential of a new connector. The cluster never shows the old one's, so the user gives it."""

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
    """The credential can't be read. The message says what to do and never holds the credential."""


def read_credential(path: Path) -> dict[str, str]:
    """Return the JSON object of a file that only its owner can read, or its member `credential`.

    Raises:
        CredentialError: the file can't be read, others can read it, or it is not an object of strings.
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


def credential_names(connector: Document) -> tuple[str, ...]:
    """Return the names in a connector's credential: those its actions refer to, or those its signature needs."""
    found = dict.fromkeys(_REFERENCE.findall(json.dumps(connector.get("actions"))))
    if found:
        return tuple(found)
    return ("access_key", "secret_key", "session_token") if connector.get("protocol") == "aws_sigv4" else ("key",)
