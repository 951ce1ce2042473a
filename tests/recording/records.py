"""Records of exchanges for the tests."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.observe.record import Body, ExchangeRecord, HttpMessage

RECORD = ExchangeRecord(
    id="5f2a",
    started=1_760_000_000.25,
    seconds=0.5,
    method="POST",
    target="/_plugins/_ml/agents/a1/_execute",
    intent="execute",
    status=200,
    worker=7,
    connection=3,
    agent_id="a1",
    waited=0.25,
    request=HttpMessage(
        (("Host", "127.0.0.1:9200"), ("Content-Type", "application/json")), Body(18, '{"input": "Hello"}')
    ),
    response=HttpMessage((("Content-Type", "application/json"),), Body(11, '{"answer":1}')),
)


def record(**values: Any) -> ExchangeRecord:
    """Return `RECORD` with other values."""
    return replace(RECORD, **values)


def get(target: str, response: str = "{}", **values: Any) -> ExchangeRecord:
    """Return the record of a GET."""
    answer = HttpMessage((("Content-Type", "application/json"),), Body(len(response), response))
    request = HttpMessage((("Host", "127.0.0.1:9200"),))
    return record(
        **{"method": "GET", "target": target, "intent": "passthrough", "agent_id": "", "request": request}
        | {"response": answer}
        | values
    )
