"""Messages that clients seldom send and clusters seldom answer, all of them valid: each must pass as it is."""

from __future__ import annotations

import gzip
import zlib


def request(line: bytes, *headers: bytes, body: bytes = b"", host: bytes = b"Host: client.example") -> bytes:
    return b"\r\n".join((line, host, *headers, b"", body))


def get(target: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return request(b"GET " + target + b" HTTP/1.1", *headers, body=body)


def post(*headers: bytes, body: bytes = b"", target: bytes = b"/i/_doc") -> bytes:
    return request(b"POST " + target + b" HTTP/1.1", *headers, body=body)


PACKED = gzip.compress(b'{"query":{"match_all":{}}}', mtime=0)
DEFLATED = zlib.compress(b'{"query":{"match_all":{}}}')
CHUNKED = b"Transfer-Encoding: chunked"

TARGETS = {
    "percent-encoded slash": b"/a%2Fb/c",
    "percent-encoded in lower and upper case": b"/%7e/%7E/%e2%82%ac/%E2%82%AC",
    "percent-encoded unreserved": b"/%61%62/_search",
    "percent-encoded percent": b"/%25/%2525",
    "percent-encoded NUL": b"/a%00b",
    "percent-encoded line end": b"/a%0d%0aX-Evil:%201",
    "percent-encoded bytes that are no UTF-8": b"/%ff%fe%80",
    "percent sign alone": b"/a%",
    "percent sign and no hexadecimal": b"/a%zz/%4",
    "UTF-8 path": "/é/€/索引/🙂".encode(),
    "Latin-1 path": b"/caf\xe9",
    "UTF-8 query": "/i/_search?q=größe".encode(),
    "double slash": b"//a///b//",
    "only slashes": b"////",
    "a host behind slashes": b"//other.example/x",
    "dot segments": b"/a/./b/../c/..",
    "dot segments above the root": b"/../../etc/passwd",
    "encoded dot segments": b"/a/%2e%2e/b/%2E/c",
    "semicolon": b"/a;b=c/d;e",
    "backslash": b"/a\\b",
    "braces, pipe, caret, quotes": b'/a{b}|c^d`e"f<g>',
    "brackets and stars": b"/a[0]*,-b,+c",
    "at sign and colons": b"/a@b:80/c::d",
    "empty query": b"/i/_search?",
    "query with question marks": b"/i?a?b??",
    "query with raw and encoded plus": b"/i/_search?q=a+b%2Bc%20d",
    "query with empty parts": b"/i?&&a=&=b&&",
    "query with a repeated name": b"/i?a=1&a=2&A=3",
    "query with a slash and a colon": b"/i?a=http://x/y:z",
    "query with brackets": b"/i?a[]=1&b[x]=2",
    "64 KB": b"/" + b"a" * 65_000,
    "64 KB of query": b"/i/_search?q=" + b"%20" * 21_600,
}

REQUESTS = {f"target: {name}": get(target) for name, target in TARGETS.items()} | {
    "asterisk": request(b"OPTIONS * HTTP/1.1"),
    "empty line before it": b"\r\n" + get(b"/"),
    "no header but Host": get(b"/"),
    "duplicated headers": get(b"/", b"X-A: 1", b"X-B: 2", b"X-A: 3", b"X-A: 1"),
    "duplicated headers in odd case": get(b"/", b"x-A: 1", b"X-a: 2", b"X-A: 3"),
    "odd-cased headers": get(b"/", b"aCCEPT: a/b", b"USER-AGENT: x", b"x-opaque-ID: 7", b"ACCEPT-encoding: gzip"),
    "odd-cased Host": request(b"GET / HTTP/1.1", host=b"hOST: client.example"),
    "Host last": b"GET / HTTP/1.1\r\nX-A: 1\r\nHost: client.example\r\n\r\n",
    "all characters of a name": get(b"/", b"!#$%&'*+-.^_`|~09azAZ: 1"),
    "underscore in a name": get(b"/", b"X_A: 1", b"X-A: 2", b"Content_Length: 3", b"Transfer_Encoding: chunked"),
    "obs-text": get(b"/", b"X-A: caf\xe9 \x80\xff", "X-B: größe €".encode()),
    "empty values": get(b"/", b"X-A:", b"X-B: ", b"X-C: \t "),
    "optional whitespace": get(b"/", b"X-A:1", b"X-B:  \t 2 \t ", b"X-C:\t3"),
    "whitespace inside": get(b"/", b"X-A: a \t  b"),
    "commas and quotes": get(b"/", b"X-A: \"a, b\";c='d', , e", b'If-None-Match: W/"x", "y"'),
    "cookies": get(b"/", b"Cookie: a=1; b=2", b"Cookie: c=3", b"cookie: d"),
    "authorization": get(b"/", b"Authorization: Basic YTpi", b"Proxy-Authorization: Basic Yzpk"),
    "forwarding headers": get(b"/", b"X-Forwarded-For: 1.2.3.4", b"Forwarded: for=1.2.3.4", b"Via: 1.1 x"),
    "conditional": get(b"/", b"If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT", b"Range: bytes=0-1"),
    "accept-encoding": get(b"/", b"Accept-Encoding: gzip, deflate, br;q=0.1, *;q=0"),
    "300 headers": get(b"/", *(b"X-%d: %d" % (n, n) for n in range(300))),
    "a header of 9 KB": get(b"/", b"X-A: " + b"v" * 9_000),
    "a header of 60 KB": get(b"/", b"X-A: " + b"v" * 60_000),
    "a name of 9 KB": get(b"/", b"X" * 9_000 + b": 1"),
    "hop-by-hop headers": get(b"/", b"Keep-Alive: timeout=5", b"TE: trailers", b"Proxy-Connection: x", b"X-End: 1"),
    "connection keep-alive": get(b"/", b"Connection: Keep-Alive", b"X-End: 1"),
    "connection close": get(b"/", b"Connection: close", b"X-End: 1"),
    "max-forwards of a method where it does not count": get(b"/x", b"Max-Forwards: 0"),
    "head": request(b"HEAD /i HTTP/1.1"),
    "head with content-length": request(b"HEAD /i HTTP/1.1", b"Content-Length: 3", body=b"abc"),
    "delete": request(b"DELETE /i HTTP/1.1"),
    "delete with a body": request(b"DELETE /_search/scroll HTTP/1.1", b"Content-Length: 2", body=b"{}"),
    "options with a body": request(b"OPTIONS /i HTTP/1.1", b"Content-Length: 2", body=b"{}"),
    "trace": request(b"TRACE /i HTTP/1.1"),
    "patch": request(b"PATCH /i HTTP/1.1", b"Content-Length: 1", body=b"x"),
    "a method of our own": request(b"PURGE-It /i HTTP/1.1"),
    "a method in lower case": request(b"get /i HTTP/1.1"),
    "get with a body": get(b"/_search", b"Content-Type: a/b", b"Content-Length: 7", body=b'{"a":1}'),
    "get with length 0": get(b"/_search", b"Content-Length: 0"),
    "get with chunks": get(b"/_search", CHUNKED, body=b"4\r\nabcd\r\n0\r\n\r\n"),
    "post without a length": post(),
    "post with length 0": post(b"Content-Length: 0"),
    "length with zeros before it": post(b"Content-Length: 0003", body=b"abc"),
    "length before the other headers": post(b"content-LENGTH: 3", b"X-A: 1", body=b"abc"),
    "a body of all bytes": post(b"Content-Length: 256", body=bytes(range(256))),
    "a body that looks like a request": post(
        b"Content-Length: 29", body=b"GET /x HTTP/1.1\r\nHost: y\r\n\r\n\r\n"[:29]
    ),
    "a body of 3 MB": post(b"Content-Length: 3000000", body=b"0123456789" * 300_000),
    "gzip": post(b"Content-Encoding: gzip", b"Content-Length: %d" % len(PACKED), body=PACKED),
    "deflate": post(b"Content-Encoding: deflate", b"Content-Length: %d" % len(DEFLATED), body=DEFLATED),
    "labelled gzip": post(b"Content-Encoding: gzip", b"Content-Length: 3", body=b"abc"),
    "gzip in chunks": post(b"Content-Encoding: gzip", CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(PACKED), PACKED)),
    "chunks": post(CHUNKED, body=b"4\r\nabcd\r\n3\r\nefg\r\n0\r\n\r\n"),
    "chunks of one byte": post(CHUNKED, body=b"1\r\nx\r\n" * 200 + b"0\r\n\r\n"),
    "chunks, sizes with zeros and in upper case": post(CHUNKED, body=b"0A\r\n0123456789\r\n000\r\n\r\n"),
    "chunks with line ends in them": post(CHUNKED, body=b"6\r\n\r\n0\r\n\r\r\n5\r\n\r\n\r\n\n\r\n0\r\n\r\n"),
    "chunks with extensions": post(CHUNKED, body=b'4;a;b=1;c="d e"\r\nabcd\r\n3 ; x = y\r\nefg\r\n0;last\r\n\r\n'),
    "chunks with trailers": post(CHUNKED, b"Trailer: X-T", body=b"4\r\nabcd\r\n0\r\nX-T: 1\r\nX-U:\r\n\r\n"),
    "chunks, none": post(CHUNKED, body=b"0\r\n\r\n"),
    "chunked in odd case": post(b"tRANSFER-eNCODING:  Chunked", body=b"4\r\nabcd\r\n0\r\n\r\n"),
    "chunked, whitespace behind it": post(b"Transfer-Encoding: chunked \t", body=b"4\r\nabcd\r\n0\r\n\r\n"),
    "length, whitespace behind it": post(b"Content-Length: 3 \t", body=b"abc"),
    "http/1.0": b"GET /old HTTP/1.0\r\nHost: client.example\r\nX-A: 1\r\n\r\n",
    "http/1.0 without Host": b"GET /old HTTP/1.0\r\nX-A: 1\r\n\r\n",
    "http/1.0 with a body": b"POST /old HTTP/1.0\r\nHost: client.example\r\nContent-Length: 3\r\n\r\nabc",
    "http/1.0 that keeps alive": b"GET /old HTTP/1.0\r\nHost: client.example\r\nConnection: keep-alive\r\n\r\n",
    "connection names a header": get(b"/", b"Connection: X-Hop, x-other", b"X-Hop: 1", b"X-OTHER: 2", b"X-End: 3"),
    "connection names what frames": post(b"Connection: Content-Length, host", b"Content-Length: 3", body=b"abc"),
}
"""Name → bytes of one request. Host aside, and what ends at each hop, the cluster must receive the same."""

OK = b"HTTP/1.1 200 OK\r\n"

ANSWERS = {
    "length": OK + b"Content-Length: 3\r\n\r\nabc",
    "length 0": OK + b"Content-Length: 0\r\n\r\n",
    "length with zeros before it": OK + b"Content-Length: 0003\r\n\r\nabc",
    "a reason of words": b"HTTP/1.1 200 Very Fine, Indeed!\r\nContent-Length: 0\r\n\r\n",
    "an empty reason": b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n",
    "a reason beyond ASCII": "HTTP/1.1 200 größe\r\nContent-Length: 0\r\n\r\n".encode(),
    "an unknown status": b"HTTP/1.1 299 Odd\r\nContent-Length: 0\r\n\r\n",
    "status 799": b"HTTP/1.1 799 Odd\r\nContent-Length: 0\r\n\r\n",
    "status 599": b"HTTP/1.1 599 Odd\r\nContent-Length: 1\r\n\r\nx",
    "chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    "chunks with extensions": OK + b'transfer-encoding: Chunked\r\n\r\n3;a="b c"\r\nabc\r\n0;z\r\n\r\n',
    "chunks with trailers": OK + b"Trailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
    "chunks, none": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "until the end": OK + b"X-A: 1\r\n\r\nto the end",
    "until the end, empty": OK + b"X-A: 1\r\n\r\n",
    "http/1.0": b"HTTP/1.0 200 OK\r\nContent-Type: a/b\r\n\r\nold",
    "http/1.0 with a length": b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nold",
    "204": b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
    "304 with length": b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 100\r\n\r\n",
    "304 without": b'HTTP/1.1 304 Not Modified\r\nETag: W/"x"\r\n\r\n',
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: //else/%7e?\r\nContent-Length: 0\r\n\r\n",
    "401": b'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="x"\r\nWWW-Authenticate: y\r\ncontent-length: 0\r\n\r\n',
    "500": b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: a/b\r\ncontent-length: 2\r\n\r\n{}",
    "503 with retry-after": b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n",
    "duplicates in odd case": OK
    + b"set-cookie: a=1\r\nSet-Cookie: b=2\r\nx-A: 1\r\nX-a: 2\r\nContent-Length: 0\r\n\r\n",
    "warnings": OK + b'Warning: 299 OS-2.19 "a, b"\r\nWarning: 299 x "c"\r\nContent-Length: 0\r\n\r\n',
    "obs-text": OK + b"X-A: caf\xe9 \x80\xff\r\nContent-Length: 0\r\n\r\n",
    "empty values": OK + b"X-A:\r\nX-B: \r\nContent-Length: 0\r\n\r\n",
    "whitespace": OK + b"X-A:1\r\nX-B:  \t 2 \t \r\nX-C: a \t b\r\nContent-Length: 0\r\n\r\n",
    "length between others": OK + b"X-A: 1\r\ncontent-LENGTH: 1\r\nX-B: 2\r\n\r\nx",
    "200 headers": OK + b"".join(b"X-%d: %d\r\n" % (n, n) for n in range(200)) + b"Content-Length: 0\r\n\r\n",
    "a header of 60 KB": OK + b"X-A: " + b"v" * 60_000 + b"\r\nContent-Length: 0\r\n\r\n",
    "gzip": OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(PACKED) + PACKED,
    "deflate": OK + b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(DEFLATED) + DEFLATED,
    "labelled gzip": OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "gzip in chunks": OK
    + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(PACKED), PACKED),
    "date and server": OK
    + b"Date: Sat, 01 Jan 2000 00:00:00 GMT\r\nServer: os\r\nVia: 1.1 x\r\nContent-Length: 0\r\n\r\n",
    "hop-by-hop headers": OK
    + b"Connection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=1\r\nContent-Length: 1\r\n\r\nx",
    "no type": OK + b"Content-Length: 9\r\n\r\n<p>hi</p>",
    "3 MB": OK + b"Content-Length: 3000000\r\n\r\n" + b"0123456789" * 300_000,
    "3 MB in chunks": OK
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + (b"7530\r\n" + b"x" * 30_000 + b"\r\n") * 100
    + b"0\r\n\r\n",
}
"""Name → bytes of one answer to a GET."""

HEAD_ANSWERS = {
    "length": OK + b"Content-Length: 1234\r\n\r\n",
    "length 0": OK + b"Content-Length: 0\r\n\r\n",
    "no length": OK + b"X-A: 1\r\n\r\n",
    "404 with length": b"HTTP/1.1 404 Not Found\r\ncontent-type: a/b\r\ncontent-length: 405\r\n\r\n",
    "304": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n",
}
"""Name → bytes of one answer to a HEAD."""
