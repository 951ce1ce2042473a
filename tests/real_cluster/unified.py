"""Registers agents the new way (3.5+, unified agent API on) and points their auto-made connectors at a test LLM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .agents import MODEL, Api, register

SETTING = "plugins.ml_commons.unified_agent_api_enabled"

MODELS: dict[str, dict[str, Any]] = {
    "bedrock": {
        "model_id": MODEL,
        "model_provider": "bedrock/converse",
        "credential": {"access_key": "AK", "secret_key": "SK", "session_token": "ST"},
    },
    "openai": {
        "model_id": "gpt-4o",
        "model_provider": "openai/v1/chat/completions",
        "credential": {"openai_api_key": "sk"},
    },
    "gemini": {
        "model_id": "gemini-2.5-pro",
        "model_provider": "gemini/v1beta/generatecontent",
        "credential": {"gemini_api_key": "g"},
    },
}


def switch(api: Api, on: bool | None) -> None:
    """Sets the dynamic cluster setting; None: back to what opensearch.yml says (off)."""
    api.must("PUT", "/_cluster/settings", {"persistent": {SETTING: on}})


@contextmanager
def enabled(api: Api) -> Iterator[None]:
    """The unified agent API is on inside the `with`."""
    switch(api, True)
    try:
        yield
    finally:
        switch(api, None)


def unified_body(name: str, type_: str, provider: str, container_id: str | None, tools: bool = False) -> dict[str, Any]:
    """What registers a unified agent; one without `container_id` keeps its memory in the conversation index."""
    memory: dict[str, Any] = {"type": "conversation_index"}
    if container_id:
        memory = {"type": "agentic_memory", "memory_container_id": container_id}
    body = {
        "name": name,
        "type": type_,
        "description": "test",
        "model": MODELS[provider] | {"model_parameters": {"system_prompt": "Be terse."}},
        "parameters": {"max_iteration": 5},
        "memory": memory,
    }
    return body | ({"tools": [{"type": "ListIndexTool", "name": "ListIndexTool"}]} if tools else {})


def redirect(api: Api, agent_id: str, llm_url: str) -> None:
    """The URL is hard-coded in the connector inside the model; `PUT /models/{id}` changes it."""
    model_id = api.must("GET", f"/_plugins/_ml/agents/{agent_id}")["llm"]["model_id"]
    connector = api.must("GET", f"/_plugins/_ml/models/{model_id}")["connector"]
    for action in connector["actions"]:
        action["url"] = re.sub(r"^https://[^/]+", llm_url, action["url"])
    change = {"actions": connector["actions"], "client_config": {"max_retry_times": 0}}
    api.must("PUT", f"/_plugins/_ml/models/{model_id}", {"connector": change})


def register_unified(api: Api, llm_url: str, body: dict[str, Any]) -> str:
    """Registers a unified agent whose LLM is the test's; the API must be on."""
    agent_id = register(api, body)
    redirect(api, agent_id, llm_url)
    return agent_id
