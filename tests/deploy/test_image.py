"""The Dockerfile's steps without Docker: the same commands on the same files, then the gateway as another user."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.deploy.test_manifests import DOCKERFILE
from tests.docs.pages import ROOT
from tests.wire import reserved

TEXT = DOCKERFILE.read_text().replace("\\\n", "")
UID = 10001


@dataclass
class Image:
    """What the image holds: `venv` and the settings, both read-only; `home` is its user's."""

    venv: Path
    home: Path

    def command(self, *args: str) -> list[str]:
        """A command as the image's user, where this one may become another."""
        if os.getuid() != 0:
            return list(args)
        setpriv = shutil.which("setpriv")
        assert setpriv, "becoming another user needs setpriv, of util-linux"
        return [setpriv, f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *args]

    def environ(self, **more: str) -> dict[str, str]:
        return {"HOME": str(self.home), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PATH": "", **more}


@pytest.fixture
def image() -> Iterator[Image]:
    folder = Path(tempfile.mkdtemp(prefix="image-"))
    folder.chmod(0o755)
    try:
        yield _built(folder)
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
        shutil.rmtree(folder)


def _built(folder: Path) -> Image:
    context, venv, home = folder / "src", folder / "venv", folder / "home"
    build = TEXT.partition("\nFROM")[0]
    for names in re.findall(r"^COPY (.*)$", build, re.MULTILINE):
        *sources, target = names.split()
        for source in sources:
            into = context / target
            copy = ROOT / source
            if copy.is_dir():
                shutil.copytree(copy, into, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(copy, into)
    [run] = re.findall(r"^RUN (.*)$", build, re.MULTILINE)
    run = run.replace("python -m venv /venv", f"{sys.executable} -m venv --copies /venv").replace("/venv", str(venv))
    subprocess.run(run, shell=True, check=True, cwd=context, capture_output=True, text=True)
    home.mkdir()
    if os.getuid() == 0:
        os.chown(home, UID, UID)
    shutil.rmtree(context)  # the final stage has none of it
    subprocess.run(["chmod", "-R", "a-w", str(venv)], check=True)
    return Image(venv, home)


def _listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mtime_ns) for path in folder.rglob("*"))


@pytest.mark.slow(40)
def test_the_image_holds_only_the_gateway_and_serves_as_another_user_from_a_read_only_tree(image: Image) -> None:
    packages = {path.name.partition("-")[0].lower() for path in image.venv.rglob("*.dist-info")}
    assert {"mlc_gateway", "aiohttp", "uvloop"} <= packages
    assert not packages & {"pip", "setuptools", "wheel", "pytest", "hypothesis", "mypy", "ruff"}

    before = _listing(image.venv)
    gateway = str(image.venv / "bin" / "mlc-gateway")
    with reserved() as port, reserved() as admin:
        environ = image.environ(
            GATEWAY__LISTEN__DATA_HOST="0.0.0.0",
            GATEWAY__LISTEN__DATA_PORT=str(port),
            GATEWAY__LISTEN__ADMIN_PORT=str(admin),
            GATEWAY__LISTEN__WORKERS="2",
        )
        command = image.command(gateway, "serve", "-c", str(ROOT / "config" / "gateway.yaml"))
        with subprocess.Popen(command, env=environ, cwd=image.home, stderr=subprocess.PIPE) as process:
            try:
                _until_it_lives(process, admin)
                [check] = re.findall(r'CMD \["/venv/bin/python", "-c", "(.*)"\]', TEXT)
                check = check.replace("9601", str(admin))
                health = [str(image.venv / "bin" / "python"), "-c", check]
                proxied = image.environ(http_proxy="http://127.0.0.1:9")  # Docker can set that in every container
                done = subprocess.run(image.command(*health), env=proxied, capture_output=True, text=True)
                assert (done.returncode, done.stderr) == (0, "")
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(120)
    assert process.returncode == 0
    assert _listing(image.venv) == before
    gone = subprocess.run(image.command(*health), env=image.environ(), capture_output=True)
    assert gone.returncode == 1


def _until_it_lives(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(1000):
        try:
            with urlopen(f"http://127.0.0.1:{port}/health/live", timeout=60) as answer:
                assert answer.status == 200
                return
        except OSError:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.1)
    pytest.fail("the gateway did not come up")
