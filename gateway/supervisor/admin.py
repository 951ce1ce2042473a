"""The supervisor's admin port: its workers' health and metrics on one page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest

from gateway.admin.pages import NotFound, json_page
from gateway.observe.metrics import CONTENT_TYPE
from gateway.proxy import error_responses

_COMMENT = re.compile(r"# (?:HELP|TYPE) (\S+)")


class Answer(NamedTuple):
    """A worker's answer on its admin port."""

    status: int
    body: bytes


Ask = Callable[[int, str], Awaitable[Answer | None]]
"""Asks a worker, by its number, for a page; None: it did not answer."""


class SupervisorPort:
    """Answers the requests of the admin port for `count` workers; an aiohttp handler.

    Counters are not added up: each worker's series stands under its label ``worker``, so that a worker's end and
    restart is the reset of its own series, which Prometheus knows how to take. A sum would go down instead.
    """

    def __init__(self, count: int, ask: Ask) -> None:
        self._count = count
        self._ask = ask
        self.draining = False
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
        self._pages = {"/health/live": self._live, "/health/ready": self._ready, "/metrics": self._metrics}

    def restarted(self, worker: int) -> None:
        """A worker ended and will be started again."""
        self._restarts.labels(str(worker)).inc()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """The page asked for, by GET or HEAD."""
        page = self._pages.get(request.raw_path.partition("?")[0])
        if page is None or request.method not in ("GET", "HEAD"):
            pages = ", ".join(self._pages)
            return error_responses.respond(NotFound(f"The admin port answers GET on {pages}."), request_id="")
        return await page()

    async def _live(self) -> web.Response:
        return json_page(200, {"status": "live"})

    async def _ready(self) -> web.Response:
        if self.draining:
            return json_page(503, {"status": "draining"})
        answers = await self._all("/health/ready")
        ready = sum(answer is not None and answer.status == 200 for answer in answers)
        status = {"status": "ready" if ready else "not ready", "workers": f"{ready} of {self._count}"}
        return json_page(200 if ready else 503, status)

    async def _metrics(self) -> web.Response:
        answers = await self._all("/metrics")
        pages = {}
        for number, answer in enumerate(answers):
            good = answer is not None and answer.status == 200
            self._up.labels(str(number)).set(good)
            if answer is not None and good:
                pages[str(number)] = answer.body.decode()
        body = generate_latest(self._registry) + merged(pages).encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _all(self, path: str) -> list[Answer | None]:
        return await asyncio.gather(*(self._ask(number, path) for number in range(self._count)))


def merged(pages: Mapping[str, str]) -> str:
    """One page in Prometheus' text format out of several, each sample under the label of its page.

    pages: the value of the label ``worker`` → its page.
    """
    comments: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, page in pages.items():
        family = ""
        for line in page.splitlines():
            if found := _COMMENT.match(line):
                family = found[1]
                comments.setdefault(family, [])
                if line not in comments[family]:
                    comments[family].append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, worker))
    return "".join(f"{line}\n" for family in comments for line in (*comments[family], *samples.get(family, ())))


def _labelled(sample: str, worker: str) -> str:
    """A sample under one more label. A name has neither brace nor space, so the first of them ends it."""
    name = re.match(r"[^{ ]+", sample)
    assert name is not None, "a sample begins with its name"
    rest = sample[name.end() :]
    more = f",{rest[1:]}" if rest.startswith("{") else f"}}{rest}"
    return f'{name[0]}{{worker="{worker}"{more}'
