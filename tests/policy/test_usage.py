"""What runs used: read from recorded answers, counted, priced, and shown in the header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gateway.config.policy import Price
from gateway.execute.deliveries import describe_delivery
from gateway.execute.run_answer import read_answer
from gateway.execute.run_events import read_usage, recorded_usage
from gateway.memory.model import Usage as Tokens
from gateway.observe.metrics import MOST_MODELS, UsageMetrics
from gateway.observe.record import Delivery, Usage
from gateway.policy.usage import Cost, Llm, Prices, header_value
from tests.agents.recorded import profile_of
from tests.execute.stub_cluster import FLOW, V1, V2
from tests.execute.test_answers import CALLING, STREAMS, without_filter
from tests.execute.test_answers import FLOW as FLOW_AGENT
from tests.policy.conftest import RAN, Start, v2_answer

RECORDINGS = Path(__file__).parents[1] / "recordings"
REPORTED = {
    "per_turn_usage": [{"turn": 1, "model_id": "m", "input_tokens": 1042, "output_tokens": 69, "total_tokens": 1111}],
    "per_model_usage": [
        {"model_id": "m", "call_count": 1, "input_tokens": 1042, "output_tokens": 69, "cache_read_input_tokens": 5},
        {"model_id": "n", "call_count": 2, "input_tokens": 8.0, "output_tokens": 1.0, "total_tokens": 9.0},
    ],
}
PLAIN = {"Accept-Encoding": "identity"}  # a compressed answer is read in a thread, after the client has it
MODEL = "us.anthropic.claude-3-7-sonnet-20250219-v1:0"


def recorded_totals() -> dict[str, Any]:
    """Every recorded answer of a V2 agent."""
    found = {}
    for file in sorted(RECORDINGS.rglob("*.jsonl")):
        for record in map(json.loads, file.read_text("utf-8").strip().split("\n")):
            answer = record.get("answer")
            body = answer.get("body", answer) if isinstance(answer, dict) else None
            if isinstance(body, dict) and "metrics" in body:
                found[f"{file} {record['name']}"] = body
    return found


def test_every_recorded_total_is_read() -> None:
    answers = recorded_totals()
    assert len(answers) > 20
    for name, body in answers.items():
        total = body["metrics"]["total_usage"]
        expected = Tokens(total["inputTokens"], total["outputTokens"], total["totalTokens"]) if total else None
        assert read_usage(None, json.dumps(body).encode(), False) == expected, name


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_recorded_streams_report_nothing(name: str) -> None:
    assert read_usage(CALLING, STREAMS[name].encode(), True) is None


def legacy(*outputs: Any) -> bytes:
    return json.dumps({"inference_results": [{"output": list(outputs)}]}).encode()


@pytest.mark.parametrize("position", [0, 1])
def test_the_output_token_usage_is_no_part_of_the_answer(position: int) -> None:
    outputs: list[Any] = [{"name": "memory_id", "result": "m"}, {"name": "response", "dataAsMap": {"response": "hi"}}]
    outputs.insert(1 + position, {"name": "token_usage", "dataAsMap": REPORTED})
    answer = read_answer(profile_of("3.4.0", "oa_conv_up"), legacy(*outputs))
    assert (answer.text, answer.usage) == ("hi", Tokens(1050, 70, 1120))


def test_bedrocks_cached_tokens_are_input() -> None:
    body = legacy({"name": "token_usage", "dataAsMap": REPORTED}, {"name": "response", "result": "hi"})
    assert read_usage(CALLING, body, False) == Tokens(1055, 70, 1125)


@pytest.mark.parametrize(
    "broken", [{}, {"input_tokens": 1}, {"input_tokens": "1", "output_tokens": 2}, {"output_tokens": 2}]
)
def test_a_part_that_is_not_reported_makes_all_of_it_unknown(broken: Any) -> None:
    models = [*REPORTED["per_model_usage"], broken]
    assert read_usage(CALLING, legacy({"name": "token_usage", "dataAsMap": {"per_model_usage": models}}), False) is None


def test_a_stream_reports_what_its_event_token_usage_says() -> None:
    events = [legacy({"name": "response", "dataAsMap": {"content": "hi", "is_last": False}})]
    events.append(legacy({"name": "memory_id", "result": "m"}, {"name": "token_usage", "dataAsMap": REPORTED}))
    events.append(legacy({"name": "response", "dataAsMap": {"content": "", "is_last": True}}))
    stream = b"".join(b"data: %b\n\n" % event for event in events)
    profile = profile_of("3.4.0", "oa_conv_up")
    assert read_usage(profile, stream, True) == Tokens(1050, 70, 1120)
    assert read_usage(None, stream[:100], True) is None


def test_a_flow_that_shows_the_llms_response_reports_its_tokens() -> None:
    lines = (RECORDINGS / "2.19.0" / "04_execute_basic.jsonl").read_text("utf-8").strip().split("\n")
    raw = next(one["answer"] for one in map(json.loads, lines) if one["name"] == "flow_raw")
    assert read_usage(without_filter(FLOW_AGENT), json.dumps(raw).encode(), False) == Tokens(11, 7, 18)


PRICES = Prices(
    [
        Price(3.0, 15.0, provider="bedrock/*", model="*claude-3-7*"),
        Price(1.0, 1.0, provider="openai/*", currency="EUR"),
    ]
)


@pytest.mark.parametrize(
    ("provider", "model", "cost"),
    [
        ("bedrock/converse", MODEL, Cost(0.000138, "USD")),
        ("bedrock/converse", "nova", None),
        ("openai/v1/chat/completions", "", Cost(0.000018, "EUR")),
        ("", "", None),
    ],
)
def test_the_first_matching_price_applies(provider: str, model: str, cost: Cost | None) -> None:
    found = PRICES.cost(provider, model, 11, 7)
    assert found == (None if cost is None else (pytest.approx(cost.amount), cost.currency))


def test_what_a_record_says() -> None:
    body = json.dumps(v2_answer()[1]).encode()
    delivery = Delivery(type="conversational_v2", provider="bedrock/converse", model=MODEL)
    assert recorded_usage(delivery, body, False, PRICES) == Usage(11, 7, pytest.approx(0.000138), "USD")
    assert recorded_usage(Delivery(), body, False, PRICES) == Usage(11, 7)
    assert recorded_usage(delivery, b"", False, PRICES) is None


def test_what_a_record_says_of_a_flow() -> None:
    """Its answer is the last call's: all tokens are known only if it makes one."""
    lines = (RECORDINGS / "2.19.0" / "04_execute_basic.jsonl").read_text("utf-8").strip().split("\n")
    raw = next(one["answer"] for one in map(json.loads, lines) if one["name"] == "flow_raw")
    delivery = describe_delivery(without_filter(FLOW_AGENT), "text")
    assert recorded_usage(delivery, json.dumps(raw).encode(), False, PRICES) == Usage(11, 7)
    two = structs.replace(delivery, one_model=False)
    assert recorded_usage(two, json.dumps(raw).encode(), False, PRICES) is None


@pytest.mark.parametrize(
    ("usage", "model", "value"),
    [
        (None, "gpt-4o", "unknown"),
        (Usage(11, 42), "", "input=11; output=42"),
        (Usage(11, 42, 0.00021, "USD"), "gpt-4o", "input=11; output=42; cost=0.00021 USD; model=gpt-4o"),
        (Usage(0, 0, 0.0, "USD"), "a; b=\r\nc\u00e9", "input=0; output=0; cost=0 USD; model=a%3B b%3D%0D%0Ac%C3%A9"),
    ],
)
def test_the_header(usage: Usage | None, model: str, value: str) -> None:
    assert header_value(usage, Llm("p", model)) == value


def test_models_beyond_the_limit_share_a_label() -> None:
    metrics = UsageMetrics()
    for number in range(MOST_MODELS + 50):
        metrics.tokens("p", f"model {number}", 1, 2)
    metrics.tokens("p", "model 0", 1, 2)
    tokens = next(iter(metrics.collect()))
    models = {
        sample.labels["model"]: sample.value for sample in tokens.samples if sample.labels["direction"] == "input"
    }
    assert len(models) == MOST_MODELS + 1
    assert (models["other"], models["model 0"]) == (50, 2)


async def test_without_policies_nothing_is_added(start: Start) -> None:
    place = await start({})
    answer = await place.execute(V2, {"input": "hi"})
    assert "X-MLC-Gateway-Usage" not in answer.headers
    assert place.metric("mlc_gateway_tokens_total") == 0
    routed = place.gateway._now.port.dispatcher._execute
    assert type(routed._clusters[""]).__name__ == "Handler"  # type: ignore[attr-defined]


async def test_the_answer_has_the_header_and_is_counted(start: Start) -> None:
    prices = [{"provider": "bedrock/converse", "model": "*sonnet*", "input": 3.0, "output": 15.0}]
    place = await start({"usage_header": True, "prices": prices})
    for number in (1, 2):
        answer = await place.execute(V2, {"input": "hi"})
        assert answer.headers["X-MLC-Gateway-Usage"] == f"input=11; output=7; cost=0.000138 USD; model={MODEL}"
        assert await answer.json() == v2_answer()[1]
        labels = {"provider": "bedrock/converse", "model": MODEL}
        assert place.metric("mlc_gateway_tokens_total", direction="input", **labels) == 11 * number
        assert place.metric("mlc_gateway_tokens_total", direction="output", **labels) == 7 * number
        assert place.metric("mlc_gateway_cost_total", currency="USD", **labels) == pytest.approx(0.000138 * number)


async def test_tokens_are_counted_without_holding_the_answer(start: Start) -> None:
    place = await start({"usage": True})
    answer = await place.execute(V2, {"parameters": {"question": "hi"}}, headers=PLAIN)
    assert "X-MLC-Gateway-Usage" not in answer.headers
    assert place.metric("mlc_gateway_tokens_total", direction="input") == 11


async def test_a_rewritten_request_is_counted_each_time(start: Start) -> None:
    place = await start({"usage": True, "usage_header": True})
    place.cluster.answers = [RAN]
    for number in range(1, 4):
        answer = await place.execute(FLOW, {"input": [{"type": "text", "text": f"hi {number}"}]})
        assert (answer.status, answer.headers["X-MLC-Gateway-Usage"]) == (200, "unknown")
        assert place.metric("mlc_gateway_usage_unknown_total", provider="bedrock/converse") == number
    assert place.metric("mlc_gateway_tokens_total") == 0


@pytest.mark.parametrize(("status", "unknown"), [(302, 0), (304, 0), (404, 0), (429, 0), (500, 1)])
async def test_a_redirect_or_refusal_used_nothing_and_a_failure_is_unknown(
    start: Start, status: int, unknown: int
) -> None:
    place = await start({"usage_header": True})
    place.cluster.answers = [(status, {"status": status, "error": {"reason": "no"}})]
    answer = await place.execute(V1, {"parameters": {"question": "hi"}})
    assert answer.status == status
    assert "X-MLC-Gateway-Usage" not in answer.headers
    assert place.metric("mlc_gateway_usage_unknown_total") == unknown


async def test_an_agent_that_cannot_be_read_is_counted_without_labels(start: Start) -> None:
    place = await start({"usage": True})
    place.cluster.lookup_status = 403
    answer = await place.execute(V2, {"parameters": {"question": "hi"}}, headers=PLAIN)
    assert answer.status == 200
    assert place.metric("mlc_gateway_tokens_total", provider="", model="", direction="output") == 7


async def test_a_large_answer_has_the_header_without_being_held(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.proxy.run.HELD_ANSWER", 1000)
    place = await start({"usage_header": True})
    place.cluster.answers = [v2_answer("x" * 1_000_000)]
    answer = await place.execute(V2, {"input": "hi"}, headers={"Accept-Encoding": "identity"})
    assert (answer.status, answer.headers["X-MLC-Gateway-Usage"]) == (200, "unknown")


async def test_the_retry_of_a_legacy_request_is_counted_once(start: Start) -> None:
    place = await start({"usage_header": True})
    refusal = {"status": 500, "error": {"reason": "V2 agents require executor-provided memory"}}
    place.cluster.answers = [(500, refusal), v2_answer()]
    answer = await place.execute(V2, {"parameters": {"question": "hi"}})
    assert answer.headers["X-MLC-Gateway-Usage"].startswith("input=11; output=7")
    assert place.cluster.sent[1] == {"input": "hi"}
    assert place.metric("mlc_gateway_tokens_total", direction="input") == 11
    assert place.metric("mlc_gateway_usage_unknown_total") == 0
