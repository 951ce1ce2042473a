"""A process that records exchanges until it is killed. Arguments: a directory, the writer's name, and a seed.

It prints ``opening``, and then the number of each batch that all stores have taken.
"""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

from gateway.config.inspector import AuditFile as AuditSettings
from gateway.config.inspector import SqliteExchanges
from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from gateway.recording.sinks.audit_file import AuditFile
from gateway.recording.sinks.sqlite import SqliteStore
from tests.recording.records import record

BATCH = 3


def whole_store(place: Path) -> SqliteStore:
    """Return the store that keeps all."""
    return SqliteStore(SqliteExchanges(str(place / "whole"), seconds=0.0))


def bounded_store(place: Path) -> SqliteStore:
    """Return the store that often deletes its oldest exchanges."""
    return SqliteStore(SqliteExchanges(str(place / "bounded"), bytes=1_000_000, media_bytes=50_000, seconds=0.0))


def audit_file(place: Path) -> AuditFile:
    """Return the audit file, which is often full."""
    return AuditFile(AuditSettings(str(place / "audit.jsonl"), bytes=200_000, files=10_000, sync="system"))


def record_of(id: str) -> ExchangeRecord:
    """Return the record with this id: always the same one."""
    chance = random.Random(id)
    text = f"word{id.replace('-', 'x')} " + "text " * chance.choice((1, 100, 5000))
    return record(id=id, request=HttpMessage((), Body(len(text), text)))


def medium_of(id: str) -> bytes:
    """Return the medium of a record."""
    return f"medium {id} ".encode() * 1000


def write(place: Path, name: str, seed: str) -> None:
    """Record batch after batch until killed."""
    chance = random.Random(f"{name} {seed}")
    print("opening", flush=True)
    stores = [whole_store(place), bounded_store(place)]
    audit = audit_file(place)
    number = 0
    while True:
        records = [record_of(f"{name}-{number}-{index}") for index in range(BATCH)]
        for store in stores:
            medium = medium_of(records[0].id)
            store.keep_medium(hashlib.sha256(medium).hexdigest(), "image/png", medium)
            store.add(records)
            match chance.randrange(6):
                case 0:
                    store.index(0.0)
                case 1:
                    store.trim()
        audit.add(records)
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
