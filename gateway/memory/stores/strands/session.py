"""One session in the files of Strands' `FileSessionManager`, and how a turn becomes visible at once.

::

    session_<id>/session.json               as Strands writes it
    session_<id>/agents/agent_<agent id>/
        agent.json                          as Strands writes it
        messages/message_<seq>.json         as Strands writes them
        gateway/state.json                  `State`
        gateway/turns                       a line for each turn (`TurnLines`)
        gateway/pending/message_<seq>.json  a turn that is being written
        gateway/hidden/message_<seq>.json   messages that the one after them shows, too

A turn's messages are written to ``pending``, its line to ``turns``, then ``state.json`` is replaced: now the turn is
stored, also if power is lost. Then the messages are moved to ``messages``, so Strands never sees a turn that was not
stored. If the writer was killed, the next access moves them, or deletes those that the state does not count.

Roles alternate in ``messages``, as LLM APIs want it: of several messages of one role, the last one shows all, and those
before it are in ``hidden``. So the last message of a session is always in ``messages``, and Strands goes on after it.

Messages in ``messages`` that the state does not count are Strands': the next access counts them. A user's message
begins a turn, unless it is only tool results. Strands does not lock anything: it must not write while the gateway does.

The directory is ``[tenant_<tenant>/][caller_<caller>/]session_<id>/…``; the parts in brackets only where they are not
empty. So the root itself is Strands' `storage_dir` where there is one tenant and callers are not kept apart. A session
directory may hold several agents, as in Strands. Each is a session of its own here. A name is the id itself, with
``%2F`` for ``/``, and so for ``%``, NUL, and what is not text. An id of more than 200 bytes is cut, and ``%_`` and its
SHA-256 follow.

All functions block. Those whose docstring ends with "Locked." run while the session is locked for other processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.memory.model import Message, Owner, Page, Session, SessionKey, StoredMessage, Turn
from gateway.memory.store import SessionConflict, SessionNotFound, UnreadableSession, Unstorable
from gateway.memory.stores.strands.mapping import (
    Record,
    agent_record,
    encode_record,
    from_record,
    session_record,
    shown_message,
    shows_more,
    starts_turn,
    to_record,
)
from gateway.storage.files import Write, make_directory, read_file, replace_file, write_files

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


VERSION = 1
_FILE = "gateway/state.json"


class State(Struct, frozen=True):
    """How many turns and messages of a session are finished, and what `Session` has besides.

    key: for directories whose names do not tell it. role: of the last message; "" if it is not known.
    """

    key: SessionKey
    turns: int = 0
    messages: int = 0
    created: float = 0.0
    system: str = ""
    pinned: bool = False
    role: str = ""
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


Lock = Callable[[Path], AbstractContextManager[None]]
"""Locks a session's directory, which need not exist, for other threads and processes."""


_RECORD = msgspec.json.Decoder()
_MESSAGE = re.compile(r"message_([0-9]{1,18})\.json")


class SessionFiles:
    """The files of the session `key` below `root`."""

    def __init__(self, root: Path, key: SessionKey, lock: Lock) -> None:
        self._key = key
        self._root = root
        self._directory = session_directory(root, key)
        self._agent = agent_directory(root, key)
        self._messages = self._agent / "messages"
        self._pending = self._agent / "gateway" / "pending"
        self._hidden = self._agent / "gateway" / "hidden"
        self._turns = self._agent / "gateway" / "turns"
        self._lock = lock

    def session(self) -> Session | None:
        """Return the session, or None if there is none."""
        state = self._current()
        try:
            return self._session(state) if state else None
        except FileNotFoundError:
            return None  # deleted meanwhile

    def load(self, before: int, limit: int, most_bytes: int) -> Page:
        """Return a page of messages. Errors as `Store.load`."""
        state = self._current()
        if state is None:
            raise self._not_found()
        high = max(0, min(before, state.messages))
        low = max(0, high - limit)
        try:
            if most_bytes:
                low = self._first_within(low, high, most_bytes)
            with open_turns(self._turns, state.turns) as turns:
                numbers = turns.numbered(low, high)
            found = []
            for seq, (turn, first) in enumerate(numbers, low):
                message, turn_id = self._read_message(seq)
                found.append(StoredMessage(seq, turn, turn_id or self._derived_id(first), message))
            return Page(tuple(found), more=low > 0)
        except FileNotFoundError as error:
            if read_state(self._agent) is None:
                raise self._not_found() from None
            raise UnreadableSession(f"{error.filename} is missing. Restore it from a backup") from error

    def append(self, turn: Turn, turns: int, now: float) -> Session:
        """Append the turn. Errors as `Store.append`."""
        with self._lock(self._directory):
            state = self._settle()
            if state and holds_turn(self._turns, state.turns, turn.id):
                return self._session(state)
            state = state or State(self._key, created=now)
            if state.turns != turns:
                raise SessionConflict(f"The session has {state.turns} turns, not {turns}", state.turns)
            records = self._records(turn, state)
            if not turns:
                self._make_directories(now)
            longer = replace(
                state,
                turns=turns + 1,
                messages=state.messages + len(records),
                system=state.system if turn.system is None else turn.system,
                role=turn.messages[-1].role if turn.messages else state.role,
            )
            if any(is_hidden for _, is_hidden in records):
                make_directory(self._hidden)
            writes = [
                Write((self._hidden if is_hidden else self._pending) / _file_name(seq), data)
                for seq, (data, is_hidden) in enumerate(records, state.messages)
            ]
            line = turn_lines(self._turns, turns, [(turn.id, state.messages)])
            write_state(self._agent, longer, *writes, line)
            self._publish(longer)
            os.utime(self._messages, (now, now))
            return self._session(longer)

    def pin(self, pinned: bool) -> Session:
        """Pin the session, or no longer. Errors as `Store.pin`."""
        with self._lock(self._directory):
            state = self._settle()
            if state is None:
                raise self._not_found()
            state = replace(state, pinned=pinned)
            write_state(self._agent, state)
            return self._session(state)

    def delete(self, trash: Path) -> bool:
        """Move the session to `trash`, which must not exist. Return whether there was one.

        Strands' directory of the session stays if other agents have a part in it.
        """
        with self._lock(self._directory):
            self._refuse_links()
            try:
                if self._settle() is None:
                    return False
            except UnreadableSession:
                pass  # what nobody can read can still be deleted
            parts = [part for kind in ("agents", "multi_agents") for part in (self._directory / kind).glob("*")]
            (self._directory if parts == [self._agent] else self._agent).rename(trash)
            return True

    def _session(self, state: State) -> Session:
        updated = max(state.created, self._messages.stat().st_mtime_ns / 1e9)
        return Session(self._key, state.turns, state.messages, state.created, updated, state.system, state.pinned)

    def _not_found(self) -> SessionNotFound:
        return SessionNotFound(f"There is no session {self._key.id} of this agent and caller")

    # Which messages there are

    def _current(self) -> State | None:
        """Return the state, after what a killed writer has left was finished and what Strands has added was counted."""
        self._refuse_links()
        state = read_state(self._agent)
        count = state.messages if state else 0
        if not (self._pending / _file_name(count - 1)).exists() and not self._message(count).exists():
            return state
        with self._lock(self._directory):
            return self._settle()

    def _refuse_links(self) -> None:
        """Refuse a link in place of a directory: it may lead to another session, and a deletion leaves what is there.

        Raises:
            UnreadableSession: there is one.
        """
        for directory in (self._messages, self._hidden, self._pending, *self._pending.parents):
            if directory == self._root:
                return
            if directory.is_symlink():
                raise UnreadableSession(f"{directory} is a symbolic link. Put the directory itself there")

    def _settle(self) -> State | None:
        """Finish what a killed writer has left, and count what Strands has added. Locked."""
        self._refuse_links()
        state = read_state(self._agent)
        for seq in _numbers(self._pending):
            pending = self._pending / _file_name(seq)
            if state is None or seq >= state.messages:
                pending.unlink()
            elif self._message(seq).exists():  # Strands has gone on without the turn
                with open_turns(self._turns, state.turns) as turns:
                    state = replace(state, messages=seq, turns=turns.turns_before(seq), role="")
                write_state(self._agent, state)
                pending.unlink()
        if state is not None:
            self._publish(state)
        return self._count_added(state)

    def _publish(self, state: State) -> None:
        """Move what `state` counts from `pending` to `messages`, in place of what it shows, too. Locked."""
        for seq in _numbers(self._pending):
            if seq < state.messages:
                pending = self._pending / _file_name(seq)
                self._hide_what(pending, seq)
                pending.rename(self._message(seq))

    def _hide_what(self, path: Path, seq: int) -> None:
        """Move away the message that the one in `path`, of number `seq`, shows, too. Locked."""
        while shows_more(_read_record(path)):
            seq -= 1
            path = self._message(seq)
            if path.exists():
                make_directory(self._hidden)
                path.rename(self._hidden / path.name)
                return
            path = self._hidden / path.name

    def _count_added(self, state: State | None) -> State | None:
        """Count the messages that Strands has added. Locked."""
        turns, seq = (state.turns, state.messages) if state else (0, 0)
        added: list[tuple[str, int]] = []
        role = state.role if state else ""
        while (found := self._find_message(seq)) is not None:
            message, _ = found
            role = message.role
            if starts_turn(message) or not turns + len(added):
                added.append((self._derived_id(seq), seq))
            state = state or State(self._key, created=message.metadata.created)
            seq += 1
        if state is None or seq == state.messages:
            return state
        make_directory(self._pending)
        longer = replace(state, turns=turns + len(added), messages=seq, role=role)
        write_state(self._agent, longer, turn_lines(self._turns, turns, added))
        return longer

    def _derived_id(self, first: int) -> str:
        """Return the id of the turn that begins with Strands' message `first`."""
        return f"strands-{self._key.id}-{first}"

    # Files

    def _first_within(self, low: int, high: int, most_bytes: int) -> int:
        """Return the first seq from `low` on whose files to below `high` have at most `most_bytes`, or ``high - 1``."""
        total = 0
        for seq in range(high - 1, low - 1, -1):
            total += self._path(seq).stat().st_size
            if total > most_bytes and seq < high - 1:
                return seq + 1
        return low

    def _message(self, seq: int) -> Path:
        return self._messages / _file_name(seq)

    def _path(self, seq: int) -> Path:
        """Return where a message is."""
        path = self._message(seq)
        return path if path.exists() else self._hidden / path.name

    def _read_message(self, seq: int) -> tuple[Message, str]:
        """Return a message, and the id of its turn, "" if Strands wrote it."""
        name = _file_name(seq)
        path = f"{self._messages}/{name}"  # a Path would take as long as all else
        try:
            return _read(path)
        except FileNotFoundError:
            try:
                return _read(f"{self._hidden}/{name}")
            except FileNotFoundError:
                pass
            raise

    def _find_message(self, seq: int) -> tuple[Message, str] | None:
        """Return a message that Strands sees, as `_read_message`; None if there is none."""
        try:
            return _read(self._message(seq))
        except FileNotFoundError:
            return None

    def _records(self, turn: Turn, state: State) -> list[tuple[bytes, bool]]:
        """Return the content of the file of each message, and whether the next message shows it, too."""
        found: list[tuple[bytes, bool]] = []
        role, shown = state.role, None
        for index, message in enumerate(turn.messages):
            seq = state.messages + index
            if seq and (message.role == role or not role):
                shown = shown or shown_message(_read_record(self._message(seq - 1)))
            if shown is not None and message.role != shown["role"]:
                shown = None
            if shown is not None and found:
                found[-1] = (found[-1][0], True)
            try:
                record = to_record(message, seq, turn.id, shown["content"] if shown else ())
                found.append((encode_record(record), False))
            except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
                reason = f"This can't be written as a message of Strands: {error}"
                raise Unstorable(reason, f"messages[{index}]") from error
            role, shown = message.role, shown_message(record)
        return found

    def _make_directories(self, now: float) -> None:
        """Make the directories, and Strands' own files if it has not made them. Locked."""
        for directory in (self._directory / "multi_agents", self._messages, self._pending):
            make_directory(directory)
        for path, record in (
            (self._directory / "session.json", session_record(self._key.id, now)),
            (self._agent / "agent.json", agent_record(self._key.owner.agent_id, now)),
        ):
            if not path.exists():
                new = path.with_suffix(".new")
                write_files(Write(new, encode_record(record)))
                replace_file(new, path)


def _read(path: str | Path) -> tuple[Message, str]:
    record = _read_record(path)
    try:
        return from_record(record)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error


def _read_record(path: str | Path) -> Record:
    data = read_file(path)
    try:
        try:
            record: Record = _RECORD.decode(data)
        except msgspec.DecodeError:
            record = json.loads(data)  # Python's JSON has NaN
        return record
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str | Path, error: Exception) -> UnreadableSession:
    return UnreadableSession(f"{path} can't be read: {error}. Restore it from a backup")


def _file_name(seq: int) -> str:
    return f"message_{seq}.json"


def _numbers(directory: Path) -> list[int]:
    """Return the numbers of the message files in `directory`, which need not exist, in ascending order."""
    try:
        names = (_MESSAGE.fullmatch(path.name) for path in directory.iterdir())
        return sorted(int(name[1]) for name in names if name)
    except FileNotFoundError:
        return []


_DIGEST = 32
_LINE = 48


class TurnLines:
    """The open file at `path`, of whose lines `count` count.

    Methods raise `UnreadableSession` if these lines are not all there.
    """

    def __init__(self, path: Path, descriptor: int, count: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._count = count

    def first(self, index: int) -> int:
        """Return the number of the first message of the turn in line `index`."""
        try:
            return int(os.pread(self._descriptor, _LINE, index * _LINE)[_DIGEST:])
        except ValueError:
            raise _damaged(self._path) from None

    def turns_before(self, seq: int) -> int:
        """Return how many turns begin before message `seq`."""
        return bisect_left(range(self._count), seq, key=self.first)

    def numbered(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the number of the turn (1, 2 …) and of its first message, for each message from `low` to `high`."""
        if low >= high:
            return []
        turn = bisect_right(range(self._count), low, key=self.first)
        starts = [self.first(index) for index in range(turn - 1, self.turns_before(high))]
        found = []
        for seq in range(low, high):
            while len(starts) > 1 and starts[1] <= seq:
                del starts[0]
                turn += 1
            found.append((turn, starts[0]))
        return found


@contextmanager
def open_turns(path: Path, count: int) -> Iterator[TurnLines]:
    """Open the file at `path`, of whose lines `count` count."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield TurnLines(path, descriptor, count)
    finally:
        os.close(descriptor)


def turn_lines(path: Path, count: int, turns: Iterable[tuple[str, int]]) -> Write:
    """Return what to write to the file for `turns` (id, number of the first message) after the first `count` lines."""
    lines = b"".join(b"%s %014d\n" % (_digest(id_), first) for id_, first in turns)
    return Write(path, lines, count * _LINE)


def holds_turn(path: Path, count: int, turn_id: str) -> bool:
    """Return whether one of the first `count` lines is of the turn `turn_id`.

    Raises:
        UnreadableSession: the file has fewer lines.
    """
    lines, digest = read_file(path)[: count * _LINE], _digest(turn_id)
    if len(lines) < count * _LINE:
        raise _damaged(path)
    found = lines.find(digest)
    while found % _LINE and found >= 0:  # a part of a line that looks like it
        found = lines.find(digest, found + 1)
    return found >= 0


def _damaged(path: Path) -> UnreadableSession:
    return UnreadableSession(f"{path} does not have the lines of all turns. Restore it from a backup")


def _digest(turn_id: str) -> bytes:
    return hashlib.blake2b(turn_id.encode(errors="surrogatepass"), digest_size=_DIGEST // 2).hexdigest().encode()
