"""The recorded documents of `documents/<version>.json`: what `GET` root, agents, models and connectors answered."""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "documents"


def recorded(version: str) -> dict[str, Any]:
    return json.loads((HERE / f"{version}.json").read_text())


def agent_id(documents: dict[str, Any], name: str) -> str:
    return next(id_ for id_, agent in documents["agents"].items() if agent["name"] == name)
