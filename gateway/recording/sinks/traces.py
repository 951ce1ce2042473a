"""Sends traces to an OTLP collector. A thread of the SDK sends, so a stalled collector stops no store of exchanges."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from gateway.config.schema import Traces
from gateway.observe.record import ExchangeRecord
from gateway.observe.redact import describe_fault
from gateway.recording.sinks.spans import count_traces, make_spans
from gateway.recording.store import Loss, StoreError

_DELAY_MS = 1_000
_BATCH = 4_096
"""Most spans of a request to the collector: some 2 MB, without messages."""
_STOP_SECONDS = 4.0
"""For the last spans when the gateway stops; less than the recorder gets."""


# Failures are reported by the recorder. Without a handler, Python would print the library's own messages as well.
logging.getLogger("opentelemetry").addHandler(logging.NullHandler())


class TraceSink:
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

    def keep_medium(self, sha256: str, media_type: str, data: bytes) -> None:
        """Do nothing: spans have no media."""

    def note_losses(self, losses: Sequence[Loss]) -> None:
        """Do nothing: collectors get traces only."""

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

    def shutdown(self) -> None:
        """See `SpanExporter`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter`."""
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

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """See `requests.Session`."""
        merged = super().merge_environment_settings(url, proxies, stream, verify, cert)
        return {**merged, "verify": self.verify} if isinstance(self.verify, str) else merged


def _exporter(settings: Traces) -> OTLPSpanExporter:
    headers = {settings.header: settings.secret.reveal()} if settings.secret else {}
    return OTLPSpanExporter(
        settings.endpoint, settings.ca_file or None, headers=headers, timeout=settings.seconds, session=_Session()
    )
