"""Messages and turns for the tests of stores."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from itertools import count
from typing import Any

from gateway.memory.model import PREFIX, Block, Message, Metadata, Owner, SessionKey, StoredMessage, Turn, Usage

PNG = b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256))).decode()
OTHER = b64encode(bytes(range(256))).decode()  # of no known format
_NUMBERS = count(1)


def medium(size: int, seed: int = 0) -> str:
    """Return base64 of at least `size` characters. Each seed makes another one."""
    return b64encode(seed.to_bytes(3, "big") + bytes(range(256)) * (size // 340 + 1)).decode()


def key(name: str = "one", agent_id: str = "agent", tenant: str = "", caller: str = "") -> SessionKey:
    return SessionKey(Owner(agent_id, tenant, caller), PREFIX + name)


def text(value: str) -> Block:
    return {"text": value}


def image(data: str = PNG) -> Block:
    return {"image": {"format": "png", "source": {"bytes": data}}}


def tool_use(id_: str, name: str = "look_up", **arguments: Any) -> Block:
    return {"toolUse": {"toolUseId": id_, "name": name, "input": arguments}}


def tool_result(id_: str, *content: Block, status: str = "success") -> Block:
    return {"toolResult": {"toolUseId": id_, "status": status, "content": list(content)}}


def nested(levels: int = 100_000) -> list[Any]:
    """Return an array in an array and so on, deeper than any JSON can be written or read."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def user(*blocks: Block | str, metadata: Metadata = Metadata()) -> Message:  # noqa: B008  # immutable
    return Message("user", tuple(text(block) if isinstance(block, str) else block for block in blocks), metadata)


def assistant(*blocks: Block | str, metadata: Metadata = Metadata()) -> Message:  # noqa: B008  # immutable
    return Message("assistant", user(*blocks).content, metadata)


def turn(*messages: Message, id_: str = "", system: str | None = None) -> Turn:
    """Return a turn of `messages`; without any, of a question and its answer. id_: empty for an unused one."""
    number = next(_NUMBERS)
    return Turn(id_ or f"turn-{number:04}", messages or (user(f"question {number}"), assistant("answer")), system)


def texts(messages: Sequence[StoredMessage]) -> list[str]:
    """Return each message's texts, joined."""
    return ["".join(block.get("text", "") for block in stored.message.content) for stored in messages]


MESSAGES: dict[str, Message] = {
    "text": user("What is in the image?"),
    "several texts": user("one", "two", "three"),
    "empty text": user(""),
    "empty text among others": assistant("", "answer", ""),
    "white space": user(" \n\t two  spaces \r\n"),
    "unicode": user("Grüße 你好 🙂 e\u0301 \u202e \u2028 \x7f \x01 \U0010ffff \ufffe"),
    "quotes and placeholders": user('{"text": "\\"}', "${parameters.question}", "'; drop table messages; --"),
    "image": user("Look:", image()),
    "image only": user(image()),
    "image only, of the assistant": assistant(image()),
    "image by URL": user({"image": {"format": "png", "source": {"url": "https://example.org/a.png?b=c&d"}}}),
    "image by URL that shows no format": user({"image": {"source": {"url": "https://example.org/render?id=7"}}}),
    "document": user({"document": {"format": "pdf", "name": "Report", "source": {"bytes": OTHER}}}, "Sum it up."),
    "video": user({"video": {"format": "mp4", "source": {"bytes": OTHER}}}),
    "audio": user({"audio": {"format": "wav", "source": {"bytes": OTHER}}}),
    "text between media": user("first", image(), "second", image(PNG[:-4]), "third"),
    "tool use": assistant("I look it up.", tool_use("call-1", query="cats", most=3, exact=True, near=None, x=0.5)),
    "tool use without text": assistant(tool_use("call-1"), tool_use("call-2", nested={"a": [1, {"b": []}]})),
    "tool result": user(tool_result("call-1", text("3 cats"))),
    "tool result of JSON": user(tool_result("call-1", {"json": {"cats": [{"name": "Ä", "age": 2**53}]}})),
    "tool result with an image": user(tool_result("call-1", text("The cat:"), image())),
    "failed tool": user(tool_result("call-1", text("no such table"), status="error"), tool_result("call-2")),
    "reasoning": assistant({"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}}, "Yes."),
    "redacted reasoning": assistant({"reasoningContent": {"redactedContent": "c2VjcmV0"}}, "Yes."),
}
"""One message for each kind of content, by name."""

METADATA: dict[str, Metadata] = {
    "none": Metadata(),
    "all": Metadata(
        created=1_750_000_000.25,
        input_type="content_blocks",
        agent_id="agent",
        provider="bedrock/converse",
        model="anthropic.claude-v1:0",
        usage=Usage(input=10, output=20, total=30),
        failed=True,
        extra={"trace": "Ä", "nested": {"list": [1, None, 0.5, True]}},
    ),
    "some usage": Metadata(created=1.0, usage=Usage(output=0)),
    "no usage reported": Metadata(created=1.0, usage=Usage()),
}
"""Metadata, by name."""
