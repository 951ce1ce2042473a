"""What each provider takes, as tables: the mapping code asks them and decides nothing of the kind by itself.

Marks as in PROVIDERS.md: [M] read from the vendor's SDK model, [D] the vendor's documentation, [I] the service's
own errors as quoted in public issues, [U] unverified. What is not [M] differs from model to model, so it is one
value of `Capabilities`: a model that is different gets `dataclasses.replace(BEDROCK, …)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.unified.formats import FORMATS
from gateway.unified.model import MediaKind

# The roles of turns that a provider is given; a tool turn becomes the user turn that holds its results.
Role = Literal["system", "developer", "user", "assistant"]
# kind → source form (``base64`` or a URL scheme) → formats
MediaTable = Mapping[MediaKind, Mapping[str, tuple[str, ...]]]

# Words put where a provider insists on text and the client gave none.
NEUTRAL_DOCUMENT_TEXT = "(document attached)"
NEUTRAL_RESULT_TEXT = "(no text output)"
TOOL_ERROR_TEXT = "(the tool failed)"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One provider's limits.

    label: its name in sentences.
    media: kind → source form → formats, for turns; tool_media: the same inside a tool result.
    media_roles: the roles whose turns may hold media.
    text_documents: inline document formats that are sent as text, having no form of their own.
    native: the Converse-only blocks it takes → the roles that may hold them.
    url_patterns: source form → what the whole URL must match, where it is more than the scheme.
    mime_overrides: (kind, format) → a MIME type other than the static table's.
    tool_name: what the whole name of a tool must match.
    tool_id_characters, tool_id_length: a tool call's id, as the inside of a character class; "" where any is taken.
    unique_tool_ids: an id may name one call only in the whole request, not just in its turn.
    hoists_system: system text stands apart from the messages.
    assistant_first: the conversation may start with the assistant.
    assistant_last: the conversation may end with the assistant; ``prefill`` when the operator allows it.
    merges_turns: turns of one role in a row become one, so that roles alternate.
    calls_apart: tool calls stand behind all other blocks of an assistant's turn.
    document_needs_text: a turn with a document needs a text block beside it.
    object_results: a JSON tool result must be an object; other values are sent as text.
    success_status: tool results that did not fail say so (only Claude takes `status` at all).
    """

    label: str
    media: MediaTable
    tool_media: MediaTable
    media_roles: frozenset[Role] = frozenset({"user"})
    text_documents: frozenset[str] = frozenset()
    native: Mapping[str, frozenset[Role]] = field(default_factory=dict)
    url_patterns: Mapping[str, str] = field(default_factory=dict)
    mime_overrides: Mapping[tuple[MediaKind, str], str] = field(default_factory=dict)
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
    success_status: bool = False

    def mime_type(self, kind: MediaKind, format: str) -> str:
        """The MIME type this provider knows a format by."""
        return self.mime_overrides.get((kind, format)) or FORMATS[kind][format]


_IMAGES = ("png", "jpeg", "gif", "webp")
_TEXT_DOCUMENTS = ("txt", "md", "csv", "html")

_BEDROCK_DOCUMENTS = ("pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md")
_BEDROCK_VIDEO = ("mkv", "mov", "mp4", "webm", "flv", "mpeg", "mpg", "wmv", "three_gp")
_BEDROCK_AUDIO = (
    *("mp3", "opus", "wav", "aac", "flac", "mp4", "ogg", "mkv"),
    *("mka", "x-aac", "m4a", "mpeg", "mpga", "pcm", "webm"),
)
_BEDROCK_MEDIA: MediaTable = {  # [M]
    "image": {"base64": _IMAGES, "s3": _IMAGES},
    "document": {"base64": _BEDROCK_DOCUMENTS, "s3": _BEDROCK_DOCUMENTS},
    "video": {"base64": _BEDROCK_VIDEO, "s3": _BEDROCK_VIDEO},
    "audio": {"base64": _BEDROCK_AUDIO, "s3": _BEDROCK_AUDIO},
}

BEDROCK = Capabilities(
    label="Bedrock Converse",
    media=_BEDROCK_MEDIA,
    tool_media={kind: forms for kind, forms in _BEDROCK_MEDIA.items() if kind != "audio"},  # [M]
    media_roles=frozenset({"user"}),  # [I]
    native={  # [U] which role may hold which
        "reasoningContent": frozenset({"assistant"}),
        "citationsContent": frozenset({"assistant"}),
        "guardContent": frozenset({"user"}),
        "searchResult": frozenset({"user"}),
        "cachePoint": frozenset({"user", "assistant"}),
    },
    url_patterns={"s3": r"(?=.{1,1024}\Z)s3://[a-z0-9][\.\-a-z0-9]{1,61}[a-z0-9](/.*)?"},  # [M]
    tool_id_characters="a-zA-Z0-9_.:-",  # [M]
    unique_tool_ids=True,  # [I]
    assistant_first=False,  # [I]
    assistant_last="prefill",  # [I]
    merges_turns=True,  # [I]
    calls_apart=True,  # [I]
    document_needs_text=True,  # [I]
    object_results=True,  # [I]
)

_OPENAI_MEDIA: MediaTable = {
    "image": {"base64": _IMAGES, "https": _IMAGES},  # [D]
    "document": {"base64": ("pdf", *_TEXT_DOCUMENTS)},  # [I] no other file type in chat completions
    "audio": {"base64": ("wav", "mp3")},  # [M]
}

OPENAI = Capabilities(
    label="OpenAI chat completions",
    media=_OPENAI_MEDIA,
    tool_media=_OPENAI_MEDIA,  # lifted into a user message behind the tool messages
    text_documents=frozenset(_TEXT_DOCUMENTS),
    hoists_system=False,
    calls_apart=True,  # [M] `tool_calls` is a member of the message, not a part
)

_GEMINI_IMAGES = ("png", "jpeg", "webp")  # [I] image/gif is refused
_GEMINI_FILES = ("pdf", "txt", "csv", "html")  # [D]
_GEMINI_VIDEO = ("mp4", "mpeg", "mpg", "mov", "flv", "webm", "wmv", "three_gp")  # [D] mkv is in no list
_GEMINI_AUDIO = ("mp3", "wav", "flac", "ogg", "aac", "m4a")  # [D], m4a [U]

GEMINI = Capabilities(
    label="Gemini generateContent",
    media={
        "image": {"base64": _GEMINI_IMAGES, "https": _GEMINI_IMAGES, "gs": _GEMINI_IMAGES},
        "document": {"base64": ("pdf", *_TEXT_DOCUMENTS), "https": _GEMINI_FILES, "gs": _GEMINI_FILES},
        "video": {"base64": _GEMINI_VIDEO, "https": _GEMINI_VIDEO, "gs": _GEMINI_VIDEO},
        "audio": {"base64": _GEMINI_AUDIO, "https": _GEMINI_AUDIO, "gs": _GEMINI_AUDIO},
    },
    tool_media={  # [D] `functionResponse.parts` holds inline data only
        "image": {"base64": _GEMINI_IMAGES},
        "document": {"base64": ("pdf", *_TEXT_DOCUMENTS)},
    },
    media_roles=frozenset({"user", "assistant"}),  # [D] image models answer with inline data
    text_documents=frozenset(_TEXT_DOCUMENTS),
    mime_overrides={("video", "wmv"): "video/wmv"},  # [D]
    tool_name=r"[a-zA-Z0-9_.:-]{1,64}",  # [D]
    assistant_last="no",  # [I]
)
