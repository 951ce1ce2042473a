"""The output `token_usage` of an answer, on 3.6 and later, to a request with ``include_token_usage: true``.

It has the tokens of each call of a model that shows its whole response, and their sums per model
(docs/evidence/facts.md, "Token usage").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.simulator.predict import Tensor
from gateway.simulator.render import Parameters

PARAMETER = "include_token_usage"
NAME = "token_usage"
_COUNTS = (
    ("inputTokens", "outputTokens"),  # Bedrock Converse
    ("prompt_tokens", "completion_tokens"),  # OpenAI
    ("promptTokenCount", "candidatesTokenCount"),  # Gemini
    ("input_tokens", "output_tokens"),  # Anthropic
)


class TokenUsage:
    """Counts the tokens of a run. wanted: the request asks for them, and the cluster can report them."""

    def __init__(self, parameters: Parameters, reports: bool) -> None:
        self.wanted = reports and (parameters.get(PARAMETER) or "").lower() == "true"
        self._calls: list[dict[str, Any]] = []

    def count(self, model_id: str, answer: Mapping[str, Any]) -> None:
        """Count one call of a model. answer: its data map; without the counts, the call is left out."""
        counts = answer.get("usage") or answer.get("usageMetadata")
        if not isinstance(counts, Mapping):
            return
        for names in _COUNTS:
            if all(name in counts for name in names):
                read, written = (int(counts[name]) for name in names)
                call = {"model_id": model_id, "input_tokens": read, "output_tokens": written}
                self._calls.append({"turn": len(self._calls) + 1, **call, "total_tokens": read + written})
                return

    def add(self, tensors: list[Tensor]) -> None:
        """Count the calls that another agent's run reports in its `tensors`."""
        for tensor in tensors:
            for call in (tensor.get("dataAsMap") or {}).get("per_turn_usage", ()) if tensor["name"] == NAME else ():
                self._calls.append({**call, "turn": len(self._calls) + 1})

    def tensors(self) -> list[Tensor]:
        """Return the output, or none if it is not wanted."""
        if not self.wanted:
            return []
        models: dict[str, dict[str, Any]] = {}
        for call in self._calls:
            sums = models.setdefault(call["model_id"], {"model_id": call["model_id"], "call_count": 0})
            sums["call_count"] += 1
            for name in ("input_tokens", "output_tokens", "total_tokens"):
                sums[name] = sums.get(name, 0) + call[name]
        return [{"name": NAME, "dataAsMap": {"per_turn_usage": self._calls, "per_model_usage": list(models.values())}}]
