"""The types of single settings, and the settings that all stores on OpenSearch have."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Port = Annotated[int, Meta(ge=0, le=65535)]
YEAR = 31_536_000
"""Longest duration of a setting, in seconds. Switch a time limit off with 0."""
Seconds = Annotated[float, Meta(ge=0, le=YEAR)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=YEAR)]
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
