"""The reverse proxy that aiohttp's own documentation leads to: one session, one handler, bodies streamed."""

from __future__ import annotations

import sys

from aiohttp import ClientSession, web

HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"}


def app(upstream: str) -> web.Application:
    async def session(app: web.Application) -> None:
        app[SESSION] = ClientSession(auto_decompress=False)
        yield
        await app[SESSION].close()

    async def handle(request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        body = request.content if request.can_read_body else None
        session = request.app[SESSION]
        async with session.request(
            request.method, upstream + request.raw_path, headers=headers, data=body, allow_redirects=False
        ) as answer:
            end_to_end = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=end_to_end)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    made = web.Application()
    made.cleanup_ctx.append(session)
    made.router.add_route("*", "/{path:.*}", handle)
    return made


SESSION = web.AppKey("session", ClientSession)

if __name__ == "__main__":
    web.run_app(app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), access_log=None, print=None)
