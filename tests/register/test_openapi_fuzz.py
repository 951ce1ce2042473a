"""Schemathesis from `docs/reference/openapi.yaml`: no registration, update or deletion causes a 5xx of the gateway."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from tests.conftest import share
from tests.execute.test_openapi_fuzz import OWN, LiveDeployment, deployment
from tests.faulty_cluster import orphans
from tests.openapi import fuzz, operation

__all__ = ["deployment"]

WANTED = {"registerAgent": 200, "updateAgent": 0, "deleteAgent": 404}


def _fuzz(deployment: LiveDeployment, id_: str, examples: int) -> None:
    fuzzed = operation(id_)
    statuses: set[int] = set()

    def check(case: Any, _: st.DataObject) -> None:
        if "{agent_id}" in fuzzed.path:
            case.path_parameters = {"agent_id": "nobody"}
        response = case.call(base_url=deployment.url)
        statuses.add(response.status_code)
        if response.status_code >= 500:
            error = response.json()["error"]
            assert not isinstance(error, dict) or error["type"] not in (*OWN, "RegistrationFailed"), response.text

    fuzz(fuzzed, examples, check)
    assert WANTED[id_] in {*statuses, 0}
    assert orphans(deployment.simulator.core) == []


OPERATIONS = pytest.mark.parametrize("id_", WANTED)


@OPERATIONS
@pytest.mark.slow
def test_never_a_5xx_of_the_gateways_own(deployment: LiveDeployment, id_: str) -> None:
    _fuzz(deployment, id_, 10)


@pytest.mark.slow
@OPERATIONS
def test_never_a_5xx_of_the_gateways_own_at_length(deployment: LiveDeployment, id_: str) -> None:
    _fuzz(deployment, id_, share(200))
