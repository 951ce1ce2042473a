"""What the help of an input's refusal advises is done, and then the input arrives, on every version.

Refusals for which an agent or the cluster must be changed are here, too. The matrix is in `test_remedies`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.agents.documents import Rule
from gateway.execute.rewrite import RewriteOptions
from gateway.providers.base import MappingOptions
from gateway.simulator.settings import UNIFIED_API
from tests.delivery.cases import IMAGE, PNG, VIDEO, media, text, turn
from tests.delivery.simulated_cluster import LLM_URL, cluster_of
from tests.oracle import Oracle, Outcome
from tests.properties.deployment import Deployment

VERSIONS = ("2.19.0", "3.4.0", "3.6.0", "3.8.0")
OLD, MODERN = "2.19.0", ("3.4.0", "3.6.0", "3.8.0")
AGENTS: Mapping[str, tuple[str, str]] = {  # provider → flows that take whole messages, on 2.19 and on 3.x
    "bedrock": ("flow-a", "flow-bedrock_messages"),
    "openai": ("flow-b", "flow-openai_messages"),
    "gemini": ("flow-e2", "flow-gemini_contents"),
    "anthropic": ("flow-j", "flow-anthropic_messages"),
}


@dataclass(frozen=True)
class Row:
    """A refused input, a part of its help, and what that makes of the input.

    roles: the operator's. other: the provider of the agent that is used then, if it is another one.
    """

    code: str
    provider: str
    refused: Any
    help: str
    followed: Any
    roles: Mapping[str, str] = field(default_factory=dict)
    other: str = ""


def call(name: str = "weather", id: str = "t1") -> dict[str, Any]:
    return {"toolUse": {"toolUseId": id, "name": name, "input": {"city": "Paris"}}}


def result(*content: Any, id: str = "t1") -> dict[str, Any]:
    return {"toolResult": {"toolUseId": id, "content": list(content or [text("sunny")])}}


def image_at(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "format": "png", "data": url}}


def plain_document(data: bytes) -> dict[str, Any]:
    return media("document", "txt", base64.b64encode(data).decode(), name="Notes")


ASKED, ANSWERED, AGAIN = turn("user", "Weather?"), turn("assistant", "Sunny."), turn("user", "And now?")
GUARD = {"guardContent": {"text": {"text": "x", "qualifiers": ["query"]}}}
ROWS = [
    Row(
        "BLOCK_ROLE_UNSUPPORTED",
        "openai",
        [ASKED, turn("assistant", text("Look."), IMAGE), AGAIN],
        "Put the image into a turn of role user.",
        [turn("user", text("Weather?"), IMAGE), ANSWERED, AGAIN],
    ),
    Row(
        "BLOCK_ROLE_UNSUPPORTED",
        "openai",
        [turn("user", text("Weather?"), call()), turn("user", result()), AGAIN],
        "Put the tool call into a turn of role assistant.",
        [ASKED, turn("assistant", call()), turn("user", result()), AGAIN],
    ),
    Row(
        "TOOL_RESULT_CONTENT_UNSUPPORTED",
        "gemini",
        [ASKED, turn("assistant", call()), turn("user", result(text("this"), VIDEO)), AGAIN],
        "Let the tool return text, or send the media in a user turn of its own.",
        [ASKED, turn("assistant", call()), turn("user", result(text("this"))), turn("user", text("And now?"), VIDEO)],
    ),
    Row(
        "MEDIA_SOURCE_UNSUPPORTED",
        "bedrock",
        [text("What is it?"), image_at("https://example.com/a.png")],
        "Send the image as ",
        [text("What is it?"), image_at("s3://bucket/a.png")],
    ),
    Row(
        "MEDIA_SOURCE_UNSUPPORTED",
        "bedrock",
        [text("What is it?"), image_at("https://example.com/a.png")],
        "base64",
        [text("What is it?"), IMAGE],
    ),
    Row(
        "MEDIA_FORMAT_UNSUPPORTED",
        "gemini",
        [text("What is it?"), media("image", "gif", "R0lGODlhAQABAAAAACw=")],
        "Convert the image to ",
        [text("What is it?"), media("image", "png", PNG)],
    ),
    Row(
        "MEDIA_FORMAT_MISSING",
        "gemini",
        [text("What is it?"), {"type": "image_url", "image_url": {"url": "https://example.com/render"}}],
        'Name the format: "source": {"type": "url", "format": "png", "data": <URL>}',
        [
            text("What is it?"),
            {"type": "image", "source": {"type": "url", "format": "png", "data": "https://example.com/render"}},
        ],
    ),
    Row(
        "MEDIA_FORMAT_MISSING",
        "bedrock",
        [text("What is it?"), {"type": "image", "source": {"type": "url", "url": "s3://bucket/render"}}],
        'Name the format: "source": {"type": "url", "format": "png", "data": <URL>}',
        [text("What is it?"), image_at("s3://bucket/render")],
    ),
    Row(
        "MEDIA_URL_UNSUPPORTED",
        "bedrock",
        [text("What is it?"), image_at("s3://B_/a.png")],
        "Check the bucket's name and the URL's length.",
        [text("What is it?"), image_at("s3://bucket/a.png")],
    ),
    Row(
        "DOCUMENT_NOT_TEXT",
        "anthropic",
        [text("Sum up."), plain_document(b"caf\xe9")],
        "Encode the document as UTF-8, or send it as pdf.",
        [text("Sum up."), plain_document("café".encode())],
    ),
    Row(
        "TOOL_RESULT_UNMATCHED",
        "openai",
        [ASKED, turn("assistant", call()), turn("user", result(id="t2")), AGAIN],
        "Send the assistant's tool call before its result, under the same id, and answer each call once.",
        [ASKED, turn("assistant", call()), turn("user", result()), AGAIN],
    ),
    Row(
        "TOOL_CALL_UNANSWERED",
        "openai",
        [ASKED, turn("assistant", text("Wait."), call()), AGAIN],
        "or leave the call out.",
        [ASKED, turn("assistant", "Wait."), AGAIN],
    ),
    Row(
        "TOOL_CALL_UNANSWERED",
        "openai",
        [ASKED, turn("assistant", text("Wait."), call()), AGAIN],
        "Send the tool's result right after the assistant's turn",
        [ASKED, turn("assistant", text("Wait."), call()), turn("user", result()), AGAIN],
    ),
    Row(
        "TOOL_RESULT_MISSING",
        "openai",
        [ASKED, turn("assistant", call()), turn("sensor", "sunny"), AGAIN],
        "Name the call that the turn answers",
        [ASKED, turn("assistant", call()), turn("sensor", result()), AGAIN],
        {"sensor": "tool"},
    ),
    Row(
        "TOOL_RESULT_MISSING",
        "openai",
        [ASKED, ANSWERED, turn("sensor", "sunny"), AGAIN],
        "or give the turn the role user.",
        [ASKED, ANSWERED, turn("user", "sunny"), AGAIN],
        {"sensor": "tool"},
    ),
    Row(
        "TOOL_NAME_UNSUPPORTED",
        "openai",
        [ASKED, turn("assistant", call("the weather")), turn("user", result()), AGAIN],
        "Name the tool as the agent's own tool list does.",
        [ASKED, turn("assistant", call("weather")), turn("user", result()), AGAIN],
    ),
    Row("NATIVE_BLOCK_UNSUPPORTED", "openai", [text("a"), GUARD], "Leave the block out", [text("a")]),
    Row(
        "NATIVE_BLOCK_UNSUPPORTED",
        "openai",
        [text("a"), GUARD],
        "or use a model on Bedrock Converse.",
        [text("a"), GUARD],
        other="bedrock",
    ),
    Row(
        "EMPTY_INPUT",
        "bedrock",
        [turn("system", "Be brief."), turn("user", " ")],
        "Send at least one user turn that is not blank.",
        [turn("system", "Be brief."), ASKED],
    ),
    Row("ASSISTANT_FIRST", "bedrock", [ANSWERED, AGAIN], "Start with a user turn.", [ASKED, ANSWERED, AGAIN]),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("row", ROWS, ids=[f"{row.code}, {row.help[:20]}" for row in ROWS])
def test_the_advice_makes_the_input_arrive(version: str, row: Row) -> None:
    cluster = cluster_of(version)
    agent = AGENTS[row.provider][version != OLD]
    policy = RewriteOptions(MappingOptions(row.roles))
    error = cluster.send(agent, {"input": row.refused}, policy=policy).error
    assert error is not None
    assert row.code in {problem.code for problem in error.problems}
    assert any(row.help in problem.help for problem in error.problems), error.problems
    agent = AGENTS[row.other or row.provider][version != OLD]
    sent = cluster.send(agent, {"input": row.followed}, policy=policy)
    verdict = Oracle(cluster, row.roles).judge(agent, {}, (), sent)
    cluster.forget()
    assert verdict.outcome is Outcome.ARRIVED, verdict


def arrives(deployment: Deployment, agent: str, body: Mapping[str, Any], needle: str) -> bool:
    sent = deployment.send(agent, body)
    return sent.executed is not None and sent.executed.status == 200 and needle in sent.executed.llm_bodies[0]


def problem_of(deployment: Deployment, agent: str, body: Mapping[str, Any]) -> tuple[str, str]:
    """Code and help of the only problem."""
    error = deployment.send(agent, body).error
    assert error is not None
    (problem,) = error.problems
    return problem.code, problem.help


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["conversational", "flow"])
def test_an_agent_without_tools_runs_once_it_is_registered_with_one(version: str, kind: str) -> None:
    deployment = Deployment(version)
    resources = deployment.core.resources
    known = resources.agent(deployment.cluster.agents["conv-d" if version == OLD else "conv-bedrock_tutorial"])
    flow = resources.agent(deployment.cluster.agents["flow-d" if version == OLD else "flow-bedrock_tutorial"])
    of_kind = {"conversational": known, "flow": flow}[kind]
    body = {name: of_kind[name] for name in ("type", "llm", "memory", "app_type", "parameters") if name in of_kind}
    agents = deployment.cluster.agents
    agents["bare"] = resources.register_agent({**body, "name": "bare", "tools": []})["agent_id"]
    code, help = problem_of(deployment, "bare", {"input": "Which ones?"})
    assert code == "TOOL_MISSING"
    assert help.startswith("register the agent again with ")
    tools = flow["tools"] if kind == "flow" else [{"type": "VisualizationTool", "name": "none"}]
    agents["again"] = resources.register_agent({**body, "name": "again", "tools": tools})["agent_id"]
    assert arrives(deployment, "again", {"input": "Which ones?"}, "Which ones?")
    deployment.close()


def test_an_agent_without_memory_runs_once_it_is_registered_with_one() -> None:
    deployment = Deployment(OLD)
    resources, agents = deployment.core.resources, deployment.cluster.agents
    known = resources.agent(agents["conv-d"])
    body = {name: known[name] for name in ("type", "llm", "tools", "app_type") if name in known}
    agents["bare"] = resources.register_agent({**body, "name": "bare"})["agent_id"]
    code, help = problem_of(deployment, "bare", {"input": "Which ones?"})
    assert code == "MEMORY_MISSING"
    assert '"memory": {"type": "conversation_index"}' in help
    memory = {"memory": {"type": "conversation_index"}}
    agents["again"] = resources.register_agent({**body, **memory, "name": "again"})["agent_id"]
    assert arrives(deployment, "again", {"input": "Which ones?"}, "Which ones?")
    deployment.close()


@pytest.mark.parametrize("version", MODERN[1:])
def test_a_v2_agent_runs_once_the_api_is_turned_on(version: str) -> None:
    deployment = Deployment(version)
    deployment.core.settings.change({"persistent": {UNIFIED_API: "false"}})
    code, help = problem_of(deployment, "v2-bedrock", {"input": "Which ones?"})
    assert code == "UNIFIED_API_OFF"
    method, path, body = help.removeprefix("an administrator runs: ").split(" ", 2)
    assert deployment.call(method, path, json.loads(body))[0] == 200
    assert arrives(deployment, "v2-bedrock", {"input": "Which ones?"}, "Which ones?")
    deployment.close()


@pytest.mark.parametrize("version", MODERN[1:])
def test_what_a_v2_agent_can_not_send_to_openai_is_sent_by_a_conversational_one(version: str) -> None:
    deployment = Deployment(version)
    body = {"input": [text("Sum up."), media("document", "pdf", "JVBERi0xLjQKJSVFT0YK", name="Report")]}
    code, help = problem_of(deployment, "v2-openai", body)
    assert (code, "use an agent of type conversational" in help) == ("MEDIA_FORMAT_UNSUPPORTED", True)
    assert arrives(deployment, "fc-openai_tutorial", body, "JVBERi0xLjQKJSVFT0YK")
    deployment.close()


def asking(before: str) -> dict[str, str]:
    """The caller's own messages, with a text before the question."""
    content = [{"text": f"{before} ${{parameters.question}}"}]
    return {"messages": json.dumps([{"role": "user", "content": content}])}


MANY = "".join(f"${{parameters.b{number}:-}}" for number in range(300))
TWICE = {f"a{number}": f"${{parameters.a{number + 1}}}" * 2 for number in range(30)} | {"a30": "x"}
PARAMETERS = [
    ("RESERVED_NAME", {"gw_x": "1"}, {"x": "1"}),
    ("MODEL_OVERRIDDEN", {"llm.model_id": "another"}, {}),
    ("AGENT_NOT_CALLABLE", {"selected_tools": "llm"}, {"selected_tools": '["llm"]'}),
    ("AGENT_NOT_CALLABLE", {"selected_tools": "llm"}, {}),
    ("TOOL_MISSING", {"selected_tools": "[]"}, {"selected_tools": '["llm"]'}),
    ("AGENT_NOT_CALLABLE", asking(MANY), asking("x")),
    ("AGENT_NOT_CALLABLE", {**TWICE, **asking("${parameters.a0}")}, {"a0": "x", **asking("${parameters.a0}")}),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("code", "refused", "followed"), PARAMETERS, ids=[row[0] for row in PARAMETERS])
def test_parameters_that_are_refused_and_accepted(
    version: str, code: str, refused: dict[str, str], followed: dict[str, str]
) -> None:
    deployment, agent = Deployment(version), AGENTS["bedrock"][version != OLD]
    assert problem_of(deployment, agent, {"input": "Which ones?", "parameters": refused})[0] == code
    assert arrives(deployment, agent, {"input": "Which ones?", "parameters": followed}, "Which ones?")
    deployment.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("followed", ["start a new memory", '"message_history_limit": "0"'])
def test_a_memory_that_can_not_be_sent_is_left_out(version: str, followed: str) -> None:
    cluster, agent = cluster_of(version), "conv-a" if version == OLD else "conv-bedrock_messages"
    body: dict[str, Any] = {"input": [text("Which ones?"), IMAGE]}
    poisoned = ((" ", "say ${parameters.nope}"),)  # no conversation starts with the answer to a blank question
    error = cluster.send(agent, body, poisoned).error
    assert error is not None
    (problem,) = error.problems
    assert (problem.code, followed in problem.help) == ("MEMORY_NOT_SAFE", True)
    if followed == "start a new memory":
        sent = cluster.send(agent, body)
    else:
        # With this limit, the gateway reads no remembered turn.
        body |= {"parameters": {"message_history_limit": "0"}}
        sent = cluster.send(agent, body, memory_id=cluster.remembering(poisoned))
    assert sent.executed is not None
    assert sent.executed.status == 200
    assert PNG in sent.executed.llm_bodies[0]
    assert "nope" not in sent.executed.llm_bodies[0]


@pytest.mark.parametrize("version", MODERN)
def test_a_conversation_without_a_question_gets_one(version: str) -> None:
    cluster, agent = cluster_of(version), "conv-openai_tutorial"
    seen = [
        turn("user", "a"),
        turn("assistant", call()),
        turn("user", result(text("x"), IMAGE)),
        turn("assistant", "b"),
    ]
    error = cluster.send(agent, {"input": seen}).error
    assert error is not None
    (problem,) = error.problems
    assert (problem.code, problem.help) == ("QUESTION_MISSING", "end the conversation with a user turn")
    sent = cluster.send(agent, {"input": [*seen, turn("user", "Go on.")]})
    assert Oracle(cluster).judge(agent, {}, (), sent).outcome is Outcome.ARRIVED


@pytest.mark.parametrize("version", VERSIONS)
def test_a_rule_names_the_provider_of_an_agent(version: str) -> None:
    body = {"input": [text("What is it?"), IMAGE]}
    for rules in ((), (Rule("*", "bedrock/converse"),)):
        deployment = Deployment(version, rules)
        resources, agents = deployment.core.resources, deployment.cluster.agents
        known = resources.agent(agents["flow-h" if version == OLD else "flow-bedrock_upgraded"])
        known_model = resources.model(known["tools"][0]["parameters"]["model_id"])
        connector = json.loads(json.dumps(resources.connectors[known_model["connector_id"]]))
        connector["actions"][0]["url"] = f"{LLM_URL}/of-the-house"
        made = resources.create_connector(connector)
        model = resources.register_model({"name": "unknown", "function_name": "remote", **made}, True)
        tool = {"type": "MLModelTool", "parameters": {**known["tools"][0]["parameters"], **model}}
        agents["unknown"] = resources.register_agent({"name": "unknown", "type": "flow", "tools": [tool]})["agent_id"]
        if rules:
            sent = deployment.send("unknown", body, strict=False)
            assert sent.executed is not None
            assert PNG in sent.executed.llm_bodies[0]
        else:
            code, help = problem_of(deployment, "unknown", body)
            assert (code, "`agents.rules[].provider`" in help) == ("PROVIDER_UNKNOWN", True)
        deployment.close()


def test_a_block_of_bedrocks_own_is_left_out_where_it_has_no_place() -> None:
    deployment = Deployment(OLD)
    code, help = problem_of(deployment, "flow-d", {"input": [text("Which ones?"), GUARD]})
    assert code == "NATIVE_BLOCK_NEEDS_UPGRADE"
    assert help.startswith("upgrade the agent with ")
    deployment.upgrade("flow-d", new_connector=False, tells_gateway=True)
    assert arrives(deployment, "flow-d", {"input": [text("Which ones?"), GUARD]}, "guardContent")
    deployment.close()


@pytest.mark.parametrize("version", MODERN[1:])
def test_gemini_answers_a_conversational_agent(version: str) -> None:
    deployment = Deployment(version)
    code, help = problem_of(deployment, "v2-gemini", {"input": "Which ones?"})
    assert (code, help) == ("ANSWER_NOT_READ", "use an agent of type conversational")
    assert arrives(deployment, "v1-gemini", {"input": "Which ones?"}, "Which ones?")
    deployment.close()
