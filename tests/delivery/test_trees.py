"""JSON data as a tree."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.delivery.trees import locate, replace_texts, value_at, with_leaves, with_value

TREE: dict[str, Any] = {"a": [{"b": "one"}, "two"], "c": 3, "one": None}


def test_paths_of_the_strings_that_contain_a_word() -> None:
    assert list(locate(TREE, "o")) == [("a", 0, "b"), ("a", 1)]
    assert list(locate("word", "or")) == [()]
    assert list(locate(None, "")) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [((), TREE), (("a", 0, "b"), "one"), (("a", 2), None), (("x",), None), (("a", "b"), None), (("c", 0), None)],
)
def test_the_value_at_a_path(path: tuple[str | int, ...], value: Any) -> None:
    assert value_at(TREE, path) == value


def test_a_copy_with_another_value() -> None:
    assert with_value(TREE, ("a", 0, "b"), 1) == {"a": [{"b": 1}, "two"], "c": 3, "one": None}
    assert TREE["a"][0] == {"b": "one"}


def test_texts_are_replaced_in_values_and_not_in_names() -> None:
    assert replace_texts(TREE, {"one": "1", "t": "T"}) == {"a": [{"b": "1"}, "Two"], "c": 3, "one": None}


def test_every_leaf_is_changed() -> None:
    assert with_leaves(TREE, repr) == {"a": [{"b": "'one'"}, "'two'"], "c": "3", "one": "None"}
