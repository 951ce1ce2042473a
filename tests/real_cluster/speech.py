"""What tests say to an LLM, in each provider's own words, and what is worth comparing in what it received."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DNE = "_chat_history,_tools,_interactions,tool_configs"  # what an agent itself sends unescaped (facts.md, 3.4)

# Runs an agent by name with the given parameters: status, body, and what the LLM received.
Execute = Callable[..., tuple[int, Any, list[dict[str, Any]]]]

PROVIDERS = ("bedrock", "openai", "gemini")


def dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def text(provider: str, content: str) -> dict[str, Any]:
    return {"type": "text", "text": content} if provider == "openai" else {"text": content}


def image(provider: str) -> dict[str, Any]:
    if provider == "openai":
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    if provider == "gemini":
        return {"inlineData": {"mimeType": "image/png", "data": PNG}}
    return {"image": {"format": "png", "source": {"bytes": PNG}}}


def message(provider: str, role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """A turn; role is user or assistant."""
    if provider == "gemini":
        return {"role": "model" if role == "assistant" else role, "parts": list(parts)}
    return {"role": role, "content": list(parts)}


def prompted(provider: str, content: str) -> dict[str, Any]:
    """The user turn a connector's own template makes of a prompt."""
    if provider == "openai":
        return {"role": "user", "content": content}
    return message(provider, "user", text(provider, content))


def past(provider: str) -> list[dict[str, Any]]:
    """Two earlier turns, the first with an image."""
    first = message(provider, "user", text(provider, "q1"), image(provider))
    return [first, message(provider, "assistant", text(provider, "a1"))]


def with_tools(provider: str) -> list[dict[str, Any]]:
    """Four earlier turns with a tool call in them."""
    asked = message(provider, "user", text(provider, "weather?"))
    answer = message(provider, "assistant", text(provider, "sunny"))
    if provider == "openai":
        function = {"name": "weather", "arguments": '{"city":"Pa\\"ris"}'}
        call = {"id": "call_1", "type": "function", "function": function}
        called = {"role": "assistant", "content": None, "tool_calls": [call]}
        result_turn: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    elif provider == "gemini":
        called = {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": {"city": 'Pa"ris'}}}]}
        response = {"functionResponse": {"name": "weather", "response": {"output": "sunny"}}}
        result_turn = {"role": "user", "parts": [response]}
    else:
        use = {"toolUse": {"toolUseId": "call_1", "name": "weather", "input": {"city": 'Pa"ris'}}}
        result = {"toolResult": {"toolUseId": "call_1", "content": [{"text": "sunny"}, {"text": "25C"}]}}
        called, result_turn = message(provider, "assistant", use), message(provider, "user", result)
    return [asked, called, result_turn, answer]


def history(messages: Sequence[dict[str, Any]]) -> str:
    """`_chat_history` as the templates take it: each message, then a comma."""
    return "".join(f"{dumps(one)}, " for one in messages)


def escaped(content: str) -> str:
    """Text as it stands inside a JSON string, safe from substitution: every `$` as \\u0024."""
    return dumps(content)[1:-1].replace("$", "\\u0024")


def turns(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The conversation in a request an LLM received, without OpenAI's system message."""
    messages: list[dict[str, Any]] = body["contents"] if "contents" in body else body["messages"]
    return [one for one in messages if one["role"] not in ("developer", "system")]


def system(body: dict[str, Any]) -> str:
    """The system text in a request an LLM received."""
    if "systemInstruction" in body:
        return "".join(part["text"] for part in body["systemInstruction"]["parts"])
    if "system" in body:
        return "".join(part["text"] for part in body["system"])
    answer = [one["content"] for one in body["messages"] if one["role"] in ("developer", "system")]
    return "".join(one if isinstance(one, str) else "".join(part["text"] for part in one) for one in answer)


def tool_names(body: dict[str, Any]) -> list[str]:
    """The tools that a request offers to an LLM, sorted; an empty list, which providers refuse, is a failure."""
    if "contents" in body:
        names = [one["name"] for tool in body.get("tools", ()) for one in tool["functionDeclarations"]]
    elif "toolConfig" in body:
        names = [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]]
    else:
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
    assert names or not {"tools", "toolConfig"} & body.keys(), body
    return sorted(names)


def flow_prompt(content: str) -> str:
    """A flow agent's prompt (agents.FLOW_PROMPT) around a question."""
    return f"\n\nHuman: {content}\n\nAssistant:"


def cflow_prompt(content: str, chat_history: str = "") -> str:
    """A conversational_flow agent's prompt (agents.CFLOW_PROMPT) around a question."""
    return f"\n\nHistory:\n{chat_history}\n\nHuman: {content}\n\nAssistant:"
