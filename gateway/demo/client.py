"""One exchange of the demo: runs an agent through the gateway, and checks what its LLM received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opensearchpy import AIOHttpConnection, AsyncOpenSearch
from opensearchpy.exceptions import TransportError

from gateway.demo import arrival
from gateway.demo.bodies import Body
from gateway.demo.environment import Agent, Deployment
from gateway.policy.usage import HEADER as USAGE
from gateway.providers import registry
from gateway.providers.base import Inexpressible

_DELIVERY, _NOTICE = "X-MLC-Gateway-Delivery", "X-MLC-Gateway-Notice"


@dataclass(frozen=True)
class Outcome:
    """The result of an exchange. outcome: arrived, refused (as expected) or lost; the latter two have a reason.

    sent, received: what the client sent and what the LLM received, formatted. strategy, notices, usage: from the
    gateway's headers; usage: what the run cost, ``unknown`` if the answer does not report it, "" without an answer.
    """

    cluster: str
    agent: str
    provider: str
    input: str
    outcome: str
    reason: str
    strategy: str
    notices: str
    usage: str
    sent: str
    received: str


async def run_exchange(deployment: Deployment, agent: Agent, name: str, body: Body) -> Outcome:
    """Send `body` to `agent` and compare what its LLM received with the provider's mapping."""
    provider = registry.provider(agent.provider)
    deployment.simulator.llm.clear()
    status, answer, headers = await _execute(deployment.url, agent.id, body)
    received = deployment.simulator.received[0] if deployment.simulator.received else {}
    notices = headers.get(_NOTICE, "")
    try:
        wanted = arrival.map_turns(provider, body)
    except Inexpressible as impossible:
        codes = {problem.code for problem in impossible.problems}
        outcome = "refused" if status == 400 and not received and codes == _codes(answer) else "lost"
        reason = f"{', '.join(sorted(_codes(answer)))}: {_reason(answer)}"
    else:
        reason = "" if status == 200 else _reason(answer)
        reason = reason or arrival.find_difference(provider, wanted, received, agent.prompt, notices)
        outcome = "lost" if reason else "arrived"
    return Outcome(
        cluster=deployment.version,
        agent=agent.type,
        provider=agent.provider,
        input=name,
        outcome=outcome,
        reason=reason,
        strategy=headers.get(_DELIVERY, "").partition(";")[0].removeprefix("strategy="),
        notices=notices,
        usage=headers.get(USAGE, ""),
        sent=arrival.format_conversation(body["input"]),
        received=arrival.format_conversation(received.get(provider.messages_field, []), provider.content_field),
    )


class _Connection(AIOHttpConnection):
    """A connection of opensearch-py that also stores the headers of the last response."""

    last_headers: Mapping[str, str] = {}

    async def perform_request(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request as the base class does."""
        status, headers, data = await super().perform_request(*args, **kwargs)
        self.last_headers = headers
        return status, headers, data


async def _execute(url: str, agent_id: str, body: Body) -> tuple[int, Any, Mapping[str, str]]:
    """Return status, response and, if it succeeded, headers."""
    async with AsyncOpenSearch(hosts=[url], max_retries=0, connection_class=_Connection) as client:
        try:
            answer = await client.plugins.ml.execute_agent(agent_id=agent_id, body=body)
        except TransportError as error:
            return error.status_code if isinstance(error.status_code, int) else 0, error.info, {}
        return 200, answer, client.transport.get_connection().last_headers


def _codes(answer: Any) -> set[str]:
    problems = answer.get("error", {}).get("problems", []) if isinstance(answer, dict) else []
    return {problem.get("code", "") for problem in problems}


def _reason(answer: Any) -> str:
    error = answer.get("error", {}) if isinstance(answer, dict) else answer
    return str(error.get("message") or error.get("reason", error) if isinstance(error, dict) else error)
