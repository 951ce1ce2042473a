"""Guardrails: what they are shown, what they may change, and what happens if they fail."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.config.policy import Guardrail
from gateway.policy import hooks
from tests.execute.stub_cluster import FLOW, RAN, V1, V2
from tests.policy.conftest import Start, v2_answer
from tests.wire import PATIENCE, reserved


class Webhook:
    """A guardrail on loopback. verdict: what it answers: a JSON value, a response, or a function of the document."""

    def __init__(self) -> None:
        self.url = ""
        self.verdict: Any = {"verdict": "allow"}
        self.seen: list[Any] = []
        self.headers: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        self.seen.append(await request.json())
        verdict = self.verdict(self.seen[-1]) if callable(self.verdict) else self.verdict
        if asyncio.iscoroutine(verdict):
            verdict = await verdict
        return verdict if isinstance(verdict, web.Response) else web.json_response(verdict)


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    webhook = Webhook()
    app = web.Application(handler_args={"handler_cancellation": True})
    app.router.add_post("/check", webhook.answer)
    async with TestServer(app) as server:
        webhook.url = str(server.make_url("/check"))
        yield webhook


def guardrail(webhook: Webhook, **more: Any) -> dict[str, Any]:
    return {"guardrails": [{"name": "pii", "url": webhook.url, "seconds": PATIENCE, **more}]}


def replacing(old: str, new: str) -> Callable[[Any], Any]:
    """A guardrail that replaces `old` in every text."""

    def verdict(document: Any) -> Any:
        blocks = [block for message in document[document["stage"]]["messages"] for block in message["content"]]
        changed = [one for one in blocks if one["type"] == "text" and old in one["text"]]
        texts = [{"place": one["place"], "text": one["text"].replace(old, new)} for one in changed]
        return {"verdict": "change", "texts": texts} if texts else {"verdict": "allow"}

    return verdict


# Through a gateway


async def test_a_guardrail_sees_the_input_and_allows_it(start: Start, webhook: Webhook) -> None:
    place = await start(guardrail(webhook))
    answer = await place.execute(V2, {"input": "hi"})
    assert answer.status == 200
    assert place.cluster.sent == [{"input": "hi"}]
    [document] = webhook.seen
    assert (document["version"], document["stage"]) == (1, "input")
    assert document["agent"]["id"] == V2
    assert document["agent"]["name"] == "v2_bedrock"
    assert document["agent"]["provider"] == "bedrock/converse"
    assert document["input"]["messages"][0]["content"] == [{"type": "text", "text": "hi", "place": "input"}]
    assert "X-MLC-Gateway-Notice" not in answer.headers
    assert place.metric("mlc_gateway_guardrail_checks_total", stage="input", verdict="allow") == 1


async def test_the_secret_is_sent_to_the_webhook_and_never_logged(
    start: Start, webhook: Webhook, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text("Bearer s3cret")
    place = await start(guardrail(webhook, header="X-Key", secret={"file": str(tmp_path / "secret")}))
    assert (await place.execute(V2, {"input": "hi"})).status == 200
    webhook.verdict = lambda _: web.Response(status=500)
    refused = await place.execute(V2, {"input": "hi"})
    assert refused.status == 503
    assert [headers["X-Key"] for headers in webhook.headers] == ["Bearer s3cret"] * 2
    log = "".join(capfd.readouterr())
    assert "guardrail failed" in log
    assert "s3cret" not in log + await refused.text() + repr(place.gateway.settings)


async def test_a_failure_is_logged_with_the_id_of_its_request(
    start: Start, webhook: Webhook, capfd: pytest.CaptureFixture[str]
) -> None:
    webhook.verdict = lambda document: {"verdict": "allow"} if document["stage"] == "input" else None
    place = await start(guardrail(webhook, answers=True))
    refused = await place.execute(V2, {"input": "hi"})
    assert refused.status == 503
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    [failed] = [line for line in lines if line["event"] == "guardrail failed"]
    assert (failed["step"], failed["request_id"]) == ("answer", refused.headers["X-Request-Id"])


async def test_a_changed_input_is_planned_and_reported(start: Start, webhook: Webhook) -> None:
    webhook.verdict = replacing("4111", "[card]")
    place = await start(guardrail(webhook))
    place.cluster.answers = [RAN]
    for agent, body in (
        (V2, {"input": "is 4111 a card"}),
        (FLOW, {"input": [{"type": "text", "text": "is 4111 a card"}]}),
    ):
        answer = await place.execute(agent, body)
        assert answer.headers["X-MLC-Gateway-Notice"] == "GUARDRAIL_CHANGED"
        sent = json.dumps(place.cluster.sent[-1])
        assert "is [card] a card" in sent
        assert "4111" not in sent
    assert place.metric("mlc_gateway_notices_total", code="GUARDRAIL_CHANGED") == 2


async def test_a_guardrail_sees_an_input_in_the_operators_roles(start: Start, webhook: Webhook) -> None:
    place = await start(guardrail(webhook), agents={"roles": {"tool": "user"}})
    place.cluster.answers = [RAN]
    answer = await place.execute(FLOW, {"input": [{"role": "tool", "content": "hi"}]})
    assert answer.status == 200
    assert webhook.seen[0]["input"]["messages"][0]["role"] == "tool"


async def test_a_changed_question(start: Start, webhook: Webhook) -> None:
    webhook.verdict = replacing("4111", "[card]")
    place = await start(guardrail(webhook))
    answer = await place.execute(V1, {"parameters": {"question": "is 4111 a card", "memory_id": "m"}})
    assert place.cluster.sent == [{"parameters": {"question": "is [card] a card", "memory_id": "m"}}]
    assert answer.headers["X-MLC-Gateway-Notice"] == "GUARDRAIL_CHANGED"


async def test_a_changed_question_that_is_sent_again_as_input(start: Start, webhook: Webhook) -> None:
    webhook.verdict = replacing("4111", "[card]")
    place = await start(guardrail(webhook))
    refusal = {"status": 500, "error": {"reason": "V2 agents require executor-provided memory"}}
    place.cluster.answers = [(500, refusal), v2_answer()]
    answer = await place.execute(V2, {"parameters": {"question": "4111"}})
    assert answer.status == 200
    assert place.cluster.sent == [{"parameters": {"question": "[card]"}}, {"input": "[card]"}]


async def test_each_run_is_checked(start: Start, webhook: Webhook) -> None:
    place = await start(guardrail(webhook))
    place.cluster.answers = [RAN]
    for number in range(4):
        await place.execute(FLOW, {"input": [{"type": "text", "text": f"hi {number}"}]})
    texts = [document["input"]["messages"][0]["content"][0]["text"] for document in webhook.seen]
    assert texts == ["hi 0", "hi 1", "hi 2", "hi 3"]


async def test_agents_that_do_not_match_are_not_checked(start: Start, webhook: Webhook) -> None:
    place = await start(guardrail(webhook, agent="v2_*"))
    place.cluster.answers = [RAN]
    await place.execute(FLOW, {"parameters": {"question": "hi"}})
    assert webhook.seen == []
    await place.execute(V2, {"input": "hi"})
    assert len(webhook.seen) == 1


async def test_a_refusal_names_the_place_and_the_reason(start: Start, webhook: Webhook) -> None:
    webhook.verdict = {"verdict": "refuse", "reason": "no card numbers", "place": "input", "code": "card"}
    place = await start(guardrail(webhook))
    answer = await place.execute(V2, {"input": "4111"})
    body = await answer.json()
    assert (answer.status, body["error"]["type"]) == (403, "GuardrailRefused")
    [problem] = body["error"]["problems"]
    assert problem["field"] == "input"
    assert problem["reason"] == "The guardrail pii refused the input: no card numbers"
    assert problem["received"] == "pii/card"
    assert problem["help"]
    assert place.cluster.bodies == []


async def test_an_answer_is_checked_changed_and_refused(start: Start, webhook: Webhook) -> None:
    place = await start(guardrail(webhook, answers=True))
    place.cluster.answers = [v2_answer("call 4111"), v2_answer("call 4111"), v2_answer("fine")]
    webhook.verdict = replacing("4111", "[card]")
    answer = await place.execute(V2, {"input": "hi"})
    assert (await answer.json())["message"]["content"] == [{"text": "call [card]"}]
    assert answer.headers["X-MLC-Gateway-Notice"] == "GUARDRAIL_CHANGED"
    assert [document["stage"] for document in webhook.seen] == ["input", "answer"]
    webhook.verdict = lambda document: (
        {"verdict": "refuse", "reason": "secret"} if document["stage"] == "answer" else {"verdict": "allow"}
    )
    answer = await place.execute(V2, {"input": "hi"})
    body = await answer.json()
    assert (answer.status, body["error"]["message"]) == (403, "The guardrail pii refused the answer: secret")
    webhook.verdict = {"verdict": "allow"}
    answer = await place.execute(V2, {"input": "hi"})
    assert await answer.json() == v2_answer("fine")[1]


@pytest.mark.parametrize(
    "path",
    ["_execute?async=true", "_execute?async", "_execute?x=1&async=TRUE", "_execute/stream?x;async=true"],
)
async def test_answers_that_cannot_be_held_are_refused_if_answers_are_checked(
    start: Start, webhook: Webhook, path: str
) -> None:
    place = await start(guardrail(webhook, answers=True))
    answer = await place.execute(V2, {"input": "hi"}, path=path)
    assert (answer.status, (await answer.json())["error"]["type"]) == (403, "GuardrailRefused")
    assert place.cluster.bodies == []


@pytest.mark.parametrize("body", [{"input": "hi"}, {"parameters": {"question": "hi"}}], ids=["input", "question"])
async def test_the_answer_of_a_stream_is_checked_before_any_of_it_is_sent(
    start: Start, webhook: Webhook, body: dict[str, Any]
) -> None:
    place = await start(guardrail(webhook, answers=True))
    place.cluster.answers = [RAN]
    for agent in (V1, V2):
        webhook.verdict = {"verdict": "allow"}
        answer = await place.execute(agent, body, path="_execute/stream")
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        assert '"content":"ran"' in await answer.text()
        webhook.verdict = lambda document: (
            {"verdict": "refuse", "reason": "secret"} if document["stage"] == "answer" else {"verdict": "allow"}
        )
        answer = await place.execute(agent, body, path="_execute/stream")
        assert (answer.status, (await answer.json())["error"]["type"]) == (403, "GuardrailRefused")
    assert {path.rpartition("/")[2] for path in place.cluster.paths} == {"_execute"}


async def test_an_answer_that_is_too_large_to_check_is_refused(
    start: Start, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.proxy.run.HELD_ANSWER", 1000)
    place = await start(guardrail(webhook, answers=True))
    place.cluster.answers = [v2_answer("x" * 1_000_000)]
    answer = await place.execute(V2, {"input": "hi"}, headers={"Accept-Encoding": "identity"})
    error = (await answer.json())["error"]
    assert (answer.status, error["type"]) == (503, "GuardrailUnavailable")
    assert error["reason"].startswith("The answer of the agent is too large")
    assert place.metric("mlc_gateway_guardrail_checks_total", stage="answer", verdict="failed") == 1


@pytest.mark.parametrize("size", [100, 1_000_000])
@pytest.mark.parametrize("status", [302, 500])
async def test_a_redirect_or_an_error_is_not_checked_whatever_its_size(
    start: Start, webhook: Webhook, monkeypatch: pytest.MonkeyPatch, status: int, size: int
) -> None:
    monkeypatch.setattr("gateway.proxy.run.HELD_ANSWER", 1000)
    place = await start({**guardrail(webhook, answers=True), "usage_header": True})
    error = (status, {"status": status, "error": {"details": "x" * size}})
    place.cluster.answers = [error]
    answer = await place.execute(V2, {"input": "hi"}, headers={"Accept-Encoding": "identity"})
    assert (answer.status, await answer.json()) == error
    assert "X-MLC-Gateway-Usage" not in answer.headers
    assert place.metric("mlc_gateway_guardrail_checks_total", stage="answer", verdict="failed") == 0


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_an_answer_that_is_too_large_to_check_passes_unchanged_if_failures_are_allowed(
    start: Start, webhook: Webhook, monkeypatch: pytest.MonkeyPatch, coding: str
) -> None:
    monkeypatch.setattr("gateway.proxy.run.HELD_ANSWER", 10_000)
    place = await start({**guardrail(webhook, answers=True, on_failure="allow"), "usage_header": True})
    whole = v2_answer("x" * 1_000_000)
    place.cluster.answers = [whole]
    answer = await place.execute(V2, {"input": "hi"}, headers={"Accept-Encoding": coding})
    assert answer.headers.get("Content-Encoding", "identity") == coding
    assert (answer.status, await answer.json()) == whole
    assert answer.headers["X-MLC-Gateway-Usage"] == "unknown"
    assert [document["stage"] for document in webhook.seen] == ["input"]
    assert place.metric("mlc_gateway_guardrail_checks_total", stage="answer", verdict="failed") == 1


async def until_cancelled(_: Any) -> Any:
    await asyncio.Event().wait()


FAILURES: dict[str, Any] = {
    "status": web.Response(status=500),
    "redirect": web.Response(status=302, headers={"Location": "/other"}),
    "not JSON": web.Response(text="allow"),
    "not UTF-8": web.Response(body=b'{"verdict": "allow", "reason": "\xe9"}'),
    "too deep": web.Response(body=b"[" * 900_000),
    "no verdict": {"allow": True},
    "unknown verdict": {"verdict": "maybe"},
    "unknown place": {"verdict": "change", "texts": [{"place": "input[9]", "text": "x"}]},
    "blank text": {"verdict": "change", "texts": [{"place": "input", "text": " "}]},
    "too large": web.Response(text="x" * 2_000),
    "slow": until_cancelled,
}


@pytest.mark.parametrize("failure", sorted(FAILURES))
async def test_a_guardrail_that_fails(start: Start, webhook: Webhook, failure: str) -> None:
    def verdict(document: Any) -> Any:
        made = FAILURES[failure]
        if isinstance(made, web.Response):
            return web.Response(status=made.status, headers=made.headers, body=made.body)
        return made(document) if callable(made) else made

    webhook.verdict = verdict
    seconds = 0.05 if failure == "slow" else PATIENCE
    most = 1_000_000 if failure == "too deep" else 1_000
    for on_failure, status in (("refuse", 503), ("allow", 200)):
        place = await start(guardrail(webhook, seconds=seconds, on_failure=on_failure, max_bytes=most))
        answer = await place.execute(V2, {"input": "hi"})
        assert answer.status == status
        assert place.metric("mlc_gateway_guardrail_checks_total", verdict="failed") == 1
        if status == 503:
            assert (await answer.json())["error"]["message"] == "The guardrail pii could not check the input"
    assert place.cluster.sent == [{"input": "hi"}]


async def test_a_kept_connection_that_the_server_closes_is_no_failure() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close when the next one has arrived."""
        for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b'{"verdict": "allow"}', b""):
            await reader.readuntil(b"{}")
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        hook = hooks.Webhook(Guardrail(name="a", url=f"http://127.0.0.1:{port}/"))
        for _ in range(3):
            assert (await hook.judge({})).verdict == "allow"
        await hook.close()


async def test_a_guardrail_that_is_down(start: Start) -> None:
    with reserved() as port:
        place = await start({"guardrails": [{"name": "pii", "url": f"http://127.0.0.1:{port}/"}]})
        assert (await place.execute(V2, {"input": "hi"})).status == 503


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"---\nparameters: {question: hi}", "application/yaml"),
        (b'{"parameters": {"question": "a", "question": "b"}}', "application/json"),
        (b"{}", "application/json"),
    ],
)
async def test_what_cannot_be_shown_is_refused(start: Start, webhook: Webhook, body: bytes, kind: str) -> None:
    place = await start(guardrail(webhook))
    answer = await place.execute(V2, body, headers={"Content-Type": kind})
    assert answer.status == 503
    assert webhook.seen == place.cluster.bodies == []


async def test_content_that_is_too_large_is_not_sent(start: Start, webhook: Webhook) -> None:
    place = await start(guardrail(webhook, max_bytes=1_000))
    assert (await place.execute(V2, {"input": "x" * 2_000})).status == 503
    assert webhook.seen == []


async def test_guardrails_see_what_those_before_them_changed(start: Start, webhook: Webhook) -> None:
    webhook.verdict = replacing("a", "aa")
    both = [*guardrail(webhook)["guardrails"], {**guardrail(webhook)["guardrails"][0], "name": "second"}]
    place = await start({"guardrails": both})
    answer = await place.execute(V2, {"input": "a"})
    assert place.cluster.sent == [{"input": "aaaa"}]
    assert answer.headers["X-MLC-Gateway-Notice"] == "GUARDRAIL_CHANGED"


# Entry points


def allow_after_a_change(document: Any) -> Any:
    document["input"] = None
    return {"verdict": "allow"}


async def refuse(document: Any) -> Any:
    return {"verdict": "refuse", "reason": "no"}


class Counting:
    async def __call__(self, document: Any) -> Any:
        return {"verdict": "change", "texts": [{"place": "input", "text": "counted"}]}


counting = Counting()


def broken(document: Any) -> Any:
    raise ValueError(document)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def points(group: str, name: str | None = None) -> list[EntryPoint]:
        names = ("allow_after_a_change", "refuse", "counting", "broken")
        here = [EntryPoint(one, f"{__name__}:{one}", group) for one in names]
        return [point for point in here if name in (None, point.name)]

    monkeypatch.setattr(hooks, "entry_points", points)


@pytest.mark.parametrize(
    ("name", "status", "sent"),
    [
        ("allow_after_a_change", 200, [{"input": "hi"}]),
        ("refuse", 403, []),
        ("counting", 200, [{"input": "counted"}]),
        ("broken", 503, []),
    ],
)
async def test_an_entry_point(start: Start, name: str, status: int, sent: Any) -> None:
    place = await start({"guardrails": [{"name": "own", "entry_point": name}]})
    assert (await place.execute(V2, {"input": "hi"})).status == status
    assert place.cluster.sent == sent


def test_an_entry_point_that_is_not_installed() -> None:
    with pytest.raises(LookupError, match="there are: allow_after_a_change, broken, counting, refuse"):
        hooks.load_function("missing")


_HANG = """
import asyncio, threading
from gateway.policy.hooks import Function

async def main():
    began = threading.Event()
    hook = Function(lambda _: (began.set(), threading.Event().wait()))
    judging = asyncio.create_task(hook.judge({}))
    await asyncio.to_thread(began.wait)
    judging.cancel()
    await asyncio.gather(judging, return_exceptions=True)
    await hook.close()

asyncio.run(main())
"""


async def test_a_function_that_never_returns_does_not_keep_the_process_alive() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _HANG)
    try:
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_plain_function_runs_eight_times_at_once_at_most() -> None:
    running, most, go_on = 0, 0, threading.Event()
    lock, eight = threading.Lock(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def count(_: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 8:
                loop.call_soon_threadsafe(eight.set)
        go_on.wait()
        with lock:
            running -= 1
        return {"verdict": "allow"}

    hook = hooks.Function(count)
    judging = [asyncio.create_task(hook.judge({})) for _ in range(20)]
    await eight.wait()
    go_on.set()
    assert {(await one).verdict for one in judging} == {"allow"}
    assert most == 8
