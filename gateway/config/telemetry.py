"""The settings of `telemetry`: traces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.config.types import Positive, PositiveSeconds, Secret


class Traces(Struct, frozen=True, forbid_unknown_fields=True):
    """OpenTelemetry traces of agent runs."""

    endpoint: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/?#@\s]+/\S+)?$",
            examples=["http://localhost:4318/v1/traces"],
            description="URL of an OTLP/HTTP collector; empty: no traces.",
        ),
    ] = ""
    header: Annotated[
        str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", description="Request header of the collector for `secret`.")
    ] = "Authorization"
    secret: Annotated[Secret, Meta(description="Value of that header, such as `Bearer …`; it is never logged.")] = (
        Secret()
    )
    ca_file: Annotated[str, Meta(description="PEM file of the authorities to trust; empty: requests' own list.")] = ""
    ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the traces to record, of those that begin at the gateway. Of a trace that a client "
            "began, its `traceparent` decides.",
        ),
    ] = 1.0
    messages: Annotated[
        bool, Meta(description="Add what users and agents wrote, redacted as for the inspector, media by their hash.")
    ] = False
    service_name: Annotated[str, Meta(min_length=1, description="The resource attribute `service.name`.")] = (
        "mlc-gateway"
    )
    seconds: Annotated[PositiveSeconds, Meta(description="For sending a batch of spans, with all retries.")] = 10.0
    queue: Annotated[Positive, Meta(description="Most spans that wait to be sent; traces beyond are dropped.")] = 8_192


class Telemetry(Struct, frozen=True, forbid_unknown_fields=True):
    """Telemetry for other tools."""

    traces: Traces = Traces()
