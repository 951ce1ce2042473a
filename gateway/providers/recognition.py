"""By what a connector's provider is told: names first, then the URL, its template's shape last of all."""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.providers.base import ConnectorHints

# Other APIs of the same vendors, whose templates may look alike: Claude's messages on Bedrock and at Anthropic,
# plain text completions, OpenAI's responses, embeddings.
_OTHER_API = re.compile(
    r"/(invoke|invoke-with-response-stream|messages|completions|complete|responses|embeddings)\Z|:embedContent\Z"
)
_CHAT_ONLY = ("image_url", "max_completion_tokens", "response_format", "frequency_penalty", "presence_penalty")


def matches(hints: ConnectorHints, name: str, is_url: Callable[[str], bool], is_body: Callable[[str], bool]) -> bool:
    """Whether the strongest hint there is speaks for the provider `name`.

    The order: `model_provider`, `llm_interface` (``bedrock/converse/claude`` counts for ``bedrock/converse``),
    the URL's path, and the template's shape only where the URL tells nothing.
    """
    for told in (hints.model_provider, hints.llm_interface):
        if told:
            told = told.strip().lower()
            return told == name.partition("/")[0] or f"{told}/".startswith(f"{name}/")
    path = hints.url.strip().partition("#")[0].partition("?")[0].rstrip("/")
    if is_url(path):
        return True
    if is_converse_url(path) or is_chat_url(path) or is_gemini_url(path) or _OTHER_API.search(path):
        return False
    return is_body(hints.request_body)


def is_converse_url(path: str) -> bool:
    """``…/model/{id}/converse`` and its streaming twin."""
    return bool(re.search(r"/converse(-stream)?\Z", path))


def is_chat_url(path: str) -> bool:
    """``…/v1/chat/completions``, Azure's ``/openai/deployments/{id}/chat/completions``, any compatible host's."""
    return path.endswith("/chat/completions")


def is_gemini_url(path: str) -> bool:
    """``…/models/{id}:generateContent``, its streaming twin, or the API's own host."""
    method = re.search(r":(streamG|g)enerateContent\Z", path)
    own_host = re.match(r"https?://generativelanguage\.googleapis\.com(:\d+)?(/|\Z)", path)
    return bool(method or (own_host and not is_chat_url(path) and not _OTHER_API.search(path)))


def is_converse_body(body: str) -> bool:
    """``"messages"`` whose content parts start with ``"text"``, not with a ``"type"``."""
    is_claude = "anthropic_version" in body
    return '"messages"' in body and not is_claude and bool(re.search(r'"content"\s*:\s*\[\s*\{\s*"text"\s*:', body))


def is_chat_body(body: str) -> bool:
    """``"messages"`` beside a member that only chat completions have; the messages alone look like Claude's."""
    return '"messages"' in body and any(f'"{member}"' in body for member in _CHAT_ONLY)


def is_gemini_body(body: str) -> bool:
    """``"contents"`` with ``"parts"``."""
    return '"contents"' in body and '"parts"' in body
