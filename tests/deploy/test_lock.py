"""The lock files hold what `pyproject.toml` asks for, each file with its hash, and agree with each other."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT

pytestmark = pytest.mark.check

GATEWAY, IMAGE, ALL = "requirements.lock", "requirements-adapters.lock", "requirements-dev.lock"
"""What the gateway needs; that with what its adapters need, which the image gets; and with the development's tools."""


@dataclass(frozen=True)
class Locked:
    version: str
    hashes: frozenset[str]


def _locked(file: str) -> dict[str, Locked]:
    """Name → what is locked."""
    entries = re.findall(r"^(\S+)==([^\s;]+)((?:.*\\\n)*.*)", (ROOT / file).read_text(), re.MULTILINE)
    return {
        canonicalize_name(name): Locked(version, frozenset(re.findall(r"--hash=(sha256:[0-9a-f]{64})\b", rest)))
        for name, version, rest in entries
    }


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _asked(file: str) -> list[Requirement]:
    project = _project()
    words = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    extras = project["project"]["optional-dependencies"]
    words += {GATEWAY: [], IMAGE: [*extras["ag-ui"], *extras["openai"], *extras["mcp"]], ALL: extras["dev"]}[file]
    return [Requirement(word) for word in words]


@pytest.mark.parametrize("file", [GATEWAY, IMAGE, ALL])
def test_the_lock_has_what_the_project_asks_for(file: str) -> None:
    locked = _locked(file)
    for requirement in _asked(file):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)].version), str(requirement)


@pytest.mark.parametrize("file", [GATEWAY, IMAGE, ALL])
def test_each_package_has_hashes(file: str) -> None:
    text = (ROOT / file).read_text()
    assert len(_locked(file)) == len(re.findall(r"^[^\s#]", text, re.MULTILINE))
    assert [name for name, locked in _locked(file).items() if not locked.hashes] == []


def test_the_image_gets_what_was_tested() -> None:
    assert _locked(GATEWAY).items() <= _locked(IMAGE).items() <= _locked(ALL).items()


def test_what_builds_the_gateway_is_locked_too() -> None:
    project = _project()
    assert project["dependency-groups"]["build"] == project["build-system"]["requires"]
