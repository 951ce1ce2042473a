"""Which names of headers, parameters and members hold secrets: by their words, in every way to write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.redaction import Redactor
from gateway.observe.secrets import (
    Secrets,
    is_secret_header,
    is_secret_name,
    is_secret_parameter,
    secret_members,
    split_name,
)
from tests.conftest import examples

CANARY = "Canary0f61c1bd"
WORDS = {
    *("pwd", "pass", "passcode", "auth", "oauth", "bearer", "signature", "sig", "dsn", "creds", "password", "secret"),
    *("connection string", "conn str", "ssh key", "client key", "api key", "private key", "access key", "app key"),
    *("session token", "auth token", "api keys", "exchange key", "webhook key", "hmac key", "jwt", "passphrase"),
}
"""Names of members, as words."""
SECRETS = {
    *(
        "pwd",
        "db_pwd",
        "pass",
        "userPass",
        "smtp-pass",
        "auth",
        "basicAuth",
        "proxy_auth",
        "bearer",
        "ssh_key",
        "sshKey",
    ),
    *("SSH_KEY", "sshkey", "SSHKey2", "signature", "requestSignature", "connectionString", "connection_string"),
    *(
        "ConnectionString",
        "CONNECTION-STRING",
        "connectionstring",
        "conn_str",
        "X-Auth",
        "x-session-id",
        "X-Client-Key",
    ),
    *("X-Signature", "X-Hub-Signature-256", "X-Session", "client_key", "clientKey", "server-key", "api_key_2"),
    *("openAI_key", "token", "accessToken", "aws_secret_access_key", "password_hash", "Authorization", "X-Any-Key"),
}
"""Hidden wherever they are."""
SHOWN = {
    *(
        "max_tokens",
        "maxTokens",
        "token_usage",
        "inputTokens",
        "outputTokens",
        "totalTokens",
        "tokenizer",
        "token_count",
    ),
    *("session_id", "sessionId", "session", "memory_id", "parent_memory_id", "conversation_id", "code", "status_code"),
    *("key", "keys", "primary_key", "partitionKey", "sort_key", "foreign_key", "keyword", "keywords", "after_key"),
    *(
        "hash",
        "hashtag",
        "hash_code",
        "doc_count",
        "author",
        "authors",
        "authority",
        "co_author",
        "passage",
        "passages",
    ),
    *("compass", "bypass", "passenger", "passed", "passing", "pass_rate", "pass_through", "auth_type", "authType"),
    *("signature_version", "signed", "design", "sigma", "significant_terms", "assign", "connection", "string_field"),
    *("connection_timeout", "monkey", "turkey", "hockey", "key_value", "bearer_format", "wpm", "spwd_x", "tool_key"),
    *("idempotency_key", "cache_key", "public_key", "content", "prompt", "question", "", "x", "1", "ü"),
    *("X-Opaque-Id", "X-Request-Id", "X-Forwarded-For", "X-Idempotency-Key", "X-Author", "x-partition-key"),
}
"""Shown in bodies: what agents, memory and searches are made of."""
HEADERS = {
    *("X-Auth", "X-Session-Id", "X-Client-Key", "X-Signature", "x-auth", "Session-Id", "Session", "Signature", "Auth"),
    *("X-Auth-Token", "Ocp-Apim-Subscription-Key", "Api-Key", "X-My-Key", "Tenant-Key", "X-Goog-Signature", "X-Sid"),
}
SHOWN_HEADERS = {
    *("Host", "Content-Type", "X-Opaque-Id", "Idempotency-Key", "Sec-WebSocket-Key", "Cache-Key", "Author", "X-Author"),
    *("Signature-Input", "Content-Length", "Accept", "X-Forwarded-For", "Sec-Fetch-Site", "Keep-Alive", "X-Passage"),
}
PARAMETERS = {
    *("pwd", "auth", "code", "session", "auth_code", "session_id", "sessionId", "sid", "key", "api_key", "pass", "sig"),
    *("signature", "X-Amz-Signature", "X-Goog-Signature", "client_key", "authorization_code", "access_token", "dsn"),
}
SHOWN_PARAMETERS = {
    *("q", "pretty", "status_code", "country_code", "error_code", "sort_key", "monkey", "design", "session_count"),
    *("memory_id", "author", "pass_rate", "keyword", "primary_key", "codec", "size", "from", "session_timeout"),
}


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_secret_members(name: str) -> None:
    assert is_secret_name(name)
    assert is_secret_header(name)
    assert is_secret_parameter(name)
    assert CANARY not in Redactor().text(json.dumps({name: CANARY}), Secrets())


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_members_that_are_shown(name: str) -> None:
    assert not is_secret_name(name)
    text = json.dumps({name: CANARY, "list": [{name: {"a": 1}}]}, ensure_ascii=False)
    assert Redactor().text(text, Secrets()) == text


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_secret_headers(name: str) -> None:
    assert is_secret_header(name)
    [(_, shown)] = Redactor().headers([f"{name}: {CANARY}".encode()], Secrets())
    assert CANARY not in shown


@pytest.mark.parametrize("name", sorted(SHOWN_HEADERS))
def test_headers_that_are_shown(name: str) -> None:
    assert Redactor().headers([f"{name}: {CANARY}".encode()], Secrets()) == ((name, CANARY),)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_secret_parameters(name: str) -> None:
    assert is_secret_parameter(name)
    assert CANARY not in Redactor().target(f"/a?x=1&{name}={CANARY}".encode(), Secrets())
    assert CANARY not in Redactor().text(json.dumps({"url": f"https://h/a?x=1&{name}={CANARY}"}), Secrets())
    assert CANARY not in Redactor().text(f"{name}={CANARY}&x=1", Secrets())


@pytest.mark.parametrize("name", sorted(SHOWN_PARAMETERS))
def test_parameters_that_are_shown(name: str) -> None:
    target = f"/a?x=1&{name}={CANARY}"
    assert Redactor().target(target.encode(), Secrets()) == target
    text = json.dumps({"url": f"https://h{target}"})
    assert Redactor().text(text, Secrets()) == text


def camel(words: list[str]) -> str:
    return words[0] + "".join(map(str.capitalize, words[1:]))


WAYS: Any = st.sampled_from(
    [
        camel,
        lambda words: "".join(map(str.capitalize, words)),
        "_".join,
        "-".join,
        ".".join,
        lambda words: "_".join(words).upper(),
        lambda words: "-".join(map(str.capitalize, words)),
        lambda words: f"{'_'.join(words)}2",
    ]
)


@examples(1500)
@given(st.sampled_from(sorted(WORDS)), st.lists(st.sampled_from(["my", "db", "service", "x", "old"]), max_size=2), WAYS)
def test_a_name_is_secret_however_it_is_written(words: str, before: list[str], write: Any) -> None:
    name = write([*before, *words.split()])
    assert is_secret_name(name), name
    for value in (CANARY, [CANARY], {"a": CANARY}, json.dumps({name: CANARY})):
        text = json.dumps({"x": 1, name if not isinstance(value, str) or "{" not in value else "text": value})
        assert CANARY not in Redactor().text(text, Secrets()), text


def test_names_are_split_by_their_words() -> None:
    same = ("ssh", "key")
    assert {split_name(name) for name in ("sshKey", "SSHKey", "SSH_KEY", "ssh-key", "ssh.key2", "Ssh Key")} == {same}
    assert split_name("") == split_name("123") == ()


def test_the_security_api_has_keys_and_hashes() -> None:
    names = secret_members(b"/_plugins/_security/api/internalusers/a?x=1")
    assert names == secret_members(b"/_opendistro/_security/api/x") == {"key", "hash"}
    text = json.dumps({"a": {"hash": CANARY, "key": CANARY, "roles": ["b"]}})
    shown = Redactor().text(text, Secrets(names=names))
    assert CANARY not in shown
    assert json.loads(shown)["a"]["roles"] == ["b"]
    assert secret_members(b"/_plugins/_ml/agents/a/_execute") == frozenset()
    assert Redactor().text(text, Secrets(names=secret_members(b"/index/_search"))) == text
