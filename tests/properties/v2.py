"""What a `conversational_v2` agent must send to its LLM: a request of harmless words in a readable memory shows it."""

from __future__ import annotations

import re
from typing import Any

_FORM = re.compile(r"\$\$\$\{parameters\.gw_[0-9a-f]{32}x\d+:-([^{}]*)\}")
_SYSTEM = ("system", "developer")


def is_native_spelling(value: Any) -> bool:
    """Whether the cluster itself reads this `input`: every block has a type, and every content is a list."""
    if isinstance(value, str):
        return True
    if all("role" in item for item in value):
        return all(isinstance(item["content"], list) and is_native_spelling(item["content"]) for item in value)
    return all("type" in item for item in value)


def readable_messages(messages: Any) -> Any:
    """The messages of a session with the text that a later turn reads in place of each form."""
    match messages:
        case str():
            return _FORM.sub(lambda form: form[1], messages)
        case dict():
            return {name: readable_messages(member) for name, member in messages.items()}
        case list():
            return [readable_messages(item) for item in messages]
    return messages


def clean_request(provider: str, value: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A request with a word in place of each text, and the texts by word. Bedrock gets system turns as a parameter."""
    texts: dict[str, str] = {}

    def word(text: str) -> str:
        return next((w for w, t in texts.items() if t == text), None) or _add(texts, text)

    if isinstance(value, str):
        return {"input": word(value)}, texts
    for item in [block for one in value for block in (one["content"] if "role" in one else [one])]:
        if "text" in item:
            item["text"] = word(item["text"])
    if not provider.startswith("bedrock/") or "role" not in value[0]:
        return {"input": value}, texts
    told = [block["text"] for turn in value if turn["role"] in _SYSTEM for block in turn["content"]]
    rest = [turn for turn in value if turn["role"] not in _SYSTEM]
    return {"input": rest, **({"parameters": {"system_prompt": "\n\n".join(told)}} if told else {})}, texts


def _add(texts: dict[str, str], text: str) -> str:
    word = f"oracletext{len(texts)}end"
    texts[word] = text
    return word
