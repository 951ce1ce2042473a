"""The backup file of one upgrade: the documents before it, its steps, and the state of each step.

It is written before anything else, and again before and after each step, each time as a new file that replaces the old
one once it is on disk. So the file shows which steps may have been begun, whenever a run ends. It never holds a
credential: the cluster shows none, and what a user gives for a new connector is not stored.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from gateway.agents.documents import needed, needed_connector
from gateway.migrate.connection import without_credentials
from gateway.migrate.steps import Step, is_deployed
from gateway.migrate.upgrade import Documents, Offer
from gateway.storage.files import Write, replace_file, try_lock, write_files

State = Literal["planned", "begun", "done", "undone"]
Outcome = Literal["applying", "applied", "reverting", "reverted"]
DIRECTORY = "mlc-backups"
UNKNOWN = "unknown"
_FORMAT = 2


class BackupError(Exception):
    """The file or its directory can't be used. The message says what to do."""


class Record(msgspec.Struct, kw_only=True):
    """The content of the file.

    tag: marks the connectors that the upgrade makes. key, models: the connector and the models it serves.
    named, others: the agents that the user named, and the others that use the connector. parameter: the names of the
    parameters that the connector gets; slot: the name of the template's. documents: ``agents/ID``, ``models/ID`` and
    ``connectors/ID`` as they were read.
    states: one per step. made: the id of the new connector, "" until it is known. parked: the id of the connector that
    models name while theirs is changed, "" for none, or `UNKNOWN` while it is being created. unremoved: connectors that
    the upgrade made and could not remove, though no model uses them, and why.
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
    slot: str
    documents: dict[str, dict[str, Any]]
    steps: list[Step]
    states: list[State]
    made: str = ""
    parked: str = ""
    unremoved: dict[str, str] = {}
    outcome: Outcome = "applying"

    @property
    def deployed(self) -> list[str]:
        """The models that were deployed, according to their documents."""
        return [model for model in self.models if is_deployed(self.documents[f"models/{model}"])]

    def documents_before(self) -> Documents:
        """Return the documents as they were before the upgrade."""
        kinds: dict[str, dict[str, Any]] = {"agents": {}, "models": {}, "connectors": {}}
        for path, document in self.documents.items():
            kind, _, id_ = path.partition("/")
            kinds[kind][id_] = document
        return Documents(tuple(self.version), kinds["agents"], kinds["models"], kinds["connectors"])


class Journal:
    """A record on disk, written at every change. path: the file."""

    def __init__(self, path: Path, record: Record) -> None:
        self.path = path
        self.record = record

    @classmethod
    def create(cls, directory: Path, offer: Offer, documents: Documents, url: str) -> Journal:
        """Write a new file for `offer` in `directory`; create the directory if needed.

        Raises:
            BackupError: the file can't be written.
        """
        now = datetime.now(UTC)
        record = Record(
            tag=offer.tag or secrets.token_hex(16),
            created=now.isoformat(timespec="seconds"),
            url=cluster_address(url),
            version=list(documents.version),
            key=offer.key,
            models=list(offer.models),
            named=list(offer.named),
            others=list(offer.others),
            parameter=", ".join(offer.change.parameters),
            slot=offer.change.slot,
            documents=_documents_of(offer, documents),
            steps=list(offer.steps),
            states=["planned"] * len(offer.steps),
        )
        name = re.sub(r"[^A-Za-z0-9_-]", "-", offer.key)
        journal = cls(directory / f"{now:%Y%m%dT%H%M%SZ}-{name}-{secrets.token_hex(4)}.json", record)
        journal.save()
        return journal

    @classmethod
    def load(cls, path: Path) -> Journal:
        """Read the journal in a file.

        Raises:
            BackupError: the file can't be read, or is not a backup.
        """
        try:
            record = msgspec.json.decode(path.read_bytes(), type=Record)
        except OSError as error:
            raise BackupError(f"{path}: {error.strerror or error}") from None
        except msgspec.DecodeError as error:
            raise BackupError(f"{path} is not the backup of an upgrade: {error}") from None
        if record.format != _FORMAT or len(record.states) != len(record.steps):
            raise BackupError(f"{path} was written by another version of mlc-gateway: use that version")
        return cls(path, record)

    def is_of(self, url: str) -> bool:
        """Return True if the upgrade was made at this address of a cluster."""
        return self.record.url == cluster_address(url)

    def mark(self, index: int, state: State) -> None:
        """Record the state of a step."""
        self.record.states[index] = state
        self.save()

    def park(self, connector: str) -> None:
        """Record the connector that models name while theirs is changed: its id, "" or `UNKNOWN`."""
        self.record.parked = connector
        self.save()

    def note_unremoved(self, connector: str, why: str) -> None:
        """Record a connector that could not be removed, though no model uses it."""
        self.record.unremoved[connector] = why
        self.save()

    def close(self, outcome: Outcome) -> None:
        """Record the outcome of the upgrade."""
        self.record.outcome = outcome
        self.save()

    def save(self) -> None:
        """Write the record to disk atomically, readable by its owner alone; create the directory if needed.

        Raises:
            BackupError: the file can't be written.
        """
        write_private(self.path, self.record)


def write_private(path: Path, record: msgspec.Struct) -> None:
    """Write a record as JSON atomically and to the disk, readable by its owner alone; create its directory if needed.

    Raises:
        BackupError: the file can't be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        write_files(Write(new, msgspec.json.format(msgspec.json.encode(record), indent=2)))
        replace_file(new, path)
    except OSError as error:
        raise BackupError(f"{path}: the backup can't be written: {error.strerror or error}") from None


def _documents_of(offer: Offer, documents: Documents) -> dict[str, dict[str, Any]]:
    """Return the agents of an upgrade by path, with the models and connectors that they use."""
    agents = {id_: documents.agents[id_] for id_ in (*offer.named, *offer.others)}
    used = dict.fromkeys((*offer.models, *(id_ for agent in agents.values() for id_ in needed(agent))))
    models = {id_: documents.models[id_] for id_ in used if id_ in documents.models}
    shared = dict.fromkeys(filter(None, map(needed_connector, models.values())))
    connectors = {id_: documents.connectors[id_] for id_ in shared if id_ in documents.connectors}
    kinds = {"agents": agents, "models": models, "connectors": connectors}
    return {f"{kind}/{id_}": dict(doc) for kind, docs in kinds.items() for id_, doc in docs.items()}


def unfinished(directory: Path) -> list[Journal]:
    """Return the upgrades in `directory` that are neither finished nor undone."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            journal = Journal.load(path)
        except BackupError:
            continue  # some other file
        if journal.record.outcome in ("applying", "reverting"):
            found.append(journal)
    return found


def cluster_address(url: str) -> str:
    """Return a cluster's address without a user name and password."""
    return without_credentials(url).rstrip("/")


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock the directory, so that two runs on this machine do not use the same files.

    The system releases the lock when the process ends.

    Raises:
        BackupError: another run has the lock, or the directory can't be written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BackupError(f"{directory}: {error.strerror or error}") from None
    try:
        if not try_lock(handle):
            raise BackupError(f"{directory} is in use by another upgrade, rollback or move: wait until it ends")
        yield
    finally:
        os.close(handle)
