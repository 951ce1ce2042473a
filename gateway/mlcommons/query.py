"""The query of a request to run an agent, as the cluster reads it."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

_SEPARATORS = re.compile("[;#]")


def read_async(target: str) -> str:
    """Return the value of ``async`` in the query of `target`; "false" if there is none.

    With any other value, even an empty one, the agent runs in the background. OpenSearch takes ``;`` for ``&``, and
    some versions end the query at ``#`` (docs/internals/facts.md): values before and after them all count.
    """
    query = _SEPARATORS.sub("&", target.partition("?")[2])
    values = (value for name, value in parse_qsl(query, keep_blank_values=True) if name == "async")
    return next((value for value in values if value != "false"), "false")
