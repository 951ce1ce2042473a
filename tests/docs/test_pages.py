"""What the gateway has, the pages explain; what the pages explain, the gateway has."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator

import pytest

import gateway
from gateway.codes import CODES
from gateway.config.variables import READ
from gateway.errors import GatewayError
from gateway.observe.metrics import Metrics, Nodes, Sizes
from tests.docs.cli_page import render
from tests.docs.codes_table import with_table
from tests.docs.pages import GATEWAY, ROOT, page

pytestmark = pytest.mark.check

_CODE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
# modules with branches of the tree of errors
BRANCHES = ("gateway.agents.lookup", "gateway.admin.application", "gateway.proxy.error_responses")
_VARIABLES = {*READ, "XDG_STATE_HOME"}  # of the environment: no codes
_EVENTS = {  # types of AG-UI events
    *("MESSAGES_SNAPSHOT", "RUN_ERROR", "RUN_FINISHED", "TEXT_MESSAGE_CONTENT"),
    *("TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT", "TOOL_CALL_START"),
}
_REASONS = {"MAX_TOKENS", "PROHIBITED_CONTENT", "STOP_SEQUENCE", "TOOL_CALL"}  # why Gemini and Cohere stopped
_OTHERS = ("simulator", "demo")  # their constants belong to providers and clusters


def codes_in_use() -> set[str]:
    """Every short code in the gateway's source: a string of that form, wherever it stands."""
    found = {
        node.value
        for file in GATEWAY.rglob("*.py")
        if file.relative_to(GATEWAY).parts[0] not in (*_OTHERS, "codes.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value)
    }
    return found - _VARIABLES - _EVENTS - _REASONS


def documented() -> dict[str, str]:
    """Short code → its entry."""
    return dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", page("reference/limitations.md"), re.MULTILINE | re.DOTALL))


def test_every_code_is_explained_and_every_explained_code_exists() -> None:
    used = codes_in_use()
    assert "MEDIA_NEEDS_UPGRADE" in used
    assert sorted(documented()) == sorted(used) == sorted(CODES)


def test_the_list_of_codes_is_that_of_the_code() -> None:
    text = page("reference/limitations.md")
    assert text == with_table(text), "python -m tests.docs.codes_table"


@pytest.mark.parametrize("code", sorted(documented()))
def test_an_entry_has_cause_view_and_workaround(code: str) -> None:
    items = re.findall(r"^- ([\w ]+):", documented()[code], re.MULTILINE)
    assert items == ["Cause", "The client sees", "Workaround"]


def _types(error: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield error
    for branch in error.__subclasses__():
        yield from _types(branch)


def test_every_error_type_is_explained_with_its_statuses() -> None:
    for module in BRANCHES:
        importlib.import_module(module)
    statuses: dict[str, set[int]] = {}
    for error in _types(GatewayError):
        if error is not GatewayError and error.__module__.startswith("gateway."):
            statuses.setdefault(error.type, set()).add(error.status)
    rows = re.findall(r"^\| `(\w+)` \| ([\d, ]+) \|", page("reference/errors.md"), re.MULTILINE)
    assert {name: {int(one) for one in listed.split(",")} for name, listed in rows} == statuses


def test_every_metric_is_explained() -> None:
    metrics = Metrics()
    metrics.registry.register(Nodes(list))
    metrics.registry.register(Sizes(int, int))
    rendered = metrics.render().decode()
    names = set(re.findall(r"^# TYPE (mlc_gateway_\w+)", rendered, re.MULTILINE))
    documented = set(re.findall(r"mlc_gateway_\w+", page("reference/metrics.md")))
    assert names <= documented, names - documented


def test_the_page_of_the_command_line_is_current() -> None:
    assert page("reference/cli.md") == render(), "python -m tests.docs.cli_page"


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[\s<>=!;\[]", one)[0].lower() for one in wanted}
    documented = set(re.findall(r"^\| `([\w.-]+)` \|", page("internals/dependencies.md").lower(), re.MULTILINE))
    assert documented == names - {"mlc-gateway"}  # an extra that names others


def test_the_folders_of_the_architecture_are_there() -> None:
    named = set(re.findall(r"^\| `([a-z0-9]+)/` \|", page("internals/architecture.md"), re.MULTILINE))
    assert named == {path.name for path in GATEWAY.iterdir() if (path / "__init__.py").exists()}


def test_the_changelog_tells_the_current_version() -> None:
    assert f"## [{gateway.__version__}]" in page("CHANGELOG.md")
