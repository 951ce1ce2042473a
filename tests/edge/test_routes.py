from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.edge.routes import Intent, Route, route

ML = "/_plugins/_ml"
PASS = Route(Intent.PASSTHROUGH)
CASES = [
    ("POST", f"{ML}/agents/a/_execute", Route(Intent.EXECUTE, "agents", "a")),
    ("POST", f"{ML}/agents/a/_execute/", Route(Intent.EXECUTE, "agents", "a")),
    ("POST", f"{ML}/agents/%c3%a9/_execute", Route(Intent.EXECUTE, "agents", "é")),
    ("POST", f"{ML}/agents/a%2Fb/_execute", Route(Intent.EXECUTE, "agents", "a/b")),
    ("POST", f"{ML}/agents/a/_execute/stream", Route(Intent.EXECUTE_STREAM, "agents", "a")),
    ("POST", f"{ML}/agents/%ff/_execute", PASS),
    ("POST", f"{ML}/agents/\udcff/_execute", PASS),
    ("POST", f"{ML}/agents//_execute", PASS),
    ("POST", f"/{ML}/agents/a/_execute", PASS),
    ("POST", f"{ML}/agents/a//_execute", PASS),
    ("POST", f"{ML}/agents/a/%5fexecute", PASS),
    ("POST", f"{ML}/agents/a/_execute/stream/x", PASS),
    ("POST", f"{ML}/agents/a/b/_execute", PASS),
    ("GET", f"{ML}/agents/a/_execute", PASS),
    ("PUT", f"{ML}/agents/a/_execute", PASS),
    ("GET", f"{ML}/agents/a", PASS),
    ("POST", f"{ML}/agents/_search", PASS),
    ("POST", f"{ML}/models/m/_predict", PASS),
    ("POST", f"{ML}/models/_register", Route(Intent.WRITE, "models")),
    ("POST", f"{ML}/connectors/_create", Route(Intent.WRITE, "connectors")),
    ("PUT", f"{ML}/connectors/c", Route(Intent.WRITE, "connectors", "c")),
    ("DELETE", f"{ML}/agents/a", Route(Intent.DELETE_AGENT, "agents", "a")),
    ("PUT", f"{ML}/agents/a", Route(Intent.UPDATE_AGENT, "agents", "a")),
    ("POST", f"{ML}/agents/_register", Route(Intent.REGISTER, "agents")),
    ("POST", f"{ML}/agents/_execute", Route(Intent.QUICK_EXECUTE, "agents")),
    ("GET", f"{ML}/agents/_execute", PASS),
    ("PUT", "/_cluster/settings", Route(Intent.WRITE, "cluster")),
    ("GET", "/", PASS),
    ("OPTIONS", "*", PASS),
    ("POST", f"http://x{ML}/agents/a/_execute", PASS),
]


@pytest.mark.parametrize(("method", "path", "expected"), CASES)
def test_route(method: str, path: str, expected: Route) -> None:
    assert route(method, path) == expected


@given(st.text(), st.sampled_from([f"{ML}/agents/", "/", ""]), st.sampled_from(["/_execute", "", "/"]))
def test_any_path_has_a_route_and_an_id_is_text(text: str, before: str, after: str) -> None:
    found = route("POST", before + text + after)
    found.id.encode("utf-8")
    assert found.intent is Intent.PASSTHROUGH or before.startswith(ML) or text.startswith(ML)
