"""Exchanges for other tools: as HAR, a shell command (curl), a Python script or a pytest file; and their routes."""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pprint import pformat
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.errors import GatewayError
from gateway.inspector.access import INSPECTOR
from gateway.inspector.har import write_har
from gateway.inspector.queries import Reader, find_record, read_filter
from gateway.inspector.repeatable import Medium, Repeatable, repeatable
from gateway.inspector.replay import NEW_IDS
from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import Filter

_LONGEST_ARGUMENT = 100_000
"""Linux takes at most 131,072 bytes in one argument of a program (MAX_ARG_STRLEN)."""
_WIDTH = 110
_VARYING = (*NEW_IDS, "took")
"""Names of values that differ in each answer of a cluster."""


def as_curl(record: ExchangeRecord, medium: Medium) -> str:
    """Return a curl command for a POSIX shell. Redacted headers are taken from environment variables."""
    request = repeatable(record, medium)
    url = f"{_base(record)}{request.target}"
    method = "--head" if request.method == "HEAD" and not request.body else f"--request {shlex.quote(request.method)}"
    lines = [f"curl --globoff --path-as-is {method} {shlex.quote(url)}"]
    lines += [f"--header {shlex.quote(f'{name}: {value}')}" for name, value in _sent(request)]
    lines += [f'--header {shlex.quote(f"{name}: ")}"${_variable(name)}"' for name in request.secrets]
    comments = [f"# {line}\n" for line in _comments(request)]
    if request.body:
        source, argument = _curl_data(request.body)
        lines[0] = source + lines[0]
        lines.append(argument)
    return "".join(comments) + " \\\n  ".join(lines) + "\n"


def _curl_data(body: bytes) -> tuple[str, str]:
    """Return what curl reads the body from, "" for nothing, and its argument.

    `printf` is part of the shell, so that no program gets an argument that is too long.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return f"printf %s {b64encode(body).decode('ascii')} | base64 --decode | ", "--data-binary @-"
    data = shlex.quote(text)
    if len(data) <= _LONGEST_ARGUMENT:
        return "", f"--data-raw {data}"
    return f"printf %s {data} | ", "--data-binary @-"


def as_python(record: ExchangeRecord, medium: Medium) -> str:
    """Return a script that sends the request with `requests`."""
    request = repeatable(record, medium)
    lines = [f"# {line}" for line in _comments(request)]
    lines += [
        *(["import os", ""] if request.secrets else []),
        "import requests",
        "",
        f"URL = {_base(record)!r}",
        *_headers(request),
        *_body(request),
    ]
    lines += ["", *_send(request), "print(response.status_code)", "print(response.text)"]
    return "\n".join(lines) + "\n"


def as_pytest(record: ExchangeRecord, medium: Medium) -> str:
    """Return a pytest file that sends the request, and expects the status and the body that were recorded."""
    request = repeatable(record, medium)
    moment = datetime.fromtimestamp(record.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [f'"""Exchange {_name(record.id)}, recorded on {moment}. MLC_URL names another endpoint to test."""', ""]
    lines += ["import os", "", *(["import pytest"] if request.missing else []), "import requests", ""]
    lines += [f'URL = os.environ.get("MLC_URL", {_base(record)!r})', *_headers(request), *_body(request)]
    expected = _expected(record)
    if isinstance(expected, dict | list):
        lines += [f"EXPECTED = {_literal(expected)}", f"VARYING = {set(_VARYING)!r}  # differ in each answer"]
        lines += ["", "", *_COMPARE.splitlines()]
    elif expected is not None:
        lines += [f"EXPECTED = {expected!r}"]
    lines += ["", ""]
    if request.missing:
        lines.append(f"@pytest.mark.skip(reason={' '.join(request.missing)!r})")
    lines += [f"def test_exchange_{_name(record.id)}() -> None:", *(f"    {line}" for line in _send(request))]
    lines.append(f"    assert response.status_code == {record.status}, response.text")
    if isinstance(expected, dict | list):
        lines.append("    assert stable(response.json()) == stable(EXPECTED)")
    elif expected is not None:
        lines.append("    assert response.text == EXPECTED")
    return "\n".join(lines) + "\n"


_COMPARE = '''\
def stable(value):
    """Return a JSON value without what differs in each answer."""
    if isinstance(value, dict):
        if value.get("name") in VARYING:
            return {"name": value["name"]}
        return {name: stable(item) for name, item in value.items() if name not in VARYING}
    return [stable(item) for item in value] if isinstance(value, list) else value
'''


def _base(record: ExchangeRecord) -> str:
    host = record.request.header("host")
    is_host = re.fullmatch(r"[\w.\-:\[\]]+", host, re.ASCII)
    return f"{record.scheme}://{host if is_host else '127.0.0.1:9200'}"


def _comments(request: Repeatable) -> list[str]:
    """Return what to know before the request is sent, a line each."""
    needed = [f"{_variable(name)} must hold the value of the header {name}." for name in request.secrets]
    return [*needed, *(" ".join(line.split()) for line in request.missing)]


def _sent(request: Repeatable) -> list[tuple[str, str]]:
    """Return the headers without those that every client writes itself."""
    return [(name, value) for name, value in request.headers if name.lower() not in ("user-agent", "accept-encoding")]


def _variable(header: str) -> str:
    return "MLC_" + re.sub(r"\W", "_", header.upper(), flags=re.ASCII)


def _name(id: str) -> str:
    return re.sub(r"\W", "_", id, flags=re.ASCII)


def _headers(request: Repeatable) -> list[str]:
    pairs = [f"    {name!r}: {value!r}," for name, value in dict(_sent(request)).items()]
    pairs += [f'    {name!r}: os.environ["{_variable(name)}"],' for name in request.secrets]
    return ["HEADERS = {", *pairs, "}"] if pairs else ["HEADERS = {}"]


def _body(request: Repeatable) -> list[str]:
    """Return the body as a Python literal: a JSON value where that is what it is, else bytes."""
    value = _json(request.body)
    return [f"BODY = {request.body!r}" if value is None else f"BODY = {_literal(value)}"]


def _send(request: Repeatable) -> list[str]:
    argument = "data" if _json(request.body) is None else "json"
    target = f"URL + {request.target!r}"
    sent = f"headers=HEADERS, {argument}=BODY, timeout=300, allow_redirects=False"
    return [f"response = requests.request({request.method!r}, {target}, {sent})"]


def _expected(record: ExchangeRecord) -> Any:
    """Return the recorded body: a JSON object or list, else text; None if it is not known."""
    answer = record.answer
    if answer is None or answer.body.text is None or answer.body.omitted or answer.body.encoding:
        return None
    value = _json(answer.body.text.encode("utf-8", "surrogatepass"))
    return answer.body.text if value is None else value


def _json(data: bytes) -> dict[str, Any] | list[Any] | None:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _literal(value: Any) -> str:
    return pformat(value, width=_WIDTH, sort_dicts=False)


Write = Callable[[ExchangeRecord, Medium], str]
_SNIPPETS: dict[str, Write] = {"curl": as_curl, "python": as_python, "pytest": as_pytest}
_ATTACHED = 1 << 20
"""Bytes of a HAR file that are read from the store before they are sent."""


class Exports:
    """The routes of what `reader` reads."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        one = f"{INSPECTOR}/exchanges/{{id:[^/]+}}"
        return [
            web.get(f"{INSPECTOR}/export.har", self._har),
            *(web.get(f"{one}/{name}", self._snippet(write)) for name, write in _SNIPPETS.items()),
        ]

    def _snippet(self, write: Write) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            id = request.match_info["id"]

            def answer(store: SqliteStore) -> str:
                return write(find_record(store, id), store.medium)

            text = await self._reader.ask(answer)
            return web.Response(text=text, content_type="text/plain", headers={"X-Content-Type-Options": "nosniff"})

        return handle

    async def _har(self, request: web.Request) -> web.StreamResponse:
        """Send the exchanges that match the query's filters, the oldest first.

        If the store fails midway, the connection is closed within the response.
        """
        wanted = read_filter(request.query)
        pieces: list[Iterator[bytes]] = []

        def begin(store: SqliteStore) -> bytes:
            pieces.append(write_har(oldest_first(store, wanted)))
            return _read(pieces[0])

        data = await self._reader.ask(begin)
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Content-Disposition": 'attachment; filename="exchanges.har"'}
        )
        await response.prepare(request)
        if request.method == "HEAD":  # aiohttp would send what is written
            return response
        try:
            while data:
                await response.write(data)
                data = await self._reader.ask(lambda _: _read(pieces[0]))
        except GatewayError:
            if request.transport is not None:
                request.transport.abort()  # the client must not take what it has got for all of it
            raise
        return response


def _read(pieces: Iterator[bytes]) -> bytes:
    """Return the next pieces as one; b"" at the end."""
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size >= _ATTACHED:
            break
    return b"".join(found)


_PAGE = 200


def oldest_first(store: SqliteStore, wanted: Filter) -> Iterator[ExchangeRecord]:
    """Yield whole exchanges in the order in which they were stored. One that is deleted meanwhile is left out.

    Raises:
        InvalidFilter, StoreError: as the store.
    """
    after = 0
    while True:
        rows = store.newer(wanted, after, _PAGE)
        for row in rows:
            record = store.get(row.record.id)
            if record is not None:
                yield record
        if len(rows) < _PAGE:
            return
        after = rows[-1].position
