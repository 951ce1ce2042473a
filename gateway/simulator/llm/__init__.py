"""Model endpoints in the shape of Anthropic, Bedrock, Cohere, OpenAI and Gemini, which check what they receive.

`answer_any` accepts everything; `LlmEndpoints` checks, records, and follows a script.
"""

from gateway.simulator.llm.endpoints import Call, LlmEndpoints, Reply, answer_any

__all__ = ["Call", "LlmEndpoints", "Reply", "answer_any"]
