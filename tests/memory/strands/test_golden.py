"""Files that Strands wrote (`golden.py`) are read, and written in the same way; without the package strands-agents."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from pathlib import Path

import pytest

from gateway.memory.model import Metadata, Owner, SessionKey, Turn, Usage
from gateway.memory.stores.strands.files import StrandsFilesStore
from gateway.memory.stores.strands.mapping import agent_record, encode_record, from_record, session_record, to_record
from tests.memory.conversations import assistant, image, tool_result, tool_use, user

GOLDEN = Path(__file__).parent / "golden"
AGENT = GOLDEN / "session_gws-golden" / "agents" / "agent_support"
MESSAGES = sorted((AGENT / "messages").iterdir(), key=lambda path: int(path.stem.partition("_")[2]))
KEY = SessionKey(Owner("support"), "gws-golden")
PNG = b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(64))).decode()
HIDDEN = b64encode(b"hidden").decode()
DOCUMENT = {"document": {"format": "pdf", "name": "Report", "source": {"bytes": PNG}}}
JSON = {"mean": float("nan"), "raw": {"__bytes_encoded__": True, "data": "AAE="}, "many": 10**30}


async def test_session_that_strands_wrote_is_read(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    store = StrandsFilesStore(tmp_path)
    await store.start()
    page = await store.load(KEY)
    assert [(one.message.role, *one.message.content) for one in page.messages[:10]] == [
        ("user", {"text": "What is this?"}, image(PNG)),
        ("assistant", {"text": "A cat."}),
        ("user", {"text": "How many in Köln?"}),
        ("assistant", {"text": "I count."}, tool_use("call-1", "count_cats", city="Köln")),
        ("user", tool_result("call-1", {"text": "3 in Köln"}, image(PNG))),
        ("assistant", {"text": "3 cats. 🙂"}),
        ("user", {"text": "[hidden]"}),
        ("assistant", {"text": "I can't help with that."}),
        ("user", {"text": "[a document]"}),
        ("assistant", {"reasoningContent": {"redactedContent": HIDDEN}}, {"text": "Yes."}),
    ]
    [result] = page.messages[10].message.content
    assert repr(result) == repr(tool_result("1", {"json": JSON}, status="error"))
    assert [one.turn for one in page.messages] == [1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4]
    assert len({one.turn_id for one in page.messages}) == 4
    session = await store.session(KEY)
    assert session is not None
    assert (session.turns, session.messages, session.system, session.pinned) == (4, 11, "", False)
    assert session.created == page.messages[0].message.metadata.created
    assert [one.key for one in (await store.sessions()).sessions] == [KEY]
    await store.close()


def test_what_strands_knows_of_a_message_is_kept() -> None:
    answer, turn_id = from_record(json.loads(MESSAGES[1].read_bytes()))
    record = json.loads(MESSAGES[1].read_bytes())
    assert turn_id == ""
    assert answer.metadata == Metadata(
        created=answer.metadata.created,
        usage=Usage(10, 2, 12),
        extra={
            "strands": {
                "created_at": record["created_at"],
                "updated_at": record["updated_at"],
                "message": {
                    "metadata": {"usage": record["message"]["metadata"]["usage"], "metrics": {"latencyMs": 1}},
                    "tracking_id": record["message"]["tracking_id"],
                },
            }
        },
    )
    redacted, _ = from_record(json.loads(MESSAGES[8].read_bytes()))
    assert redacted.content == ({"text": "[a document]"},)
    assert redacted.metadata.extra["strands"]["original"]["content"][0]["document"]["name"] == "Report"


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: path.stem)
def test_messages_are_written_as_strands_does(path: Path) -> None:
    message, _ = from_record(json.loads(path.read_bytes()))
    assert encode_record(to_record(message, int(path.stem.partition("_")[2]))) == path.read_bytes()


async def test_copied_messages_stay_the_same(tmp_path: Path) -> None:
    messages = tuple(from_record(json.loads(path.read_bytes()))[0] for path in MESSAGES)
    store = StrandsFilesStore(tmp_path)
    await store.start()
    await store.append(KEY, Turn("turn-1", messages), 0)
    page = await store.load(KEY)
    assert repr(tuple(one.message for one in page.messages)) == repr(messages)
    assert {one.turn_id for one in page.messages} == {"turn-1"}
    await store.close()


def test_session_and_agent_have_the_fields_that_strands_writes() -> None:
    session = json.loads((AGENT.parents[1] / "session.json").read_bytes())
    assert list(session_record("x", 1.0)) == list(session)
    agent = json.loads((AGENT / "agent.json").read_bytes())
    record = agent_record("x", 1.0)
    assert list(record) == list(agent)
    state = agent["conversation_manager_state"]
    assert record["conversation_manager_state"].items() <= state.items()


async def test_files_of_a_turn(tmp_path: Path) -> None:
    store = StrandsFilesStore(tmp_path, clock=lambda: 1_750_000_000.0)
    await store.start()
    metadata = Metadata(created=1_750_000_000.5, input_type="text", provider="bedrock/converse", usage=Usage(1, 2))
    await store.append(KEY, Turn("turn-1", (user("Hi", metadata=metadata), assistant("ü")), system="Be brief."), 0)
    session = tmp_path / "session_gws-golden"
    agent = session / "agents" / "agent_support"
    assert sorted(str(path.relative_to(session)) for path in session.rglob("*") if path.is_file()) == [
        "agents/agent_support/agent.json",
        "agents/agent_support/gateway/state.json",
        "agents/agent_support/gateway/turns",
        "agents/agent_support/messages/message_0.json",
        "agents/agent_support/messages/message_1.json",
        "session.json",
    ]
    assert (agent / "messages" / "message_0.json").read_text() == FILE
    assert json.loads((agent / "gateway" / "state.json").read_bytes()) == {
        "key": {"owner": {"agent_id": "support", "tenant": "", "caller": ""}, "id": "gws-golden"},
        "turns": 1,
        "messages": 2,
        "created": 1_750_000_000.0,
        "system": "Be brief.",
        "pinned": False,
        "role": "assistant",
        "version": 1,
    }
    assert {path.stat().st_mode & 0o777 for path in session.rglob("*")} == {0o600, 0o700}
    await store.close()


FILE = """{
  "message": {
    "role": "user",
    "content": [
      {
        "text": "Hi"
      }
    ],
    "metadata": {
      "custom": {
        "gateway": {
          "created": 1750000000.5,
          "input_type": "text",
          "provider": "bedrock/converse",
          "usage": {
            "input": 1,
            "output": 2
          },
          "turn": "turn-1"
        }
      }
    }
  },
  "message_id": 0,
  "redact_message": null,
  "created_at": "2025-06-15T15:06:40.500000+00:00",
  "updated_at": "2025-06-15T15:06:40.500000+00:00"
}"""
