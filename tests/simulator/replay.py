"""Replays recorded exchanges with the simulator's core, and reports differences.

Ids are mapped as they appear. Times, versions and sequence numbers are not compared, nor is what the recordings leave
out: the texts of prompts built into the cluster, and the output of tools that list indices. The files of the first
round (numbers below 30, and 3.4.0) were recorded on one cluster a version, so they share one core; each later file has
a core of its own.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.simulator.core import ClusterCore
from gateway.simulator.errors import NoAnswer
from gateway.simulator.handlers import Pause, Request
from gateway.simulator.llm.endpoints import provider_of
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.simulator.rest import Response, Serve, respond
from gateway.simulator.settings import UNIFIED_API
from gateway.simulator.store import NODE
from tests.simulator.comparison import same, same_body, short

RECORDINGS = Path(__file__).parent.parent / "recordings"
_ID = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{20}(?![A-Za-z0-9_-])")
_TABLE = "<list of indices>"
_VENDORS = {"bedrock": "bedrock", "api.openai": "openai", "generativelanguage": "gemini"}
"""How the vendors' hosts begin, and where the endpoint of the recordings has their APIs."""
_NODES = dict.fromkeys(("4pEMeo9RTLew_asIs3v9Nw", "96h3vge0SsWz6TgrXs9bXA", "xo8X6P9QT1-fxQbMUqIKbA"), NODE)


@dataclass
class Outcome:
    """The result of one exchange. problem: "" if both agree."""

    file: str
    name: str
    kind: str
    problem: str = ""
    excluded: str = ""


@dataclass
class Replay:
    """Replays the exchanges of one recorded cluster in order."""

    core: ClusterCore
    ids: dict[str, str] = field(default_factory=lambda: dict(_NODES))
    sent: list[LlmRequest] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.core.resources.clock = lambda: self.now

    def run(self, file: Path) -> Iterator[Outcome]:
        for line in file.read_text().rstrip("\n").split("\n"):
            exchange = json.loads(line)
            excluded = _excluded(exchange)
            outcome = Outcome(file.stem, exchange["name"], _kind(exchange["path"]), excluded=excluded)
            if not excluded or excluded in (_SEARCH, _OTHER, _SETUP):
                problem = self._replay(exchange)  # also if it is not compared, for its effects
                assert not problem or excluded != _SETUP, problem
                outcome.problem = "" if excluded else problem
            self.now += exchange.get("seconds", 0)
            yield outcome

    def _replay(self, exchange: dict[str, Any]) -> str:
        if "burst" in exchange:
            return self._replay_burst(exchange)
        answers = list(_answers(exchange))
        self.sent = []
        try:
            response = self._respond(self._request(exchange), answers)
            self.core.store_errors()
        except NoAnswer:
            return "" if exchange["status"] is None else f"no answer instead of {exchange['status']}"
        if exchange["status"] is None:
            return f"status {response.status} instead of no answer"
        self._learn(exchange["answer"], response.body)
        if exchange.get("redirected"):
            self._redirect(response.body["agent_id"])
        if exchange.get("setup"):
            return "" if response.status == 200 else f"setup failed: {response.body}"
        if response.status != exchange["status"]:
            return f"status {response.status} instead of {exchange['status']}: {response.body}"
        expected, actual = self._mapped(exchange["answer"]), response.body
        if not same(expected, "" if actual is None else actual):
            return f"answer {short(actual)} instead of {short(expected)}"
        calls = exchange.get("llm_calls", len(exchange["llm"]))
        if len(self.sent) != calls:
            return f"{len(self.sent)} model calls instead of {calls}"
        return self._compare_llm(exchange["llm"])

    def _redirect(self, agent_id: str) -> None:
        """Point the connector that was made for an agent to the endpoint of the recordings."""
        resources = self.core.resources
        model_id = resources.agents[agent_id]["llm"]["model_id"]
        [action] = resources.model(model_id)["connector"]["actions"]
        for host, place in _VENDORS.items():
            action["url"] = re.sub(rf"^https://{host}[^/]*", f"http://llm/{place}", action["url"])
        resources.update_model(model_id, {"connector": {"actions": [action]}})

    def _replay_burst(self, exchange: dict[str, Any]) -> str:
        """Send requests at once of which the recording holds one or two. Compare how many had which status.

        ``unique`` in the name: each had another number at the end of its model's name.
        """
        if not exchange["name"].endswith("concurrent_0"):
            return ""  # it was sent with the one before it
        serving = []
        for number in range(sum(exchange["burst"].values())):
            body = dict(exchange["body"])
            if "unique" in exchange["name"]:
                body["name"] = f"{body['name'].removesuffix('0')}{number}"
            serving.append(respond(self.core, self._request({**exchange, "body": body})))
        paused = [next(serve) for serve in serving]
        assert all(isinstance(one, Pause) for one in paused)
        found = [_ended(serve) for serve in serving]
        self._learn(exchange["answer"], next(one.body for one in found if one.status == exchange["status"]))
        statuses = Counter(str(one.status) for one in found)
        return "" if statuses == exchange["burst"] else f"statuses {statuses} instead of {exchange['burst']}"

    def _request(self, exchange: dict[str, Any]) -> Request:
        body = exchange["body"]
        text = "" if body is None else body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
        return Request(
            exchange["method"], self._known(exchange["path"]), exchange["headers"], self._known(text).encode()
        )

    def _respond(self, request: Request, answers: list[str | LlmReply]) -> Response:
        serve = respond(self.core, request)
        try:
            call = next(serve)
            while True:
                if isinstance(call, Pause):
                    call = serve.send(None)
                    continue
                reply = _reply(call, answers[min(len(self.sent) + 1, len(answers)) - 1])
                # A model that is down does not receive the call.
                self.sent += [] if "refused" in (reply.failure or "") else [call]
                call = serve.send(reply)
        except StopIteration as end:
            response: Response = end.value
            return response

    def _compare_llm(self, recorded: list[Any]) -> str:
        for expected, call in zip(recorded, self.sent, strict=False):
            if isinstance(expected, dict) and set(expected) == {"path", "body"}:
                if expected["path"] and urlsplit(call.url).path != expected["path"]:
                    return f"the model's path {call.url} instead of {expected['path']}"
                expected = expected["body"]
            if not same_body(self._mapped(expected), call.body):
                return f"the model got {short(call.body)} instead of {short(expected)}"
        return ""

    def _learn(self, recorded: Any, actual: Any) -> None:
        """Map each recorded id to the simulated one."""
        if isinstance(recorded, dict) and isinstance(actual, dict):
            for name in recorded.keys() & actual.keys():
                self._learn(recorded[name], actual[name])
        elif isinstance(recorded, list) and isinstance(actual, list):
            for one, other in zip(recorded, actual, strict=False):
                self._learn(one, other)
        elif isinstance(recorded, str) and isinstance(actual, str) and _ID.sub("", recorded) == _ID.sub("", actual):
            for one, other in zip(_ID.findall(recorded), _ID.findall(actual), strict=False):
                self.ids.setdefault(one, other)

    def _known(self, text: str) -> str:
        return re.sub(r"[A-Za-z0-9_-]{20,22}", lambda match: self.ids.get(match.group(), match.group()), text)

    def _mapped(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._known(value)
        if isinstance(value, list):
            return [self._mapped(item) for item in value]
        if isinstance(value, dict):
            return {self._known(name): self._mapped(item) for name, item in value.items()}
        return value


def _ended(serve: Serve) -> Response:
    """Return the response of a request that waits for others."""
    try:
        serve.send(None)
    except StopIteration as end:
        response: Response = end.value
        return response
    raise AssertionError("it waits again")


def _kind(path: str) -> str:
    if "/_execute" in path:
        return "execute"
    match = re.match(r"/_plugins/_ml/(connectors|model_groups|models|agents|memory)", path)
    return match.group(1) if match else "other"


_SEARCH = "scores and order of a search"
_OTHER = "not an API of connectors, models, agents or memory"
_SETUP = "registered before the recording began"


def _excluded(exchange: dict[str, Any]) -> str:
    """Return why an exchange is not compared; "" if it is."""
    path, request = exchange["path"], json.dumps(exchange["body"])
    if exchange.get("setup"):
        return _SETUP
    if re.search(r"chars sha256 [0-9a-f]{64}", request):
        return "the recording holds only a part of the body"
    if exchange["body"] is None and exchange["name"].startswith(("body_10", "cflow_d_question_", "conv_d_question_")):
        return "the recording holds only a part of the body"
    if path.endswith("/_search"):
        return _SEARCH
    if "Auto-generated" in json.dumps(exchange["answer"]) and exchange["answer"].get("model_state") != "REGISTERED":
        return "the state of a model whose first use was not replayed"
    if "deepseek" in exchange["name"]:
        return "an `_llm_interface` that is not simulated"
    if "UnknownHostException" in json.dumps(exchange["answer"]):
        return "a name server's failure"
    if not path.startswith("/_plugins/_ml/") or "/tasks/" in path:
        return _OTHER
    return ""


def _answers(exchange: dict[str, Any]) -> Iterator[str | LlmReply]:
    """Yield the model's answers in a recording, derived from their effects: texts or whole replies."""
    bodies = [body["body"] if isinstance(body, dict) and "path" in body else body for body in exchange["llm"]]
    for following in bodies[1:]:
        yield _earlier(following, bodies)
    yield _last(exchange)


def _earlier(following: Any, bodies: list[Any]) -> str | LlmReply:
    """Return the answer that led to the next call, derived from that call."""
    text = json.dumps(following, ensure_ascii=False)
    messages = following.get("messages", []) if isinstance(following, dict) else []
    result = re.search(r"<step-1-result>\\n(.*?)\\n<step-traces>", text)
    if result:
        return result.group(1)
    if "do the only step" in text:
        return '{"steps":["do the only step"]}'
    if len(messages) > 1 and "tool" in json.dumps(messages[-1]):
        return _completion_with(messages[-2])
    asked = re.findall(r"\[asked\] (.*?)\n\[tool\]", _first_text(following), re.DOTALL)
    return str(asked[-1])


def _completion_with(message: dict[str, Any]) -> LlmReply:
    if isinstance(message["content"], list):
        body: dict[str, Any] = {"output": {"message": message}, "stopReason": "tool_use"}
        body |= {"usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}, "metrics": {"latencyMs": 5}}
    else:
        body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    return LlmReply(200, json.dumps(body))


def _tool_use(text: str) -> LlmReply:
    call = {"toolUse": {"toolUseId": "call_1", "name": "ListIndexTool", "input": {}}}
    return _completion_with({"role": "assistant", "content": [{"text": text}, call]})


def _first_text(body: Any) -> str:
    if isinstance(body, str):
        return body
    if isinstance(body, list):
        return next(filter(None, map(_first_text, body)), "")
    if isinstance(body, dict):
        return next((text for text in map(_first_text, body.values()) if "[asked]" in text), "")
    return ""


def _last(exchange: dict[str, Any]) -> str | LlmReply:
    answer = exchange["answer"]
    if exchange["status"] != 200:
        error = answer.get("error") if isinstance(answer, dict) else None
        details = error.get("details", "") if isinstance(error, dict) else ""
        if details.startswith("Error from remote service: "):
            return LlmReply(exchange["status"], details.removeprefix("Error from remote service: "))
        if details.startswith("Error communicating with remote model: "):
            return LlmReply(0, "", failure=details.removeprefix("Error communicating with remote model: "))
        if details.startswith("Error validating output schema: "):
            instance = json.JSONDecoder().raw_decode(details.partition(" for instance: ")[2])[0]
            text = instance["inference_results"][0]["output"][0]["dataAsMap"]["response"]
            return text if isinstance(text, str) else LlmReply(200, json.dumps(text))
        if details.startswith("parseToUnifiedMessage"):
            return details
        return LlmReply(200, "{}" if "Missing property" in details else "plain text, no JSON")
    if isinstance(answer, dict) and "stop_reason" in answer:
        text: str = answer["message"]["content"][0]["text"]
        return _tool_use(text) if answer["stop_reason"] == "max_iterations" else text
    if not isinstance(answer, dict) or "inference_results" not in answer:
        return str(answer)
    tensor = answer["inference_results"][0]["output"][-1]
    data = tensor.get("dataAsMap", {})
    text = data.get("response", tensor.get("result", ""))
    if "output" in data:
        return LlmReply(200, json.dumps(data))
    if isinstance(text, str) and text.startswith(('{"output"', '{"type":"completion"')):
        return LlmReply(200, text)
    # Only a planner's answer names no further information.
    if exchange["llm"] and text == "PER final result":
        return json.dumps({"result": text})
    return str(text)


def _reply(call: LlmRequest, answer: str | LlmReply) -> LlmReply:
    if isinstance(answer, LlmReply):
        return answer
    try:
        body = json.loads(call.body)
    except ValueError:
        body = None
    provider = provider_of(urlsplit(call.url).path, body)
    assert provider is not None, call.url
    return LlmReply(200, json.dumps(provider.answer(answer)))


def files(version: str) -> list[list[Path]]:
    """Return the recordings of a version, in order; each list was recorded on one cluster."""
    found = sorted((RECORDINGS / version).glob("*.jsonl"))
    first = [file for file in found if not _is_later(file)]
    return [*([first] if first else []), *([file] for file in found if _is_later(file))]


def _is_later(file: Path) -> bool:
    number = re.match(r"(\d+)_", file.name)
    return number is not None and int(number.group(1)) >= 30


def replay(version: str, recorded: list[Path]) -> list[Outcome]:
    """Replay the recordings of one cluster in order."""
    core = ClusterCore(version)
    core.tool_outputs = {"CatIndexTool": _TABLE, "ListIndexTool": _TABLE}
    # The 3.x models of the first round were read before they were deployed.
    core.resources.deploy_seconds = 60 if core.modern and not _is_later(recorded[0]) else 0
    if _is_later(recorded[0]):
        core.resources.refresh_seconds = 1
    if UNIFIED_API in core.settings.defaults:
        core.settings.change({"persistent": {UNIFIED_API: True}})
    session = Replay(core)
    return [outcome for file in recorded for outcome in session.run(file)]
