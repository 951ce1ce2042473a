"""What is wrong with an address in the settings: the part that is, and the setting that is meant for it."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

_HOST_AND_PORT = re.compile(r"\[?(?P<host>[^\[\]/]*?)\]?:(?P<port>\d+)")
_SCHEMES = ("http", "https")


class Fault(NamedTuple):
    """What is wrong with an address. allowed: what it should be."""

    reason: str
    allowed: str


def url_fault(path: str, url: str, is_base: bool) -> Fault | None:
    """Return what is wrong with the URL in the setting `path`; None: nothing that this function knows.

    is_base: it is the address of a cluster, to which the gateway adds paths.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        if "/" not in url and (found := _HOST_AND_PORT.fullmatch(url)):
            return Fault("has no scheme", f"http://{found[0]} or https://{found[0]}")
        return Fault("has no scheme", "an address such as http://127.0.0.1:9200")
    if scheme.lower() not in _SCHEMES:
        return Fault(f"has the scheme {scheme!r}", "http or https")
    if any(character.isspace() for character in url):
        return Fault("has a space in it", "an address without spaces")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        return Fault("has a user name or password in it", _account(path))
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return _authority_fault(authority)
    if not host:
        return Fault("has no host", f"{scheme}://HOST:PORT")
    if scheme not in _SCHEMES:
        return Fault(f"has the scheme {scheme!r}", f"{scheme.lower()}, in lower case")
    if is_base:
        return _rest_fault(rest.removeprefix(authority), f"{scheme}://{authority}")
    if not rest.removeprefix(authority).startswith("/"):
        return Fault("has no path", f"the whole URL, such as {scheme}://{authority}{_PATHS.get(path, '/')}")
    return None


_PATHS = {"telemetry.traces.endpoint": "/v1/traces"}
_ACCOUNTS = {
    "upstream": "upstream.auth.mode: basic, with upstream.auth.basic.username and password",
    "guardrails": "header and secret of the guardrail",
    "traces": "telemetry.traces.header and secret",
}


def _account(path: str) -> str:
    """Return the settings that are meant for the credentials of a URL."""
    part = next((name for name in _ACCOUNTS if name in path), "")
    section = path.rpartition(".")[0]
    return f"set {_ACCOUNTS[part] if part else f'{section}.username and {section}.password'}, instead"


def _authority_fault(authority: str) -> Fault:
    port = authority.rpartition(":")[2]
    if authority.count(":") > 1 and "[" not in authority:
        return Fault("has an IPv6 address without brackets", "http://[::1]:9200")
    if ":" in authority and not port.endswith("]"):
        return Fault(f"has the port {port!r}", "a port from 0 to 65535")
    return Fault(f"has the host {authority!r}", "a name or an IP address; IPv6 in brackets: [::1]")


def _rest_fault(rest: str, base: str) -> Fault | None:
    if rest in ("", "/"):
        return None
    what = {"/": "path", "?": "query", "#": "fragment"}[rest[0]]
    return Fault(f"has the {what} {rest!r}, but the gateway adds each request's own", base)


def host_fault(name: str, host: str) -> Fault | None:
    """Return what is wrong with the host in `listen.{name}_host`; None: nothing."""
    setting = f"listen.{name}_host"
    if host.startswith("unix:"):
        return None if name == "admin" else Fault("can't be a Unix socket", "a name or an IP address")
    if not host:
        return Fault("is empty", "0.0.0.0 for all addresses of this machine, 127.0.0.1 for this machine alone")
    try:
        ip_address(host)
    except ValueError:
        pass
    else:
        return None
    if found := _HOST_AND_PORT.fullmatch(host):
        return Fault("has a port", f"{setting}: {found['host'] or '0.0.0.0'!r} and listen.{name}_port: {found['port']}")
    if host.startswith("[") and host.endswith("]"):
        return Fault("has brackets", f"{setting}: '{host[1:-1]}'")
    if "/" in host or any(character.isspace() for character in host):
        return Fault("is no host", "a name or an IP address, without a scheme or a path")
    return None
