"""Names in AgentCore Memory: actors, sessions, and the tokens of writes. AgentCore allows only some characters."""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import quote, unquote

from gateway.memory.model import Owner, SessionKey

MESSAGES = "mlc"
RECORDS = "mlcrec"
MEDIA = "mlcmed"
PROBES = "mlcprb"

_LONGEST_ACTOR = 255
_SESSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,99}", re.ASCII)
_OTHERS = re.compile(rb"[^a-zA-Z0-9-]")


def actor(kind: str, owner: Owner) -> str:
    """Return the actor of an owner's sessions: ``mlc-AGENT__TENANT__CALLER``.

    kind: `MESSAGES`, or `RECORDS` or `MEDIA`, which belong to the same sessions, or `PROBES`. Bytes other than
    letters, digits and - are ``_XX``. A name that is too long is a hash.
    """
    name = "__".join(_escaped(part) for part in (owner.agent_id, owner.tenant, owner.caller))
    if len(f"{RECORDS}-{name}") > _LONGEST_ACTOR:
        name = f"_{_digest(owner.agent_id, owner.tenant, owner.caller)}"
    return f"{kind}-{name}"


def session(key: SessionKey) -> str:
    """Return the session's id; a hash of it if AgentCore does not allow it."""
    return key.id if _SESSION.fullmatch(key.id) else f"x-{_digest(key.id)}"


def token(*parts: object) -> str:
    """Return the client token of a write that `parts` identify."""
    return _digest(*parts)


def short_digest(turn_id: str) -> str:
    """Return what a session's record keeps of a turn's id."""
    return _digest(turn_id)[:16]


def to_metadata(text: str) -> str:
    """Return `text` in the characters of event metadata. Bytes other than letters, digits and ``_.-`` are ``=XX``."""
    return quote(text, safe="").replace("~", "%7E").replace("%", "=")


def from_metadata(text: str) -> str:
    """Reverse `to_metadata`."""
    return unquote(text.replace("=", "%"))


def _escaped(text: str) -> str:
    return _OTHERS.sub(
        lambda match: b"_" + match[0].hex().upper().encode(), text.encode("utf-8", "surrogatepass")
    ).decode()


def _digest(*parts: object) -> str:
    whole = sha256()
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")
        whole.update(str(len(data)).encode() + b":" + data)
    return whole.hexdigest()
