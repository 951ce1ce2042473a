"""A medium in the template's own part for one, where the agent can't be called without it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.delivery.cases import DOCUMENT, IMAGE, OTHER_IMAGE, PNG, text, turn
from tests.delivery.unseen import UnseenCluster
from tests.oracle import Oracle, Outcome

AGENT = "flow-invoke_image_slot"
OLD, NEW = "2.19.0", "3.4.0"
EARLIER = [turn("user", "a"), turn("assistant", "b")]


@pytest.fixture(scope="module", params=[OLD, NEW])
def cluster(request: pytest.FixtureRequest) -> UnseenCluster:
    return UnseenCluster(request.param)


def parts(cluster: UnseenCluster, value: Any) -> list[Any]:
    """Return the parts of the user's last turn, after the input has arrived."""
    sent = cluster.send(AGENT, {"input": value})
    verdict = Oracle(cluster).judge(AGENT, {}, (), sent)
    assert verdict.outcome is Outcome.ARRIVED, verdict
    assert "MEDIA_IN_SLOT" in verdict.notices
    assert sent.executed is not None
    found: list[Any] = json.loads(sent.executed.llm_bodies[0])["messages"][-1]["content"]
    return found


def image(type: str, data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": type, "data": data}}


@pytest.mark.parametrize("value", [[text("What?"), IMAGE], [IMAGE, text("What?")]])
def test_an_image_with_its_type(cluster: UnseenCluster, value: Any) -> None:
    assert parts(cluster, value) == [image("image/png", PNG), text("What?")]


def test_earlier_turns_are_text_beside_it(cluster: UnseenCluster) -> None:
    first, asked = parts(cluster, [*EARLIER, turn("user", text("c"), IMAGE)])
    assert first == image("image/png", PNG)
    assert asked["text"] == "Human:a\nAssistant:b\nHuman:c"


def test_an_image_of_an_earlier_turn_is_before_all_texts_too(cluster: UnseenCluster) -> None:
    first, asked = parts(cluster, [turn("user", text("a"), IMAGE), turn("assistant", "b"), turn("user", "c")])
    assert first == image("image/png", PNG)
    assert asked["text"] == "Human:a\nAssistant:b\nHuman:c"


def test_images_of_several_turns_keep_their_order() -> None:
    talk = [turn("user", IMAGE, text("a")), turn("assistant", "b"), turn("user", text("c"), OTHER_IMAGE, text("d"))]
    found = parts(UnseenCluster(NEW), talk)
    assert [part["source"]["media_type"] for part in found if part["type"] == "image"] == ["image/png", "image/jpeg"]
    assert [part["text"] for part in found if part["type"] == "text"] == ["Human:a\nAssistant:b\nHuman:c", "d"]


def test_an_image_alone_has_a_neutral_text_beside_it(cluster: UnseenCluster) -> None:
    sent = cluster.send(AGENT, {"input": [IMAGE]})
    assert sent.rewritten is not None, sent.error
    assert sent.rewritten.plan.question == ""
    assert [notice.code for notice in sent.rewritten.plan.notices] == ["MEDIA_IN_SLOT", "NEUTRAL_TEXT_ADDED"]
    assert parts(cluster, [IMAGE]) == [image("image/png", PNG), text("(end)")]


def test_another_image_follows_where_the_cluster_inserts_json() -> None:
    kinds = [part["type"] for part in parts(UnseenCluster(NEW), [text("a"), IMAGE, text("b"), OTHER_IMAGE, text("c")])]
    assert kinds == ["image", "text", "text", "image", "text"]


@pytest.mark.parametrize(
    "value",
    [
        "no image",
        [text("a"), DOCUMENT],
        [turn("user", text("a"), DOCUMENT), turn("assistant", "b"), turn("user", text("c"), IMAGE)],
    ],
    ids=["text", "document", "image after a document of an earlier turn"],
)
def test_what_the_part_can_not_take_is_refused(cluster: UnseenCluster, value: Any) -> None:
    error = cluster.send(AGENT, {"input": value}).error
    assert error is not None
    assert [problem.code for problem in error.problems] == ["AGENT_NOT_CALLABLE"]


def test_the_oracle_knows_the_part() -> None:
    cluster = UnseenCluster(OLD)
    sent = cluster.send(AGENT, {"input": [text("a"), IMAGE]})
    other = cluster.send(AGENT, {"input": [text("a"), OTHER_IMAGE]})
    assert sent.rewritten is not None
    mixed = type(sent)(other.input, sent.rewritten, None, sent.executed)
    assert Oracle(cluster).judge(AGENT, {}, (), mixed).outcome is not Outcome.ARRIVED
