"""Characters allowed in names and descriptions from 3.1 on (sources 3.1.0.0 to 3.6.0.0; confirmed on a real 3.6.0)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.simulator.errors import RestFailure

_SAFE = re.compile(r"[\w\s.,!?():@\-/'\"]*")
_ALLOWED = "can only contain letters, numbers, spaces, and basic punctuation (.,!?():@-_'/\")"


def check_words(body: Mapping[str, Any], name: str, description: str) -> None:
    """Check `name` and `description` of a model or connector, if present.

    name, description: the cluster's labels of these fields.

    Raises:
        RestFailure: 400 with every invalid field.
    """
    fields = ((name, body.get("name")), (description, body.get("description")))
    wrong = [f"{label} {_ALLOWED}" for label, value in fields if isinstance(value, str) and not _SAFE.fullmatch(value)]
    if wrong:
        listed = "".join(f"{number}: {one};" for number, one in enumerate(wrong, 1))
        raise RestFailure(400, "action_request_validation_exception", f"Validation Failed: {listed}")
