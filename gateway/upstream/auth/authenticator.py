"""Credentials for the cluster: the client's own, or the gateway's instead; never both.

`authenticator` returns what the settings ask for; None if the client's `Authorization` is passed through. Before a
request is sent, `sign` changes its headers. It waits for credentials only if there are none yet.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from gateway.config.schema import Auth, SigV4
from gateway.errors import CredentialsUnavailable, SignatureConflict
from gateway.observe.logs import Logger
from gateway.upstream.auth.sigv4 import UNSIGNED_PAYLOAD, Keys, RawHeader, Scope, derive, payload_hash, signed

Buffers = Sequence[bytes | memoryview]
Find = Callable[[SigV4], tuple[Any, str]]
"""Returns boto3's credentials (None if there are none) and region ("" if unknown). It may block."""

_EARLY = 15 * 60
_LATE = 60
"""Seconds before credentials expire. From `_EARLY` on, new ones are fetched while the old ones still sign; from `_LATE`
on, requests wait for them."""

_PAUSE = 5.0
"""Seconds between two attempts. What a service returns may expire within `_EARLY`, too: an EC2 instance gets the same
until minutes before they expire, and those of a role may last only 15 minutes."""

_OFF_LOOP = 256 * 1024
"""Bytes of a body above which its hash is computed in a thread."""


class Authenticator(Protocol):
    """Adds credentials to requests to the cluster."""

    needs_body: bool
    """The body must be known: it is read in full, up to `limits.body`, before the request is sent."""

    async def ready(self) -> None:
        """Wait for credentials. Cheap once there are some.

        Raises:
            CredentialsUnavailable: there are none.
        """

    def headers(
        self, method: bytes | str, raw_target: bytes, headers: Sequence[RawHeader], body: Buffers | None
    ) -> list[RawHeader]:
        """Return the headers to send instead of `headers`. `ready` must have been awaited.

        raw_target: as in the request line. headers: all that will be sent, with `Host`. body: None if it is streamed,
        () if there is none.

        Raises:
            SignatureConflict: the target has a signature of the client's, which cannot be replaced.
        """

    async def sign(
        self, method: bytes | str, raw_target: bytes, headers: Sequence[RawHeader], body: Buffers | None
    ) -> list[RawHeader]:
        """Await `ready` and return `headers`. A large body is hashed in a thread."""

    async def close(self) -> None:
        """Release the threads."""


def authenticator(settings: Auth, log: Logger) -> Authenticator | None:
    """Return the authenticator for `settings`; None if the client's credentials are passed through."""
    match settings.mode:
        case "pass":
            return None
        case "basic":
            return BasicAuth(settings.basic.username, settings.basic.password.reveal())
        case "sigv4":
            return Signer(settings.sigv4, log)


def client_signature(raw_target: bytes, headers: Sequence[RawHeader]) -> str:
    """Return where a request has a SigV4 signature of its client: ``Authorization``, ``X-Amz-Signature`` or ""."""
    for name, value in headers:
        if name.lower() == b"authorization" and value.lstrip()[:5].upper() == b"AWS4-":
            return "Authorization"
    return "X-Amz-Signature" if _presigned(raw_target) else ""


def refuse_rewrite(raw_target: bytes, headers: Sequence[RawHeader]) -> None:
    """Refuse to change a request that its client has signed, if the signature would be sent on.

    Raises:
        SignatureConflict: the request is signed.
    """
    if place := client_signature(raw_target, headers):
        raise SignatureConflict(
            f"The request is signed with SigV4 ({place}). For its `input` the gateway has to read the agent and to "
            "rewrite the body, and the signature would not be valid for that.",
            help="Let the gateway sign (`upstream.auth.mode: sigv4`) and send the request to it unsigned, or run this "
            "agent without `input`.",
        )


class BasicAuth:
    """Sends the name and password of one account with every request."""

    needs_body = False

    def __init__(self, username: str, password: str) -> None:
        self._value = b"Basic " + base64.b64encode(f"{username}:{password}".encode())

    async def ready(self) -> None:
        """See `Authenticator`."""

    def headers(
        self, method: bytes | str, raw_target: bytes, headers: Sequence[RawHeader], body: Buffers | None
    ) -> list[RawHeader]:
        """See `Authenticator`."""
        _refuse_presigned(raw_target)
        return [*(pair for pair in headers if pair[0].lower() != b"authorization"), (b"Authorization", self._value)]

    async def sign(
        self, method: bytes | str, raw_target: bytes, headers: Sequence[RawHeader], body: Buffers | None
    ) -> list[RawHeader]:
        """See `Authenticator`."""
        return self.headers(method, raw_target, headers, body)

    async def close(self) -> None:
        """See `Authenticator`."""


class Signer:
    """Signs with SigV4. Credentials come from boto3's chain, and are fetched in a thread.

    find: asks boto3; tests pass a substitute. clock: seconds since the epoch.
    """

    def __init__(
        self, settings: SigV4, log: Logger, find: Find | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._log = log
        self._find = find or _from_boto3
        self._clock = clock
        self._region = settings.region
        self._source: Any = None
        self._keys: Keys | None = None
        self._derived: tuple[Scope, bytes] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._not_before = float("-inf")
        self._threads = ThreadPoolExecutor(1, "aws-credentials")
        # Serverless accepts a placeholder for the hash of a streamed body. The managed service does not document one.
        self.needs_body = settings.service == "es"

    async def ready(self) -> None:
        """See `Authenticator`. Credentials that expire soon are renewed in the background."""
        held = self._keys is not None
        if held and not self._expires_within(_EARLY):
            return
        paused = 0 < self._not_before - self._clock() <= _PAUSE  # more only if the clock was set back
        if paused and self._renewal is None:
            if held and not self._expires_within(0):
                return
            raise self._fault()
        renewal = self._renew()
        if held and not self._expires_within(_LATE):
            return
        await asyncio.shield(renewal)

    def headers(
        self, method: bytes | str, raw_target: bytes, headers: Sequence[RawHeader], body: Buffers | None
    ) -> list[RawHeader]:
        """See `Authenticator`."""
        if body is None and self.needs_body:
            raise ValueError("the managed service's signature needs the body")
        return self._sign(method, raw_target, headers, UNSIGNED_PAYLOAD if body is None else payload_hash(body))

    async def sign(
        self, method: bytes | str, raw_target: bytes, headers: Sequence[RawHeader], body: Buffers | None
    ) -> list[RawHeader]:
        """See `Authenticator`."""
        await self.ready()
        if body is None or sum(map(len, body)) <= _OFF_LOOP:
            return self.headers(method, raw_target, headers, body)
        return self._sign(method, raw_target, headers, await asyncio.to_thread(payload_hash, body))

    async def close(self) -> None:
        """Release the thread. A renewal that is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _sign(
        self, method: bytes | str, raw_target: bytes, headers: Sequence[RawHeader], payload: str
    ) -> list[RawHeader]:
        _refuse_presigned(raw_target)
        assert self._keys is not None, "ready() comes first"
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        if self._derived is None or self._derived[0].date != timestamp[:8]:
            scope = Scope(timestamp[:8], self._region, self._settings.service)
            self._derived = scope, derive(self._keys, scope)
        method = method.encode("ascii") if isinstance(method, str) else method
        return signed(method, raw_target, headers, payload, self._keys, *self._derived, timestamp)

    def _expires_within(self, seconds: int) -> bool:
        # Credentials that never expire, such as those of a file, have no such method.
        needed = getattr(self._source, "refresh_needed", None)
        return bool(needed(refresh_in=seconds)) if needed else False

    def _renew(self) -> asyncio.Task[None]:
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._fetch())
            self._renewal.add_done_callback(self._on_renewed)
        return self._renewal

    def _on_renewed(self, done: asyncio.Task[None]) -> None:
        self._renewal = None
        if not done.cancelled():
            done.exception()  # requests that wait get it; in the background the log is enough

    async def _fetch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            keys = await loop.run_in_executor(self._threads, self._read_keys)
        except Exception as exc:  # botocore, files and networks raise many kinds of errors
            valid = self._keys is not None and not self._expires_within(0)
            self._log.warning("credentials not renewed", reason=f"{type(exc).__name__}: {exc}", still_valid=valid)
            if not valid:
                raise self._fault() from exc
            return
        finally:
            self._not_before = self._clock() + _PAUSE
        if keys != self._keys:
            self._keys, self._derived = keys, None

    def _fault(self) -> CredentialsUnavailable:
        return CredentialsUnavailable("The gateway has no credentials to sign with; its log says why.")

    def _read_keys(self) -> Keys:
        """Return the current credentials. Runs in the thread, because it reads files and calls services."""
        if self._source is None:
            source, region = self._find(self._settings)
            self._region = self._settings.region or region
            if source is None:
                raise LookupError("boto3's credential chain finds none")
            if not self._region:
                raise LookupError("no region is set")
            self._source = source
        frozen = self._source.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")


def _from_boto3(settings: SigV4) -> tuple[Any, str]:
    import boto3  # type: ignore[import-untyped]  # imported here because it is slow to load

    session = boto3.Session(profile_name=settings.profile or None, region_name=settings.region or None)
    return session.get_credentials(), session.region_name or ""


def _presigned(raw_target: bytes) -> bool:
    query = raw_target.partition(b"?")[2]
    if b"ignature" not in unquote_to_bytes(query):
        return False
    return any(unquote_to_bytes(pair.partition(b"=")[0]) == b"X-Amz-Signature" for pair in query.split(b"&"))


def _refuse_presigned(raw_target: bytes) -> None:
    if _presigned(raw_target):
        raise SignatureConflict(
            "The request carries a SigV4 signature in its query (X-Amz-Signature), and the gateway's own credentials "
            "take the place of the client's here.",
            help="Send the request without X-Amz-* parameters.",
        )
