"""Reads the store of exchanges for the pages, in threads of its own, so that a slow store delays no request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gateway.errors import GatewayError, InvalidInput, Problem
from gateway.observe.record import ExchangeRecord
from gateway.recording.store import InvalidFilter, RecordStore, StoreError

_THREADS = 4
T = TypeVar("T")


class RecordsUnavailable(GatewayError):
    """No exchanges are recorded, or their store can't be read."""

    status = 503
    type = "RecordsUnavailable"


class NotRecorded(GatewayError):
    """There is no record of this exchange, or of this medium."""

    status = 404
    type = "NotRecorded"


class Reader:
    """Reads `store`; None: nothing is recorded that can be read."""

    def __init__(self, store: RecordStore | None) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="inspector")

    async def ask(self, question: Callable[[RecordStore], T]) -> T:
        """Return what `question` finds. It is called in a thread.

        Raises:
            RecordsUnavailable: there is no store, or it can't be read. InvalidInput: it can't use a filter.
        """
        store = self.store
        if store is None:
            help = "Set inspector.enabled to true, with sqlite in inspector.stores."
            raise RecordsUnavailable("Exchanges are not recorded in a store that can be read.", help=help)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, question, store)
        except InvalidFilter as error:
            raise InvalidInput.of([Problem(error.field, str(error))]) from None
        except StoreError as error:
            raise RecordsUnavailable(str(error)) from error


def find_record(store: RecordStore, id: str) -> ExchangeRecord:
    """Return a whole record.

    Raises:
        NotRecorded: there is none.
    """
    record = store.get(id)
    if record is None:
        raise NotRecorded(f"There is no record of the exchange {id[:100]}: it was deleted, or never recorded.")
    return record
