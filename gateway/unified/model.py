"""The unified input as plain values: the result of decoding, and the source of every provider's mapping.

Names are those of the RFC: AgentInput, Message, ContentBlock. A block has `at`, its place in the request
(``input[1].content[0]``), for errors about it.

Large base64 payloads are never strings: a `Base64` holds the bytes as received (a view of the request body, not a copy)
and a short `token` that replaces them in mapping, planning and proving. The token is replaced by the bytes when the
request is serialised.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal

import msgspec

MediaKind = Literal["image", "video", "document", "audio"]
MEDIA_KINDS: tuple[MediaKind, ...] = ("image", "video", "document", "audio")


class InputType(Enum):
    """How the client wrote `input`."""

    TEXT = "text"
    CONTENT_BLOCKS = "content_blocks"
    MESSAGES = "messages"


class Base64(msgspec.Struct, frozen=True, eq=False):
    """Inline media: standard base64 with padding, no `data:` prefix, no whitespace.

    data: the base64 text as ASCII bytes. token: ASCII letters, digits and underscores only, so that no escaping changes
    it; it does not occur anywhere else in the request. Another reading of the same request has other tokens.
    """

    data: bytes | memoryview
    token: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Base64) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"Base64({len(self.data)} bytes, {self.token})"


class Url(msgspec.Struct, frozen=True):
    """Media by reference: an http(s), s3 or gs URL; `bucket_owner` only for s3 (a 12-digit account id)."""

    url: str
    bucket_owner: str | None = None

    @property
    def scheme(self) -> str:
        """The URL's scheme in lower case: http, https, s3 or gs."""
        return self.url.partition(":")[0].lower()


Source = Base64 | Url


class Text(msgspec.Struct, frozen=True):
    """A text block, exactly as the client wrote it. signature: as `ToolUse.signature`."""

    text: str
    at: str
    signature: str = ""


class Media(msgspec.Struct, frozen=True):
    """An image, video, document or audio block.

    format: normalised (``jpeg`` for jpg, ``md`` for markdown, ``html`` for htm, ``three_gp`` for 3gp); "" for media by
        a URL that does not show it, where the client did not name it either.
    name: a document's name, if the client gave one. detail: how closely the model is to look at an image (OpenAI's
        low, high, original); "" for its own choice.
    """

    kind: MediaKind
    format: str
    source: Source
    at: str
    name: str | None = None
    detail: str = ""


class ToolUse(msgspec.Struct, frozen=True):
    """The assistant's call of a tool; `input` is a JSON object. id is "" when the client gave none.

    signature: what ties the model's thoughts to the call (Gemini), and has to come back with it; "" without one.
    """

    id: str
    name: str
    input: dict[str, Any]
    at: str
    signature: str = ""


class Json(msgspec.Struct, frozen=True):
    """A JSON value inside a tool result."""

    value: Any
    at: str


class ToolResult(msgspec.Struct, frozen=True):
    """The result of the tool call `id`. is_error: the tool failed."""

    id: str
    content: tuple[Text | Json | Media, ...]
    is_error: bool
    at: str
    name: str = ""


class ConverseBlock(msgspec.Struct, frozen=True):
    """A block that only Bedrock Converse has, with its JSON `value` as written.

    kind: reasoningContent, guardContent, cachePoint, citationsContent or searchResult.
    """

    kind: str
    value: dict[str, Any]
    at: str


ContentBlock = Text | Media | ToolUse | ToolResult | ConverseBlock


class Message(msgspec.Struct, frozen=True):
    """One turn. `role` is the client's own string (system, developer, user, assistant, tool or any other)."""

    role: str
    content: tuple[ContentBlock, ...]
    at: str

    @property
    def is_blank(self) -> bool:
        """True if the message holds nothing but blank text."""
        return all(isinstance(block, Text) and not block.text.strip() for block in self.content)


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as it is declared to an LLM. schema: the JSON schema of its input. strict: as OpenAI means it."""

    name: str
    description: str
    schema: dict[str, Any]
    strict: bool = False

    @property
    def label(self) -> dict[str, str]:
        """Its `name`, and its `description` if it has one."""
        return {"name": self.name, **({"description": self.description} if self.description else {})}


class ClientTools(msgspec.Struct, frozen=True):
    """Tools that the client runs itself. required: the LLM must call one of them; only: this one, "" for any."""

    specs: tuple[ToolSpec, ...]
    required: bool = False
    only: str = ""


class AgentInput(msgspec.Struct, frozen=True):
    """The whole unified input. TEXT and CONTENT_BLOCKS are one message of role ``user`` placed at ``input``.

    tools: those that stand beside `input`; None without any.
    """

    type: InputType
    messages: tuple[Message, ...]
    tools: ClientTools | None = None

    @property
    def media(self) -> Iterator[Media]:
        """All media in order, those of tool results too."""
        blocks = (block for message in self.messages for block in message.content)
        parts = (part for block in blocks for part in (block.content if isinstance(block, ToolResult) else (block,)))
        return (part for part in parts if isinstance(part, Media))
