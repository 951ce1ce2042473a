"""The proof's own rendering against the recordings: what it foretells is what the model endpoint received."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.agents.documents import read_profile
from gateway.errors import UnresolvedAgent
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.rendering import first_call
from gateway.mlcommons.template import RuntimeValues
from gateway.unified.request import parameters_as_strings

RECORDINGS = Path(__file__).parent.parent / "recordings"
EXECUTE = re.compile(r"/_plugins/_ml/agents/([^/]+)/_execute$")
DOCUMENT = re.compile(r"/_plugins/_ml/(agents|models|connectors)/([^/_][^/]*)$")
AMBIGUOUS = "may or may not count as JSON"

# Recorded with parameters that no plan holds, or stopped by what a rendering can't know.
NOT_OURS = {
    "question_type_null",  # a null question
    "put_method",
    "regenerate_no_memory",
    "deleted_model",
    "llm_down",
    "llm_badhost",
    "agent_framework_disabled",
    "unknown_tool",
    "conv_one_harmless_tool",  # a tool that 2.19 does not know
    "conv_tool_descriptions_overridden",  # the same tool
    "int_auto_",  # another connector is loaded than the documents show
    "swap_auto_",
    "auto_deploy_off",
    "95mb",
    "1100",  # nesting over the limit
    "flow_2tools",  # a tool's output
    "messages_numbers",  # nulls inside an array of the caller's, which 2.19 drops (docs/evidence/facts.md, rule 2)
    "10mb",  # recorded as a hash
}


UNKNOWN = ("<built-in", "built-in prompt", "chars sha256", "<end>")
# Recordings of what a rendering can't know: which connector is loaded, agents without tools, and models whose interface
# refuses an answer.
OTHERS = ("30_deploy", "31_", "32_", "34_", "35_", "38_")


class Documents:
    """What the cluster holds, followed exchange by exchange."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, Any]] = {"agents": {}, "models": {}, "connectors": {}}

    def follow(self, exchange: dict[str, Any]) -> None:
        answer, body = exchange["answer"], exchange["body"]
        if exchange["status"] != 200 or not isinstance(answer, dict):
            return
        place = DOCUMENT.match(exchange["path"].partition("?")[0])
        if exchange["method"] == "GET" and place:
            self.kinds[place[1]][place[2]] = answer
        elif exchange["method"] == "PUT" and place and isinstance(body, dict):
            self._change(place[1], place[2], body)
        elif isinstance(body, dict):
            for kind, name in (("agents", "agent_id"), ("models", "model_id"), ("connectors", "connector_id")):
                if name in answer and (kind != "connectors" or "actions" in body):
                    self.kinds[kind][answer[name]] = body

    def _change(self, kind: str, id_: str, body: dict[str, Any]) -> None:
        document = dict(self.kinds[kind].get(id_, {}))
        if kind == "models" and "connector" in body:
            own = document.get("connector", {})
            parameters = {**own.get("parameters", {}), **body["connector"].get("parameters", {})}
            body = {"connector": {**own, **body["connector"], "parameters": parameters}}
        if kind == "connectors" and "parameters" in body:
            body = {**body, "parameters": {**document.get("parameters", {}), **body["parameters"]}}
        self.kinds[kind][id_] = {**document, **body}


def exchanges(version: str) -> Iterator[dict[str, Any]]:
    for path in sorted((RECORDINGS / version).glob("*.jsonl")):
        if path.name.startswith(OTHERS):
            continue
        for line in path.read_text().split("\n")[:-1]:  # not splitlines: a text may hold U+2028
            yield json.loads(line)


def masked(value: Any) -> Any:
    """Return the body without what can't be predicted: the cluster's own text, its tools, shortened payloads."""
    match value:
        case str():
            return "<cluster>" if any(part in value for part in UNKNOWN) or len(value) > 2000 else value
        case dict():
            members = {"toolConfig", "tools", "parallel_tool_calls"}
            return {name: masked(member) for name, member in value.items() if name not in members}
        case list():
            return [masked(item) for item in value]
    return value


def outcome(documents: Documents, exchange: dict[str, Any], version: tuple[int, ...]) -> str:
    """What the rendering says of a recorded execute, compared with what happened."""
    parameters = {name: value for name, value in exchange["body"]["parameters"].items() if value is not None}
    agent_id = EXECUTE.match(exchange["path"])[1]  # type: ignore[index]
    try:
        agent = documents.kinds["agents"][agent_id]
        profile = read_profile(agent_id, agent, documents.kinds["models"], documents.kinds["connectors"], version)
        body = first_call(profile, parameters_as_strings(parameters), RuntimeValues())
    except (KeyError, UnresolvedAgent):
        return "agent not readable"
    except RenderFailure as failure:
        if AMBIGUOUS in str(failure):
            return "not predicted"  # refused rather than guessed
        return "refused by both" if not exchange["llm"] else f"sent, though the rendering fails: {failure}"
    if not exchange["llm"]:
        return f"refused with {exchange['status']}, though the rendering succeeds"
    received = exchange["llm"][0]
    received = received["body"] if isinstance(received, dict) and "path" in received else received
    return "equal" if masked(body) == masked(received) else f"different: {masked(body)} instead of {masked(received)}"


@pytest.mark.parametrize(("version", "at_least"), [("2.19.0", 400), ("3.4.0", 100)])
def test_the_rendering_foretells_every_recorded_call(version: str, at_least: int) -> None:
    documents, seen, wrong = Documents(), Counter[str](), []
    for exchange in exchanges(version):
        documents.follow(exchange)
        body = exchange["body"]
        asked = body.get("parameters") if isinstance(body, dict) else None
        if not EXECUTE.match(exchange["path"]) or not isinstance(asked, dict) or "question" not in asked:
            continue
        if "memory_id" in asked or any(part in exchange["name"] for part in NOT_OURS):
            continue
        found = outcome(documents, exchange, tuple(map(int, version.split("."))))
        seen[found.partition(":")[0]] += 1
        if found not in ("equal", "not predicted", "refused by both", "agent not readable"):
            wrong.append(f"{exchange['name']}: {found[:300]}")
    print(version, dict(seen))
    assert not wrong, "\n".join(wrong)
    assert seen["equal"] >= at_least
    assert seen["not predicted"] <= seen["equal"] // 5
