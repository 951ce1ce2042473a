"""Shows the use case a response of the cluster after it was sent on; see `answered` of `gateway.ports.Forward`."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from gateway.offload import READING
from gateway.ports import Answered
from gateway.proxy.body_copy import ResponseCopy
from gateway.proxy.interfaces import RunningExchange
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.request_log import RequestLog


class AnswerReport:
    """The report about one exchange. What takes long is done in the background."""

    def __init__(self, exchange: RunningExchange, answered: Answered, lifecycle: Lifecycle, log: RequestLog) -> None:
        self._exchange = exchange
        self._answered = answered
        self._lifecycle = lifecycle
        self._log = log

    def run(self, copy: ResponseCopy | None) -> None:
        """Report a response. copy: None if there was none."""
        if copy is None:
            left = self._call(0, b"")
        elif copy.is_small:
            left = self._call(copy.head.status, copy.content())
        else:
            left = self._read(copy.head.status, copy)
        if left is not None:
            self._lifecycle.run_report(left)

    async def _read(self, status: int, copy: ResponseCopy) -> None:
        try:
            content = await READING.run(copy.content)
        except Exception:
            self._log.internal_error(self._exchange)
            content = b""
        left = self._call(status, content)
        if left is not None:
            await left

    def _call(self, status: int, content: bytes) -> Coroutine[Any, Any, None] | None:
        """Call the use case; return the work that it leaves."""
        try:
            left = self._answered(status, content)
        except Exception:
            self._log.internal_error(self._exchange)
            return None
        return None if left is None else self._finish(left)

    async def _finish(self, left: Coroutine[Any, Any, None]) -> None:
        try:
            await left
        except Exception:
            self._log.internal_error(self._exchange)
