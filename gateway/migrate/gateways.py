"""Has running gateways plan with the documents from before an upgrade while the upgrade or a rollback changes them.

What is planned for the old template arrives with the new one, too; the other way round, images are lost behind a 200.
So gateways first plan with the old documents. A rollback then waits until the runs end that were planned with the new
ones. Then the connector changes, its models are loaded again, and the gateways go on with the documents as they are.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import requests
from typing_extensions import override

from gateway.config.schema import Settings
from gateway.migrate.connection import without_credentials
from gateway.migrate.writer import Report, StepFailed

ADMIN_TOKEN = "MLC_ADMIN_TOKEN"
_HOLD, _DROP = "/profiles/hold", "/profiles/drop"
_LEASE = 30.0
"""Seconds after which gateways go on without a command that has ended."""
_RENEWAL = 2.0
"""Seconds between two renewals. A gateway that was restarted meanwhile holds nothing until the next one."""
_RUNS_PATIENCE = 120.0
"""Seconds to wait for runs to end."""
_PAUSE = 0.5
_SECONDS = 5
_WITHOUT_HOLDS = (404, 405)
"""Statuses of a gateway that can't hold documents."""


class StillRunning(StepFailed):
    """Runs that were planned for the template that is to go do not end."""


class GatewayFailed(Exception):
    """A gateway can't be reached, or refuses a page. The message names it."""


class Gateways:
    """The gateways that run meanwhile. This class stands for none."""

    def hold(self, name: str, parts: Mapping[str, Any], wait: bool) -> None:
        """Have gateways plan with these parts of documents (`gateway.agents.holds`) until `release`.

        wait: return when the runs have ended that were planned with other parts.

        Raises:
            StillRunning: they do not end; nothing is held.
        """

    def drop(self) -> None:
        """Let the gateways that can't hold documents read them again."""

    def release(self, name: str) -> None:
        """Let gateways plan with the documents as they are. It may be called at any time."""


class Reply(NamedTuple):
    """A gateway's answer. status: 0 if there is none. document: {} if it is no JSON. problem: "" if it is a success."""

    status: int
    document: Mapping[str, Any]
    problem: str


class AdminPort:
    """The admin port of one gateway. interrupted: it held nothing for a while, though it should."""

    def __init__(self, url: str, headers: Mapping[str, bytes]) -> None:
        self.name = without_credentials(url)
        self.interrupted = False
        self._url = url.rstrip("/")
        self._headers = headers

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float = _SECONDS) -> Reply:
        """Send a request. Any thread may call it. seconds: for which it may answer nothing."""
        try:
            answer = self._request(method, path, body, seconds)
        except requests.RequestException as error:
            return Reply(0, {}, f"can't be reached ({type(error).__name__})")
        try:
            document = answer.json()
        except ValueError:
            document = None
        if answer.status_code != 200:
            return Reply(
                answer.status_code, document if isinstance(document, dict) else {}, f"answers {answer.status_code}"
            )
        return Reply(200, document, "") if isinstance(document, dict) else Reply(0, {}, "is not a gateway")

    def read(self, path: str) -> str:
        """Return the text of a page.

        Raises:
            GatewayFailed: the gateway can't be reached, or refuses the page.
        """
        try:
            answer = self._request("GET", path, None, _SECONDS)
        except requests.RequestException as error:
            hint = "start it, or name those that run with --gateway"
            raise GatewayFailed(f"gateway {self.name} can't be reached ({type(error).__name__}): {hint}") from None
        if answer.status_code != 200:
            raise GatewayFailed(f"gateway {self.name} answers {answer.status_code}{hint_at_token(answer.status_code)}")
        return answer.content.decode("utf-8", "replace")

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> requests.Response:
        with requests.Session() as session:
            session.trust_env = False  # ~/.netrc would replace the token
            return session.request(
                method, self._url + path, json=body, headers=self._headers, timeout=seconds, allow_redirects=False
            )


def hint_at_token(status: int) -> str:
    """Return what to do about an answer with this status, with a colon before it; "" for most."""
    return f": set {ADMIN_TOKEN} to the value of its listen.admin_token" if status == 401 else ""


def admin_ports(urls: Iterable[str], token: str) -> list[AdminPort]:
    """Return the admin ports at `urls`. token: of `listen.admin_token`; `MLC_ADMIN_TOKEN` replaces it."""
    token = os.environ.get(ADMIN_TOKEN) or token
    headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
    return [AdminPort(url, headers) for url in urls]


class NamedGateways(Gateways):
    """The gateways with the admin ports `urls`. report: gets lines on each of them."""

    def __init__(self, urls: Iterable[str], settings: Settings, report: Report) -> None:
        self._ports = admin_ports(urls, settings.listen.admin_token.reveal())
        self._ttl = f"{settings.agents.cache_ttl:g}"
        self._report = report
        self._holding: list[AdminPort] = []
        self._renewal: tuple[threading.Thread, threading.Event] | None = None

    @override
    def hold(self, name: str, parts: Mapping[str, Any], wait: bool) -> None:
        self._stop_renewal()
        ids = {place: part for place, part in parts.items() if isinstance(part, str)}
        connectors = {place: part for place, part in parts.items() if place not in ids}
        body = {"name": name, "seconds": _LEASE, "connectors": connectors, "connector_ids": ids}
        replies = _send_all(self._ports, "POST", _HOLD, body)
        self._holding = [port for port, reply in replies.items() if reply.status == 200]
        if not self._ports:
            self._report(f"no gateway is named: one that runs may lose images with a 200 for up to {self._ttl} seconds")
        for port, reply in replies.items():
            if reply.status == 200:
                self._say(port, "uses the templates from before the upgrade until the change is in use")
            elif reply.status in _WITHOUT_HOLDS:
                self._say(port, "is too old to wait for the change: it may lose images with a 200 meanwhile")
        if wait:
            self._wait(name, body)
        if self._holding:
            self._start_renewal(body)

    @override
    def drop(self) -> None:
        others = [port for port in self._ports if port not in self._holding]
        for port, reply in _send_all(others, "POST", _DROP).items():
            self._say_whether_up_to_date(port, reply, self._ttl)

    @override
    def release(self, name: str) -> None:
        self._stop_renewal()
        holding, self._holding = self._holding, []
        for port, reply in _send_all(holding, "DELETE", f"{_HOLD}?name={name}").items():
            if port.interrupted:
                self._say(port, "was restarted or did not answer meanwhile: it may have lost images with a 200")
                port.interrupted = False
            self._say_whether_up_to_date(port, reply, f"{_LEASE:g}")

    def _wait(self, name: str, body: Mapping[str, Any]) -> None:
        """Wait until no gateway has runs that were planned before the hold, and renew it meanwhile."""
        end = time.monotonic() + _RUNS_PATIENCE
        is_reported = False
        while True:
            replies = _send_all(self._holding, "POST", _HOLD, body)
            counts = ((reply.document.get("runs", 0), port.name) for port, reply in replies.items())
            where = ", ".join(f"{count} on {gateway}" for count, gateway in counts if count)
            if not where:
                return
            if time.monotonic() >= end:
                self.release(name)
                raise StillRunning(
                    f"after {_RUNS_PATIENCE:g} seconds, agents still run that would lose images by the rollback "
                    f"({where}). The connector is left as it is: run this again when they have ended"
                )
            if not is_reported:
                self._report(f"waiting until agents have run that began before: {where}")
                is_reported = True
            time.sleep(_PAUSE)

    def _start_renewal(self, body: Mapping[str, Any]) -> None:
        stopped = threading.Event()

        def renew() -> None:
            while not stopped.wait(_RENEWAL):
                for port, reply in _send_all(self._holding, "POST", _HOLD, body).items():
                    port.interrupted |= not reply.document.get("known")

        thread = threading.Thread(target=renew, daemon=True)
        self._renewal = thread, stopped
        thread.start()

    def _stop_renewal(self) -> None:
        if self._renewal is not None:
            thread, stopped = self._renewal
            self._renewal = None
            stopped.set()
            thread.join()

    def _say_whether_up_to_date(self, port: AdminPort, reply: Reply, seconds: str) -> None:
        line = "uses the templates as they are from now on"
        if reply.problem:
            line = f"{reply.problem}. If it runs, it may use others for up to {seconds} seconds, and lose images"
        self._say(port, line)

    def _say(self, port: AdminPort, line: str) -> None:
        self._report(f"gateway {port.name}: {line}")


def _send_all(
    ports: Sequence[AdminPort], method: str, path: str, body: Mapping[str, Any] | None = None
) -> dict[AdminPort, Reply]:
    """Send a request to all gateways at once."""
    if not ports:
        return {}
    with ThreadPoolExecutor(len(ports)) as pool:
        return dict(zip(ports, pool.map(lambda port: port.send(method, path, body), ports), strict=True))
