"""The guardrails of `docs/operate/guardrails.md`, run as they stand there."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from gateway.policy import hooks
from tests.docs.pages import files_of, page
from tests.execute.stub_cluster import V2
from tests.policy.conftest import Start, v2_answer

FILES = files_of("operate/guardrails.md")
_JSON = re.compile(r"^```json\n(.*?)```", re.MULTILINE | re.DOTALL)
DOCUMENTS = [json.loads(block) for block in _JSON.findall(page("operate/guardrails.md"))]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's files; its entry point as a package of a third party would have it."""
    for name in ("guardrail.py", "acme_guardrails.py"):
        (tmp_path / name).write_text(FILES[name])
    info = tmp_path / "acme_guardrails-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-guardrails\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(FILES["entry_points.txt"])
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield
    for name in ("guardrail", "acme_guardrails"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("installed")
async def test_the_example_server(start: Start) -> None:
    app = importlib.import_module("guardrail").make_app()
    async with TestServer(app) as server:
        settings = {"name": "cards", "url": str(server.make_url("/check")), "answers": True}
        place = await start({"guardrails": [settings]})
        place.cluster.answers = [v2_answer("It is 4111-1111-1111-1111.")]
        answer = await place.execute(V2, {"input": "Is 4111 1111 1111 1111 valid?"})
        assert place.cluster.sent == [{"input": "Is [card] valid?"}]
        assert (await answer.json())["message"]["content"] == [{"text": "It is [card]."}]
        assert answer.headers.getall("X-MLC-Gateway-Notice") == ["GUARDRAIL_CHANGED"] * 2
        refused = await place.execute(V2, {"input": "-----BEGIN PRIVATE KEY-----"})
        [problem] = (await refused.json())["error"]["problems"]
        assert (refused.status, problem["field"], problem["received"]) == (403, "input", "cards/key")
        assert len(place.cluster.bodies) == 1


@pytest.mark.usefixtures("installed")
async def test_the_example_of_an_entry_point(start: Start) -> None:
    place = await start({"guardrails": [{"name": "no-keys", "entry_point": "no-keys"}]})
    assert (await place.execute(V2, {"input": "hi"})).status == 200
    assert (await place.execute(V2, {"input": "a PRIVATE KEY"})).status == 403


def test_the_documents_of_the_page() -> None:
    shown, *verdicts = DOCUMENTS
    assert list(shown) == ["version", "stage", "request_id", "agent", "input"]
    assert [hooks.read_verdict(verdict).verdict for verdict in verdicts] == ["allow", "change", "refuse"]


@pytest.mark.usefixtures("installed")
async def test_the_document_of_the_page_is_what_a_guardrail_is_sent(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    async def judge(self: hooks.Function, document: Any) -> hooks.Verdict:
        seen.append(document)
        return hooks.Verdict("allow")

    monkeypatch.setattr(hooks.Function, "judge", judge)
    place = await start({"guardrails": [{"name": "no-keys", "entry_point": "no-keys"}]})
    shown = DOCUMENTS[0]
    content = [{"type": "text", "text": "Is 4111 1111 1111 1111 valid?"}]
    body = {"input": [{"role": "user", "content": content}], "parameters": {"memory_id": "m"}}
    assert (await place.execute(V2, body)).status == 200
    [document] = seen
    assert document["input"] == shown["input"]
    assert list(document) == list(shown)
    assert list(document["agent"]) == list(shown["agent"])
