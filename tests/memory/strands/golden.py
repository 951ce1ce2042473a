"""Writes ``golden/``: a session as Strands' `FileSessionManager` writes it. Needs strands-agents.

``.venv-strands/bin/python -m tests.memory.strands.golden`` after a new version of Strands, and look at the diff.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from strands.session import FileSessionManager
from strands.types.session import SessionMessage

from tests.memory.strands.scripted import PNG, ScriptedModel, agent, call, image

GOLDEN = Path(__file__).parent / "golden"
ID = "gws-golden"


def main() -> None:
    """Write the session again."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    manager = FileSessionManager(ID, storage_dir=str(GOLDEN))
    script = [{"text": "A cat."}], [{"text": "I count."}, call("Köln")], [{"text": "3 cats. 🙂"}], "[hidden]"
    asked = agent(ScriptedModel(*script), manager)
    asked.state.set("seen", ["Köln"])
    for question in ([{"text": "What is this?"}, image()], "How many in Köln?", "secret"):
        asked(question)
    others = [
        {"role": "user", "content": [{"document": {"format": "pdf", "name": "Report", "source": {"bytes": PNG}}}]},
        {"role": "assistant", "content": [{"reasoningContent": {"redactedContent": b"hidden"}}, {"text": "Yes."}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "1", "status": "error", "content": [
            {"json": {"mean": float("nan"), "raw": b"\0\1", "many": 10**30}}]}}]},
    ]  # fmt: skip
    for number, message in enumerate(others, len(asked.messages)):
        record = SessionMessage.from_message(message, number)
        if number == len(asked.messages):
            record.redact_message = {"role": "user", "content": [{"text": "[a document]"}]}
        manager.create_message(ID, "support", record)


if __name__ == "__main__":
    main()
