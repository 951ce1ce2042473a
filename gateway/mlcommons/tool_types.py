"""What each type of tool calls: nothing, a model, a connector or an agent. A type without a row may call any of them.

A row is believed only as far as its source: `TRIED` on a real 3.6.0 (docs/evidence/facts.md, "Tools that call a
model"), `SOURCE` read in ML Commons, `DOCS` by documentation of OpenSearch alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class Calls(Enum):
    """What a tool calls."""

    NOTHING = "nothing"
    MODEL = "model"
    CONNECTOR = "connector"
    AGENT = "agent"
    UNKNOWN = "unknown"


class Source(Enum):
    """Where a row of the table is from."""

    TRIED = "tried on 3.6.0"
    SOURCE = "source"
    DOCS = "documentation"
    NONE = "none"


class ToolType(NamedTuple):
    """A type of tool. id_name: the parameter that names what it calls.

    text_name: the only parameter that what it calls gets; "" if that gets all parameters of the request.
    """

    calls: Calls
    source: Source
    id_name: str = ""
    text_name: str = ""


MODEL_TOOL, AGENT_TOOL, CONNECTOR_TOOL, PLANNING_TOOL = "MLModelTool", "AgentTool", "ConnectorTool", "QueryPlanningTool"

_FREE_SOURCE = ToolType(Calls.NOTHING, Source.SOURCE)
_FREE_DOCS = ToolType(Calls.NOTHING, Source.DOCS)
_EMBEDDING = ToolType(Calls.MODEL, Source.DOCS, "model_id", "input")
_MCP = ToolType(Calls.CONNECTOR, Source.DOCS, text_name="input")
_MODEL_BY_DOCS = ToolType(Calls.MODEL, Source.DOCS, "model_id")

TOOL_TYPES: Mapping[str, ToolType] = {
    # of ML Commons
    "MLModelTool": ToolType(Calls.MODEL, Source.TRIED, "model_id"),
    "QueryPlanningTool": ToolType(Calls.MODEL, Source.TRIED, "model_id"),
    "ConnectorTool": ToolType(Calls.CONNECTOR, Source.TRIED, "connector_id"),
    "AgentTool": ToolType(Calls.AGENT, Source.TRIED, "agent_id"),
    "CatIndexTool": _FREE_SOURCE,
    "IndexMappingTool": _FREE_SOURCE,
    "ListIndexTool": _FREE_SOURCE,
    "SearchIndexTool": _FREE_SOURCE,
    "VisualizationTool": _FREE_SOURCE,
    "ReadFromScratchPadTool": _FREE_DOCS,
    "WriteToScratchPadTool": _FREE_DOCS,
    "IndexInsightTool": ToolType(Calls.AGENT, Source.DOCS),
    "McpSseTool": _MCP,
    "McpStreamableHttpTool": _MCP,
    # of the skills plugin
    "SearchAlertsTool": _FREE_DOCS,
    "SearchAnomalyDetectorsTool": _FREE_DOCS,
    "SearchAnomalyResultsTool": _FREE_DOCS,
    "SearchMonitorsTool": _FREE_DOCS,
    "WebSearchTool": _FREE_DOCS,
    "CreateAlertTool": _MODEL_BY_DOCS,
    "CreateAnomalyDetectorTool": _MODEL_BY_DOCS,
    "PPLTool": _MODEL_BY_DOCS,
    "RAGTool": ToolType(Calls.MODEL, Source.DOCS, "inference_model_id"),
    "NeuralSparseSearchTool": _EMBEDDING,
    "VectorDBTool": _EMBEDDING,
}

_UNKNOWN = ToolType(Calls.UNKNOWN, Source.NONE)


def type_of(name: str) -> ToolType:
    """Return the row of a type of tool; one that calls something unknown for a type without a row."""
    return TOOL_TYPES.get(name, _UNKNOWN)
