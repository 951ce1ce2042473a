from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials, RefreshableCredentials

from gateway.config.schema import Account, Auth, Secret, SigV4
from gateway.errors import CredentialsUnavailable, SignatureConflict
from gateway.observe.logs import configure
from gateway.upstream.auth.authenticator import BasicAuth, Find, Signer, authenticator, client_signature, refuse_rewrite
from gateway.upstream.auth.sigv4 import EMPTY_PAYLOAD

LOG = configure("error", "json")
HOST = [(b"Host", b"h")]
ES = SigV4(service="es", region="eu-west-1")
AOSS = SigV4(service="aoss", region="eu-west-1")


class Clock:
    """Time for the signer and for botocore's credentials, which stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_772_600_767.0

    def __call__(self) -> float:
        return self.now

    def local(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.now, datetime.UTC)


class Vault:
    """Credentials that expire, as a metadata service gives them; `held` stops it until it is set."""

    def __init__(self, clock: Clock, lifetime: int = 3600) -> None:
        self.clock = clock
        self.lifetime = lifetime
        self.given = 0
        self.broken = False
        self.held: threading.Event | None = None
        self.threads: set[str] = set()

    def __call__(self) -> dict[str, str]:
        self.threads.add(threading.current_thread().name)
        if self.held is not None:
            self.held.wait(60)
        if self.broken:
            raise OSError("vault sealed")
        self.given += 1
        expiry = self.clock.local() + datetime.timedelta(seconds=self.lifetime)
        key = f"KEY{self.given}"
        return {"access_key": key, "secret_key": "s", "token": f"T{self.given}", "expiry_time": expiry.isoformat()}

    def find(self, _: SigV4) -> tuple[Any, str]:
        found = RefreshableCredentials.create_from_metadata(self(), self, "vault")
        found._time_fetcher = self.clock.local
        return found, "eu-west-1"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make() -> Any:
    made: list[Signer] = []

    def signer(settings: SigV4, find: Find | None, clock: Callable[[], float]) -> Signer:
        made.append(Signer(settings, LOG, find, clock))
        return made[-1]

    yield signer
    for one in made:
        await one.close()


def key_of(headers: list[tuple[bytes, bytes]]) -> str:
    return dict(headers)[b"Authorization"].partition(b"Credential=")[2].partition(b"/")[0].decode()


async def signed_by(signer: Signer) -> str:
    return key_of(await signer.sign("GET", b"/", HOST, ()))


async def test_expiring_credentials_are_renewed_in_a_thread_before_they_expire(make: Any, clock: Clock) -> None:
    vault = Vault(clock)
    signer = make(ES, vault.find, clock)
    assert [await signed_by(signer) for _ in range(3)] == ["KEY1"] * 3
    clock.now += 3600 - 600  # soon: the old ones still sign while new ones are fetched
    vault.held = threading.Event()
    assert await signed_by(signer) == "KEY1"
    vault.held.set()
    while signer._renewal is not None:
        await signer._renewal
    assert await signed_by(signer) == "KEY2"
    assert vault.threads == {"aws-credentials_0"}


async def test_expired_credentials_are_waited_for_and_fetched_once_for_all(make: Any, clock: Clock) -> None:
    vault = Vault(clock)
    signer = make(ES, vault.find, clock)
    await signer.ready()
    clock.now += 7200
    assert await asyncio.gather(*(signed_by(signer) for _ in range(20))) == ["KEY2"] * 20
    assert vault.given == 2


async def test_a_failed_renewal_keeps_what_still_holds_and_pauses(make: Any, clock: Clock) -> None:
    vault = Vault(clock)
    signer = make(ES, vault.find, clock)
    await signer.ready()
    vault.broken = True
    clock.now += 3600 - 30
    assert [await signed_by(signer) for _ in range(5)] == ["KEY1"] * 5
    clock.now += 60  # now expired
    with pytest.raises(CredentialsUnavailable):
        await signer.ready()
    vault.broken = False
    with pytest.raises(CredentialsUnavailable):  # the failure was just now
        await signer.ready()
    clock.now += 6
    assert await signed_by(signer) == "KEY2"


@pytest.mark.parametrize(("left", "valid"), [(14 * 60, None), (9 * 60, True), (30, True), (-1, False)])
async def test_a_failed_renewal_is_logged(
    clock: Clock, capfd: pytest.CaptureFixture[str], left: int, valid: bool | None
) -> None:
    """boto3 reports none that is more than ten minutes early."""
    vault = Vault(clock)
    signer = Signer(ES, configure("warning", "json"), vault.find, clock)
    await signer.ready()
    vault.broken = True
    clock.now += 3600 - left
    with contextlib.suppress(CredentialsUnavailable):
        await signer.ready()
        while signer._renewal is not None:
            await signer._renewal
    logged = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(one["reason"], one["still_valid"]) for one in logged] == (
        [] if valid is None else [("OSError: vault sealed", valid)]
    )
    await signer.close()


async def test_credentials_that_always_expire_soon_are_not_fetched_for_every_request(make: Any, clock: Clock) -> None:
    vault = Vault(clock, 600)
    signer = make(ES, vault.find, clock)
    await signer.ready()
    given = vault.given
    for seconds, fetched in ((0, 0), (1, 0), (6, 1), (1, 1)):
        clock.now += seconds
        await signer.ready()
        while signer._renewal is not None:
            await signer._renewal
        assert vault.given == given + fetched


async def test_a_clock_that_is_set_back_does_not_stop_renewals(make: Any, clock: Clock) -> None:
    vault = Vault(clock)
    vault.broken = True
    signer = make(ES, lambda _: vault.find(ES), clock)
    with pytest.raises(CredentialsUnavailable):
        await signer.ready()
    vault.broken = False
    clock.now -= 3600
    assert await signed_by(signer) == "KEY1"


async def test_no_credentials_and_no_region_are_told(make: Any, clock: Clock) -> None:
    for find in (lambda _: (None, "r"), lambda _: (Credentials("a", "b"), "")):
        signer = make(SigV4(), find, clock)
        with pytest.raises(CredentialsUnavailable):
            await signer.sign("GET", b"/", HOST, ())


async def test_the_chain_is_botos(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    (tmp_path / "credentials").write_text("[p]\naws_access_key_id = FROMFILE\naws_secret_access_key = s\n")
    (tmp_path / "config").write_text("[profile p]\nregion = eu-central-2\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    signer = make(SigV4(profile="p"), None, clock)
    authorization = dict(await signer.sign("GET", b"/", HOST, ()))[b"Authorization"]
    assert authorization.startswith(b"AWS4-HMAC-SHA256 Credential=FROMFILE/20260304/eu-central-2/es/aws4_request, ")


async def test_a_new_day_derives_a_new_key(make: Any, clock: Clock) -> None:
    signer = make(ES, Vault(clock, 10**6).find, clock)
    first = await signer.sign("GET", b"/", HOST, ())
    clock.now += 86_400
    second = await signer.sign("GET", b"/", HOST, ())
    assert (b"20260304" in first[-1][1], b"20260305" in second[-1][1]) == (True, True)
    fresh = make(ES, lambda _: (Credentials("KEY1", "s", "T1"), ""), clock)
    assert second == await fresh.sign("GET", b"/", HOST, ())


async def test_the_payload_of_known_streamed_and_large_bodies(make: Any, clock: Clock) -> None:
    def payload(headers: list[tuple[bytes, bytes]]) -> str:
        return dict(headers)[b"X-Amz-Content-SHA256"].decode()

    serverless, managed = (make(one, Vault(clock).find, clock) for one in (AOSS, ES))
    assert (serverless.needs_body, managed.needs_body) == (False, True)
    assert payload(await serverless.sign("POST", b"/", HOST, None)) == "UNSIGNED-PAYLOAD"
    assert payload(await serverless.sign("POST", b"/", HOST, ())) == EMPTY_PAYLOAD
    with pytest.raises(ValueError):
        await managed.sign("POST", b"/", HOST, None)
    large = b"x" * 1_000_000
    whole = await managed.sign("POST", b"/", HOST, [large])
    assert whole == managed.headers(b"POST", b"/", HOST, [memoryview(large)[:7], memoryview(large)[7:]])


SIGNED = "/i?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=ab"


def basic() -> Auth:
    return Auth(mode="basic", basic=Account("us:er", Secret("pä")))


@pytest.mark.parametrize("target", [SIGNED, "/i?X%2DAmz-Signature=ab", "/i?a=b&X-Amz-Signature"])
async def test_a_signed_target_is_refused_where_the_gateway_puts_its_own(make: Any, clock: Clock, target: str) -> None:
    for auth in (make(AOSS, Vault(clock).find, clock), authenticator(basic(), LOG)):
        with pytest.raises(SignatureConflict):
            await auth.sign("GET", target.encode(), HOST, ())
        await auth.sign("GET", b"/i?X-Amz-Signatures=1&q=X-Amz-Signature", HOST, ())


async def test_basic_takes_the_place_of_every_authorization() -> None:
    auth = authenticator(basic(), LOG)
    assert isinstance(auth, BasicAuth)
    sent = [(b"Host", b"h"), (b"authorization", b"Bearer x"), (b"A", b"1"), (b"Authorization", b"Basic y")]
    value = b"Basic " + base64.b64encode("us:er:pä".encode())
    assert await auth.sign("GET", b"/", sent, None) == [(b"Host", b"h"), (b"A", b"1"), (b"Authorization", value)]


def test_pass_means_no_authenticator() -> None:
    assert authenticator(Auth(), LOG) is None


def requests() -> Iterator[Any]:
    yield pytest.param(b"/", [], "", id="none")
    yield pytest.param(b"/", [(b"Authorization", b"Basic AWS4-HMAC")], "", id="basic")
    yield pytest.param(b"/?q=X-Amz-Signature", [], "", id="only a value")
    yield pytest.param(b"/", [(b"AUTHORIZATION", b"AWS4-HMAC-SHA256 C=")], "Authorization", id="header")
    yield pytest.param(b"/", [(b"Authorization", b" aws4-ECDSA-P256-SHA256 C=")], "Authorization", id="sigv4a")
    yield pytest.param(SIGNED.encode(), [], "X-Amz-Signature", id="query")


@pytest.mark.parametrize(("target", "headers", "place"), list(requests()))
def test_a_client_signature_is_seen_and_a_rewrite_refused(
    target: bytes, headers: list[tuple[bytes, bytes]], place: str
) -> None:
    assert client_signature(target, headers) == place
    if place:
        with pytest.raises(SignatureConflict, match=place):
            refuse_rewrite(target, headers)
    else:
        refuse_rewrite(target, headers)
