"""Traces: the OpenTelemetry spans of a run, made of its record, and the sink that sends them to an OTLP collector.

The names are those of OpenTelemetry's semantic conventions for generative AI and HTTP; the gateway's own begin with
`mlc.`. ``docs/reference/telemetry.md`` has the table. A thread of the SDK sends, so a stalled collector stops no store
of exchanges.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from typing_extensions import override

from gateway.config.inspector import Traces
from gateway.observe.logs import describe_fault
from gateway.observe.record import Delivery, ExchangeRecord, Step, TraceContext, Usage
from gateway.recording.messages import message_attributes
from gateway.recording.store import RecordSink, StoreError

PROVIDERS = {
    "amazon-nova": "aws.bedrock",
    "anthropic": "anthropic",
    "bedrock": "aws.bedrock",
    "bedrock-invoke": "aws.bedrock",
    "cohere": "cohere",
    "gemini": "gcp.gemini",
    "openai": "openai",
}
"""The conventions' names of providers, by the first part of ours."""
SCOPE = InstrumentationScope("mlc-gateway")
_NOTHING, _NO_DELIVERY, _NO_USAGE = (None, "", ()), Delivery(), Usage()
Value = Callable[[ExchangeRecord, Delivery], Any]

ATTRIBUTES: dict[str, Value] = {
    "gen_ai.operation.name": lambda record, delivery: "invoke_agent",
    "gen_ai.agent.id": lambda record, delivery: record.agent_id,
    "gen_ai.agent.name": lambda record, delivery: delivery.agent_name,
    "gen_ai.conversation.id": lambda record, delivery: record.conversation,
    "gen_ai.provider.name": lambda record, delivery: provider_name(delivery.provider),
    "gen_ai.request.stream": lambda record, delivery: record.intent == "execute_stream" or None,
    "gen_ai.request.model": lambda record, delivery: delivery.model,
    "gen_ai.usage.input_tokens": lambda record, delivery: (record.usage or _NO_USAGE).input,
    "gen_ai.usage.output_tokens": lambda record, delivery: (record.usage or _NO_USAGE).output,
    "error.type": lambda record, delivery: error_type(record),
    "http.request.method": lambda record, delivery: record.method,
    "http.response.status_code": lambda record, delivery: record.status or None,
    "url.scheme": lambda record, delivery: record.scheme,
    "url.path": lambda record, delivery: record.target.partition("?")[0],
    "url.query": lambda record, delivery: record.target.partition("?")[2],
    "client.address": lambda record, delivery: record.client,
    "user_agent.original": lambda record, delivery: record.user_agent,
    "mlc.request_id": lambda record, delivery: record.id,
    "mlc.intent": lambda record, delivery: record.intent,
    "mlc.route": lambda record, delivery: record.route,
    "mlc.cluster": lambda record, delivery: record.cluster,
    "mlc.mirror_of": lambda record, delivery: record.mirror_of,
    "mlc.agent.type": lambda record, delivery: delivery.type,
    "mlc.agent.generation": lambda record, delivery: delivery.generation,
    "mlc.provider": lambda record, delivery: delivery.provider,
    "mlc.input_type": lambda record, delivery: delivery.input_type,
    "mlc.strategy": lambda record, delivery: delivery.strategy,
    "mlc.proved": lambda record, delivery: delivery.proved if delivery.strategy else None,
    "mlc.notices": lambda record, delivery: delivery.notices,
    "mlc.codes": lambda record, delivery: problem_codes(record),
    "mlc.cost": lambda record, delivery: (record.usage or _NO_USAGE).cost,
    "mlc.currency": lambda record, delivery: (record.usage or _NO_USAGE).currency,
}
"""Attributes of the root span. One that is not known is left out."""
MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages", "input.value", "output.value")
"""Attributes of the root span by choice (`telemetry.traces.messages`)."""
KIND = "openinference.span.kind"
"""What OpenInference, the conventions of Phoenix, call a span: AGENT for a run, CHAIN for a step."""
UPSTREAM: dict[str, Value] = {
    "http.request.method": ATTRIBUTES["http.request.method"],
    "http.response.status_code": lambda record, delivery: (
        record.status if record.response is not None and record.answered is None else None
    ),
    "url.path": ATTRIBUTES["url.path"],
}
"""Attributes of the span of the request to the cluster."""


def provider_name(provider: str) -> str:
    """Return the conventions' name of a provider; its own name if they have none."""
    return PROVIDERS.get(provider.partition("/")[0], provider)


def error_type(record: ExchangeRecord) -> str:
    """Return the type of the gateway's error, a status of 400 or above, or `cut`; "" if there is no error."""
    if record.error is not None:
        return record.error.type
    if not record.status:
        return "cut"
    return str(record.status) if record.status >= 400 else ""


def problem_codes(record: ExchangeRecord) -> tuple[str, ...]:
    """Return the codes of a refusal's problems."""
    problems = record.error.problems if record.error is not None else ()
    return tuple(dict.fromkeys(problem.code for problem in problems if problem.code))


def make_spans(record: ExchangeRecord, trace: TraceContext, resource: Resource, messages: bool) -> list[ReadableSpan]:
    """Return the spans of a run: the root first, then one for each step, in their order.

    trace: of the record. messages: with `MESSAGES`.
    """
    delivery = record.delivery or _NO_DELIVERY
    state = TraceState.from_header([trace.state]) if trace.state else None
    root = _context(trace, random.getrandbits(64) or 1, state)
    attributes = _attributes(ATTRIBUTES, record, delivery)
    if messages:
        attributes |= {name: _text(text) for name, text in message_attributes(record).items()}
    spans = [
        ReadableSpan(
            _text(f"invoke_agent {delivery.agent_name or record.agent_id}"),
            root,
            _context(trace, int(trace.parent, 16), state, is_remote=True) if trace.parent else None,
            resource,
            {KIND: "AGENT", **attributes},
            kind=SpanKind.SERVER,
            status=_status(error_type(record), record.error.reason if record.error is not None else ""),
            start_time=_time(record, 0.0),
            end_time=_time(record, record.seconds),
            instrumentation_scope=SCOPE,
        )
    ]
    return spans + [_step_span(step, record, delivery, trace, root, resource) for step in record.steps]


def _status(error: str, reason: str = "") -> Status:
    """Return ERROR for every run that failed or was refused, as the conventions for generative AI say."""
    return Status(StatusCode.ERROR, _text(f"{error}: {reason}" if reason else error)) if error else Status()


def _step_span(
    step: Step, record: ExchangeRecord, delivery: Delivery, trace: TraceContext, root: SpanContext, resource: Resource
) -> ReadableSpan:
    is_upstream = step.name == "upstream"
    attributes = _attributes(UPSTREAM, record, delivery) if is_upstream else {}
    status = attributes.get("http.response.status_code", 0)
    return ReadableSpan(
        step.name,
        _context(trace, int(trace.span, 16) if is_upstream else random.getrandbits(64) or 1, root.trace_state),
        root,
        resource,
        {KIND: "CHAIN", **attributes},
        kind=SpanKind.CLIENT if is_upstream else SpanKind.INTERNAL,
        status=_status(str(status) if status >= 400 else ""),
        start_time=_time(record, step.start),
        end_time=_time(record, step.start + step.seconds),
        instrumentation_scope=SCOPE,
    )


def _context(trace: TraceContext, span: int, state: TraceState | None, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(trace.trace_id, 16), span, is_remote, TraceFlags(TraceFlags.SAMPLED), state)


def _attributes(table: dict[str, Value], record: ExchangeRecord, delivery: Delivery) -> dict[str, Any]:
    known = {name: value for name, read in table.items() if (value := read(record, delivery)) not in _NOTHING}
    return {name: _text(value) if isinstance(value, str) else value for name, value in known.items()}


def _text(text: str) -> str:
    """Return `text` as OTLP can hold it: bytes of a request that are no UTF-8 become question marks."""
    return text.encode("utf-8", "replace").decode()


def _time(record: ExchangeRecord, seconds: float) -> int:
    """Return nanoseconds since the epoch; a float would be too coarse. seconds: since the record's beginning."""
    whole, part = divmod(record.started, 1)
    return int(whole) * 10**9 + round((part + seconds) * 1e9)


def count_traces(spans: Iterable[ReadableSpan]) -> int:
    """Return the number of root spans."""
    return sum(span.kind is SpanKind.SERVER for span in spans)


_DELAY_MS = 1_000
_BATCH = 4_096
"""Most spans of a request to the collector: some 2 MB, without messages."""
_STOP_SECONDS = 4.0
"""For the last spans when the gateway stops; less than the recorder gets."""


# Failures are reported by the recorder. Without a handler, Python would print the library's own messages as well.
logging.getLogger("opentelemetry").addHandler(logging.NullHandler())


class TraceSink(RecordSink):
    """A `RecordSink` that sends the traces of runs. exporter: sends spans; by default, to the settings' endpoint."""

    name = "traces"

    def __init__(self, settings: Traces, exporter: SpanExporter | None = None) -> None:
        self._settings = settings
        self._resource = Resource.create(
            {
                "service.name": settings.service_name,
                "service.version": version("mlc-gateway"),
                "openinference.project.name": settings.service_name,
            }
        )
        self._exporter = _CountingExporter(exporter or _exporter(settings))
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=settings.queue,
            schedule_delay_millis=_DELAY_MS,
            max_export_batch_size=min(_BATCH, settings.queue),
        )
        self._given = 0

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        """Queue the spans of the records that have a sampled trace.

        Raises:
            StoreError: the collector does not take them fast enough, or refused earlier ones.
        """
        full = 0
        traces = [
            make_spans(record, record.trace, self._resource, self._settings.messages)
            for record in records
            if record.trace is not None and record.trace.sampled
        ]  # all before the first is queued, so that none is if one can't be made
        for spans in traces:
            if self._given - self._exporter.done + len(spans) > self._settings.queue:
                full += 1
                continue
            self._given += len(spans)
            for span in spans:
                self._processor.on_end(span)
        self._report(full)

    def close(self) -> None:
        """Send what waits.

        Raises:
            StoreError: some of it was not sent.
        """
        timer = threading.Timer(_STOP_SECONDS, self._exporter.shutdown)
        timer.daemon = True
        timer.start()
        self._processor.shutdown()  # type: ignore[no-untyped-call]
        timer.cancel()
        self._report(0)

    def _report(self, full: int) -> None:
        lost, fault = self._exporter.take_lost()
        if lost + full:
            reason = "telemetry.traces.endpoint does not answer, refuses spans, or is too slow. Check the collector"
            raise StoreError(fault or reason, lost + full)


class _CountingExporter(SpanExporter):
    """Counts what another exporter does. done: spans that were sent or lost."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lock = threading.Lock()
        self._lost = 0
        self._fault = ""
        self.done = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`. Spans that can't be written as bytes are lost alone."""
        lost, fault = 0, ""
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            fault = _describe_unwritable(spans)
            if fault and len(spans) > 1:
                half = len(spans) // 2
                self.export(spans[:half])
                return self.export(spans[half:])
            lost = count_traces(spans)
        with self._lock:
            self.done += len(spans)
            self._lost += lost
            self._fault = fault or self._fault
        return SpanExportResult.FAILURE if lost else SpanExportResult.SUCCESS

    def take_lost(self) -> tuple[int, str]:
        """Return how many traces were lost since the last call, and why if that was not the collector."""
        with self._lock:
            lost, self._lost = self._lost, 0
            fault, self._fault = self._fault, ""
        return lost, fault

    @override
    def shutdown(self) -> None:
        self._exporter.shutdown()

    @override
    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _describe_unwritable(spans: Sequence[ReadableSpan]) -> str:
    """Return why the spans can't be written as bytes, which the exporter only logs; "" if they can."""
    try:
        encode_spans(spans).SerializePartialToString()
    except Exception as error:
        return describe_fault(error)
    return ""


class _Session(requests.Session):
    """Keeps the settings' authority, which `REQUESTS_CA_BUNDLE` would replace. A redirect is no success."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """See `requests.Session`.

        Raises:
            TooManyRedirects: the collector answers with a redirect, which is not followed.
        """
        response = super().send(request, **kwargs)
        if 300 <= response.status_code < 400:
            raise requests.TooManyRedirects("the collector answers with a redirect")
        return response

    @override
    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        merged = super().merge_environment_settings(url, proxies, stream, verify, cert)
        return {**merged, "verify": self.verify} if isinstance(self.verify, str) else merged


def _exporter(settings: Traces) -> OTLPSpanExporter:
    headers = {settings.header: settings.secret.reveal()} if settings.secret else {}
    return OTLPSpanExporter(
        settings.endpoint, settings.ca_file or None, headers=headers, timeout=settings.seconds, session=_Session()
    )
