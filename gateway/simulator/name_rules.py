"""What names and descriptions may hold from 3.1 on (sources 3.1.0.0 to 3.6.0.0; a real 3.6.0 said the same)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.simulator.errors import RestFailure

_SAFE = re.compile(r"[\w\s.,!?():@\-/'\"]*")
_ALLOWED = "can only contain letters, numbers, spaces, and basic punctuation (.,!?():@-_'/\")"


def check_words(body: Mapping[str, Any], name: str, description: str) -> None:
    """Check `name` and `description` of a model or connector, where there are any.

    name, description: what the cluster calls these fields.

    Raises:
        RestFailure: 400 with every field that holds anything else.
    """
    said = ((name, body.get("name")), (description, body.get("description")))
    wrong = [f"{label} {_ALLOWED}" for label, value in said if isinstance(value, str) and not _SAFE.fullmatch(value)]
    if wrong:
        listed = "".join(f"{number}: {one};" for number, one in enumerate(wrong, 1))
        raise RestFailure(400, "action_request_validation_exception", f"Validation Failed: {listed}")
