"""Values that are computed once and kept, by the event loop and by the reading thread at the same time.

`functools` has both kinds, with locks that are held while a value is computed: a long computation on one thread would
keep the other from every other value. Here nothing waits; two threads that want the same value may both compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")


class computed_once(Generic[_T]):
    """A property that is computed when it is first asked for, as `functools.cached_property`."""

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
    """At most `most` values by key, none of them None; the least recently used goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Hashable, _T] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[_T]:
        return iter(list(self._values.values()))

    def get(self, key: Hashable, compute: Callable[[], _T]) -> _T:
        """Return the value of `key`; what `compute` returns if there is none yet. What it raises is not kept."""
        value = self._values.pop(key, None)
        if value is None:
            value = compute()
        self._values[key] = value
        for oldest in list(self._values)[: -self._most]:
            self._values.pop(oldest, None)
        return value
