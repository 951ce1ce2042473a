"""The same request, at the same moment, signed by botocore, by requests-aws4auth and by the gateway."""

from __future__ import annotations

import datetime
import hashlib
import string
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from requests_aws4auth import AWS4Auth

from gateway.upstream.auth.sigv4 import Keys, Scope, canonical_path, canonical_query, derive, payload_hash, signed

NOW = datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=datetime.UTC)
STAMP = "20260304T050607Z"
KEYS = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
SESSION = Keys("ASIDEXAMPLE", "other+secret/key", "the/session+token==")
HOST = "search-x.eu-west-1.es.amazonaws.com"
JSON = (b"Content-Type", b"application/json")

PATHS = [
    "/",
    "/index/_doc/1",
    "/a//b",
    "//a",
    "/a/",
    "/a//",
    "/a/./b",
    "/a/../b",
    "/a/b/..",
    "/../a",
    "/a%2Fb",
    "/a%2fb",
    "/%E2%82%AC",
    "/a%20b",
    "/logs-*/_search",
    "/_cluster:x/_search",
    "/a,b,c/_search",
    "/_doc/bot!-1@localhost",
    "/<logs-{now/d}>",
    "/%3Clogs-%7Bnow%2Fd%7D%3E/_search",
    "/a+b",
    "/a~b_c-d.e",
    "/$all&x='1'(2)=3",
    "/_plugins/_ml/agents/x/_execute",
]
QUERIES = [  # in the form that canonicalisation leaves alone: all three signers agree on these
    "",
    "pretty=",
    "a=1&b=2",
    "b=2&a=1",
    "a=2&a=1",
    "a=1&a=1",
    "a=&b=",
    "q=user%3Akimchy",
    "q=a%20b",
    "q=a%2Bb",
    "q=%2A",
    "filter_path=hits.hits._id%2C%20x",
    "A=1&a=1&B=1",
    "q=%E2%82%AC%F0%9F%98%80",
    "e=%3D%26%3B%2F%3F",
]
BODIES: list[bytes] = [b"", b"{}", b'{"query":{"match_all":{}}}', bytes(range(256)), "€😀".encode(), b"x" * 100_000]
HEADERS: list[list[tuple[bytes, bytes]]] = [
    [],
    [JSON],
    [(b"content-type", b"  application/x-ndjson;   charset=UTF-8 ")],
    [JSON, (b"x-amz-meta-one", b"b"), (b"X-Amz-Meta-Two", b"a   c")],
]


@pytest.fixture(autouse=True)
def _frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: NOW.replace(tzinfo=None))


def by_gateway(
    method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes, service: str, keys: Keys
) -> dict[str, str]:
    scope = Scope(STAMP[:8], "eu-west-1", service)
    onward = [(b"Host", HOST.encode()), *headers]
    out = signed(
        method.encode(), target.encode(), onward, payload_hash([body]), keys, scope, derive(keys, scope), STAMP
    )
    return {name.decode().lower(): value.decode() for name, value in out}


def by_botocore(
    method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes, service: str, keys: Keys
) -> dict[str, str]:
    credentials = Credentials(keys.access_key, keys.secret_key, keys.token or None)
    fields = {name.decode(): value.decode() for name, value in headers}
    fields |= {"Host": HOST, "X-Amz-Content-SHA256": hashlib.sha256(body).hexdigest()}
    request = AWSRequest(method=method, url=f"https://{HOST}{target}", data=body, headers=fields)
    SigV4Auth(credentials, service, "eu-west-1").add_auth(request)
    return {name.lower(): str(value) for name, value in request.headers.items()}


def by_aws4auth(
    method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes, service: str, keys: Keys
) -> dict[str, str]:
    extra = {"session_token": keys.token} if keys.token else {}
    auth = AWS4Auth(keys.access_key, keys.secret_key, "eu-west-1", service, **extra)
    request: Any = requests.Request(method, f"https://{HOST}/").prepare()
    request.url = f"https://{HOST}{target}"  # as it is: requests would normalise it
    request.body = body
    request.headers.clear()
    request.headers.update({name.decode(): value.decode() for name, value in headers})
    request.headers.update({"host": HOST, "x-amz-date": STAMP})
    return {name.lower(): str(value) for name, value in auth(request).headers.items()}


def cases() -> Iterator[Any]:
    rows = [(path, query, b"", [JSON]) for path in PATHS for query in QUERIES[:3]]
    rows += [("/i/_search", query, b"", [JSON]) for query in QUERIES]
    rows += [("/i/_bulk", "refresh=true", body, headers) for body in BODIES for headers in HEADERS]
    for path, query, body, headers in rows:
        target = f"{path}?{query}" if query else path
        yield pytest.param(target, headers, body, id=f"{target}|{len(body)}|{len(headers)}")


@pytest.mark.parametrize("keys", [KEYS, SESSION], ids=["key", "session"])
@pytest.mark.parametrize("service", ["es", "aoss"])
def test_the_three_agree(service: str, keys: Keys) -> None:
    for case in cases():
        target, headers, body = case.values
        request = ("POST", target, headers, body, service, keys)
        ours = by_gateway(*request)
        named = (case.id, by_botocore(*request)["authorization"], by_aws4auth(*request)["authorization"])
        assert named == (case.id, ours["authorization"], ours["authorization"])
        assert ours["x-amz-date"] == STAMP
        assert ours["x-amz-content-sha256"] == hashlib.sha256(body).hexdigest()
        assert ours.get("x-amz-security-token", "") == keys.token


@pytest.mark.parametrize(
    ("sent", "canonical"),
    [
        ("pretty", "pretty="),
        ("q=a+b", "q=a%20b"),
        ("q=a*", "q=a%2A"),
        ("q=user:kimchy", "q=user%3Akimchy"),
        ("h=a,b&s=c", "h=a%2Cb&s=c"),
        ("q=%e2%82%ac", "q=%E2%82%AC"),
        ("q=€", "q=%E2%82%AC"),
        ("a=b=c", "a=b%3Dc"),
        ("&&a=1&", "a=1"),
        ("a;b=1", "a%3Bb=1"),
        ("q=%zz", "q=%25zz"),
        ("b=1&a=%2A&a=(&a=1", "a=%28&a=%2A&a=1&b=1"),
    ],
)
def test_a_query_that_is_not_canonical(sent: str, canonical: str) -> None:
    """The service encodes again what it receives, as aws4auth does; botocore expects to be given that form."""
    assert canonical_query(sent.encode()).decode() == canonical
    ours = by_gateway("GET", f"/i/_search?{sent}", [JSON], b"", "es", KEYS)
    assert ours["authorization"] == by_aws4auth("GET", f"/i/_search?{sent}", [JSON], b"", "es", KEYS)["authorization"]
    theirs = by_botocore("GET", f"/i/_search?{canonical}", [JSON], b"", "es", KEYS)["authorization"]
    assert ours["authorization"] == theirs


@pytest.mark.parametrize(
    ("sent", "canonical"),
    [
        # What the managed service reported as expected: opensearch-py issue 833, OpenSearch-Dashboards issue 9679.
        ("/index-name/_doc/cool_bot!-f9@localhost", "/index-name/_doc/cool_bot%21-f9%40localhost"),
        ("/_resolve/index/*", "/_resolve/index/%2A"),
        # And aws-sdk-js issue 853: what is encoded already is encoded again.
        ("/_search/%3Fa=b%20c", "/_search/%253Fa%3Db%2520c"),
        ("", "/"),
        ("/\xff", "/%C3%BF"),
    ],
)
def test_paths_as_the_service_expects_them(sent: str, canonical: str) -> None:
    assert canonical_path(sent.encode()).decode() == canonical


segment = st.text(string.ascii_letters + string.digits + "-._~!$&'()*,:@=+%", max_size=6)


@given(st.lists(segment, max_size=5).map(lambda parts: "/" + "/".join(parts)), st.binary(max_size=20))
def test_any_path_and_body_as_botocore(path: str, body: bytes) -> None:
    ours = by_gateway("PUT", path, [JSON], body, "es", KEYS)
    scope_of = ours["authorization"].partition("Signature=")[0]
    assert "SignedHeaders=content-type;host;x-amz-content-sha256;x-amz-date" in scope_of
    request = AWSRequest(method="PUT", url=f"https://{HOST}{path}", data=body, headers={})
    canonical = SigV4Auth(Credentials("a", "b"), "es", "r").canonical_request(request)
    assert canonical.split("\n")[1] == canonical_path(path.encode()).decode()


def test_what_the_client_sent_of_this_kind_is_replaced_and_all_else_kept() -> None:
    scope = Scope(STAMP[:8], "eu-west-1", "es")
    sent = [
        (b"hOST", b"h"), (b"Authorization", b"Basic x"), (b"authorization", b"Bearer y"), (b"X-AMZ-Date", b"1"),
        (b"Accept", b"a"), (b"x-amz-security-token", b"old"), (b"accept", b"b"), (b"x-amz-content-sha256", b"z"),
    ]  # fmt: skip
    out = signed(b"GET", b"/", sent, payload_hash([]), KEYS, scope, derive(KEYS, scope), STAMP)
    assert [name for name, _ in out] == [
        b"hOST", b"Accept", b"accept", b"X-Amz-Date", b"X-Amz-Content-SHA256", b"Authorization",
    ]  # fmt: skip
    assert out[-1][1].startswith(b"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260304/eu-west-1/es/aws4_request, ")


@pytest.mark.parametrize("target", ["/i?a=1", "https://other:9200/i?a=1"])
def test_the_form_of_the_target_makes_no_difference(target: str) -> None:
    assert by_gateway("GET", target, [], b"", "es", KEYS) == by_gateway("GET", "/i?a=1", [], b"", "es", KEYS)


def test_secrets_have_no_representation() -> None:
    assert "secret" not in repr(SESSION)
    assert "token" not in repr(SESSION)
