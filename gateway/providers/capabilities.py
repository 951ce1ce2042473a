"""The form of a capability table: what a provider can carry. Each provider's file has its own table.

The mapping code asks the table and decides nothing of the kind by itself. Marks in the tables are those of
docs/evidence/providers.md: [M] read from the vendor's SDK, [D] the vendor's documentation, [I] the service's own
errors as quoted in public issues, [U] unverified. A rule that is not [M] may differ from model to model, so it is
one value of the table: for such a model use `msgspec.structs.replace(TABLE, …)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from gateway.unified.formats import FORMATS
from gateway.unified.model import MediaKind

# The roles of turns that a provider is given; a tool turn becomes the user turn that holds its results.
Role = Literal["system", "developer", "user", "assistant"]
# kind → source form (``base64`` or a URL scheme) → formats
MediaTable = Mapping[MediaKind, Mapping[str, tuple[str, ...]]]

# Texts added where a provider requires text and the client gave none.
NEUTRAL_CALL_TEXT = "(tool call)"
NEUTRAL_DOCUMENT_TEXT = "(document attached)"
NEUTRAL_RESULT_TEXT = "(no text output)"
TOOL_ERROR_TEXT = "(the tool failed)"
V2_LABEL = "An agent of type conversational_v2"


class RequestLimits(msgspec.Struct, frozen=True):
    """What one request may hold. media: kind → how many. bytes: of all media together, as base64; 0 for no limit."""

    media: Mapping[str, int] = msgspec.field(default_factory=dict)
    bytes: int = 0


class Capabilities(msgspec.Struct, frozen=True):
    """One provider's limits.

    label: the provider's name in sentences.
    media: kind → source form → formats, for turns; tool_media: the same inside a tool result. `UNNAMED` is among the
        formats where the API needs none.
    media_roles: the roles whose turns may hold media.
    text_documents: inline document formats that are sent as a text part.
    text_sources: inline document formats that are sent as a document whose source is their text.
    native: the Converse-only blocks it takes → the roles that may hold them.
    url_patterns: source form → what the whole URL must match, where it is more than the scheme.
    mime_overrides: (kind, format) → a MIME type other than the static table's.
    tool_name: what the whole name of a tool must match.
    tool_id_characters, tool_id_length: a tool call's id, as the inside of a character class; "" where any is taken.
    unique_tool_ids: an id may name one call only in the whole request, not just in its turn.
    hoists_system: system text is in a member apart from the messages.
    assistant_first: the conversation may start with the assistant.
    assistant_last: the conversation may end with the assistant; ``prefill`` when the operator allows it,
        or the model is known for it (`Provider.continues_assistant`).
    merges_turns: turns of one role in a row become one, so that roles alternate.
    calls_apart: tool calls come after all other blocks of an assistant's turn.
    document_needs_text: a turn with a document needs a text block beside it.
    object_results: a JSON tool result must be an object; other values are sent as text.
    signatures: a text or tool call may have a signature of the model's thoughts.
    strict_tools: the declaration of a tool may be `strict`.
    image_details: how closely an image may ask the model to look at it.
    request: how many media a request may hold; bounds what gateway memory sends again, not what clients send.
    success_status: results of successful tool calls have a status, too (only Claude takes `status` at all).
    """

    label: str
    media: MediaTable
    tool_media: MediaTable
    media_roles: frozenset[Role] = frozenset({"user"})
    text_documents: frozenset[str] = frozenset()
    text_sources: frozenset[str] = frozenset()
    native: Mapping[str, frozenset[Role]] = msgspec.field(default_factory=dict)
    url_patterns: Mapping[str, str] = msgspec.field(default_factory=dict)
    mime_overrides: Mapping[tuple[MediaKind, str], str] = msgspec.field(default_factory=dict)
    tool_name: str = r"[a-zA-Z0-9_-]{1,64}"
    tool_id_characters: str = ""
    tool_id_length: int = 64
    unique_tool_ids: bool = False
    hoists_system: bool = True
    assistant_first: bool = True
    assistant_last: Literal["yes", "no", "prefill"] = "yes"
    merges_turns: bool = False
    calls_apart: bool = False
    document_needs_text: bool = False
    object_results: bool = False
    signatures: bool = False
    strict_tools: bool = False
    image_details: frozenset[str] = frozenset()
    success_status: bool = False
    request: RequestLimits = RequestLimits()

    def takes_tool_name(self, name: str) -> bool:
        """Return True if a tool may have this name."""
        return re.fullmatch(self.tool_name, name) is not None

    def mime_type(self, kind: MediaKind, format: str) -> str:
        """Return the MIME type that this provider has for a format."""
        return self.mime_overrides.get((kind, format)) or FORMATS[kind][format]


UNNAMED = ""
"""The format of media whose URL does not show it."""
IMAGES = ("png", "jpeg", "gif", "webp")
IMAGES_BY_URL = (*IMAGES, UNNAMED)
TEXT_DOCUMENTS = ("txt", "md", "csv", "html")
"""Document formats that are plain text."""
