"""Where each part of a document went."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.inspector.diff import Number, at, compare, describe_media, leaves, media, read, show

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
