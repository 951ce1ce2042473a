from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.routes import Intent, Route, intent_of, route

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
    ("POST", f"{ML}/agents/\xff/_execute", Route(Intent.EXECUTE, "agents", "\xff")),
    ("POST", f"{ML}/agents/%zz/_execute", PASS),
    ("POST", f"{ML}/agents/a%2/_execute", PASS),
    ("POST", f"{ML}/agents/a%/_execute", PASS),
    ("POST", f"{ML}/agents/100%%25/_execute", Route(Intent.EXECUTE, "agents", "100%25")),
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
    ("GET", f"{ML}/memory/gws-1", Route(Intent.SESSION, "memory", "gws-1")),
    ("GET", f"{ML}/memory/gws%2D1", Route(Intent.SESSION, "memory", "gws-1")),
    ("GET", f"{ML}/memory/gws_1", Route(Intent.READ_MEMORY)),
    ("DELETE", f"{ML}/memory/gws-1", Route(Intent.SESSION, "memory", "gws-1")),
    ("DELETE", f"{ML}/memory/m", PASS),
    ("GET", f"{ML}/memory/gws-1/messages", Route(Intent.SESSION, "messages", "gws-1")),
    ("GET", f"{ML}/memory/message/gws-1-1/traces", Route(Intent.SESSION, "traces", "gws-1-1")),
    ("GET", f"{ML}/memory_containers/c/memories/sessions/gws-1", Route(Intent.SESSION, "session", "gws-1")),
    ("GET", f"{ML}/memory_containers/c/memories/working/gws-1-1", Route(Intent.SESSION, "working", "gws-1-1")),
    ("GET", f"{ML}/memory_containers/c/memories/working/m", Route(Intent.READ_MEMORY)),
    ("DELETE", f"{ML}/memory_containers/c/memories/working/gws-1-1", PASS),
    ("PUT", "/_cluster/settings", Route(Intent.WRITE, "cluster")),
    ("GET", "/", PASS),
    ("OPTIONS", "*", PASS),
    ("POST", f"http://x{ML}/agents/a/_execute", PASS),
]


@pytest.mark.parametrize(("method", "path", "expected"), CASES)
def test_route(method: str, path: str, expected: Route) -> None:
    assert route(method, path) == expected


RAW = {
    "é in Latin-1": (b"\xe9", "\xe9"),
    "é in UTF-8, which is read as Latin-1": (b"\xc3\xa9", "\xc3\xa9"),
    "é in UTF-8 beside an escape": (b"\xc3\xa9%20", "é "),
    "é in UTF-8, half of it escaped": (b"\xc3%a9", "é"),
    "é in UTF-8, escaped": (b"%c3%a9", "é"),
    "é in Latin-1 beside an escape, which is no UTF-8": (b"\xe9%20", None),
    "a control character of Latin-1": (b"a\x85", "a\x85"),
}


@pytest.mark.parametrize(("raw", "id"), RAW.values(), ids=RAW.keys())
def test_raw_bytes_of_an_id_are_read_as_the_cluster_reads_them(raw: bytes, id: str | None) -> None:
    expected = PASS if id is None else Route(Intent.EXECUTE, "agents", id)
    assert intent_of(b"POST", b"/_plugins/_ml/agents/%b/_execute?x" % raw) == expected


@given(st.text(), st.sampled_from([f"{ML}/agents/", "/", ""]), st.sampled_from(["/_execute", "", "/"]))
def test_any_path_has_a_route_and_an_id_is_text(text: str, before: str, after: str) -> None:
    found = route("POST", before + text + after)
    found.id.encode("utf-8")
    assert found.intent is Intent.PASSTHROUGH or before.startswith(ML) or text.startswith(ML)
