"""Caches of the loop and the reading thread: the least recently used is dropped first, and nothing waits."""

from __future__ import annotations

import threading

import pytest

from gateway.recent import Recent, computed_once


def test_the_least_recently_used_value_goes_first() -> None:
    recent: Recent[str] = Recent(2)
    for key in "abaca":
        assert recent.get(key, lambda key=key: key.upper()) == key.upper()  # type: ignore[misc]
    assert list(recent) == ["C", "A"]


def test_what_can_not_be_computed_is_not_kept() -> None:
    recent: Recent[float] = Recent(2)
    with pytest.raises(ZeroDivisionError):
        recent.get("a", lambda: 1 / 0)
    assert len(recent) == 0


def test_a_value_that_takes_long_keeps_no_other_thread_waiting() -> None:
    begun, go = threading.Event(), threading.Event()

    class Computed:
        @computed_once
        def long(self) -> str:
            begun.set()
            assert go.wait(60)
            return "long"

        @computed_once
        def short(self) -> str:
            return "short"

    recent: Recent[str] = Recent(2)
    slow, other = Computed(), Computed()
    thread = threading.Thread(target=lambda: recent.get("slow", lambda: slow.long))
    thread.start()
    assert begun.wait(60)
    assert recent.get("other", lambda: other.short) == "short"
    go.set()
    thread.join()
    assert recent.get("slow", lambda: "another") == "long"
    assert slow.__dict__ == {"long": "long"}
