"""What differs between Anthropic's models, whichever API calls them."""

from __future__ import annotations

import re

_CONTINUES = re.compile(r"(?:\A|\banthropic\.)claude-3-(?:[57]-)?(?:haiku|sonnet|opus)-[a-z0-9:-]+\Z")
"""The ids of Claude 3, 3.5 and 3.7, by themselves or at the end of an inference profile's name [D]."""


def continues_assistant(model: str) -> bool:
    """Return True if the model is known to continue an assistant turn (docs/internals/providers.md, prefill).

    Models after Claude 4.5 refuse it, and the sources differ on those between. model: an id, as the API takes it.
    """
    return _CONTINUES.search(model) is not None
