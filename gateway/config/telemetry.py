"""The settings of `telemetry`: traces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Traces(Struct, frozen=True, forbid_unknown_fields=True):
    """OpenTelemetry traces of agent runs."""

    endpoint: Annotated[
        str, Meta(description="URL of an OTLP/HTTP collector (`http://localhost:4318/v1/traces`); empty: no traces.")
    ] = ""


class Telemetry(Struct, frozen=True, forbid_unknown_fields=True):
    """Telemetry for other tools."""

    traces: Traces = Traces()
