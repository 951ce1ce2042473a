"""Amazon Nova on Bedrock's InvokeModel: the messages of Converse, with data as base64, but no documents.

The rules are those of docs/evidence/providers.md, "Amazon Nova on InvokeModel".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import unquote

import msgspec

from gateway.providers import recognition
from gateway.providers.base import Claim, ConnectorHints, Evidence
from gateway.providers.bedrock_converse import BEDROCK, ConverseMessages
from gateway.providers.capabilities import IMAGES, TEXT_DOCUMENTS, Capabilities, MediaTable, RequestLimits

_MODEL = re.compile(r"/model/([^/]+)/invoke(-with-response-stream)?\Z")
_INVOKE = re.compile(r"/invoke(-with-response-stream)?\Z")
_SCHEMA = re.compile(r'"schemaVersion"\s*:\s*"messages-v1"')

_VIDEO = ("mkv", "mov", "mp4", "webm", "flv", "mpeg", "mpg", "wmv", "three_gp")
_AUDIO = ("mp3", "opus", "wav", "aac", "flac", "mp4", "ogg", "mkv")
_MEDIA: MediaTable = {  # [D]
    "image": {"base64": IMAGES},
    "document": {"base64": TEXT_DOCUMENTS},
    "video": {"base64": _VIDEO, "s3": _VIDEO},
    "audio": {"base64": _AUDIO, "s3": _AUDIO},
}

NOVA = msgspec.structs.replace(
    BEDROCK,
    label="Amazon Nova on InvokeModel",
    media=_MEDIA,
    tool_media={kind: forms for kind, forms in _MEDIA.items() if kind != "audio"},  # [D] as Converse
    text_documents=frozenset(TEXT_DOCUMENTS),
    native={"cachePoint": frozenset({"user", "assistant"})},  # [D]
    assistant_last="prefill",  # [D]
    document_needs_text=False,
    request=RequestLimits({"image": 20, "video": 1}, 25_000_000),  # [D]; documents are sent as text
)


class BedrockNova(ConverseMessages):
    """Amazon Bedrock's InvokeModel with the body of Amazon's Nova models."""

    name: ClassVar[str] = "amazon-nova/invoke"

    def __init__(self, capabilities: Capabilities = NOVA) -> None:
        super().__init__(capabilities)

    def continues_assistant(self, url: str, body: Mapping[str, Any]) -> bool:
        """Return True unless the model thinks first, of which nothing is known."""
        settings = body.get("inferenceConfig")
        return not (isinstance(settings, dict) and "reasoningConfig" in settings)

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """Claim ``/invoke`` of a Nova model, and of any other name if the template has Nova's ``schemaVersion``."""
        path = recognition.url_path(connector.url)
        model = _MODEL.search(path)
        if model is not None and recognition.takes_messages(unquote(model[1])):
            return Claim(Evidence.URL, "its URL invokes an Amazon Nova model")
        if _INVOKE.search(path) and _SCHEMA.search(connector.request_body):
            return Claim(Evidence.TEMPLATE, "its template has Nova's schemaVersion")
        return None
