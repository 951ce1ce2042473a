"""`mlc-gateway demo`: its output, and that its outcomes are right."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from typing import Any

import pytest

from gateway.app import gateway as app
from gateway.cli import run
from gateway.demo.arrival import find_difference, format_conversation, map_turns
from gateway.demo.bodies import bodies
from gateway.ports import ExecuteCall, Forward
from gateway.providers import registry
from tests.terminal import Terminal

COMMAND = [sys.executable, "-m", "gateway", "demo"]
PROVIDERS = ("bedrock/converse", "openai/v1/chat/completions", "gemini/v1beta/generatecontent")


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_everything_arrives_or_is_refused_as_it_must_be(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--once", "--json"]) == 0
    *outcomes, end = _lines(capfd.readouterr().out)
    assert end == {"sum": {"arrived": 84, "refused": 6, "lost": 0}}
    counted = Counter((o["cluster"], o["agent"], o["provider"], o["input"]) for o in outcomes)
    agents = ("flow", "conversational_flow", "conversational")
    assert counted == Counter(
        (cluster, agent, provider, name)
        for cluster in ("2.19.0", "3.4.0")
        for agent in agents
        for provider in PROVIDERS
        for name in ("text", "image", "document", "video", "conversation")
    )
    refused = {
        (o["provider"], o["input"], o["reason"].partition(":")[0]) for o in outcomes if o["outcome"] == "refused"
    }
    assert refused == {("openai/v1/chat/completions", "video", "MEDIA_KIND_UNSUPPORTED")}


SPENT = "56 runs reported 616 input and 392 output tokens: 0.007728 USD; 28 did not report any."


def test_the_summary_has_sixty_lines_of_a_hundred_columns_with_what_to_try() -> None:
    with Terminal([*COMMAND, "--port", "0"], columns=100) as terminal:
        terminal.wait_for("Running; Ctrl-C ends it.")
        lines = [line for line in terminal.text.split("\n") if not re.match(r"\r?[⠀-⣿] ", line)]
        assert terminal.stop() == 0
    rows = [row for line in lines for row in (line[at : at + 100] for at in range(0, max(len(line), 1), 100))]
    assert len(rows) <= 60
    text = " ".join(" ".join(lines).split())
    assert "84 arrived intact, 6 refused with their reason, 0 lost." in text
    assert SPENT in text
    assert text.count("openai/v1/chat/completions ✓✓✓ ✓✓✓ ✓✓✓ ––– ✓✓✓") == 2
    assert "refused: MEDIA_KIND_UNSUPPORTED: " in text
    assert text.count("curl -s") == 2
    assert "/inspector/login#" in text


def test_the_summary_is_plain_when_piped(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--once"]) == 0
    shown = capfd.readouterr().out
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert "the LLM received: Asked: Which bar of this chart is the highest?" in shown
    assert shown.endswith(f"{SPENT}\n--all shows every input, before and after.\n")


@pytest.mark.slow
def test_tables_without_colours_when_piped(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--once", "--all"]) == 0
    shown = capfd.readouterr().out
    assert "\x1b" not in shown
    assert shown.endswith(f"84 arrived intact, 6 refused with their reason, 0 lost.\n{SPENT}\n")
    for title in ("Plain text", "A picture (PNG)", "A document (PDF)", "A film (MP4)", "A conversation of four turns"):
        assert f"{title}" in shown
    assert "774 bytes, sha256" in shown.replace("\n", " ")


def test_a_gateway_that_only_forwards_loses_everything(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Cache:
        def invalidate(self, kind: str, id: str | None) -> None:
            pass

    async def forward(call: ExecuteCall) -> Forward:
        return Forward()

    monkeypatch.setattr(app, "build_use_case", lambda: lambda *_: (forward, Cache()))
    assert run(["demo", "--once", "--json"]) == 1
    assert _lines(capfd.readouterr().out)[-1] == {"sum": {"arrived": 0, "refused": 0, "lost": 90}}


@pytest.mark.slow
def test_it_runs_on_with_lines_to_try_until_it_is_told_to_stop() -> None:
    demo = subprocess.Popen(
        [*COMMAND, "--port", "0", "--all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    seen: list[str] = []
    for line in demo.stdout:
        seen.append(line)
        if line.startswith("Running"):
            break
    (page,) = [line.strip() for line in seen if "/inspector/login#" in line]
    assert len(set(_recorded(page))) == 90  # of both gateways
    tries = [line.strip() for line in seen if line.strip().startswith("curl")]
    shown = [subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout for line in tries]
    demo.send_signal(signal.SIGINT)
    assert demo.wait(60) == 0
    assert len(shown) == 6
    for through, direct, received in (shown[:3], shown[3:]):
        assert through.startswith("HTTP/1.1 200")
        assert "X-MLC-Gateway-Delivery: strategy=" in through
        assert json.loads(direct)["status"] == 400
        assert "s3://pictures/cat.png" in received


def _recorded(page: str) -> list[str]:
    """The ids of all exchanges of the tables. The page behind a login link shows them as they are stored."""
    login, _, token = page.partition("#")
    url = login.replace("/login", "/api/live?after=0")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    found: list[str] = []
    with urllib.request.urlopen(request) as answer:
        while len(found) < 90:
            line = answer.readline().decode()
            if line.startswith("data: ["):
                found += [row["id"] for row in json.loads(line.removeprefix("data: "))]
    return found


def test_a_taken_port_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run(["demo", "--once", "--port", str(taken.getsockname()[1])]) == 1
    assert "any with --port 0" in capfd.readouterr().err


def _received(provider: str, name: str = "conversation") -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    made = registry.provider(provider)
    turns = map_turns(made, bodies()[name])
    return made, turns, {made.messages_field: json.loads(json.dumps(turns))}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_difference_sees_a_lost_part_a_lost_turn_a_changed_order_and_a_changed_prompt(provider: str) -> None:
    made, turns, body = _received(provider)
    field, came = made.content_field, body[made.messages_field]
    prompt = "${parameters.question}"
    assert find_difference(made, turns, body, prompt) == ""
    assert find_difference(made, turns, {}, prompt) == "the LLM got no messages"
    assert find_difference(made, turns, {made.messages_field: came[1:]}, prompt) == "7 turns were sent, 6 arrived"
    assert find_difference(made, turns, {made.messages_field: [came[2], came[1], came[0], *came[3:]]}, prompt)
    without = [{**came[0], field: came[0][field][:1]}, *came[1:]]
    assert find_difference(made, turns, {made.messages_field: without}, prompt) == "turn 1 arrived changed"
    assert find_difference(made, turns, body, "Asked: ${parameters.question}") == "turn 7 arrived changed"
    assert find_difference(made, turns, body, None) == "turn 7 arrived changed"  # without the agent's own prompt
    last = {**came[-1], field: [made.text_part("Asked: How long")]}
    assert find_difference(made, turns, {made.messages_field: [*came[:-1], last]}, None) == "turn 7 arrived changed"


def test_base64_is_shown_as_its_length_and_hash() -> None:
    shown = format_conversation(bodies()["image"]["input"])
    assert shown == (
        "Which bar of this chart is the highest?\n"
        '{"type": "image", "source": {"type": "base64", "format": "png", '
        '"data": "‹774 bytes, sha256 7c25ab8b2a3e›"}}'
    )
