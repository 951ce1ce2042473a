"""A message's metadata as strings for an event's `metadata`, or as JSON for an envelope, and back.

The names of the gateway's own values begin with ``mlc.``; all others are `Metadata.extra`. The limits are those of the
service's model (botocore, `bedrock-agentcore`): 15 entries, keys of 1 to 128 and values of up to 256 characters of a
small set.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from gateway.memory.agentcore_envelope import MalformedBlob
from gateway.memory.model import Metadata, Usage
from gateway.memory.store import Unstorable

PREFIX = "mlc."
SEQ = "seq"
MOST_ENTRIES = 15
_LONGEST_KEY = 128
_LONGEST_VALUE = 256
_ALLOWED = re.compile(r"[a-zA-Z0-9\s._:/=+@-]*", re.ASCII)
_COUNTS = ("input", "output", "total")


def to_json(metadata: Metadata, place: str) -> dict[str, Any]:
    """Return `metadata` as one object: the values that are known, and `extra`.

    Raises:
        Unstorable: `extra` has a name that is reserved.
    """
    values = {PREFIX + name: value for name, value in msgspec.to_builtins(metadata).items() if name != "extra"}
    if metadata.usage is not None:
        values[PREFIX + "usage"] = msgspec.to_builtins(metadata.usage)
    for name in metadata.extra:
        if not name or name == SEQ or name.startswith(PREFIX):
            raise Unstorable(
                f"the AgentCore store can't keep metadata named {name[:100]!r}: the name is empty or reserved",
                f"{place}.metadata.extra",
            )
    return {**values, **metadata.extra}


def to_strings(metadata: Metadata, place: str) -> dict[str, str]:
    """Return `metadata` as strings: texts as they are, other values as JSON; null is left out.

    The usage is ``input=10 output=20``, as the characters of JSON's objects are not allowed.
    """
    values = to_json(metadata, place)
    if metadata.usage is not None:
        counts = ((name, getattr(metadata.usage, name)) for name in _COUNTS)
        values[PREFIX + "usage"] = " ".join(f"{name}={count}" for name, count in counts if count is not None)
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in values.items()
        if value is not None
    }


def split(strings: dict[str, str], room: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the first `room` entries that the service takes as metadata, and all others."""
    fitting: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in strings.items():
        fits = len(fitting) < room and is_allowed(name, value)
        (fitting if fits else others)[name] = value
    return fitting, others


def is_allowed(name: str, value: str) -> bool:
    """Return True if the service takes this entry as metadata."""
    return (
        0 < len(name) <= _LONGEST_KEY
        and len(value) <= _LONGEST_VALUE
        and bool(_ALLOWED.fullmatch(name) and _ALLOWED.fullmatch(value))
    )


def from_values(values: dict[str, Any], place: str) -> Metadata:
    """Return the metadata of an event's or an envelope's values. Entries that are not of a message are left out.

    Raises:
        MalformedBlob: a value of the gateway's own has a wrong form.
    """
    known = {name: values[PREFIX + name] for name in Metadata.__struct_fields__ if PREFIX + name in values}
    extra = {name: value for name, value in values.items() if name != SEQ and not name.startswith(PREFIX)}
    try:
        if isinstance(known.get("usage"), str):
            known["usage"] = Usage(**{name: int(count) for name, count in _pairs(known["usage"])})
        if isinstance(known.get("failed"), str):
            known["failed"] = {"true": True, "false": False}[known["failed"]]
        return msgspec.convert({**known, "extra": extra}, Metadata, strict=False)
    except (msgspec.ValidationError, ValueError, TypeError, KeyError) as error:
        raise MalformedBlob(f"metadata of an unknown form: {error}", place) from None


def _pairs(text: str) -> list[list[str]]:
    return [part.split("=") for part in text.split()]
