"""Decides what becomes of a request: which exchange handles it, and with which head."""

from __future__ import annotations

from urllib.parse import quote

from msgspec.structs import replace

from gateway.config.schema import Settings
from gateway.http1.request_heads import Request
from gateway.proxy.copied import CopiedExchange, CopiedMemoryRead, CopiedMemorySearch
from gateway.proxy.exchange import Exchange, ExchangePort
from gateway.proxy.execution import Execution
from gateway.proxy.forwarded import Forwarding
from gateway.proxy.interfaces import Client
from gateway.proxy.max_forwards import LastHop, is_last_hop, with_one_hop_less
from gateway.proxy.memory_read import MemoryRead
from gateway.proxy.memory_search import MemorySearch, is_small_search
from gateway.proxy.routes import MANAGED, RUNS, Intent, Route, intent_of
from gateway.upstream.auth.authenticator import Authenticator

# Module constants, because an attribute of an Enum takes four times as long to look up.
_PASSTHROUGH, _READ_MEMORY = Intent.PASSTHROUGH, Intent.READ_MEMORY


class Router:
    """Makes the exchange for each request. manages, shows_sessions: there is a use case for that.

    copies: bodies that pass unchanged are recorded.
    """

    def __init__(
        self,
        settings: Settings,
        forwarding: Forwarding,
        auth: Authenticator | None,
        manages: bool,
        shows_sessions: bool = False,
        copies: bool = False,
    ) -> None:
        self._exchange = CopiedExchange if copies else Exchange
        self._memory_read = CopiedMemoryRead if copies else MemoryRead
        self._memory_search = CopiedMemorySearch if copies else MemorySearch
        self._forwarding = forwarding
        self._auth = auth
        self._shows_sessions = shows_sessions
        self._shows_memory = settings.memory.readable
        self._aliases = settings.agents.aliases
        self._handled_intents = (
            *RUNS,
            *(MANAGED if manages else ()),
            *((Intent.SESSION,) if shows_sessions else ()),
        )

    def exchange(self, port: ExchangePort, client: Client, request: Request) -> Exchange:
        """Make the exchange for `request`, whose head is changed as the settings say."""
        route = intent_of(request.method, request.target)
        if request.fields.max_forwards is not None:
            if is_last_hop(request):
                return LastHop(port, client, request, route)
            request = with_one_hop_less(request)
        if self._forwarding.changes:
            request = self._forwarding.of(request, client.peer)
        if self._aliases and route.intent in RUNS and route.id in self._aliases:
            request, route = aliased(request, route, self._aliases[route.id])
        handled = route.intent is not _PASSTHROUGH and route.intent in self._handled_intents
        if handled or (self._auth is not None and self._auth.needs_body and request.has_body):
            return Execution(port, client, request, route)
        if self._shows_sessions and is_small_search(request, route):
            return self._memory_search(port, client, request, route, self._shows_memory)
        if self._shows_memory and route.intent is _READ_MEMORY:
            return self._memory_read(port, client, request, route)
        return self._exchange(port, client, request, route)


def aliased(request: Request, route: Route, agent_id: str) -> tuple[Request, Route]:
    """Return the request for another agent: only the id in its target differs."""
    before, mark, rest = request.target.partition(b"/agents/")
    after = rest.partition(b"/")[2]
    target = b"%b%b%b/%b" % (before, mark, quote(agent_id, safe="").encode("ascii"), after)
    return Request(request.method, target, request.minor, request.fields), replace(route, id=agent_id, aliased=True)
