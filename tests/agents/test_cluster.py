"""The cluster's version and settings, as it shows them."""

from typing import Any

import pytest

from gateway.agents.lookup import read_setting, read_switch, read_unified_api, read_version

from .recorded import recorded


@pytest.mark.parametrize("version", ["3.4.0", "3.6.0", "3.8.0"])
def test_version_of_a_recorded_root(version: str) -> None:
    assert read_version(recorded(version)["root"]) == tuple(map(int, version.split(".")))


@pytest.mark.parametrize(
    ("root", "version"),
    [
        ({"version": {"number": "3.0.0-SNAPSHOT", "distribution": "opensearch"}}, (3, 0, 0)),
        ({"version": {"number": "2.19", "distribution": "opensearch"}}, (2, 19, 0)),
        ({"version": {"number": "7.10.2"}}, None),
        ({"version": {"number": 2, "distribution": "opensearch"}}, None),
        ({"version": "2.19.0"}, None),
        (None, None),
    ],
)
def test_a_version_is_believed_only_from_opensearch(root: Any, version: tuple[int, ...] | None) -> None:
    assert read_version(root) == version


FLAG = "plugins.ml_commons.unified_agent_api_enabled"


def nested(value: Any) -> dict[str, Any]:
    return {"plugins": {"ml_commons": {"unified_agent_api_enabled": value}}}


@pytest.mark.parametrize(
    ("settings", "on"),
    [
        ({"defaults": nested("false")}, False),
        ({"persistent": nested("true"), "defaults": nested("false")}, True),
        ({"transient": nested("false"), "persistent": nested("true")}, False),
        ({"persistent": {FLAG: "true"}}, True),
        ({"defaults": {FLAG: False}}, False),
        ({"defaults": {"plugins": "x"}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_unified_api_setting(settings: Any, on: bool | None) -> None:
    assert read_unified_api(settings) is on


def test_a_setting_that_is_not_on_or_off() -> None:
    settings = {"persistent": {"plugins.x": ["a"]}, "defaults": {"plugins": {"x": "b", "y": {"z": "c"}}}}
    assert read_setting(settings, "plugins.x") == ["a"]
    assert read_setting(settings, "plugins.y.z") == "c"
    assert read_setting(settings, "plugins.y.none") is None
    assert read_switch(settings, "plugins.y.z") is None
