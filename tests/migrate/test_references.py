"""What a document names, wherever it is written, and the same document with other ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.migrate.references import Named, Reference, references, with_ids

AGENT: dict[str, Any] = {
    "name": "model_id",
    "type": "conversational",
    "llm": {"model_id": "llm", "parameters": {"model_id": "llm", "prompt": "index: books"}},
    "memory": {"type": "agentic_memory", "memory_container_id": "container"},
    "model": {"model_id": "gpt-4o"},
    "parameters": {
        "executor_agent_id": "executor",
        "mcp_connectors": json.dumps([{"mcp_connector_id": "mcp", "tool_filters": ["x"]}]),
        "search.index": "books",
        "mlc_gateway": json.dumps({"model_id": "llm"}),
        "session_id": "${parameters.session}",
    },
    "tools": [
        {"type": "AgentTool", "parameters": {"agent_id": "sub"}},
        {"type": "VectorDBTool", "parameters": {"embedding_model_id": "vectors", "index": "books,films,logs-*,_all"}},
        {"type": "RAGTool", "config": {"inference_model_id": "rag", "indices": '["books", "films"]'}},
        {"type": "ConnectorTool", "parameters": {"connector_id": "calls", "input": '{"index": "books"}'}},
    ],
}


def test_what_an_agent_names() -> None:
    assert [reference[:2] for reference in references("agents/a", AGENT)] == [
        ("models", "llm"),
        ("models", "llm"),
        ("agents", "sub"),
        ("models", "vectors"),
        ("indices", "books"),
        ("indices", "films"),
        ("models", "rag"),
        ("indices", "books"),
        ("indices", "films"),
        ("connectors", "calls"),
        ("indices", "books"),
        ("agents", "executor"),
        ("connectors", "mcp"),
        ("indices", "books"),
        ("ids", "container"),
    ]


def test_a_place_leads_to_what_names_it() -> None:
    found = list(references("agents/a", AGENT))
    assert found[2] == Reference("agents", "sub", "agents/a.tools[0].parameters.agent_id")
    assert found[-1].place == "agents/a.memory.memory_container_id"


def test_a_model_names_what_its_guardrails_use() -> None:
    words = [{"index_name": "words", "source_fields": ["title"]}]
    guardrails = {"type": "model", "model_id": "judge", "input_guardrail": {"stop_words": words}}
    found = [reference[:2] for reference in references("models/m", {"guardrails": guardrails, "model_id": "m"})]
    assert found == [("models", "judge"), ("indices", "words")]


def test_other_ids_take_their_place_and_nothing_else_changes() -> None:
    new: dict[tuple[Named, str], str] = {reference[:2]: f"new-{reference.id}" for reference in references("a", AGENT)}
    changed = with_ids(AGENT, new)
    found = [reference.id for reference in references("a", changed)]
    assert found == [f"new-{reference.id}" for reference in references("a", AGENT)]
    assert changed["llm"]["parameters"]["prompt"] == "index: books"
    assert (changed["name"], changed["model"]) == (AGENT["name"], AGENT["model"])
    assert changed["parameters"]["mlc_gateway"] == AGENT["parameters"]["mlc_gateway"]
    assert changed["tools"][1]["parameters"]["index"] == "new-books,new-films,logs-*,_all"
    back: dict[tuple[Named, str], str] = {(kind, id_): old for (kind, old), id_ in new.items()}
    assert with_ids(changed, back) == AGENT
    assert with_ids(AGENT, {}) == AGENT


@pytest.mark.parametrize("old", ["books", "book", "a.b", "x-y"])
def test_an_id_that_is_part_of_another_stays(old: str) -> None:
    text = f"{old},{old}-2,my{old},{old}_2"
    changed = with_ids({"parameters": {"index": text}}, {("indices", old): "new"})
    assert changed["parameters"]["index"] == f"new,{old}-2,my{old},{old}_2"
