"""An image of 100 KB and a text, for an agent through the gateway and for OpenAI through gateways to LLMs."""

from __future__ import annotations

import json

from bench.load import Ask
from bench.proxies import LITELLM_KEY
from bench.rewrite import image_body
from bench.upstream import CHAT, EXECUTE

_BODY = image_body(100_000)


def ask(name: str, upstream: int) -> Ask:
    """The request as the gateway `name` takes it; another name than those of `AI_GATEWAYS` stands for ours.

    upstream: the port where OpenAI's API is.
    """
    match name:
        case "portkey":
            host = f"http://127.0.0.1:{upstream}/v1"
            headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": host, "Authorization": "Bearer none"}
            return Ask(CHAT, _completion(), headers)
        case "litellm":
            return Ask(CHAT, _completion(), {"Authorization": f"Bearer {LITELLM_KEY}"})
    return Ask(EXECUTE, _BODY)


def _completion() -> bytes:
    """The same text and image as OpenAI's chat completions take them."""
    text, image = json.loads(_BODY)["input"]
    parts = [text, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image['source']['data']}"}}]
    return json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": parts}]}).encode()
