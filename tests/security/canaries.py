"""Secrets that are easy to find again, and the places of a request and an answer that can hold one."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from aiohttp import web

from gateway.proxy.routes import _TABLE
from tests.execute.stub_cluster import FLOW, ML, V1, V2, Cluster

HEADERS = (
    *("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-goog-api-key", "x-auth-token"),
    *("x-amz-security-token", "ocp-apim-subscription-key", "x-id-jwt", "x-auth", "x-session-id", "x-client-key"),
    "x-signature",
)
SIGNED = ("X-Amz-Credential", "X-Amz-Security-Token", "X-Amz-Signature", "X-Goog-Signature", "sig")
QUERY = (*SIGNED, "api_key", "access_token", "jwt", "password", "key", "pwd", "auth", "code", "session")
MEMBERS = (
    *("credential", "access_key", "clientSecret", "Authorization", "openAI_key", "db_password", "session_token"),
    *("pwd", "pass", "auth", "bearer", "ssh_key", "signature", "connectionString"),
)


def _core(place: str) -> str:
    digest = hashlib.sha256(f"canary {place}".encode()).hexdigest()[:24]
    return str(int(digest, 16)) if place == "number" else digest


def secret(place: str, more: str = "") -> str:
    """Return the secret of a place. more: follows, such as characters that are escaped in JSON or a URL."""
    CORES[place] = _core(place)
    return f"{MARK}{CORES[place]}{more}"


CORES: dict[str, str] = {}
"""What is searched for, by place: no encoding but base64 and hexadecimal digits changes it."""
MARK = "Cn4"
ESCAPED = '"\\/é+ &'


def leaks(data: bytes | str) -> list[str]:
    """Return the places whose secret is in `data`, also as base64, hexadecimal digits or UTF-16."""
    raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    lowered = raw.lower()
    found = []
    for place, core in CORES.items():
        forms = (core, core.encode().hex(), *(form.decode("latin-1") for form in (core.encode("utf-16-le"),)))
        is_shown = any(form.encode() in lowered for form in forms)
        if is_shown or any(form in raw for form in _base64_forms(core.encode())):
            found.append(place)
    return found


def _base64_forms(core: bytes) -> Iterator[bytes]:
    """Yield the middle of the base64 text of `core` for each place in a group of three bytes."""
    for before in range(3):
        inner = base64.b64encode(core[(3 - before) % 3 :])
        yield inner[: len(inner) // 4 * 4 - 4]


class LeakyCluster(Cluster):
    """A cluster that answers with secrets: cookies, its connectors' credentials, errors that quote the request."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = b""
        self.answers = [(200, self._ran())]

    @staticmethod
    def _ran() -> dict[str, Any]:
        outputs = [{"name": "response", "result": "ran", "access_token": secret("answered-token")}]
        return {"inference_results": [{"output": outputs}]}

    async def answer(self, request: web.Request) -> web.Response:
        raw = await request.read()
        self.seen += b"%b\n%b\n%b\n" % (request.raw_path.encode(), str(dict(request.headers)).encode(), raw)
        answer = await super().answer(request)
        if request.path.startswith(f"{ML}connectors/") and request.method == "GET":
            document = json.loads(
                gzip.decompress(_body(answer)) if "Content-Encoding" in answer.headers else _body(answer)
            )
            document["credential"] = {"access_key": secret("stored-credential")}
            for action in document.get("actions", []):
                action["headers"] = {
                    "Authorization": f"Bearer {secret('stored-header')}",
                    "x-api-key": secret("stored-header"),
                }
            answer = web.json_response(document)
        elif request.method == "PUT":
            quoted = f"Failed to parse [{raw.decode('utf-8', 'replace')}] of {dict(request.headers)}"
            answer = web.json_response(
                {"error": {"type": "parse_exception", "reason": quoted}, "status": 400}, status=400
            )
        answer.headers["Set-Cookie"] = f"session={secret('set-cookie')}; Path=/; HttpOnly"
        return answer


def _body(answer: web.Response) -> bytes:
    assert isinstance(answer.body, bytes)
    return answer.body


def header_lines() -> str:
    """Return a line for each header that holds a secret."""
    cookie = f"a=b; security_authentication={secret('cookie')}; c={secret('cookie')}"
    values = {name: secret(name, "+/=") for name in HEADERS} | {
        "authorization": f"Basic {base64.b64encode(b'user:' + secret('basic').encode()).decode()}",
        "proxy-authorization": f"Bearer {secret('bearer')}",
        "cookie": cookie,
        "referer": f"https://u:{secret('userinfo')}@dashboards/?password={secret('referer')}",
    }
    return "".join(f"{name}: {value}\r\n" for name, value in values.items())


def query() -> str:
    """Return a query with secrets."""
    return "&".join(f"{name}={quote(secret(name, ESCAPED), safe='')}" for name in QUERY)


def document(**more: Any) -> dict[str, Any]:
    """Return a body with secrets at all depths. more: other members."""
    deep = {"list": [[{name: secret(name, ESCAPED)} for name in MEMBERS[1:]], {name: secret(name) for name in MEMBERS}]}
    nested = json.dumps(
        {"api_key": secret("nested", ESCAPED), "list": [json.dumps({"password": secret("twice-nested")})]}
    )
    return {
        **more,
        "credential": {"x": secret("credential"), "list": [secret("in-array")]},
        "parameters": {"question": "hi", **{name: secret(name, ESCAPED) for name in MEMBERS[1:]}, "deep": deep},
        "request_body": nested,
        "url": f"https://u:{secret('userinfo')}@host/path?api_key={secret('assigned')}",
        "note": f"curl -H 'Authorization: Bearer {secret('quoted')}' -d password={secret('assigned')}",
        "passwords": [secret("in-array"), {"x": [secret("in-array")]}],
        "xml": f"<a><pwd>{secret('element')}</pwd><b:Password x='1'>{secret('element')}</b:Password></a>",
        "pem": f"-----BEGIN PRIVATE KEY-----\nMII{secret('private key')}\n-----END PRIVATE KEY-----\n",
        "command": f"curl -s -u user:{secret('curl')} https://host/ --proxy-user 'user:{secret('curl')}'",
        "form": f"a=b&pwd={secret('form in a text')}&code={secret('form in a text')}",
        "crypt": f"$2y$12${secret('crypt') * 3}"[:60],
    }


def named() -> dict[str, Any]:
    """Return members with secrets whose names are beside them, or in a URL."""
    signed = {name: secret(f"presigned {name}", "+/=") for name in SIGNED}
    url = f"https://bucket.s3.amazonaws.com/a.png?X-Amz-Expires=60&{urlencode(signed)}"
    pairs = [
        {"name": "Authorization", "value": f"Bearer {secret('pair')}", "comment": "HAR"},
        {"value": secret("value first", ESCAPED), "name": "X-Api-Key"},
        {"key": "client_secret", "value": {"stringValue": secret("pair of objects")}},
    ]
    lists = {"headers": [["Host", "a"], ["Cookie", f"a={secret('header list')}"]], "raw": ["X-Api-Key", secret("flat")]}
    connector = {
        "protocol": "mcp_streamable_http",
        "url": f"https://mcp.example.org/mcp?key={secret('key of a URL')}",
        "headers": {"Authorization": f"Bearer {secret('MCP header')}", "X-Api-Key": secret("MCP header")},
        "credential": {"mcp_key": secret("MCP credential")},
        "parameters": {"gemini_key": secret("parameter"), "headers": json.dumps(pairs)},
    }
    return {"image": url, "pairs": pairs, **lists, "connector": connector}


def har() -> bytes:
    """Return a file in which another program recorded exchanges with secrets."""

    def pairs(head: str) -> list[dict[str, str]]:
        lines = (line.partition(": ") for line in head.splitlines())
        return [{"name": name, "value": value} for name, _, value in lines]

    cookie = f"Set-Cookie: session={secret('set-cookie')}; Path=/; HttpOnly\r\n"
    body = json.dumps(document(**named()))
    entry = {
        "startedDateTime": "2026-11-23T01:02:03.004Z",
        "time": 1,
        "request": {
            "method": "POST",
            "url": f"https://u:{secret('userinfo')}@es:9200/a?{query()}",
            "headers": pairs(header_lines()),
            "cookies": [{"name": "session", "value": secret("cookie")}],
            "queryString": [{"name": name, "value": secret(name)} for name in QUERY],
            "postData": {"mimeType": "application/json", "text": body},
        },
        "response": {"status": 200, "headers": pairs(cookie), "content": {"size": len(body), "text": body}},
    }
    return json.dumps({"log": {"version": "1.2", "entries": [entry]}}).encode()


def post(path: str, body: bytes, head: str = "", method: str = "POST", length: int | None = None) -> bytes:
    """Return a request with secrets in its headers and its query. length: that it states, if not the body's."""
    size = f"Content-Length: {len(body) if length is None else length}\r\n"
    framing = "" if "Transfer-Encoding" in head else size
    type_ = "" if "Content-Type" in head else "Content-Type: application/json\r\n"
    first = f"{method} {path}?{query()} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    return f"{first}{header_lines()}{head}{type_}{framing}\r\n".encode() + body


def _chunked(body: bytes) -> bytes:
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    extension, trailer = secret("chunk-extension").encode(), secret("trailer").encode()
    chunks = b"".join(b"%x;token=%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    return b"%b0\r\nX-Api-Key: %b\r\n\r\n" % (chunks, trailer)


CREATED = (f"{ML}models/m/_predict", f"{ML}connectors/_create")


def requests() -> list[bytes]:
    """Return requests for every route, in every encoding, with every fault."""
    plain = json.dumps(document(**named())).encode()
    routes = [
        post(pattern.replace("{id}", FLOW), b"" if method in ("GET", "DELETE") else plain, method=method)
        for method, pattern, _ in _TABLE
    ]
    passed = [post(path, plain) for path in ("/index/_search", "/_bulk", *CREATED)]
    user = json.dumps({"hash": secret("hash"), "attributes": {"key": secret("key"), "x": [{"hash": secret("hash")}]}})
    passed.append(post("/_plugins/_security/api/internalusers/a", user.encode(), method="PUT"))
    return [*routes, *passed, *_runs(), *_encodings("/index/_doc"), *_encodings(f"{ML}agents/{V1}/_execute"), *_bad()]


def _runs() -> list[bytes]:
    source = {"type": "base64", "format": "png", "data": "iVBORw0KGgo=", "api_key": secret("block")}
    inputs: list[Any] = [
        "hi",
        [{"type": "text", "text": "hi"}, {"type": "image", "source": source, "token": secret("block")}],
        [{"type": "text", "text": {"name": "X-Api-Key", "value": secret("block pair")}, "credential": secret("block")}],
        [{"type": "image", "source": {"type": "url", "url": f"https://u:{secret('userinfo')}@h/a.png"}}],
        [{"role": "user", "content": [{"type": "text", "text": f"my password: {secret('assigned')}"}]}],
        {"api_key": secret("block")},
    ]
    bodies = [json.dumps(document(input=one, **(named() if one == "hi" else {}))).encode() for one in inputs]
    agents = (FLOW, V1, V2, "absent")
    ends = ("", "/stream")
    return [post(f"{ML}agents/{agent}/_execute{end}", body) for agent in agents for end in ends for body in bodies]


def _encodings(path: str) -> list[bytes]:
    plain = json.dumps(document(input="hi")).encode()
    spaced = json.dumps(document(input="hi"), indent=2, ensure_ascii=False).encode()
    small = {"input": "hi", "password": secret("utf-16")}
    lines = b'{"index": {}}\n' + plain + b"\n"
    events = f"data: {json.dumps({'token': secret('event')})}\n\n".encode()
    cbor = b"\xbf\x68password\x78\x1b" + secret("cbor").encode() + b"\xff"
    boundary = "Content-Type: multipart/form-data; boundary=b\r\n"
    part = (
        b'--b\r\nContent-Disposition: form-data; name="password"\r\n\r\n%b\r\n--b--\r\n' % secret("multipart").encode()
    )
    return [
        post(path, spaced),
        post(path, gzip.compress(plain), "Content-Encoding: gzip\r\n"),
        post(path, _chunked(plain), "Transfer-Encoding: chunked\r\n"),
        post(path, _chunked(gzip.compress(plain)), "Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n"),
        post(path, f'{{"api_key": "{secret("unknown-coding")}"}}'.encode(), "Content-Encoding: zstd-x\r\n"),
        post(path, f'{{"api_key": "{secret("unknown-coding")}"}}'.encode(), "Content-Encoding: gzip\r\n"),
        post(path, gzip.compress(plain)),
        post(path, gzip.compress(plain, 0)),  # stored, not compressed: its text is there
        *(post(path, json.dumps(small).encode(code)) for code in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")),
        post(path, cbor, "Content-Type: application/cbor\r\n"),
        post(path, f"input: hi\npassword: {secret('yaml')}\n".encode(), "Content-Type: application/yaml\r\n"),
        post(path, f"a=b&password={secret('form')}".encode(), "Content-Type: application/x-www-form-urlencoded\r\n"),
        post(path, part, boundary),
        post(path, lines),
        post(path, json.dumps({"name": "X-Api-Key", "value": secret("short pair")}).encode()),
        post(path, json.dumps({"headers": ["X-Api-Key", secret("short list")]}).encode()),
        post(path, json.dumps([["x-api-key", secret("short list")]]).encode()),
        post(path, events, "Content-Type: text/event-stream\r\n"),
        post(path, f'{{"input": "hi", "p\\u0061ssword": "{secret("escaped-name")}"}}'.encode()),
        post(path, f'{{"input": "hi", "api_key": {secret("number").removeprefix(MARK)}}}'.encode()),
        post(path, f'{{"input": "hi", "credential": {{"secret_key": "{secret("malformed")}", }}'.encode()),
        post(path, f'{{"input": "hi", "password": "{secret("malformed")}'.encode()),
        post(path, f'{{"input": "hi", "password": "{secret("cut")}'.encode(), length=1000),
        post(path, f'{{"input": "{"x" * 70_000}", "password": "{secret("large")}"}}'.encode()),
    ]


def _bad() -> list[bytes]:
    """Return requests that are refused before they are read, and other schemes of authorization."""
    key = secret("sigv4")
    signed = f"AWS4-HMAC-SHA256 Credential=AKIA/{key}/aws4_request, SignedHeaders=host, Signature={key}"
    schemes = (
        signed,
        f"{secret('scheme')} x",
        secret("scheme"),
        f"bearer  {secret('bearer')}",
        f"Basic user:{secret('basic')}",
    )
    return [
        *(
            f"GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: {one}\r\nConnection: close\r\n\r\n".encode()
            for one in schemes
        ),
        f"GET http://u:{secret('request-line')}@a/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\nHost: a\r\nAuthorization : Bearer {secret('refused')}\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: b\r\n folded {secret('folded-header')}\r\n\r\n".encode(),
        f"GET /?password={secret('request-line')} HTTP/9.9\r\nHost: a\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\nHost: u:{secret('refused')}@a\r\n\r\n".encode(),
        f"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\npassword={secret('refused')}\r\n".encode(),
        b"\x16\x03\x01\x02\x00password=" + secret("refused").encode() + b"\r\n\r\n",
    ]
