"""What is reported of each agent that is read."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gateway.execute.deliveries import Reporter
from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from tests.conftest import settings_for
from tests.delivery.test_cluster_limits import CONVERSATIONAL


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        ([(2, 19, 0), (3, 9, 0), (3, 9, 4)], []),
        ([(3, 10, 0), (3, 10, 0)], ["3.10.0"]),
        ([(3, 10, 0), (4, 0, 0), (4, 0, 0)], ["3.10.0", "4.0.0"]),
    ],
)
def test_a_version_that_is_not_known_is_reported_once(versions: Sequence[tuple[int, ...]], told: list[str]) -> None:
    written, metrics = io.StringIO(), Metrics()
    reporter = Reporter(settings_for("http://127.0.0.1:1", {}), configure("info", "json", written), metrics)
    for version in versions:
        reporter.resolved(replace(CONVERSATIONAL, version=version))
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["codes"] for line in lines] == [["VERSION_NOT_KNOWN"]] * len(told)
    for line, version in zip(lines, told, strict=True):
        assert f"OpenSearch {version} and treats it as 3.9" in line["reason"]
    assert (f'code="VERSION_NOT_KNOWN"}} {len(told)}.0' in metrics.render().decode()) == bool(told)
