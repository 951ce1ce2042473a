"""The section `media` of the settings."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.load import ConfigError, load
from gateway.config.schema import Settings


def read(**media: Any) -> Settings:
    return load(None, {}, {"media": media})


def test_nothing_is_fetched_by_default() -> None:
    assert (read().media.fetch, read().media.http, read().media.hosts) == (False, False, [])


def test_fetching_needs_hosts() -> None:
    with pytest.raises(ConfigError, match=r"media\.hosts: is needed when media\.fetch is on"):
        read(fetch=True)
    assert read(fetch=True, hosts=["cdn.example.com", "*.example.com:8443"]).media.fetch


@pytest.mark.parametrize(
    "host", ["https://a.example", "A.example", "a.example/x", "u@a.example", "[::1]", "a.example:", ""]
)
def test_a_host_is_a_name_and_a_port(host: str) -> None:
    with pytest.raises(ConfigError, match=r"media\.hosts\[0\]"):
        read(hosts=[host])


@pytest.mark.parametrize(
    "name", ["max_count", "max_bytes", "max_total_bytes", "seconds", "total_seconds", "concurrency"]
)
def test_no_bound_can_be_switched_off(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read(**{name: 0})
