"""Resources that sets of settings share, as long as one of them is in use: a reload keeps what both name alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """A resource that is closed after its last use."""

    async def close(self) -> None:
        """Close it."""


T = TypeVar("T", bound=Closable)


class Shared(Generic[T]):
    """A resource of all sets of settings that name it. users: how many there are."""

    def __init__(self, resource: T, forget: Callable[[], object]) -> None:
        self.resource = resource
        self.users = 0
        self._forget = forget

    async def release(self) -> None:
        """End one use; the last one closes the resource."""
        self.users -= 1
        if not self.users:
            self._forget()
            await self.resource.close()


class SharedResources(Generic[T]):
    """Resources by name."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Shared[T]] = {}

    def use(self, name: Hashable, make: Callable[[], T]) -> Shared[T]:
        """Return the resource of a name, made if there is none. Release it in the end."""
        if name not in self._open:
            self._open[name] = Shared(make(), lambda: self._open.pop(name))
        shared = self._open[name]
        shared.users += 1
        return shared
