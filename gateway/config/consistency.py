"""Finds settings that are valid one by one, but not together, and says what is wrong with an address."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.config.policy import Guardrail, Policy, UsageBudget
from gateway.config.problems import ConfigProblem, depends_on
from gateway.config.schema import (
    Account,
    AdapterKey,
    Adapters,
    AgentRoute,
    Agents,
    Auth,
    Listen,
    ListenTls,
    MediaByUrl,
    Secret,
    ServiceAccount,
    Settings,
    Tls,
    Upstream,
)

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


_SECRET_HEADERS = ("authorization", "cookie", "proxy-authorization", "x-amz-security-token")
_SHORTEST_TOKEN = 16
_ANY_ADDRESS = "0.0.0.0"  # compared, not bound


def check(settings: Settings, urls_given: Collection[str], wrong: Collection[str] = ()) -> list[ConfigProblem]:
    """Return the contradictions. urls_given: sections whose `url` is set: `upstream`, `clusters.NAME`.

    wrong: paths of settings that could not be read. What depends on one of them is not checked.
    """
    agents, listen, upstream = settings.agents, settings.listen, settings.upstream
    checks: tuple[tuple[tuple[str, ...], Iterable[ConfigProblem]], ...] = (
        (("upstream.url", "upstream.nodes"), _check_addresses("upstream", upstream)),
        (("agents.lookup", "agents.service_account"), _check_lookup(agents)),
        (("memory.tenant_header",), _check_tenant(settings.memory.tenant_header)),
        (("upstream.auth",), _check_auth("upstream", upstream.auth)),
        (("listen.tls",), _check_key("listen.tls", listen.tls)),
        (("upstream.tls",), _check_key("upstream.tls", upstream.tls)),
        (("listen.admin_host", "listen.admin_token"), _check_exposure(listen)),
        (("listen.admin_token",), _check_token(listen.admin_token)),
        (
            tuple(f"listen.{name}_{part}" for name in ("data", "admin", "adapters") for part in ("host", "port")),
            _check_ports(listen),
        ),
        (tuple(f"listen.{name}_host" for name in ("data", "admin", "adapters")), _check_hosts(listen)),
        (("adapters.keys",), _check_keys(settings.adapters.keys)),
        (("adapters.origins",), _check_origins(settings.adapters.origins)),
        (("adapters.mcp", "adapters.agents"), _check_tools(settings.adapters)),
        (("listen.trusted_proxies",), _check_networks(listen.trusted_proxies)),
        (("listen.tls",), _check_client_ca(listen.tls)),
        (("agents.aliases",), _circular(agents.aliases)),
        (("agents.roles",), _ambiguous_roles(agents.roles)),
        (("media.fetch", "media.hosts"), _check_media(settings.media)),
        (("upstream.url", "upstream.nodes"), _check_nodes("upstream", upstream, "upstream" in urls_given)),
        (("clusters",), _check_clusters(settings.clusters, urls_given)),
        (("agents.routes", "agents.aliases", "clusters"), _check_routes(settings)),
        (("policy.budgets", "policy.prices"), check_budgets(settings.policy)),
        (("policy.budgets", "policy.budget_store", "listen.workers"), check_budget_store(settings)),
        (("policy.guardrails",), check_guardrails(settings.policy.guardrails)),
    )
    readable = (found for paths, found in checks if not depends_on(paths, wrong))
    return [problem for found in readable for problem in found]


def _check_addresses(section: str, upstream: Upstream) -> Iterator[ConfigProblem]:
    urls = {f"{section}.url": upstream.url, **{f"{section}.nodes[{i}]": url for i, url in enumerate(upstream.nodes)}}
    for path, url in urls.items():
        yield from _check_port(path, url)


def _check_port(path: str, url: str) -> Iterator[ConfigProblem]:
    try:
        urlsplit(url).port  # noqa: B018  # reading it checks it
    except ValueError:
        yield ConfigProblem(path, "has a bad host or port", allowed="a port from 0 to 65535")


def _check_hosts(listen: Listen) -> Iterator[ConfigProblem]:
    for name in ("data", "admin", "adapters"):
        host = getattr(listen, f"{name}_host")
        if fault := host_fault(name, host):
            yield ConfigProblem(f"listen.{name}_host", fault.reason, repr(host), fault.allowed)


def _check_lookup(agents: Agents) -> Iterator[ConfigProblem]:
    if agents.lookup == "service_account":
        yield from _incomplete("agents.service_account", agents.service_account, "agents.lookup is service_account")


def _check_tenant(header: str) -> Iterator[ConfigProblem]:
    if header.lower() in _SECRET_HEADERS:
        reason = "holds credentials, and the store shows its value"
        yield ConfigProblem("memory.tenant_header", reason, repr(header), "a header with the tenant's name")


def _check_auth(section: str, auth: Auth) -> Iterator[ConfigProblem]:
    if auth.mode == "basic":
        yield from _incomplete(f"{section}.auth.basic", auth.basic, f"{section}.auth.mode is basic")


def _check_key(section: str, tls: ListenTls | Tls) -> Iterator[ConfigProblem]:
    if tls.key_file and not tls.cert_file:
        yield ConfigProblem(f"{section}.cert_file", f"is needed with {section}.key_file")


def _check_client_ca(tls: ListenTls) -> Iterator[ConfigProblem]:
    if tls.client_ca_file and not tls.cert_file:
        yield ConfigProblem("listen.tls.cert_file", "is needed with listen.tls.client_ca_file")


def _check_media(media: MediaByUrl) -> Iterator[ConfigProblem]:
    if media.fetch and not media.hosts:
        yield ConfigProblem("media.hosts", "is needed when media.fetch is on")


def _check_nodes(section: str, upstream: Upstream, url_given: bool) -> Iterator[ConfigProblem]:
    """Check that nodes differ, that all or none use TLS, and that `url` does not name another cluster."""
    if not upstream.nodes:
        return
    if url_given:
        reason = f"can't be given together with {section}.nodes, wherever each comes from; remove one of them"
        yield ConfigProblem(f"{section}.url", reason)
    first_scheme = urlsplit(upstream.nodes[0]).scheme
    seen: dict[tuple[str, int], int] = {}
    for i, url in enumerate(upstream.nodes):
        path, parts = f"{section}.nodes[{i}]", urlsplit(url)
        if parts.scheme != first_scheme:
            reason = f"is of another scheme than {section}.nodes[0], so some nodes would get credentials unencrypted"
            yield ConfigProblem(path, reason, repr(url), f"an address with {first_scheme}://")
        try:
            first = seen.setdefault(_host_and_port(url), i)
        except ValueError:
            continue  # reported by `check`
        if first != i:
            yield ConfigProblem(path, f"is the same node as {section}.nodes[{first}]", repr(url))


def _check_clusters(clusters: Mapping[str, Upstream], urls_given: Collection[str]) -> Iterator[ConfigProblem]:
    for name, cluster in clusters.items():
        section = f"clusters.{name}"
        if not name:
            yield ConfigProblem("clusters", "has a cluster without a name", allowed="a name for each")
        if name == "upstream":
            yield ConfigProblem(section, "has the name of the cluster of `upstream`", allowed="another name")
        if section not in urls_given and not cluster.nodes:
            yield ConfigProblem(f"{section}.url", "is missing", allowed="the address of the cluster")
        yield from _check_addresses(section, cluster)
        yield from _check_nodes(section, cluster, section in urls_given)
        yield from _check_auth(section, cluster.auth)
        yield from _check_key(f"{section}.tls", cluster.tls)


def _check_routes(settings: Settings) -> Iterator[ConfigProblem]:
    routes = settings.agents.routes
    own = [route.agent for route in routes]
    reached: dict[str, tuple[str, str]] = {}
    for index, route in enumerate(routes):
        path = f"agents.routes[{index}]"
        if own.index(route.agent) != index:
            yield ConfigProblem(f"{path}.agent", "has a route already", repr(route.agent), "one route for each id")
        if route.agent in settings.agents.aliases:
            reason = "is in agents.aliases, too"
            yield ConfigProblem(f"{path}.agent", reason, repr(route.agent), "one of the two")
        if not sum(target.weight for target in route.targets):
            reason = "has no target with a weight above 0, so nobody answers new conversations"
            yield ConfigProblem(f"{path}.targets", reason, allowed="one weight above 0 or more")
        yield from _check_targets(path, route, own, settings)
        yield from _check_marks(path, route, reached)
        yield from _check_mirror(f"{path}.mirror", route)


def _check_targets(path: str, route: AgentRoute, own: Sequence[str], settings: Settings) -> Iterator[ConfigProblem]:
    agents = [target.agent for target in route.targets]
    for index, target in enumerate(route.targets):
        place, cluster = f"{path}.targets[{index}]", settings.clusters.get(target.cluster)
        if agents.index(target.agent) != index:
            reason = "is the agent of another target: the ids of conversations could not tell them apart"
            yield ConfigProblem(f"{place}.agent", reason, repr(target.agent), "one target for each agent")
        is_own = target.agent == route.agent
        if not target.cluster and not is_own and (target.agent in own or target.agent in settings.agents.aliases):
            allowed = "the id of an agent that has no route itself"
            yield ConfigProblem(f"{place}.agent", "leads to another route", repr(target.agent), allowed)
        if target.cluster and cluster is None:
            known = ", ".join(settings.clusters) or "none: add it to clusters"
            known = "nothing, which is upstream" if target.cluster == "upstream" else known
            yield ConfigProblem(f"{place}.cluster", "is not in clusters", repr(target.cluster), known)
        if target.cluster and is_own:
            reason = "is the route's own id, which is that of an agent of upstream"
            yield ConfigProblem(f"{place}.agent", reason, repr(target.agent), "the id of another agent")
        if not target.cluster and target.callers != "checked":
            reason = "is about targets on another cluster"
            yield ConfigProblem(f"{place}.callers", reason, target.callers, "checked, or a cluster")
        if cluster is not None and target.callers == "passed" and cluster.auth.mode != "pass":
            reason = f"contradicts clusters.{target.cluster}.auth.mode, which replaces the caller's credentials"
            yield ConfigProblem(f"{place}.callers", reason, "passed", "checked or trusted")


def _check_marks(path: str, route: AgentRoute, reached: dict[str, tuple[str, str]]) -> Iterator[ConfigProblem]:
    """Check that the mark of an id, which is made of the agent's id, leads to one cluster in one way.

    reached: cluster and `callers` of the agents so far.
    """
    for index, target in enumerate(route.targets):
        way = target.cluster, target.callers
        if target.agent != route.agent and reached.setdefault(target.agent, way) != way:
            reason = "has another cluster or other callers in another route: ids of conversations do not tell the route"
            yield ConfigProblem(f"{path}.targets[{index}].agent", reason, repr(target.agent), "the id of another agent")


def _check_mirror(path: str, route: AgentRoute) -> Iterator[ConfigProblem]:
    mirror, agents = route.mirror, [target.agent for target in route.targets]
    if mirror.agent and mirror.agent not in agents:
        reason = "is no target of the route"
        yield ConfigProblem(f"{path}.agent", reason, repr(mirror.agent), " or ".join(agents))
    if mirror.agent and mirror.tools is None:
        reason = "is needed with mirror.agent: a tool that acts would act twice"
        yield ConfigProblem(f"{path}.tools", reason, allowed="none, or a list of the tools that do no harm")


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
    if not is_local(listen.admin_host) and not listen.admin_token:
        yield ConfigProblem("listen.admin_token", "is needed when listen.admin_host is not a loopback address")


def _is_sendable(value: str) -> bool:
    """Return True if a header can hold the value."""
    return value.isascii() and value.isprintable()


def _check_token(token: Secret) -> Iterator[ConfigProblem]:
    if token and not _is_sendable(token.reveal()):
        yield ConfigProblem("listen.admin_token", "must be printable ASCII, as it is sent in a header")
    if token and len(token.reveal()) < _SHORTEST_TOKEN:
        given, allowed = f"{len(token.reveal())} characters", f"at least {_SHORTEST_TOKEN}"
        yield ConfigProblem("listen.admin_token", "is too short, so it could be guessed", given, allowed)


def _check_ports(listen: Listen) -> Iterator[ConfigProblem]:
    ports = [
        ("data_port", listen.data_host, listen.data_port, "the cluster's API"),
        ("admin_port", listen.admin_host, listen.admin_port, "health and metrics"),
        ("adapters_port", listen.adapters_host, listen.adapters_port or 0, "the adapters"),
    ]
    for index, (name, host, port, _) in enumerate(ports):
        for other_name, other_host, other_port, what in ports[:index]:
            if port == other_port != 0 and _overlap(host, other_host):
                allowed = f"another port than listen.{other_name}; 0: any free port"
                yield ConfigProblem(f"listen.{name}", f"is the port of {what}", str(port), allowed)


def _overlap(host: str, other: str) -> bool:
    hosts = {host, other}
    if any(one.startswith("unix:") for one in hosts):
        return False
    return len(hosts) == 1 or (_ANY_ADDRESS in hosts and not any(":" in one for one in hosts))


def _check_keys(keys: Sequence[AdapterKey]) -> Iterator[ConfigProblem]:
    seen: dict[str, str] = {}
    for index, entry in enumerate(keys):
        path = f"adapters.keys[{index}]"
        for name, secret in (("key", entry.key), ("authorization", entry.authorization)):
            value = secret.reveal()
            if not value or not _is_sendable(value):
                yield ConfigProblem(f"{path}.{name}", "must be printable ASCII, as it is sent in a header")
        key = entry.key.reveal()
        if 0 < len(key) < _SHORTEST_TOKEN:
            given, allowed = f"{len(key)} characters", f"at least {_SHORTEST_TOKEN}"
            yield ConfigProblem(f"{path}.key", "is too short, so it could be guessed", given, allowed)
        other = seen.setdefault(key, path)
        if other != path:
            yield ConfigProblem(f"{path}.key", f"is the same key as that of {other}")


def _check_origins(origins: Sequence[str]) -> Iterator[ConfigProblem]:
    for index, origin in enumerate(origins):
        try:
            parts = urlsplit(origin)
            is_origin = f"{parts.scheme}://{parts.netloc}" == origin and parts.scheme in ("http", "https")
            parts.port  # noqa: B018  # reading it checks it
        except ValueError:
            is_origin = False
        if origin != "*" and not is_origin:
            allowed = "*, or a scheme, a host and perhaps a port: https://app.example.com"
            yield ConfigProblem(f"adapters.origins[{index}]", "is not an origin", repr(origin), allowed)


def _check_tools(adapters: Adapters) -> Iterator[ConfigProblem]:
    seen: dict[str, str] = {}
    agents = {*adapters.agents, *adapters.agents.values()}
    for index, tool in enumerate(adapters.mcp):
        path = f"adapters.mcp[{index}]"
        other = seen.setdefault(tool.name, path)
        if other != path:
            yield ConfigProblem(f"{path}.name", f"is the name of {other}, too", repr(tool.name))
        if agents and tool.agent not in agents:
            allowed = " or ".join(sorted(adapters.agents))
            yield ConfigProblem(f"{path}.agent", "is none of adapters.agents", repr(tool.agent), allowed)


def _check_networks(networks: Sequence[str]) -> Iterator[ConfigProblem]:
    for i, network in enumerate(networks):
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


def check_budgets(policy: Policy) -> Iterator[ConfigProblem]:
    """Yield the contradictions within budgets, and between budgets and prices."""
    currencies = {price.currency for price in policy.prices}
    seen: dict[object, str] = {}
    for index, budget in enumerate(policy.budgets):
        path = f"policy.budgets[{index}]"
        yield from _check_budget(path, budget, currencies)
        identity = (budget.agent, budget.per, "tokens" if budget.tokens else budget.currency, budget.seconds)
        other = seen.setdefault(identity, path)
        if other != path:
            yield ConfigProblem(path, f"has the same agent, per, unit and seconds as {other}; remove one of them")


def check_budget_store(settings: Settings) -> Iterator[ConfigProblem]:
    """Yield a problem if budgets are counted in the memory of each of several workers."""
    if settings.policy.budgets and settings.policy.budget_store == "memory" and settings.listen.workers > 1:
        reason = "is memory, in which each of several workers (listen.workers) counts for itself"
        yield ConfigProblem("policy.budget_store", reason, "'memory'", "sqlite or opensearch")


def _check_budget(path: str, budget: UsageBudget, currencies: set[str]) -> Iterator[ConfigProblem]:
    if bool(budget.tokens) == bool(budget.money):
        yield ConfigProblem(path, "needs either tokens or money", allowed="one of them above 0")
    if budget.money and budget.currency not in currencies:
        reason = "has no price in policy.prices, so no cost could be counted"
        known = ", ".join(sorted(currencies)) or "none yet"
        yield ConfigProblem(f"{path}.currency", reason, repr(budget.currency), known)
    if (budget.unknown == "count") != bool(budget.unknown_amount):
        yield ConfigProblem(f"{path}.unknown_amount", "is needed with unknown: count, and only there")


def check_guardrails(guardrails: Sequence[Guardrail]) -> Iterator[ConfigProblem]:
    """Yield the contradictions within guardrails, and between them."""
    names: set[str] = set()
    for index, guardrail in enumerate(guardrails):
        path = f"policy.guardrails[{index}]"
        if guardrail.name in names:
            yield ConfigProblem(f"{path}.name", "is the name of another guardrail", repr(guardrail.name))
        names.add(guardrail.name)
        if bool(guardrail.url) == bool(guardrail.entry_point):
            yield ConfigProblem(path, "needs either url or entry_point")
        if guardrail.secret and not guardrail.url:
            yield ConfigProblem(f"{path}.secret", "is only sent to a url")
        if guardrail.secret and not _is_sendable(guardrail.secret.reveal()):
            yield ConfigProblem(f"{path}.secret", "must be printable ASCII, as it is sent in a header")
        yield from _check_port(f"{path}.url", guardrail.url)
