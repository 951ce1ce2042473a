"""Requests that schemathesis generates from `docs/reference/openapi.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.config import GenerationConfig, SchemathesisConfig

from tests.docs.pages import DOCS

_MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


def operations(ids: Iterable[str]) -> list[Any]:
    """Return the operations with these ids."""
    config = SchemathesisConfig.from_dict({})
    config.projects.default.generation = GenerationConfig(modes=_MODES)
    schema = schemathesis.openapi.from_path(DOCS / "reference" / "openapi.yaml", config=config)
    found = {one.definition.raw["operationId"]: one for one in (each.ok() for each in schema.get_all_operations())}
    return [found[id_] for id_ in ids]


def fuzz(operation: Any, examples: int, check: Callable[[Any, st.DataObject], None]) -> None:
    """Call `check` with `examples` cases of the operation, valid and invalid ones."""
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in _MODES))

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        check(data.draw(cases), data)

    run()
