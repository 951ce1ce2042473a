"""Hypothesis strategies for conversations, their spellings and texts that break things.

Models drawn here have no places and no tokens (`bare` takes them off a decoded one, to compare); `executes`
gives a body and what the gateway read from it, places and tokens included.
"""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.unified import formats
from gateway.unified.model import (
    MEDIA_KINDS,
    AgentInput,
    Base64,
    InputType,
    Json,
    Media,
    MediaKind,
    Message,
    Text,
    ToolResult,
    ToolUse,
    Url,
)
from gateway.unified.request import ExecuteRequest, read_execute

HOSTILE = (
    "$", "$$", "${", "}", "${parameters.question}", "${parameters.prompt:-x}", "$${parameters.x}", "${parameters.",
    "${credential.key}", '"', "'", "\\", "\\u0024", "\\n", "\n", "\r\n", "\t", "/", "<&>=", '{"a":1}', "{a:1}", "['x']",
    "[1;2]", " {", "null", '"},{"image":{}},{"text":"', "\u2028", "\u00a0", "\ufeff", "\x01", "\x7f", "é", "漢字", "😀",
    "gwb_0123456789abcdefx0x0x", "data:image/png;base64,QQ==", "%s", "{{x}}", "Human: ", "\nAssistant:",
)  # fmt: skip


def hostile_text(max_parts: int = 6) -> st.SearchStrategy[str]:
    """Text that means something to a template, a JSON parser or a prompt; any Unicode but U+0000 and surrogates."""
    anything = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
    return st.lists(st.sampled_from(HOSTILE) | anything, min_size=1, max_size=max_parts).map("".join)


def spoken_text() -> st.SearchStrategy[str]:
    """Hostile text that is not blank."""
    return hostile_text().filter(lambda text: bool(text.strip()))


def json_values(max_leaves: int = 8) -> st.SearchStrategy[Any]:
    """Any JSON value that strict JSON takes."""
    numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    leaves = st.none() | st.booleans() | numbers | hostile_text()
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile_text(2), inner, max_size=3),
        max_leaves=max_leaves,
    )


def json_objects() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(hostile_text(2), json_values(4), max_size=3)


def in_any_case(word: str) -> st.SearchStrategy[str]:
    """`word` with each letter in upper or lower case."""
    return st.tuples(*(st.sampled_from([c.lower(), c.upper()]) for c in word)).map("".join)


def names() -> st.SearchStrategy[str]:
    """Names and ids that every provider takes."""
    return st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", min_size=1, max_size=12)


def payloads() -> st.SearchStrategy[Base64]:
    """Short and long payloads of no known format: the long ones are lifted out of the body."""
    short = st.binary(min_size=1, max_size=12).filter(lambda content: b"%PDF-" not in content)
    data = short | st.binary(min_size=1, max_size=4).map(lambda chunk: chunk * 2000)
    return data.map(lambda content: Base64(base64.b64encode(b"gw" + content), ""))


@st.composite
def urls(draw: st.DrawFn, schemes: Sequence[str] = ("https", "s3")) -> Url:
    scheme = draw(st.sampled_from(list(schemes)))
    owner = draw(st.none() | st.from_regex(r"[0-9]{12}", fullmatch=True)) if scheme == "s3" else None
    return Url(f"{scheme}://{draw(names())}/{draw(names())}?x=$1", owner)


@st.composite
def media(draw: st.DrawFn, kinds: Sequence[MediaKind] = MEDIA_KINDS, schemes: Sequence[str] = ("https", "s3")) -> Media:
    kind = draw(st.sampled_from(list(kinds)))
    fmt = draw(st.sampled_from(list(formats.FORMATS[kind])))
    source = draw(payloads() | urls(schemes)) if schemes else draw(payloads())
    name = draw(st.none() | spoken_text()) if kind == "document" else None
    if (
        isinstance(source, Url)
        and draw(st.integers(0, 3)) == 0
        and not formats.from_path(kind, urlsplit(source.url).path)
    ):
        fmt = ""  # the client names none, and the URL shows none
    return Media(kind, fmt, source, "", name)


def content_blocks(
    kinds: Sequence[MediaKind] = MEDIA_KINDS, schemes: Sequence[str] = ("https", "s3")
) -> st.SearchStrategy[Text | Media]:
    """A text or media block. kinds, schemes: which media, by which URLs; () for none."""
    texts = hostile_text().map(lambda text: Text(text, ""))
    return texts | media(kinds, schemes) if kinds else texts


@st.composite
def conversations(
    draw: st.DrawFn,
    kinds: Sequence[MediaKind] = MEDIA_KINDS,
    schemes: Sequence[str] = ("https", "s3"),
    tools: bool = True,
    system: bool = True,
    roles: Sequence[str] = ("user",),
    max_rounds: int = 3,
) -> AgentInput:
    """A plausible conversation that ends with a user's turn; TEXT and CONTENT_BLOCKS too.

    roles: what the user's turns may be called. tools: rounds may hold tool calls, each answered.
    """
    blocks = st.lists(content_blocks(kinds, schemes), max_size=3)
    contents = st.builds(lambda text, rest: (Text(text, ""), *rest), spoken_text(), blocks).flatmap(
        lambda content: st.permutations(content).map(tuple)
    )
    form = draw(st.sampled_from(InputType))
    if form is InputType.TEXT:
        return AgentInput(form, (Message("user", (Text(draw(spoken_text()), ""),), ""),))
    if form is InputType.CONTENT_BLOCKS:
        return AgentInput(form, (Message("user", draw(contents), ""),))
    messages: list[Message] = []
    if system and draw(st.booleans()):
        role = draw(st.sampled_from(["system", "developer"]))
        messages.append(Message(role, (Text(draw(spoken_text()), ""),), ""))
    for _ in range(draw(st.integers(0, max_rounds))):
        messages.append(Message(draw(st.sampled_from(list(roles))), draw(contents), ""))
        if tools and draw(st.booleans()):
            messages += draw(_tool_round(kinds, schemes))
        messages.append(Message("assistant", (Text(draw(spoken_text()), ""),), ""))
    messages.append(Message(draw(st.sampled_from(list(roles))), draw(contents), ""))
    return AgentInput(form, tuple(messages))


@st.composite
def _tool_round(draw: st.DrawFn, kinds: Sequence[MediaKind], schemes: Sequence[str]) -> list[Message]:
    ids = draw(st.lists(names(), min_size=1, max_size=2, unique=True))
    uses = [ToolUse(id, draw(names()), draw(json_objects()), "") for id in ids]
    before = [Text(draw(spoken_text()), "")] if draw(st.booleans()) else []
    results = [draw(_result(id, kinds, schemes)) for id in draw(st.permutations(ids))]
    call = Message("assistant", (*before, *uses), "")
    if draw(st.booleans()):
        return [call, Message("user", tuple(results), "")]
    plain = [replace(result, is_error=False, name=draw(st.just("") | names())) for result in results]
    return [call, *(Message("tool", (result,), "") for result in plain)]


@st.composite
def _result(draw: st.DrawFn, id: str, kinds: Sequence[MediaKind], schemes: Sequence[str]) -> ToolResult:
    values = json_values(4).filter(lambda value: value is not None).map(lambda value: Json(value, ""))
    content = draw(st.lists(content_blocks(kinds, schemes) | values, max_size=2))
    return ToolResult(id, (Text(draw(spoken_text()), ""), *content), draw(st.booleans()), "")


def bare(value: Any) -> Any:
    """A model without its places and tokens, so that two spellings of one conversation compare equal."""
    if isinstance(value, tuple):
        return tuple(bare(item) for item in value)
    if isinstance(value, Base64):
        return Base64(bytes(value.data), "")
    if not isinstance(value, msgspec.Struct):
        return value
    changed = {field.name: bare(getattr(value, field.name)) for field in msgspec.structs.fields(value)}
    return replace(value, **{**changed, **({"at": ""} if "at" in changed else {})})


@st.composite
def spelled(draw: st.DrawFn, agent_input: AgentInput) -> Any:
    """The JSON value of `input` for a bare model, each part in one of its spellings."""
    if agent_input.type is InputType.TEXT:
        (text,) = agent_input.messages[0].content
        assert isinstance(text, Text)
        return text.text
    if agent_input.type is InputType.CONTENT_BLOCKS:
        return [_block(draw, block) for block in agent_input.messages[0].content]
    return [_message(draw, message) for message in agent_input.messages]


@st.composite
def executes(draw: st.DrawFn, **options: Any) -> tuple[bytes, ExecuteRequest]:
    """An `_execute` body with a conversation in some spelling, and how the gateway reads it."""
    value = draw(spelled(draw(conversations(**options))))
    body = json.dumps({"input": value}, ensure_ascii=draw(st.booleans())).encode()
    return body, read_execute(body)


def _message(draw: st.DrawFn, message: Message) -> dict[str, Any]:
    content = message.content
    spelling: dict[str, Any] = {"role": message.role}
    match content:
        case (Text(text=text),) if draw(st.booleans()):
            return {**spelling, "content": text}
        case (ToolResult() as result,) if message.role == "tool":
            parts: Any = [_block(draw, part) for part in result.content]
            if len(result.content) == 1 and isinstance(result.content[0], Text) and draw(st.booleans()):
                parts = result.content[0].text
            name = {"name": result.name} if result.name else {}
            return {
                **spelling,
                draw(st.sampled_from(["toolCallId", "tool_call_id"])): result.id,
                "content": parts,
                **name,
            }
    rest = [block for block in content if not isinstance(block, ToolUse)]
    uses = [block for block in content if isinstance(block, ToolUse)]
    if uses and list(content) == [*rest, *uses] and draw(st.booleans()):
        member = draw(st.sampled_from(["toolCalls", "tool_calls"]))
        contents = {"content": [_block(draw, block) for block in rest]} if rest else _nothing(draw)
        return {**spelling, **contents, member: [_call(draw, use) for use in uses]}
    return {**spelling, "content": [_block(draw, block) for block in content]}


def _nothing(draw: st.DrawFn) -> dict[str, Any]:
    return draw(st.sampled_from([{}, {"content": None}, {"content": ""}, {"content": []}]))


def _call(draw: st.DrawFn, use: ToolUse) -> dict[str, Any]:
    arguments = use.input if draw(st.booleans()) else json.dumps(use.input, ensure_ascii=draw(st.booleans()))
    return {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": arguments}}


def _block(draw: st.DrawFn, block: Any) -> dict[str, Any]:
    match block:
        case Text():
            return {"text": block.text, **_type(draw, "text")}
        case Json():
            return {"json": block.value, **_type(draw, "json")}
        case Media():
            return _media(draw, block)
        case ToolUse():
            if draw(st.booleans()):
                return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
            return {"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.input}}
        case ToolResult():
            content = [_block(draw, part) for part in block.content]
            if draw(st.booleans()):
                return {"type": "tool_result", "tool_use_id": block.id, "content": content, "is_error": block.is_error}
            status = {"status": "error"} if block.is_error else draw(st.sampled_from([{}, {"status": "success"}]))
            return {"toolResult": {"toolUseId": block.id, "content": content, **status}}
    raise AssertionError(block)


def _type(draw: st.DrawFn, name: str) -> dict[str, str]:
    return draw(st.sampled_from([{}, {"type": name}]))


def _media(draw: st.DrawFn, block: Media) -> dict[str, Any]:
    named = {"name": block.name} if block.name is not None else {}
    spellings: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": block.kind, "source": _typed_source(draw, block), **named},
        lambda: {"type": block.kind, block.kind: {**_typed_source(draw, block), **named}},
    ]
    if not isinstance(block.source, Url) or (block.source.scheme == "s3" and block.format):
        body = {"format": _format(draw, block), "source": _converse_source(draw, block.source), **named}
        spellings.append(lambda: {block.kind: body})
    return draw(st.sampled_from(spellings))()


def _typed_source(draw: st.DrawFn, block: Media) -> dict[str, Any]:
    name = draw(st.sampled_from(["format", "media_type"]))
    match block.source:
        case Base64(data=data):
            text = bytes(data).decode()
            mime = formats.FORMATS[block.kind][block.format]
            if formats.normalise(block.kind, mime) == block.format and draw(st.booleans()):
                return {"type": "base64", "data": f"data:{mime};base64,{text}"}
            cut = draw(st.integers(0, len(text)))
            text = text[:cut] + draw(st.sampled_from(["", " ", "\n", "\r\n\t"])) + text[cut:]
            return {"type": "base64", name: _format(draw, block), "data": text}
        case Url(url=url, bucket_owner=owner):
            owned = {"bucketOwner": owner} if owner else {}
            if not block.format:
                return {"type": "url", draw(st.sampled_from(["url", "uri"])): url, **owned}
            return {"type": "url", name: _format(draw, block), draw(st.sampled_from(["data", "url"])): url, **owned}


def _converse_source(draw: st.DrawFn, source: Base64 | Url) -> dict[str, Any]:
    if isinstance(source, Base64):
        text = bytes(source.data).decode()
        return {"bytes": draw(st.sampled_from([text, {"__bytes_encoded__": True, "data": text}]))}
    location = {"uri": source.url, **({"bucketOwner": source.bucket_owner} if source.bucket_owner else {})}
    return draw(st.sampled_from([{"s3Location": location}, {"location": {"type": "s3", **location}}]))


def _format(draw: st.DrawFn, block: Media) -> str:
    mime = formats.FORMATS[block.kind][block.format]
    others = [alias for alias, fmt in formats.ALIASES.items() if fmt == block.format]
    if formats.normalise(block.kind, mime) == block.format:
        others.append(mime)
    return draw(st.sampled_from([block.format, block.format.upper(), *others]))
