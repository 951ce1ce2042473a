"""Hypothesis: conversations as model objects, most of them sound, some with anything anywhere."""

import base64
from typing import Any

from hypothesis import strategies as st

from gateway.unified.formats import FORMATS
from gateway.unified.model import (
    MEDIA_KINDS,
    AgentInput,
    Base64,
    ContentBlock,
    ConverseBlock,
    InputType,
    Json,
    Media,
    Message,
    Text,
    ToolResult,
    ToolUse,
    Url,
)

ROLES = ("user", "assistant", "system", "developer", "tool", "reviewer", "User")
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12) | st.sampled_from(
    ["", " ", "\n\t", "${parameters.x}", '{"a":1}', '"', "\\", "$", "[x]: y"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("ab$é", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
objects = st.dictionaries(st.text("ab", min_size=1, max_size=2), json_values, max_size=2)
names = st.none() | st.text("aé .()-_/", max_size=6) | st.sampled_from(["a.pdf", "a.PDF", "a", "document-1"])
NATIVES = (
    ConverseBlock("reasoningContent", {"reasoningText": {"text": "hm"}}, ""),
    ConverseBlock("cachePoint", {"type": "default"}, ""),
    ConverseBlock("guardContent", {"text": {"text": "guarded"}}, ""),
)


class Numbers:
    """Makes every token and URL of one conversation its own."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


@st.composite
def media_blocks(draw: Any, numbers: Numbers, at: str) -> Media:
    kind = draw(st.sampled_from(MEDIA_KINDS))
    fmt = draw(st.sampled_from(list(FORMATS[kind])))
    number = numbers.next()
    form = draw(st.sampled_from(["base64", "base64", "base64", "https", "http", "s3", "gs"]))
    if form == "base64":
        data = draw(st.sampled_from([f"bytes {number}".encode(), b"\xff\xfe", b" \n"]))
        source: Base64 | Url = Base64(base64.b64encode(data), f"tok{number}x")
    else:
        owner = "123456789012" if form == "s3" and draw(st.booleans()) else None
        source = Url(f"{form}://bucket/{number}", owner)
    return Media(kind, fmt, source, at, draw(names) if kind == "document" else None)


@st.composite
def result_parts(draw: Any, numbers: Numbers, at: str) -> Text | Json | Media:
    match draw(st.sampled_from(["text", "text", "json", "media"])):
        case "text":
            return Text(draw(texts), at)
        case "json":
            return Json(draw(json_values), at)
        case _:
            media: Media = draw(media_blocks(numbers, at))
            return media


def results(draw: Any, id: str, numbers: Numbers, at: str) -> ToolResult:
    count = draw(st.integers(0, 3))
    parts = tuple(draw(result_parts(numbers, f"{at}.content[{i}]")) for i in range(count))
    return ToolResult(id, parts, draw(st.booleans()), at)


@st.composite
def blocks(draw: Any, numbers: Numbers, at: str, odd: bool) -> ContentBlock:
    kinds = ["text", "text", "media"] + (["call", "result", "native"] if odd else [])
    match draw(st.sampled_from(kinds)):
        case "text":
            return Text(draw(texts), at)
        case "media":
            media: Media = draw(media_blocks(numbers, at))
            return media
        case "call":
            return ToolUse(draw(st.sampled_from(["t1", ""])), draw(st.sampled_from(["f", "my tool"])), {}, at)
        case "result":
            return results(draw, draw(st.sampled_from(["t1", ""])), numbers, at)
        case _:
            native = draw(st.sampled_from(NATIVES))
            return ConverseBlock(native.kind, native.value, at)


@st.composite
def conversations(draw: Any) -> AgentInput:
    numbers = Numbers()
    messages: list[Message] = []

    def add(role: str, make: list[Any]) -> None:
        at = f"input[{len(messages)}]"
        messages.append(Message(role, tuple(one(f"{at}.content[{i}]") for i, one in enumerate(make)), at))

    def some(role: str, odd: bool) -> None:
        add(role, [lambda at: draw(blocks(numbers, at, odd)) for _ in range(draw(st.integers(1, 3)))])

    def add_texts(role: str) -> None:
        add(role, [lambda at: Text(draw(texts), at) for _ in range(draw(st.integers(1, 2)))])

    for _ in range(draw(st.integers(1, 4))):
        match draw(st.sampled_from(["user", "user", "exchange", "tools", "system", "anything"])):
            case "user":
                some("user", odd=False)
            case "exchange":
                add_texts("user")
                add_texts("assistant")
            case "system":
                add_texts(draw(st.sampled_from(["system", "developer", "reviewer"])))
            case "tools":
                add_texts("user")
                ids = draw(
                    st.lists(st.sampled_from(["t1", "t 2", "", "x" * 65, "x" * 66, "call_1"]), min_size=1, max_size=3)
                )
                calls = [lambda at, id=id: ToolUse(id, f"f{numbers.next()}", draw(objects), at) for id in ids]
                add("assistant", [*([lambda at: Text(draw(texts), at)] if draw(st.booleans()) else []), *calls])
                answers = [lambda at, id=id: results(draw, id, numbers, at) for id in ids]
                if draw(st.booleans()):
                    add("user", answers)
                else:
                    for answer in answers:
                        add("tool", [answer])
            case _:
                some(draw(st.sampled_from(ROLES)), odd=True)
    if draw(st.integers(0, 9)):
        add_texts("user")
    return AgentInput(InputType.MESSAGES, tuple(messages))
