"""What a rehearsal judges, what it does not and why, and what it counts. Whether it is right: tests/properties."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.migrate.recorded import Options, Reason, RecordedRun, read_run
from gateway.migrate.rehearse import Kind, Rehearsal, RehearsedAgent, Tally, Verdict
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.media import shorten_media
from tests.delivery.simulated_cluster import cluster_of
from tests.delivery.v2_agents import v2_cluster_of

OPTIONS = Options()
QUESTION = {"parameters": {"question": "Where is it?"}}
TEXT = {"input": "Where is it?"}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"picture" * 300).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "format": "png", "data": PNG}}
PICTURE = {"input": [{"type": "text", "text": "What is it?"}, IMAGE]}


def _run(body: Any, streaming: bool = False) -> RecordedRun:
    return read_run("id", shorten_media(json.dumps(body).encode()), streaming, OPTIONS)


def _agent(name: str, version: str = "2.19.0", options: Options = OPTIONS, **changes: Any) -> RehearsedAgent:
    cluster = cluster_of(version)
    document = cluster.core.resources.agent(cluster.agents[name])
    return RehearsedAgent(replace(cluster.profile(name), **changes), document, options)


def _verdict(old: RehearsedAgent, new: RehearsedAgent, body: Any, **options: Any) -> Verdict:
    return Rehearsal(old, new, **options).judge(_run(body))


@pytest.mark.parametrize("body", [QUESTION, TEXT], ids=["question", "input"])
def test_an_agent_gets_the_same_as_itself(body: Any) -> None:
    assert _verdict(_agent("conv-d"), _agent("conv-d"), body) == Verdict(Kind.SAME)


def test_an_image_that_was_recorded_as_a_hash_is_judged() -> None:
    run = _run(PICTURE)
    assert run.reason is None
    without, with_place = _agent("flow-d"), _agent("flow-h")
    assert Rehearsal(with_place, with_place).judge(run) == Verdict(Kind.SAME)
    refused = Rehearsal(with_place, without).judge(run)
    assert (refused.kind, refused.codes) == (Kind.REFUSED, ("MEDIA_NEEDS_UPGRADE",))
    assert "upgrade" in refused.help
    assert Rehearsal(without, with_place).judge(run).kind is Kind.ARRIVES_NOW
    assert Rehearsal(without, without).judge(run).kind is Kind.REFUSED_BY_BOTH


def test_a_text_that_was_recorded_as_a_hash_is_judged_only_where_it_stays_a_document() -> None:
    text = base64.b64encode(b"a long text " * 200).decode()
    document = {"type": "document", "source": {"type": "base64", "format": "txt", "data": text}}
    body = {"input": [{"type": "text", "text": "?"}, document]}
    assert _verdict(_agent("flow-h"), _agent("flow-h"), body) == Verdict(Kind.SAME)
    assert _verdict(_agent("flow-h"), _agent("bare-b"), body).codes == ("TEXT_NOT_RECORDED",)


NOT_JUDGED = {
    "SECRET_REMOVED": {"input": "[REDACTED length=10 sha256=0f1e2d3c4b5a]"},
    "OWN_WORD": {"input": "What is <built-in>?"},
    "LENIENT_JSON": {"parameters": {"question": "{a:1,}"}},
    "REQUEST_UNREADABLE": {"other": 1},
    "TOO_LARGE": {
        "parameters": {
            "question": "${parameters.a0}",
            **{f"a{number}": f"${{parameters.a{number + 1}}}" * 4 for number in range(12)},
        }
    },
}


@pytest.mark.parametrize("code", NOT_JUDGED)
def test_what_the_record_does_not_show_is_not_judged(code: str) -> None:
    verdict = _verdict(_agent("flow-d"), _agent("flow-a"), NOT_JUDGED[code])
    assert (verdict.kind, verdict.codes) == (Kind.NOT_JUDGED, (code,))
    assert verdict.reason.startswith(Reason[code].value)


def test_a_cut_body_is_not_judged() -> None:
    run = read_run("id", b'{"inp', False, OPTIONS, "Cut: 900 bytes came, and the first 5 were recorded.")
    verdict = Rehearsal(_agent("flow-d"), _agent("flow-d")).judge(run)
    assert verdict.codes == ("BODY_NOT_RECORDED",)
    assert verdict.reason.endswith("the first 5 were recorded.")


def test_an_agent_that_can_not_be_read_is_the_reason() -> None:
    missing = RehearsedAgent(None, {}, OPTIONS, "models/m: there is no such model")
    verdict = _verdict(_agent("flow-d"), missing, TEXT)
    assert (verdict.codes, verdict.reason.endswith("models/m: there is no such model")) == (("AGENT_UNREADABLE",), True)


def _in_memory(body: Mapping[str, Any]) -> dict[str, Any]:
    return {**body, "parameters": {**body.get("parameters", {}), "memory_id": "m1"}}


def test_a_question_after_others_is_judged_where_both_agents_replay_them_alike() -> None:
    agent, body = _agent("conv-d"), _in_memory(QUESTION)
    assert _verdict(agent, agent, body) == Verdict(Kind.SAME)
    shorter = _agent("conv-d", llm_parameters={**_profile("conv-d").llm_parameters, "message_history_limit": "2"})
    for new in (shorter, _agent("cflow-d"), _agent("flow-d")):
        assert _verdict(agent, new, body).codes == ("MEMORY_REPLAYED",)


def test_an_input_after_others_is_not_judged() -> None:
    assert _verdict(_agent("conv-d"), _agent("conv-d"), _in_memory(TEXT)).codes == ("MEMORY_REPLAYED",)
    assert _verdict(_agent("flow-d"), _agent("flow-d"), _in_memory(TEXT)) == Verdict(Kind.SAME)


def test_the_first_turn_of_a_session_of_the_gateway_is_judged() -> None:
    remembering = _agent("conv-d", gateway_memory=True)
    assert _verdict(remembering, remembering, QUESTION) == Verdict(Kind.SAME)
    assert _verdict(remembering, remembering, _in_memory(QUESTION)).codes == ("MEMORY_REPLAYED",)


def test_other_tools_are_a_difference_though_the_llm_is_the_same() -> None:
    old = _agent("fc-bedrock_upgraded", "3.8.0")
    cluster = cluster_of("3.8.0")
    document = cluster.core.resources.agent(cluster.agents["fc-bedrock_upgraded"])
    tools = [{**tool, "description": "Counts books."} for tool in document["tools"]]
    new = RehearsedAgent(_profile("fc-bedrock_upgraded", "3.8.0"), {**document, "tools": tools}, OPTIONS)
    assert _verdict(old, new, TEXT) == Verdict(Kind.DIFFERENT, ("tools",))
    assert _verdict(old, new, TEXT, ignored=("tools",)) == Verdict(Kind.SAME)


def test_the_prompts_of_the_cluster_are_others_in_another_version() -> None:
    profile = _profile("conv-d")
    prompts = {name: text for name, text in profile.llm_parameters.items() if name != "prompt"}
    old, own = (
        [replace(profile, llm_parameters=parameters, version=version) for version in ((2, 19, 0), (2, 20, 0))]
        for parameters in (prompts, {**prompts, "prompt": "Asked: ${parameters.question}"})
    )
    built_in, written = ([RehearsedAgent(one, {}, OPTIONS) for one in pair] for pair in (old, own))
    assert _verdict(*built_in, QUESTION) == Verdict(Kind.DIFFERENT, ("prompt",))
    assert _verdict(*written, QUESTION) == Verdict(Kind.SAME)


def _profile(name: str, version: str = "2.19.0") -> AgentProfile:
    return cluster_of(version).profile(name)


def test_a_stream_is_judged_as_a_stream() -> None:
    agent = _agent("fc-openai_upgraded", "3.8.0")
    run = _run(TEXT, streaming=True)
    assert Rehearsal(agent, agent).judge(run) == Verdict(Kind.SAME)
    flow = _agent("flow-openai_upgraded", "3.8.0")
    assert "+STREAM_IN_ONE_PIECE" in Rehearsal(agent, flow).judge(run).differences


def test_a_question_reaches_an_agent_that_takes_nothing_but_input() -> None:
    cluster = v2_cluster_of("3.8.0")
    document = cluster.core.resources.agent(cluster.agents["v2-bedrock"])
    new = RehearsedAgent(cluster.profile("v2-bedrock"), document, OPTIONS)
    assert _verdict(new, new, QUESTION) == Verdict(Kind.SAME)
    off = RehearsedAgent(replace(cluster.profile("v2-bedrock"), unified_api=False), document, OPTIONS)
    assert _verdict(new, off, QUESTION).codes == ("FAILS_ON_CLUSTER",)


def test_media_by_url_that_the_gateway_would_fetch_are_not_judged() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    body = {"input": [{"type": "text", "text": "?"}, image]}
    fetching = Options(fetches_media=True)
    agents = [_agent("flow-h", options=options) for options in (OPTIONS, fetching)]
    assert [_verdict(agent, agent, body).kind for agent in agents] == [Kind.REFUSED_BY_BOTH, Kind.NOT_JUDGED]


def test_requests_of_one_shape_are_planned_once() -> None:
    rehearsal = Rehearsal(_agent("flow-d"), _agent("flow-a"))
    for number in range(50):
        text = f"Question {number}, with 'quotes' and \"more\"\n"
        rehearsal.judge(_run({"input": text}))
        rehearsal.judge(_run({"parameters": {"question": f"q{text}", "memory_id": str(number)}}))
    assert len(rehearsal._verdicts) == 2


def test_the_share_of_the_same_leaves_out_what_the_old_agent_refuses() -> None:
    tally = Tally()
    assert tally.same_percent() is None
    for kind, count in ((Kind.SAME, 6), (Kind.DIFFERENT, 1), (Kind.NOT_JUDGED, 1), (Kind.REFUSED_BY_BOTH, 5)):
        for number in range(count):
            tally.add(f"{kind}-{number}", Verdict(kind))
    assert (tally.count(), tally.same_percent()) == (13, 75)
    assert [(row.verdict.kind, row.count, len(row.examples)) for row in tally.rows()] == [
        (Kind.SAME, 6, 3),
        (Kind.DIFFERENT, 1, 1),
        (Kind.REFUSED_BY_BOTH, 5, 3),
        (Kind.NOT_JUDGED, 1, 1),
    ]


def test_a_tally_does_not_grow_with_what_it_counts() -> None:
    tally = Tally()
    for number in range(1000):
        tally.add(str(number), Verdict(Kind.DIFFERENT, (f"member{number}",)))
    assert len(tally.rows()) == Tally.MOST_ROWS + 1
    assert tally.count() == 1000
