"""The supervisor's admin port: its workers' health and metrics on one page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, web
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.admin.application import HOLD, MEMORY, Page, json_page
from gateway.admin.pages import DROP_PROFILES
from gateway.config.schema import Secret
from gateway.inspector.access import INSPECTOR
from gateway.observe.metrics import CONTENT_TYPE

_ASKED, _RELAYED = 2.0, 60.0
"""Seconds to wait for a worker's health or metrics, and for each piece of what it reads from the store of sessions."""
_SENT = ("Last-Event-ID", "Accept")
"""Headers of a request that a worker gets."""
_KEPT = ("Content-Type", "Content-Length", "Content-Disposition", "Allow", "X-Accel-Buffering")
"""Headers of a worker's answer that the client gets."""
_PIECE = 64 * 1024


class Answer(NamedTuple):
    """A worker's whole answer on its admin port."""

    status: int
    body: bytes


Connect = Callable[[int], ClientSession]
"""Returns a client of a worker's admin port. The worker is named by its number."""


class SupervisorPages:
    """The pages of the admin port for `count` workers. See `gateway.admin.application.Pages`.

    Counters are not added up. Each worker's series have the label ``worker``, so that a worker that restarts resets
    its own series, which Prometheus can handle. A sum would go down instead.
    """

    def __init__(self, count: int, connect: Connect, token: Secret) -> None:
        self.token = token
        self.is_private = False
        self.draining = False
        self.routes: Mapping[str, Page] = {
            "/health/live": self._live,
            "/health/ready": self._ready,
            "/metrics": self._metrics,
        }
        self.actions: Mapping[str, Page] = {DROP_PROFILES: self._drop_profiles}
        relayed = [path for start in (MEMORY, INSPECTOR) for path in (start, start + "/{rest:.*}")]
        self.resources: Sequence[web.RouteDef] = [
            web.post(HOLD, self._hold),
            web.delete(HOLD, self._hold),
            *(web.route("*", path, self._relay) for path in relayed),
        ]
        self._count = count
        self._connect = connect
        self._registry = CollectorRegistry()
        self._up = Gauge("mlc_gateway_worker_up", "Whether a worker answers.", ("worker",), registry=self._registry)
        self._restarts = Counter(
            "mlc_gateway_worker_restarts",
            "Times a worker ended and was started again.",
            ("worker",),
            registry=self._registry,
        )
        for number in range(count):
            self._restarts.labels(str(number))

    def restarted(self, worker: int) -> None:
        """Count that a worker ended and will be started again."""
        self._restarts.labels(str(worker)).inc()

    async def _live(self) -> web.Response:
        return json_page(200, {"status": "live"})

    async def _ready(self) -> web.Response:
        if self.draining:
            return json_page(503, {"status": "draining"})
        answers = await self._ask_all("/health/ready")
        ready = sum(answer is not None and answer.status == 200 for answer in answers)
        status = {"status": "ready" if ready else "not ready", "workers": f"{ready} of {self._count}"}
        return json_page(200 if ready else 503, status)

    async def _drop_profiles(self) -> web.Response:
        answers = await self._ask_all(DROP_PROFILES, "POST")
        dropped = sum(answer is not None and answer.status == 200 for answer in answers)
        status = {"status": "dropped", "workers": f"{dropped} of {self._count}"}
        return json_page(200 if dropped == self._count else 503, status)

    async def _hold(self, request: web.Request) -> web.Response:
        """Let all workers hold or release; add up their runs."""
        answers = await self._ask_all(str(request.rel_url), request.method, await request.read())
        refusal = next((one for one in answers if one is not None and one.status != 200), None)
        if refusal is not None:
            return web.Response(status=refusal.status, body=refusal.body, content_type="application/json")
        pages = [json.loads(answer.body) for answer in answers if answer is not None]
        if len(pages) < self._count:
            return json_page(503, {"status": "not all workers answer", "workers": f"{len(pages)} of {self._count}"})
        known, runs = all(page["known"] for page in pages), sum(page["runs"] for page in pages)
        return json_page(200, {**pages[0], "known": known, "runs": runs})

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        """Let the first worker that can be reached answer: all of them use the same store.

        If one ends before it answers, the next gets the request, which can safely be repeated.
        """
        sent = {name: request.headers[name] for name in _SENT if name in request.headers}
        for number in range(self._count):
            async with self._connect(number) as worker:
                try:
                    timeout = ClientTimeout(total=None, sock_read=_RELAYED)
                    answer = await worker.request(request.method, request.rel_url, headers=sent, timeout=timeout)
                except TimeoutError:
                    return json_page(504, {"status": f"worker {number} did not answer within {_RELAYED:.0f} seconds"})
                except (OSError, ClientError):
                    continue
                return await _pass_on(request, answer)
        return json_page(503, {"status": "no worker answers"})

    async def _metrics(self) -> web.Response:
        pages = {}
        for number, answer in enumerate(await self._ask_all("/metrics")):
            good = answer is not None and answer.status == 200
            self._up.labels(str(number)).set(good)
            if answer is not None and good:
                pages[str(number)] = answer.body.decode()
        body = generate_latest(self._registry) + merge_metrics(pages)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _ask_all(self, path: str, method: str = "GET", body: bytes = b"") -> list[Answer | None]:
        return await asyncio.gather(*(self._ask(number, method, path, body) for number in range(self._count)))

    async def _ask(self, number: int, method: str, path: str, body: bytes) -> Answer | None:
        """Return a worker's answer; None if there is none in time."""
        try:
            async with self._connect(number) as worker:
                answer = await worker.request(method, path, data=body or None, timeout=ClientTimeout(total=_ASKED))
                return Answer(answer.status, await answer.read())
        except (OSError, ClientError):
            return None


async def _pass_on(request: web.Request, answer: ClientResponse) -> web.StreamResponse:
    """Send a worker's answer as it comes. If it ends early, the connection is closed within the response."""
    kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
    response = web.StreamResponse(status=answer.status, headers=kept)
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_chunked(_PIECE):
            await response.write(piece)
    except (OSError, ClientError):
        if request.transport is not None:
            request.transport.abort()  # the client must not take what it has got for all of it
    return response


def merge_metrics(pages: Mapping[str, str]) -> bytes:
    """Merge pages in Prometheus' text format into one, each sample under the label ``worker``.

    pages: the label's value → the page.
    """
    return generate_latest(_Merged(pages))


class _Merged(Collector):
    """The metrics of several pages."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        """Yield each family once, with the samples of all pages."""
        families: dict[str, Metric] = {}
        for worker, page in self._pages.items():
            for found in text_string_to_metric_families(page):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                for sample in found.samples:
                    family.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
        yield from families.values()
