"""Documents as they were before a change on the cluster, held while an upgrade or a rollback makes it.

A loaded model does not follow its documents at once (docs/evidence/facts.md, "Deploy states and connector changes").
Meanwhile a plan that is made by the documents may send more than the loaded template takes. What is planned for the
template from before an upgrade arrives with both. So the migration lets gateways plan with the old documents until the
change is in use. A hold ends by itself unless it is renewed: the migration may be killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.agents.documents import Document

MOST_HOLDS = 64
LONGEST_HOLD = 300.0
"""Seconds."""


class TooManyHolds(Exception):
    """There are `MOST_HOLDS` already."""


class _Hold(msgspec.Struct):
    parts: Mapping[str, Any]
    since: float
    expires: float


class Holds:
    """The held parts of documents, by the name of each hold. One object serves a whole process, through reloads.

    A part is ``connectors/ID`` with the document, ``models/ID/connector`` with the connector inside the model, or
    ``models/ID/connector_id``.

    version: another number each time that something else is held. What was read under another one is out of date.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._holds: dict[str, _Hold] = {}
        self.version = 0

    def hold(self, name: str, parts: Mapping[str, Any], seconds: float) -> bool:
        """Hold these parts for some seconds from now on. Return True if this renews a hold of the same parts.

        Raises:
            TooManyHolds: nothing was changed.
        """
        now = self._clock()
        known = self._current().get(name)
        if known is not None and known.parts == parts:
            known.expires = now + seconds
            return True
        if known is None and len(self._holds) >= MOST_HOLDS:
            raise TooManyHolds
        self._holds[name] = _Hold(parts, now, now + seconds)
        self.version += 1
        return False

    def release(self, name: str) -> bool:
        """End a hold. Return False if there is none of this name."""
        known = self._current().pop(name, None)
        if known is not None:
            self.version += 1
        return known is not None

    def since(self, name: str) -> float:
        """Return the time from which on everything is planned with the parts of a hold."""
        return self._holds[name].since

    def apply(self, path: str, document: Document) -> Document:
        """Return the document at `path`, as it was just read, with its parts that are held."""
        for hold in self._current().values():
            document = hold.parts.get(path, document)
            for member in ("connector", "connector_id"):
                if (part := hold.parts.get(f"{path}/{member}")) is not None:
                    document = {**document, member: part}
        return document

    def _current(self) -> dict[str, _Hold]:
        """Return the holds, without those whose time is over."""
        now = self._clock()
        for name in [name for name, hold in self._holds.items() if hold.expires <= now]:
            del self._holds[name]
            self.version += 1
        return self._holds
