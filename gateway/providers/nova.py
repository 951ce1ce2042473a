"""Which of Amazon's models are Nova's understanding models, whichever API calls them."""

from __future__ import annotations

import re

_MODEL = re.compile(r"(?:\A|[./])amazon\.nova-(?!canvas|reel|sonic)[a-z0-9:.-]{1,256}\Z")
"""Their ids by themselves, after a region, or at the end of an inference profile's name [D]."""


def takes_messages(model: str) -> bool:
    """Return True for a model that takes messages, and continues an assistant turn (docs/internals/providers.md, Nova).

    Nova Canvas and Nova Reel make images and videos; Nova Sonic speaks. model: an id, as the API takes it.
    """
    return _MODEL.search(model) is not None
