"""Walks through the exchanges of a store. Blocks, as the store does."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.inspector.store import Filter, RecordStore
from gateway.observe.record import ExchangeRecord

_PAGE = 200


def oldest_first(store: RecordStore, wanted: Filter) -> Iterator[ExchangeRecord]:
    """Yield whole exchanges in the order in which they were stored. One that is deleted meanwhile is left out.

    Raises:
        InvalidFilter, StoreError: as the store.
    """
    after = 0
    while True:
        rows = store.newer(wanted, after, _PAGE)
        for row in rows:
            record = store.get(row.record.id)
            if record is not None:
                yield record
        if len(rows) < _PAGE:
            return
        after = rows[-1].position
