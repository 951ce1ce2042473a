"""`openapi.yaml` lists the errors that the gateway gives on each route, and its examples are real answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.admin.application import MEMORY
from gateway.admin.pages import MemoryPages
from gateway.errors import GatewayError
from gateway.proxy.routes import MANAGED, RUNS, Intent, route
from tests.conftest import StartGateway
from tests.docs.error_answers import ASKS, Place
from tests.docs.pages import DOCS
from tests.docs.test_pages import BRANCHES
from tests.openapi import validate, validate_error
from tests.policy.conftest import Start
from tests.policy.conftest import start as start_with_policy
from tests.policy.test_guardrails import Webhook, webhook
from tests.sessions.conftest import StartCluster, start_cluster

__all__ = ["start_cluster", "start_with_policy", "webhook"]

DOCUMENT = yaml.safe_load((DOCS / "reference" / "openapi.yaml").read_text())
RUN = ("executeAgent", "executeAgentStream")
MAKE = ("registerAgent", "quickExecute")
ALL = (*RUN, *MAKE, "updateAgent", "deleteAgent")
SESSION = (
    "showMemory", "deleteMemory", "listMessages", "showMessage", "listTraces", "showContainerSession",
    "deleteContainerSession", "showWorkingMemory",
)  # fmt: skip
SEARCH = ("searchWorkingMemory", "searchWorkingMemoryByPost")
DATA = (*ALL, *SESSION, *SEARCH)
"""Operations of the data port."""
OPERATOR = (
    "listSessions", "showSession", "deleteSession", "listSessionMessages", "exportSession", "pinSession",
    "unpinSession",
)  # fmt: skip
"""Operations of the admin port."""
ADMIN = {"NotFound", "MethodNotAllowed", "Forbidden", "NotRecorded", "RecordsUnavailable", "Unauthorized"}
"""Types of errors of the admin port only."""

# Type, status, operations that can answer with it. RegistrationFailed has the status of the cluster's refusal.
ERRORS: list[tuple[str, str, tuple[str, ...]]] = [
    ("ValidationException", "400", DATA),  # HTTP itself may be invalid
    ("UndeliverableContent", "400", (*RUN, "quickExecute")),
    ("UnresolvedAgent", "400", (*RUN, *MAKE)),
    ("SignatureConflict", "400", DATA),
    ("CallerRefused", "401", RUN),
    ("CallerRefused", "403", RUN),
    ("GuardrailRefused", "403", (*RUN, "quickExecute")),
    ("UnresolvedAgent", "404", (*RUN, "quickExecute")),  # an agent for one run may be deleted before it runs
    ("SessionNotFound", "404", RUN),
    ("RequestTimeout", "408", DATA),
    ("SessionBusy", "409", RUN),
    ("BodyTooLarge", "413", (*ALL, *SESSION)),
    ("TargetTooLong", "414", DATA),
    ("UnsupportedEncoding", "415", (*RUN, *SESSION)),  # the cluster may know the coding of a body that manages an agent
    ("IdempotencyKeyReused", "422", ("registerAgent",)),
    ("TooManyRequests", "429", DATA),
    ("BudgetSpent", "429", (*RUN, "quickExecute")),
    ("HeadTooLarge", "431", DATA),
    ("InternalError", "500", DATA),
    ("NotImplemented", "501", DATA),
    ("UpstreamUnavailable", "502", DATA),
    ("UnresolvedAgent", "502", (*RUN, *MAKE)),
    ("Overloaded", "503", DATA),
    ("CredentialsUnavailable", "503", DATA),
    ("MemoryUnavailable", "503", (*RUN, *SESSION, *SEARCH)),
    ("BudgetUnavailable", "503", (*RUN, "quickExecute")),
    ("GuardrailUnavailable", "503", (*RUN, "quickExecute")),
    ("UpstreamTimeout", "504", DATA),
    ("VersionNotSupported", "505", DATA),
    ("RegistrationFailed", "default", MAKE),
]
WAITS = {"TooManyRequests", "Overloaded", "BudgetSpent", "BudgetUnavailable", "MemoryUnavailable", "SessionBusy"}
"""Types of errors with the header Retry-After."""


def _resolve(part: Any) -> Any:
    """Return what a reference leads to."""
    while "$ref" in part:
        found = DOCUMENT
        for step in part["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        part = found
    return part


@cache
def operations() -> dict[str, Any]:
    """Return all operations by their ids."""
    found = (one for path in DOCUMENT["paths"].values() for verb, one in path.items() if verb != "parameters")
    return {one["operationId"]: one for one in found}


def _examples(response: Any) -> dict[str, Any]:
    """Return the examples of a response by their names."""
    examples = _resolve(response)["content"]["application/json"].get("examples", {})
    return {name: _resolve(example)["value"] for name, example in examples.items()}


def _types(error: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield error
    for branch in error.__subclasses__():
        yield from _types(branch)


# The document


def test_the_document_is_valid() -> None:
    validate()


@pytest.mark.parametrize(
    "body", [{"status": 400}, {"error": {"type": "A", "reason": ""}}, {"error": "", "status": 400}]
)
def test_what_is_no_error_is_found(body: Any) -> None:
    with pytest.raises(ValueError, match=r"required|type"):
        validate_error(body)


def test_every_error_of_the_gateway_has_a_row() -> None:
    for module in (*BRANCHES, "gateway.inspector.access", "gateway.inspector.queries"):
        import_module(module)
    kinds = {one for one in _types(GatewayError) if one is not GatewayError and one.__module__.startswith("gateway.")}
    rows = {(type, status) for type, status, _ in ERRORS}
    own = {(one.type, str(one.status)) for one in kinds if one.type not in ADMIN}
    assert own - {("RegistrationFailed", "502")} == rows - {("RegistrationFailed", "default")}
    assert {one.type for one in kinds} >= ADMIN


@pytest.mark.parametrize("id_", DATA)
def test_an_operation_lists_the_errors_that_it_can_give(id_: str) -> None:
    listed = {
        (value["error"]["type"], status)
        for status, response in operations()[id_]["responses"].items()
        if status != "200"
        for value in _examples(response).values()
    }
    assert listed == {(type, status) for type, status, ids in ERRORS if id_ in ids}


def test_every_operation_is_of_a_route_that_the_gateway_handles() -> None:
    assert sorted(operations()) == sorted((*DATA, *OPERATOR))
    found: dict[Intent, set[str]] = {}
    admin = set()
    for path, item in DOCUMENT["paths"].items():
        for verb in item.keys() - {"parameters"}:
            if path.startswith(MEMORY):
                admin.add((verb.upper(), path.replace("{session_id}", "{id}")))
                continue
            target = re.sub(r"\{(session|message)_id\}", "gws-a", re.sub(r"\{(agent|container)_id\}", "a", path))
            found.setdefault(route(verb.upper(), target).intent, set()).add(item[verb]["operationId"])
    assert {*found} == {*RUNS, *MANAGED, Intent.SESSION, Intent.READ_MEMORY}
    assert (found[Intent.SESSION], found[Intent.READ_MEMORY]) == ({*SESSION}, {*SEARCH})
    assert admin == {(one.method, one.path) for one in MemoryPages(None).routes()}


@pytest.mark.parametrize("name", DOCUMENT["components"]["responses"])
def test_a_response_has_the_status_of_its_examples_and_their_headers(name: str) -> None:
    response = DOCUMENT["components"]["responses"][name]
    examples = _examples(response).values()
    statuses = {
        status
        for operation in operations().values()
        for status, one in operation["responses"].items()
        if one.get("$ref") == f"#/components/responses/{name}"
    }
    assert statuses == {"default"} or statuses == {str(example["status"]) for example in examples}
    assert "X-Request-Id" in response["headers"]
    waits = any(example["error"]["type"] in WAITS for example in examples)
    assert ("Retry-After" in response["headers"]) == waits


# The examples

_VOLATILE = re.compile(
    r"127\.0\.0\.1:\d+|\d{4}-\d\d-\d\dT[\d:]+Z|(?<=request id )\w+|(?<=[Aa]gent )[\w-]{20}|gws-[\w-]+"
    r"|(?<=in )\d+(?= seconds)"
)
"""What differs from run to run: ports, times, the ids of requests, agents and sessions."""


def _steady(document: Any) -> Any:
    return json.loads(_VOLATILE.sub("…", json.dumps(document)))


@pytest.fixture
def place(
    start_gateway: StartGateway,
    start_with_policy: Start,
    start_cluster: StartCluster,
    webhook: Webhook,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Place:
    return Place(start_gateway, start_with_policy, start_cluster, webhook, monkeypatch, tmp_path)


def test_every_example_is_provoked() -> None:
    assert sorted(ASKS) == sorted(DOCUMENT["components"]["examples"])


@pytest.mark.parametrize("name", ASKS)
async def test_an_example_is_a_real_answer(place: Place, name: str) -> None:
    status, headers, document = await ASKS[name](place)
    assert _steady(document) == _steady(DOCUMENT["components"]["examples"][name]["value"])
    assert status == document["status"]
    assert headers["X-Request-Id"]
    assert ("Retry-After" in headers) == (document["error"]["type"] in WAITS)
    validate_error(document)
