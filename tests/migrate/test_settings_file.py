"""A settings file that a command changes: it is the old or the new one, with what belongs to it, and nobody's edit is
lost."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.edit import EditError, set_weights
from gateway.config.problems import ConfigError
from gateway.migrate.settings_file import SettingsFile, locked

TEXT = """\
# Ours.\r
upstream: {url: http://127.0.0.1:9200}\r
listen: {admin_token: {env: NOT_SET_HERE}}\r
agents:\r
  routes:\r
    - agent: OLD\r
      targets: [{agent: OLD, weight: 100}, {agent: NEW, weight: 0}]   # of June\r
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a settings file with a route."""
    path = tmp_path / "gateway.yaml"
    path.write_bytes(TEXT.encode())
    path.chmod(0o640)
    return path


def _shifted(text: str) -> str:
    return set_weights(text, "OLD", {"OLD": 95, "NEW": 5})


def test_the_file_is_replaced_and_the_old_one_is_beside_it(path: Path) -> None:
    """Mode and line ends stay. Secrets of the gateway's need not be here."""
    file = SettingsFile.read(path, {})
    new = _shifted(file.text)
    assert [target.weight for target in file.check(new, {}).agents.routes[0].targets] == [95, 5]
    backup = file.replace(new)
    assert path.read_bytes().decode() == new == TEXT.replace("100", "95").replace("weight: 0", "weight: 5")
    assert backup.read_bytes() == TEXT.encode()
    assert [one.stat().st_mode & 0o777 for one in (path, backup)] == [0o640, 0o640]
    assert sorted(path.parent.iterdir()) == sorted([path, backup])


def test_two_backups_of_one_second_have_two_names(path: Path) -> None:
    """None is written over."""
    file = SettingsFile.read(path, {})
    backups = [file.replace(_shifted(file.text)), file.replace(TEXT), file.replace(_shifted(file.text))]
    assert len(set(backups)) == 3
    assert [b"weight: 100" in one.read_bytes() for one in backups] == [True, False, True]


def test_a_symbolic_link_stays_one(path: Path, tmp_path: Path) -> None:
    """The file that it leads to is replaced."""
    folder = tmp_path / "etc"
    folder.mkdir()
    link = folder / "gateway.yaml"
    link.symlink_to(path)
    file = SettingsFile.read(link, {})
    file.replace(_shifted(file.text))
    assert link.is_symlink()
    assert "weight: 95" in path.read_text()
    assert list(folder.iterdir()) == [link]


def test_an_edit_of_somebody_else_is_not_lost(path: Path) -> None:
    """The file is left as they have written it."""
    file = SettingsFile.read(path, {})
    path.write_text("agents: {cache_ttl: 5}\n")
    with pytest.raises(EditError, match=r"was changed meanwhile by somebody else: try again$"):
        file.replace(_shifted(file.text))
    assert path.read_text() == "agents: {cache_ttl: 5}\n"
    assert list(path.parent.iterdir()) == [path]


def test_what_would_be_wrong_is_found_before(path: Path) -> None:
    """As `check-config` finds it."""
    file = SettingsFile.read(path, {})
    with pytest.raises(ConfigError, match="no target with a weight above 0"):
        file.check(set_weights(file.text, "OLD", {"OLD": 0}), {})


def test_a_diff_shows_only_what_changes(path: Path) -> None:
    """With the names of the file."""
    file = SettingsFile.read(path, {})
    assert [line for line in file.diff(_shifted(file.text)).splitlines() if line[0] in "+-"] == [
        f"--- {path}",
        f"+++ {path} (new)",
        "-      targets: [{agent: OLD, weight: 100}, {agent: NEW, weight: 0}]   # of June",
        "+      targets: [{agent: OLD, weight: 95}, {agent: NEW, weight: 5}]   # of June",
    ]


def test_toml_is_refused(tmp_path: Path) -> None:
    """It says what to do instead."""
    path = tmp_path / "gateway.toml"
    path.write_text("[agents]\n")
    with pytest.raises(EditError, match=r"is TOML, .*: write the settings as YAML, or change agents.routes by hand"):
        SettingsFile.read(path, {})


def test_routes_of_a_variable_are_refused(path: Path) -> None:
    """The file's are not in use."""
    environ = {"GATEWAY__AGENTS__ROUTES": "[{agent: A, targets: [{agent: A, weight: 1}]}]"}
    with pytest.raises(EditError, match="comes from the environment variable GATEWAY__AGENTS__ROUTES"):
        SettingsFile.read(path, environ)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """So is one that is no text."""
    with pytest.raises(EditError, match=r"none\.yaml can't be read: No such file"):
        SettingsFile.read(tmp_path / "none.yaml", {})
    (tmp_path / "latin.yaml").write_bytes(b"# \xe4\n")
    with pytest.raises(EditError, match="is not UTF-8"):
        SettingsFile.read(tmp_path / "latin.yaml", {})


def test_a_file_that_can_not_be_replaced_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that is mounted by itself into a container."""

    replace = Path.replace

    def busy(self: Path, target: Path) -> Path:
        if target == path:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return replace(self, target)

    file = SettingsFile.read(path, {})
    monkeypatch.setattr(Path, "replace", busy)
    with pytest.raises(EditError, match="it is mounted as a single file"):
        file.replace(_shifted(file.text))
    assert path.read_bytes() == TEXT.encode()
    assert list(path.parent.iterdir()) == [path]


def test_one_command_at_a_time_and_a_killed_one_leaves_no_lock(path: Path) -> None:
    """The other one is a process, which is killed."""
    code = (
        "import pathlib, sys; from gateway.migrate.settings_file import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(EditError, match="another command changes a settings file"), locked(path):
            pass
        other.kill()
        other.wait()
        with locked(path):
            pass
    assert list(path.parent.iterdir()) == [path]
