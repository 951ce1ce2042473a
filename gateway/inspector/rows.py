"""Rows of the list as JSON data."""

from __future__ import annotations

from typing import Any

from gateway.inspector.store import Row
from gateway.observe.record import Delivery, ExchangeRecord


def row_as_json(row: Row) -> dict[str, Any]:
    """Return what the list shows of an exchange. `codes` are those of notices and problems."""
    record = row.record
    delivery = record.delivery or Delivery()
    return {
        "position": row.position,
        "id": record.id,
        "started": record.started,
        "seconds": record.seconds,
        "method": record.method,
        "target": record.target,
        "intent": record.intent,
        "status": record.status,
        "agent": delivery.agent_name or record.agent_id,
        "agent_id": record.agent_id,
        "type": delivery.type,
        "provider": delivery.provider,
        "strategy": delivery.strategy,
        "codes": codes(record),
        "input_tokens": record.usage.input if record.usage else None,
        "output_tokens": record.usage.output if record.usage else None,
        "error": record.error.type if record.error else "",
    }


def codes(record: ExchangeRecord) -> list[str]:
    """Return the codes of an exchange's notices and problems, each once."""
    problems = record.error.problems if record.error else ()
    notices = record.delivery.notices if record.delivery else ()
    return list(dict.fromkeys([*notices, *(problem.code for problem in problems if problem.code)]))
