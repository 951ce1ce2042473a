"""Calls the use case for a request whose body has been read, and refuses what a client's signature forbids."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.errors import GatewayError, SessionNotFound, UnresolvedAgent
from gateway.memory.rest import find_session_id
from gateway.ports import Answer, ExecuteCall, ExecuteHandler, Forward, ManageHandler, RoutedMemory, SessionHandler
from gateway.proxy.interfaces import RunningExchange
from gateway.proxy.routes import RUNS, Intent
from gateway.upstream.auth.authenticator import client_signature, refuse_rewrite


class Dispatcher:
    """Calls the use cases. own_credentials: the gateway's credentials replace the client's, and its signature."""

    def __init__(
        self,
        execute: ExecuteHandler,
        manage: ManageHandler | None,
        own_credentials: bool,
        sessions: SessionHandler | None = None,
        routed_memory: RoutedMemory | None = None,
    ) -> None:
        self._routed_memory = routed_memory
        self._execute = execute
        self._manage = manage
        self._sessions = sessions
        self._own_credentials = own_credentials

    async def decide(self, call: ExecuteCall, exchange: RunningExchange) -> Forward | Answer:
        """Return what to send to the cluster, or the response.

        Raises:
            GatewayError: the request is refused.
        """
        target, fields = exchange.request.target, exchange.request.fields
        if exchange.route.intent is Intent.SESSION:
            return await self.show_session(exchange.route.kind, exchange.route.id, call)
        if exchange.route.intent is Intent.ROUTED_MEMORY:
            return await self._read_routed_memory(call, exchange)
        signed = not self._own_credentials and bool(client_signature(target, fields.pairs()))
        if signed:
            call = replace(call, signed=True)
        if exchange.route.kind == "search" and self._sessions is not None:
            session_id = find_session_id(call.body)
            if session_id is not None:
                return await self.show_session("search", session_id, call)
        if exchange.route.intent not in RUNS:
            return await self._decide_managed(exchange.route.intent, call)
        if not signed:
            return await self._execute(call)
        try:
            forward = await self._execute(call)
        except UnresolvedAgent:  # the agent would have been read with the client's signature
            refuse_rewrite(target, fields.pairs())
            raise
        if forward.body is not None or forward.target or (forward.routed is not None and forward.routed.cluster):
            try:
                refuse_rewrite(target, fields.pairs())
            except GatewayError:
                forward.abandon()
                raise
        return forward

    async def _read_routed_memory(self, call: ExecuteCall, exchange: RunningExchange) -> Forward | Answer:
        """Return what to send for a request about a conversation of a route's target, whose id has a mark."""
        forward = None if self._routed_memory is None else await self._routed_memory(call)
        if forward is None:
            raise SessionNotFound(
                "The id of the conversation has the mark of an agent that no route has.",
                help="The operator can put the agent back into its route (agents.routes), with a weight of 0.",
            )
        if not self._own_credentials:
            refuse_rewrite(exchange.request.target, exchange.request.fields.pairs())
        return forward

    async def show_session(self, resource: str, id: str, call: ExecuteCall) -> Answer:
        """See `gateway.ports.SessionHandler`. It is called only if there is one."""
        assert self._sessions is not None
        return await self._sessions(resource, id, call)

    async def _decide_managed(self, intent: Intent, call: ExecuteCall) -> Forward | Answer:
        manage = self._manage
        if manage is not None:
            match intent:
                case Intent.REGISTER:
                    return await manage.register(call)
                case Intent.QUICK_EXECUTE:
                    return await manage.quick_execute(call)
                case Intent.UPDATE_AGENT:
                    return await manage.update_agent(call)
                case Intent.DELETE_AGENT:
                    return await manage.delete_agent(call)
        return Forward()  # the body was read only to sign it
