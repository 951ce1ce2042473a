"""Schemathesis from `docs/reference/openapi.yaml`: no registration, update or deletion causes a 5xx of the gateway."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.config import GenerationConfig, SchemathesisConfig

from tests.conftest import share
from tests.docs.pages import DOCS
from tests.execute.test_openapi_fuzz import OWN, LiveDeployment, deployment
from tests.faulty_cluster import orphans

__all__ = ["deployment"]

WANTED = {"registerAgent": 200, "updateAgent": 0, "deleteAgent": 404}


def operations() -> list[Any]:
    modes = GenerationConfig(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    config = SchemathesisConfig.from_dict({})
    config.projects.default.generation = modes
    schema = schemathesis.openapi.from_path(DOCS / "reference" / "openapi.yaml", config=config)
    found = [one.ok() for one in schema.get_all_operations()]
    return [one for one in found if one.definition.raw["operationId"] in WANTED]


def _fuzz(deployment: LiveDeployment, operation: Any, examples: int) -> None:
    statuses: set[int] = set()
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: Any) -> None:
        case = data.draw(cases)
        if "{agent_id}" in operation.path:
            case.path_parameters = {"agent_id": "nobody"}
        response = case.call(base_url=deployment.url)
        statuses.add(response.status_code)
        if response.status_code >= 500:
            error = response.json()["error"]
            assert not isinstance(error, dict) or error["type"] not in (*OWN, "RegistrationFailed"), response.text

    check()
    assert WANTED[operation.definition.raw["operationId"]] in {*statuses, 0}
    assert orphans(deployment.simulator.core) == []


@pytest.mark.parametrize("operation", operations(), ids=lambda one: one.label)
def test_never_a_5xx_of_the_gateways_own(deployment: LiveDeployment, operation: Any) -> None:
    _fuzz(deployment, operation, 10)


@pytest.mark.slow
@pytest.mark.parametrize("operation", operations(), ids=lambda one: one.label)
def test_never_a_5xx_of_the_gateways_own_at_length(deployment: LiveDeployment, operation: Any) -> None:
    _fuzz(deployment, operation, share(200))
