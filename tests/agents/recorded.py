"""The recorded documents of `documents/<version>.json`: what `GET` root, agents, models and connectors answered.

`unknown_agent` is made up: nothing in it shows the provider.
"""

import json
from pathlib import Path
from typing import Any

from gateway.agents.documents import read_profile
from gateway.mlcommons.profile import AgentProfile

HERE = Path(__file__).parent / "documents"


def recorded(version: str) -> dict[str, Any]:
    return json.loads((HERE / f"{version}.json").read_text())


def agent_id(documents: dict[str, Any], name: str) -> str:
    return next(id_ for id_, agent in documents["agents"].items() if agent["name"] == name)


def profile_of(version: str, name: str, **changes: Any) -> AgentProfile:
    docs = recorded(version)
    id_ = agent_id(docs, name)
    numbers = tuple(map(int, version.split(".")))
    arguments = {"unified_api": numbers >= (3, 5), **changes}
    return read_profile(id_, docs["agents"][id_], docs["models"], docs["connectors"], numbers, **arguments)


def unknown_agent() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    agent = {"name": "mine", "type": "conversational", "llm": {"model_id": "m"}}
    action = {"action_type": "predict", "url": "https://llm.example/complete", "request_body": "${parameters.prompt}"}
    return agent, {"m": {"connector_id": "c"}}, {"c": {"protocol": "http", "actions": [action]}}
