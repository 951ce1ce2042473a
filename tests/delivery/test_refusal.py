"""What a client reads when its input can't reach the LLM: every problem, whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.agents.documents import Rule
from gateway.delivery.advice import COMPLETES_TEXT, NAME_OR_TEXT, NO_MESSAGES_HERE
from gateway.delivery.call_model import CallModelCache
from gateway.delivery.refusal import Upgrade
from gateway.delivery.search import Search
from gateway.delivery.template_change import command, with_upgrades
from gateway.errors import Problem, UndeliverableContent
from gateway.execute.rewrite import RewriteOptions, rewrite_input
from gateway.providers import registry
from gateway.providers.base import MappingOptions
from gateway.unified.request import read_execute
from tests.delivery.cases import CALL, CASES, IMAGE, OTHER_IMAGE, VIDEO, text, turn
from tests.delivery.holdout import HoldoutCluster
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.delivery.unseen import UnseenCluster
from tests.oracle import Oracle, Outcome

RULE = "name the agent's provider in a rule of the gateway's settings: `agents.rules[].provider`"
LEAVE_OUT = "leave out the parameter `prompt`"
OLD, NEW = "2.19.0", "3.4.0"
SEEN = {"toolResult": {"toolUseId": "t1", "content": [text("seen:"), IMAGE]}}
# A tool call, and its result with an image.
SHOWN = [turn("user", "a"), turn("assistant", CALL), turn("user", SEEN)]


def upgrade(cluster: SimulatedCluster, agent: str) -> str:
    """The advice for an agent whose template has no other turn, or has slots of the agent's own (the tutorial's)."""
    profile = cluster.profile(agent)
    model = profile.models[0]
    name, part = ("body", "the user's turn") if "tutorial" in agent else ("messages", "the whole list of messages")
    if agent == "flow-content":
        name, part = "earlier_turns", "earlier turns"
    return (
        f"upgrade the agent with `{command(profile.id)}`; it changes connector {model.connector.id} of model "
        f"{model.id} so that the gateway can send {part} in the parameter {name}; requests without this parameter are "
        "not affected"
    )


def no_upgrade(cluster: SimulatedCluster, agent: str, instead: str) -> str:
    model = cluster.profile(agent).models[0]
    what = f"connector {model.connector.id} of model {model.id}"
    return f"{instead}; no upgrade of {what} would let this input through"


def not_callable(added: str = "") -> str:
    return (
        f"this agent can't be called{added}, not even with plain text: its prompt and its connector's template don't "
        "render to a valid request that holds the question"
    )


def media(at: str, received: str) -> tuple[str, ...]:
    return (at, "this agent's connector has no place for media", "text", received, "MEDIA_NEEDS_UPGRADE")


def tool(at: str, received: str) -> tuple[str, ...]:
    return (at, "this agent's connector can't carry tool calls and results", "text", received, "TOOLS_NEED_UPGRADE")


REFUSED: dict[str, tuple[str, str, Any, list[tuple[str, ...]]]] = {
    "one image": (OLD, "flow-d", [text("a"), IMAGE], [media("input[1]", "image (png)")]),
    "every image and video": (
        OLD,
        "conv-d",
        [IMAGE, text("a"), OTHER_IMAGE, VIDEO],
        [media("input[0]", "image (png)"), media("input[2]", "image (jpeg)"), media("input[3]", "video (mp4)")],
    ),
    "media in an earlier turn": (
        OLD,
        "flow-d",
        [turn("user", text("a"), IMAGE), turn("assistant", "b"), turn("user", "c")],
        [media("input[0].content[1]", "image (png)")],
    ),
    # Media can't be text, so neither can the tool's result.
    "tools": (
        OLD,
        "flow-d",
        [turn("user", "a"), turn("assistant", CALL), turn("user", SEEN, text("c"))],
        [tool("input[1].content[0]", "tool use"), tool("input[2].content[0]", "tool result")],
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_every_problem_is_reported_with_its_place_and_what_to_do(kind: str) -> None:
    version, agent, value, expected = REFUSED[kind]
    cluster = cluster_of(version)
    error = cluster.send(agent, {"input": value}).error
    assert isinstance(error, UndeliverableContent)
    expected_help = upgrade(cluster, agent)
    assert error.problems == tuple(Problem(*problem, expected_help) for problem in expected)
    assert error.hint == expected_help


def unknown_format(help: str) -> Problem:
    """Return the problem of an image after a text."""
    reason = "no provider is known for this agent, so only text can be delivered to it"
    return Problem("input[1]", reason, "text", "image", "PROVIDER_UNKNOWN", help)


def test_media_for_an_unknown_provider() -> None:
    error = cluster_of(OLD).send("flow-c", {"input": [text("a"), IMAGE]}).error
    assert error is not None
    help = f"{COMPLETES_TEXT}; {NO_MESSAGES_HERE}"
    assert error.problems == (unknown_format(help),)


@pytest.mark.parametrize("agent", ["one-cohere_1", "conversational_flow-command_r", "one-sagemaker", "flow-r1_invoke"])
def test_no_rule_is_advised_for_an_endpoint_of_one_text(agent: str) -> None:
    error = HoldoutCluster(OLD).send(agent, CASES["text, image"].body).error
    assert error is not None
    (problem,) = error.problems
    assert problem.help.startswith(COMPLETES_TEXT)


def test_a_rule_is_advised_where_a_provider_would_help() -> None:
    cluster = cluster_of(OLD)
    profile, request = cluster.profile("flow-d"), read_execute(json.dumps({"input": [text("a"), IMAGE]}).encode())
    assert request.input is not None
    with pytest.raises(UndeliverableContent) as raised:
        rewrite_input(replace(profile, provider=""), request, request.input, RewriteOptions(), "t1")
    (problem,) = raised.value.problems
    assert problem.help == f"{RULE}; that helps if its LLM takes the format of one; else send text only"


def test_a_rule_is_advised_for_media_in_a_template_of_messages_and_helps() -> None:
    """Here one whose address shows no API."""
    cluster, body = HoldoutCluster(OLD), CASES["text, image"].body
    actions = [action for connector in cluster.core.resources.connectors.values() for action in connector["actions"]]
    (action,) = [action for action in actions if action["url"].endswith("/v2/chat")]
    action["url"] = action["url"].replace("/v2/chat", "/ask")
    error = cluster.send("flow-cohere_2", body).error
    assert error is not None
    assert error.problems == (unknown_format(NAME_OR_TEXT),)
    cluster.rules = (Rule("flow-cohere_2", "cohere/v2/chat"),)
    cluster.profile.cache_clear()
    sent = cluster.send("flow-cohere_2", body)
    assert sent.executed is not None, sent.error
    assert sent.executed.status == 200, sent.executed.body


def test_what_the_provider_can_not_express_is_reported_by_its_mapping() -> None:
    error = cluster_of(OLD).send("flow-b", CASES["video"].body).error
    assert isinstance(error, UndeliverableContent)
    assert [(problem.place, problem.code) for problem in error.problems] == [("input[0]", "MEDIA_KIND_UNSUPPORTED")]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "gw_q",
            "x",
            (
                "parameters.gw_q",
                "names that start with gw_ are the gateway's own",
                "another name",
                "gw_q",
                "RESERVED_NAME",
                "use another name",
            ),
        ),
        (
            "model_id",
            "other",
            (
                "parameters.model_id",
                "this parameter changes the agent's LLM, so the format it takes is not known",
                "",
                "other",
                "MODEL_OVERRIDDEN",
                "leave the parameter model_id out, or register an agent for that model",
            ),
        ),
        (
            "llm.model_id",
            "other",
            (
                "parameters.llm.model_id",
                "this parameter changes the agent's LLM, so the format it takes is not known",
                "",
                "other",
                "MODEL_OVERRIDDEN",
                "leave the parameter llm.model_id out, or register an agent for that model",
            ),
        ),
    ],
)
def test_parameters_under_which_nothing_can_be_promised(name: str, value: str, problem: tuple[str, ...]) -> None:
    cluster = cluster_of(NEW)
    error = cluster.send("flow-bedrock_tutorial", {"input": "a", "parameters": {name: value}}).error
    assert isinstance(error, UndeliverableContent)
    at, reason, expected, received, code, help = problem
    expected = expected or cluster.model("bedrock_tutorial")
    assert error.problems == (Problem(at, reason, expected, received, code, help),)


def test_a_prompt_of_the_callers_without_the_question_leaves_no_place_for_it() -> None:
    cluster = cluster_of(OLD)
    error = cluster.send("flow-d", {"input": "a", "parameters": {"prompt": "fixed"}}).error
    assert isinstance(error, UndeliverableContent)
    reason = not_callable(" with these parameters")
    assert error.problems == (
        Problem("input", reason, code="AGENT_NOT_CALLABLE", help=no_upgrade(cluster, "flow-d", LEAVE_OUT)),
    )


def test_a_prompt_of_the_callers_that_contains_itself() -> None:
    cluster = cluster_of(OLD)
    error = cluster.send("conv-d", {"input": "a", "parameters": {"prompt": "${parameters.prompt}"}}).error
    assert isinstance(error, UndeliverableContent)
    reason = not_callable(" with these parameters")
    assert error.problems == (
        Problem("input", reason, code="AGENT_NOT_CALLABLE", help=no_upgrade(cluster, "conv-d", LEAVE_OUT)),
    )


_AUDIO = {"type": "audio", "source": {"type": "base64", "format": "mp3", "data": "/+MYxA=="}}


@pytest.mark.parametrize(
    "sent",
    [
        "a",
        [text("a"), IMAGE],
        [turn("user", text("a")), turn("assistant", text("b")), turn("user", text("c"))],
        [text("a"), _AUDIO],  # the provider has no audio
    ],
    ids=["text", "media", "history", "audio"],
)
def test_an_agent_that_can_not_be_called_is_reported_before_any_other_problem(sent: Any) -> None:
    profile = cluster_of(OLD).profile("flow-d")
    tool = profile.tools[0]
    assert tool.model is not None
    fixed = '{"messages":[{"role":"user","content":[{"text":"fixed"}]}]}'
    connector = replace(tool.model.connector, request_body=fixed)
    profile = replace(profile, tools=(replace(tool, model=replace(tool.model, connector=connector)),))
    request = read_execute(json.dumps({"input": sent}).encode())
    assert request.input is not None
    with pytest.raises(UndeliverableContent) as raised:
        rewrite_input(profile, request, request.input, RewriteOptions(), "t1")
    assert [(problem.place, problem.code, problem.reason) for problem in raised.value.problems] == [
        ("input", "AGENT_NOT_CALLABLE", not_callable())
    ]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_parameters_that_the_template_needs_and_nobody_sends_are_named(version: str) -> None:
    cluster, agent = UnseenCluster(version), "flow-invoke_image_slot"
    error = cluster.send(agent, {"input": "a"}).error
    assert isinstance(error, UndeliverableContent)
    help = f"send image in `parameters`; or {upgrade(cluster, agent)}"
    needs = "image in `parameters`"
    assert error.problems == (Problem("input", not_callable(), needs, "nothing", "AGENT_NOT_CALLABLE", help),)
    parameters = {"image": IMAGE["source"]["data"]}
    sent = cluster.send(agent, {"input": "a", "parameters": parameters})
    assert Oracle(cluster).judge(agent, parameters, (), sent).outcome is Outcome.ARRIVED


def test_a_connector_that_can_not_be_upgraded_is_reported_with_the_reason() -> None:
    cluster = cluster_of(OLD)
    profile = cluster.profile("flow-d")
    tool = profile.tools[0]
    assert tool.model is not None
    connector = replace(tool.model.connector, id="", request_body='{"inputText":"${parameters.prompt}"}')
    text_only = replace(profile, tools=(replace(tool, model=replace(tool.model, connector=connector)),))
    search = Search(CallModelCache(text_only), registry.provider("bedrock/converse"), {}, MappingOptions(), "t1")
    asking = read_execute(b'{"input":"x"}').input
    assert asking is not None
    assert Upgrade(search).advice(asking) == f"{COMPLETES_TEXT}; {NO_MESSAGES_HERE}"
    turns = (f'{{"role":"user","content":[{{"text":"${{parameters.{name}}}"}}]}}' for name in ("prompt", "b"))
    connector = replace(connector, request_body=f'{{"messages":[{",".join(turns)}]}}')
    unclear = replace(profile, tools=(replace(tool, model=replace(tool.model, connector=connector)),))
    search = replace(search, call_models=CallModelCache(unclear))
    reason = "more than one user turn has a placeholder, so the question can't be identified"
    help = f"the connector inside model {tool.model.id} can't be upgraded: {reason}"
    assert Upgrade(search).advice(asking, "do this") == f"do this; {help}"


def test_the_command_in_the_advice_does_what_it_says() -> None:
    """With the upgrade the input arrives, in the parameter that the advice names."""
    cluster = cluster_of(OLD)
    profile, request = cluster.profile("flow-d"), read_execute(json.dumps({"input": [text("a"), IMAGE]}).encode())
    assert request.input is not None
    provider = registry.provider(profile.provider)
    with pytest.raises(UndeliverableContent):
        rewrite_input(profile, request, request.input, RewriteOptions(), "t1")
    plan = rewrite_input(with_upgrades(profile, provider), request, request.input, RewriteOptions(), "t1").plan
    assert IMAGE["source"]["data"] not in plan.parameters["question"]
    assert "messages" in plan.parameters


def test_a_memory_that_can_not_be_sent() -> None:
    """Bedrock takes no blank question, and no conversation that starts with the answer to it."""
    poisoned = ((" ", "say ${parameters.x}"),)
    error = cluster_of(OLD).send("conv-a", {"input": "And?"}, poisoned).error
    assert isinstance(error, UndeliverableContent)
    assert error.problems == (
        Problem(
            "parameters.memory_id",
            "the content of this memory can't be sent to the agent with this input without being changed",
            code="MEMORY_NOT_SAFE",
            help='start a new memory, or send "message_history_limit": "0" to leave the remembered turns out',
        ),
    )


@pytest.mark.parametrize("agent", ["v1-bedrock", "v1-openai", "v1-gemini"])
def test_a_unified_agents_replay_can_not_be_turned_off(agent: str) -> None:
    """There, `message_history_limit` 0 is no limit."""
    case = CASES["poisoned memory"]
    error = cluster_of("3.6.0").send(agent, case.body, case.pairs).error
    assert isinstance(error, UndeliverableContent)
    assert [(problem.code, problem.help) for problem in error.problems] == [("MEMORY_NOT_SAFE", "start a new memory")]


def test_a_memory_that_the_gateway_can_send_beside_an_image_on_2() -> None:
    """This agent's template has no place for turns, so they are text around the image."""
    poisoned = (("say ${parameters.question}", "no"),)
    cluster, agent = UnseenCluster(OLD), "conversational_flow-converse_content"
    sent = cluster.send(agent, {"input": [text("a"), IMAGE]}, poisoned)
    assert Oracle(cluster).judge(agent, {}, poisoned, sent).outcome is Outcome.ARRIVED


def test_a_memory_that_the_gateway_can_send_beside_an_image() -> None:
    poisoned = (("say ${parameters.question}", "no"),)
    cluster = cluster_of(NEW)
    sent = cluster.send("conv-gemini_text", {"input": [text("a"), IMAGE]}, poisoned)
    assert Oracle(cluster).judge("conv-gemini_text", {}, poisoned, sent).outcome is Outcome.ARRIVED
    assert sent.rewritten is not None
    assert {"MEMORY_RETOLD", "HISTORY_FLATTENED"} <= {notice.code for notice in sent.rewritten.plan.notices}


def test_a_memory_with_braces_that_the_gateway_can_send_after_the_system_text() -> None:
    """Between the client's turns, the system text would have no place in this template."""
    stored = ((f"${{parameters.gw_{'0' * 32}:-say \uff5bx\uff5d}}", "no"),)
    cluster, agent = cluster_of(OLD), "conv-g"
    asked = [turn("system", 'Speak "French" ${parameters.x}.'), turn("user", "b")]
    sent = cluster.send(agent, {"input": asked}, stored)
    assert Oracle(cluster).judge(agent, {}, stored, sent).outcome is Outcome.ARRIVED
    assert sent.executed is not None
    system, user = json.loads(sent.executed.llm_bodies[0])["messages"]
    assert system["content"].endswith('Speak "French" ${parameters.x}.')
    assert "Human:say {x}\nAssistant:no" in user["content"]


def test_a_conversation_without_a_question_for_the_agents_prompt() -> None:
    """The cluster's own prompt goes on after the question, and a tool's result with media can't be text in it."""
    talk = [*SHOWN, turn("assistant", "b")]
    error = cluster_of(NEW).send("conv-openai_tutorial", {"input": talk}).error
    assert isinstance(error, UndeliverableContent)
    reason = "the agent's own prompt needs a question, and this conversation ends without one"
    help = "end the conversation with a user turn"
    assert error.problems == (Problem("input[3]", reason, "a user turn", "assistant", "QUESTION_MISSING", help),)


@pytest.mark.parametrize(
    ("input", "place"),
    [
        ([turn("system", "Be brief.")], "input[0]"),
        ([*SHOWN, turn("assistant", "b"), turn("system", "Be brief.")], "input[3]"),
        ([*SHOWN, turn("assistant", "b"), turn("user", " ")], "input[3]"),
    ],
    ids=["system text alone", "system text last", "blank text last"],
)
def test_neither_system_text_nor_blank_text_is_a_question(input: list[Any], place: str) -> None:
    error = cluster_of(NEW).send("conv-openai_tutorial", {"input": input}).error
    assert isinstance(error, UndeliverableContent)
    assert [(problem.place, problem.code) for problem in error.problems] == [(place, "QUESTION_MISSING")]


def test_an_operator_may_have_media_described() -> None:
    cluster = cluster_of(OLD)
    sent = cluster.send("flow-d", {"input": [text("What is this?"), IMAGE]}, policy=RewriteOptions(describe=True))
    assert sent.rewritten is not None
    assert sent.executed is not None
    plan = sent.rewritten.plan
    assert [(notice.code, notice.place) for notice in plan.notices] == [
        ("TEXT_JOINED", ""),
        ("MEDIA_DESCRIBED", "input[1]"),
    ]
    assert "What is this?\\n[image (png, 70 bytes) was not delivered]" in sent.executed.llm_bodies[0]


def test_a_memory_that_can_not_be_sent_adds_no_problem_to_those_of_the_input() -> None:
    """Without tool calls the image could be delivered, but not with this memory."""
    poisoned = (("say ${parameters.question}", "no"),)
    messages = [turn("user", text("a"), IMAGE), turn("assistant", CALL), turn("user", SEEN)]
    error = cluster_of(NEW).send("conv-gemini_text", {"input": messages}, poisoned).error
    assert isinstance(error, UndeliverableContent)
    assert {problem.code for problem in error.problems} == {"TOOLS_NEED_UPGRADE"}


@pytest.mark.parametrize("template", ['{"prompt": "${parameters.prompt}', '{"prompt": [1'])
def test_an_unknown_provider_s_template_that_can_not_be_read_is_no_fault_of_the_gateway(template: str) -> None:
    cluster = SimulatedCluster(OLD)
    (model,) = cluster.profile("flow-c").models
    cluster.core.resources.connectors[model.connector.id]["actions"][0]["request_body"] = template
    cluster.profile.cache_clear()
    error = cluster.send("flow-c", {"input": [text("a"), IMAGE]}).error
    assert isinstance(error, UndeliverableContent)
    assert {problem.place for problem in error.problems} == {"input"}
