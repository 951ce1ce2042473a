"""What an agent puts around a question. Found by sending it a harmless word, never by reading its templates.

An agent whose connector takes whole messages is sent messages. Its prompt is then found with a copy of the agent whose
connector sends only the prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.delivery.simulated_cluster import Pairs, SimulatedCluster
from tests.wire_formats import FORMATS

ASKED, HISTORY = "oraclequestionword", "oraclehistoryword"
_ARRAY = re.compile(r'"(messages|contents|content)":\s*\$\{parameters\.(\w+)\}')


class Mismatch(Exception):
    """The LLM received something else; `broken` when the agent's own part of the request suffered."""

    def __init__(self, why: str, broken: bool = False) -> None:
        super().__init__(why)
        self.broken = broken


class Frames:
    """The frames of one cluster's agents, each found once."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self._frames: dict[str, list[Any] | None] = {}
        self._twins: dict[str, str] = {}

    def of(self, name: str, parameters: dict[str, str], pairs: Pairs, flat: bool) -> list[Any] | None:
        """The bodies of all LLM calls for the question `ASKED` (and, if `flat`, the history `HISTORY`)."""
        key = json.dumps([name, parameters, list(pairs), flat])
        if key not in self._frames:
            self._frames[key] = self._find_frame(name, parameters, pairs, flat)
        return self._frames[key]

    def forget(self) -> None:
        """Forget what was found."""
        self._frames.clear()

    def _find_frame(self, name: str, parameters: dict[str, str], pairs: Pairs, flat: bool) -> list[Any] | None:
        cluster, agent_id = self.cluster, self.cluster.agents[name]
        plain = {**parameters, "question": ASKED, **({"chat_history": HISTORY} if flat else {})}
        direct = cluster.ask(agent_id, plain, pairs)
        if direct.status == 200 and ASKED in "".join(direct.llm_bodies[:1]):
            return [parsed(body) for body in direct.llm_bodies]
        if '"prompt"' not in json.dumps(cluster.core.resources.agent(agent_id)):
            prompted = cluster.ask(agent_id, {"prompt": "${parameters.question}", **plain}, pairs)
            if prompted.status == 200 and ASKED in "".join(prompted.llm_bodies[:1]):
                return [parsed(body) for body in prompted.llm_bodies]
        variable, literal = self.array(name)
        if not variable:
            return None
        asked = cluster.ask(agent_id, {**plain, "prompt": "x", variable: literal}, pairs)
        if asked.status != 200 or not asked.llm_bodies:
            return None
        prompts = [parsed(body)["frame"] for body in cluster.ask(self._twin(name), plain, pairs).llm_bodies]
        first = replaced(parsed(asked.llm_bodies[0]), {ASKED: prompts[0] if ASKED in "".join(prompts[:1]) else ASKED})
        return [first, *(later for later in prompts[1:])]

    def array(self, name: str) -> tuple[str, str]:
        """The template's variable for whole messages (or one's content), and a plain question in that form."""
        profile = self.cluster.profile(name)
        found = _ARRAY.search(profile.models[0].connector.request_body)
        if found is None:
            return "", ""
        if not profile.provider:
            return found[2], json.dumps([{"role": "user", "content": ASKED}])
        wire = FORMATS[profile.provider]
        part = wire.text(ASKED)
        turn = {"role": "user", wire.content: [part]}
        return found[2], json.dumps([part] if found[1] == "content" else [turn])

    def _twin(self, name: str) -> str:
        """Register a copy of the agent whose connector sends only its prompt."""
        if name not in self._twins:
            resources = self.cluster.core.resources
            agent = json.loads(json.dumps(resources.agent(self.cluster.agents[name])))
            for model in self.cluster.profile(name).models:
                connector = json.loads(json.dumps(resources.connector(model.connector.id)))
                connector["credential"] = {"key": "not-a-secret"}
                prompt = "inputs" if '"inputs"' in json.dumps(agent) else "prompt"
                connector["actions"][0]["request_body"] = f'{{"frame":"${{parameters.{prompt}}}"}}'
                made = resources.create_connector(connector)
                twin = resources.register_model({"name": f"twin-{name}", "function_name": "remote", **made}, True)
                agent = json.loads(json.dumps(agent).replace(model.id, twin["model_id"]))
            self._twins[name] = resources.register_agent({**agent, "name": f"twin-{name}"})["agent_id"]
        return self._twins[name]


def parsed(body: str) -> Any:
    """Strict JSON: no duplicate names, no NaN."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("duplicate names")
        return dict(pairs)

    def constant(name: str) -> Any:
        raise ValueError(name)

    try:
        return json.loads(body, object_pairs_hook=members, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise Mismatch(f"the LLM received no JSON ({error}): {body[:300]}", broken=True) from None


def replaced(value: Any, texts: Mapping[str, str]) -> Any:
    match value:
        case str():
            for word, text in texts.items():
                value = value.replace(word, text)
            return value
        case dict():
            return {name: replaced(member, texts) for name, member in value.items()}
        case list():
            return [replaced(item, texts) for item in value]
    return value
