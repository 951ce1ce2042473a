"""The request that is sent with a session: its messages, its places, and what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config.memory import Window
from gateway.errors import InvalidInput
from gateway.execute.session_request import Earlier, SessionRequest, compose
from gateway.memory.model import Message, Metadata, StoredMessage
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.unified.limits import ParseLimits
from gateway.unified.request import read_execute
from tests.memory.conversations import assistant, image, text, tool_result, tool_use, user

PROFILE = AgentProfile("a", "name", "flow", (2, 19, 0), Generation.TEXT)
WITH_MEMORY = AgentProfile("a", "name", "conversational", (2, 19, 0), Generation.TEXT, memory_type="conversation_index")
V2 = AgentProfile("a", "name", "conversational_v2", (3, 6, 0), Generation.UNIFIED_V2, unified_api=True)
SENT = Metadata(input_type="text")


def earlier(*messages: Message, system: str = "") -> Earlier:
    stored = [StoredMessage(7 + seq, 3, "t", message) for seq, message in enumerate(messages)]
    return Earlier(stored, system=system)


ONE = earlier(user("See:", image(), metadata=SENT), assistant("A dot."))


def composed(body: Any, before: Earlier = ONE, profile: AgentProfile = PROFILE, **limits: Any) -> SessionRequest:
    request = read_execute(json.dumps(body).encode(), ParseLimits(**limits))
    return compose(profile, request, before, Metadata(), {}, "turn")


def test_the_operators_roles_apply_to_the_whole_conversation() -> None:
    roles = {"tool": "user"}
    request = read_execute(b'{"input": [{"role": "tool", "content": "sunny"}]}', roles=roles)
    sent = compose(PROFILE, request, ONE, Metadata(), roles, "turn")
    assert json.loads(sent.body)["input"][-1] == {"role": "tool", "content": "sunny"}
    assert sent.new == (Message("user", ({"text": "sunny"},), Metadata(input_type="messages")),)


def places(request: SessionRequest) -> list[str]:
    assert request.request.input is not None
    return [block.at for message in request.request.input.messages for block in message.content]


STORED = ["memory[7].content[0]", "memory[7].content[1]", "memory[8].content[0]"]


MESSAGES = [{"role": "user", "content": "a"}, {"role": "user", "content": [text("b")]}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"input": "And?"}, ["input"]),
        ({"parameters": {"question": "And?"}}, ["parameters.question"]),
        ({"input": [text("And?"), image()]}, ["input[0]", "input[1]"]),
        ({"input": MESSAGES}, ["input[0].content", "input[1].content[0]"]),
    ],
)
def test_the_client_knows_every_place(body: Any, expected: list[str]) -> None:
    assert places(composed(body)) == [*STORED, *expected]
    assert places(composed(body, Earlier())) == expected


def test_system_text_comes_first_and_the_requests_own_replaces_the_sessions() -> None:
    before = Earlier(ONE.stored, system="Be brief.")
    assert places(composed({"input": "And?"}, before)) == ["memory.system.content[0]", *STORED, "input"]
    own = [{"role": "user", "content": "Hm."}, {"role": "system", "content": "Be long."}]
    assert places(composed({"input": own[::-1]}, before)) == ["input[0].content", *STORED, "input[1].content"]


def test_the_cluster_gets_no_id_and_replays_nothing() -> None:
    parameters = {"memory_id": "gws-a", "session_id": "gws-a", "parent_interaction_id": "p", "own": 1}
    sent = json.loads(composed({"input": "And?", "parameters": parameters}, profile=WITH_MEMORY).body)
    assert sent["parameters"] == {"own": 1, "message_history_limit": "0", "disable_trace": "true"}
    kept = json.loads(composed({"input": "And?", "parameters": {"disable_trace": "false"}}, profile=WITH_MEMORY).body)
    assert kept["parameters"] == {"message_history_limit": "0", "disable_trace": "false"}
    assert json.loads(composed({"input": "And?"}).body).keys() == {"input"}


def test_a_sessions_size_does_not_count_as_the_requests() -> None:
    before = earlier(user("x" * 50_000, metadata=SENT), *(assistant("y") for _ in range(50)))
    sent = composed({"input": "And?"}, before, text=1000, items=2, values=50)
    assert len(places(sent)) == 52


def test_a_stored_text_is_not_taken_for_a_payload() -> None:
    """The token that stood for a payload of an equal request is a text of the session."""
    body = {"input": [text("See:"), image("QUJD" * 1000)]}
    (token,) = read_execute(json.dumps(body).encode()).extracted.blobs
    sent = composed(body, earlier(user(token, metadata=SENT), assistant("Hm.")))
    assert json.loads(sent.body)["input"][0]["content"] == [{"text": token}]
    assert token not in sent.request.extracted.blobs


def test_a_stored_image_goes_on_as_it_was_accepted_and_a_new_one_is_checked() -> None:
    jpeg = {"image": {"format": "png", "source": {"bytes": "/9j/4AAQSkZJRgABAQAAAQABAAD/2Q=="}}}
    request = composed({"input": "and now?"}, earlier(Message("user", (jpeg,)), Message("assistant", ({"text": "a"},))))
    assert request.request.input is not None
    (image,) = request.request.input.media
    assert image.format == "png"
    with pytest.raises(InvalidInput, match="not the format"):
        composed({"input": [jpeg]})


def test_steps_of_answers_can_be_left_out_but_not_those_of_clients() -> None:
    own = [user("a", metadata=SENT), assistant(tool_use("1"), metadata=SENT), user(tool_result("1"), metadata=SENT)]
    steps = [assistant("So.", tool_use("2")), user(tool_result("2")), assistant("Done.")]
    before = earlier(*own, *steps)
    assert before.has_steps
    less = before.without_steps()
    assert not less.has_steps
    kept = [item.message.content for item in less.history(None)]
    assert kept == [*(message.content for message in own), (text("So."),), (text("Done."),)]
    assert [notice.code for notice in composed({"input": "?"}, less).notices] == ["MEMORY_STEPS_LEFT_OUT"]


def test_a_client_that_repeats_what_is_not_sent_adds_only_what_is_new() -> None:
    call, result = tool_use("c1"), tool_result("c1", text("sunny"))
    asked = user("weather?", metadata=Metadata(input_type="messages"))
    before = earlier(asked, assistant(call), user(result), assistant("Sunny."))
    roles = ("user", "assistant", "user", "assistant", "user")
    contents = ([text("weather?")], [call], [result], [text("Sunny.")], [text("And now?")])
    body = {"input": [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]}
    does_not_fit = Earlier(before.stored, Window(bytes=1))
    for held, sent in ((before, 5), (before.without_steps(), 3), (does_not_fit, 5)):
        request = composed(body, held)
        assert [message.content for message in request.new] == [(text("And now?"),)]
        assert len(json.loads(request.body)["input"]) == sent


@pytest.mark.parametrize("profile", [PROFILE, V2], ids=["rewritten", "native"])
@pytest.mark.parametrize(
    "block",
    [{"riddle": {}}, {}, {"image": None}, {"image": {}}, {"toolUse": {}}, {"toolUse": None}, {"toolResult": None}],
)
def test_what_the_store_holds_but_the_gateway_can_not_read_is_named(block: Any, profile: AgentProfile) -> None:
    before = earlier(user("Hi", metadata=SENT), assistant("Well:", block), user("Hm?", metadata=SENT))
    with pytest.raises(InvalidInput) as caught:
        composed({"input": "And?"}, before, profile)
    assert caught.value.problems[0].place.startswith("memory[8].content[1]")
    assert caught.value.reason.startswith("[memory[8].content[1]")


@pytest.mark.parametrize("profile", [PROFILE, V2], ids=["rewritten", "native"])
def test_members_without_a_value_are_no_content(profile: AgentProfile) -> None:
    call, result = {**tool_use("c1"), "toolResult": None}, tool_result("c1", text("sunny"))
    sent = composed({"input": "And?"}, earlier(user("Hi"), assistant(call), user(result), assistant("Sun.")), profile)
    assert sent.notices == ()
    assert sent.body.count(b"c1") == 2


@pytest.mark.parametrize("block", [image(), {"cachePoint": {"type": "default"}}], ids=["image", "cache point"])
def test_a_system_turn_with_more_than_text_is_refused(block: Any) -> None:
    body = {"input": [{"role": "system", "content": [text("Be brief."), block]}, {"role": "user", "content": "Hi"}]}
    with pytest.raises(InvalidInput) as caught:
        composed(body)
    assert [problem.place for problem in caught.value.problems] == ["input[0].content[1]"]
