"""Upgrades and rollbacks finish while callers go on sending requests, and no caller notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.migrate import parking
from gateway.migrate.writer import Writer
from tests.conftest import mostly_slow
from tests.migrate.under_traffic import IMAGES_RATE, NEW, RATES, STATES, WAYS, Busy, DropsOnly, naive, run

TRIES = range(3)  # `make upgrades` runs more


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave it to the system when files reach the disk. Waiting costs nothing on the clock of `Busy`."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", mostly_slow(WAYS, 2))
def test_every_upgrade_and_rollback_takes_effect_and_fails_no_request(
    way: str, state: str, rate: float, tmp_path: Path
) -> None:
    for seed in TRIES:
        found = run(way, state, rate, seed, tmp_path)
        assert (found.upgraded, found.rolled_back, found.failed, found.problem) == (True, True, [], "")


@pytest.mark.parametrize("state", STATES)
def test_models_that_are_always_in_use_are_parked(state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parked = []
    put = parking.Parking.put
    monkeypatch.setattr(parking.Parking, "put", lambda self, *args: parked.append(args[1]) or put(self, *args))
    found = run("standalone", state, 1000, 0, tmp_path, load_seconds=0)
    assert (found.upgraded, found.rolled_back, found.failed, found.problem) == (True, True, [], "")
    assert len(parked) == 2


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", mostly_slow(WAYS, 2))
@pytest.mark.slow
def test_images_through_a_gateway_arrive_or_are_refused(way: str, state: str, tmp_path: Path) -> None:
    for seed in range(2):
        found = run(way, state, IMAGES_RATE, seed, tmp_path, images=True)
        gateway = found.gateway
        assert (found.upgraded, found.rolled_back, found.failed, found.problem) == (True, True, [], "")
        assert (gateway.lost, gateway.arrived > 50, gateway.refused > 50) == (0, True, True)


def test_images_are_not_lost_while_models_are_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.migrate.apply.TRIES", 0)
    found = run("standalone", "used", IMAGES_RATE, 0, tmp_path, images=True)
    assert (found.upgraded, found.rolled_back, found.failed, found.problem) == (True, True, [], "")
    assert (found.gateway.lost, found.gateway.arrived > 50) == (0, True)


def test_a_gateway_that_holds_no_documents_loses_images(tmp_path: Path) -> None:
    """What the upgrade asks of gateways is needed."""
    assert run("standalone", "used", IMAGES_RATE, 0, tmp_path, images=True, gateways=DropsOnly).gateway.lost


@pytest.mark.parametrize(("way", "rate"), [("internal", 5), ("standalone", 20)])
def test_a_single_change_does_not_always_take_effect(way: str, rate: float) -> None:
    """As recorded (33): what the upgrade does besides is needed."""
    assert not all(naive(way, "used", rate, seed) for seed in range(20))


def test_a_load_that_began_before_the_write_does_not_stay() -> None:
    busy = Busy("internal", "used", 0.001, 0, load_seconds=0.5)
    writer = Writer(busy, clock=busy)
    parking.unload(writer, [busy.model])
    busy.request()
    busy.resources.models[busy.model]["connector"]["actions"][0]["request_body"] = NEW
    parking.reload(writer, [busy.model])
    assert busy.uses_new_template()
