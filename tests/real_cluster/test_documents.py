"""What GET shows of agents, models and connectors, against the copies in `documents/` that offline tests read.

After a deliberate change in `agents.py`, `MLC_SAVE_DOCUMENTS=1 pytest -m real_cluster …/test_documents.py` writes
them again.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from .agents import Agent, Api

pytestmark = pytest.mark.real_cluster

SAVED = Path(__file__).parent / "documents"
PORT = re.compile(r"http://127\.0\.0\.1:\d+")
# Ids, times, and what a model shows only once it is deployed, which happens a little after its registration.
CHANGING = re.compile(r"(.*_(id|time|worker_nodes|worker_node_count|retry_times|all_nodes)|model_(state|version))$")


def unified_documents(api: Api, agent_id: str) -> dict[str, Any]:
    """A unified agent and its model, whose connector is embedded."""
    agent = api.must("GET", f"/_plugins/_ml/agents/{agent_id}")
    return {"agent": agent, "model": api.must("GET", f"/_plugins/_ml/models/{agent['llm']['model_id']}")}


def stable(value: Any) -> Any:
    """`value` without what differs from run to run."""
    if isinstance(value, dict):
        return {key: stable(inner) for key, inner in value.items() if not CHANGING.match(key)}
    if isinstance(value, list):
        return [stable(one) for one in value]
    return PORT.sub("http://127.0.0.1:8080", value) if isinstance(value, str) else value


def test_documents_are_what_the_cluster_shows(
    api: Api, agents: dict[str, Agent], unified_agents: dict[str, str]
) -> None:
    shown = {name: agent.documents for name, agent in agents.items()}
    shown |= {f"unified_{name}": unified_documents(api, agent_id) for name, agent_id in unified_agents.items()}
    if os.environ.get("MLC_SAVE_DOCUMENTS"):
        for name, documents in shown.items():
            written = PORT.sub("http://127.0.0.1:8080", json.dumps(documents, indent=1, sort_keys=True))
            (SAVED / f"{name}.json").write_text(f"{written}\n")
    saved = {path.stem: json.loads(path.read_text()) for path in SAVED.glob("*.json")}
    assert stable(shown) == stable(saved)
