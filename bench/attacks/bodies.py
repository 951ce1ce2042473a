"""Bodies for the bombs: packed, nested, repeated. A maker's argument scales the size, 1 for the whole body."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable

MILLION = 1_000_000
MOST = 100 * MILLION
"""Bytes: about the largest body that the gateway reads, packed or not (`limits.body`, `limits.decompressed`)."""
PNG = b"\x89PNG\r\n\x1a\n"

Make = Callable[[float], bytes]


def packed(start: bytes, unit: bytes, count: int, end: bytes, level: int = 9) -> bytes:
    """``start unit unit … end`` in gzip, without ever being unpacked here."""
    packer = zlib.compressobj(level, wbits=31)
    block = unit * 1000
    parts = [packer.compress(start)]
    parts += [packer.compress(block) for _ in range(count // 1000)]
    return b"".join((*parts, packer.compress(unit * (count % 1000) + end), packer.flush()))


def packed_list(unit: bytes, share: float = 1.0) -> Make:
    """``{"input":[unit,unit,…]}`` of about 100 MB, in gzip."""
    count = round(MOST * share * 0.95 / (len(unit) + 1))
    return lambda scale: packed(b'{"input":[', unit + b",", round(count * scale), unit + b"]}")


def repeated(start: bytes, unit: bytes, count: int, end: bytes) -> Make:
    """The same, not packed."""
    return lambda scale: start + unit * round(count * scale) + end


def _content(blocks: object) -> bytes:
    return json.dumps({"input": blocks}).encode()


def image(data: bytes) -> bytes:
    encoded = base64.b64encode(data).decode()
    return json.dumps({"type": "image", "source": {"type": "base64", "format": "png", "data": encoded}}).encode()


def packed_again(make: Make) -> Make:
    return lambda scale: gzip.compress(make(scale))


def packed_twice(unit: bytes) -> Make:
    """99 MB of one byte, in gzip twice: a few hundred bytes."""
    return packed_again(lambda scale: packed(b"", unit, round(99 * MILLION * scale), b""))


def tool_calls(arguments: str, count: int) -> Make:
    """Messages whose tool calls carry `arguments`, a JSON text in a string."""

    def make(scale: float) -> bytes:
        call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": arguments}}
        message = {"role": "assistant", "content": [], "toolCalls": [call] * max(1, round(count * scale))}
        question = {"role": "user", "content": [{"type": "text", "text": "a"}]}
        return _content([question, message, question])

    return make


def distinct_keys(scale: float) -> bytes:
    return b'{"input":{' + b",".join(b'"k%d":1' % number for number in range(round(MILLION * scale))) + b'},"x":1}'


def unknown_members(scale: float) -> bytes:
    members = ",".join(f'"unknown{number}":1' for number in range(round(100_000 * scale)))
    return f'{{"input":[{{"type":"text","text":"a",{members}}}]}}'.encode()


def unknown_blocks(scale: float) -> bytes:
    return b'{"input":[' + b'{"type":"unknown","x":1},' * round(200_000 * scale) + b'{"type":"text","text":"a"}]}'


def nested(opening: bytes, closing: bytes, count: int) -> Make:
    return lambda scale: b'{"input":%b1%b}' % (opening * round(count * scale), closing * round(count * scale))


def faulty_base64(scale: float) -> bytes:
    data = base64.b64encode(PNG + bytes(round(60 * MILLION * scale))).rstrip(b"=") + b"!"
    return b'{"input":[{"type":"image","source":{"type":"base64","format":"png","data":"%b"}}]}' % data


def data_urls(scale: float) -> bytes:
    url = "data:image/png;base64," + base64.b64encode(PNG + bytes(24)).decode()
    block = json.dumps({"type": "image", "source": {"type": "url", "url": url}}).encode()
    return b'{"input":[' + b",".join([block] * round(100_000 * scale)) + b"]}"


TEXT = b'{"type":"text","text":"a"}'
START, END = b'{"input":"', b'"}'


def parameters(scale: float) -> bytes:
    members = b",".join(b'"p%d":"1"' % number for number in range(round(MILLION * scale)))
    return b'{"input":"a","parameters":{%b}}' % members


def _with_parameters(held: dict[str, str]) -> bytes:
    asked = "${parameters.a0} ${parameters.question}"
    return json.dumps({"input": "hi", "parameters": {**held, "prompt": asked, "messages": asked}}).encode()


def doubling(count: int) -> bytes:
    """A text beside parameters that expand to 2 ** `count` words."""
    return _with_parameters({f"a{i}": f"${{parameters.a{i + 1}}}" * 2 for i in range(count)})


def chained(count: int) -> bytes:
    """A text beside parameters of which each leads to the next."""
    return _with_parameters({f"a{i}": f"${{parameters.a{i + 1}}}" for i in range(count)})
