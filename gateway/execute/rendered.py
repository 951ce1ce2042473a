"""The first LLM call that a request leads to, as the plan's proof rendered it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.rendering import first_call
from gateway.mlcommons.sent_body import STREAM
from gateway.mlcommons.template import RuntimeValues
from gateway.unified.request import parameters_as_strings


class Rendering:
    """Renders for one agent; see `gateway.ports.Forward.render`."""

    added: ClassVar[Mapping[str, str]] = {}
    """What the endpoint adds to the request's parameters."""

    def __init__(self, profile: AgentProfile) -> None:
        self._profile = profile

    def __call__(self, body: str) -> str:
        """Return the body of the first LLM call, without remembered turns; "" if the cluster makes it otherwise."""
        try:
            document = json.loads(body)
        except ValueError:
            return ""
        parameters = document.get("parameters") if isinstance(document, dict) else None
        if not isinstance(parameters, dict) or "question" not in parameters or "input" in document:
            return ""
        try:
            call = first_call(self._profile, {**parameters_as_strings(parameters), **self.added}, RuntimeValues())
        except RenderFailure:
            return ""
        return json.dumps(call, ensure_ascii=False) if call is not None else ""


class StreamRendering(Rendering):
    """Renders requests to the stream endpoint."""

    added: ClassVar[Mapping[str, str]] = {STREAM: "true"}
