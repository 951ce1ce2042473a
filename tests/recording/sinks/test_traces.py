"""The spans of a record, as a collector gets them, and what happens if it does not take them."""

from __future__ import annotations

import json
import re
import ssl
from hashlib import sha256
from pathlib import Path
from threading import Thread

import msgspec
import pytest
import trustme
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes

from gateway.config.inspector import Traces
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
from gateway.recording.sinks.traces import ATTRIBUTES, KIND, MESSAGES, PROVIDERS, UPSTREAM, TraceSink, provider_name
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


HASH, HELLO = sha256(b"a picture").hexdigest(), sha256(b"Hello\n").hexdigest()
SHOWN = f"[MEDIA type=image/png length=9 sha256={HASH}]"
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


def test_attributes_of_a_copy_of_a_run() -> None:
    with running_collector() as collector:
        send([msgspec.structs.replace(RUN, agent_id="b1", route="a1", cluster="new", mirror_of="r0")], collector)
        found = attributes(collector.spans[0].attributes)
    names = ("gen_ai.agent.id", "mlc.route", "mlc.cluster", "mlc.mirror_of")
    assert [found[name] for name in names] == ["b1", "a1", "new", "r0"]


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
        "url.scheme": "http",
        "url.path": "/_plugins/_ml/agents/a1/_execute",
        "openinference.span.kind": "AGENT",
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
        "openinference.span.kind": "CHAIN",
    }


@pytest.mark.parametrize(
    ("values", "error", "failed"),
    [
        ({"status": 200}, None, False),
        ({"status": 404}, "404", True),
        ({"status": 503}, "503", True),
        ({"status": 0}, "cut", True),
        ({"status": 400, "error": RecordedError("UndeliverableContent", "no")}, "UndeliverableContent", True),
    ],
)
def test_errors(values: dict[str, object], error: str | None, failed: bool) -> None:
    with running_collector() as collector:
        send([record(trace=TRACE, **values)], collector)
        root = collector.spans[0]
    assert attributes(root.attributes).get("error.type") == error
    assert (root.status.code == root.status.STATUS_CODE_ERROR) is failed
    assert root.status.message == (f"{error}: no" if "error" in values else error or "")


def test_a_request_to_the_cluster_that_failed_is_an_error_too() -> None:
    run = msgspec.structs.replace(RUN, status=503, response=HttpMessage())
    with running_collector() as collector:
        send([run], collector)
        *others, upstream = collector.spans[1:]
    assert (upstream.status.code, upstream.status.message) == (upstream.status.STATUS_CODE_ERROR, "503")
    assert {span.status.code for span in others} == {upstream.status.STATUS_CODE_UNSET}


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
            [{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}], "finish_reason": "stop"}],
        ),
        (
            {"parameters": {"question": "Hello"}},
            {"inference_results": [{"output": [{"name": "response", "dataAsMap": {"response": "Hi"}}]}]},
            [{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}],
            [{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}], "finish_reason": "stop"}],
        ),
        (
            {
                "input": [
                    {"role": "assistant", "content": "Yes?"},
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "base64", "format": "png", "data": SHOWN}},
                            {"type": "image", "source": {"type": "url", "url": "https://me:s3cret@a/b.png?sig=s3cret"}},
                            {"document": {"format": "txt", "source": {"bytes": "SGVsbG8K"}}},
                            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SHOWN}"}},
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
                        {"type": "file", "modality": "image", "mime_type": "image/png", "file_id": f"sha256:{HASH}"},
                        {"type": "uri", "modality": "image", "uri": "https://a/b.png"},
                        {
                            "type": "file", "modality": "document", "mime_type": "text/plain",
                            "file_id": f"sha256:{HELLO}",
                        },
                        {"type": "file", "modality": "image", "mime_type": "image/png", "file_id": f"sha256:{HASH}"},
                    ],
                },
            ],
            [{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}], "finish_reason": "stop"}],
        ),
        (
            {
                "input": [
                    {"role": "user", "content": [{"text": "Rain?"}]},
                    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
                    {"role": "tool", "tool_call_id": "c", "content": "yes"},
                    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "d", "name": "g", "input": {}}}]},
                    {"role": "user", "content": [{"toolResult": {"toolUseId": "d", "content": [{"json": {"a": 1}}]}}]},
                ]
            },
            {"stop_reason": "max_tokens", "message": {"content": [{"toolUse": {"toolUseId": "e", "name": "h"}}]}},
            [
                {"role": "user", "parts": [{"type": "text", "content": "Rain?"}]},
                {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": "{}"}]},
                {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "yes"}]},
                {"role": "assistant", "parts": [{"type": "tool_call", "id": "d", "name": "g", "arguments": {}}]},
                {
                    "role": "user",
                    "parts": [{"type": "tool_call_response", "id": "d", "response": [{"json": {"a": 1}}]}],
                },
            ],
            [
                {
                    "role": "assistant",
                    "parts": [{"type": "tool_call", "id": "e", "name": "h", "arguments": None}],
                    "finish_reason": "length",
                }
            ],
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
    assert without.keys().isdisjoint(MESSAGES)
    messages = [json.loads(found[name]) if name in found else None for name in MESSAGES[:2]]
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
    (row,) = re.findall(r"^\| `gen_ai.provider.name` \|.*\|(.*)\|$", page("reference/telemetry.md"), re.MULTILINE)
    assert set(re.findall(r"`([a-z.]+)`", row)) == names


def test_every_attribute_is_in_the_table_of_the_docs() -> None:
    documented = set(re.findall(r"^\| `([a-z_]+\.[a-z_.]+)` \|", page("reference/telemetry.md"), re.MULTILINE))
    assert documented == {*ATTRIBUTES, *UPSTREAM, *MESSAGES, KIND}


def test_the_names_are_those_of_the_newest_conventions() -> None:
    """opentelemetry-semantic-conventions is generated from them; HTTP's required attributes are there too."""
    ours = {name for name in (*ATTRIBUTES, *MESSAGES) if name.startswith("gen_ai.")}
    theirs = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    deprecated = {"gen_ai.system", "gen_ai.prompt", "gen_ai.completion"}
    assert ours <= theirs - deprecated
    assert {one.value for one in gen_ai_attributes.GenAiProviderNameValues} >= set(PROVIDERS.values())
    assert "invoke_agent" in {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
    required = {http_attributes.HTTP_REQUEST_METHOD, url_attributes.URL_PATH, url_attributes.URL_SCHEME}
    assert required <= ATTRIBUTES.keys()
    assert error_attributes.ERROR_TYPE in ATTRIBUTES


def test_what_lists_of_viewers_show() -> None:
    sent = [{"role": "user", "content": [{"text": "What is"}, {"type": "image", "source": {"data": SHOWN}}]}]
    answer = {"inference_results": [{"output": [{"name": "response", "result": "A clock."}]}]}
    texts = [json.dumps(one) for one in ({"input": sent}, answer)]
    bodies = [HttpMessage((), Body(1, text)) for text in texts]
    with running_collector() as collector:
        send([record(trace=TRACE, request=bodies[0], response=bodies[1])], collector, messages=True)
        known = attributes(collector.spans[0].attributes)
    assert known["input.value"] == f"What is\n[image/png sha256:{HASH[:8]}]"
    assert known["output.value"] == "A clock."


def test_the_answer_of_a_stream_is_a_message_too() -> None:
    def event(content: str, is_last: bool) -> str:
        output = {"name": "response", "dataAsMap": {"content": content, "is_last": is_last}}
        return f"data: {json.dumps({'inference_results': [{'output': [output]}]})}\n\n"

    stream = event("It is ", False) + event("noon.", False) + event("", True)
    run = record(
        trace=TRACE,
        intent="execute_stream",
        request=HttpMessage((), Body(1, '{"input": "When?"}')),
        response=HttpMessage((), Body(1, stream)),
    )
    with running_collector() as collector:
        send([run], collector, messages=True)
        known = attributes(collector.spans[0].attributes)
    assert known["gen_ai.request.stream"] is True
    assert json.loads(known["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "It is noon."}]
    assert known["output.value"] == "It is noon."


def test_a_medium_is_never_whole() -> None:
    data = "QUJD" * 3
    blocks = [
        {"type": "image", "source": {"type": "base64", "format": "png", "data": data}},
        {"type": "image", "base64": data, "mime_type": "image/png"},
        {"image": {"format": "png", "source": {"bytes": data}}},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"inlineData": {"mimeType": "image/png", "data": data}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    ]
    run = record(trace=TRACE, request=HttpMessage((), Body(1, json.dumps({"input": blocks}))))
    with running_collector() as collector:
        send([run], collector, messages=True)
        parts = json.loads(attributes(collector.spans[0].attributes)["gen_ai.input.messages"])[0]["parts"]
        assert not [body for body in collector.bodies if data.encode() in body]
    assert [part["type"] for part in parts] == ["file"] * 6
    assert {part["file_id"] for part in parts} == {f"sha256:{sha256(b'ABC' * 3).hexdigest()}"}
    assert [part["mime_type"] for part in parts] == ["image/png"] * 3 + ["audio/wav"] + ["image/png"] * 2


def test_the_sdk_is_imported_only_where_spans_are_made() -> None:
    gateway = Path(__file__).parents[3] / "gateway"
    users = {path.name for path in gateway.rglob("*.py") if "from opentelemetry" in path.read_text()}
    assert users == {"traces.py"}


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
