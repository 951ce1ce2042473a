"""The pages are complete: each can be found, what code cites is there, what can go wrong is answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import SUMMARIES
from gateway.config.load import load
from gateway.execute.deliveries import DELIVERY, NOTICE
from gateway.proxy import run as run_module
from gateway.proxy.error_responses import REQUEST_ID
from gateway.register.reuse import KEY
from gateway.register.steps import CLEANUP
from tests.docs.pages import DOCS, GATEWAY, ROOT, page

pytestmark = pytest.mark.check

CODE = ("gateway", "Makefile", ".ci", "bench", "config", "deploy", "docker", "tests")
_CITED = re.compile(
    r"(?:FACTS|facts)\.md, ((?:rules? \d|[\w. ]*,? ?\"[^\"]+\"(?:,? and )?|\w+ and later|3\.4\.0|10_upgrade)+)"
)
_WORDS = re.compile(
    r"\b(?:said|told|wish|anatomy|dissected|mend|mends|mended|anew|whoever|presence|flights|blotter)\b", re.IGNORECASE
)
_INSTALLED = {"node_modules", ".peers"}
_GENERATED = ("settings.md", "cli.md")  # their text is the code's


def links(text: str) -> set[str]:
    """The targets of a page's links, without anchors."""
    return {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)}


def test_the_index_lists_every_page() -> None:
    listed = {(DOCS / target).resolve() for target in links(page("index.md"))}
    pages = {*DOCS.rglob("*.md")} - {DOCS / "index.md"}
    assert sorted(map(str, pages - listed)) == []


def test_every_decision_is_listed_and_has_context_decision_and_consequence() -> None:
    _, *decisions = re.split(r"^## ", page("internals/decisions.md"), flags=re.MULTILINE)
    listed = re.findall(r"^\| \[[^\]]+\]\(#([^)]+)\)", page("internals/decisions.md"), re.MULTILINE)
    titles = [decision.partition("\n")[0].lower() for decision in decisions]
    assert listed == [re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles]
    for decision in decisions:
        assert re.findall(r"^### (.*)$", decision, re.MULTILINE) == ["Context", "Decision", "Consequence"]


def files(*roots: str) -> Iterator[Path]:
    """The text files below `roots`."""
    for name in roots:
        root = ROOT / name
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".json", ".jsonl") and _INSTALLED.isdisjoint(path.parts):
                yield path


def test_every_page_that_code_names_exists() -> None:
    found: list[tuple[str, str]] = []
    for path in files(*CODE):
        text = path.read_text(encoding="utf-8", errors="ignore")
        named = re.findall(r"(?<![\w/])docs/[\w./-]+\.(?:md|yaml|svg)", text)
        found += [(str(path.relative_to(ROOT)), name) for name in named if not (ROOT / name).exists()]
    assert found == []


def cited() -> dict[str, set[str]]:
    """What comments cite from the page of facts → the files that do."""
    found: dict[str, set[str]] = {}
    for path in [*GATEWAY.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        text = re.sub(r"\n\s*(?:#\s*)?", " ", path.read_text())
        for citation in _CITED.findall(text):
            for name in re.findall(r"\"([^\"]+)\"|(3\.5 and later)|(10_upgrade)|(rules? \d)", citation):
                found.setdefault("".join(name), set()).add(path.name)
    return found


def test_every_fact_that_code_cites_is_on_the_page() -> None:
    text = page("evidence/facts.md")
    headings = {re.sub(r"`", "", title) for title in re.findall(r"^#{2,3} (.*)$", text, re.MULTILINE)}
    leads = set(re.findall(r"\*\*([^*]+?)\.?\*\*", text))
    other = {
        "3.5, 3.6, 3.8": "## 3.5 and later",
        "Rendering": "### Rendering, in detail",
        "10_upgrade": "`10_upgrade`",
        **{f"rule{s} {number}": f"\n{number}. **" for number in range(1, 7) for s in ("", "s")},
    }
    names = cited()
    assert {"Rendering, in detail", "Splice", "What arrives", "rule 2", "10_upgrade"} <= set(names)
    missing = {
        name: places
        for name, places in names.items()
        if name not in headings | leads and other.get(name, "\0") not in text
    }
    assert missing == {}


def test_every_error_type_is_in_troubleshooting() -> None:
    types = set(re.findall(r"^\| `(\w+)` \| [\d, ]+ \|", page("reference/errors.md"), re.MULTILINE))
    text = page("troubleshooting.md")
    assert (
        sorted(
            name for name in types if f"`{name}`" not in text and name not in ("VersionNotSupported", "NotImplemented")
        )
        == []
    )
    assert "501 or 505" in text


def test_every_code_in_troubleshooting_exists() -> None:
    known = set(re.findall(r"^### (\S+)$", page("reference/limitations.md"), re.MULTILINE))
    assert set(re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`", page("troubleshooting.md"))) <= known


def test_every_header_of_the_gateway_is_explained() -> None:
    text = page("reference/headers.md")
    for name in (DELIVERY, NOTICE, CLEANUP, KEY, REQUEST_ID, run_module._AGENT.decode(), "Retry-After", "Warning"):
        assert f"`{name}" in text, name
    named = {name for path in GATEWAY.rglob("*.py") for name in re.findall(r"X-MLC-[A-Za-z-]+\w", path.read_text())}
    assert all(f"`{name}`" in text for name in named)


@pytest.mark.parametrize("file", sorted(DOCS.rglob("*.md")), ids=lambda file: str(file.relative_to(DOCS)))
def test_words_that_the_style_guide_rules_out(file: Path) -> None:
    if file.name not in _GENERATED:
        assert _WORDS.findall(re.sub(r"`[^`]*`", "", file.read_text())) == []


def test_the_code_does_without_these_words_too() -> None:
    assert [str(file) for file in GATEWAY.rglob("*.py") if _WORDS.search(file.read_text())] == []


EXAMPLES = [
    pytest.param(block, id=f"{file.relative_to(ROOT)}-{number}")
    for file in [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", file.read_text(), re.MULTILINE | re.DOTALL), 1)
]


@pytest.mark.parametrize("block", EXAMPLES)
def test_every_example_of_settings_is_accepted(block: str, tmp_path: Path) -> None:
    for path in set(re.findall(r"/etc/mlc-gateway/[\w./-]+", block)):
        (tmp_path / Path(path).name).write_text("x" * 16)
    (tmp_path / "gateway.yaml").write_text(re.sub(r"/etc/mlc-gateway/(?:[\w-]+/)*", f"{tmp_path}/", block))
    variables = dict.fromkeys(re.findall(r"\{env: (\w+)\}", block), "x" * 16)
    assert load(tmp_path / "gateway.yaml", variables)


def test_every_command_in_a_shell_block_exists() -> None:
    for file in [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]:
        for block in re.findall(r"^```sh\n(.*?)^```", file.read_text(), re.MULTILINE | re.DOTALL):
            for command in re.findall(r"^(?:\w+=\S+ )*mlc-gateway (\w[\w-]*)", block, re.MULTILINE):
                assert command in SUMMARIES, (file.name, command)
            for target in re.findall(r"^make ([\w-]+)", block, re.MULTILINE):
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), (file.name, target)


_STEPS = {"agent", "connector", "model"}  # of a registration, as the inspector calls them: `make agent`


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for file in [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]:
        if file.name != "CHANGELOG.md":
            named = set(re.findall(r"`make ([a-z][\w-]*)", file.read_text()))
            assert named - _STEPS <= targets, file.name


INTERNALS = sorted((DOCS / "internals").glob("*.md"))


@pytest.mark.parametrize("file", INTERNALS, ids=lambda file: file.name)
def test_every_file_of_the_code_that_a_page_names_exists(file: Path) -> None:
    """A path may begin below the repository, `gateway/` or `tests/`; a name alone may be of any folder."""
    examples = set(re.findall(r"<!-- file: (\S+) -->", file.read_text()))
    named = set(re.findall(r"`([\w./]+\.py)`", file.read_text())) - examples
    names = {path.name for folder in ("gateway", "tests", "bench") for path in (ROOT / folder).rglob("*.py")}
    found = {name for name in named if any((ROOT / below / name).exists() for below in ("", "gateway", "tests"))}
    assert {name for name in named - found if "/" in name or name not in names} == set()


def test_the_page_on_testing_names_every_folder_of_tests() -> None:
    (table,) = re.findall(
        r"^## What is where\n(.*?)^##? ", page("internals/testing.md") + "\n# ", re.MULTILINE | re.DOTALL
    )
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    tests = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    assert tests <= named
    assert all((ROOT / "tests" / name).exists() for name in named)
