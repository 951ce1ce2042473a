"""What the tests of upgrades share: a connected cluster, connectors of both kinds, and its state to compare."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.migrate.connection import Connected
from gateway.migrate.reading import agent_ids, read_documents
from gateway.migrate.upgrade import Documents, Offer, Refused, offers
from tests.migrate.conftest import Deployment
from tests.migrate.test_connection import connected

TAG = "0123456789abcdef" * 2
SECRET = "s3cr3t-of-the-test"
OLD = '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}'
NEW = '{"messages":${parameters.messages}${parameters.declare_tools:-}}'
DEFAULT = '[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]'
ADDED = {"messages": DEFAULT, "tools_member": ',"toolConfig":${parameters.declared_tools}'}
_TIMES = frozenset({"created_time", "last_updated_time", "last_deployed_time", "last_undeployed_time"})


class FakeClock:
    """A clock on which only waiting takes time. Waits for what can't happen any more end at once."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float, /) -> None:
        self._now += seconds


def cluster_at(url: str) -> Connected:
    return connected("--url", url)


def connector_body(deployment: Deployment, name: str = "books", request_body: str = OLD) -> dict[str, Any]:
    return {
        "name": name,
        "description": "of the test",
        "version": "1",
        "protocol": "http",
        "parameters": {"model": "claude-3"},
        "credential": {"key": SECRET},
        "client_config": {"read_timeout": 20},
        "actions": [
            {
                "action_type": "predict",
                "method": "POST",
                "url": f"{deployment.cluster.llm_url}/bedrock/model/${{parameters.model}}/converse",
                "headers": {"Content-Type": "application/json", "X-Key": "${credential.key}"},
                "request_body": request_body,
            }
        ],
    }


def make(deployment: Deployment, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    status, answer, _ = deployment.post(f"/_plugins/_ml/{path}", body, deployment.url)
    assert status == 200, answer
    return dict(answer)


def model_on(deployment: Deployment, connector_id: str, name: str = "books") -> str:
    body = {"name": name, "function_name": "remote", "connector_id": connector_id}
    return str(make(deployment, "models/_register?deploy=true", body)["model_id"])


def standalone(deployment: Deployment, request_body: str = OLD) -> tuple[str, str]:
    """Ids of a connector and of a model that uses it."""
    connector_id = make(deployment, "connectors/_create", connector_body(deployment, request_body=request_body))[
        "connector_id"
    ]
    return connector_id, model_on(deployment, connector_id)


def internal(deployment: Deployment) -> str:
    """Id of a model with a connector of its own."""
    body = {"name": "inner", "function_name": "remote", "connector": connector_body(deployment)}
    return str(make(deployment, "models/_register?deploy=true", body)["model_id"])


def flow(deployment: Deployment, model_id: str, name: str = "flow-books", **parameters: str) -> str:
    tool_parameters = {
        "model_id": model_id,
        "prompt": "Human: ${parameters.question}",
        "response_filter": "$.output.message.content[0].text",
        **parameters,
    }
    while True:
        id_ = deployment.register(
            {"name": name, "type": "flow", "tools": [{"type": "MLModelTool", "parameters": tool_parameters}]}
        )
        if not id_.startswith("-"):  # on a command line such an id must follow `--`
            return id_
        del deployment.cluster.core.resources.agents[id_]


def documents_of(deployment: Deployment, *names: str) -> tuple[Documents, list[str]]:
    cluster = cluster_at(deployment.url)
    ids = agent_ids(cluster, names)
    return read_documents(cluster, cluster.version, ids), ids


def offered(deployment: Deployment, *names: str, new_connector: bool = False) -> list[Offer | Refused]:
    documents, ids = documents_of(deployment, *names)
    return offers(documents, ids, TAG, new_connector)


def state(deployment: Deployment) -> dict[str, Any]:
    """Every connector and model of the cluster as it is inside, credentials and all; times are left out."""
    resources = deployment.cluster.core.resources
    found: dict[str, Any] = {"connectors": resources.connectors, "agents": resources.agents}
    found = copy.deepcopy(found)
    found["models"] = {id_: {**resources.model(id_), **_inner(doc)} for id_, doc in resources.models.items()}
    return _timeless(found)


def _inner(model: Mapping[str, Any]) -> dict[str, Any]:
    return {"connector": copy.deepcopy(model["connector"])} if "connector" in model else {}


def _timeless(value: Any) -> Any:
    match value:
        case dict():
            gone = _TIMES | ({"model_id"} if "model_state" in value else set())
            return {name: _timeless(member) for name, member in value.items() if name not in gone}
        case list():
            return [_timeless(item) for item in value]
    return value


def without_parameter(found: Mapping[str, Any]) -> dict[str, Any]:
    """A state without connector parameters that no template uses: what a PUT added stays for ever."""
    copied: dict[str, Any] = copy.deepcopy(dict(found))
    inner = [model["connector"] for model in copied["models"].values() if "connector" in model]
    for connector in [*copied["connectors"].values(), *inner]:
        parameters = connector.get("parameters", {})
        if "${parameters.messages}" in connector["actions"][0]["request_body"]:
            continue
        for name in [name for name, value in ADDED.items() if parameters.get(name) == value]:
            del parameters[name]
    return copied


def llm_body(deployment: Deployment, agent_id: str, question: str = 'say "hi" ${x} ü') -> Any:
    """What the LLM received of a legacy call, as it came."""
    before = len(deployment.cluster.received)
    status, answer, _ = deployment.post(
        f"/_plugins/_ml/agents/{agent_id}/_execute", {"parameters": {"question": question}}, deployment.url
    )
    assert status == 200, answer
    (body,) = deployment.cluster.received[before:]
    return body


def credential_file(**members: Any) -> str:
    """Write a file with a credential, and return its name."""
    file = Path("credential.json")
    file.write_text(json.dumps(members or {"key": SECRET}))
    file.chmod(0o600)
    return str(file)


def only_backup() -> Path:
    """Return the only backup in the current directory."""
    (file,) = Path("mlc-backups").glob("*.json")
    return file
