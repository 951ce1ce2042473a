"""Conversations come back as they were, but for the losses that docs/internals/agentcore-mapping.md states."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.memory.model import Block, Message, Metadata, Usage
from gateway.memory.stores.agentcore.mapping import from_payload, to_payload
from tests.conftest import share
from tests.memory.agentcore.service_model import input_problems

EXAMPLES = 10_000 if share(100) == 100 else share(300)
"""Conversations: all of them in a thorough run."""

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
EXTRA = st.dictionaries(TEXT | st.sampled_from(["seq", "mlc.created", "camunda"]), JSON, max_size=18)
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
    after=st.none() | st.integers(0, 9),
    extra=EXTRA,
)
CONVERSATION = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(BLOCK, max_size=5).map(tuple), METADATA),
    min_size=1,
    max_size=4,
)


def in_order(role: str, content: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the blocks in the order that the mapping keeps: results, all others, calls (loss TOOLS_ORDER)."""

    def rank(block: Block) -> int:
        match block:
            case {"toolResult": {"toolUseId": str(), "content": list()}} if len(block) == 1 and role == "user":
                return 0
            case {"toolUse": {"toolUseId": str(), "name": str(), "input": dict()}} if len(block) == 1:
                return 2 if role == "assistant" else 1
        return 1

    return tuple(sorted(content, key=rank))


def expected(message: Message) -> Message:
    return Message(message.role, in_order(message.role, message.content), message.metadata)


@settings(max_examples=EXAMPLES)
@given(conversation=CONVERSATION)
def test_conversations_come_back(conversation: list[Message]) -> None:
    found = []
    for seq, message in enumerate(conversation):
        payload = to_payload(message, f"messages[{seq}]")
        values = {"seq": str(seq), "mlc.turn": "1/x", "mlc.turn_id": "t"}
        parameters = {
            "memoryId": "memory-abcdefghij",
            "actorId": "actor",
            "sessionId": "session",
            "eventTimestamp": seq,
            "payload": payload,
            "metadata": {name: {"stringValue": value} for name, value in values.items()},
        }
        assert input_problems("CreateEvent", parameters) == []
        found += from_payload(json.loads(json.dumps(payload)), values)
    assert found == [expected(message) for message in conversation]
