"""Where the sessions of an owner are in a directory that Strands' `FileSessionManager` uses.

``[tenant_<tenant>/][caller_<caller>/]session_<id>/agents/agent_<agent_id>/``; the parts in brackets only where they are
not empty. So the directory itself is Strands' `storage_dir` where there is one tenant and callers are not kept apart.
A session directory may hold several agents, as in Strands. Each is a session of its own here.

A name is the id itself, with ``%2F`` for ``/``, and so for ``%``, NUL, and what is not text. An id of more than 200
bytes is cut, and ``%_`` and its SHA-256 follow.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from gateway.memory.model import Owner, SessionKey

_LONGEST = 200
_CUT = "%_"
_UNSAFE = re.compile("[%/\0\ud800-\udfff]")


def encode_name(id_: str) -> str:
    """Return a file name for `id_`; another one for each id."""
    name = _UNSAFE.sub(lambda match: quote(match[0], safe="", errors="surrogatepass"), id_)
    if len(name.encode()) <= _LONGEST:
        return name
    digest = hashlib.sha256(id_.encode(errors="surrogatepass")).hexdigest()
    return name[: _LONGEST // 8] + _CUT + digest


def decode_name(name: str) -> str | None:
    """Return the id of a file name, or None if the name does not tell."""
    id_ = unquote(name, errors="surrogatepass")
    return id_ if encode_name(id_) == name else None


def owner_directory(root: Path, owner: Owner) -> Path:
    """Return the directory that holds the session directories of `owner`."""
    for prefix, value in (("tenant_", owner.tenant), ("caller_", owner.caller)):
        if value:
            root /= prefix + encode_name(value)
    return root


def session_directory(root: Path, key: SessionKey) -> Path:
    """Return the directory of the session, which all its agents share."""
    return owner_directory(root, key.owner) / f"session_{encode_name(key.id)}"


def agent_directory(root: Path, key: SessionKey) -> Path:
    """Return the directory of the agent in its session."""
    return session_directory(root, key) / "agents" / f"agent_{encode_name(key.owner.agent_id)}"


def find_agents(root: Path, owner: Owner | None) -> Iterator[Path]:
    """Return the agents' directories of the sessions of `owner`, or of all."""
    if owner is not None:
        agent = f"agent_{encode_name(owner.agent_id)}"
        for session in _listed(owner_directory(root, owner), "session_"):
            yield session / "agents" / agent
        return
    tenants = [root, *_listed(root, "tenant_")]
    for base in [*tenants, *(caller for tenant in tenants for caller in _listed(tenant, "caller_"))]:
        for session in _listed(base, "session_"):
            yield from _listed(session / "agents", "agent_")


def key_of(root: Path, agent: Path, stored: SessionKey | None = None) -> SessionKey | None:
    """Return the key of an agent's directory, or None if its names do not tell.

    stored: the key in the directory's own files, which tells the ids that a name was too short for. A copy of a
    directory has it, too, so it says nothing else.
    """
    found = {"tenant": "", "caller": "", "session": "", "agent": ""}
    ids = {}
    if stored is not None:
        owner = stored.owner
        ids = {"tenant": owner.tenant, "caller": owner.caller, "session": stored.id, "agent": owner.agent_id}
    for part in agent.relative_to(root).parts:
        prefix, _, name = part.partition("_")
        if prefix not in found:
            continue  # the directory "agents"
        id_ = decode_name(name)
        if id_ is None and prefix in ids and encode_name(ids[prefix]) == name:
            id_ = ids[prefix]
        if id_ is None:
            return None
        found[prefix] = id_
    return SessionKey(Owner(found["agent"], found["tenant"], found["caller"]), found["session"])


def _listed(directory: Path, prefix: str) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return [Path(entry.path) for entry in entries if entry.name.startswith(prefix)]
    except (FileNotFoundError, NotADirectoryError):
        return []
