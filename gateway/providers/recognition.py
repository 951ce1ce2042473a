"""Helpers for `Provider.claims`: a connector's URL path, the APIs that have no provider, members of a template."""

from __future__ import annotations

import re
from collections.abc import Iterable

_OTHER_API = re.compile(
    r"/(invoke|invoke-with-response-stream|messages|completions|complete|responses|embeddings|generate|invocations)\Z"
    r"|/v\d+/chat\Z|/api/chat\Z"
    r"|:(?!(streamG|g)enerateContent\Z)[A-Za-z]+\Z"
)
"""Ends of URLs of APIs that no built-in provider speaks, although their templates may look alike: Bedrock's /invoke
(a body of its own for each model), Anthropic's messages, text completions, OpenAI's responses and embeddings,
Cohere's /v1/chat and /v2/chat, Ollama's own /api/chat, SageMaker's /invocations, Vertex AI's :predict."""


def url_path(url: str) -> str:
    """`url` without query, fragment and trailing slashes."""
    return url.strip().partition("#")[0].partition("?")[0].rstrip("/")


def names_another_api(url: str) -> bool:
    """Return True for the URL of an API that no built-in provider speaks, so its template proves nothing."""
    return bool(_OTHER_API.search(url_path(url)))


def member_in(body: str, names: Iterable[str]) -> str:
    """The first of `names` that is a member in the template `body`; "" when none is."""
    return next((name for name in names if re.search(rf'"{re.escape(name)}"\s*:', body)), "")
