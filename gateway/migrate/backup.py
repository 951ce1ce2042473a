"""The backup file of one upgrade: what was there before, what is to be done, and how far it came.

It is written before anything else is, and again, whole, before and after each step: to a new file that takes the
old one's place once it is on disk. So whenever a run ends, the file tells what may have been begun. It never holds
a credential: the cluster shows none, and what a user gives for a new connector is not kept.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from gateway.migrate.steps import Step
from gateway.migrate.upgrade import Documents, Offer

State = Literal["planned", "begun", "done", "undone"]
Outcome = Literal["applying", "applied", "reverting", "reverted"]
DIRECTORY = "mlc-backups"
_FORMAT = 1


class BackupError(Exception):
    """The file or its directory can't be used; the message says what to do."""


class Record(msgspec.Struct, kw_only=True):
    """What the file holds.

    tag: what a connector made on the way is found by. key, models: the connector and the models it serves.
    named, others: the agents asked for and those reached besides. documents: ``agents/ID``, ``models/ID`` and
    ``connectors/ID`` as they were read. states: how far each of `steps` is. made: the id of a connector that was
    made, "" before that is known.
    """

    format: int = _FORMAT
    tag: str
    created: str
    url: str
    version: list[int]
    key: str
    models: list[str]
    named: list[str]
    others: list[str]
    parameter: str
    documents: dict[str, dict[str, Any]]
    steps: list[Step]
    states: list[State]
    made: str = ""
    outcome: Outcome = "applying"

    def as_read(self) -> Documents:
        """The documents as they were before."""
        kinds: dict[str, dict[str, Any]] = {"agents": {}, "models": {}, "connectors": {}}
        for path, document in self.documents.items():
            kind, _, id_ = path.partition("/")
            kinds[kind][id_] = document
        return Documents(tuple(self.version), kinds["agents"], kinds["models"], kinds["connectors"])


class Journal:
    """A record on disk, saved at every change. path: the file."""

    def __init__(self, path: Path, record: Record) -> None:
        self.path = path
        self.record = record

    @classmethod
    def create(cls, directory: Path, offer: Offer, documents: Documents, url: str) -> Journal:
        """A new file for `offer` in `directory`, which is made where it is missing.

        Raises:
            BackupError: it can't be written.
        """
        now = datetime.now(UTC)
        kept = {f"agents/{id_}": documents.agents[id_] for id_ in (*offer.named, *offer.others)}
        kept |= {f"models/{id_}": doc for id_, doc in documents.models.items()}
        kept |= {f"connectors/{id_}": doc for id_, doc in documents.connectors.items()}
        record = Record(
            tag=offer.tag,
            created=now.isoformat(timespec="seconds"),
            url=place_of(url),
            version=list(documents.version),
            key=offer.key,
            models=list(offer.models),
            named=list(offer.named),
            others=list(offer.others),
            parameter=offer.change.name,
            documents={path: dict(doc) for path, doc in kept.items()},
            steps=list(offer.steps),
            states=["planned"] * len(offer.steps),
        )
        name = re.sub(r"[^A-Za-z0-9_-]", "-", offer.key)
        journal = cls(directory / f"{now:%Y%m%dT%H%M%SZ}-{name}-{secrets.token_hex(4)}.json", record)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            journal.save()
        except OSError as error:
            raise BackupError(f"{journal.path}: the backup can't be written: {error}") from None
        return journal

    @classmethod
    def load(cls, path: Path) -> Journal:
        """The journal in a file.

        Raises:
            BackupError: the file can't be read, or is no backup.
        """
        try:
            record = msgspec.json.decode(path.read_bytes(), type=Record)
        except OSError as error:
            raise BackupError(f"{path}: {error.strerror or error}") from None
        except msgspec.DecodeError as error:
            raise BackupError(f"{path} is no backup of an upgrade: {error}") from None
        if record.format != _FORMAT or len(record.states) != len(record.steps):
            raise BackupError(f"{path} was written by another version: use that one")
        return cls(path, record)

    def mark(self, index: int, state: State) -> None:
        """Notes how far a step is."""
        self.record.states[index] = state
        self.save()

    def close(self, outcome: Outcome) -> None:
        """Notes what became of it all."""
        self.record.outcome = outcome
        self.save()

    def save(self) -> None:
        """Puts the record on disk, whole, readable by its owner alone.

        Raises:
            OSError: it can't be written.
        """
        data = msgspec.json.format(msgspec.json.encode(self.record), indent=2)
        new = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def unfinished(directory: Path, url: str) -> list[Journal]:
    """The upgrades of this cluster in `directory` that were begun and neither finished nor taken back."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            journal = Journal.load(path)
        except BackupError:
            continue  # some other file
        if journal.record.url == place_of(url) and journal.record.outcome in ("applying", "reverting"):
            found.append(journal)
    return found


def place_of(url: str) -> str:
    """Scheme, host and port of a cluster's address; a name and password in it are left out."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Holds the directory, so that two runs on this machine do not work from the same files.

    The system lets go of it when the process ends, however it ends.

    Raises:
        BackupError: another run holds it, or it can't be written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BackupError(f"{directory}: {error.strerror or error}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BackupError(f"{directory} is in use by another upgrade or rollback: wait until it has ended") from None
    finally:
        os.close(handle)
