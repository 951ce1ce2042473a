"""What the tests of moves share: two clusters with a settings file, and agents of every kind on the old one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.config.load import load
from gateway.config.schema import Settings
from gateway.simulator.core import ClusterCore
from tests.migrate.conftest import Deployment
from tests.migrate.upgrading import connector_body, make

OLD_SECRET, NEW_SECRET = "old-cluster-canary-71", "new-cluster-canary-72"
LLM_SECRET, INNER_SECRET, TOOL_SECRET = "llm-canary-73", "inner-canary-74", "tool-canary-75"
CANARIES = (OLD_SECRET, NEW_SECRET, LLM_SECRET, INNER_SECRET, TOOL_SECRET)
COMMENT = "# why the gateway is here"


class Move:
    """An old and a new cluster, a settings file for both, and an agent with all that it uses.

    The agent runs a sub-agent, calls a connector, and has an LLM with a standalone connector; the sub-agent's model has
    a connector of its own.
    """

    def __init__(self, old: Deployment, new: Deployment, folder: Path) -> None:
        self.old, self.new, self.folder = old, new, folder
        self.config = self.write(old.url, new.url)
        self.connector = self._connector("llm")
        self.tool_connector = self._connector("calls")
        self.group = str(make(old, "model_groups/_register", {"name": "group of the test"})["model_group_id"])
        self.model = self._model("outer", connector_id=self.connector, model_group_id=self.group)
        self.inner = self._model("inner", connector=connector_body(old, "inner"))
        self.sub = self._agent("sub", [llm_tool(self.inner)])
        self.agent = self._agent(
            "main",
            [
                llm_tool(self.model),
                {"type": "AgentTool", "name": "asker", "parameters": {"agent_id": self.sub}},
                {"type": "ConnectorTool", "name": "caller", "parameters": {"connector_id": self.tool_connector}},
            ],
            description="an agent that is moved",
        )
        self.credentials = self.write_credentials(
            {
                f"connectors/{self.connector}": {"key": LLM_SECRET},
                f"connectors/{self.tool_connector}": {"key": TOOL_SECRET},
                f"models/{self.inner}": {"key": INNER_SECRET},
            }
        )

    def write(self, old_url: str, new_url: str) -> Path:
        """Write the settings file, with comments, and return its path."""
        path = self.folder / "gateway.yaml"
        for name, secret in (("old", OLD_SECRET), ("new", NEW_SECRET)):
            (self.folder / name).write_text(secret)
        old, new = self.folder / "old", self.folder / "new"
        path.write_text(
            f"{COMMENT}\n"
            f"upstream:\n  url: {old_url}\n  auth: {{mode: basic, basic: {{username: o, password: {{file: {old}}}}}}}\n"
            f"clusters:\n  new:\n    url: {new_url}  # the new one\n"
            f"    auth: {{mode: basic, basic: {{username: n, password: {{file: {new}}}}}}}\n"
            "agents:\n  cache_size: 100  # few\n"
        )
        return path

    def write_credentials(self, credentials: Mapping[str, Any]) -> Path:
        path = self.folder / "credentials.json"
        path.write_text(json.dumps(credentials))
        path.chmod(0o600)
        return path

    def argv(self, *more: str) -> list[str]:
        """The command that moves the agent."""
        backups = ["--backup-dir", str(self.folder / "backups")]
        return ["move", self.agent, "-c", str(self.config), "--to-cluster", "new", *backups, *more]

    def argv_with_credentials(self, *more: str) -> list[str]:
        return self.argv("--credential-file", str(self.credentials), *more)

    @property
    def settings(self) -> Settings:
        """What the settings file holds."""
        return load(self.config)

    @property
    def target(self) -> str:
        """The id of the agent's copy that the route names; "" without one."""
        found = [one.agent for route in self.settings.agents.routes for one in route.targets if one.cluster == "new"]
        assert len(found) < 2
        return found[0] if found else ""

    def made(self) -> dict[str, Any]:
        """Every document of the new cluster, inside out, by kind."""
        return documents(self.new.cluster.core)

    def _connector(self, name: str) -> str:
        body = connector_body(self.old, name)
        execute = {**body["actions"][0], "action_type": "execute", "name": "write_it"}
        return str(
            make(self.old, "connectors/_create", {**body, "actions": [*body["actions"], execute]})["connector_id"]
        )

    def _model(self, name: str, **own: Any) -> str:
        return str(
            make(self.old, "models/_register?deploy=true", {"name": name, "function_name": "remote", **own})["model_id"]
        )

    def _agent(self, name: str, tools: list[dict[str, Any]], **more: Any) -> str:
        return self.old.register({"name": name, "type": "flow", "tools": tools, **more})


def llm_tool(model: str) -> dict[str, Any]:
    parameters = {
        "model_id": model,
        "prompt": "Human: ${parameters.question}",
        "response_filter": "$.output.message.content[0].text",
    }
    return {"type": "MLModelTool", "name": "llm", "parameters": parameters}


def documents(core: ClusterCore) -> dict[str, Any]:
    resources = core.resources
    return {
        "connectors": dict(resources.connectors),
        "model_groups": dict(resources.groups),
        "models": dict(resources.models),
        "agents": dict(resources.agents),
    }
