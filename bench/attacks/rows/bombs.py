"""Bodies that are small to send and large to read: packed, nested, repeated."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from dataclasses import dataclass

from bench.attacks.attack import MEBIBYTE, Attack, Table
from bench.attacks.bodies import (
    END,
    MILLION,
    MOST,
    PNG,
    START,
    TEXT,
    Make,
    chained,
    data_urls,
    distinct_keys,
    doubling,
    faulty_base64,
    image,
    nested,
    packed,
    packed_again,
    packed_list,
    packed_twice,
    parameters,
    repeated,
    tool_calls,
    unknown_blocks,
    unknown_members,
)
from bench.attacks.client import Target, post
from bench.upstream import AGENT

TABLE = Table("bombs")
_EXECUTE = f"/_plugins/_ml/agents/{AGENT}/_execute"
_REGISTER = "/_plugins/_ml/agents/_register"
_GZIP = ("Content-Encoding: gzip",)
_ANSWERS = frozenset({200, 400, 413, 415, 429, 503})


@dataclass(frozen=True)
class Bomb:
    """A body, and how it is sent. side_by_side: how many at once. memory: the most that memory may grow, in MiB."""

    name: str
    about: str
    make: Make
    lines: tuple[str, ...] = ()
    path: str = _EXECUTE
    side_by_side: int = 1
    every: float = 2.0
    memory: int = 512

    async def run(self, target: Target) -> None:
        """Send it, once or several at once."""
        if self not in target.prepared:
            target.prepared[self] = await asyncio.to_thread(self.make, target.scale)
        request = post(self.path, b"", *self.lines, length=len(target.prepared[self]))
        body = target.prepared[self]
        pieces = [body[at : at + MILLION] for at in range(0, len(body), MILLION)]
        await target.burst(lambda _: target.ask(request, *pieces), self.side_by_side)


BOMBS = (
    Bomb("list of ones", '`{"input":[1,1,…]}`, 100 MB in 100 KB of gzip', packed_list(b"1"), _GZIP),
    Bomb("list of empty texts", '`["","",…]`, 100 MB in 96 KB of gzip', packed_list(b'""'), _GZIP),
    Bomb("ten lists at once", "ten of those at the same time", packed_list(b'""'), _GZIP, side_by_side=10, every=5.0),
    Bomb("list of NaN", "4 MB of `NaN`, which JSON does not have", repeated(b'{"input":[', b"NaN,", MILLION, b"1]}")),
    Bomb("list of empty objects", "`{}`, 100 MB in gzip", packed_list(b"{}"), _GZIP),
    Bomb("list of empty lists", "`[]`, 100 MB in gzip", packed_list(b"[]"), _GZIP),
    Bomb(
        "short strings",
        "100 MB of strings of five letters, not packed",
        repeated(b'{"input":[', b'"abcde",', 12 * MILLION, b'""]}'),
    ),
    Bomb("text blocks", "100 MB of the shortest text blocks in gzip", packed_list(TEXT), _GZIP),
    Bomb(
        "text blocks, not packed",
        "10 MB of the shortest text blocks",
        repeated(b'{"input":[', TEXT + b",", 370_000, TEXT + b"]}"),
    ),
    Bomb(
        "messages",
        "10 MB of short messages",
        repeated(
            b'{"input":[',
            b'{"role":"user","content":[%b]},' % TEXT,
            170_000,
            b'{"role":"user","content":[%b]}]}' % TEXT,
        ),
    ),
    Bomb(
        "nothing 300,000 times",
        "gzip with 300,000 empty members",
        lambda scale: gzip.compress(b"") * round(300_000 * scale),
        _GZIP,
    ),
    Bomb(
        "small members",
        "gzip with 100,000 members of 100 bytes",
        lambda scale: gzip.compress(b" " * 100) * round(100_000 * scale) + gzip.compress(b'{"input":"a"}'),
        _GZIP,
    ),
    Bomb(
        "zeros packed twice",
        "a few hundred bytes that unpack to 99 MB of zeros",
        packed_twice(b"\0"),
        ("Content-Encoding: gzip, gzip",),
    ),
    Bomb(
        "spaces packed twice",
        "a few hundred bytes that unpack to 99 MB of spaces",
        packed_twice(b" "),
        ("Content-Encoding: gzip, gzip",),
    ),
    Bomb(
        "ten times zeros packed twice",
        "ten of the same at once",
        packed_twice(b"\0"),
        ("Content-Encoding: gzip, gzip",),
        side_by_side=10,
        every=5.0,
    ),
    Bomb(
        "zeros over the limit",
        "10 GB of zeros in 10 MB of gzip, packed again",
        packed_again(lambda scale: packed(b"", bytes(10_000), round(MILLION * scale), b"", 1)),
        ("Content-Encoding: gzip", "Content-Encoding: gzip"),
        every=5.0,
    ),
    Bomb(
        "deflate",
        "100 MB of spaces in deflate",
        lambda scale: zlib.compress(b" " * round(MOST * scale), 9),
        ("Content-Encoding: deflate",),
    ),
    Bomb(
        "many codings",
        "200 codings in Content-Encoding",
        repeated(START, b"a", 100, END),
        ("Content-Encoding: " + ", ".join(["gzip"] * 200),),
    ),
    Bomb("nested lists", "a list 10 million levels deep", nested(b"[", b"]", 10 * MILLION)),
    Bomb("nested objects", "an object a million levels deep", nested(b'{"a":', b"}", MILLION)),
    Bomb(
        "lists 99 levels deep",
        "lists just within the limit of nesting, 10 MB",
        repeated(b'{"input":[', b"[" * 96 + b"]" * 96 + b",", 50_000, b"1]}"),
    ),
    Bomb("distinct keys", "an object of a million different keys", distinct_keys),
    Bomb(
        "equal keys",
        "an object with the same key two million times",
        repeated(b'{"input":{', b'"k":1,', 2 * MILLION, b'"k":1}}'),
    ),
    Bomb("input twice", "`input` a million times", repeated(b"{", b'"input":1,', MILLION, b'"input":"a"}')),
    Bomb("unknown members", "a text block with 100,000 unknown members", unknown_members),
    Bomb("unknown blocks", "200,000 blocks of an unknown type: as many problems", unknown_blocks),
    Bomb("huge number", "an integer of 20 million digits", repeated(b'{"input":', b"7", 20 * MILLION, b"}")),
    Bomb(
        "huge exponents",
        "a million numbers like 1e999999999",
        repeated(b'{"input":[', b"1e999999999,", MILLION, b"1]}"),
    ),
    Bomb(
        "long floats",
        "200,000 numbers of 100 digits",
        repeated(b'{"input":[', b"0." + b"1234567890" * 10 + b",", 200_000, b"1]}"),
    ),
    Bomb("escapes", "a text of 30 million escapes", repeated(START, rb"\n", 30 * MILLION, END)),
    Bomb("unicode escapes", "a text of 10 million `\\u0041`", repeated(START, rb"\u0041", 10 * MILLION, END)),
    Bomb("zero characters", "a text of 10 million `\\u0000`", repeated(START, rb"\u0000", 10 * MILLION, END)),
    Bomb("lone surrogates", "a text of 5 million lone surrogates", repeated(START, rb"\ud800", 5 * MILLION, END)),
    Bomb(
        "placeholders", "a text of 2 million `${parameters.x}`", repeated(START, b"${parameters.x}", 2 * MILLION, END)
    ),
    Bomb(
        "placeholders within the limit",
        "a text of 99,000 `${parameters.x}`, to be planned",
        repeated(START, b"${parameters.x}", 99_000, END),
    ),
    Bomb(
        "texts within the limit",
        "9,999 text blocks, each with a placeholder, to be planned",
        repeated(b'{"input":[', b'{"type":"text","text":"a ${parameters.x}"},', 9_998, TEXT + b"]}"),
    ),
    Bomb(
        "turns within the limit",
        "4,999 short messages, to be planned",
        repeated(
            b'{"input":[',
            b'{"role":"user","content":[%b]},{"role":"assistant","content":[%b]},' % (TEXT, TEXT),
            2_499,
            b'{"role":"user","content":[%b]}]}' % TEXT,
        ),
    ),
    Bomb(
        "long text within the limit",
        "a text of 7.9 MB with quotes, to be planned",
        repeated(START, b'\\"aaaaaaa', 790_000, END),
    ),
    Bomb(
        "parameters that double",
        "40 parameters, each of which names the next one twice",
        lambda _: doubling(40),
    ),
    Bomb(
        "parameters in a chain",
        "4,000 parameters, each of which names the next one",
        lambda _: chained(4_000),
    ),
    Bomb("long text", "a text of 90 MB", repeated(START, b"a", 90 * MILLION, END)),
    Bomb(
        "long text, packed",
        "a text of 95 MB in gzip",
        lambda scale: packed(START, b"a", round(95 * MILLION * scale), END),
        _GZIP,
    ),
    Bomb("four-byte characters", "a text of 10 million emoji", repeated(START, "😀".encode(), 10 * MILLION, END)),
    Bomb("not UTF-8", "a text of 20 MB that is no UTF-8", repeated(START, b"\xff", 20 * MILLION, END)),
    Bomb(
        "whitespace", "100 MB of whitespace before the body", repeated(b"", b" \n\t\r", 24 * MILLION, b'{"input":"a"}')
    ),
    Bomb(
        "comments",
        "20 MB of comments, which JSON does not have",
        repeated(b"{", b"/* c */\n", 2_500_000, b'"input":"a"}'),
    ),
    Bomb("unended string", "50 MB of a string that does not end", repeated(START, b"a", 50 * MILLION, b"")),
    Bomb(
        "arguments: lists",
        "a tool call whose arguments hold 10 MB of `[],` in a string",
        tool_calls('{"a":[' + "[]," * 3 * MILLION + "1]}", 1),
    ),
    Bomb(
        "arguments: nested",
        "a tool call whose arguments are nested a million levels deep",
        tool_calls('{"a":' * MILLION + "1" + "}" * MILLION, 1),
    ),
    Bomb("arguments: many", "100,000 tool calls with small arguments", tool_calls('{"a":[1,2,3]}', 100_000)),
    Bomb(
        "tiny images",
        "100,000 images of a few bytes",
        repeated(b'{"input":[', image(PNG + bytes(16)) + b",", 100_000, TEXT + b"]}"),
    ),
    Bomb(
        "images just over the limit of a payload",
        "5,000 images of 4 KB",
        repeated(b'{"input":[', image(PNG + bytes(4096)) + b",", 5_000, TEXT + b"]}"),
    ),
    Bomb("data: URLs", "100,000 images in data: URLs", data_urls),
    Bomb("base64 with a fault", "80 MB of base64 with a fault at its end", faulty_base64),
    Bomb("parameters", "a million parameters beside `input`", parameters),
    Bomb(
        "legacy question",
        "a question of 90 MB, no `input`",
        repeated(b'{"parameters":{"question":"', b"a", 90 * MILLION, b'"}}'),
    ),
    Bomb(
        "registration",
        "an agent whose registration holds a million tools",
        repeated(
            b'{"name":"a","type":"flow","model":{"model_id":"m","model_provider":"bedrock/converse"},"tools":[',
            b'{"type":"T"},',
            MILLION,
            b'{"type":"T"}]}',
        ),
        path=_REGISTER,
    ),
    Bomb(
        "registration, packed",
        "the registration of an agent in 100 MB of `[]`, packed",
        packed_list(b"[]"),
        _GZIP,
        path=_REGISTER,
    ),
)

for bomb in BOMBS:
    TABLE.add(
        Attack(
            bomb.name, bomb.about, bomb.run, bomb.every,
            memory=bomb.memory * MEBIBYTE * (2 if bomb.side_by_side > 1 else 1), answers=_ANSWERS, group=TABLE.group,
        )
    )  # fmt: skip
