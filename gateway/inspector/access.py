"""Who may see the pages of the inspector: the token, a cookie in its place, and what keeps other web pages out.

A browser logs in with the token and gets a cookie with a random number, which is forgotten when the gateway restarts,
when the token changes, or after twelve hours. A response that is still being sent then is cut.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import math
import secrets
import time
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gateway.config.types import Secret
from gateway.errors import GatewayError

INSPECTOR = "/inspector"
LOGIN, _LOGOUT, _STATIC = f"{INSPECTOR}/login", f"{INSPECTOR}/logout", f"{INSPECTOR}/static/{{name}}"
HOME = f"{INSPECTOR}/"
OWN_REQUEST = "X-MLC-Inspector"
"""A header that the pages' scripts send with every POST. Other sites can't send it."""
_COOKIE = "mlc_inspector"
_SECONDS = 12 * 3600
_MOST = 1000
_CHECKED_EVERY = 1.0
"""Seconds between two checks whether a request that is being answered is still allowed."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, the login form's Origin would be null
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Unauthorized(GatewayError):
    """The page needs the token of the admin port."""

    status = 401
    type = "Unauthorized"


class Forbidden(GatewayError):
    """The request may come from another web page."""

    status = 403
    type = "Forbidden"


class Access:
    """Guards the pages below `INSPECTOR`. token: the admin port's. is_private: only the supervisor reaches the port."""

    def __init__(self, token: Callable[[], Secret], is_private: bool) -> None:
        self._token = token
        self._is_private = is_private
        self._sessions: dict[bytes, tuple[float, str]] = {}
        """By the hash of a cookie: until when it is valid, and the token that it stands for."""

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the login, and of the files that browsers load."""
        return [
            web.get(LOGIN, self._show_login),
            web.post(LOGIN, self._login),
            web.post(_LOGOUT, self._logout),
            web.get(_STATIC, _static),
        ]

    async def guard(self, request: web.Request, handler: Handler, has_token: bool) -> web.StreamResponse:
        """Let a request through, or answer it. has_token: it came with the token.

        Raises:
            Forbidden: it may come from another web page.
            Unauthorized: it came without the token, and not from a browser.
        """
        place = request.match_info.route.resource
        if self._is_private:
            return await handler(request)
        if has_token and (token := self._token()):
            return await _answer_while(lambda: self._token() == token, request, handler)
        _check_host(request)
        if request.method not in ("GET", "HEAD"):
            _check_origin(request)
        if place is not None and place.canonical in (LOGIN, _STATIC):
            return await handler(request)
        if not self._token():
            return web.Response(status=401, text=render("no_token.html"), content_type="text/html")
        cookie = request.cookies.get(_COOKIE, "")
        if not self._knows(cookie):
            return _ask_for_login(request)
        if request.method not in ("GET", "HEAD") and OWN_REQUEST not in request.headers:
            raise Forbidden(f"This request needs the header {OWN_REQUEST}, or the token.")
        return await _answer_while(lambda: self._knows(cookie), request, handler)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers that keep scripts, frames and caches out."""
        if request.path.startswith(INSPECTOR):
            response.headers.update(_HEADERS)

    async def _show_login(self, request: web.Request) -> web.Response:
        return _login_page(200, _wanted_page(request.query.get("next", "")))

    async def _login(self, request: web.Request) -> web.Response:
        form = dict(parse_qsl((await request.read()).decode("utf-8", "replace")))
        given, page = form.get("token", ""), _wanted_page(form.get("next", ""))
        token = self._token().reveal()
        if not token or not hmac.compare_digest(given.strip().encode(), token.encode()):
            return _login_page(403, page, "This is not the token. It is the value of listen.admin_token.")
        response = web.HTTPSeeOther(page)
        secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
        response.set_cookie(
            _COOKIE,
            self._begin(token),
            max_age=_SECONDS,
            path=INSPECTOR,
            httponly=True,
            samesite="Strict",
            secure=secure,
        )
        raise response

    async def _logout(self, request: web.Request) -> web.Response:
        self._sessions.pop(_hash(request.cookies.get(_COOKIE, "")), None)
        response = web.json_response({"status": "logged out"})
        response.del_cookie(_COOKIE, path=INSPECTOR)
        return response

    def _begin(self, token: str) -> str:
        cookie = secrets.token_urlsafe(32)
        while len(self._sessions) >= _MOST:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[_hash(cookie)] = (time.monotonic() + _SECONDS, token)
        return cookie

    def _knows(self, cookie: str) -> bool:
        until, token = self._sessions.get(_hash(cookie), (0.0, ""))
        return time.monotonic() < until and token == self._token().reveal()


def refuse_other_sites(request: web.Request) -> None:
    """Refuse what the page of another site may have sent. Other programs send no Origin.

    Raises:
        Forbidden: it comes with a foreign Origin, or by a foreign name of a loopback address.
    """
    _check_host(request)
    if "Origin" in request.headers:
        _check_origin(request)


async def _answer_while(is_allowed: Callable[[], bool], request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a request, and cut its connection if it is not allowed any more: live lists do not end by themselves."""

    async def cut() -> None:
        while is_allowed():  # noqa: ASYNC110  # a new token and the end of a cookie set no event
            await asyncio.sleep(_CHECKED_EVERY)
        if request.transport is not None:
            request.transport.abort()

    watch = asyncio.create_task(cut())
    try:
        return await handler(request)
    finally:
        watch.cancel()


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogateescape")).digest()


def _check_host(request: web.Request) -> None:
    """Refuse a foreign name at a loopback address: by DNS rebinding, web pages of any site reach it.

    Raises:
        Forbidden: the name is neither localhost nor a loopback address.
    """
    address = request.transport.get_extra_info("sockname") if request.transport else None
    if not isinstance(address, tuple) or not _is_loopback(address[0]):
        return
    try:
        name = urlsplit(f"//{request.host}").hostname or ""
    except ValueError:  # such as [x
        name = ""
    if name != "localhost" and not name.endswith(".localhost") and not _is_loopback(name):
        reason = (
            f"[Host] The admin port listens on {address[0]}: open it as localhost, or send the token as Bearer token."
        )
        raise Forbidden(reason)


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


def _check_origin(request: web.Request) -> None:
    """Refuse a POST that another site's page sent.

    Raises:
        Forbidden: the Origin is not this server.
    """
    if request.headers.get("Origin", "").partition("://")[2].lower() != request.host.lower():
        raise Forbidden("[Origin] Only the admin port's own pages may send this, or a request with the token.")


def _ask_for_login(request: web.Request) -> web.Response:
    """Send a browser to the login.

    Raises:
        Unauthorized: it is another program.
    """
    if "text/html" in request.headers.get("Accept", ""):
        return web.Response(status=303, headers={"Location": f"{LOGIN}?{urlencode({'next': request.path_qs})}"})
    raise Unauthorized(f"The inspector needs a token: log in at {LOGIN}, or send `Authorization: Bearer <token>`.")


def _wanted_page(page: str) -> str:
    """Return the page to show after the login: one of the inspector's own."""
    return page if page.startswith(HOME) and page.isprintable() else HOME


def _login_page(status: int, page: str, fault: str = "") -> web.Response:
    return web.Response(status=status, text=render("login.html", next=page, fault=fault), content_type="text/html")


async def _static(request: web.Request) -> web.Response:
    found = static_files().get(request.match_info["name"])
    if found is None:
        raise web.HTTPNotFound
    return web.Response(body=found[1], content_type=found[0], charset="utf-8")


_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def _environment() -> Environment:
    loader = PackageLoader("gateway.inspector")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters.update(duration=duration, size=size, segment=segment, count=count, money=money, prose=prose)
    return made


def segment(text: str) -> str:
    """Return a text as one part of an address."""
    return quote(text, safe="")


def duration(seconds: float) -> str:
    """Return seconds as a person reads them: 840 µs, 12 ms, 1.24 s."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms" if seconds < 1 else f"{seconds:.2f} s"


def size(length: int) -> str:
    """Return a number of bytes as a person reads it: 512 B, 1.5 KB, 50.0 MB."""
    if length < 1000:
        return f"{length} B"
    return f"{length / 1e3:.1f} KB" if length < 1e6 else f"{length / 1e6:.1f} MB"


def count(number: int) -> str:
    """Return a number with its thousands apart: 1,840."""
    return f"{number:,}"


_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£"}


def money(cost: float, currency: str = "") -> str:
    """Return a cost as a person reads it: $0.00585, 12.30 CHF."""
    digits = 2 if cost >= 1 or cost <= 0 else min(6, 2 - math.floor(math.log10(cost)))
    number = f"{cost:,.{digits}f}"
    return f"{_SIGNS[currency]}{number}" if currency in _SIGNS else f"{number} {currency}".strip()


def prose(text: str) -> Markup:
    """Return a text as HTML, with what is in backticks as code."""
    parts = (
        f"<code>{escape(part)}</code>" if number % 2 else escape(part) for number, part in enumerate(text.split("`"))
    )
    return Markup("").join(Markup(part) for part in parts)


def render(template: str, **values: Any) -> str:
    """Return a page as HTML."""
    return _environment().get_template(template).render(values)


@cache
def static_files() -> dict[str, tuple[str, bytes]]:
    """Return media type and content of each file that browsers load, by its name."""
    found = {}
    for file in files("gateway.inspector").joinpath("static").iterdir():
        kind = _TYPES.get(file.name[file.name.rfind(".") :])
        if kind:
            found[file.name] = (kind, file.read_bytes())
    return found
