"""The oracle judges by rules of its own: it imports no code that it judges, and sees wrong questions and notices."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.codes import Notice
from gateway.delivery import search
from gateway.execute.rewrite import RewriteOptions
from gateway.providers.base import MappingOptions
from gateway.unified.model import AgentInput, Text
from tests.conftest import mostly_slow
from tests.delivery.cases import CALL, CASES, IMAGE, VIDEO, Case, text, turn
from tests.delivery.holdout import HoldoutCluster
from tests.delivery.root_agents import RootCluster
from tests.delivery.simulated_cluster import Sent, cluster_of
from tests.delivery.unseen import UnseenCluster
from tests.matrix import cells
from tests.oracle import DELIVERY, Oracle, Outcome

TESTS = Path(__file__).parents[1]
AGENTS = {
    "2.19.0": ["flow-a", "cflow-a", "conv-a", "flow-b", "conv-e2", "flow-d", "conv-d", "conv-i"],
    "3.4.0": ["flow-bedrock_tutorial", "conv-bedrock_tutorial", "conv-openai_tutorial", "fc-openai_upgraded"],
}
RESULT = {"toolResult": {"toolUseId": "t1", "content": [text("sunny"), {"json": [1]}, IMAGE], "status": "error"}}
MORE = {
    "any case": Case([turn("User", "old"), turn("Assistant", "x"), turn("DEVELOPER", "y"), turn("USER", "new")]),
    "blank": Case([text("a"), text(" "), text("b")]),
    "tool result with media": Case([turn("user", "Go."), turn("assistant", CALL), turn("user", RESULT, text("So?"))]),
}


@pytest.mark.parametrize("module", ["oracle.py", "oracle_rules.py", "wire_formats.py", "delivery/frames.py"])
def test_the_oracle_shares_the_model_of_the_input_with_the_gateway_and_nothing_else(module: str) -> None:
    tree = ast.parse((TESTS / module).read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name for name in names if name.partition(".")[0] == "gateway"} <= {"gateway.unified.model"}


def _user_texts(conversation: AgentInput) -> list[str]:
    return [block.text for message in conversation.messages for block in message.content if isinstance(block, Text)]


WRONG_QUESTIONS: dict[str, tuple[Callable[[AgentInput], str], str]] = {
    "all turns": (lambda conversation: "\n".join(_user_texts(conversation)), "conversation"),
    "the last text": (lambda conversation: (_user_texts(conversation) or [""])[-1], "several texts"),
    "joined by spaces": (lambda conversation: " ".join(_user_texts(conversation)), "several texts"),
    "trimmed": (lambda conversation: "\n".join(_user_texts(conversation)).strip(), "blanks, then {"),
    "empty": (lambda conversation: "", "$"),
}


@pytest.mark.parametrize("wrong", WRONG_QUESTIONS)
def test_a_wrong_question_is_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, case = WRONG_QUESTIONS[wrong]
    monkeypatch.setattr(search, "question_text", lambda conversation, roles: make(conversation))
    for version, agents in (("2.19.0", ["flow-a", "conv-a"]), ("3.4.0", ["fc-openai_upgraded"])):
        found = {cell.agent: cell.verdict.outcome for cell in cells(version, agents, {case: CASES[case]})}
        assert found == dict.fromkeys(agents, Outcome.LOST)


def test_an_assistant_in_another_case_is_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect of the question that compared roles letter by letter."""

    def letter_by_letter(conversation: AgentInput, roles: object) -> str:
        texts: list[str] = []
        for message in conversation.messages:
            texts = (
                []
                if message.role == "assistant"
                else [*texts, *(b.text for b in message.content if isinstance(b, Text))]
            )
        return "\n".join(texts)

    any_case = {"any case": MORE["any case"]}
    right = {cell.agent: cell.verdict.outcome for cell in cells("2.19.0", ["flow-a"], any_case)}
    assert right == {"flow-a": Outcome.ARRIVED}
    monkeypatch.setattr(search, "question_text", letter_by_letter)
    (wrong, *_) = cells("2.19.0", ["flow-a"], any_case)
    assert wrong.verdict.outcome is Outcome.LOST


@cache
def arrived() -> tuple[tuple[Oracle, str, Case, Sent], ...]:
    """Requests that arrived at some agents, with all that was reported of each, and who judged so."""
    return tuple(_arrived())


def _arrived() -> Iterator[tuple[Oracle, str, Case, Sent]]:
    clusters = [(cluster_of(version), agents) for version, agents in AGENTS.items()]
    others = [
        (UnseenCluster("2.19.0"), ["flow-invoke_image_slot"]),
        (HoldoutCluster("2.19.0"), ["root-chat", "flow-mistral_messages"]),
        (RootCluster("2.19.0"), ["root of chat"]),
        (HoldoutCluster("3.4.0"), ["one-ollama_native"]),
    ]
    for cluster, agents in (*clusters, *others):
        oracle = Oracle(cluster)
        for agent in agents:
            for case in (*CASES.values(), *MORE.values()):
                sent = cluster.send(agent, case.body, case.pairs)
                if oracle.judge(agent, case.parameters, case.pairs, sent).outcome is Outcome.ARRIVED:
                    yield oracle, agent, case, sent
        cluster.forget()


def outcome(oracle: Oracle, agent: str, case: Case, sent: Sent, notices: tuple[Notice, ...]) -> Outcome:
    assert sent.rewritten is not None
    other = replace(sent.rewritten, plan=replace(sent.rewritten.plan, notices=notices))
    return oracle.judge(agent, case.parameters, case.pairs, replace(sent, rewritten=other)).outcome


def notices_of(sent: Sent) -> tuple[Notice, ...]:
    assert sent.rewritten is not None
    return sent.rewritten.plan.notices


@pytest.mark.slow
def test_a_notice_that_is_left_out_is_seen() -> None:
    seen, missed = set(), []
    for oracle, agent, case, sent in arrived():
        for notice in notices_of(sent):
            rest = tuple(other for other in notices_of(sent) if other is not notice)
            seen.add(notice.code)
            if outcome(oracle, agent, case, sent, rest) is Outcome.ARRIVED:
                missed.append((agent, case.input, notice))
    assert missed == []
    assert seen >= {*DELIVERY, "ROLE_MAPPED", "BLANK_TEXT_DROPPED", "NEUTRAL_TEXT_ADDED"} - {"MEDIA_DESCRIBED"}


CODES = sorted({*DELIVERY, "ROLE_MAPPED", "SYSTEM_HOISTED", "NEUTRAL_TEXT_ADDED", "NO_SUCH"})


@pytest.mark.parametrize("code", mostly_slow(CODES, 5))
@pytest.mark.slow
def test_a_notice_of_what_did_not_happen_is_seen(code: str) -> None:
    missed = []
    for oracle, agent, case, sent in arrived():
        if code in {notice.code for notice in notices_of(sent)}:
            continue
        for at in ("", "input[0]"):
            if outcome(oracle, agent, case, sent, (*notices_of(sent), Notice(code, "", at))) is Outcome.ARRIVED:
                missed.append((agent, case.input))
    assert missed == []


def test_described_media_and_the_operators_roles_are_judged() -> None:
    cluster = cluster_of("2.19.0")
    roles = {"Bot": "assistant", "guide": "system"}
    turns = [
        turn("guide", "In brief."),
        turn("user", "old"),
        turn("bot", "x"),
        turn("user", text("Look:"), VIDEO, IMAGE),
    ]
    policy = RewriteOptions(MappingOptions(roles=roles), describe=True)
    sent = cluster.send("flow-b", {"input": turns}, policy=policy)
    verdict = Oracle(cluster, roles).judge("flow-b", {}, (), sent)
    assert (verdict.outcome, verdict.notices) == (Outcome.ARRIVED, ("ROLE_MAPPED", "ROLE_MAPPED", "MEDIA_DESCRIBED"))
    case = Case(turns)
    assert outcome(Oracle(cluster), "flow-b", case, sent, notices_of(sent)[:-1]) is not Outcome.ARRIVED
    assert Oracle(cluster).judge("flow-b", {}, (), sent).outcome is Outcome.LOST
