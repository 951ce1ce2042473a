"""The file in which the gateway keeps what Strands has no place for; replacing it makes a turn visible."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from gateway.memory.model import SessionKey
from gateway.memory.store import UnreadableSession
from gateway.storage.atomic_files import Write, read_file, replace_file, write_files

VERSION = 1
_FILE = "gateway/state.json"


class State(Struct, frozen=True):
    """How many turns and messages of a session are finished, and what `Session` has besides.

    key: for directories whose names do not tell it.
    """

    key: SessionKey
    turns: int = 0
    messages: int = 0
    created: float = 0.0
    system: str = ""
    pinned: bool = False
    version: int = VERSION


_DECODER = msgspec.json.Decoder(State)


def read_state(agent: Path) -> State | None:
    """Return the state of the session in the agent's directory, or None if there is none.

    Raises:
        UnreadableSession: it is not what the gateway writes, or of another version.
    """
    path = agent / _FILE
    try:
        state = _DECODER.decode(read_file(path))
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise UnreadableSession(f"{path} can't be read: {error}. Restore it from a backup") from error
    if state.version != VERSION:
        raise UnreadableSession(f"{path} has version {state.version}. This gateway reads version {VERSION}")
    return state


def write_state(agent: Path, state: State, *before: Write) -> None:
    """Replace the state in the agent's directory, which must be locked, after `before` was written."""
    new = agent / f"{_FILE}.new"
    write_files(*before, Write(new, msgspec.json.encode(state)))
    replace_file(new, agent / _FILE)
