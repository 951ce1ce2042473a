"""An OTLP collector that takes everything: ``python -m bench.collector PORT``."""

from __future__ import annotations

import sys

from aiohttp import web


async def take(request: web.Request) -> web.Response:
    """Read a batch of spans and drop it."""
    await request.read()
    return web.Response()


if __name__ == "__main__":
    application = web.Application(client_max_size=1 << 30)
    application.router.add_post("/v1/traces", take)
    web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
