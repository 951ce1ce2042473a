"""As many media of a session are sent again as the LLM takes: the newest, and all that the client sends itself."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.media_limits import within_limits
from gateway.memory.model import Block, Message
from gateway.memory.repair import Placed
from gateway.providers.capabilities import RequestLimits
from tests.memory.conversations import tool_result, user


def image(data: str = "QUJD") -> Block:
    return {"image": {"format": "png", "source": {"bytes": data}}}


def document(name: str = "") -> Block:
    return {"document": {"format": "pdf", **({"name": name} if name else {}), "source": {"bytes": "QUJD"}}}


def placed(*messages: Message) -> list[Placed]:
    return [Placed(message, f"memory[{number}]") for number, message in enumerate(messages)]


def bounded(
    stored: list[Placed], limits: RequestLimits, new: Any = (), sent: Any = ()
) -> tuple[list[Message], list[str]]:
    kept, notices = within_limits(stored, sent, new, limits)
    assert {notice.code for notice in notices} <= {"MEMORY_MEDIA_LEFT_OUT"}
    return [one.message for one in kept], [notice.place for notice in notices]


IMAGE_TEXT = {"text": "(Here was the image, png. It is not sent again.)"}
TWO = RequestLimits({"image": 2, "document": 1})


def test_the_oldest_become_texts_that_name_them() -> None:
    stored = placed(user("a", image()), user(document("Plan"), image()), user(image(), document()))
    messages, places = bounded(stored, TWO)
    assert [message.content for message in messages] == [
        ({"text": "a"}, IMAGE_TEXT),
        ({"text": "(Here was the document 'Plan', pdf. It is not sent again.)"}, image()),
        (image(), document()),
    ]
    assert places == ["memory[0].content[1]", "memory[1].content[0]"]


def test_media_in_results_of_tools_count_and_are_named() -> None:
    stored = placed(user(tool_result("1", {"text": "x"}, image())), user(image()))
    messages, places = bounded(stored, TWO, [user(image())])
    assert messages[0].content[0]["toolResult"]["content"] == [{"text": "x"}, IMAGE_TEXT]
    assert (messages[1], places) == (user(image()), ["memory[0].content[0].toolResult.content[1]"])


def test_what_the_client_sends_is_never_cut() -> None:
    stored = placed(user(image("QUJD")), user(image("REVG")))
    new = [user(image("R0hJ"), image("R0hJ"), image("R0hJ"))]
    messages, places = bounded(stored, TWO, new, [user(image("REVG"))])
    assert (messages, places) == ([user(IMAGE_TEXT), user(image("REVG"))], ["memory[0].content[0]"])


def test_media_that_the_client_left_out_of_its_conversation_are_only_remembered() -> None:
    stored = placed(user("a", image("QUJD")), user("b", image("REVG")))
    messages, places = bounded(stored, TWO, [user(image("R0hJ"))], [user("a"), user("b")])
    assert places == ["memory[0].content[1]"]
    assert messages[1] == stored[1].message


def test_bytes_of_all_media() -> None:
    stored = placed(user(image("A" * 60)), user(image("B" * 40)), user({"image": {"source": {"url": "https://x"}}}))
    messages, places = bounded(stored, RequestLimits({}, 100), [user(image("C" * 50))])
    assert places == ["memory[0].content[0]"]
    assert messages[1:] == [one.message for one in stored[1:]]


def test_without_limits_nothing_changes() -> None:
    stored = placed(*(user(image(), document()) for _ in range(30)))
    kept, notices = within_limits(stored, (), (), RequestLimits())
    assert (kept, notices) == (stored, ())
    assert kept[0] is stored[0]


@given(
    st.lists(st.lists(st.sampled_from(["image", "document", "text"]), max_size=3), max_size=8),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_a_request_holds_no_more_than_the_llm_takes(
    kinds: list[list[str]], new: int, images: int, documents: int
) -> None:
    blocks = {"image": image(), "document": document(), "text": {"text": "a"}}
    stored = placed(*(user(*(blocks[kind] for kind in one)) for one in kinds))
    messages, places = bounded(stored, RequestLimits({"image": images, "document": documents}), [user(image())] * new)
    for kind, most, fixed in (("image", images, new), ("document", documents, 0)):
        before = sum(one.count(kind) for one in kinds)
        after = sum(kind in block for message in messages for block in message.content)
        assert after == min(before, max(0, most - fixed))
    assert len(places) == sum(
        ("text" in block) != (kind == "text")
        for one, message in zip(kinds, messages, strict=True)
        for kind, block in zip(one, message.content, strict=True)
    )
