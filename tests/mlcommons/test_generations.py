"""The generations, and `docs/internals/agents.md` held to the tables it describes."""

from pathlib import Path

import pytest

from gateway.agents.lookup import AUTH_HEADERS, PERMISSIONS
from gateway.mlcommons.generations import ABILITIES, Generation, generation_of

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "agents.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose first column is called `heading`."""
    lines = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_shows_every_generation_as_it_is() -> None:
    shown = {row[0]: row[2:] for row in table("generation")}
    assert shown == {
        f"`{generation.value}`": [
            ", ".join(sorted(ABILITIES[generation].native)) or "none",
            "yes" if ABILITIES[generation].raw_parameters else "no",
            "yes" if ABILITIES[generation].question else "no",
        ]
        for generation in Generation
    }


def test_the_page_names_every_permission() -> None:
    assert dict(table("lookup")) == {kind: f"`{permission}`" for kind, permission in PERMISSIONS.items()}


def test_the_page_names_every_header_a_lookup_carries() -> None:
    section = PAGE[PAGE.index("## Credentials of a lookup") : PAGE.index("So a caller learns")]
    assert {word.lower() for word in section.split("`")[1::2]} == AUTH_HEADERS


@pytest.mark.parametrize(
    ("version", "agent_type", "has_model", "generation"),
    [
        ((2, 19, 0), "flow", False, Generation.TEXT),
        ((2, 19, 0), "conversational", False, Generation.TEXT),
        ((3, 0, 0), "conversational", False, Generation.FUNCTION_CALLING),
        ((3, 8, 0), "flow", False, Generation.FUNCTION_CALLING),
        ((3, 5, 0), "conversational", True, Generation.UNIFIED_V1),
        ((3, 8, 0), "plan_execute_and_reflect", True, Generation.UNIFIED_V1),
        ((3, 6, 0), "conversational_v2", True, Generation.UNIFIED_V2),
        ((3, 6, 0), "CONVERSATIONAL_V2", False, Generation.UNIFIED_V2),
    ],
)
def test_generation_of(version: tuple[int, ...], agent_type: str, has_model: bool, generation: Generation) -> None:
    assert generation_of(version, agent_type, has_model) is generation
