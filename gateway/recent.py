"""Caches that the event loop and the reading thread use at the same time.

The caches of `functools` hold a lock while a value is computed, so a long computation on one thread would block the
other. These have no locks; two threads that need the same value may both compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")


class computed_once(Generic[_T]):
    """A property that is computed on first use, like `functools.cached_property`."""

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> computed_once[_T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...
    def __get__(self, instance: object | None, owner: type) -> computed_once[_T] | _T:
        if instance is None:
            return self
        value = self._compute(instance)
        instance.__dict__[self._name] = value
        return value


class Recent(Generic[_T]):
    """At most `most` values by key, none of them None. The least recently used is dropped first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Hashable, _T] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[_T]:
        return iter(list(self._values.values()))

    def peek(self, key: Hashable) -> _T | None:
        """Return the value of `key`, or None. It does not count as a use."""
        return self._values.get(key)

    def put(self, key: Hashable, value: _T) -> None:
        """Replace the value of `key`."""
        self._values.pop(key, None)
        self.get(key, lambda: value)

    def get(self, key: Hashable, compute: Callable[[], _T]) -> _T:
        """Return the value of `key`, computed with `compute` if there is none. Exceptions are not cached."""
        value = self._values.pop(key, None)
        if value is None:
            value = compute()
        self._values[key] = value
        if len(self._values) > self._most:
            for oldest in list(self._values)[: -self._most]:
                self._values.pop(oldest, None)
        return value
