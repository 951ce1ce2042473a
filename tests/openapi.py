"""Requests that schemathesis generates from `docs/reference/openapi.yaml`, and its checks of that document.

The functions import it, as that takes half a second, which every process that collects the tests would spend.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.docs.pages import DOCS


@cache
def _schema() -> Any:
    """Return the document as schemathesis reads it."""
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.config import GenerationConfig, SchemathesisConfig

    config = SchemathesisConfig.from_dict({})
    config.projects.default.generation = GenerationConfig(modes=list(GenerationMode))
    return schemathesis.openapi.from_path(DOCS / "reference" / "openapi.yaml", config=config)


@cache
def _operations() -> dict[str, Any]:
    """Return all operations by their ids."""
    operations = (each.ok() for each in _schema().get_all_operations())
    return {one.definition.raw["operationId"]: one for one in operations}


def validate() -> None:
    """Raise an error if the document breaks the specification of OpenAPI."""
    _schema().validate()


def validate_error(body: Any) -> None:
    """Raise an error if a JSON body does not match the document's schema of errors."""
    _validate({"$ref": "#/components/schemas/Error"}, body)


def validate_answer(id_: str, body: Any) -> None:
    """Raise an error if the JSON body of an answer with status 200 does not match its schema. id_: the operation's."""
    answer = operation(id_).definition.raw["responses"]["200"]
    _validate(answer["content"]["application/json"]["schema"], body)


def _validate(schema: Any, body: Any) -> None:
    import jsonschema_rs  # schemathesis' own

    components = _schema().raw_schema["components"]
    jsonschema_rs.Draft202012Validator({**schema, "components": components}).validate(body)


def operation(id_: str) -> Any:
    """Return the operation with this id."""
    return _operations()[id_]


def fuzz(operation: Any, examples: int, check: Callable[[Any, st.DataObject], None]) -> None:
    """Call `check` with `examples` cases of the operation, valid and invalid ones."""
    from schemathesis import GenerationMode

    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

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
