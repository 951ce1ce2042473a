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
    queue_bytes: Annotated[
        Positive, Meta(description="Most bytes of bodies that wait to be recorded; exchanges beyond are dropped.")
    ] = 268_435_456
    body_bytes: Annotated[
        Positive,
        Meta(
            description="Most bytes that are recorded of a body that passes unchanged (`passthrough: bodies`). Bodies "
            "of agent runs are recorded whole."
        ),
    ] = 1_048_576
    redact_paths: Annotated[
        list[str],
        Meta(
            description="Members of JSON bodies to hide besides secrets: `parameters.ssn`, `input[*].content[*].text`, "
            "`**.email`. `*` is any one member or item, `**` any number of them."
        ),
    ] = []
    redact_patterns: Annotated[
        list[str],
        Meta(
            description="Regular expressions (Python's); what they match is hidden. Repetitions are bounded, or "
            "possessive: `[a-z]{1,64}@`, `[0-9]++`."
        ),
    ] = []
