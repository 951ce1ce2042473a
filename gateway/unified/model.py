"""The unified input as plain values: what every spelling decodes to, and all that providers map from.

Names follow the seeds' design document: AgentInput, Message, ContentBlock. A block carries `at`, its place in
the request (``input[1].content[0]``), so that whoever can't deliver it can name it.

Big base64 payloads never travel as strings: a `Base64` holds the bytes as they came (a view on the request
body, not a copy) and a short `token` that stands for them in all mapping, planning and proving. Only the last
step, serialising the request, puts the bytes where the token stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

MediaKind = Literal["image", "video", "document", "audio"]
MEDIA_KINDS: tuple[MediaKind, ...] = ("image", "video", "document", "audio")


class InputType(Enum):
    """How the client wrote `input`."""

    TEXT = "text"
    CONTENT_BLOCKS = "content_blocks"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Base64:
    """Inline media: standard base64 with padding, no `data:` prefix, no whitespace.

    data: the base64 text as ASCII bytes. token: ASCII letters, digits and underscores only (so no escaping, at
    any depth, changes it), occurs nowhere else in the request.
    """

    data: bytes | memoryview
    token: str

    def __repr__(self) -> str:
        return f"Base64({len(self.data)} bytes, {self.token})"


@dataclass(frozen=True, slots=True)
class Url:
    """Media by reference: an http(s), s3 or gs URL; `bucket_owner` only for s3 (a 12-digit account id)."""

    url: str
    bucket_owner: str | None = None

    @property
    def scheme(self) -> str:
        """The URL's scheme in lower case: http, https, s3 or gs."""
        return self.url.partition(":")[0].lower()


Source = Base64 | Url


@dataclass(frozen=True, slots=True)
class Text:
    """A text block, exactly as the client wrote it."""

    text: str
    at: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image, video, document or audio block.

    format: normalised (``jpeg`` for jpg, ``md`` for markdown, ``html`` for htm, ``three_gp`` for 3gp).
    name: a document's name, if the client gave one.
    """

    kind: MediaKind
    format: str
    source: Source
    at: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The assistant's call of a tool; `input` is a JSON object. id is "" when the client gave none."""

    id: str
    name: str
    input: dict[str, Any]
    at: str


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value inside a tool result."""

    value: Any
    at: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's answer to the call `id`. is_error: the tool failed."""

    id: str
    content: tuple[Text | Json | Media, ...]
    is_error: bool
    at: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class ConverseBlock:
    """A block only Bedrock Converse knows, kept as written: reasoningContent, guardContent, cachePoint,
    citationsContent or searchResult (`kind`), with its JSON `value`.
    """

    kind: str
    value: dict[str, Any]
    at: str


ContentBlock = Text | Media | ToolUse | ToolResult | ConverseBlock


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role` is the client's own string (system, developer, user, assistant, tool or any other)."""

    role: str
    content: tuple[ContentBlock, ...]
    at: str


@dataclass(frozen=True, slots=True)
class AgentInput:
    """The whole unified input. TEXT and CONTENT_BLOCKS are one message of role ``user`` placed at ``input``."""

    type: InputType
    messages: tuple[Message, ...]
