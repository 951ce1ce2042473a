"""A recorded request as a command, a script and a test: each is run, and sends what was recorded."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.inspector.har import text_body
from gateway.inspector.snippets import as_curl, as_pytest, as_python
from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from tests.http_thread import Handler, HttpThread
from tests.recording.records import RECORD, get, record

IMAGE = b"\x89PNG not really"
HASH = hashlib.sha256(IMAGE).hexdigest()


def medium(sha256: str) -> tuple[str, bytes] | None:
    return ("image/png", IMAGE) if sha256 == HASH else None


def _sending(body: Body, *headers: tuple[str, str], **values: Any) -> ExchangeRecord:
    pairs = (("Host", "127.0.0.1:9200"), ("Content-Type", "application/json"), *headers)
    return record(**{"request": HttpMessage(pairs, body), **values})


HOSTILE = '{"input": "it\'s $HOME `id` \\\\ \\" é \\n"}'
CASES = [
    RECORD,
    _sending(Body(1, HOSTILE), ("X-Odd", "$(id) `id` 'x' \"y\" \\")),
    _sending(Body(1, '{"input": "' + "x" * 200_000 + '"}')),
    _sending(text_body(bytes(range(256)), 256)),
    _sending(Body(1, '[{"image": {"bytes": "[MEDIA type=image/png length=15 sha256=' + HASH + ']"}}]')),
    _sending(Body(), method="DELETE", target="/a%20b/'c'?q=$x&y=1"),
    _sending(Body(2, "{}"), ("Authorization", "[REDACTED length=9 sha256=abcdefabcdef]")),
]


class Upstream:
    """What a server received, and what it answers."""

    url = ""
    answer = b'{"answer": 1}'

    def __init__(self) -> None:
        self.received: list[tuple[str, str, dict[str, str], bytes]] = []


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    state = Upstream()

    class Recorder(Handler):
        def _handle(self) -> None:
            state.received.append((self.command, self.path, dict(self.headers.items()), self.read_body()))
            self.send(200, state.answer)

        do_GET = do_POST = do_DELETE = _handle

    with HttpThread(Recorder) as server:
        state.url = server.url
        yield state


def _expected_body(exchange: ExchangeRecord) -> bytes:
    body = exchange.request.body
    if body.encoding:
        return bytes(range(256))
    mark = f"[MEDIA type=image/png length=15 sha256={HASH}]"
    return (body.text or "").replace(mark, b64encode(IMAGE).decode()).encode()


_CURL = """#!{python}
import json, sys
data = sys.stdin.buffer.read() if "@-" in sys.argv else b""
with open({path!r}, "w") as file:
    json.dump([sys.argv[1:], data.hex()], file)
"""


@pytest.mark.parametrize("exchange", CASES)
def test_the_shell_gives_curl_exactly_the_request(exchange: ExchangeRecord, tmp_path: Path) -> None:
    curl, seen = tmp_path / "curl", tmp_path / "seen"
    curl.write_text(_CURL.format(python=sys.executable, path=str(seen)))
    curl.chmod(curl.stat().st_mode | stat.S_IXUSR)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "MLC_AUTHORIZATION": "Basic x y"}
    subprocess.run(["sh", "-eu"], input=as_curl(exchange, medium), env=environ, text=True, check=True)
    arguments, data = json.loads(seen.read_text())
    raw = arguments[arguments.index("--data-raw") + 1].encode() if "--data-raw" in arguments else b""
    body = bytes.fromhex(data) if "@-" in arguments else raw
    assert body == _expected_body(exchange)
    assert arguments[arguments.index("--request") + 1] == exchange.method
    assert f"http://127.0.0.1:9200{exchange.target}" in arguments
    headers = [arguments[index + 1] for index, one in enumerate(arguments) if one == "--header"]
    wanted = [f"{name}: {value}" for name, value in exchange.request.headers if name != "Host"]
    assert headers == [one.replace("[REDACTED length=9 sha256=abcdefabcdef]", "Basic x y") for one in wanted]


def test_curl_does_not_wait_for_the_body_of_an_answer_to_head() -> None:
    assert (
        as_curl(get("/index", method="HEAD"), medium)
        == "curl --globoff --path-as-is --head http://127.0.0.1:9200/index\n"
    )


@pytest.mark.parametrize("write", [as_curl, as_python, as_pytest])
def test_what_came_over_tls_is_sent_over_tls(write: Callable[[ExchangeRecord, Any], str]) -> None:
    assert "https://127.0.0.1:9200" in write(_sending(Body(), scheme="https"), medium)
    assert "https://127.0.0.1:9200" in write(record(request=HttpMessage(), scheme="https"), medium)


def test_a_header_name_can_not_run_commands() -> None:
    name = "`id`-$(id)-'token"
    text = as_curl(_sending(Body(), (name, "[REDACTED length=1 sha256=aaaaaaaaaaaa]")), medium)
    (variable,) = re.findall(r"\$(MLC_\w+)", text)
    script = f"curl() {{ printf '%s\\n' \"$@\"; }}; {variable}=v\n{text}"
    shown = subprocess.run(["sh", "-u"], input=script, text=True, capture_output=True, check=True)
    assert f"{name}: v" in shown.stdout.splitlines()


@pytest.mark.parametrize("exchange", CASES)
def test_the_script_sends_the_request(
    exchange: ExchangeRecord, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLC_AUTHORIZATION", "Basic x y")
    script = as_python(exchange, medium).replace("127.0.0.1:9200", upstream.url.removeprefix("http://"))
    exec(compile(script, "script", "exec"), {"print": lambda _: None})
    ((method, path, headers, body),) = upstream.received
    expected = _expected_body(exchange)
    assert (method, path) == (exchange.method, exchange.target)
    same = body == expected or json.loads(body) == json.loads(expected)
    assert same
    assert headers["Content-Type"] == "application/json"
    if any(name == "Authorization" for name, _ in exchange.request.headers):
        assert headers["Authorization"] == "Basic x y"


def _run_pytest(text: str, tmp_path: Path, url: str) -> str:
    file = tmp_path / "test_it.py"
    file.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(file)]
    environ = {**os.environ, "MLC_URL": url}
    return subprocess.run(command, env=environ, cwd=tmp_path, text=True, capture_output=True, check=False).stdout


@pytest.mark.slow
def test_the_test_passes_and_fails(upstream: Upstream, tmp_path: Path) -> None:
    answer = Body(1, '{"answer": 1, "outputs": [{"name": "memory_id", "result": "old"}], "memory_id": "old"}')
    text = as_pytest(record(response=HttpMessage((), answer)), medium)
    upstream.answer = b'{"answer": 1, "outputs": [{"name": "memory_id", "result": "new"}], "memory_id": "new"}'
    assert "1 passed" in _run_pytest(text, tmp_path, upstream.url)
    upstream.answer = b'{"answer": 2, "outputs": []}'
    assert "1 failed" in _run_pytest(text, tmp_path, upstream.url)


@pytest.mark.slow
def test_a_request_that_is_not_whole_says_why(tmp_path: Path) -> None:
    lost = _sending(Body(1, '{"image": "[MEDIA type=image/png length=15 sha256=' + "0" * 64 + ']"}'))
    reason = "1 media are missing: `inspector.media: keep` keeps them"
    assert f"# {reason}" in as_curl(lost, medium)
    assert f"# {reason}" in as_python(lost, medium)
    assert "1 skipped" in _run_pytest(as_pytest(lost, medium), tmp_path, "")
    secret = _sending(Body(1, '{"password": "[REDACTED length=3 sha256=abcdefabcdef]"}'))
    assert "# Secrets in the request were redacted" in as_curl(secret, medium)
    absent = _sending(Body(9))
    assert "# The body of the request was not recorded" in as_python(absent, medium)
