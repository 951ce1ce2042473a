"""What the address of a page asks for (filters, positions, limits), and reading it from the store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
from multidict import MultiMapping

from gateway.errors import GatewayError, InvalidInput, Problem
from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import SORTS, Filter, InvalidFilter, Sort, StoreError

FIELDS = Filter.__struct_fields__
_LIMIT, _MOST = 100, 1000
_LARGEST = 1 << 62
_TIMES = ("since", "until")


def read_filter(query: MultiMapping[str], others: tuple[str, ...] = ()) -> Filter:
    """Return the filter that a query asks for. others: further names that the query may have.

    Raises:
        InvalidInput: with a problem for each name that is unknown, given twice, or has a value of a wrong form.
    """
    problems = [_unknown(name) for name in dict.fromkeys(query) if name not in FIELDS and name not in others]
    found: dict[str, str | float] = {}
    for name in FIELDS:
        values = [value for value in query.getall(name, []) if value]
        if len(values) > 1:
            problems.append(Problem(name, "this filter is given more than once"))
        elif values and name in _TIMES:
            seconds = _seconds(values[0])
            if seconds is None:
                problems.append(Problem(name, "this is not a time", "seconds since the epoch", values[0][:100]))
            else:
                found[name] = seconds
        elif values:
            found[name] = values[0]
    if problems:
        raise InvalidInput.of(problems)
    return msgspec.convert(found, Filter)


def check_names(query: MultiMapping[str], names: Sequence[str]) -> None:
    """Check that a query has none but these names, each at most once.

    Raises:
        InvalidInput: with a problem for each other name, and each that is given twice.
    """
    problems = []
    for name in dict.fromkeys(query):
        if name not in names:
            problems.append(Problem(name[:100], "there is no such parameter here", ", ".join(names)))
        elif len(query.getall(name)) > 1:
            problems.append(Problem(name, "this parameter is given more than once"))
    if problems:
        raise InvalidInput.of(problems)


def read_number(query: Mapping[str, str], name: str) -> int | None:
    """Return a number of 0 or more; None if the query has none.

    Raises:
        InvalidInput: it is not such a number.
    """
    value = query.get(name, "")
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 20 and int(value) < _LARGEST):
        raise InvalidInput.of([Problem(name, "this is not a number of 0 or more", received=value[:100])])
    return int(value)


def read_limit(query: Mapping[str, str]) -> int:
    """Return how many rows are wanted.

    Raises:
        InvalidInput: it is not a number from 1 to 1000.
    """
    limit = read_number(query, "limit")
    if limit is None:
        return _LIMIT
    if not 1 <= limit <= _MOST:
        raise InvalidInput.of([Problem("limit", "this is out of range", f"1 to {_MOST}", str(limit))])
    return limit


def read_sort(query: Mapping[str, str]) -> Sort:
    """Return the order that a query asks for: `sort`, such as `took`, or `-took` for the largest first.

    Raises:
        InvalidInput: there is no such order.
    """
    text = query.get("sort", "") or "-time"
    by = text.removeprefix("-")
    if by not in SORTS:
        orders = f"{', '.join(SORTS)}; with - before it, the largest first"
        raise InvalidInput.of([Problem("sort", "there is no such order", orders, text[:100])])
    return Sort(by, text.startswith("-"))


def _unknown(name: str) -> Problem:
    return Problem(name[:100], "there is no such filter", ", ".join(FIELDS))


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


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

    def __init__(self, store: SqliteStore | None) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="inspector")

    async def ask(self, question: Callable[[SqliteStore], T]) -> T:
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


def find_record(store: SqliteStore, id: str) -> ExchangeRecord:
    """Return a whole record.

    Raises:
        NotRecorded: there is none.
    """
    record = store.get(id)
    if record is None:
        raise NotRecorded(f"There is no record of the exchange {id[:100]}: it was deleted, or never recorded.")
    return record
