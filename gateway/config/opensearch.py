"""What the settings of all stores on OpenSearch have."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.config.types import PositiveSeconds, Secret


class OpenSearchAccount(Struct, frozen=True, forbid_unknown_fields=True):
    """How to connect to the cluster, with an account of the store's own."""

    username: Annotated[str, Meta(description="Name of the account, for basic authentication.")] = ""
    password: Annotated[Secret, Meta(description="Its password.")] = Secret()
    sigv4_region: Annotated[
        str, Meta(description="Region of an Amazon OpenSearch Service domain; requests are signed with SigV4.")
    ] = ""
    ca_file: Annotated[str, Meta(description="PEM file of the authorities to trust; empty: the system's.")] = ""
    seconds: Annotated[PositiveSeconds, Meta(description="For one request.")] = 10.0
