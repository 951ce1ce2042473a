"""Records as documents of OpenSearch, and the index template of their data stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gateway.inspector.stores.encoding import without_surrogates
from gateway.memory.stores.opensearch_cluster import operation_lines
from gateway.observe.record import ExchangeRecord

TEMPLATE = Path(__file__).with_name("opensearch_template.json")
"""The index template; `config/opensearch-exchanges.json` is the same file."""
_MESSAGES = ("request", "forwarded", "response", "answered")


def template(stream: str) -> dict[str, Any]:
    """Return the index template for a data stream of this name."""
    read: dict[str, Any] = msgspec.json.decode(TEMPLATE.read_bytes())
    return read | {"index_patterns": [stream]}


def operation(record: ExchangeRecord) -> bytes:
    """Return the lines of ``_bulk`` that add a record to a data stream: once, also if they are sent again."""
    action = {"create": {"_id": record.id}}
    try:
        return operation_lines(action, document(record))
    except UnicodeEncodeError:
        record = without_surrogates(record)
        return operation_lines({"create": {"_id": record.id}}, document(record))


def document(record: ExchangeRecord) -> dict[str, Any]:
    """Return the document of a record: its fields, with ``@timestamp``, and each header as an object."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    for name in _MESSAGES:
        if headers := (fields.get(name) or {}).get("headers"):
            fields[name]["headers"] = [{"name": key, "value": value} for key, value in headers]
    return {"@timestamp": int(record.started * 1000), **fields}
