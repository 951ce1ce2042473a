"""Where each part of a document went."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gateway.inspector.diff import Number, at, compare, describe_media, key_of, leaves, media, read, show
from gateway.observe.media import shorten_media

HASH = "7c" * 32
MARK = f"[MEDIA type=image/png length=774 sha256={HASH}]"
OTHER = MARK.replace("7c", "8d")
SENTENCE = "How many came?"
Found = list[tuple[str, str, str]]


def places(before: Any, after: Any) -> Found:
    """The changes but `same`, as kind and both places; `in ` before the second if it is inside a text."""
    found = []
    for change in compare(read(json.dumps(before)), read(json.dumps(after))):
        if change.kind != "same":
            old = show(change.before.path) if change.before else ""
            new = ("in " if change.inside else "") + show(change.after.path) if change.after else ""
            found.append((change.kind, old, new))
    return found


IN_JSON = json.dumps([{"content": [{"text": SENTENCE}]}])
CASES: dict[str, tuple[Any, Any, Found]] = {
    "equal": ({"a": 1, "b": [None, True, {}]}, {"a": 1, "b": [None, True, {}]}, []),
    "order of members": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
    "changed": ({"a": "one"}, {"a": "two"}, [("changed", "a", "a")]),
    "added": ({}, {"a": "one"}, [("removed", "", ""), ("added", "", "a")]),
    "removed": ({"a": "one", "b": "two"}, {"b": "two"}, [("removed", "a", "")]),
    "moved": ({"input": SENTENCE}, {"parameters": {"question": SENTENCE}}, [("moved", "input", "parameters.question")]),
    "moved into JSON in a string": (
        {"input": SENTENCE},
        {"messages": IN_JSON},
        [("moved", "input", "messages»[0].content[0].text")],
    ),
    "moved out of JSON in a string": ({"a": '{"b": "some text"}'}, {"c": "some text"}, [("moved", "a»b", "c")]),
    "moved into a longer text": (
        {"input": SENTENCE},
        {"prompt": f"Human: {SENTENCE}\nAssistant:"},
        [("moved", "input", "in prompt")],
    ),
    "escaped in a longer text": (
        {"input": 'Say "yes"\nor no'},
        {"prompt": 'x"},{"text":"Say \\"yes\\"\\nor no"'},
        [("moved", "input", "in prompt")],
    ),
    "escaped twice": (
        {"input": 'Say "yes"'},
        {"prompt": "not JSON: " + json.dumps(json.dumps('Say "yes"'))},
        [("moved", "input", "in prompt")],
    ),
    "a medium": ({"data": MARK}, {"source": {"bytes": MARK}}, [("moved", "data", "source.bytes")]),
    "a medium as data URL": (
        {"data": MARK},
        {"image_url": f"data:image/png;base64,{MARK}"},
        [("moved", "data", "image_url")],
    ),
    "a medium inside a text": (
        {"data": MARK},
        {"prompt": f'Look at this: "}},{{"image":{{"source":{{"bytes":"{MARK}"}}}}}},{{"text":"and say what it shows'},
        [("moved", "data", "in prompt")],
    ),
    "another medium": ({"data": MARK}, {"data": OTHER}, [("changed", "data", "data")]),
    "two media change places": (
        [MARK, OTHER],
        [OTHER, MARK],
        [("moved", "[0]", "[1]"), ("moved", "[1]", "[0]")],
    ),
    "the same medium twice": ([MARK, MARK], {"a": [MARK, MARK]}, [("moved", "[0]", "a[0]"), ("moved", "[1]", "a[1]")]),
    "copied": (
        {"input": SENTENCE},
        {"input": SENTENCE, "question": SENTENCE},
        [("copied", "input", "question")],
    ),
    "words of the API are not searched in texts": (
        {"type": "image", "a": "x"},
        {"a": "an image", "b": MARK},
        [("removed", "type", ""), ("changed", "a", "a"), ("added", "", "b")],
    ),
    "a label moves to the same name": ({"format": "png"}, {"x": {"format": "png"}}, [("moved", "format", "x.format")]),
    "a number moves to the same name": ({"size": 5}, {"x": {"size": 5}}, [("moved", "size", "x.size")]),
    "a number does not move to another name": ({"a": 5}, {"b": 5}, [("removed", "a", ""), ("added", "", "b")]),
    "numbers differ by how they are written": ({"a": 1}, {"a": 1.0}, [("changed", "a", "a")]),
    "a number is no text": ({"a": 1}, {"a": "1"}, [("changed", "a", "a")]),
    "true is not 1": ({"a": True}, {"a": 1}, [("changed", "a", "a")]),
    "text instead of JSON": ("one text", "another one", [("changed", "", "")]),
    "an empty list is a value": ({"a": []}, {"a": {}}, [("changed", "a", "a")]),
}


@pytest.mark.parametrize("size", [3, 9, 30, 47, 48, 60, 700, 5000])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"data": "DATA"}, {"source": {"bytes": "DATA"}}),
        ({"data": "DATA"}, {"image_url": {"url": "data:image/png;base64,DATA"}}),
        ({"url": "data:image/png;base64,DATA"}, {"bytes": "DATA"}),
        ({"url": "data:image/png;base64,DATA"}, {"url2": "data:image/jpeg;base64,DATA"}),
        ({"data": "DATA"}, {"messages": '[{"image": {"bytes": "DATA"}}]'}),
        ({"url": "data:image/png;base64,DATA"}, {"prompt": 'not JSON: {"bytes": "DATA"'}),
    ],
)
def test_a_medium_of_any_size_has_moved(before: Any, after: Any, size: int) -> None:
    """A small one has no mark."""
    text = base64.b64encode(b"\x89PNG\r\n\x1a\n".ljust(size, b"\1")[:size]).decode()
    old, new = (read(shorten_media(json.dumps(one).replace("DATA", text).encode()).decode()) for one in (before, after))
    assert [change.kind for change in compare(old, new)] == ["moved"]


@pytest.mark.parametrize("size", [20, 200, 5000])
def test_a_document_that_is_sent_as_its_text_has_moved(size: int) -> None:
    text = "Opening hours, all days. " * (size // 25 + 1)
    before = json.dumps({"data": base64.b64encode(text.encode()).decode()})
    old = read(shorten_media(before.encode()).decode())
    assert [change.kind for change in compare(old, {"content": [{"text": text}]})] == ["moved"]


REMEMBERED = frozenset(map(key_of, ["First question", "First answer"]))


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


@pytest.mark.parametrize("wrap", [lambda turns: turns, json.dumps])
def test_what_comes_from_memory_is_neither_added_nor_moved(wrap: Any) -> None:
    turns = [said("user", "First question"), said("assistant", "First answer"), said("user", "Next question")]
    before = {"input": [said("user", "Next question")]}
    changes = compare(read(json.dumps(before)), {"parameters": {"messages": wrap(turns)}}, REMEMBERED)
    kinds: dict[str, list[str]] = {}
    for change in changes:
        kinds.setdefault(change.kind, []).append(show(change.after.path if change.after else ()))
    assert set(kinds) == {"moved", "memory"}
    assert len(kinds["memory"]) == 6
    assert all("[0].content" in path or "[1].content" in path or path.endswith("role") for path in kinds["memory"])
    assert all("[2]" in path for path in kinds["moved"])


def test_what_the_client_sends_again_is_not_from_memory() -> None:
    turns = [said("user", "First question"), said("user", "Next question")]
    kinds = [one.kind for one in compare({"input": turns}, {"messages": turns}, REMEMBERED)]
    assert set(kinds) == {"moved"}


@pytest.mark.parametrize(("before", "after", "expected"), CASES.values(), ids=CASES)
def test_where_each_part_went(before: Any, after: Any, expected: Found) -> None:
    assert places(before, after) == expected


@pytest.mark.parametrize(("before", "after", "_"), CASES.values(), ids=CASES)
def test_every_part_of_both_documents_is_reported(before: Any, after: Any, _: Found) -> None:
    old, new = read(json.dumps(before)), read(json.dumps(after))
    changes = compare(old, new)
    assert [change.before for change in changes if change.before and change.kind != "copied"] == list(leaves(old))
    assert {change.after.path for change in changes if change.after} == {leaf.path for leaf in leaves(new)}


def test_the_value_at_a_path_is_found_again() -> None:
    document = read(json.dumps({"a": [{"b": IN_JSON}, 5]}))
    for leaf in leaves(document):
        assert at(document, leaf.path) == leaf.value
    for path in (["b"], ["a", 2], ["a", "x"], ["a", 0, "b", None, 7], ["a", 1, "x"], [None]):
        with pytest.raises(LookupError):
            at(document, path)


def test_numbers_keep_their_digits() -> None:
    assert read("[1.10, 12345678901234567890123, 1e400]") == ["1.10", "12345678901234567890123", "1e400"]
    assert all(isinstance(number, Number) for number in read("[1, 2.5]"))


@pytest.mark.parametrize("text", ["", "no JSON", '{"a":', "[" * 100_000], ids=["empty", "text", "cut", "deep"])
def test_what_is_not_json_is_a_text(text: str) -> None:
    assert read(text) == text
    assert [change.kind for change in compare(read(text), read(text))] == ["same"]


def test_deep_documents_end() -> None:
    deep = read("[" * 500 + "1" + "]" * 500)
    assert [change.kind for change in compare(deep, deep)] == ["same"]


def test_media_of_a_text() -> None:
    (medium,) = media(f"a {MARK} b")
    assert (medium.type, medium.length, medium.sha256) == ("image/png", 774, HASH)
    assert describe_media(f"a {MARK} b") == "a [image/png, 774 bytes, 7c7c7c7c7c7c] b"


def test_a_large_conversation_is_compared() -> None:
    turns = [{"role": "user", "content": [{"text": f"This is the turn number {n}."}]} for n in range(3000)]
    kinds = [change.kind for change in compare({"input": turns}, {"parameters": {"messages": json.dumps(turns)}})]
    assert set(kinds) == {"moved"}


def test_few_texts_are_searched_in_a_long_one() -> None:
    """Each search takes as long as the text. The search for 2,000 texts in 1 MB takes half a second."""
    texts = [f"text {number:05}" for number in range(3000)]
    kinds = [change.kind for change in compare(texts, {"prompt": " ".join(texts) + "." * 1_000_000})]
    assert 1000 < kinds.count("moved") < 2000
