"""One exchange of the demo: an OpenSearch client asks an agent through the gateway; what did the LLM get?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opensearchpy import AIOHttpConnection, AsyncOpenSearch
from opensearchpy.exceptions import TransportError

from gateway.demo import arrival
from gateway.demo.bodies import Body
from gateway.demo.environment import Agent, Place
from gateway.providers import registry
from gateway.providers.base import Inexpressible

_DELIVERY, _NOTICE = "X-MLC-Gateway-Delivery", "X-MLC-Gateway-Notice"


@dataclass(frozen=True)
class Outcome:
    """What became of an input. outcome: arrived, refused (as it must be) or lost, with the reason of the latter two.

    said, got: what the client said and what the LLM got, to read. strategy, notices: as the gateway's headers say.
    """

    cluster: str
    agent: str
    provider: str
    input: str
    outcome: str
    reason: str
    strategy: str
    notices: str
    said: str
    got: str


async def talk(place: Place, agent: Agent, name: str, body: Body) -> Outcome:
    """Send `body` to `agent` and compare what its LLM received with the provider's mapping."""
    provider = registry.provider(agent.provider)
    place.simulator.llm.clear()
    status, answer, headers = await _execute(place.url, agent.id, body)
    received = place.simulator.received[0] if place.simulator.received else {}
    notices = headers.get(_NOTICE, "")
    try:
        wanted = arrival.mapped(provider, body)
    except Inexpressible as impossible:
        codes = {problem.code for problem in impossible.problems}
        outcome = "refused" if status == 400 and not received and codes == _codes(answer) else "lost"
        reason = f"{', '.join(sorted(_codes(answer)))}: {_reason(answer)}"
    else:
        reason = "" if status == 200 else _reason(answer)
        reason = reason or arrival.difference(provider, wanted, received, agent.prompt, notices)
        outcome = "lost" if reason else "arrived"
    return Outcome(
        cluster=place.version,
        agent=agent.type,
        provider=agent.provider,
        input=name,
        outcome=outcome,
        reason=reason,
        strategy=headers.get(_DELIVERY, "").partition(";")[0].removeprefix("strategy="),
        notices=notices,
        said=arrival.told(body["input"]),
        got=arrival.told(received.get(provider.messages_field, []), provider.content_field),
    )


class _Connection(AIOHttpConnection):
    """The client's own connection, which also keeps the headers of the last answer."""

    last_headers: Mapping[str, str] = {}

    async def perform_request(self, *args: Any, **kwargs: Any) -> Any:
        """As the client's."""
        status, headers, data = await super().perform_request(*args, **kwargs)
        self.last_headers = headers
        return status, headers, data


async def _execute(url: str, agent_id: str, body: Body) -> tuple[int, Any, Mapping[str, str]]:
    """Status, answer and, of a good one, the headers."""
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
    return str(error.get("reason", error) if isinstance(error, dict) else error)
