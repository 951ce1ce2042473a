"""TLS to the cluster and on the data port, with certificate files that may change while the gateway runs.

Each handshake uses the current `SSLContext` of a `TlsSource`: new connections get new certificates, open ones do not
change. If the files cannot be used (partly written, a key that does not match its certificate), the old ones stay in
use, and the log reports it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gateway.config.load import ConfigError, ConfigProblem
from gateway.config.schema import ListenTls, Tls
from gateway.observe.logs import Logger

POLL = 10.0
"""Seconds between two checks of the files."""

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_Stamp = tuple[tuple[int, int, int], ...]


class _ListenerContext(ssl.SSLContext):
    """The one context of a listener: each handshake uses the current context of `source`.

    The event loops call nothing but `wrap_bio`. An `sni_callback` could not change all settings, and would resume the
    sessions of clients whose authority was removed (docs/internals/decisions.md).
    """

    source: TlsSource

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.source.context.wrap_bio(*args, **kwargs)


class TlsSource:
    """The TLS settings of one side. make: reads the files; raises ConfigError if they cannot be used.

    name: its name in the log. files: those to watch. context: for the next handshake. server_name: for SNI and
    verification in place of the node's host; empty for the host.
    """

    def __init__(
        self, name: str, make: Callable[[], ssl.SSLContext], files: Iterable[str], log: Logger, server_name: str = ""
    ) -> None:
        self._name = name
        self._make = make
        self._files = [Path(file) for file in files if file]
        self._log = log
        self._stamp = self._read_stamp()
        self.context = make()
        self.server_name = server_name

    def connect_options(self, host: str) -> dict[str, Any]:
        """Return the TLS arguments of `loop.create_connection` for one connection to `host`."""
        return {"ssl": self.context, "server_hostname": self.server_name or host}

    def listener_context(self) -> ssl.SSLContext:
        """Return a context that a listener can keep: each handshake uses the source's current context."""
        context = _ListenerContext(ssl.PROTOCOL_TLS_SERVER)
        context.source = self
        return context

    def replace_with(self, other: TlsSource) -> None:
        """Use the files and settings of `other` from now on. Open connections do not change."""
        self._make, self._files, self._stamp = other._make, other._files, other._stamp
        self.context, self.server_name = other.context, other.server_name

    def refresh(self) -> bool:
        """Read the files again if one has changed. Return True if new ones are in use. Blocks."""
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            context = self._make()
        except ConfigError as exc:
            self._log.error("certificates kept", tls=self._name, problems=[str(problem) for problem in exc.problems])
            return False
        self.context = context
        self._log.info("certificates renewed", tls=self._name)
        return True

    def _read_stamp(self) -> _Stamp:
        return tuple(_stat(file) for file in self._files)


def to_cluster(settings: Tls, log: Logger) -> TlsSource:
    """Return the TLS source for connections to the cluster.

    Raises:
        ConfigError: a file cannot be used.
    """
    files = (settings.ca_file, settings.cert_file, settings.key_file)
    return TlsSource("upstream", lambda: _client_context(settings), files, log, settings.server_name)


def on_data_port(settings: ListenTls, log: Logger) -> TlsSource | None:
    """Return the TLS source for the data port; None for plain HTTP.

    Raises:
        ConfigError: a file cannot be used.
    """
    if not settings.cert_file:
        return None
    files = (settings.cert_file, settings.key_file, settings.client_ca_file)
    return TlsSource("listen", lambda: _server_context(settings), files, log)


async def watch(sources: Callable[[], Sequence[TlsSource]], interval: float = POLL) -> None:
    """Check the files of `sources` every `interval` seconds, until cancelled."""
    while True:
        await asyncio.sleep(interval)
        for source in sources():
            await asyncio.to_thread(source.refresh)


def _client_context(settings: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.set_alpn_protocols(["http/1.1"])
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca_file:
        _authorities(context, "upstream.tls.ca_file", settings.ca_file)
    else:
        context.load_default_certs()
    if settings.cert_file:
        _identity(context, "upstream.tls", settings.cert_file, settings.key_file)
    return context


def _server_context(settings: ListenTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.set_alpn_protocols(["http/1.1"])
    _identity(context, "listen.tls", settings.cert_file, settings.key_file)
    if settings.client_ca_file:
        _authorities(context, "listen.tls.client_ca_file", settings.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED if settings.client_auth == "required" else ssl.CERT_OPTIONAL
    return context


def _identity(context: ssl.SSLContext, path: str, cert_file: str, key_file: str) -> None:
    # Without a password callback, OpenSSL would ask for the password of an encrypted key at the terminal.
    try:
        context.load_cert_chain(cert_file, key_file or None, password=_no_password)
    except (OSError, ValueError) as exc:
        files = f"{cert_file} and {key_file}" if key_file else cert_file
        raise ConfigError([ConfigProblem(f"{path}.cert_file", f"{files} can't be used: {_reason(exc)}")]) from exc


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _authorities(context: ssl.SSLContext, path: str, file: str) -> None:
    try:
        context.load_verify_locations(cafile=file)
    except OSError as exc:
        raise ConfigError([ConfigProblem(path, f"{file} can't be used: {_reason(exc)}")]) from exc


def _reason(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError):
        return (exc.reason or "not PEM").lower().replace("_", " ")
    return getattr(exc, "strerror", None) or str(exc)


def _stat(file: Path) -> tuple[int, int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino
