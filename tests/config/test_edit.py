"""Edits of routes in the text of a settings file: what the edit does not name is the same, byte for byte."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.edit import (
    EditError,
    format_weight,
    put_route,
    put_target,
    remove_route,
    remove_target,
    replace_alias,
    set_weights,
)
from gateway.config.schema import AgentRoute, Mirror, RouteTarget
from gateway.config.yaml_text import parse_yaml
from tests.conftest import examples

FILE = """\
# Our gateway.
upstream:
  url: http://127.0.0.1:9200   # the old one
  # nodes: [http://127.0.0.1:9201]

agents:   # see the wiki
  # seconds
  cache_ttl:   3
  routes:
    - agent: &old OLD   # the assistant
      # Old and new.
      targets:
        - {agent: *old,   weight: 95}  # on 2.19
        - {"agent": 'NEW', cluster: new,"weight":5.0}
        - agent: THIRD # rests
          cluster: new
      # Until spring.
    # The next route comes here.
clusters: {new: {url: "https://example.org"}}
"""


def _unchanged(old: str, new: str) -> bool:
    """Return True if each line of `old` is in `new`, in the same order."""
    rest = iter(new.splitlines(keepends=True))
    return all(any(line == other for other in rest) for line in old.splitlines(keepends=True))


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n# the end"])
def test_a_weight_is_replaced_where_it_stands_or_added_beside_the_agent(line_break: str, end: str) -> None:
    """Three ways to write a target: a flow mapping with spaces, one like JSON, a block without a weight."""
    text = (FILE.removesuffix("\n") + end).replace("\n", line_break)
    edited = set_weights(text, "OLD", {"OLD": 90, "NEW": 7.5, "THIRD": 2.5})
    expected = (
        text.replace("weight: 95}", "weight: 90}")
        .replace('"weight":5.0}', '"weight":7.5}')
        .replace("# rests", f"# rests{line_break}          weight: 2.5")
    )
    assert edited == expected


def test_a_weight_that_is_right_stays_as_it_is_written() -> None:
    """`5.0` is 5."""
    assert set_weights(FILE, "OLD", {"NEW": 5, "OLD": 95.0}) == FILE


def test_a_weight_is_written_without_an_exponent() -> None:
    """YAML 1.1 reads `1e+06` as a text."""
    assert [format_weight(weight) for weight in (1_000_000, 0.000001, 31.666667, 0.0, 100)] == [
        "1000000",
        "0.000001",
        "31.666667",
        "0",
        "100",
    ]


class _Odd(NamedTuple):
    """A settings file in pieces: between two of them stands a weight. agents: of the targets, in order."""

    pieces: list[str]
    agents: list[str]

    def with_weights(self, weights: list[str]) -> str:
        """Return the text with these weights."""
        return "".join(piece + weight for piece, weight in zip(self.pieces, [*weights, ""], strict=True))


_SPACE = st.sampled_from(["", " ", "   ", "\t"])
_COMMENT = st.sampled_from(["", "  # weight: 5", " # {agent: a, weight: 1}", "   # ünïcödé 😀", "\t# - x: [", " "])
_FILLER = st.sampled_from(["", "\n", "# weight: 7\n", "   \n", "#\n\n", "        # agent: T0\n"])
_QUOTES = st.sampled_from(["", "'", '"'])


@st.composite
def _targets(draw: st.DrawFn, agent: str, column: int) -> tuple[str, str]:
    """Return the text of a target before its weight, and after it."""
    quote, margin = draw(_QUOTES), " " * column
    name = f"{quote}{agent}{quote}"
    properties = draw(st.sampled_from(["", "", "&a" + agent + " "]))
    if draw(st.booleans()):
        before, after = (draw(st.sampled_from(["", ", cluster: new", ",cluster:  'new' "])) for _ in range(2))
        if before and after:
            after = ""
        space = draw(_SPACE.filter(lambda one: one != "\t"))
        start = f"{margin}- {{{space}agent: {name}{before},{space}weight: {properties}"
        return start, f"{space}{after}}}{draw(_COMMENT)}\n{draw(_FILLER)}"
    dash = draw(st.sampled_from(["- ", "-   "]))
    inner = margin + " " * len(dash)
    first = f"{margin}{dash}agent: {name}{draw(_COMMENT)}\n{draw(_FILLER)}"
    return f"{first}{inner}weight:{draw(st.sampled_from([' ', '    ']))}{properties}", draw(_COMMENT) + "\n" + draw(
        st.sampled_from(["", f"{inner}cluster: new\n"])
    ) + draw(_FILLER)


@st.composite
def _odd_files(draw: st.DrawFn) -> _Odd:
    agents = [f"T{number}" for number in range(draw(st.integers(1, 4)))]
    column = draw(st.sampled_from([4, 6, 9]))
    pieces = [
        draw(st.sampled_from(["", "\ufeff", "---\n", "# top\n"]))
        + draw(st.sampled_from(["", "x-note: &n {a: 1, weight: 3}\nother: *n\n", "logs: {level: 'info'}\n"]))
        + f"agents:{draw(_COMMENT)}\n{draw(_FILLER)}  cache_ttl: 3\n"
        + draw(st.sampled_from(["", "  rules: [{agent: T0}] # weight\n"]))
        + f"  routes:{draw(_COMMENT)}\n{draw(_FILLER)}"
        + draw(st.sampled_from(["", "  - {agent: OTHER, targets: [{agent: T0, weight: 1}]}\n"]))
        + f"  - agent: OLD{draw(_COMMENT)}\n{draw(_FILLER)}    targets:{draw(_COMMENT)}\n{draw(_FILLER)}"
    ]
    for agent in agents:
        before, after = draw(_targets(agent, column))
        pieces[-1] += before
        pieces.append(after)
    pieces[-1] += draw(st.sampled_from(["", "    stick_by:   first_message\n", "logs:   {level: info}\n"]))
    if draw(st.booleans()):
        pieces[-1] = pieces[-1].rstrip("\n \t")  # no line feed at the end of the file
    if draw(st.booleans()):
        pieces = [piece.replace("\n", "\r\n") for piece in pieces]
    return _Odd(pieces, agents)


def _is_yaml(odd: _Odd) -> bool:
    try:
        parse_yaml(odd.with_weights(["1"] * len(odd.agents)))
    except Exception:
        return False
    return True


_WEIGHT = st.one_of(
    st.integers(0, 1_000_000), st.floats(0, 1_000_000, allow_nan=False).map(lambda weight: round(weight, 6))
)


@examples(1000)
@given(
    _odd_files().filter(_is_yaml), st.lists(_WEIGHT, min_size=4, max_size=4), st.lists(_WEIGHT, min_size=4, max_size=4)
)
def test_nothing_but_the_weights_changes(odd: _Odd, old: list[float], new: list[float]) -> None:
    """Comments, anchors, quotes, odd spacing, CRLF, a byte order mark and no line feed at the end."""
    count = len(odd.agents)
    was, will = (list(map(format_weight, weights[:count])) for weights in (old, new))
    edited = set_weights(odd.with_weights(was), "OLD", dict(zip(odd.agents, new, strict=False)))
    same = [
        before if abs(float(before) - float(after)) < 1e-9 else after for before, after in zip(was, will, strict=True)
    ]
    assert edited == odd.with_weights(same)


ROUTE = AgentRoute("B", [RouteTarget("B", weight=100), RouteTarget("C", "new", 0.0)], on_failure="next")
BLOCK = """\
- agent: B
  targets:
    - {agent: B, weight: 100}
    - {agent: C, cluster: new, weight: 0}
  on_failure: next
"""
FLOW = "{agent: B, targets: [{agent: B, weight: 100}, {agent: C, cluster: new, weight: 0}], on_failure: next}"


def _indented(column: int, text: str = BLOCK) -> str:
    return "".join(" " * column + line for line in text.splitlines(keepends=True))


PLACES = [
    ("an empty file", "", "agents:\n  routes:\n" + _indented(4)),
    ("only a comment", "# none yet", "# none yet\nagents:\n  routes:\n" + _indented(4)),
    ("other sections", "logs: {level: info}", "logs: {level: info}\nagents:\n  routes:\n" + _indented(4)),
    ("a flow mapping", "{}", f"{{agents: {{routes: [{FLOW}]}}}}"),
    ("a section in flow", "agents: {cache_ttl: 3}\n", f"agents: {{routes: [{FLOW}], cache_ttl: 3}}\n"),
    ("an empty section", "agents:  # ours\nlogs: {}\n", "agents:  # ours\n  routes:\n" + _indented(4) + "logs: {}\n"),
    ("an empty section at the end", "agents:", ("agents:\n  routes:\n" + _indented(4)).removesuffix("\n")),
    (
        "a section with a comment",
        "agents:\n   # seconds\n   cache_ttl: 3\n   # more\n",
        "agents:\n   routes:\n" + _indented(5) + "   # seconds\n   cache_ttl: 3\n   # more\n",
    ),
    ("an empty list", "agents:\n  routes: []\n", "agents:\n  routes:\n" + _indented(4)),
    (
        "an empty list with a comment",
        "agents:\n  routes: []   # ours\n  roles: {}",
        "agents:\n  routes:   # ours\n" + _indented(4) + "  roles: {}",
    ),
    ("an empty list in flow", "agents: {routes: []}\n", f"agents: {{routes: [{FLOW}]}}\n"),
    ("an empty key", "agents:\n  routes:\nlogs: {}\n", "agents:\n  routes:\n" + _indented(4) + "logs: {}\n"),
    (
        "a list without indentation",
        "agents:\n  routes:\n  - agent: A\n    targets: [{agent: A, weight: 1}]\n    # its comment\n  # the next\n",
        "agents:\n  routes:\n  - agent: A\n    targets: [{agent: A, weight: 1}]\n    # its comment\n"
        + _indented(2)
        + "  # the next\n",
    ),
    (
        "a list with an anchor",
        "agents:\n  routes: &all\n    -   agent: A\n        targets: [{agent: A, weight: 1}]",
        "agents:\n  routes: &all\n    -   agent: A\n        targets: [{agent: A, weight: 1}]\n"
        + _indented(4).removesuffix("\n"),
    ),
    (
        "the route is there",
        "agents:\n  routes:\n    -   agent: B # ours\n        targets:\n        - {agent: X, weight: 1}\n    # end\n",
        "agents:\n  routes:\n    -   " + _indented(6)[8:] + "    # end\n",
    ),
    (
        "the route is there in flow",
        "agents: {routes: [{agent: B, targets: [{agent: B}]}]}",
        f"agents: {{routes: [{FLOW}]}}",
    ),
]


@pytest.mark.parametrize(("text", "expected"), [pytest.param(*case, id=name) for name, *case in PLACES])
def test_a_route_is_added_where_the_file_has_its_routes(text: str, expected: str) -> None:
    """The whole text is compared."""
    assert put_route(text, ROUTE) == expected
    windows = put_route(text.replace("\n", "\r\n"), ROUTE)
    assert windows == (expected.replace("\n", "\r\n") if "\n" in text else expected)


def test_a_mirror_is_written_without_its_defaults() -> None:
    """As the rest of a route is."""
    mirror = Mirror("C", ratio=0.1, tools=["search"])
    route = AgentRoute("B", [RouteTarget("C", weight=1, cluster="new", callers="trusted")], mirror=mirror)
    assert parse_yaml(put_route("", route))["agents"]["routes"] == [
        {
            "agent": "B",
            "targets": [{"agent": "C", "weight": 1, "cluster": "new", "callers": "trusted"}],
            "mirror": {"agent": "C", "ratio": 0.1, "tools": ["search"]},
        }
    ]


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_target_is_added_after_the_others(line_break: str) -> None:
    """The comments of the route stay."""
    text = FILE.replace("\n", line_break)
    edited = put_target(text, "OLD", RouteTarget("FOURTH", weight=1.5))
    assert edited == text.replace(
        f"          cluster: new{line_break}",
        f"          cluster: new{line_break}        - {{agent: FOURTH, weight: 1.5}}{line_break}",
    )


def test_a_target_replaces_that_of_the_same_agent() -> None:
    """Where it stands."""
    edited = put_target(FILE, "OLD", RouteTarget("OLD", weight=1))
    assert edited == FILE.replace("{agent: *old,   weight: 95}", "{agent: OLD, weight: 1}")


TARGETS = [
    ("the first", "OLD", "        - {agent: *old,   weight: 95}  # on 2.19\n"),
    ("one in flow", "NEW", """        - {"agent": 'NEW', cluster: new,"weight":5.0}\n"""),
    ("a block at the end", "THIRD", "        - agent: THIRD # rests\n          cluster: new\n"),
]


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize(("agent", "lines"), [pytest.param(*case, id=name) for name, *case in TARGETS])
def test_a_target_is_removed_with_its_lines(agent: str, lines: str, line_break: str) -> None:
    """Everything else stays, also comments between the targets."""
    edited = remove_target(FILE.replace("\n", line_break), "OLD", agent)
    assert edited == FILE.replace(lines, "").replace("\n", line_break)


@pytest.mark.parametrize(("agent", "rest"), [("A", "[{agent: B}, {agent: C}]"), ("C", "[{agent: A}, {agent: B}]")])
def test_a_target_of_a_list_in_a_line_is_removed_with_its_comma(agent: str, rest: str) -> None:
    """At the beginning and at the end."""
    text = "agents: {routes: [{agent: X, targets: [{agent: A}, {agent: B}, {agent: C}]}]}"
    assert remove_target(text, "X", agent) == f"agents: {{routes: [{{agent: X, targets: {rest}}}]}}"


def test_the_only_target_is_not_removed() -> None:
    """The route would answer nobody."""
    with pytest.raises(EditError, match="is the only target of the route of B: remove the route"):
        remove_target("agents: {routes: [{agent: B, targets: [{agent: C}]}]}", "B", "C")
    with pytest.raises(EditError, match="D is no target of the route of B"):
        remove_target("agents: {routes: [{agent: B, targets: [{agent: C}]}]}", "B", "D")


ROUTES = [
    ("one of two", "agents:\n  routes:\n  - {agent: A}\n  # mine\n" + _indented(2), BLOCK, ""),
    ("the first of two", "agents:\n  routes:\n" + _indented(4) + "    - {agent: A}", _indented(4), ""),
    ("the only one", "agents:\n  routes:   # ours\n" + _indented(4) + "# end\n", _indented(4), "routes: []   # ours"),
    ("in flow", f"agents: {{routes: [{FLOW}]}}", FLOW, ""),
]


@pytest.mark.parametrize(("text", "lines", "empty"), [pytest.param(*case, id=name) for name, *case in ROUTES])
def test_a_route_is_removed_with_its_lines(text: str, lines: str, empty: str) -> None:
    """A list without items is written as such: an empty value is none."""
    expected = text.replace(_indented(2) if lines == BLOCK else lines, "")
    expected = expected.replace("routes:   # ours", empty) if empty else expected
    assert remove_route(text, "B") == expected
    assert put_route(text, ROUTE) == text


_NEXT = AgentRoute("B", [RouteTarget("C", weight=1)])
ALIASES = [
    (
        "one of two",
        "agents:\n  aliases:\n    A: D   # stays\n    B: C   # goes\n  # end\n",
        "agents:\n  routes:\n    - agent: B\n      targets:\n        - {agent: C, weight: 1}\n"
        "  aliases:\n    A: D   # stays\n  # end\n",
    ),
    (
        "the only one, and routes",
        'agents:\n  aliases:\n    "B": C\n  routes:\n  - agent: A\n    targets: [{agent: A, weight: 1}]\n',
        "agents:\n  aliases: {}\n  routes:\n  - agent: A\n    targets: [{agent: A, weight: 1}]\n"
        "  - agent: B\n    targets:\n      - {agent: C, weight: 1}\n",
    ),
    (
        "in flow",
        "agents: {aliases: {A: D, B: C}}",
        "agents: {routes: [{agent: B, targets: [{agent: C, weight: 1}]}], aliases: {A: D}}",
    ),
]


@pytest.mark.parametrize(("text", "expected"), [pytest.param(*case, id=name) for name, *case in ALIASES])
def test_an_alias_becomes_a_route(text: str, expected: str) -> None:
    """Its line goes, and the route is added where the file has its routes."""
    assert replace_alias(text, _NEXT) == expected


def test_an_alias_that_the_file_does_not_have_is_no_route() -> None:
    """It may come from the environment."""
    with pytest.raises(EditError, match=r"agents\.aliases of the file has no entry for B"):
        replace_alias("agents: {aliases: {A: D}}", _NEXT)


_SHARED = "targets: &t [{agent: OLD, weight: 1}]"
REFUSED: list[tuple[str, str, str]] = [
    ("no route", "agents: {routes: [{agent: X, targets: [{agent: OLD}]}]}", "no route of the agent OLD"),
    ("no section", "", "no route of the agent OLD"),
    ("no target", "agents: {routes: [{agent: OLD, targets: [{agent: X}]}]}", "OLD is no target of the route of OLD"),
    (
        "targets of another route",
        f"agents: {{routes: [{{agent: X, {_SHARED}}}, {{agent: OLD, targets: *t}}]}}",
        "agents.routes[1].targets is an alias",
    ),
    (
        "an alias of the targets elsewhere",
        f"agents: {{routes: [{{agent: OLD, {_SHARED}}}, {{agent: X, targets: *t}}]}}",
        "depend on how it is written",
    ),
    (
        "a merge key",
        f"base: &b {{{_SHARED}}}\nagents: {{routes: [{{<<: *b, agent: OLD}}]}}",
        "agents.routes[0].targets comes from a merge key",
    ),
    (
        "an alias of the weight",
        "agents: {routes: [{agent: OLD, targets: [{agent: OLD, weight: &w 1}]}], cache_ttl: *w}",
        "depend",
    ),
    ("a tag", "agents: {routes: [{agent: OLD, targets: [{agent: OLD, weight: !!int 1}]}]}", "depend"),
    ("no YAML", "agents: [", "can't be parsed"),
    ("a list", "- agents", "must hold a mapping"),
]


@pytest.mark.parametrize(("text", "reason"), [pytest.param(*case, id=name) for name, *case in REFUSED])
def test_what_can_not_be_edited_safely_is_refused(text: str, reason: str) -> None:
    """No other value may change with the weight."""
    with pytest.raises(EditError) as refused:
        set_weights(text, "OLD", {"OLD": 2.5})
    assert reason in str(refused.value)


@examples(300)
@given(_odd_files().filter(_is_yaml), st.lists(_WEIGHT, min_size=4, max_size=4))
def test_adding_a_route_or_a_target_leaves_all_lines(odd: _Odd, weights: list[float]) -> None:
    """Or is refused."""
    text = odd.with_weights([format_weight(weight) for weight in weights[: len(odd.agents)]])
    whole = text + ("" if text.endswith("\n") else "\r\n" if "\r\n" in text else "\n")
    edits: list[Any] = [lambda: put_route(whole, ROUTE), lambda: put_target(whole, "OLD", RouteTarget("NEW", weight=1))]
    for edit in edits:
        assert _unchanged(whole, edit())


@examples(300)
@given(_odd_files().filter(_is_yaml), st.lists(_WEIGHT, min_size=4, max_size=4))
def test_what_was_added_can_be_removed(odd: _Odd, weights: list[float]) -> None:
    """The text is the same again."""
    text = odd.with_weights([format_weight(weight) for weight in weights[: len(odd.agents)]])
    whole = text + ("" if text.endswith("\n") else "\r\n" if "\r\n" in text else "\n")
    assert remove_route(put_route(whole, ROUTE), "B") == whole
    assert remove_target(put_target(whole, "OLD", RouteTarget("NEW", weight=1)), "OLD", "NEW") == whole
