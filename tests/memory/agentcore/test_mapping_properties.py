"""Conversations come back as they were, but for the losses that docs/internals/agentcore-mapping.md states."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.memory.model import Block, Message, Metadata, Usage
from gateway.memory.stores.agentcore.envelope import MOST_ENTRIES
from gateway.memory.stores.agentcore.mapping import MappingForm, from_event, to_event
from tests.conftest import share
from tests.memory.agentcore.service_model import input_problems

EXAMPLES = 10_000 if share(100) == 100 else share(300)
"""Conversations in each form: all of them in a thorough run."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NUMBER = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
BYTES = st.binary(max_size=12).map(lambda data: data.hex())
SOURCE = st.fixed_dictionaries({"bytes": BYTES}) | st.fixed_dictionaries({"url": TEXT})
MEDIUM = st.sampled_from(["image", "video", "audio", "document"]).flatmap(
    lambda kind: st.fixed_dictionaries(
        {
            kind: st.fixed_dictionaries(
                {"format": st.sampled_from(["png", "mp4", "wav", "pdf"]), "source": SOURCE}, optional={"name": TEXT}
            )
        }
    )
)
PLAIN = st.fixed_dictionaries({"text": TEXT})
USE = st.fixed_dictionaries(
    {"toolUse": st.fixed_dictionaries({"toolUseId": TEXT, "name": TEXT, "input": JSON}, optional={"type": TEXT})}
)
RESULT = st.fixed_dictionaries(
    {
        "toolResult": st.fixed_dictionaries(
            {
                "toolUseId": TEXT,
                "content": st.lists(PLAIN | st.fixed_dictionaries({"json": JSON}) | MEDIUM, max_size=3),
            },
            optional={"status": st.sampled_from(["success", "error"])},
        )
    }
)
OTHER = (
    st.fixed_dictionaries(
        {"reasoningContent": st.fixed_dictionaries({"reasoningText": st.fixed_dictionaries({"text": TEXT})})}
    )
    | st.just({"cachePoint": {"type": "default"}})
    | st.dictionaries(st.sampled_from(["text", "toolUse", "toolResult", "document", "citations"]), JSON, max_size=2)
)
BLOCK = PLAIN | MEDIUM | USE | RESULT | OTHER
EXTRA = st.dictionaries(
    TEXT.filter(lambda name: name not in ("", "seq") and not name.startswith("mlc.")), JSON, max_size=18
)
COUNT = st.none() | st.integers(0, 2**53)
METADATA = st.builds(
    Metadata,
    created=st.floats(0, 4e9),
    input_type=st.sampled_from(["", "text", "content_blocks", "messages"]),
    agent_id=TEXT,
    provider=TEXT,
    model=TEXT,
    usage=st.none() | st.builds(Usage, COUNT, COUNT, COUNT),
    failed=st.booleans(),
    extra=EXTRA,
)
CONVERSATION = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(BLOCK, max_size=5).map(tuple), METADATA),
    min_size=1,
    max_size=4,
)


def has(block: Block, member: str, *needed: str) -> bool:
    value = block.get(member)
    return len(block) == 1 and isinstance(value, dict) and all(isinstance(value.get(name), str) for name in needed)


def in_order(content: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the blocks in the order that the mapping keeps: results, all others, calls (loss TOOLS_ORDER)."""

    def rank(block: Block) -> int:
        result = has(block, "toolResult", "toolUseId") and isinstance(block["toolResult"].get("content"), list)
        call = has(block, "toolUse", "toolUseId", "name") and "input" in block["toolUse"]
        return 0 if result else 2 if call else 1

    return tuple(sorted(content, key=rank))


def as_strings(extra: dict[str, Any]) -> dict[str, str]:
    """Return what comes back of values that are stored as strings (losses METADATA_STRINGS and METADATA_NULL)."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in extra.items()
        if value is not None
    }


def expected(message: Message, form: MappingForm) -> Message:
    known = {name: getattr(message.metadata, name) for name in Metadata.__struct_fields__}
    if form == "metadata":
        known["extra"] = as_strings(message.metadata.extra)
    return Message(message.role, in_order(message.content), Metadata(**known))


@pytest.mark.parametrize("form", ["metadata", "envelope"])
@settings(max_examples=EXAMPLES)
@given(conversation=CONVERSATION)
def test_conversations_come_back(form: MappingForm, conversation: list[Message]) -> None:
    found = []
    for seq, message in enumerate(conversation):
        own = {"seq": str(seq), "mlc.turn": "1/x", "mlc.turn_id": "t"}
        event = to_event(message, form, f"messages[{seq}]", room=MOST_ENTRIES - len(own))
        values = {**event.metadata, **own}
        parameters = {
            "memoryId": "memory-abcdefghij",
            "actorId": "actor",
            "sessionId": "session",
            "eventTimestamp": seq,
            "payload": event.payload,
            "metadata": {name: {"stringValue": value} for name, value in values.items()},
        }
        assert input_problems("CreateEvent", parameters) == []
        found += from_event(json.loads(json.dumps(event.payload)), values)
    assert found == [expected(message, form) for message in conversation]
