"""`docs/reference/input.md` is correct: every example is run, every list compared."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import InvalidInput
from gateway.unified.blocks import BLOCK_TYPES
from gateway.unified.decode import HARMLESS
from gateway.unified.formats import ALIASES, FORMATS
from gateway.unified.request import read_execute

pytestmark = pytest.mark.check

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "input.md").read_text("utf-8")
_OF_INPUT, _, _OF_TOOLS = PAGE.partition("## Tools of the client")
ROWS, TOOLS = (re.findall(r"^\| `(\{.*?\})` \|", part, re.MULTILINE) for part in (_OF_INPUT, _OF_TOOLS))


def fenced(mark: str) -> list[str]:
    return re.findall(rf"^```json {mark}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def accepts(body: Any) -> bool:
    return bool(read_execute(json.dumps(body).encode()).input)


@pytest.mark.parametrize("example", fenced("accepted"))
def test_examples_are_accepted(example: str) -> None:
    assert accepts(json.loads(example))


@pytest.mark.parametrize("row", ROWS)
def test_spellings_in_the_tables_are_accepted(row: str) -> None:
    assert accepts({"input": [json.loads(row)]})


@pytest.mark.parametrize("row", TOOLS)
def test_spellings_of_tools_are_accepted(row: str) -> None:
    read = read_execute(json.dumps({"input": "hi", "tools": [json.loads(row)]}).encode())
    assert read.input is not None
    assert read.input.tools is not None


def test_the_refused_example_gives_the_error_shown() -> None:
    (refused,), (error,) = fenced("refused"), fenced("error")
    with pytest.raises(InvalidInput) as raised:
        read_execute(refused.encode())
    assert raised.value.body() == json.loads(error)


def test_the_page_shows_every_block_type() -> None:
    shown = {name for row in ROWS for name in (json.loads(row).get("type"), *json.loads(row))}
    assert shown >= set(BLOCK_TYPES)


def test_the_page_lists_formats_aliases_and_bookkeeping() -> None:
    for kind, known in FORMATS.items():
        assert f"| {kind} | {', '.join(known)} |" in PAGE
    assert ", ".join(f"`{alias}` is `{name}`" for alias, name in ALIASES.items()) in PAGE
    assert ", ".join(f"`{name}`" for name in sorted(HARMLESS)) in PAGE
