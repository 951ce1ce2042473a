"""Whatever happens to any request of a move, and whenever its process is killed, both clusters end up whole.

Whole means: the copies of all documents, each once, and a target in the route; or a new cluster as empty as it was, and
the settings as they were. No secret of one cluster reaches the other, and none is in an output or a file.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

from gateway.migrate.writer import Writer
from gateway.simulator.rest import Response
from tests.conftest import mostly_slow
from tests.faulty_cluster import Fault, FaultyCluster, Kind, orphans
from tests.forked import Forked, piped
from tests.migrate.conftest import Command, Deployment, StartDeployment
from tests.migrate.moving import CANARIES, INNER_SECRET, LLM_SECRET, NEW_SECRET, OLD_SECRET, TOOL_SECRET, Move
from tests.migrate.test_move import NOTHING, empty, unified  # noqa: F401
from tests.migrate.test_upgrade_faults import _AnyWrite, expire, front  # noqa: F401
from tests.terminal import environment
from tests.wire import PATIENCE

KINDS: tuple[Kind, ...] = ("error", "refused", "stall", "lost", "late", "truncated")
WRITES = 8
ENDS = ("gateway.migrate.settings_file.replace_file", "gateway.migrate.move.Mover.finish")
"""What comes after the last write to the cluster."""
READ = r"/_plugins/_ml/|/_cluster"
WRITE = r"/_plugins/_ml/(?!.*_search)"


@pytest.fixture
def move(start_deployment: StartDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Move:
    monkeypatch.setattr("gateway.migrate.writer._LAG", 0.2)
    return empty(Move(start_deployment("2.19.0"), start_deployment("3.8.0"), tmp_path))


def require_whole(move: Move) -> bool:
    """Whether the agent is moved; fails when it is neither that nor as if nothing had happened."""
    made = move.made()
    if not move.target:
        assert made == NOTHING
        assert move.settings.agents.routes == []
        return False
    assert {kind: len(found) for kind, found in made.items()} == dict.fromkeys(made, 2)
    assert orphans(move.new.cluster.core) == []
    agent = made["agents"][move.target]
    assert {tool["parameters"].get("agent_id", move.target) for tool in agent["tools"]} <= made["agents"].keys()
    (route,) = move.settings.agents.routes
    assert [one.weight for one in route.targets] == [100, 0]
    return True


def _through(move: Move, url: str, command: Command, *more: str) -> tuple[int, str]:
    """Run the command with another address of the new cluster; return its status and all that it said."""
    text = move.config.read_text()
    move.config.write_text(text.replace(move.new.url, url))
    try:
        status, out, err = command(*move.argv_with_credentials(*more))
    finally:
        move.config.write_text(move.config.read_text().replace(url, move.new.url))
    return status, out + err


@pytest.mark.parametrize(
    ("kind", "nth"), mostly_slow([(kind, nth) for kind in KINDS for nth in range(1, WRITES + 1)], 21)
)
def test_a_fault_of_one_write(
    move: Move,
    command: Command,
    kind: Kind,
    nth: int,
    expire: Callable[[], None],  # noqa: F811
) -> None:
    with front(move.new, _AnyWrite(kind, "", WRITE, nth=nth), expire=expire) as faulty:
        status, shown = _through(move, faulty.url, command)
        assert any(seen.fault == kind for seen in faulty.seen)
    assert status in (0, 3), shown
    assert require_whole(move) is (status == 0)
    assert command(*move.argv_with_credentials())[0] == 0
    assert require_whole(move) is True


@pytest.mark.parametrize(
    ("kind", "code", "of"),
    mostly_slow(
        [
            (kind, code, of)
            for kind, code in (("error", 500), ("error", 403), ("refused", 0), ("truncated", 0))
            for of in ("old", "new")
        ],
        8,
    ),
)
def test_a_fault_of_one_reading(move: Move, command: Command, kind: Kind, code: int, of: str) -> None:
    """A move is refused, undone or made; each reading is tried, up to the one that there is not."""
    deployment = {"old": move.old, "new": move.new}[of]
    struck, nth = True, 0
    while struck:
        nth += 1
        with front(deployment) as faulty:
            faulty.faults += [_Reading(kind, "", READ, nth=nth, status=code)]
            text = move.config.read_text()
            move.config.write_text(text.replace(deployment.url, faulty.url))
            status, out, err = command(*move.argv_with_credentials())
            move.config.write_text(move.config.read_text().replace(faulty.url, deployment.url))
            struck = any(seen.fault for seen in faulty.seen)
        assert status in (0, 1, 2, 3), (out, err)
        assert require_whole(move) is (status == 0)
        if status == 0:
            assert command(*move.argv("--undo"))[0] == 0
    assert nth > 5


class _Reading(Fault):
    """A fault of one reading, a search among them."""

    def strikes(self, method: str, target: str) -> bool:
        return (method == "GET" or "_search" in target) and super().strikes(method, target)


@pytest.mark.parametrize("nth", mostly_slow(range(1, WRITES + 1), 4))
def test_a_cluster_that_does_nothing_right_any_more(move: Move, command: Command, nth: int) -> None:
    """Then what was made can't be removed at once; once the cluster is well, the command ends it either way."""
    with front(move.new, _AnyWrite("error", "", WRITE, nth=nth, times=1000)) as faulty:
        status, shown = _through(move, faulty.url, command)
    assert status == (3 if nth == 1 else 4), shown
    if nth > 1:
        assert "send these calls to new to remove the rest:\n  " in shown
        assert command(*move.argv("--undo"))[0] == 0
    assert require_whole(move) is False
    assert command(*move.argv_with_credentials())[0] == 0
    assert require_whole(move) is True


UNIFIED_WRITES = 3
"""The agent, its model's connector, and the call that unloads the model."""


@pytest.mark.parametrize(
    ("nth", "kind"), mostly_slow([(nth, kind) for nth in range(1, UNIFIED_WRITES + 1) for kind in KINDS], 7)
)
def test_a_fault_while_a_unified_agent_is_made(
    unified: Move,  # noqa: F811
    command: Command,
    kind: Kind,
    nth: int,
    expire: Callable[[], None],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.migrate.writer._LAG", 0.2)
    with front(unified.new, _AnyWrite(kind, "", WRITE, nth=nth), expire=expire) as faulty:
        status, shown = _through(unified, faulty.url, command)
        assert any(seen.fault == kind for seen in faulty.seen)
    assert status in (0, 3), shown
    assert bool(unified.target) is (status == 0)
    if status:
        assert unified.made() == NOTHING
    assert command(*unified.argv_with_credentials())[0] == 0
    _require_unified(unified)


@pytest.mark.parametrize(
    ("nth", "then"), mostly_slow([(nth, then) for nth in range(1, UNIFIED_WRITES + 1) for then in ("again", "undo")], 3)
)
def test_ended_while_a_unified_agent_is_made(
    unified: Move,  # noqa: F811
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
    then: str,
) -> None:
    send, sent = Writer.send, []

    def send_and_die(self: Writer, call: Any) -> Any:
        answer = send(self, call)
        sent.append(call)
        if len(sent) == nth:
            raise Killed
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "send", send_and_die)
        with pytest.raises(Killed):
            command(*unified.argv_with_credentials())
    again = unified.argv_with_credentials() if then == "again" else unified.argv("--undo")
    assert command(*again)[0] == 0
    if then == "undo":
        assert unified.made() == NOTHING
    else:
        _require_unified(unified)


def _require_unified(move: Move) -> None:
    made = move.made()
    assert [len(found) for found in made.values()] == [0, 1, 1, 1]
    (model,) = made["models"].values()
    assert model["connector"]["actions"][0]["request_body"].startswith('{"user":"${parameters.user}"')


class Killed(BaseException):
    """The process ends."""


@pytest.mark.parametrize(
    ("nth", "then"), mostly_slow([(nth, then) for nth in range(1, WRITES + 1) for then in ("again", "undo")], 5)
)
def test_ended_after_any_write(
    move: Move, command: Command, monkeypatch: pytest.MonkeyPatch, nth: int, then: str
) -> None:
    send, sent = Writer.send, []

    def send_and_die(self: Writer, call: Any) -> Any:
        answer = send(self, call)
        sent.append(call)
        if len(sent) == nth:
            raise Killed
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "send", send_and_die)
        with pytest.raises(Killed):
            command(*move.argv_with_credentials())
    again = move.argv_with_credentials() if then == "again" else move.argv("--undo")
    status, out, err = command(*again)
    assert status == 0, (out, err)
    assert require_whole(move) is (then == "again")


def test_a_search_that_lags_behind_the_end_of_the_run_before(
    move: Move, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun is searched until it is visible, so nothing is made twice."""
    monkeypatch.setattr("gateway.migrate.writer._LAG", PATIENCE)
    move.new.cluster.core.resources.refresh_seconds = 0.5
    send = Writer.send

    def send_and_die(self: Writer, call: Any) -> Any:
        send(self, call)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "send", send_and_die)
        with pytest.raises(Killed):
            command(*move.argv_with_credentials())
    assert command(*move.argv_with_credentials())[0] == 0
    assert require_whole(move) is True


@pytest.mark.parametrize(
    ("nth", "before"), mostly_slow([(nth, before) for nth in range(1, WRITES + 1) for before in (False, True)], 16)
)
def test_killed_at_any_write(move: Move, nth: int, before: bool) -> None:
    """By SIGKILL: before the cluster sees the write, or once it has done it."""
    text = move.config.read_text()
    with front(move.new, _AnyWrite("stall" if before else "late", "", WRITE, nth=nth, seconds=120)) as faulty:
        move.config.write_text(text.replace(move.new.url, faulty.url))
        with piped(move.argv_with_credentials(), environment()) as (moving, shown):
            _await(faulty, moving, shown, before)
    assert move.config.read_text() == text.replace(move.new.url, faulty.url)
    move.config.write_text(text)
    with piped(move.argv_with_credentials(), environment()) as (moving, shown):
        text = shown.read()
        assert moving.wait(3 * PATIENCE) == 0, text
    assert require_whole(move) is True
    assert not any(canary in text for canary in CANARIES)


def _await(faulty: FaultyCluster, moving: Forked, shown: TextIO, before: bool) -> None:
    deadline = time.monotonic() + PATIENCE
    while not any(seen.fault and (before or seen.status) for seen in faulty.seen):
        assert moving.poll() is None, shown.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("where", ENDS)
def test_ended_while_the_route_is_written(
    move: Move, command: Command, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(where, die)
        with pytest.raises(Killed):
            command(*move.argv_with_credentials())
    assert command(*move.argv())[0] == 0
    assert require_whole(move) is True


@pytest.mark.parametrize("where", ENDS)
def test_a_route_that_can_not_be_written(
    move: Move, command: Command, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Everything is removed again, the target in the settings, too."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(where, full)
        status, _, err = command(*move.argv_with_credentials())
    assert status == 3, err
    assert "No space left on device" in err
    assert require_whole(move) is False


def test_no_secret_leaves_its_cluster(move: Move, command: Command) -> None:
    """Nor is one in an output, in the settings, or in a file that a move writes."""
    for deployment in (move.old, move.new):
        deployment.cluster.requests.clear()
    shown = "".join(str(command(*move.argv_with_credentials(*more))) for more in (["--dry-run"], [], ["--json"]))
    status, out, err = command(*move.argv("--undo"))
    assert status == 0
    basic = {
        "old": b64encode(f"o:{OLD_SECRET}".encode()).decode(),
        "new": b64encode(f"n:{NEW_SECRET}".encode()).decode(),
    }
    sent = {name: _sent(one) for name, one in (("old", move.old), ("new", move.new))}
    for name, other in (("old", "new"), ("new", "old")):
        assert basic[name] in sent[name]
        assert basic[name] not in sent[other]
    for canary in CANARIES:
        assert canary not in sent["old"]
        assert canary not in shown + out + err
    assert {canary: sent["new"].count(canary) for canary in CANARIES} == {
        OLD_SECRET: 0,
        NEW_SECRET: 0,
        LLM_SECRET: 1,
        INNER_SECRET: 1,
        TOOL_SECRET: 1,
    }
    written = [
        path
        for path in move.folder.rglob("*")
        if path.is_file() and path.name not in ("old", "new", "credentials.json")
    ]
    assert len(written) >= 3
    for path in written:
        text = path.read_text()
        assert not any(word in text for word in (*CANARIES, *basic.values())), path


def _sent(deployment: Deployment) -> str:
    """Every header and body that a cluster got, as text."""
    return "\n".join(
        f"{request.method} {request.target} {dict(request.headers)} {request.body!r}"
        for request in deployment.cluster.requests
    )


def test_a_cluster_that_repeats_the_credential_in_its_refusal(
    move: Move, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond = type(move.new.cluster)._respond

    async def repeat(self: Any, request: Any) -> Response:
        if request.path.endswith("connectors/_create"):
            body = json.loads(request.body)
            return Response(400, {"error": {"reason": f"bad credential {body['credential']}"}, "status": 400})
        return await respond(self, request)

    monkeypatch.setattr(type(move.new.cluster), "_respond", repeat)
    status, out, err = command(*move.argv_with_credentials())
    assert status == 3
    assert "bad credential {'key': '***'}" in err
    assert not any(canary in out + err for canary in CANARIES)
    assert require_whole(move) is False
