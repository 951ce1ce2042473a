"""Exchanges as they are recorded, for tests and pictures of the page."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gateway.demo
from gateway.observe.record import (
    Body,
    Delivery,
    ExchangeRecord,
    HttpMessage,
    RecordedError,
    RecordedProblem,
    Step,
    Usage,
)
from gateway.recording.records import summarized
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import TargetWeight

UPGRADE = "upgrade the agent with mlc-gateway upgrade Zk81support"
PICTURE = (Path(gateway.demo.__file__).parent / "assets" / "visitors.png").read_bytes()
PICTURE_HASH = hashlib.sha256(PICTURE).hexdigest()
MARK = f"[MEDIA type=image/png length={len(PICTURE)} sha256={PICTURE_HASH}]"
QUESTION = "How many people visited the museum in March?"
ANSWER = "The chart shows 1,200 visitors in March, the most of the quarter."
JSON_HEADERS = (("Host", "127.0.0.1:9209"), ("Content-Type", "application/json"), ("User-Agent", "opensearch-py/3.2.0"))
AGENTS = {"museum-guide": "flow", "support-desk": "conversational", "planner": "plan_execute_and_reflect"}
_SLOT = [{"role": "user", "content": [{"text": QUESTION}, {"image": {"format": "png", "source": {"bytes": MARK}}}]}]


def message(document: Any, headers: tuple[tuple[str, str], ...] = JSON_HEADERS) -> HttpMessage:
    text = document if isinstance(document, str) else json.dumps(document)
    return HttpMessage(headers, Body(len(text), text))


def image_request(number: int = 1, started: float = 1_760_000_000.0, **values: Any) -> ExchangeRecord:
    """A run with text and an image, which the gateway put into the connector's parameter for messages."""
    unified = {
        "input": [
            {"type": "text", "text": QUESTION},
            {"type": "image", "source": {"type": "base64", "format": "png", "data": MARK}},
        ]
    }
    cluster = {"parameters": {"question": QUESTION, "messages": json.dumps(_SLOT)}}
    llm = {"system": [{"text": "Answer in one sentence."}], "messages": _SLOT}
    answer = {"inference_results": [{"output": [{"name": "response", "result": ANSWER}]}]}
    fields: dict[str, Any] = {
        "id": f"image-{number}",
        "started": started,
        "seconds": 1.284,
        "method": "POST",
        "target": "/_plugins/_ml/agents/Xq3vD5kBmuseum/_execute",
        "intent": "execute",
        "status": 200,
        "worker": 4711,
        "connection": number % 9,
        "client": "10.4.0.17",
        "user_agent": "opensearch-py/3.2.0 (Python 3.12.4)",
        "agent_id": "Xq3vD5kBmuseum",
        "waited": 1.231,
        "delivery": Delivery(
            agent_name="museum-guide",
            type="flow",
            generation="3.x",
            provider="bedrock/converse",
            model="anthropic.claude-sonnet-4",
            strategy="wrap",
            input_type="content_blocks",
            notices=("SYSTEM_FOLDED",),
        ),
        "usage": Usage(1840, 22, 0.00585, "USD"),
        "conversation": f"gws-{number // 16}",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "steps": (
            Step("decode", 0.0, 0.004),
            Step("resolve", 0.004, 0.021),
            Step("plan", 0.025, 0.028),
            Step("upstream", 0.053, 1.224),
            Step("answer", 1.277, 0.007),
        ),
        "request": message(unified),
        "forwarded": message(cluster),
        "rendered": json.dumps(llm),
        "response": message(answer),
        "answered": message(
            {"stop_reason": "end_turn", "message": {"role": "assistant", "content": [{"text": ANSWER}]}}
        ),
    }
    return summarized(ExchangeRecord(**{**fields, **values}))


def refused(number: int, started: float) -> ExchangeRecord:
    problem = RecordedProblem("MEDIA_NEEDS_UPGRADE", "input[1].source", "this agent's connector has no place for media")
    error = RecordedError("UndeliverableContent", f"[input[1].source] {problem.reason}", (problem,))
    body = {"error": {"type": error.type, "reason": error.reason, "help": UPGRADE}, "status": 400}
    return image_request(
        number,
        started,
        id=f"refused-{number}",
        status=400,
        seconds=0.0063,
        waited=None,
        agent_id="Zk81support",
        target="/_plugins/_ml/agents/Zk81support/_execute",
        error=error,
        usage=None,
        conversation="",
        forwarded=None,
        rendered="",
        response=None,
        answered=message(body),
        steps=(Step("decode", 0.0, 0.001), Step("resolve", 0.001, 0.002), Step("plan", 0.003, 0.003)),
        delivery=Delivery("support-desk", "conversational", "2.x", "openai/chat", "gpt-4o", "", "content_blocks"),
    )


def legacy(number: int, started: float) -> ExchangeRecord:
    body = {"parameters": {"question": "Where is my parcel?"}}
    return image_request(
        number,
        started,
        id=f"legacy-{number}",
        seconds=0.84,
        user_agent="Apache-HttpClient/5.3 (Java/17)",
        agent_id="Zk81support",
        target="/_plugins/_ml/agents/Zk81support/_execute",
        request=message(body),
        forwarded=None,
        rendered="",
        answered=None,
        response=message(
            {"inference_results": [{"output": [{"name": "response", "result": "Your parcel is in Hamburg."}]}]}
        ),
        usage=None,
        conversation=f"memory-{number // 16}",
        delivery=Delivery("support-desk", "conversational", "2.x", "openai/chat", "gpt-4o", "", "question"),
    )


def passed(number: int, started: float) -> ExchangeRecord:
    return ExchangeRecord(
        id=f"passed-{number}",
        started=started,
        seconds=0.0041,
        method="GET",
        target="/_cat/indices?format=json&h=index,docs.count",
        intent="passthrough",
        status=200,
        client="10.4.0.9",
        user_agent="curl/8.5.0",
        waited=0.0037,
        request=HttpMessage(
            (("Host", "127.0.0.1:9209"), ("Authorization", "[REDACTED length=18 sha256=0f1e2d3c4b5a]"))
        ),
    )


ROUTE, NEW_AGENT, NEW_CLUSTER = "Zk81support", "Bn52support", "new"
NEW_ANSWER = "Your parcel is in Hamburg. It arrives on Friday."


def routed(number: int, started: float, is_new: bool, **values: Any) -> ExchangeRecord:
    """A run of a route from an old agent to a new one, on another cluster."""
    result = NEW_ANSWER if is_new else "Your parcel is in Hamburg."
    name, cluster, model = ("support-desk-2", NEW_CLUSTER, "gpt-5") if is_new else ("support-desk", "", "gpt-4o")
    calls = {"model": model, "messages": [{"role": "user", "content": "Where is my parcel?"}]}
    fields: dict[str, Any] = {
        "id": f"{'new' if is_new else 'old'}-{number}",
        "seconds": (1.4 if is_new else 0.9) * (0.6 + number % 9 / 10),
        "agent_id": NEW_AGENT if is_new else ROUTE,
        "target": f"/_plugins/_ml/agents/{ROUTE}/_execute",
        "route": ROUTE,
        "cluster": cluster,
        "request": message({"input": "Where is my parcel?"}),
        "forwarded": message({"parameters": {"question": "Where is my parcel?"}}),
        "rendered": json.dumps(calls),
        "answered": None,
        "response": message({"inference_results": [{"output": [{"name": "response", "result": result}]}]}),
        "usage": Usage(420, 61, 0.0021, "USD") if is_new else Usage(400, 48, 0.0034, "USD"),
        "conversation": f"gws-route-{number // 2}",
        "delivery": Delivery(name, "conversational", "2.x", "openai/v1/chat/completions", model, "text", "text"),
    }
    return image_request(number, started, **{**fields, **values})


def migration(until: float, seconds: float, count: int = 120) -> list[ExchangeRecord]:
    """`count` runs of a route whose weights go from 0 to 5 and 50 percent, by thirds of the time, and some mirrors."""
    found = []
    failure = message({"error": {"type": "status_exception", "reason": "the LLM is busy"}, "status": 502})
    for number in range(count):
        started = until - seconds + seconds * (number + 0.5) / count
        third, turn = 3 * number // count, number // 2
        is_new = (third == 1 and turn % 10 == 0) or (third == 2 and turn % 2 == 0)
        original = routed(number, started, is_new)
        if number % 30 == 25:
            answered = message(
                {"error": {"type": "UndeliverableContent", "reason": "no place for media"}, "status": 400}
            )
            problem = RecordedProblem(
                "MEDIA_NEEDS_UPGRADE", "input[1]", "this agent's connector has no place for media"
            )
            error = RecordedError("UndeliverableContent", f"[input[1]] {problem.reason}", (problem,))
            refusal: dict[str, Any] = {"status": 400, "error": error, "answered": answered, "usage": None}
            original = routed(number, started, True, response=None, rendered="", forwarded=None, **refusal)
        elif number % 40 == 8:
            original = routed(number, started, is_new, status=502, response=failure, usage=None)
        found.append(original)
        if third == 0 and number % 4 == 0:
            answer: dict[str, Any] = {"status": 502, "response": failure, "usage": None} if number % 16 == 4 else {}
            copy = routed(
                number, started + 2, True, id=f"mirror-{number}", mirror_of=original.id, conversation="", **answer
            )
            found.append(copy)
    return found


def weights(until: float, seconds: float) -> list[tuple[float, dict[str, list[TargetWeight]]]]:
    """The weights of the route of `migration`, with the times since when they were in force."""
    return [
        (
            until - seconds * rest,
            {ROUTE: [TargetWeight(ROUTE, "", 100.0 - new), TargetWeight(NEW_AGENT, NEW_CLUSTER, new)]},
        )
        for rest, new in ((1.2, 0.0), (2 / 3, 5.0), (1 / 3, 50.0))
    ]


def mixed(count: int, until: float, seconds: float) -> list[ExchangeRecord]:
    """`count` exchanges of all kinds, oldest first, over so many seconds."""
    kinds = (image_request, legacy, passed, image_request, passed, refused, image_request, passed)
    first = until - seconds
    return [kinds[n % len(kinds)](n, first + seconds * (n + 1) / count) for n in range(count)]


def keep_migration(store: SqliteStore, until: float, seconds: float, count: int = 120) -> None:
    """Store what `migration` and `weights` give."""
    for at, in_force in weights(until, seconds):
        store.note_weights(at, in_force)
    store.add(migration(until, seconds, count))
