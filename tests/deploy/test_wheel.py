"""The wheel: two builds are the same bytes, an index would take it, and it holds the gateway and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import gateway
from tests.deploy.wheel import _git, build, check_metadata
from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow(20)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


def test_two_builds_are_equal_byte_for_byte(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = os.umask(0o077)
    try:
        other = build(tmp_path)
    finally:
        os.umask(before)
    assert other.name == wheel.name
    assert other.read_bytes() == wheel.read_bytes()


def test_another_time_gives_another_wheel(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the comparison can fail."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert build(tmp_path).read_bytes() != wheel.read_bytes()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_index_would_take_it(wheel: Path, tmp_path: Path) -> None:
    check_metadata(wheel)
    wrong = tmp_path / wheel.name
    shutil.copyfile(wheel, wrong)
    with zipfile.ZipFile(wrong, "a") as file:
        file.writestr(f"mlc_gateway-{gateway.__version__}.dist-info/METADATA", "Metadata-Version: 2.4\nName: x\n")
    with pytest.raises(AssertionError, match="'version' is a"):
        check_metadata(wrong)


def test_it_holds_the_gateway_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    folder = f"mlc_gateway-{gateway.__version__}.dist-info"
    inside = {name for name in names if not name.startswith(f"{folder}/")}
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "gateway")
    assert inside == {name for name in listed.split("\0") if name and (ROOT / name).exists()}
    about = {name.removeprefix(f"{folder}/") for name in names - inside}
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}


def test_its_metadata(wheel: Path) -> None:
    folder = f"mlc_gateway-{gateway.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as file:
        metadata = message_from_bytes(file.read(f"{folder}/METADATA"))
        entries = file.read(f"{folder}/entry_points.txt").decode()
        license_ = file.read(f"{folder}/licenses/LICENSE").decode()
    assert (metadata["Name"], metadata["Version"]) == ("mlc-gateway", gateway.__version__)
    assert (metadata["License-Expression"], metadata.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert entries == "[console_scripts]\nmlc-gateway = gateway.__main__:main\n"
    assert license_.startswith("SPDX-License-Identifier: Apache-2.0\n")
    assert re.search(r"https://www\.apache\.org/licenses/LICENSE-2\.0", license_)
