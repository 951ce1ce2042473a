from __future__ import annotations

import json
import logging
import ssl
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import trustme

from gateway.cli.cluster import cluster_options
from gateway.migrate.connection import ClusterError, ClusterOptions, ClusterUnreachable, Connected, connect
from gateway.upstream.auth.sigv4 import Keys, Scope, derive, payload_hash, signed
from tests.migrate.stub_server import StubServer

SECRET = "s3cret-öß"


def options(*argv: str) -> ClusterOptions:
    """The options, read from a command line."""
    found: list[ClusterOptions] = []

    @click.command
    @cluster_options
    def command(cluster: ClusterOptions) -> int:
        found.append(cluster)
        return 0

    command.main(list(argv), standalone_mode=False)
    return found[0]


def connected(*argv: str, ask: Callable[[str], str] | None = None) -> Connected:
    return connect(options(*argv), ask)


def refused(*argv: str, ask: Callable[[str], str] | None = None) -> str:
    with pytest.raises(ClusterError) as raised:
        connected(*argv, ask=ask)
    return str(raised.value)


def test_nobody_signs_in_without_being_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login someone password else\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    with StubServer() as stub:
        found = connected("--url", stub.url)
        assert (found.version, found.name, found.url) == ((2, 19, 0), "books", stub.url)
        assert "authorization" not in stub.headers


@pytest.mark.parametrize("password", [SECRET, "grüße", "пароль"])
def test_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setenv("MLC_PASSWORD", password)
    with StubServer() as stub:
        found = connected("--url", stub.url, "--user", "reader")
        sent = stub.headers["authorization"]
    assert b64decode(sent.removeprefix("Basic ")).decode() == f"reader:{password}"
    assert found.authorization == sent


def test_password_is_asked_by_name() -> None:
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return "pw"

    with StubServer() as stub:
        connected("--url", stub.url, "--user", "reader", ask=ask)
        assert stub.headers["authorization"] == "Basic cmVhZGVyOnB3"
    assert prompts == ["Password of reader: "]


def test_without_a_terminal_the_password_is_not_asked() -> None:
    assert refused("--url", "http://127.0.0.1:1", "--user", "reader") == (
        "There is no password for reader: put it into the environment variable MLC_PASSWORD."
    )


def test_no_option_takes_a_password() -> None:
    assert not [name for name in ClusterOptions.__slots__ if "password" in name]
    assert "url" in refused("--url", f"http://reader:{SECRET}@127.0.0.1:9200")
    assert SECRET not in refused("--url", f"http://reader:{SECRET}@127.0.0.1:9200")


def test_settings_name_cluster_and_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("READER", "pw")
    with StubServer() as stub:
        path = tmp_path / "gateway.yaml"
        auth = {"mode": "basic", "basic": {"username": "reader", "password": {"env": "READER"}}}
        path.write_text(json.dumps({"upstream": {"url": stub.url, "auth": auth}}))
        found = connected("--config", str(path))
        assert stub.headers["authorization"] == "Basic cmVhZGVyOnB3"
        assert "pw" not in repr(found)


def test_a_url_stands_over_the_settings_nodes(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps({"upstream": {"nodes": ["http://127.0.0.1:1"]}}))
    with StubServer() as stub:
        assert connected("--config", str(path), "--url", stub.url).url == stub.url


def test_wrong_settings_are_told_with_their_path(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("upstream: {urls: x}")
    assert "upstream.urls: unknown key" in refused("--config", str(path))


def test_two_ways_to_sign_in_are_one_too_many() -> None:
    assert "give only one of them" in refused("--user", "a", "--aws-region", "us-east-1")


def test_tenant_is_sent() -> None:
    with StubServer() as stub:
        connected("--url", stub.url, "--tenant", "blue")
        assert stub.headers["x-tenant-id"] == "blue"


def _aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_sigv4_signs_what_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _aws(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with StubServer() as stub:
        found = connected("--url", stub.url, "--aws-service", "es", "--aws-region", "eu-west-1")
        found.call("POST", "/_plugins/_ml/agents/_search", {"query": {"match_all": {}}})
        method, path, headers, body = stub.requests[-1]
    authorization = headers["authorization"]
    stamp, scope = headers["x-amz-date"], Scope(headers["x-amz-date"][:8], "eu-west-1", "es")
    keys = Keys("AKIDEXAMPLE", SECRET)
    raw = [(name.encode(), headers[name].encode()) for name in ("host", "content-type") if name in headers]
    ours = dict(
        signed(method.encode(), path.encode(), raw, payload_hash([body]), keys, scope, derive(keys, scope), stamp)
    )
    assert authorization.split("Signature=")[1] == ours[b"Authorization"].decode().split("Signature=")[1]


def test_aws_without_credentials_says_how_to_give_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _aws(monkeypatch, tmp_path)
    assert "AWS_ACCESS_KEY_ID" in refused("--aws-service", "es", "--aws-region", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert "--aws-region" in refused("--aws-service", "es")
    assert "could not be found" in refused("--aws-service", "es", "--aws-profile", "nobody")


def test_an_aws_login_that_has_expired_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _aws(monkeypatch, tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    start = "https://example.awsapps.com/start"
    (tmp_path / "config").write_text(
        f"[profile login]\nregion = us-east-1\nsso_start_url = {start}\nsso_region = us-east-1\n"
        "sso_account_id = 123456789012\nsso_role_name = reader\n"
    )
    with StubServer() as stub:
        message = refused("--url", stub.url, "--aws-service", "es", "--aws-profile", "login")
        assert stub.requests == []
    assert message.startswith("AWS credentials can't be loaded: ")
    assert start in message


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, {"error": {"reason": "who?"}, "status": 401}), "does not accept these credentials (401: who?): check"),
        ((403, {"error": {"reason": "no permissions"}, "status": 403}), "grant it cluster:monitor/main"),
        ((200, b"<html>hello</html>"), "not as OpenSearch does"),
        ((200, {"version": {"number": "8.1.0", "build_flavor": "default"}}), "name it with --cluster-version"),
        ((404, {}), "answered GET / with 404"),
        ((503, b"busy"), "answered GET / with 503"),
    ],
)
def test_a_wrong_answer_is_reported_with_what_to_do(answer: tuple[int, object], message: str) -> None:
    with StubServer(answer) as stub:
        assert message in refused("--url", stub.url)


def test_a_hidden_version_can_be_told() -> None:
    with StubServer((200, {"version": {"number": "7.10.2"}})) as stub:
        assert connected("--url", stub.url, "--cluster-version", "2.19.1").version == (2, 19, 1)
        assert "is not a version" in refused("--url", stub.url, "--cluster-version", "new")


def test_nothing_listens() -> None:
    with pytest.raises(ClusterUnreachable) as raised:
        connected("--url", "http://127.0.0.1:1")
    assert not raised.value.maybe_sent
    assert "check --url or upstream.url, and that the cluster runs" in str(raised.value)


def test_http_where_https_is_spoken_and_the_other_way(tmp_path: Path) -> None:
    authority = trustme.CA()
    with StubServer(tls=_server(authority)) as stub:
        plain = stub.url.replace("https:", "http:")
        assert refused("--url", plain) == (
            f"{plain} got no answer. The server speaks TLS: write https:// in place of http:// ({stub.url})."
        )
    with StubServer() as stub:
        secure = stub.url.replace("http:", "https:")
        assert refused("--url", secure) == (
            f"{secure} got no answer. The server speaks no TLS: write http:// in place of https:// ({stub.url})."
        )


def test_a_write_is_sent_once_and_may_have_arrived() -> None:
    with StubServer() as stub:
        found = connected("--url", stub.url)
        stub.answer = None
        before = len(stub.requests)
        with pytest.raises(ClusterUnreachable) as raised:
            found.call("POST", "/_plugins/_ml/connectors/_create", {"credential": {"key": SECRET}})
        assert len(stub.requests) == before + 1
        assert raised.value.maybe_sent
        assert SECRET not in str(raised.value)


def test_a_read_goes_to_another_node_and_a_write_does_not(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    with StubServer() as stub:
        path.write_text(json.dumps({"upstream": {"nodes": ["http://127.0.0.1:1", stub.url]}}))
        for _ in range(4):
            found = connected("-c", str(path))
            assert found.call("GET", "/x")[0] == 200
            assert found.call("POST", "/_plugins/_ml/agents/_search", {})[0] == 200
        assert {method for method, *_ in stub.requests} == {"GET", "POST"}


@pytest.mark.parametrize("status", [400, 404, 409, 429, 500, 503])
def test_every_status_is_an_answer(status: int) -> None:
    with StubServer() as stub:
        found = connected("--url", stub.url)
        stub.answer = (status, {"error": {"reason": "so"}, "status": status})
        before = len(stub.requests)
        assert found.call("PUT", "/x", {}) == (status, {"error": {"reason": "so"}, "status": status})
        stub.answer = (status, b"plain text")
        assert found.call("DELETE", "/x") == (status, {"error": "plain text"})
        assert len(stub.requests) == before + 2


def test_nothing_of_a_body_is_logged(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    with StubServer() as stub:
        found = connected("--url", stub.url)
        for answer in [(200, {}), (400, {"error": {"reason": "bad"}}), None]:
            stub.answer = answer
            try:
                found.call("POST", "/x", {"credential": {"key": SECRET}})
            except ClusterUnreachable:
                assert answer is None
    assert SECRET not in caplog.text
    assert "s3cret" not in caplog.text
    assert capsys.readouterr() == ("", "")


def _server(authority: trustme.CA, *names: str, clients: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*(names or ("127.0.0.1",))).configure_cert(context)
    if clients:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _written(path: Path, pem: trustme.Blob) -> str:
    pem.write_to_path(path)
    return str(path)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_tls_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, other = trustme.CA(), trustme.CA()
    good = _written(tmp_path / "good.pem", authority.cert_pem)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", good)  # the settings decide, not a variable of requests'
    with StubServer(tls=_server(authority)) as stub:
        assert connected("--url", stub.url, "--ca-file", good).version == (2, 19, 0)
        assert connected("--url", stub.url, "--insecure").version == (2, 19, 0)
        for wrong in ((), ("--ca-file", _written(tmp_path / "other.pem", other.cert_pem))):
            with pytest.raises(ClusterUnreachable) as raised:
                connected("--url", stub.url, *wrong)
            assert "TLS failed" in str(raised.value)
            assert "--ca-file" in str(raised.value)
            assert not raised.value.maybe_sent


def test_client_certificate_is_shown(tmp_path: Path) -> None:
    authority = trustme.CA()
    trusted = _written(tmp_path / "ca.pem", authority.cert_pem)
    own = _written(tmp_path / "own.pem", authority.issue_cert("reader@example.org").private_key_and_cert_chain_pem)
    with StubServer(tls=_server(authority, clients=True)) as stub:
        assert connected("--url", stub.url, "--ca-file", trusted, "--cert-file", own).version == (2, 19, 0)
        assert "127.0.0.1" in refused("--url", stub.url, "--ca-file", trusted)


def test_another_name_is_checked(tmp_path: Path) -> None:
    authority = trustme.CA()
    path = tmp_path / "gateway.yaml"
    with StubServer(tls=_server(authority, "search.example.org")) as stub:
        tls = {"ca_file": _written(tmp_path / "ca.pem", authority.cert_pem), "server_name": "search.example.org"}
        path.write_text(json.dumps({"upstream": {"url": stub.url, "tls": tls}}))
        assert connected("-c", str(path)).version == (2, 19, 0)
        assert "TLS failed" in refused("--url", stub.url, "--ca-file", tls["ca_file"])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "nowhere.pem" in refused("--url", "https://127.0.0.1:1", "--ca-file", str(tmp_path / "nowhere.pem"))
