"""Types of single settings, durations and sizes with their units, and what all stores on OpenSearch have in common.

The units are those of OpenSearch's own settings: ``5s``; ``1MB`` is 1,048,576 bytes, as in
``http.max_content_length: 100mb``.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

Port = Annotated[int, Meta(ge=0, le=65535)]
YEAR = 31_536_000
"""Longest duration of a setting, in seconds. Switch a time limit off with 0."""
Seconds = Annotated[float, Meta(ge=0, le=YEAR, extra={"unit": "seconds"})]
PositiveSeconds = Annotated[float, Meta(gt=0, le=YEAR, extra={"unit": "seconds"})]
Bytes = Annotated[int, Meta(ge=0, extra={"unit": "bytes"})]
PositiveBytes = Annotated[int, Meta(ge=1, extra={"unit": "bytes"})]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
AgentId = Annotated[str, Meta(pattern=r"^[!-~]+$")]
HostGlob = Annotated[str, Meta(pattern=r"^[a-z0-9*?_.-]+(:[0-9]{1,5})?$")]
NodeUrl = Annotated[str, Meta(pattern=r"^https?://[^/?#@\s]+/?$", examples=["http://127.0.0.1:9200"])]


class Secret:
    """A secret, read from an environment variable or a file. Only `reveal` shows it. Equal if the values are."""

    __slots__ = ("_value", "source")

    def __init__(self, value: str = "", source: str = "") -> None:
        self._value = value
        self.source = source

    def reveal(self) -> str:
        """Return the secret, or "" if none is configured."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return f"Secret({self.source})"


TlsVersion = Literal["1.2", "1.3"]


class OpenSearchAccount(Struct, frozen=True, forbid_unknown_fields=True):
    """How to connect to the cluster, with an account of the store's own."""

    username: Annotated[str, Meta(description="Name of the account, for basic authentication.")] = ""
    password: Annotated[Secret, Meta(description="Its password.")] = Secret()
    sigv4_region: Annotated[
        str, Meta(description="Region of an Amazon OpenSearch Service domain; requests are signed with SigV4.")
    ] = ""
    ca_file: Annotated[str, Meta(description="PEM file of the authorities to trust; empty: the system's.")] = ""
    seconds: Annotated[PositiveSeconds, Meta(description="For one request.")] = 10.0


Unit = Literal["seconds", "bytes"]
_DURATIONS = {"ms": Decimal("0.001"), "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZES = {"b": 1} | {
    name: 1024**power for power, prefix in enumerate("kmgt", 1) for name in (f"{prefix}b", f"{prefix}ib")
}
_UNITS: dict[str, dict[str, Any]] = {"seconds": _DURATIONS, "bytes": _SIZES}
_EXAMPLES = {"seconds": "such as 30 or 30s, 5m, 1h", "bytes": "such as 1048576 or 1MB"}
_WRITTEN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")


def unit_of(kind: Any) -> Unit | None:
    """Return the unit of a setting's type; None: it has none."""
    metas = (meta for meta in get_args(kind)[1:] if isinstance(meta, Meta))
    return next((meta.extra["unit"] for meta in metas if meta.extra and "unit" in meta.extra), None)


def examples(kind: Any) -> str:
    """Return how a setting of this type may be written; "" if it has no unit."""
    unit = unit_of(kind)
    return _EXAMPLES[unit] if unit else ""


def without_unit(value: Any, kind: Any) -> Any:
    """Return a text with a unit (``5s``) as a number in the setting's own unit; any other value as it is.

    A size that is no whole number of bytes stays as it is.
    """
    unit = unit_of(kind)
    found = _WRITTEN.fullmatch(value.strip()) if unit and isinstance(value, str) else None
    if not unit or found is None:
        return value
    number, name = found.groups()
    factor = _UNITS[unit].get(name.lower())
    if factor is None:
        return value
    exact = Decimal(number) * factor
    if unit == "seconds":
        return float(exact)
    return int(exact) if exact == int(exact) else value
