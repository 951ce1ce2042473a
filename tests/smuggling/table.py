"""Requests that two HTTP parsers may read differently. Each must be refused, and none of it may reach the cluster.

`docs/reference/http.md` shows this table; `python -m tests.smuggling.page` writes it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

REFUSED = frozenset({400, 505, 431, 414, 501})
"""What a refusal may say: bad request, version, header too long, target too long, not implemented."""

HEADER_LINE, HEADERS = 4096, 50
"""`limits.header_line` and `limits.headers` of the gateway these requests are sent to."""


@dataclass(frozen=True)
class Row:
    """A request to be refused.

    id: what is wrong with it. clause: RFC 9112 unless it says otherwise. phase: where the fault lies; one in the
    head is seen before anything goes on, one in the body (chunks, trailers) may come after the head has gone on,
    and then the upstream request is cut unfinished. status: what it must be refused with; 0: any of `REFUSED`.
    """

    id: str
    clause: str
    raw: bytes
    phase: Literal["head", "body"] = "head"
    status: int = 0


def _get(*lines: bytes, line: bytes = b"GET /row HTTP/1.1", host: bytes = b"Host: x\r\n") -> bytes:
    return line + b"\r\n" + host + b"".join(item + b"\r\n" for item in lines) + b"\r\n"


def _post(*lines: bytes, body: bytes = b"abcde", version: bytes = b"1.1") -> bytes:
    return _get(*lines, line=b"POST /row HTTP/" + version) + body


def _line(line: bytes) -> bytes:
    return _get(line=line)


def _length(value: bytes) -> bytes:
    return _post(b"Content-Length: " + value)


def _coding(*values: bytes) -> bytes:
    return _post(*(b"Transfer-Encoding: " + value for value in values), body=_CHUNKS)


def _host(*values: bytes) -> bytes:
    return _get(host=b"".join(b"Host: " + value + b"\r\n" for value in values))


def _chunks(raw: bytes) -> bytes:
    return _post(b"Transfer-Encoding: chunked", body=raw)


_CHUNKS = b"5\r\nabcde\r\n0\r\n\r\n"
_TE = b"Transfer-Encoding: chunked"
_CL = b"Content-Length: 5"

LENGTHS = [
    Row("Content-Length, then Transfer-Encoding", "6.1", _post(b"Content-Length: 15", _TE, body=_CHUNKS)),
    Row("Transfer-Encoding, then Content-Length", "6.1", _post(_TE, b"Content-Length: 15", body=_CHUNKS)),
    Row("Content-Length: 0 and Transfer-Encoding", "6.1", _post(b"Content-Length: 0", _TE, body=_CHUNKS)),
    Row("both on a GET", "6.1", _get(b"Content-Length: 15", _TE) + _CHUNKS),
    Row("both, Transfer-Encoding unknown", "6.1", _post(_CL, b"Transfer-Encoding: x"), status=501),
    Row("two Content-Lengths, different", "6.3", _post(_CL, b"Content-Length: 6")),
    Row("two Content-Lengths, the same", "6.3", _post(_CL, _CL)),
    Row("two Content-Lengths, spelled differently", "6.3", _post(b"content-length: 5", b"CONTENT-LENGTH: 6")),
    Row("two Content-Lengths on a GET, one of them 0", "6.3", _get(_CL, b"Content-Length: 0") + b"abcde"),
    Row("Content-Length a list, the same", "6.3", _length(b"5, 5")),
    Row("Content-Length a list, different", "6.3", _length(b"5, 6")),
    Row("Content-Length with a trailing comma", "6.3", _length(b"5,")),
    Row("Content-Length with a plus sign", "RFC 9110, 8.6", _length(b"+5")),
    Row("Content-Length with a minus sign", "RFC 9110, 8.6", _length(b"-5")),
    Row("Content-Length negative zero", "RFC 9110, 8.6", _length(b"-0")),
    Row("Content-Length hexadecimal", "RFC 9110, 8.6", _length(b"0x5")),
    Row("Content-Length with a fraction", "RFC 9110, 8.6", _length(b"5.0")),
    Row("Content-Length with an exponent", "RFC 9110, 8.6", _length(b"5e0")),
    Row("Content-Length two numbers", "RFC 9110, 8.6", _length(b"5 5")),
    Row("Content-Length with an underscore", "RFC 9110, 8.6", _length(b"0_5")),
    Row("Content-Length quoted", "RFC 9110, 8.6", _length(b'"5"')),
    Row("Content-Length empty", "RFC 9110, 8.6", _length(b"")),
    Row("Content-Length in Arabic digits", "RFC 9110, 8.6", _length("٥".encode())),
    Row("Content-Length a superscript in Latin-1", "RFC 9110, 8.6", _length(b"\xb2")),
    Row("Content-Length above 64 bits", "RFC 9110, 8.6", _length(b"18446744073709551621")),
    Row("Content-Length of 2,000 digits", "RFC 9110, 8.6", _length(b"5" * 2000)),
    Row("Content-Length with a vertical tab", "RFC 9110, 5.5", _length(b"\x0b5")),
    Row("Content-Length with a form feed behind", "RFC 9110, 5.5", _length(b"5\x0c")),
    Row("Content-Length with a no-break space", "RFC 9110, 8.6", _length(b"\xa05")),
]

CODINGS = [
    Row("Transfer-Encoding: identity", "7", _coding(b"identity"), status=501),
    Row("Transfer-Encoding unknown", "6.1", _coding(b"xchunked"), status=501),
    Row("chunked with a letter more", "6.1", _coding(b"chunkedx"), status=501),
    Row("gzip before chunked", "6.1", _coding(b"gzip, chunked"), status=501),
    Row("gzip alone", "6.1", _coding(b"gzip"), status=501),
    Row("gzip with a parameter before chunked", "6.1", _coding(b"gzip;level=1 , chunked"), status=501),
    Row("a coding in HTTP/1.0", "6.1", _post(b"Transfer-Encoding: gzip", version=b"1.0"), status=400),
    Row("chunked not last", "6.3", _coding(b"chunked, gzip"), status=400),
    Row("chunked not last, identity behind", "6.3", _coding(b"chunked, identity"), status=400),
    Row("chunked twice in a list", "6.1", _coding(b"chunked, chunked"), status=400),
    Row("chunked in two headers", "6.1", _coding(b"chunked", b"chunked"), status=400),
    Row("chunked and identity in two headers", "6.3", _coding(b"chunked", b"identity"), status=400),
    Row("identity and chunked in two headers", "7", _coding(b"identity", b"chunked"), status=501),
    Row("chunked with a parameter", "7.1", _coding(b"chunked;q=1"), status=400),
    Row("chunked quoted", "7", _coding(b'"chunked"'), status=400),
    Row("chunked behind an empty list element", "6.1", _coding(b", chunked"), status=400),
    Row("chunked before an empty list element", "6.1", _coding(b"chunked,"), status=400),
    Row("Transfer-Encoding empty", "6.1", _coding(b""), status=400),
    Row("chunked behind a vertical tab", "RFC 9110, 5.5", _coding(b"\x0bchunked")),
    Row("chunked before a form feed", "RFC 9110, 5.5", _coding(b"chunked\x0c")),
    Row("chunked with a NUL", "RFC 9110, 5.5", _coding(b"chunked\x00")),
    Row("chunked behind a no-break space", "7", _coding(b"\xa0chunked"), status=400),
    Row("chunked with a letter beyond ASCII", "7", _coding("chun\u212aed".encode()), status=400),
    Row("chunked in HTTP/1.0", "6.1", _post(_TE, body=_CHUNKS, version=b"1.0"), status=400),
    Row("Content-Length and chunked in HTTP/1.0", "6.1", _post(_CL, _TE, body=_CHUNKS, version=b"1.0")),
    Row("space before the colon of Transfer-Encoding", "5.1", _post(b"Transfer-Encoding : chunked", body=_CHUNKS)),
    Row("Transfer-Encoding folded", "5.2", _post(b"Transfer-Encoding:\r\n chunked", body=_CHUNKS)),
    Row("space before Transfer-Encoding", "5.2", _post(_CL, b" Transfer-Encoding: chunked")),
]

LINES = [
    Row("bare LF after the request line", "2.2", b"GET /row HTTP/1.1\nHost: x\r\n\r\n"),
    Row("bare LF after a header", "2.2", b"GET /row HTTP/1.1\r\nHost: x\nX-A: 1\r\n\r\n"),
    Row("bare LF after the last header", "2.2", b"GET /row HTTP/1.1\r\nHost: x\n\r\n"),
    Row("bare LF for the empty line", "2.2", b"GET /row HTTP/1.1\r\nHost: x\r\n\n"),
    Row("bare LF everywhere", "2.2", b"GET /row HTTP/1.1\nHost: x\n\n"),
    Row("bare LF before Transfer-Encoding", "2.2", _post(_CL, b"X-A: 1\nTransfer-Encoding: chunked")),
    Row("bare CR in the target", "2.2", _line(b"GET /a\rb HTTP/1.1")),
    Row("bare CR after the version", "2.2", b"GET /row HTTP/1.1\rHost: x\r\n\r\n"),
    Row("bare CR in a header's value", "2.2", _get(b"X-A: a\rb")),
    Row("bare CR before a header's name", "2.2", _get(b"\rX-A: a")),
    Row("bare CR between two headers", "2.2", _post(_CL, b"X-A: 1\rTransfer-Encoding: chunked")),
    Row("CR CR LF after a header", "2.2", _get(b"X-A: 1\r")),
    Row("CR CR LF for the empty line", "2.2", b"GET /row HTTP/1.1\r\nHost: x\r\n\r\r\n\r\n"),
    Row("a header folded with a space", "5.2", _get(b"X-A: 1\r\n 2")),
    Row("a header folded with a tab", "5.2", _get(b"X-A: 1\r\n\t2")),
    Row("a header folded over a blank line", "5.2", _get(b"X-A: 1\r\n \r\n\tX-B: 2")),
    Row("space before the first header", "2.2", _get(host=b" X-A: 1\r\nHost: x\r\n")),
    Row("tab before the first header", "2.2", _get(host=b"\tX-A: 1\r\nHost: x\r\n")),
]

FIELDS = [
    Row("space before the colon", "5.1", _get(b"X-A : 1")),
    Row("tab before the colon", "5.1", _get(b"X-A\t: 1")),
    Row("no colon", "5", _get(b"X-A")),
    Row("no name", "5.1", _get(b": 1")),
    Row("space in a name", "5.1", _get(b"X A: 1")),
    Row("parenthesis in a name", "RFC 9110, 5.6.2", _get(b"X(A: 1")),
    Row("at sign in a name", "RFC 9110, 5.6.2", _get(b"X@A: 1")),
    Row("quote in a name", "RFC 9110, 5.6.2", _get(b'X"A: 1')),
    Row("slash in a name", "RFC 9110, 5.6.2", _get(b"X/A: 1")),
    Row("NUL in a name", "RFC 9110, 5.6.2", _get(b"X\x00A: 1")),
    Row("a letter beyond ASCII in a name", "RFC 9110, 5.6.2", _get(b"X\xe9A: 1")),
    Row("NUL in a value", "RFC 9110, 5.5", _get(b"X-A: a\x00b")),
    Row("a control character in a value", "RFC 9110, 5.5", _get(b"X-A: a\x01b")),
    Row("an escape character in a value", "RFC 9110, 5.5", _get(b"X-A: a\x1bb")),
    Row("DEL in a value", "RFC 9110, 5.5", _get(b"X-A: a\x7fb")),
]

REQUEST_LINES = [
    Row("no version", "3", _line(b"GET /row")),
    Row("no target", "3", _line(b"GET HTTP/1.1")),
    Row("only a method", "3", _line(b"GET")),
    Row("two spaces before the target", "3", _line(b"GET  /row HTTP/1.1")),
    Row("two spaces before the version", "3", _line(b"GET /row  HTTP/1.1")),
    Row("a tab before the target", "3", _line(b"GET\t/row HTTP/1.1")),
    Row("a tab before the version", "3", _line(b"GET /row\tHTTP/1.1")),
    Row("a space before the method", "3", _line(b" GET /row HTTP/1.1")),
    Row("a space behind the version", "3", _line(b"GET /row HTTP/1.1 ")),
    Row("a space in the target", "3.2", _line(b"GET /a b HTTP/1.1")),
    Row("a tab in the target", "3.2", _line(b"GET /a\tb HTTP/1.1")),
    Row("NUL in the target", "3.2", _line(b"GET /a\x00b HTTP/1.1")),
    Row("a control character in the target", "3.2", _line(b"GET /a\x01b HTTP/1.1")),
    Row("DEL in the target", "3.2", _line(b"GET /a\x7fb HTTP/1.1")),
    Row("a fragment in the target", "3.2", _line(b"GET /a#b HTTP/1.1")),
    Row("a target without a slash", "3.2.1", _line(b"GET row HTTP/1.1")),
    Row("a target that is an authority", "3.2.3", _line(b"GET x:80 HTTP/1.1")),
    Row("an asterisk for GET", "3.2.4", _line(b"GET * HTTP/1.1")),
    Row("an absolute target without a host", "RFC 9110, 4.2.1", _line(b"GET http:///row HTTP/1.1")),
    Row("an absolute target with credentials", "RFC 9110, 4.2.4", _line(b"GET http://u@x/row HTTP/1.1")),
    Row("an absolute target of another scheme", "3.2.2", _line(b"GET ftp://x/row HTTP/1.1")),
    Row("a tunnel", "RFC 9110, 9.3.6", _line(b"CONNECT x:80 HTTP/1.1"), status=501),
    Row("a tunnel to a path", "RFC 9110, 9.3.6", _line(b"CONNECT /row HTTP/1.1"), status=501),
    Row("Max-Forwards no number", "RFC 9110, 7.6.2", _get(b"Max-Forwards: x", line=b"OPTIONS /row HTTP/1.1")),
    Row("two Max-Forwards", "RFC 9110, 7.6.2", _get(*[b"Max-Forwards: 1"] * 2, line=b"TRACE /row HTTP/1.1")),
    Row("a parenthesis in the method", "RFC 9110, 9.1", _line(b"GE(T /row HTTP/1.1")),
    Row("a control character in the method", "RFC 9110, 9.1", _line(b"GE\x01T /row HTTP/1.1")),
    Row("a letter beyond ASCII in the method", "RFC 9110, 9.1", _line(b"G\xcbT /row HTTP/1.1")),
    Row("the start of TLS", "3", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    Row("the target too long", "3", _line(b"GET /" + b"a" * (2 * HEADER_LINE) + b" HTTP/1.1")),
    Row("a method too long", "3", _line(b"G" * (2 * HEADER_LINE) + b" /row HTTP/1.1")),
]

VERSIONS = [
    Row("HTTP/2.0", "RFC 9110, 15.6.6", _line(b"GET /row HTTP/2.0")),
    Row("the preface of HTTP/2", "RFC 9113, 3.4", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Row("HTTP/9.9", "RFC 9110, 15.6.6", _line(b"GET /row HTTP/9.9")),
    Row("HTTP/0.9", "RFC 9110, 15.6.6", _line(b"GET /row HTTP/0.9")),
    Row("HTTP/1.2", "RFC 9110, 15.6.6", _line(b"GET /row HTTP/1.2")),
    Row("HTTP/1.10", "2.3", _line(b"GET /row HTTP/1.10")),
    Row("HTTP/01.1", "2.3", _line(b"GET /row HTTP/01.1")),
    Row("HTTP/1", "2.3", _line(b"GET /row HTTP/1")),
    Row("HTTP/1.", "2.3", _line(b"GET /row HTTP/1.")),
    Row("HTTP/1,1", "2.3", _line(b"GET /row HTTP/1,1")),
    Row("HTTP/+1.1", "2.3", _line(b"GET /row HTTP/+1.1")),
    Row("HTTP/1.1 with a letter behind", "2.3", _line(b"GET /row HTTP/1.1x")),
    Row("the version in lower case", "2.3", _line(b"GET /row http/1.1")),
    Row("another protocol", "2.3", _line(b"GET /row HTTPS/1.1")),
    Row("another protocol of version 1.0", "2.3", _line(b"GET /row RTSP/1.0")),
    Row("a superscript for a digit", "2.3", _line(b"GET /row HTTP/1.\xb9")),
]

HOSTS = [
    Row("no Host", "3.2", _get(host=b"")),
    Row("two Hosts, the same", "3.2", _host(b"x", b"x")),
    Row("two Hosts, different", "3.2", _host(b"x", b"y")),
    Row("two Hosts, spelled differently", "3.2", _get(b"HOST: y")),
    Row("two Hosts in HTTP/1.0", "3.2", _get(b"Host: y", line=b"GET /row HTTP/1.0")),
    Row("two Hosts and an absolute target", "3.2", _get(b"Host: x", line=b"GET http://x/row HTTP/1.1")),
    Row("Host a list", "3.2", _host(b"x, y")),
    Row("Host with a space", "3.2", _host(b"x y")),
    Row("Host with a path", "3.2", _host(b"x/y")),
    Row("Host with a query", "3.2", _host(b"x?y")),
    Row("Host with a fragment", "3.2", _host(b"x#y")),
    Row("Host with a backslash", "3.2", _host(b"x\\y")),
    Row("Host with credentials", "3.2", _host(b"u@x")),
    Row("Host with a scheme", "3.2", _host(b"http://x")),
    Row("Host with a port that is no number", "3.2", _host(b"x:y")),
    Row("Host with a signed port", "3.2", _host(b"x:+80")),
    Row("Host with two ports", "3.2", _host(b"x:80:81")),
    Row("Host with a bracket left open", "3.2", _host(b"[::1")),
    Row("Host with words behind the bracket", "3.2", _host(b"[::1]x")),
    Row("Host with letters beyond ASCII", "3.2", _host(b"x\xe9")),
    Row("Host with a bad percent-encoding", "3.2", _host(b"x%zz")),
    Row("Host with a NUL", "3.2", _host(b"x\x00")),
    Row("Host folded", "5.2", _host(b"x\r\n y")),
    Row("Host invalid in HTTP/1.0", "3.2", _get(line=b"GET /row HTTP/1.0", host=b"Host: x/y\r\n")),
]

LIMITS = [
    Row("a header too long", "RFC 6585, 5", _get(b"X-A: " + b"a" * (2 * HEADER_LINE))),
    Row("a header's name too long", "RFC 6585, 5", _get(b"X" * (2 * HEADER_LINE) + b": 1")),
    Row("too many headers", "RFC 6585, 5", _get(*[b"X-A: 1"] * (2 * HEADERS))),
]

CHUNKS = [
    ("a size that is no number", "7.1", b"zz\r\nabcde\r\n0\r\n\r\n"),
    ("a size with 0x", "7.1", b"0x5\r\nabcde\r\n0\r\n\r\n"),
    ("a size with a plus sign", "7.1", b"+5\r\nabcde\r\n0\r\n\r\n"),
    ("a size with a minus sign", "7.1", b"-5\r\nabcde\r\n0\r\n\r\n"),
    ("a last chunk of size -0", "7.1", b"5\r\nabcde\r\n-0\r\n\r\n"),
    ("a size with an underscore", "7.1", b"0_5\r\nabcde\r\n0\r\n\r\n"),
    ("no size", "7.1", b"\r\nabcde\r\n0\r\n\r\n"),
    ("no size, but an extension", "7.1", b";a=1\r\nabcde\r\n0\r\n\r\n"),
    ("a space before a size", "7.1", b" 5\r\nabcde\r\n0\r\n\r\n"),
    ("a space behind a size", "7.1", b"5 \r\nabcde\r\n0\r\n\r\n"),
    ("a tab behind a size", "7.1", b"5\t\r\nabcde\r\n0\r\n\r\n"),
    ("two sizes", "7.1", b"5 5\r\nabcde\r\n0\r\n\r\n"),
    ("a size in Arabic digits", "7.1", "٥\r\nabcde\r\n0\r\n\r\n".encode()),
    ("a size above 64 bits", "7.1", b"10000000000000005\r\nabcde\r\n0\r\n\r\n"),
    ("a size of 64 bits, the first set", "7.1", b"ffffffffffffffff\r\nabcde\r\n0\r\n\r\n"),
    ("a size with a NUL", "7.1", b"5\x00\r\nabcde\r\n0\r\n\r\n"),
    ("bare LF behind a size", "7.1", b"5\nabcde\r\n0\r\n\r\n"),
    ("bare CR behind a size", "7.1", b"5\rabcde\r\n0\r\n\r\n"),
    ("CR CR LF behind a size", "7.1", b"5\r\r\nabcde\r\n0\r\n\r\n"),
    ("more data than the size", "7.1", b"5\r\nabcdefg\r\n0\r\n\r\n"),
    ("less data than the size", "7.1", b"5\r\nabc\r\n0\r\n\r\n"),
    ("two bytes in place of CRLF behind data", "7.1", b"5\r\nabcdeXX0\r\n\r\n"),
    ("no CRLF behind data", "7.1", b"5\r\nabcde0\r\n\r\n"),
    ("bare LF behind data", "7.1", b"5\r\nabcde\n0\r\n\r\n"),
    ("bare CR behind data", "7.1", b"5\r\nabcde\r0\r\n\r\n"),
    ("bare LF in an extension", "7.1.1", b"5;a\nabcde\r\n0\r\n\r\n"),
    ("bare CR in an extension", "7.1.1", b"5;a\rb\r\nabcde\r\n0\r\n\r\n"),
    ("NUL in an extension", "7.1.1", b"5;a\x00b\r\nabcde\r\n0\r\n\r\n"),
    ("an extension without a name", "7.1.1", b"5;\r\nabcde\r\n0\r\n\r\n"),
    ("an extension too long", "7.1.1", b"5;" + b"a" * (2 * HEADER_LINE) + b"\r\nabcde\r\n0\r\n\r\n"),
    ("bare LF behind the last chunk's size", "7.1", b"5\r\nabcde\r\n0\n\r\n"),
    ("bare LF at the end of the body", "7.1", b"5\r\nabcde\r\n0\r\n\n"),
    ("bare CR at the end of the body", "7.1", b"5\r\nabcde\r\n0\r\n\rX"),
    ("a trailer without a colon", "7.1.2", b"5\r\nabcde\r\n0\r\nX-T\r\n\r\n"),
    ("a trailer without a name", "7.1.2", b"5\r\nabcde\r\n0\r\n: 1\r\n\r\n"),
    ("space before the colon of a trailer", "7.1.2", b"5\r\nabcde\r\n0\r\nX-T : 1\r\n\r\n"),
    ("a trailer folded", "7.1.2", b"5\r\nabcde\r\n0\r\nX-T: 1\r\n 2\r\n\r\n"),
    ("bare LF behind a trailer", "7.1.2", b"5\r\nabcde\r\n0\r\nX-T: 1\n\r\n"),
    ("bare CR in a trailer", "7.1.2", b"5\r\nabcde\r\n0\r\nX-T: 1\rX-U: 2\r\n\r\n"),
    ("NUL in a trailer", "7.1.2", b"5\r\nabcde\r\n0\r\nX-T: \x00\r\n\r\n"),
    ("Content-Length in a trailer", "RFC 9110, 6.5.1", b"5\r\nabcde\r\n0\r\nContent-Length: 5\r\n\r\n"),
    ("Transfer-Encoding in a trailer", "RFC 9110, 6.5.1", b"5\r\nabcde\r\n0\r\nTransfer-Encoding: x\r\n\r\n"),
    ("Host in a trailer", "RFC 9110, 6.5.1", b"5\r\nabcde\r\n0\r\nHost: y\r\n\r\n"),
    ("a trailer too long", "7.1.2", b"5\r\nabcde\r\n0\r\nX-T: " + b"a" * (2 * HEADER_LINE) + b"\r\n\r\n"),
    ("too many trailers", "7.1.2", b"5\r\nabcde\r\n0\r\n" + b"X-T: 1\r\n" * (2 * HEADERS) + b"\r\n"),
]

SECTIONS: dict[str, list[Row]] = {
    "Content-Length": LENGTHS,
    "Transfer-Encoding": CODINGS,
    "Line ends and folding": LINES,
    "Header names and values": FIELDS,
    "Request line": REQUEST_LINES,
    "Version": VERSIONS,
    "Host": HOSTS,
    "Limits": LIMITS,
    "Chunks and trailers": [Row(what, clause, _chunks(raw), "body") for what, clause, raw in CHUNKS],
}
ROWS = [row for rows in SECTIONS.values() for row in rows]

SOUND = {
    "nothing special": b"GET /follower HTTP/1.1\r\nHost: x\r\n\r\n",
    "an empty line before it": b"\r\nGET /follower HTTP/1.1\r\nHost: x\r\n\r\n",
    "optional whitespace": b"GET /follower HTTP/1.1\r\nHost: \t x \t\r\nX-A:1\r\nX-B:\r\n\r\n",
    "host with a port": b"GET /follower HTTP/1.1\r\nHost: x.example:9200\r\n\r\n",
    "host an IPv6 address": b"GET /follower HTTP/1.1\r\nHost: [::1]:9200\r\n\r\n",
    "host empty": b"GET /follower HTTP/1.1\r\nHost:\r\n\r\n",
    "length with zeros before it": b"POST /follower HTTP/1.1\r\nHost: x\r\nContent-Length: 0005\r\n\r\nabcde",
    "chunked": b"POST /follower HTTP/1.1\r\nHost: x\r\ntransfer-encoding: Chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
    "upper-case hexadecimal": b"POST /follower HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0A\r\nabcdeabcde\r\n00\r\n\r\n",
    "extensions": b"POST /follower HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'5;a=1;b;c="d e"\r\nabcde\r\n0;z\r\n\r\n',
    "max-forwards of another method": b"GET /follower HTTP/1.1\r\nHost: x\r\nMax-Forwards: x\r\n\r\n",
    "trailers": b"POST /follower HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nabcde\r\n0\r\nX-T: 1\r\nX-U:\r\n\r\n",
}
"""Requests that must not be refused: the table would also hold if every request were refused."""
