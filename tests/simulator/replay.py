"""Replays recorded exchanges with the simulator's core, and reports differences.

Ids are mapped as they appear. Times, versions and sequence numbers are not compared, nor is what the recordings leave
out: the texts of prompts built into the cluster, and the output of tools that list indices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.simulator.core import ClusterCore
from gateway.simulator.handlers import Request
from gateway.simulator.llm.endpoints import provider_of
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.simulator.rest import Response, respond
from gateway.simulator.store import NODE

RECORDINGS = Path(__file__).parent.parent / "recordings"
_ID = re.compile(r"[A-Za-z0-9_-]{20}")
_VARYING = frozenset(
    {"created_time", "last_updated_time", "last_deployed_time", "create_time", "updated_time", "took"}
    | {"_version", "_seq_no", "_primary_term"}
    # A model's version counts the earlier models of its name, which the recordings do not show.
    | {"model_version"}
)
_WITHHELD = "<built-in prompt of the cluster>"
_TABLE = "<list of indices>"


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
    ids: dict[str, str] = field(default_factory=lambda: {"4pEMeo9RTLew_asIs3v9Nw": NODE})
    sent: list[LlmRequest] = field(default_factory=list)

    def run(self, file: Path) -> Iterator[Outcome]:
        for line in file.read_text().rstrip("\n").split("\n"):
            exchange = json.loads(line)
            excluded = _excluded(exchange)
            outcome = Outcome(file.stem, exchange["name"], _kind(exchange["path"]), excluded=excluded)
            if not excluded or excluded in (_SEARCH, _OTHER):
                problem = self._replay(exchange)  # also if it is not compared, for its effects
                outcome.problem = "" if excluded else problem
            yield outcome

    def _replay(self, exchange: dict[str, Any]) -> str:
        answers = list(_answers(exchange))
        self.sent = []
        response = self._respond(self._request(exchange), answers)
        self._learn(exchange["answer"], response.body)
        if response.status != exchange["status"]:
            return f"status {response.status} instead of {exchange['status']}: {response.body}"
        expected, actual = self._mapped(exchange["answer"]), response.body
        if not _same(expected, "" if actual is None else actual):
            return f"answer {_short(actual)} instead of {_short(expected)}"
        return self._compare_llm(exchange["llm"])

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
                reply = _reply(call, answers[min(len(self.sent) + 1, len(answers)) - 1])
                # A model that is down does not receive the call.
                self.sent += [] if "refused" in (reply.failure or "") else [call]
                call = serve.send(reply)
        except StopIteration as end:
            response: Response = end.value
            return response

    def _compare_llm(self, recorded: list[Any]) -> str:
        if len(recorded) != len(self.sent):
            return f"{len(self.sent)} model calls instead of {len(recorded)}"
        for expected, call in zip(recorded, self.sent, strict=True):
            if isinstance(expected, dict) and set(expected) == {"path", "body"}:
                if urlsplit(call.url).path != expected["path"]:
                    return f"the model's path {call.url} instead of {expected['path']}"
                expected = expected["body"]
            if not _same_body(self._mapped(expected), call.body):
                return f"the model got {_short(call.body)} instead of {_short(expected)}"
        return ""

    def _learn(self, recorded: Any, actual: Any) -> None:
        """Map each recorded id to the simulated one."""
        if isinstance(recorded, dict) and isinstance(actual, dict):
            for name in recorded.keys() & actual.keys():
                self._learn(recorded[name], actual[name])
        elif isinstance(recorded, list) and isinstance(actual, list):
            for one, other in zip(recorded, actual, strict=False):
                self._learn(one, other)
        elif (
            isinstance(recorded, str) and isinstance(actual, str) and _ID.fullmatch(recorded) and _ID.fullmatch(actual)
        ):
            self.ids.setdefault(recorded, actual)

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


def _kind(path: str) -> str:
    if "/_execute" in path:
        return "execute"
    match = re.match(r"/_plugins/_ml/(connectors|models|agents|memory)", path)
    return match.group(1) if match else "other"


_SEARCH = "scores and order of a search"
_OTHER = "not an API of connectors, models, agents or memory"


def _excluded(exchange: dict[str, Any]) -> str:
    """Return why an exchange is not compared; "" if it is."""
    path, request = exchange["path"], json.dumps(exchange["body"])
    if re.search(r"chars sha256 [0-9a-f]{64}", request):
        return "the recording holds only a part of the body"
    if exchange["body"] is None and exchange["name"].startswith(("body_10", "cflow_d_question_", "conv_d_question_")):
        return "the recording holds only a part of the body"
    if path.endswith("/_search"):
        return _SEARCH
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
        return LlmReply(200, "{}" if "Missing property" in details else "plain text, no JSON")
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


def _same(expected: Any, actual: Any) -> bool:
    if isinstance(expected, dict) and isinstance(actual, dict):
        names = expected.keys() - _VARYING
        if names != actual.keys() - _VARYING:
            return False
        return all(_same(expected[name], actual[name]) for name in names)
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(_same, expected, actual))
    if isinstance(expected, str) and isinstance(actual, str):
        return _same_text(expected, actual)
    return type(expected) is type(actual) and expected == actual


def _same_text(expected: str, actual: str) -> bool:
    """Compare texts without built-in texts that the recordings leave out."""
    actual = _without_own_words(actual)
    if expected == actual:
        return True
    shown, withheld, rest = expected.partition(_WITHHELD)
    return bool(withheld) and actual.startswith(shown) and (not rest or actual.endswith(rest))


def _without_own_words(text: str) -> str:
    """Reduce the simulator's built-in prompt to what a recording shows of it."""
    for line in ("\n", "\\n"):
        mark = re.escape(line)
        begin = rf"(<built-in prompt of the agent>{mark})\[role of the agent\].*?{mark}(\[question\] )"
        text = re.sub(begin, r"\1\2", text, flags=re.DOTALL)
    return text


def _same_body(expected: Any, sent: str) -> bool:
    if isinstance(expected, str) and "".join(expected.split()) == "".join(sent.split()):
        return True  # text, or JSON nested too deeply to be walked
    try:
        actual = json.loads(sent)
    except ValueError:
        return isinstance(expected, str) and _same_text(expected, sent)
    if isinstance(expected, str):
        expected = json.loads(expected)
    return _same(expected, actual)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) < 600 else text[:600] + "…"


def replay(version: str) -> list[Outcome]:
    """Replay every recorded exchange of a version, in the order of its files."""
    core = ClusterCore(version)
    core.tool_outputs = {"CatIndexTool": _TABLE, "ListIndexTool": _TABLE}
    # The recorded 3.x models were read before they were deployed.
    core.resources.deploy_seconds = 60 if core.modern else 0
    session = Replay(core)
    return [outcome for file in sorted((RECORDINGS / version).glob("*.jsonl")) for outcome in session.run(file)]
