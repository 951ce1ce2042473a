"""The settings of `inspector`: what is recorded of the traffic, and where."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.config.types import Positive


class Inspector(Struct, frozen=True, forbid_unknown_fields=True):
    """Recording of exchanges, for the page `/inspector/` of the admin port and for files."""

    enabled: Annotated[bool, Meta(description="Record exchanges.")] = False
    passthrough: Annotated[
        Literal["none", "line", "bodies"],
        Meta(description="What is recorded of requests that pass unchanged: nothing, all but bodies, or all."),
    ] = "line"
    media: Annotated[
        Literal["hash", "keep"],
        Meta(description="What is recorded of a medium: its type, size and hash, or also its bytes, in a file."),
    ] = "hash"
    queue: Annotated[Positive, Meta(description="Most exchanges that wait to be recorded; more are dropped.")] = 10_000
