"""Helpers for `Provider.claims`, and what differs between models of one maker, whichever API calls them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_OTHER_API = re.compile(
    r"/(invoke|invoke-with-response-stream|messages|completions|complete|responses|embeddings|generate|invocations)\Z"
    r"|/v\d+/chat\Z|/api/chat\Z"
    r"|:(?!(streamG|g)enerateContent\Z)[A-Za-z]+\Z"
)
"""Ends of URLs of APIs whose templates may look like those of Converse, chat completions or Gemini, but are not:
Bedrock's /invoke (another body for each model family), Anthropic's messages, text completions, OpenAI's responses and
embeddings, Cohere's /v1/chat and /v2/chat, Ollama's own /api/chat, SageMaker's /invocations, Vertex AI's :predict."""


def url_path(url: str) -> str:
    """Return `url` without query, fragment and trailing slashes."""
    return url.strip().partition("#")[0].partition("?")[0].rstrip("/")


def names_another_api(url: str) -> bool:
    """Return True for the URL of one of these other APIs, so that its template proves nothing."""
    return bool(_OTHER_API.search(url_path(url)))


def member_in(body: str, names: Iterable[str]) -> str:
    """Return the first of `names` that is a member in the template `body`; "" if none is."""
    return next((name for name in names if re.search(rf'"{re.escape(name)}"\s*:', body)), "")


_CONTINUES = re.compile(r"(?:\A|\banthropic\.)claude-3-(?:[57]-)?(?:haiku|sonnet|opus)-[a-z0-9:-]+\Z")
"""The ids of Claude 3, 3.5 and 3.7, by themselves or at the end of an inference profile's name [D]."""


def continues_assistant(model: str) -> bool:
    """Return True if the model is known to continue an assistant turn (docs/evidence/providers.md, prefill).

    Models after Claude 4.5 refuse it, and the sources differ on those between. model: an id, as the API takes it.
    """
    return _CONTINUES.search(model) is not None


_MODEL = re.compile(r"(?:\A|[./])amazon\.nova-(?!canvas|reel|sonic)[a-z0-9:.-]{1,256}\Z")
"""Their ids by themselves, after a region, or at the end of an inference profile's name [D]."""


def takes_messages(model: str) -> bool:
    """Return True for a model that takes messages, and continues an assistant turn (docs/evidence/providers.md, Nova).

    Nova Canvas and Nova Reel make images and videos; Nova Sonic speaks. model: an id, as the API takes it.
    """
    return _MODEL.search(model) is not None
