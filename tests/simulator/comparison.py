"""Compares recorded answers and model calls with simulated ones.

Times, versions and sequence numbers are not compared, nor are the built-in texts that the recordings leave out.
"""

from __future__ import annotations

import json
import re
from typing import Any

_VARYING = frozenset(
    {"created_time", "last_updated_time", "last_deployed_time", "create_time", "updated_time", "took"}
    | {"_version", "_seq_no", "_primary_term"}
    # A model's version counts the earlier models of its name, which the recordings do not show.
    | {"model_version"}
    # What a model's profile measures.
    | {"predictor", "max", "min", "average", "p50", "p90", "p99"}
)
_WITHHELD = "<built-in prompt of the cluster>"


def same(expected: Any, actual: Any) -> bool:
    """Return True if two answers agree."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        names = expected.keys() - _VARYING
        if names != actual.keys() - _VARYING:
            return False
        return all(same(expected[name], actual[name]) for name in names)
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    if isinstance(expected, str) and isinstance(actual, str):
        return _same_text(expected, actual)
    return type(expected) is type(actual) and expected == actual


def _same_text(expected: str, actual: str) -> bool:
    """Compare texts without built-in texts that the recordings leave out."""
    actual = _without_own_words(actual, with_history="[history]" in expected)
    if expected == actual:
        return True
    shown, withheld, rest = expected.partition(_WITHHELD)
    return bool(withheld) and actual.startswith(shown) and (not rest or actual.endswith(rest))


# The built-in texts around what a recording shows of a ReAct agent's prompt, whose parts may stand in different blocks
# with an image between them. The first round does not show the history.
_BEGIN = r"(<built-in prompt of the agent>(?:\n|\\n))"
_REACT_BEGIN = re.compile(_BEGIN + r"\[role of the agent\].*?(\[history\] )", re.DOTALL)
_REACT_MIDDLE = re.compile(r"(?:\n|\\n)\[answer format; the tools are [^\]]*\]((?:\n|\\n)\[question\] )")
_REACT_HISTORY = re.compile(_BEGIN + r"\[history\] .*?(?:\n|\\n)(\[question\] )", re.DOTALL)


def _without_own_words(text: str, with_history: bool) -> str:
    """Reduce the simulator's built-in prompt to what a recording shows of it."""
    text = _REACT_MIDDLE.sub(r"\1", _REACT_BEGIN.sub(r"\1\2", text))
    return text if with_history else _REACT_HISTORY.sub(r"\1\2", text)


def same_body(expected: Any, sent: str) -> bool:
    """Return True if the body that a model got is the recorded one: parsed JSON, or text."""
    if isinstance(expected, str) and "".join(expected.split()) == "".join(sent.split()):
        return True  # text, or JSON nested too deeply to be walked
    try:
        actual = json.loads(sent)
    except ValueError:
        return isinstance(expected, str) and _same_text(expected, sent)
    if isinstance(expected, str):
        expected = json.loads(expected)
    return same(expected, actual)


def short(value: Any) -> str:
    """Return the beginning of a value, as text."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) < 600 else text[:600] + "…"
