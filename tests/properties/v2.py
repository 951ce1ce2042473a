"""What later turns of a V2 agent read of a session, and what its LLM received."""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.simulator.core import Executed
from tests.delivery.frames import parsed

_FORM = re.compile(r"\$\$\$\{parameters\.gw_[0-9a-f]{32}x\d+:-([^{}]*)\}")


def readable_messages(messages: Any) -> Any:
    """The messages of a session with the text that a later turn reads in place of each form."""
    match messages:
        case str():
            return _FORM.sub(lambda form: form[1], messages)
        case dict():
            return {name: readable_messages(member) for name, member in messages.items()}
        case list():
            return [readable_messages(item) for item in messages]
    return messages


def seen(executed: Executed) -> tuple[int, list[Any]]:
    """Status, and what the LLM received."""
    return executed.status, [_read(parsed(body)) for body in executed.llm_bodies]


def _read(value: Any) -> Any:
    """The body with the arguments of OpenAI's calls, JSON in a string, as data."""
    match value:
        case {"function": {"arguments": str(arguments)} as function}:
            return {**value, "function": {**function, "arguments": json.loads(arguments)}}
        case dict():
            return {name: _read(member) for name, member in value.items()}
        case list():
            return [_read(item) for item in value]
    return value
