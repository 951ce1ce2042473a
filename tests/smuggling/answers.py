"""Answers of a cluster gone wrong, or of what stands in its place. None may reach a client as if it were sound.

`docs/reference/http.md` shows this table, too. Every answer carries `MARK`, in a header or in its body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.smuggling.table import HEADER_LINE, HEADERS

MARK = b"forged"


@dataclass(frozen=True)
class Answer:
    """A malformed answer.

    id: what is wrong with it. clause: RFC 9112 unless it says otherwise. phase: where the fault lies. In the head:
    the client gets 502 and not a byte of the answer. In the body: 502, or, the head being out, the client's
    connection is cut before the body is complete. Behind it: the answer is sound, but the bytes that follow it
    reach nobody. method: of the request that it answers.
    """

    id: str
    clause: str
    raw: bytes
    phase: Literal["head", "body", "behind"] = "head"
    method: bytes = b"GET"


def _answer(*lines: bytes, line: bytes = b"HTTP/1.1 200 OK", body: bytes = MARK) -> bytes:
    return b"".join(item + b"\r\n" for item in (line, b"X-Mark: " + MARK, *lines)) + b"\r\n" + body


def _length(*values: bytes) -> bytes:
    return _answer(*(b"Content-Length: " + value for value in values))


def _coding(*values: bytes, line: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return _answer(*(b"Transfer-Encoding: " + value for value in values), line=line, body=_CHUNKS)


def _field(line: bytes) -> bytes:
    return _answer(line, b"Content-Length: 6")


def _line(line: bytes) -> bytes:
    return _answer(b"Content-Length: 6", line=line)


_CHUNKS = b"6\r\nforged\r\n0\r\n\r\n"
_TE = b"Transfer-Encoding: chunked"
_CL = b"Content-Length: 6"
_SECOND = _answer(_CL)
_SIX = _CL + b"\r\n\r\n" + MARK
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

FRAMING = [
    Answer("Content-Length and Transfer-Encoding", "6.3", _answer(_CL, _TE, body=_CHUNKS)),
    Answer("Transfer-Encoding and Content-Length", "6.3", _answer(_TE, _CL, body=_CHUNKS)),
    Answer("two Content-Lengths, different", "6.3", _length(b"6", b"7")),
    Answer("two Content-Lengths, the same", "6.3", _length(b"6", b"6")),
    Answer("Content-Length a list", "6.3", _length(b"6, 6")),
    Answer("Content-Length with a sign", "RFC 9110, 8.6", _length(b"+6")),
    Answer("Content-Length negative", "RFC 9110, 8.6", _length(b"-6")),
    Answer("Content-Length hexadecimal", "RFC 9110, 8.6", _length(b"0x6")),
    Answer("Content-Length with an underscore", "RFC 9110, 8.6", _length(b"0_6")),
    Answer("Content-Length two numbers", "RFC 9110, 8.6", _length(b"6 6")),
    Answer("Content-Length empty", "RFC 9110, 8.6", _length(b"")),
    Answer("Content-Length above 64 bits", "RFC 9110, 8.6", _length(b"18446744073709551622")),
    Answer("Transfer-Encoding: identity", "7", _coding(b"identity")),
    Answer("Transfer-Encoding unknown", "6.1", _coding(b"xchunked")),
    Answer("gzip before chunked", "6.1", _coding(b"gzip, chunked")),
    Answer("chunked not last", "6.3", _coding(b"chunked, gzip")),
    Answer("chunked twice", "6.1", _coding(b"chunked, chunked")),
    Answer("chunked in two headers", "6.1", _coding(b"chunked", b"chunked")),
    Answer("chunked with a parameter", "7.1", _coding(b"chunked;q=1")),
    Answer("chunked behind a vertical tab", "RFC 9110, 5.5", _coding(b"\x0bchunked")),
    Answer("chunked in HTTP/1.0", "6.1", _coding(b"chunked", line=b"HTTP/1.0 200 OK")),
    Answer("Transfer-Encoding on a 204", "6.1", _coding(b"chunked", line=b"HTTP/1.1 204 No Content")),
]

HEADS = [
    Answer("bare LF everywhere", "2.2", b"HTTP/1.1 200 OK\nX-Mark: forged\nContent-Length: 6\n\nforged"),
    Answer(
        "bare LF after the status line", "2.2", b"HTTP/1.1 200 OK\nX-Mark: forged\r\nContent-Length: 6\r\n\r\nforged"
    ),
    Answer("bare LF after a header", "2.2", _field(b"X-A: 1\nX-B: 2")),
    Answer("bare LF for the empty line", "2.2", b"HTTP/1.1 200 OK\r\nX-Mark: forged\r\nContent-Length: 6\r\n\nforged"),
    Answer("bare CR in a value", "2.2", _field(b"X-A: 1\rX-B: 2")),
    Answer("CR CR LF after a header", "2.2", _field(b"X-A: 1\r")),
    Answer("a folded header", "5.2", _field(b"X-A: 1\r\n 2")),
    Answer("a folded Content-Length", "5.2", _answer(b"Content-Length:\r\n 6")),
    Answer(
        "space before the first header", "2.2", b"HTTP/1.1 200 OK\r\n X-Mark: forged\r\nContent-Length: 6\r\n\r\nforged"
    ),
    Answer("space before the colon", "5.1", _field(b"X-A : 1")),
    Answer("no colon", "5", _field(b"X-A")),
    Answer("no name", "5.1", _field(b": 1")),
    Answer("space in a name", "5.1", _field(b"X A: 1")),
    Answer("NUL in a value", "RFC 9110, 5.5", _field(b"X-A: a\x00b")),
    Answer("a header too long", "RFC 6585, 5", _field(b"X-A: " + b"a" * (2 * HEADER_LINE))),
    Answer("too many headers", "RFC 6585, 5", _answer(*[b"X-A: 1"] * (2 * HEADERS), _CL)),
    Answer("no status line", "4", b"forged\r\n\r\n"),
    Answer("garbage", "4", b"\x00\xfe\xffforged\x00" * 40 + b"\r\n\r\n"),
    Answer("another protocol", "2.3", _line(b"ICY 200 OK")),
    Answer("the version in lower case", "2.3", _line(b"http/1.1 200 OK")),
    Answer("HTTP/2.0", "2.3", _line(b"HTTP/2.0 200 OK")),
    Answer("HTTP/9.9", "2.3", _line(b"HTTP/9.9 200 OK")),
    Answer("HTTP/1.10", "2.3", _line(b"HTTP/1.10 200 OK")),
    Answer("no space behind the version", "4", _line(b"HTTP/1.1200 OK")),
    Answer("two spaces behind the version", "4", _line(b"HTTP/1.1  200 OK")),
    Answer("a status of two digits", "4", _line(b"HTTP/1.1 20 OK")),
    Answer("a status of four digits", "4", _line(b"HTTP/1.1 2000 OK")),
    Answer("a status of letters", "4", _line(b"HTTP/1.1 abc OK")),
    Answer("a signed status", "4", _line(b"HTTP/1.1 +20 OK")),
    Answer("a status below 100", "RFC 9110, 15", _line(b"HTTP/1.1 099 OK")),
    Answer("a NUL in the reason", "4", _line(b"HTTP/1.1 200 O\x00K")),
    Answer("a bare CR in the reason", "4", _line(b"HTTP/1.1 200 O\rK")),
    Answer("101 to a request that asked for no other protocol", "RFC 9110, 15.2.2", _line(b"HTTP/1.1 101 Switch")),
    Answer("a malformed interim answer", "RFC 9110, 15.2", b"HTTP/1.1 103 x\r\nX-Mark : forged\r\n\r\n" + _OK),
]

BODIES = [
    ("a size that is no number", "7.1", b"zz\r\nforged\r\n0\r\n\r\n"),
    ("a size with 0x", "7.1", b"0x6\r\nforged\r\n0\r\n\r\n"),
    ("a negative size", "7.1", b"-6\r\nforged\r\n0\r\n\r\n"),
    ("a last chunk of size -0", "7.1", b"6\r\nforged\r\n-0\r\n\r\n"),
    ("a size with an underscore", "7.1", b"0_6\r\nforged\r\n0\r\n\r\n"),
    ("no size", "7.1", b"\r\nforged\r\n0\r\n\r\n"),
    ("a space before a size", "7.1", b" 6\r\nforged\r\n0\r\n\r\n"),
    ("a size above 64 bits", "7.1", b"10000000000000006\r\nforged\r\n0\r\n\r\n"),
    ("bare LF behind a size", "7.1", b"6\nforged\r\n0\r\n\r\n"),
    ("bare CR behind a size", "7.1", b"6\rforged\r\n0\r\n\r\n"),
    ("more data than the size", "7.1", b"3\r\nforged\r\n0\r\n\r\n"),
    ("less data than the size", "7.1", b"7\r\nforged\r\n0\r\n\r\n"),
    ("bare LF behind data", "7.1", b"6\r\nforged\n0\r\n\r\n"),
    ("bare LF in an extension", "7.1.1", b"6;a\nforged\r\n0\r\n\r\n"),
    ("an extension too long", "7.1.1", b"6;" + b"a" * (2 * HEADER_LINE) + b"\r\nforged\r\n0\r\n\r\n"),
    ("bare LF at the end of the body", "7.1", b"6\r\nforged\r\n0\r\n\n"),
    ("a trailer without a colon", "7.1.2", b"6\r\nforged\r\n0\r\nX-T\r\n\r\n"),
    ("a folded trailer", "7.1.2", b"6\r\nforged\r\n0\r\nX-T: 1\r\n 2\r\n\r\n"),
]

BEHIND = [
    Answer("a second answer behind the first", "9.2", _OK + _SECOND, "behind"),
    Answer("a byte behind the answer", "9.2", _OK + b"f" + b"orged", "behind"),
    Answer(
        "a second answer behind chunks",
        "9.2",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + _SECOND,
        "behind",
    ),
    Answer("a body behind the answer to HEAD", "6.3", _OK[:-2] + _SECOND, "behind", b"HEAD"),
    Answer("an answer behind a 204", "6.3", b"HTTP/1.1 204 No Content\r\n\r\n" + _SECOND, "behind"),
    Answer(
        "an answer behind a 304", "6.3", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 6\r\n\r\n" + _SECOND, "behind"
    ),
    Answer("the stated length behind the answer to HEAD", "6.3", b"HTTP/1.1 200 OK\r\n" + _SIX, "behind", b"HEAD"),
    Answer("the stated length behind a 304", "6.3", b"HTTP/1.1 304 Not Modified\r\n" + _SIX, "behind"),
]

ANSWER_SECTIONS: dict[str, list[Answer]] = {
    "Framing": FRAMING,
    "Head": HEADS,
    "Chunks and trailers": [Answer(what, where, _answer(_TE, body=raw), "body") for what, where, raw in BODIES],
    "Bytes nobody asked for": BEHIND,
}
ANSWERS = [answer for answers in ANSWER_SECTIONS.values() for answer in answers]
READ_IN_MEMORY = [answer for answer in ANSWERS if answer.phase != "behind" and b"101 Switch" not in answer.raw]
"""Responses that can be refused without knowing the connection; `tests/http1` reads them in memory."""
