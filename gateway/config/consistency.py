"""Finds settings that are valid one by one, but not together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from gateway.config.policy_check import check_policy
from gateway.config.problems import ConfigProblem
from gateway.config.schema import Account, Listen, ServiceAccount, Settings, Upstream

_SECRET_HEADERS = ("authorization", "cookie", "proxy-authorization", "x-amz-security-token")


def check(settings: Settings, url_given: bool) -> list[ConfigProblem]:
    """Return the contradictions. url_given: `upstream.url` is set, not its default."""
    problems: list[ConfigProblem] = []
    urls = {"upstream.url": settings.upstream.url}
    urls |= {f"upstream.nodes[{i}]": url for i, url in enumerate(settings.upstream.nodes)}
    for path, url in urls.items():
        try:
            urlsplit(url).port  # noqa: B018  # reading it checks it
        except ValueError:
            problems.append(ConfigProblem(path, "has a bad host or port", allowed="a port from 0 to 65535"))
    if settings.agents.lookup == "service_account":
        account = settings.agents.service_account
        problems += _incomplete("agents.service_account", account, "agents.lookup is service_account")
    if settings.memory.tenant_header.lower() in _SECRET_HEADERS:
        problems.append(
            ConfigProblem(
                "memory.tenant_header",
                "holds credentials, and the store shows its value",
                repr(settings.memory.tenant_header),
                "a header with the tenant's name",
            )
        )
    if settings.upstream.auth.mode == "basic":
        problems += _incomplete("upstream.auth.basic", settings.upstream.auth.basic, "upstream.auth.mode is basic")
    for section, tls in (("listen.tls", settings.listen.tls), ("upstream.tls", settings.upstream.tls)):
        if tls.key_file and not tls.cert_file:
            problems.append(ConfigProblem(f"{section}.cert_file", f"is needed with {section}.key_file"))
    problems += _check_exposure(settings.listen)
    if settings.listen.tls.client_ca_file and not settings.listen.tls.cert_file:
        problems.append(ConfigProblem("listen.tls.cert_file", "is needed with listen.tls.client_ca_file"))
    problems += _circular(settings.agents.aliases)
    problems += _ambiguous_roles(settings.agents.roles)
    if settings.media.fetch and not settings.media.hosts:
        problems.append(ConfigProblem("media.hosts", "is needed when media.fetch is on"))
    problems += _check_nodes(settings.upstream, url_given)
    problems += check_policy(settings)
    return problems


def _check_nodes(upstream: Upstream, url_given: bool) -> Iterator[ConfigProblem]:
    """Check that nodes differ, that all or none use TLS, and that `url` does not name another cluster."""
    if not upstream.nodes:
        return
    if url_given:
        reason = "can't be given together with upstream.nodes, wherever each comes from; remove one of them"
        yield ConfigProblem("upstream.url", reason)
    first_scheme = urlsplit(upstream.nodes[0]).scheme
    seen: dict[tuple[str, int], int] = {}
    for i, url in enumerate(upstream.nodes):
        path, parts = f"upstream.nodes[{i}]", urlsplit(url)
        if parts.scheme != first_scheme:
            reason = "is of another scheme than upstream.nodes[0], so some nodes would get credentials unencrypted"
            yield ConfigProblem(path, reason, repr(url), f"an address with {first_scheme}://")
        try:
            first = seen.setdefault(_host_and_port(url), i)
        except ValueError:
            continue  # reported by `check`
        if first != i:
            yield ConfigProblem(path, f"is the same node as upstream.nodes[{first}]", repr(url))


def _host_and_port(url: str) -> tuple[str, int]:
    """Return what identifies a node. Raises ValueError: bad port."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    with contextlib.suppress(ValueError):
        host = str(ip_address(host))
    return host, parts.port or (443 if parts.scheme == "https" else 80)


def _circular(aliases: Mapping[str, str]) -> Iterator[ConfigProblem]:
    """Find aliases of aliases: it would be unclear which agent runs."""
    for old, new in aliases.items():
        if new in aliases:
            allowed = "the id of an agent that is not an alias itself"
            yield ConfigProblem(f"agents.aliases.{old}", "leads to another alias", repr(new), allowed)


def _ambiguous_roles(roles: Mapping[str, str]) -> Iterator[ConfigProblem]:
    """Find roles that differ only in case. Case is ignored, so a client's role would have two meanings."""
    seen: dict[str, str] = {}
    for role in roles:
        other = seen.setdefault(role.casefold(), role)
        if other != role:
            yield ConfigProblem(f"agents.roles.{role}", f"is the same role as {other!r}: case is ignored")


def _check_exposure(listen: Listen) -> Iterator[ConfigProblem]:
    """Find settings that would admit or trust more than intended."""
    token = listen.admin_token
    if not is_local(listen.admin_host) and not token:
        yield ConfigProblem("listen.admin_token", "is needed when listen.admin_host is not a loopback address")
    if token and not (token.reveal().isascii() and token.reveal().isprintable()):
        yield ConfigProblem("listen.admin_token", "must be printable ASCII, as it is sent in a header")
    for i, network in enumerate(listen.trusted_proxies):
        try:
            ip_network(network)
        except ValueError:
            path = f"listen.trusted_proxies[{i}]"
            yield ConfigProblem(path, "is not a network", repr(network), "an address, or one with a prefix: 10.0.0.0/8")


def is_local(host: str) -> bool:
    """Return True if only this machine can reach `host`: a loopback address or a Unix socket."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _incomplete(path: str, account: Account | ServiceAccount, when: str) -> list[ConfigProblem]:
    given = {"username": bool(account.username), "password": bool(account.password)}
    return [ConfigProblem(f"{path}.{name}", f"is needed when {when}") for name, there in given.items() if not there]
