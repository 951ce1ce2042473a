"""A settings file that a command changes: checked before, replaced as a whole, with a backup beside it.

Whenever the command ends, the file is the old or the new one. `gateway.config.edit` has the changes of its text.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from gateway.config.edit import EditError
from gateway.config.load import load, sources
from gateway.config.schema import Settings
from gateway.storage.files import Write, replace_file, try_lock, write_files

_ROUTES = "agents.routes"
_REASONS = {
    errno.EROFS: "its file system is read-only. Edit the settings where they come from, such as a ConfigMap, and "
    "reload",
    errno.EACCES: "permission denied. Run this as the owner of the file and its folder",
    errno.EBUSY: "it is mounted as a single file. Mount its folder, or edit the settings where they come from, and "
    "reload",
}


class SettingsFile:
    """A settings file in YAML as it was read. path: without symbolic links. text: with its own line ends.

    settings: what it holds, without secrets, under the present environment.
    """

    def __init__(self, path: Path, text: str, settings: Settings) -> None:
        self.path = path
        self.text = text
        self.settings = settings

    @classmethod
    def read(cls, path: Path, environ: Mapping[str, str] | None = None) -> SettingsFile:
        """Read a file whose routes are to be changed.

        Raises:
            EditError: it can't be read, is TOML, or its routes come from a variable.
            ConfigError: it holds something wrong.
        """
        environ = os.environ if environ is None else environ
        real = Path(os.path.realpath(path))
        if real.suffix == ".toml" or path.suffix == ".toml":
            raise EditError(
                f"{path} is TOML, which this command can't change without losing comments: write the settings as YAML, "
                f"or change {_ROUTES} by hand and reload the gateways"
            )
        try:
            text = real.read_bytes().decode("utf-8")
        except OSError as error:
            raise EditError(f"{path} can't be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise EditError(f"{path} is not UTF-8: save it as UTF-8, and try again") from None
        source = sources(real, environ).get(_ROUTES, str(real))
        if source != str(real):
            raise EditError(
                f"{_ROUTES} comes from the environment variable {source}, which replaces that of {path}. Change it "
                "there and restart the gateways, or move it into the file"
            )
        return cls(real, text, _load(real, environ))

    def check(self, text: str, environ: Mapping[str, str] | None = None) -> Settings:
        """Return the settings that the file would hold with this text.

        Raises:
            ConfigError: it holds something wrong.
        """
        with tempfile.TemporaryDirectory(prefix="mlc-gateway-") as folder:
            copy = Path(folder) / self.path.name
            copy.write_bytes(text.encode())
            return _load(copy, os.environ if environ is None else environ)

    def diff(self, text: str) -> str:
        """Return what would change, as a unified diff."""
        lines = difflib.unified_diff(
            self.text.splitlines(), text.splitlines(), str(self.path), f"{self.path} (new)", lineterm=""
        )
        return "\n".join(lines)

    def replace(self, text: str) -> Path:
        """Put a file with this text, which `check` has read, in place of the file. Return the backup of the old one.

        Mode, owner and extended attributes stay.

        Raises:
            EditError: the file was changed meanwhile, or can't be replaced.
        """
        now = datetime.now(UTC)
        written: list[Path] = []
        try:
            written.append(new := write_beside(self.path, f"{self.path.name}.new", text.encode()))
            written.append(backup := self._keep_old(f"{now:%Y%m%dT%H%M%SZ}"))
            if self.path.read_bytes() != self.text.encode():
                raise EditError(f"{self.path} was changed meanwhile by somebody else: try again")
            replace_file(new, self.path)
            written.clear()
        except OSError as error:
            raise EditError(f"{self.path} can't be replaced: {describe_write_error(error)}") from None
        finally:
            for path in written:
                path.unlink(missing_ok=True)
        self.text = text
        return backup

    def _keep_old(self, time: str) -> Path:
        """Write a copy of the old file, and wait until it is on the disk."""
        copy = write_beside(self.path, f"{self.path.name}.old", self.text.encode())
        backup = self.path.with_name(f"{self.path.name}.before-{time}")
        number = 1
        while backup.exists():
            number += 1
            backup = self.path.with_name(f"{self.path.name}.before-{time}-{number}")
        replace_file(copy, backup)
        return backup


def describe_write_error(error: OSError) -> str:
    """Return why a file beside the settings can't be written, and what to do."""
    return _REASONS.get(error.errno or 0, error.strerror or str(error))


def write_beside(path: Path, name: str, content: bytes) -> Path:
    """Write a hidden file in the same folder, with the mode and owner of the file at `path`; it is on the disk then."""
    beside = path.with_name(f".{name}")
    beside.unlink(missing_ok=True)  # of a run that was killed
    write_files(Write(beside, content))
    owner = path.stat()
    if (owner.st_uid, owner.st_gid) != (beside.stat().st_uid, beside.stat().st_gid):
        os.chown(beside, owner.st_uid, owner.st_gid)
    written = beside.stat()
    shutil.copystat(path, beside)
    os.utime(beside, ns=(written.st_atime_ns, written.st_mtime_ns))
    return beside


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other commands from changing settings files in the folder of `path` until the block ends.

    The system releases the lock when the process ends.

    Raises:
        EditError: another command changes one.
    """
    folder = Path(os.path.realpath(path)).parent
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise EditError(f"{folder}: {error.strerror or error}") from None
    try:
        if not try_lock(descriptor):
            raise EditError(f"another command changes a settings file in {folder}: wait until it ends")
        yield
    finally:
        os.close(descriptor)


def _load(path: Path, environ: Mapping[str, str]) -> Settings:
    return load(path, environ, secrets_of=_ROUTES)  # it has none: those of the gateway need not be here
