"""Redaction: no secret survives, wherever it is, and everything else stays as it was."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.observe.redaction import BadPattern, Pattern, Redactor, read_path
from gateway.observe.secrets import Secrets, is_secret_name, marker, may_hold_secret
from tests.conftest import examples

CANARY = "Canary0f61c1bd"
NAMES = st.sampled_from(
    ["a", "text", "role", "max_tokens", "input", "x:y", 'q"uote', "back\\slash", "", "ü", "totalTokens"]
)
SECRET_NAMES = st.sampled_from(
    (
        *("password", "Authorization", "api_key", "apiKey", "x-api-key", "client_secret", "access_token", "token"),
        *("cookie", "credential", "credentials", "aws_secret_access_key", "access_key", "private_key"),
        *("session_tokens", 'a"secret', "pwd", "pass", "auth", "bearer", "ssh_key", "signature", "connectionString"),
        *("X-Session-Id", "X-Client-Key", "clientKey"),
    )
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    ['{"a": 1}', "a: b", "x=y", '\\"', "[", "}"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
SECRETS = st.builds(lambda before, after: before + CANARY + after, TEXTS, TEXTS)
HIDDEN = SECRETS | st.lists(SECRETS, min_size=1, max_size=2) | st.dictionaries(NAMES, SECRETS, min_size=1, max_size=2)
MEMBER = st.builds(lambda name, value: {name: value}, SECRET_NAMES, HIDDEN)
WITH_SECRET = st.recursive(
    MEMBER,
    lambda inner: (
        st.builds(lambda rest, item: [*rest, item, 1], st.lists(PLAIN, max_size=2), inner)
        | st.builds(lambda rest, name, item: {**rest, name: item, "z": 0}, st.dictionaries(NAMES, PLAIN), NAMES, inner)
        | st.builds(lambda item, is_ascii: {"nested": json.dumps(item, ensure_ascii=is_ascii)}, inner, st.booleans())
    ),
    max_leaves=4,
)
WRITERS = st.sampled_from(
    [
        json.dumps,
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps(value, separators=(",", ":")),
        lambda value: json.dumps(value, indent=2).replace('":', '"  :'),
        lambda value: f"data: {json.dumps(value)}\n\ndata: {{}}\n\n",
        lambda value: f'{{"index": {{}}}}\n{json.dumps(value)}\n',
        lambda value: f"({json.dumps(value)}, 'x')",
    ]
)


def redacted(text: str, redactor: Redactor | None = None) -> str:
    return (redactor or Redactor()).text(text, Secrets())


@examples(1500)
@given(WITH_SECRET, WRITERS)
def test_no_secret_survives(value: Any, write: Any) -> None:
    assert CANARY not in redacted(write(value))


@examples(1000)
@given(WITH_SECRET, st.data())
def test_no_secret_survives_in_a_text_that_is_cut(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text)))
    assert CANARY not in redacted(text[:cut])


@examples(1000)
@given(PLAIN, WRITERS)
@example({"max_tokens": 5, "usage": {"totalTokens": 7}}, json.dumps)
def test_a_text_without_secrets_is_unchanged(value: Any, write: Any) -> None:
    text = write(value)
    assert redacted(text) == text


def _without(value: Any) -> Any:
    """Return `value` as it is expected, with JSON in strings read."""
    match value:
        case dict():
            return {
                name: "hidden" if is_secret_name(name) and isinstance(item, (str, list, dict)) else _without(item)
                for name, item in value.items()
            }
        case list():
            return [_without(item) for item in value]
    return value


def _shown(value: Any) -> Any:
    match value:
        case dict():
            return {name: _shown(item) for name, item in value.items()}
        case list():
            return [_shown(item) for item in value]
        case str() if value.startswith("[REDACTED length="):
            return "hidden"
    return value


ONE_LEVEL = st.recursive(
    MEMBER,
    lambda inner: (
        st.builds(lambda rest, item: [*rest, item, 1], st.lists(PLAIN, max_size=2), inner)
        | st.builds(lambda rest, name, item: {**rest, name: item, "z": 0}, st.dictionaries(NAMES, PLAIN), NAMES, inner)
    ),
    max_leaves=4,
)


@examples(1000)
@given(ONE_LEVEL)
def test_the_structure_stays(value: Any) -> None:
    assert _shown(json.loads(redacted(json.dumps(value)))) == _without(value)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("password=hunter2&a=1", "hunter2"),
        ("Authorization: Bearer abc def", "abc"),
        ("https://h/?next=%2Fa%3Fpassword%3Dhunter2%26b%3D1", "hunter2"),
        ("curl -H 'x-api-key: abcdef' http://x", "abcdef"),
        ("{'secret_key': 'two words'}", "two words"),
        ("{credential={access_key=AKIA1, secret_key=abcd}}", "abcd"),
        ("see https://user:hunter2@host/path", "hunter2"),
        ('password: "two words"', "two words"),
        ('{"\\u0070assword": "hunter2"}', "hunter2"),
        ('{"a": "{\\"b\\": \\"{\\\\\\"token\\\\\\": \\\\\\"hunter2\\\\\\"}\\"}"}', "hunter2"),
        ('{"password": 12345}', "12345"),
        ('{"a": "token: hunter2, \\n"}', "hunter2"),
        ('{"parameters": {"openAI_key": "hunter2"}}', "hunter2"),
        ("cohere_key=hunter2", "hunter2"),
        ('{"jwt": "hunter2"}', "hunter2"),
        ('{"name": "Authorization", "value": "Bearer hunter2"}', "hunter2"),
        ('{"value": "a\\"hunter2", "comment": {"b": []}, "Name": "X-Api-Key"}', "hunter2"),
        ('{"key": "db_password", "value": {"stringValue": "hunter2"}}', "hunter2"),
        ('{"header": "Cookie", "values": ["{\\"a\\": 1}", "hunter2"]}', "hunter2"),
        ('{"credential": {"a": ["b"]}, "name": "token", "value": "hunter2"}', "hunter2"),
        ('{"a": "[{\\"name\\": \\"api_key\\", \\"value\\": \\"hunter2\\"}]"}', "hunter2"),
        ('{"a": [1], "name": "api_key", "value": "hunter2', "hunter2"),
        ('{"name": "password", "value": 12345}', "12345"),
        ('[["Host", "a"], ["x-api-key", "hunter2"]]', "hunter2"),
        ('["Host", "a", "Set-Cookie", "a=hunter2"]', "hunter2"),
        ('["Authorization", "Basic hunter', "hunter"),
        ('{"url": "https://h/a?X-Goog-Signature=hunter2"}', "hunter2"),
        ('{"url": "https://h/a?sv=1&sig=hunter2&a=b"}', "hunter2"),
        ('{"url": "https://h/a?key=hunter2"}', "hunter2"),
        ('{"url": "https://h/a?b=1\\u0026signature=hunter2"}', "hunter2"),
        ("<password>hunter2</password>", "hunter2"),
        ('<a:ApiKey x="1" y="2">hunter2</a:ApiKey>', "hunter2"),
        ('<a:pass x="1">hunter2</a:pass>', "hunter2"),
        ("<pass><![CDATA[hunter2]]></pass>", "hunter2"),
        ('{"input": "<user>a</user><pwd>hunter2<\\/pwd>"}', "hunter2"),
        ('<user name="a" password="hunter2"/>', "hunter2"),
        ("-----BEGIN PRIVATE KEY-----\nMIIhunter2\nAB+/==\n-----END PRIVATE KEY-----\n", "hunter2"),
        ('{"pem": "-----BEGIN RSA PRIVATE KEY-----\\nMIIhunter2\\n-----END RSA PRIVATE KEY-----"}', "hunter2"),
        ('{"input": "my key: -----BEGIN OPENSSH PRIVATE KEY-----\\nMIIhunter2', "hunter2"),
        ("curl -u user:hunter2 https://h/", "hunter2"),
        ("curl -XGET --user 'user:hunter2' https://h/", "hunter2"),
        ('{"input": "try curl -s -u \\"user:hunter2\\" https://h/"}', "hunter2"),
        ("curl https://h \\\n  --proxy-user=user:hunter2", "hunter2"),
        ("$2y$12$" + "hunter2" * 7 + "abcd", "hunter2"),
        ('{"a": "$argon2id$v=19$m=65536,t=3,p=4$hunter2hunter2"}', "hunter2"),
        ("a=b&pwd=hunter2&c=d", "hunter2"),
        ("code=hunter2&state=1", "hunter2"),
        ("see https://h/cb?code=hunter2", "hunter2"),
        ("pwd: hunter2", "hunter2"),
        ("Server=h;Pwd=hunter2;Database=d", "hunter2"),
        ('{"name": "X-Session-Id", "value": "hunter2"}', "hunter2"),
        ('["X-Auth", "hunter2!"]', "hunter2"),
        ('--b\r\nContent-Disposition: form-data; name="password"\r\nA: b\r\n\r\nhunter2\r\n--b--', "hunter2"),
    ],
)
def test_secrets_that_are_no_members(text: str, secret: str) -> None:
    hidden = redacted(text)
    assert secret not in hidden
    assert "[REDACTED length=" in hidden


@pytest.mark.parametrize(
    "text",
    [
        '{"max_tokens": "500", "tokens": ["a"], "tokenizer": "standard", "token_count": {"a": 1}, "token": 5}',
        '{"password": null, "secret": true}',
        "the tokens of this text",
        '{"properties": [{"name": "password", "type": "string"}], "required": ["password", "username1"]}',
        '[{"name": "max_tokens", "value": "500"}, {"name": "token", "value": 5}, {"name": "a", "value": "cookie"}]',
        '[{"name": "secret", "value": null}, {"value": "b"}, {"name": "secret"},{"value": {"name": "jwt"}}]',
        '{"buckets": [{"key": "password", "doc_count": 3}], "value": "a"}',
        '[["Authorization", "Content-Type", "b1"], ["authorization"], ["x", "b1"]]',
        'data: {"tokens": 5}\n\nevent: end\ndata: [DONE]\n\n',
        'he said "hello" to my password {twice}',
        '[input[0]] Unknown member "password": it would not reach the model; expected one of "token", "a"',
        "https://h/a?monkey=1&design=2&signer=3",
        "2 tests pass: 5 of 7; the author's auth: none; error code = 5; a compass=north",
        "<p>pass the salt</p><code>x = 1</code><key>name</key><string>a</string>",
        "docker run -u 1000:1000 image",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "a $2 bill, $20 and $argon",
        '{"aggregations": {"a": {"buckets": [{"key": "b"}], "after_key": {"a": "b"}, "partition_key": "c"}}}',
    ],
)
def test_counts_of_tokens_and_literals_are_shown(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "hunter2", "a": 1',
        '{"password": "hunter2", "password": null}',
        'Failed to parse [{"a": 1, "secret_key": {"b": "hunter2"}}]',
        '{"a": 1} {"p\\u0061ssword": "hunter2"}',
        'quoted [{\\"value\\": \\"hunter2\\", \\"name\\": \\"api_key\\"}]',
        'headers ["X-Api-Key", "hunter2"]',
        'in [{"password": 12345}',
        '"' + "x" * 1_100_000 + ' password=hunter2"',
    ],
)
def test_what_is_no_json_but_names_a_secret_as_json_does_is_hidden_whole(text: str) -> None:
    assert redacted(text) == marker(text)


def test_lines_are_redacted_one_by_one() -> None:
    lines = ['{"index": {}}', '{"password": "hunter2"}', "", ": a comment", 'data: {"token": "x"}', "event: end"]
    shown = redacted("\n".join(lines)).split("\n")
    assert shown == [*lines[:1], json.dumps({"password": marker("hunter2")}), *lines[2:4], shown[4], lines[5]]
    assert json.loads(shown[4].removeprefix("data: ")) == {"token": marker("x")}


def test_a_secret_is_hidden_in_the_other_texts_of_its_exchange() -> None:
    found = Secrets()
    secret = f'{CANARY}"\\ü/? +'
    Redactor().text(json.dumps({"password": secret}), found)
    once = json.dumps(secret)
    for text in (
        f"a {secret} b",
        once,
        json.dumps(once),
        json.dumps(secret, ensure_ascii=False),
        quote(secret, safe=""),
        quote(secret, safe="").lower().replace(CANARY.lower(), CANARY),
        quote_plus(secret),
        once.replace("/", "\\/"),
        json.dumps(once.replace("/", "\\/")),
    ):
        assert CANARY not in found.hide(text)
    assert found.hide("nothing of it") == "nothing of it"


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        (b"Authorization: Basic dXNlcjpDYW5hcnkwZjYx", "Canary0f61"),
        (b"Authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=Canary0f61", "Canary0f61"),
    ],
)
def test_parts_of_credentials_are_hidden_in_other_texts(line: bytes, secret: str) -> None:
    found = Secrets()
    Redactor().headers([line], found)
    assert found.hide(f"no user with {secret}") == f"no user with {marker(secret)}"


def test_attributes_of_a_cookie_are_no_secrets() -> None:
    found = Secrets()
    Redactor().headers([b"Set-Cookie: a=CanarySecret; Domain=search.example.org; Max-Age=123456789"], found)
    assert sorted(found) == ["CanarySecret", "a=CanarySecret; Domain=search.example.org; Max-Age=123456789"]


def test_a_number_that_is_a_secret_is_hidden_in_other_texts() -> None:
    found = Secrets()
    Redactor().text('{"api_key": 557983897352909}', found)
    shown = found.hide('{"a": 557983897352909, "b": "\\"557983897352909\\"", "c": 5579838973529091}')
    hidden = marker("557983897352909")
    assert json.loads(shown) == {"a": hidden, "b": f'"{hidden}"', "c": 5579838973529091}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"Authorization: Basic YTpiYzpi", ("Authorization", f"Basic {marker('YTpiYzpi')}")),
        (b"authorization:abc", ("authorization", marker("abc"))),
        (b"Cookie: a=CanarySecret; b=2", ("Cookie", marker("a=CanarySecret; b=2"))),
        (b"Authorization: CanarySecret x", ("Authorization", marker("CanarySecret x"))),
        (b"Ocp-Apim-Subscription-Key: x", ("Ocp-Apim-Subscription-Key", marker("x"))),
        (b"X-Id-Jwt: x", ("X-Id-Jwt", marker("x"))),
        (b"aws-anything: x", ("aws-anything", marker("x"))),
        (b"X-Amz-Security-Token: x", ("X-Amz-Security-Token", marker("x"))),
        (b"X-Api-Key: x", ("X-Api-Key", marker("x"))),
        (b"Referer: http://h/?a=1", ("Referer", "http://h/?a=1")),
        (b"X-A: \xff", ("X-A", "\ufffd")),
    ],
)
def test_headers(line: bytes, shown: tuple[str, str]) -> None:
    assert Redactor().headers([line], Secrets()) == (shown,)


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (b"/a/b?pretty", "/a/b?pretty"),
        (b"/a?q=x%20y&b", "/a?q=x%20y&b"),
        (b"/a?X-Amz-Signature=abc&x=1", f"/a?X-Amz-Signature={quote(marker('abc'), safe='[]=')}&x=1"),
        (b"/a?X-Goog-Signature=abc", f"/a?X-Goog-Signature={quote(marker('abc'), safe='[]=')}"),
        (b"/a?key=abc&monkey=b", f"/a?key={quote(marker('abc'), safe='[]=')}&monkey=b"),
        (b"/a?jwt=abc", f"/a?jwt={quote(marker('abc'), safe='[]=')}"),
        (b"/a?api%5fkey=a%20b", f"/a?api%5fkey={quote(marker('a b'), safe='[]=')}"),
    ],
)
def test_targets(target: bytes, shown: str) -> None:
    assert Redactor().target(target, Secrets()) == shown


@pytest.mark.parametrize(
    ("path", "text", "shown"),
    [
        ("parameters.ssn", '{"parameters": {"ssn": 123, "b": 2}}', '{"parameters": {"ssn": HIDDEN, "b": 2}}'),
        ("$.a[*].b", '{"a": [{"b": "x"}, {"b": null, "c": 1}]}', '{"a": [{"b": HIDDEN}, {"b": HIDDEN, "c": 1}]}'),
        ("a[1]", '{"a": ["x", "y", "z"]}', '{"a": ["x", HIDDEN, "z"]}'),
        ("a[*]", '{"a": ["x", {"b": 1}]}', '{"a": [HIDDEN, HIDDEN]}'),
        ("**.ssn", '[{"a": {"ssn": {"x": 1}}}, {"ssn": "y"}]', '[{"a": {"ssn": HIDDEN}}, {"ssn": HIDDEN}]'),
        ("a.b", '{"a": "{\\"b\\": \\"x\\"}"}', '{"a": "{\\"b\\": \\"MARKER\\"}"}'),
        ("a.b", '{"a": {"c": 1}, "b": 2}', '{"a": {"c": 1}, "b": 2}'),
    ],
)
def test_paths(path: str, text: str, shown: str) -> None:
    hidden = redacted(text, Redactor([read_path(path)]))
    parts = shown.replace("MARKER", "HIDDEN").split("HIDDEN")
    rest = hidden
    for part in parts:
        start = rest.find(part.strip('"') if "MARKER" in shown else part)
        assert start >= 0, hidden
        rest = rest[start + len(part.strip('"') if "MARKER" in shown else part) :]
    assert hidden.count("[REDACTED length=") == len(parts) - 1
    json.loads(hidden)


@pytest.mark.parametrize("path", ["", "a..b", "a[*.b", ".a"])
def test_bad_paths(path: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(path)):
        read_path(path)


@pytest.mark.parametrize(
    ("pattern", "text", "hidden"),
    [
        (r"[0-9]{3}-[0-9]{2}-[0-9]{4}", '{"a": "ssn 123-45-6789."}', "123-45-6789"),
        (r"sk-[A-Za-z0-9]+", "x" * 500 + "sk-" + "a1" * 3000 + " end", "a1"),
        (r"[\w.+-]{1,64}@[\w-]{1,63}", '{"a": ["me@example"]}', "me@example"),
        (r"\b[0-9]{9}\b", '{"a": 123456789}', "123456789"),
    ],
)
def test_patterns(pattern: str, text: str, hidden: str) -> None:
    shown = redacted(text, Redactor(patterns=[Pattern(pattern)]))
    assert hidden not in shown
    assert "[REDACTED length=" in shown
    if text.startswith("{"):
        json.loads(shown)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "is not a regular expression"),
        ("a*", "matches an empty text"),
        (r"(a)\1", "is not a regular expression of RE2: invalid escape sequence"),
        ("(?<=a)b", "is not a regular expression of RE2: invalid perl operator"),
        ("a++", "is not a regular expression of RE2: bad repetition operator"),
        ("\ud800", "is not a regular expression of RE2"),
    ],
)
def test_bad_patterns(pattern: str, reason: str) -> None:
    with pytest.raises(BadPattern, match=reason):
        Pattern(pattern)


@examples(500)
@given(st.text("ab1 é\ud800", max_size=2000), st.integers(1, 120))
def test_patterns_are_found_as_python_finds_them(text: str, most: int) -> None:
    pattern = Pattern(f"b[1é]{{1,{most}}}a")
    found = [text[start:end] for start, end in pattern.spans(text)]
    assert found == re.findall(f"b[1é]{{1,{most}}}a", text)


def test_no_pattern_takes_long() -> None:
    pattern = Pattern("(a+)+b")  # exponential time with backtracking
    assert list(pattern.spans("a" * 100_000)) == []


@examples(500)
@given(WITH_SECRET, WRITERS)
def test_the_quick_check_finds_every_text_with_a_secret(value: Any, write: Any) -> None:
    assert may_hold_secret(write(value))


def secrets(texts: list[str]) -> Secrets:
    found = Secrets()
    found.update(texts)
    return found


def test_many_secrets_are_hidden_as_few_are() -> None:
    """Many are searched in one pass: one after the other, the tokens of a large `_bulk` would take a minute."""
    few = [CANARY, 'a/b"c defg', "white space", "1234567890", "prefixed", "prefixed-and-longer"]
    shown = json.dumps(
        {"a": few, "n": 1234567890, "in": f"it was {CANARY}, or 1234567890; {quote(few[1], safe='')}", "x": 12345678901}
    )
    text = shown + json.dumps(shown)
    many = [f"other secret {number}" for number in range(5000)]
    hidden = secrets(few).hide(text)
    assert secrets([*few, *many]).hide(text) == hidden
    assert hidden != secrets(few[1:]).hide(text)
    found = secrets(many)
    assert found.hide(f"{many[7]}!") == f"{marker(many[7])}!"
    found.add(CANARY)
    assert found.hide(f"{CANARY} {many[7]}") == f"{marker(CANARY)} {marker(many[7])}"
