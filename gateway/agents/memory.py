"""What an agent remembers of a conversation, read as the agents read it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from gateway.agents.lookup import Credentials, DocumentTooLarge, FailedLookup, Lookup, LookupFailed, get_document
from gateway.errors import Problem

DEFAULT_LIMIT = 10
"""Messages an agent recalls without a `message_history_limit` (2.19 to 3.8)."""

_PAGE = 1000
_MOST_PAGES = 1000
_LONGEST = 16 * 1024 * 1024
"""Characters of the messages that an agent recalls."""


class MemoryReader:
    """Reads `conversation_index` memories, always in the caller's own name.

    Never with a service account: the memory's id comes from the caller, and the account may be allowed to read the
    memories of other callers.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._credentials = Credentials()

    async def remembered(
        self, memory_id: str, caller_headers: Mapping[str, str], limit: int | None = DEFAULT_LIMIT
    ) -> tuple[tuple[str, str], ...]:
        """Return the (question, response) pairs an agent would recall, oldest first; () if the memory does not exist.

        An agent takes the newest `limit` messages (None: all). The response is "" if the run failed or is unfinished
        (2.19.0 ``05_memory``, ``12_memory_after_failure``). The cluster sends the oldest first and in pages, so all
        pages are read. Pages of long messages are read with fewer messages each.

        Raises:
            DocumentTooLarge: the memory or one of its messages is longer than the gateway reads.
            LookupDenied, LookupFailed: see `gateway.agents.lookup`.
            UpstreamUnavailable, UpstreamTimeout: the cluster did not respond.
        """
        if limit is not None and limit <= 0:
            return ()
        headers = self._credentials.of(caller_headers)
        newest: deque[tuple[str, str]] = deque()
        start = 0
        size, length = _PAGE, 0
        for _ in range(_MOST_PAGES):
            try:
                page = await self._page(memory_id, headers, start, size)
            except DocumentTooLarge:
                if size == 1:
                    raise
                size //= 10
                continue
            if page is None:
                return ()
            messages, following = page
            for message in messages:
                newest.append(message)
                length += sum(map(len, message))
                if limit is not None and len(newest) > limit:
                    length -= sum(map(len, newest.popleft()))
            if length > _LONGEST:
                break
            if following is None:
                return tuple(newest)
            start = following
        raise _too_long(memory_id)

    async def _page(
        self, memory_id: str, headers: Mapping[str, str], start: int, size: int
    ) -> tuple[list[tuple[str, str]], int | None] | None:
        """Read a page of messages; return it with the start of the next one, or None if there is no such memory."""
        query = f"/messages?max_results={size}" + (f"&next_token={start}" if start else "")
        try:
            body = await get_document(self._lookup, "memory", memory_id, headers, query)
        except FailedLookup as failed:
            if failed.cluster_status == 404:
                return None
            raise
        messages, following = body.get("messages"), body.get("next_token")
        if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
            problem = Problem(
                f"memory/{memory_id}", "the answer holds no list of messages", "messages[]", repeats=memory_id
            )
            raise LookupFailed(f"the messages of memory {memory_id} can't be read", 200, problem)
        pairs = [(message.get("input") or "", message.get("response") or "") for message in messages]
        return pairs, following if isinstance(following, int) and following > start else None


def _too_long(memory_id: str) -> DocumentTooLarge:
    reason = f"the memory {memory_id} is longer than the gateway reads"
    help = "start a new memory"
    expected = f"at most {_LONGEST} characters in the messages that the agent recalls, and {_MOST_PAGES} pages"
    problem = Problem(f"memory/{memory_id}", reason, expected, "", "DOCUMENT_TOO_LARGE", help, memory_id)
    return DocumentTooLarge(reason, [problem], repeats=memory_id)


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    question, response = value.get("input"), value.get("response")
    if not response:
        return question is None or isinstance(question, str)
    return isinstance(response, str) and isinstance(question, str)
