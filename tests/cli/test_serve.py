"""What `mlc-gateway serve` says when it starts, on a terminal and in a log."""

from __future__ import annotations

import json
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Timer

import pytest
import trustme

from gateway import __version__
from gateway.cli import run
from gateway.observe.connect_errors import name_wrong_scheme
from tests.forked import piped
from tests.http_thread import Handler, HttpThread
from tests.terminal import GATEWAY, Terminal, environment, show
from tests.wire import PATIENCE, reserved

ROOT = {"cluster_name": "c", "version": {"distribution": "opensearch", "number": "2.19.0"}}
ANYWHERE = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]


class OpenSearch(Handler):
    def do_GET(self) -> None:
        self.send(200, json.dumps(ROOT).encode())

    def do_HEAD(self) -> None:
        self.send(200, b"")


class Secured(Handler):
    def do_GET(self) -> None:
        self.send(401, b"Unauthorized", "text/plain")


class Other(Handler):
    def do_GET(self) -> None:
        self.send(200, b"<h1>It works</h1>", "text/html")

    def do_HEAD(self) -> None:
        self.send(200, b"", "text/html")


@pytest.fixture(scope="module")
def tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context


@contextmanager
def starting(*options: str, env: dict[str, str] | None = None) -> Iterator[list[str]]:
    """The lines of `serve` on a terminal, until both ports are open."""
    lines: list[str] = []
    with Terminal([*GATEWAY, "serve", *ANYWHERE, *options], columns=500, env=env) as terminal:
        terminal.wait_for('serves="the cluster\'s API"')
        lines += terminal.text.splitlines()
        yield lines
        assert terminal.stop() == 0


def test_a_terminal_gets_readable_lines_and_first_the_cluster() -> None:
    with HttpThread(OpenSearch) as cluster, starting("--upstream", cluster.url) as lines:
        assert lines[0] == f"mlc-gateway {__version__} → {cluster.url} (OpenSearch 2.19.0, reachable)"
        assert "[info] listening address=127.0.0.1:" in lines[1]
        assert "Warning" not in "".join(lines)


@pytest.mark.parametrize(
    ("handler", "state"),
    [
        (Secured, "(reachable, asks for credentials)"),
        (Other, "(answers with 200, but not as OpenSearch does)"),
    ],
)
def test_what_else_may_be_there(handler: type[BaseHTTPRequestHandler], state: str) -> None:
    with HttpThread(handler) as cluster, starting("--upstream", cluster.url) as lines:
        assert lines[0] == f"mlc-gateway {__version__} → {cluster.url} {state}"


def test_an_unreachable_cluster_and_the_default_are_warned_of(tmp_path: Path) -> None:
    with reserved() as port, starting("--upstream", f"http://127.0.0.1:{port}") as lines:
        assert lines[0].endswith(f"http://127.0.0.1:{port} (not reachable: connection refused)")
        assert lines[1].startswith("Warning: Requests fail with 502 until it answers.")
        assert "Nothing names" not in "".join(lines)
    with starting(env={"GATEWAY_UPSTREAM_URL": "http://x"}) as lines:
        assert f"mlc-gateway {__version__} → http://127.0.0.1:9200 (" in lines[0]
        warnings = [line for line in lines if line.startswith("Warning: ")]
        assert warnings[-2:] == [
            "Warning: Nothing names the cluster, so the default address is used: name it with --upstream URL, "
            "upstream.url in the settings file, or GATEWAY__UPSTREAM__URL.",
            "Warning: GATEWAY_UPSTREAM_URL is not a variable of the gateway's; did you mean GATEWAY__UPSTREAM__URL?",
        ]


def test_the_wrong_scheme_is_named(tls: ssl.SSLContext) -> None:
    with HttpThread(OpenSearch, tls) as cluster:
        plain = cluster.url.replace("https", "http")
        with starting("--upstream", plain) as lines:
            assert lines[0].startswith(f"mlc-gateway {__version__} → {plain} (not reachable: ")
            assert lines[1] == (f"Warning: The server speaks TLS: write https:// in place of http:// ({cluster.url}).")
        assert name_wrong_scheme(cluster.url) == ""
    with HttpThread(OpenSearch) as cluster:
        secure = cluster.url.replace("http", "https")
        with starting("--upstream", secure) as lines:
            assert lines[0].endswith("(not reachable: TLS failed: the server speaks no TLS)")
            assert lines[1] == (
                f"Warning: The server speaks no TLS: write http:// in place of https:// ({cluster.url})."
            )
        assert name_wrong_scheme(cluster.url) == ""
    with reserved() as port:
        assert name_wrong_scheme(f"http://127.0.0.1:{port}") == name_wrong_scheme(f"https://127.0.0.1:{port}") == ""


@pytest.mark.parametrize("argv", [["agents", "--url"], ["tail", "--gateway"]])
def test_other_commands_name_it_too(argv: list[str], tls: ssl.SSLContext, capsys: pytest.CaptureFixture[str]) -> None:
    with HttpThread(OpenSearch, tls) as cluster:
        assert run([*argv, cluster.url.replace("https", "http")]) == 2
        assert f"The server speaks TLS: write https:// in place of http:// ({cluster.url})." in capsys.readouterr().err
    with HttpThread(OpenSearch) as cluster:
        assert run([*argv, cluster.url.replace("http", "https")]) == 2
        assert "The server speaks no TLS: write http:// in place of https:// (" in capsys.readouterr().err


def test_a_pipe_gets_json_with_the_same_warnings() -> None:
    with piped(["serve", *ANYWHERE], environment({"MLC_FROBNICATE": "1"})) as (_, lines):
        events = [json.loads(lines.readline()) for _ in range(4)]
    assert [event["event"] for event in events] == ["default cluster", "variable ignored", "listening", "listening"]
    assert events[0]["address"] == "http://127.0.0.1:9200"
    assert "GATEWAY__UPSTREAM__URL" in events[0]["reason"]
    assert events[1]["reason"] == "MLC_FROBNICATE is not a variable of the gateway's"
    assert [event["serves"] for event in events[2:]] == ["health, metrics and the inspector", "the cluster's API"]


@contextmanager
def logging(*options: str) -> Iterator[Iterator[dict[str, object]]]:
    """The events of `serve` with its log in a pipe. They end, at the latest, when the patience of a test does."""
    with piped(["serve", *ANYWHERE, *options], environment()) as (serving, lines):
        end = Timer(PATIENCE, serving.kill)
        end.start()
        try:
            yield map(json.loads, lines)
        finally:
            end.cancel()


@pytest.mark.parametrize("nodes", [False, True])
def test_a_json_log_names_the_wrong_scheme(nodes: bool, tls: ssl.SSLContext, tmp_path: Path) -> None:
    with HttpThread(OpenSearch, tls) as secured, HttpThread(OpenSearch) as open_:
        for right, wrong, sentence in (
            (secured.url, secured.url.replace("https", "http"), "The server speaks TLS: write https:// in place of "),
            (open_.url, open_.url.replace("http", "https"), "The server speaks no TLS: write http:// in place of "),
        ):
            options = ["--upstream", wrong]
            if nodes:
                (tmp_path / "g.yaml").write_text(f"upstream: {{nodes: ['{wrong}']}}")
                options = ["-c", str(tmp_path / "g.yaml")]
            with logging(*options) as events:
                event = next(event for event in events if event["event"] == "wrong scheme")
            assert event["level"] == "warning"
            assert (event["address"], event["setting"]) == (wrong, "upstream.nodes" if nodes else "upstream.url")
            assert str(event["reason"]).startswith(sentence)
            assert str(event["reason"]).endswith(f"({right}).")


def test_the_process_does_not_end_amid_a_handshake() -> None:
    """Its end frees what OpenSSL works with: a thread that was in a handshake crashed it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        options = ["--upstream", f"http://127.0.0.1:{server.getsockname()[1]}"]
        with piped(["serve", *ANYWHERE, *options], environment()) as (serving, lines):
            asking = next(one for one in iter(lambda: server.accept()[0], None) if one.recv(4) == b"HEAD")
            while json.loads(lines.readline()).get("serves") != "the cluster's API":
                pass
            serving.send_signal(signal.SIGTERM)
            while json.loads(lines.readline())["event"] != "stopped":
                pass
            asking.close()
            handshake = next(one for one in iter(lambda: server.accept()[0], None) if one.recv(1) == b"\x16")
            handshake.close()
            assert serving.wait(PATIENCE) == 0


def test_a_server_that_speaks_the_scheme_is_not_bothered() -> None:
    asked: list[str] = []

    class Noting(OpenSearch):
        def parse_request(self) -> bool:
            asked.append(self.raw_requestline.decode("latin-1"))
            return super().parse_request()

    with HttpThread(Noting) as cluster:
        assert name_wrong_scheme(cluster.url) == ""
    assert asked == ["HEAD / HTTP/1.1\r\n"]  # no handshake of TLS, which a server would complain about


def test_a_json_log_may_be_chosen_on_a_terminal() -> None:
    env = {"GATEWAY__LOGS__FORMAT": "json", "GATEWAY__UPSTREAM__URL": "http://127.0.0.1:9"}
    with Terminal([*GATEWAY, "serve", *ANYWHERE], columns=500, env=env) as terminal:
        terminal.wait_for("the cluster's API")
        assert terminal.stop() == 0
        assert [json.loads(line)["event"] for line in terminal.text.splitlines() if line.startswith("{")] == [
            "listening", "listening", "stopped",
        ]  # fmt: skip


def test_wrong_options_are_named() -> None:
    code, text = show([*GATEWAY, "serve", "--upstream", "search:9200", "--listen", "0.0.0.0"], columns=500)
    assert code == 2
    assert text.splitlines() == [
        "listen.data_port: is not allowed here; got '0.0.0.0'; allowed: a whole number from 0 to 65535; from --listen",
        "upstream.url: has no scheme; got 'search:9200'; allowed: http://search:9200 or https://search:9200; "
        "from --upstream",
    ]
