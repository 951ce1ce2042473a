"""A recorded exchange as a shell command, a Python script or a pytest file. Pure, except that it reads media."""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from datetime import UTC, datetime
from pprint import pformat
from typing import Any

import msgspec

from gateway.inspector.compare import NEW_IDS
from gateway.inspector.repeatable import Medium, Repeatable, repeatable
from gateway.observe.record import ExchangeRecord

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
        *_imports(request),
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
    host = next((value for name, value in record.request.headers if name.lower() == "host"), "")
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


def _imports(request: Repeatable) -> list[str]:
    return ["import os", ""] if request.secrets else []


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
    answer = record.response if record.answered is None else record.answered
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
