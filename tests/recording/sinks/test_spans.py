"""The spans of a record, as a collector gets them, and what happens if it does not take them."""

from __future__ import annotations

import json
import re
import ssl
from pathlib import Path
from threading import Thread

import pytest
import trustme

from gateway.config.schema import Traces
from gateway.config.types import Secret
from gateway.observe.record import (
    Body,
    Delivery,
    ExchangeRecord,
    HttpMessage,
    RecordedError,
    RecordedProblem,
    Step,
    TraceContext,
    Usage,
)
from gateway.providers import registry
from gateway.recording.sinks.spans import ATTRIBUTES, MESSAGES, PROVIDERS, UPSTREAM, provider_name
from gateway.recording.sinks.traces import TraceSink
from gateway.recording.store import StoreError
from tests.docs.pages import page
from tests.recording.records import record
from tests.telemetry.collector import Collector, attributes, running_collector

TRACE = TraceContext("0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7", True, "b7ad6b7169203331", "a=1")
DELIVERY = Delivery(
    "My agent", "conversational", "text", "bedrock/converse", "claude-3", "wrap", "text", ("SYSTEM_FOLDED",)
)
STEPS = tuple(
    Step(name, number / 16, 1 / 16) for number, name in enumerate(("read", "decode", "resolve", "plan", "upstream"))
)
RUN: ExchangeRecord = record(
    id="r1",
    started=1_760_000_000.25,
    seconds=0.5,
    agent_id="a1",
    client="127.0.0.1",
    user_agent="curl/8",
    delivery=DELIVERY,
    usage=Usage(11, 42, 0.5, "USD"),
    conversation="c1",
    trace_id=TRACE.trace_id,
    trace=TRACE,
    steps=STEPS,
)


MEMORY_ID = {"name": "memory_id", "result": "m"}


def send(records: list[ExchangeRecord], collector: Collector, **settings: object) -> None:
    """Send records, and wait until the collector has them."""
    sink = TraceSink(Traces(endpoint=collector.url, **settings))  # type: ignore[arg-type]
    sink.add(records)
    sink.close()


def test_a_run_is_a_root_span_with_a_span_for_each_step() -> None:
    with running_collector() as collector:
        send([RUN], collector, service_name="mine", secret=Secret("Bearer t"))
        root, *steps = collector.spans
    assert root.name == "invoke_agent My agent"
    assert (root.kind, root.status.code) == (root.SPAN_KIND_SERVER, root.status.STATUS_CODE_UNSET)
    assert root.trace_id.hex() == TRACE.trace_id
    assert (root.parent_span_id.hex(), root.trace_state) == (TRACE.parent, "a=1")
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (
        1_760_000_000_250_000_000,
        1_760_000_000_750_000_000,
    )
    assert [span.name for span in steps] == [step.name for step in STEPS]
    assert {span.parent_span_id for span in steps} == {root.span_id}
    assert {span.trace_id for span in steps} == {root.trace_id}
    assert len({root.span_id, *(span.span_id for span in steps)}) == 6
    assert steps[-1].span_id.hex() == TRACE.span
    assert steps[-1].kind == root.SPAN_KIND_CLIENT
    starts = [span.start_time_unix_nano for span in (root, *steps)]
    assert starts == sorted(starts)
    assert collector.resources[0]["service.name"] == "mine"
    assert {name.lower(): value for name, value in collector.headers[0].items()}["authorization"] == "Bearer t"


def test_attributes_of_a_run() -> None:
    with running_collector() as collector:
        send([RUN], collector)
        root, upstream = collector.spans[0], collector.spans[-1]
    assert attributes(root.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.id": "a1",
        "gen_ai.agent.name": "My agent",
        "gen_ai.conversation.id": "c1",
        "gen_ai.provider.name": "aws.bedrock",
        "gen_ai.request.model": "claude-3",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 42,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/_plugins/_ml/agents/a1/_execute",
        "client.address": "127.0.0.1",
        "user_agent.original": "curl/8",
        "mlc.request_id": "r1",
        "mlc.intent": "execute",
        "mlc.agent.type": "conversational",
        "mlc.agent.generation": "text",
        "mlc.provider": "bedrock/converse",
        "mlc.input_type": "text",
        "mlc.strategy": "wrap",
        "mlc.proved": True,
        "mlc.notices": ["SYSTEM_FOLDED"],
        "mlc.cost": 0.5,
        "mlc.currency": "USD",
    }
    assert attributes(upstream.attributes) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/_plugins/_ml/agents/a1/_execute",
    }


@pytest.mark.parametrize(
    ("values", "error", "failed"),
    [
        ({"status": 200}, None, False),
        ({"status": 404}, "404", False),
        ({"status": 503}, "503", True),
        ({"status": 0}, "cut", True),
        ({"status": 400, "error": RecordedError("UndeliverableContent", "no")}, "UndeliverableContent", False),
    ],
)
def test_errors(values: dict[str, object], error: str | None, failed: bool) -> None:
    with running_collector() as collector:
        send([record(trace=TRACE, **values)], collector)
        root = collector.spans[0]
    assert attributes(root.attributes).get("error.type") == error
    assert (root.status.code == root.status.STATUS_CODE_ERROR) is failed


def test_codes_of_a_refusal() -> None:
    problems = (RecordedProblem("A_CODE", "input", "no"), RecordedProblem("", "input", "no"))
    with running_collector() as collector:
        send([record(trace=TRACE, status=400, error=RecordedError("T", "no", problems))], collector)
        assert attributes(collector.spans[0].attributes)["mlc.codes"] == ["A_CODE"]


def test_only_sampled_runs_are_sent() -> None:
    not_sampled = TraceContext(TRACE.trace_id, TRACE.span, False)
    with running_collector() as collector:
        send([record(), record(trace=not_sampled)], collector)
        assert collector.bodies == []


@pytest.mark.parametrize(
    ("request_body", "response", "expected_input", "expected_output"),
    [
        (
            {"input": "Hello"},
            {"inference_results": [{"output": [MEMORY_ID, {"name": "response", "result": "Hi"}]}]},
            [{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}],
            [{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}]}],
        ),
        (
            {"parameters": {"question": "Hello"}},
            {"inference_results": [{"output": [{"name": "response", "dataAsMap": {"response": "Hi"}}]}]},
            [{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}],
            [{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}]}],
        ),
        (
            {
                "input": [
                    {"role": "assistant", "content": "Yes?"},
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "base64", "data": "[MEDIA type=image/png]"}},
                            {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}},
                        ],
                    },
                ]
            },
            {"stop_reason": "end_turn", "message": {"role": "assistant", "content": [{"text": "Hi"}]}},
            [
                {"role": "assistant", "parts": [{"type": "text", "content": "Yes?"}]},
                {
                    "role": "user",
                    "parts": [
                        {"type": "blob", "modality": "image", "content": "[MEDIA type=image/png]"},
                        {"type": "uri", "modality": "image", "uri": "https://a/b.png"},
                    ],
                },
            ],
            [{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}]}],
        ),
        ({"input": 7}, [], None, None),
    ],
)  # fmt: skip
def test_messages_by_choice(
    request_body: object, response: object, expected_input: object, expected_output: object
) -> None:
    texts = [json.dumps(one) for one in (request_body, response)]
    run = record(
        trace=TRACE,
        request=HttpMessage((), Body(1, texts[0])),
        response=HttpMessage((), Body(1, texts[1])),
    )
    with running_collector() as collector:
        send([run], collector)
        send([run], collector, messages=True)
        without, found = (attributes(span.attributes) for span in collector.spans)
    assert not MESSAGES.keys() & without.keys()
    messages = [json.loads(found[name]) if name in found else None for name in MESSAGES]
    assert messages == [expected_input, expected_output]


@pytest.mark.parametrize("status", [302, 400])
def test_a_refused_batch_is_counted(status: int) -> None:
    with running_collector(status=status) as collector:
        sink = TraceSink(Traces(endpoint=collector.url))
        sink.add([RUN, RUN])
        with pytest.raises(StoreError) as error:
            sink.close()
    assert error.value.lost == 2


def test_traces_beyond_the_queue_are_counted_and_nothing_waits() -> None:
    with running_collector() as collector:
        collector.released.clear()
        sink = TraceSink(Traces(endpoint=collector.url, queue=12))
        sink.add([RUN, RUN])
        with pytest.raises(StoreError) as error:
            sink.add([RUN, RUN, RUN])
        assert error.value.lost == 3
        collector.released.set()
        sink.close()
        assert len(collector.spans) == 12


def test_every_provider_has_a_name_of_the_conventions() -> None:
    names = {provider_name(name) for name in registry.names()}
    assert names == set(PROVIDERS.values())
    assert provider_name("mine/v1") == "mine/v1"


def test_every_attribute_is_in_the_table_of_the_docs() -> None:
    documented = set(re.findall(r"^\| `([a-z_]+\.[a-z_.]+)` \|", page("reference/telemetry.md"), re.MULTILINE))
    assert documented == {*ATTRIBUTES, *UPSTREAM, *MESSAGES}


def test_the_sdk_is_imported_only_where_spans_are_made() -> None:
    gateway = Path(__file__).parents[3] / "gateway"
    users = {path.name for path in gateway.rglob("*.py") if "from opentelemetry" in path.read_text()}
    assert users == {"spans.py", "traces.py"}


def test_bytes_that_are_no_text_arrive_as_question_marks() -> None:
    with running_collector() as collector:
        run = record(trace=TRACE, user_agent="caf\udce9", target="/x?q=\udcff", agent_id="\udc80")
        send([run], collector)
        [span] = collector.spans
        assert span.name == "invoke_agent ?"
        known = attributes(span.attributes)
        assert (known["user_agent.original"], known["url.query"]) == ("caf?", "q=?")


def test_a_batch_is_sent_again_as_long_as_the_collector_is_busy() -> None:
    with running_collector(status=503) as collector:
        sink = TraceSink(Traces(endpoint=collector.url))
        sink.add([RUN])
        closing = Thread(target=sink.close)
        closing.start()
        collector.wait_for_requests()
        collector.status = 200
        closing.join()
        assert len(collector.spans) == 6


@pytest.mark.parametrize("environment", ["", "/etc/hosts"])
def test_a_collector_with_a_certificate_of_an_own_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", environment)
    authority, ca_file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with running_collector(tls=context) as collector:
        send([RUN], collector, ca_file=str(ca_file))
        assert len(collector.spans) == 6
