"""Makes `Lines`, redacted, from what the data port left of requests that passed."""

from __future__ import annotations

from collections.abc import Iterable
from random import getrandbits

from gateway.http1.response_heads import ResponseHead
from gateway.inspector.heads import HeadMaker
from gateway.inspector.lines import Line, LineRequest, LineResponse, Lines
from gateway.observe.record import Scheme
from gateway.observe.redaction import Redactor
from gateway.observe.secrets import Secrets
from gateway.proxy.capture import FieldLines, Passed


class LineMaker:
    """Makes lines. worker: the process. scheme: of the data port."""

    def __init__(self, redactor: Redactor, heads: HeadMaker, worker: int, scheme: Scheme) -> None:
        self._redactor = redactor
        self._heads = heads
        self._worker = worker
        self._scheme = scheme

    def make(self, passed: Iterable[tuple[Passed, int]], offset: float) -> Lines:
        """Return the lines of requests, given with their places.

        offset: seconds from `time.monotonic` to the time since the epoch.
        """
        tables = _Tables(self._heads)
        requests, responses, secrets = tables.requests, tables.responses, tables.secrets
        has_rules = self._redactor.has_rules
        lines: list[Line] = []
        for request, place in passed:
            fields, method, target, minor, connection, client, started, answered_at, ended, status, head = request
            request_at = requests[fields] if fields in requests else tables.add_request(fields)
            response_at = responses[head] if head in responses else tables.add_response(head)
            if has_rules or secrets[request_at] or b"?" in target:
                found = Secrets(secrets[request_at])
                path = found.hide(self._redactor.target(target, found))
            else:
                path = target.decode("utf-8", "replace")
            times, heads = (started, answered_at, ended), (request_at, response_at)
            lines.append((*times, status, connection, client, method.decode("ascii"), minor, path, *heads, place))
        heads_made = tables.request_heads, tables.response_heads
        return Lines(getrandbits(62), offset, self._worker, *heads_made, lines, self._scheme)


class _Tables:
    """The heads of some lines, by index. secrets: of each request's head."""

    def __init__(self, heads: HeadMaker) -> None:
        self._heads = heads
        self.requests: dict[FieldLines, int] = {}
        self.responses: dict[ResponseHead | None, int] = {None: -1}
        self.request_heads: list[LineRequest] = []
        self.response_heads: list[LineResponse] = []
        self.secrets: list[tuple[str, ...]] = []

    def add_request(self, fields: FieldLines) -> int:
        head = self._heads.request(fields, Secrets())
        self.requests[fields] = index = len(self.request_heads)
        self.request_heads.append(LineRequest(head.headers, fields.length or 0, head.user_agent, head.trace_id))
        self.secrets.append(head.secrets)
        return index

    def add_response(self, response: ResponseHead | None) -> int:
        assert response is not None
        head = self._heads.response(response, Secrets())
        self.responses[response] = index = len(self.response_heads)
        self.response_heads.append(LineResponse(head.headers, response.length or 0))
        return index
