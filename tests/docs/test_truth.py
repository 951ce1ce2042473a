"""Settings, links, seconds and imports that the texts name are those of the code."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sse_starlette import EventSourceResponse

from gateway.adapters import agents, mcp, openai_chat, openai_responses
from gateway.admin import pages
from gateway.agents import holds, memory, resolver, size
from gateway.app import process, supervisor
from gateway.app import supervisor as supervisor_admin
from gateway.config.describe import rows
from gateway.config.schema import Settings
from gateway.delivery import call_model
from gateway.execute import run_events, session_run, streams
from gateway.http1 import request_heads
from gateway.inspector import access, drawing
from gateway.memory.stores.agentcore import mapping, store, turn
from gateway.memory.stores.strands import files
from gateway.memory.stores.strands import session as strands_session
from gateway.mlcommons import memory_form
from gateway.observe import media, metrics
from gateway.policy import hooks
from gateway.proxy import capture, client_connection, content_coding, exchange, lifecycle, listener, memory_read
from gateway.recording import recorder, records
from gateway.recording.sinks import sqlite, sqlite_queries
from gateway.register import calls
from gateway.routing import marks
from gateway.unified import limits
from gateway.upstream import client, connection, tls
from gateway.upstream.auth import authenticator
from tests.docs.pages import DOCS, GATEWAY, ROOT, page

pytestmark = pytest.mark.check

PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.md"), *ROOT.glob("*.md")])
PATHS = {re.sub(r"\[\d*\]", "", path) for path, *_ in rows()}
SECTIONS = {part for path in PATHS for part in path.split(".")[:-1]}
KNOWN = {".".join(path.split(".")[:length]) for path in PATHS for length in range(1, path.count(".") + 2)}
_NAMED = re.compile(r"`([a-z_0-9]+(?:\[\d*\])?(?:\.[a-z_0-9]+(?:\[\d*\])?)+)(?=[`:=\s])")
_MENTION = re.compile(
    r"\boperator (?:may|can)\b|configure a service account|\bgateway's (?:configuration|settings)\b|rule of the gateway"
)
_NO_SETTING = ("demo", "simulator", "cli")  # they speak of the settings file, not of one setting


def unknown_settings(text: str) -> list[str]:
    """The settings named in backticks that do not exist, by their whole path or its last parts (`health.path`)."""
    named = (re.sub(r"\[\d*\]", "", name) for name in _NAMED.findall(text))
    return [
        name
        for name in named
        if name.split(".")[0] in SECTIONS
        and not name.endswith((".py", ".md"))
        and not any(f".{path}".endswith(f".{name}") for path in KNOWN)
    ]


def vague(text: str) -> list[str]:
    """Sentences that speak of a setting of the gateway's and name none."""
    sentences = re.split(r"(?<=[.;|])\s+|\n\n", text)
    return [one for one in sentences if _MENTION.search(one) and not re.search(r"`[a-z_.\[\]]+[`:]", one)]


@cache
def texts() -> list[tuple[str, str]]:
    """Every string in the gateway's source but docstrings, as `_texts` finds them."""
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    """Every string in the gateway's source but docstrings: its place and its text, ``x`` for an f-string's values."""
    for file in sorted(GATEWAY.rglob("*.py")):
        tree = ast.parse(file.read_text())
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        path = file.relative_to(ROOT)
        for node in (node for node in ast.walk(tree) if id(node) not in alone):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
                yield f"{path}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path}:{node.lineno}", node.value


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_setting_that_a_page_names_exists(file: Path) -> None:
    assert unknown_settings(file.read_text()) == []
    if file.name not in ("cli.md", "CHANGELOG.md"):
        assert vague(file.read_text()) == []


def test_every_setting_that_an_error_or_a_help_text_names_exists() -> None:
    assert [(place, names) for place, text in texts() if (names := unknown_settings(text))] == []


def test_an_error_that_speaks_of_a_setting_names_it() -> None:
    helps = [(place, text) for place, text in texts() if "\n" not in text and text[:1].islower()]
    assert len(helps) > 1000
    found = [(place, text) for place, text in helps if vague(text) and place.split("/")[1] not in _NO_SETTING]
    assert found == []


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("`agents.rules`, `agents.rules[].provider`, `upstream.auth.mode: sigv4`, `health.path`, `agents`", []),
        ("`gateway.errors`, `model.model_provider`, `plugins.ml_commons.x`, `a.b`", []),
        ("`agents.version` and `listen.port: 1`, `health.sum`", ["agents.version", "listen.port", "health.sum"]),
    ],
)
def test_how_a_setting_is_found(text: str, unknown: list[str]) -> None:
    assert unknown_settings(text) == unknown


@pytest.mark.parametrize(
    "text",
    [
        "The operator may name other headers, or more.",
        "Without it the version in the gateway's configuration is taken.",
        "set the cluster's version in the gateway's configuration",
        "configure a service account for lookups",
    ],
)
def test_how_a_setting_that_is_not_named_is_found(text: str) -> None:
    assert vague(text) == [text]
    assert vague(f"{text[:-1]} (`agents.lookup`).") == []


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        label = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", label.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f"{slug}-{found[slug]}"] = 0
    return set(found)


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_and_its_anchor_resolve(file: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text()):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        other = file.parent / path if path else file
        assert other.exists(), target
        if anchor:
            assert anchor in anchors(other.read_text()), target


def test_how_anchors_are_made() -> None:
    text = "# One, two: `three`\n```\n# no heading\n```\n## Twice\n## Twice\n### a [link](x.md) ##\n"
    assert anchors(text) == {"one-two-three", "twice", "twice-1", "a-link"}


def test_a_link_for_what_the_gateway_checks_leads_to_the_page_that_tells() -> None:
    assert "RFC 9112" in page("reference/http.md")
    assert "What the gateway checks is in\n[http.md](../reference/http.md)" in page("operate/performance.md")


DEFAULTS = Settings()
_QUARTER = {0.25: "a quarter of a second"}

SECONDS = [
    ("operate/operations.md", "closed {} later", _QUARTER.get(listener._LAST_CALL, "")),
    ("operate/operations.md", "`listen.drain_seconds` ({})", f"{DEFAULTS.listen.drain_seconds:g}"),
    ("operate/operations.md", "`listen.shutdown_seconds` ({})", f"{DEFAULTS.listen.shutdown_seconds:g}"),
    ("operate/operations.md", "It counts from {} s after the first", f"{process._ECHO:g}"),
    ("operate/operations.md", "kills those that are still there {} s later", f"{supervisor._GRACE:g}"),
    ("operate/operations.md", "has closed, too, or for {} s", f"{client_connection.LINGER:g}"),
    ("operate/operations.md", "after {} s the first time", f"{supervisor._FIRST:g}"),
    ("operate/operations.md", "up to {} s if it keeps ending", f"{supervisor._LONGEST:g}"),
    ("operate/operations.md", "answer within {} seconds is missing", {2.0: "two"}.get(supervisor_admin._ASKED, "")),
    ("operate/memory.md", "takes longer than {} seconds is a 504", f"{supervisor_admin._RELAYED:g}"),
    ("operate/operations.md", "every `health.interval` ({} s)", f"{DEFAULTS.upstream.health.interval:g}"),
    ("operate/operations.md", "`ejection.seconds` ({})", f"{DEFAULTS.upstream.ejection.seconds:g}"),
    ("operate/operations.md", "`health.failures` ({})", f"{DEFAULTS.upstream.health.failures}"),
    ("operate/operations.md", "`health.successes` ({})", f"{DEFAULTS.upstream.health.successes}"),
    ("operate/operations.md", "`ejection.failures` ({})", f"{DEFAULTS.upstream.ejection.failures}"),
    ("operate/operations.md", "no piece follows within {} s", f"{exchange._BODY_WAIT:g}"),
    ("operate/scale-out.md", "`agents.cache_ttl` ({} s)", f"{DEFAULTS.agents.cache_ttl:g}"),
    ("operate/scale-out.md", "`upstream.keepalive` ({} s idle)", f"{DEFAULTS.upstream.keepalive:g}"),
    ("operate/scale-out.md", "| readiness | {} s |", f"{pages.READY_FOR:g}"),
    ("operate/registration.md", "`registration.visible_within` ({} s)", f"{DEFAULTS.registration.visible_within:g}"),
    ("operate/registration.md", "`registration.retry_window` ({} s)", f"{DEFAULTS.registration.retry_window:g}"),
    ("operate/threat-model.md", "no request a connection for {} s", f"{client._STUCK_AFTER:g}"),
    ("operate/tls.md", "checked for changes every {} seconds", {10.0: "ten"}.get(tls.POLL, "")),
    ("operate/amazon.md", "again every {} seconds", {5.0: "five"}.get(authenticator._PAUSE, "")),
]

NUMBERS = [
    ("operate/scale-out.md", "| parsed heads of requests | at most {} |", f"{request_heads.MOST_HEADS:,}"),
    ("operate/threat-model.md", "at most {} different ones in a process", f"{request_heads.MOST_HEADS:,}"),
    ("operate/scale-out.md", "`agents.cache_size` ({})", f"{DEFAULTS.agents.cache_size:,}"),
    ("operate/operations.md", "| members of a gzip body | {} |", f"{content_coding._MAX_MEMBERS:,}"),
    (
        "operate/operations.md",
        "| problems listed for one body | {} |",
        str(limits.ParseLimits._field_defaults["problems"]),
    ),
    ("operate/inspector.md", "The first {} characters of a body are searched", f"{sqlite_queries.LONGEST:,}"),
    ("operate/inspector.md", "at most {} exchanges a second come in", f"{sqlite._BUSY}"),
    ("operate/inspector.md", "Of more than {} runs, p50 and p95", f"{sqlite_queries._SAMPLE:,}"),
    ("operate/inspector.md", "known by the texts of the conversation's {} runs before", f"{drawing._EARLIER}"),
    ("operate/inspector.md", "for {} hours, `HttpOnly`", {12.0: "twelve"}.get(access._SECONDS / 3600, "")),
    ("operate/registration.md", "sends a refused one again, up to {} times", f"{calls._BUSY_TRIES}"),
    ("operate/registration.md", "random pauses of up to {} s", f"{calls._BUSY_PAUSES[1]:g}"),
    ("operate/threat-model.md", "other documents of connectors for up to {} seconds", f"{holds.LONGEST_HOLD:g}"),
    ("troubleshooting.md", "504 `UpstreamTimeout` after {} s", f"{DEFAULTS.upstream.timeouts.connect:g}"),
    ("operate/memory-agentcore.md", "at most {} parts", f"{mapping.MOST_PAYLOADS}"),
    ("operate/memory-agentcore.md", "and {} characters of JSON besides", f"{turn.LARGEST_EVENT:,}"),
    ("operate/memory-agentcore.md", "up to {} characters of JSON", f"{turn.LARGEST_EVENT:,}"),
    ("operate/memory-agentcore.md", "A text of more than {} characters", f"{mapping.LONGEST_TEXT:,}"),
    ("operate/memory-agentcore.md", "a medium of {} characters of base64", f"{turn.LARGE:,}"),
    ("operate/memory-agentcore.md", "more than {} lists", {4: "four"}.get(store._KEPT, "")),
    ("operate/memory-agentcore.md", "for up to {} minutes", {600.0: "ten"}.get(store._PURGE_SECONDS, "")),
    ("operate/memory-strands.md", "`flock`, for at most {} s", f"{files.SECONDS:g}"),
    ("operate/memory-strands.md", "An id of more than {} bytes", f"{strands_session._LONGEST}"),
    ("operate/guardrails.md", "at most {} at a time", {8: "eight"}.get(hooks._THREADS, "")),
    ("operate/guardrails.md", "An answer of more than {} MiB", f"{capture.HELD_ANSWER >> 20}"),
    (
        "operate/telemetry.md",
        "once {}, and when the gateway stops",
        {60.0: "a minute"}.get(recorder._LOG_EVERY, ""),
    ),
]


@pytest.mark.parametrize(("name", "sentence", "value"), [*SECONDS, *NUMBERS])
def test_a_number_in_a_page_is_the_codes(name: str, sentence: str, value: str) -> None:
    assert value
    assert sentence.format(value) in " ".join(page(name).split())


MIB = 1 << 20
_WORDS = {2.0: "two", 4.0: "four", 5: "five", 300.0: "five minutes"}

LIMITS = [
    ("operate/migration.md", "An answer of more than {} MiB gets no marks", f"{capture.HELD_ANSWER // MIB}"),
    ("reference/limitations.md", "its cluster, is larger than {} MiB", f"{capture.HELD_ANSWER // MIB}"),
    ("reference/limitations.md", "more than {} MiB has ids without marks", f"{marks._LONGEST // MIB}"),
    ("reference/answers.md", "An answer of more than {} MiB", f"{capture.HELD_ANSWER // MIB}"),
    ("reference/answers.md", "An event over {} MiB is relayed as it comes", f"{streams._LONGEST_EVENT // MIB}"),
    ("reference/answers.md", "one over {} MiB is relayed unread", f"{run_events.MOST // MIB}"),
    ("reference/answers.md", "remembers for {} if there is nothing", _WORDS[session_run._KNOWN_SECONDS]),
    ("reference/openai.md", "An answer of more than {} MiB is an error", f"{run_events.MOST // MIB}"),
    ("reference/openai.md", "More than {} can't be listed", f"{agents._MOST:,}"),
    ("reference/http.md", "up to {} for one request", _WORDS[connection._MOST_INTERIM]),
    ("reference/mcp.md", "(up to {} a second)", _WORDS[1 / mcp._PROGRESS_SECONDS]),
    ("reference/mcp.md", "come every {} seconds", f"{EventSourceResponse.DEFAULT_PING_INTERVAL}"),
    ("reference/metrics.md", "in the last {} seconds", _WORDS[pages.READY_FOR]),
    ("reference/metrics.md", "`seconds` (at most {})", f"{holds.LONGEST_HOLD:g}"),
    ("reference/metrics.md", "there are at most {}.", f"{holds.MOST_HOLDS}"),
    ("reference/metrics.md", "After {} different models", f"{metrics.MOST_MODELS}"),
    ("reference/metrics.md", "got a connection for {} s", f"{client._STUCK_AFTER:g}"),
    ("reference/limitations.md", "larger than {} MiB", f"{capture.HELD_ANSWER // MIB}"),
    ("reference/limitations.md", "Answers over {} MiB", f"{memory_read.MOST // MIB}"),
    ("reference/limitations.md", "more than {} such texts", f"{memory_form.MOST_FORMS:,}"),
    ("reference/limitations.md", "name more than {} placeholders", f"{call_model._MOST_NAMES}"),
    ("reference/limitations.md", "recalls have more than {} characters", f"{memory._LONGEST:,}"),
    (
        "reference/limitations.md",
        "more than {} characters (16 more for each value)",
        f"{size.MOST_DOCUMENTS} documents, {size.MOST_TOOLS:,} tools, {size.MOST.calling} tools that call a model, a "
        f"connector or an agent, {size._MOST_LEVELS} levels, or {size.MOST_WEIGHT:,}",
    ),
    ("reference/limitations.md", "({} more for each value)", f"{size._PER_VALUE}"),
    (
        "reference/limitations.md",
        "more than {} characters (a template counts",
        f"{size.MOST.characters:,}",
    ),
    ("reference/limitations.md", "{} commas, brackets and quotes", f"{size.MOST.separators:,}"),
    ("reference/limitations.md", "or {} placeholders", f"{size.MOST.placeholders:,}"),
    ("internals/agents.md", "turns of a conversation ({} by default", f"{memory.DEFAULT_LIMIT}"),
    ("internals/agents.md", "when nobody has used it for {}", _WORDS[resolver._KEEP]),
    ("internals/architecture.md", "are held, up to {} MiB", f"{memory_read.MOST // MIB}"),
    ("internals/inspector.md", "for {} runs a second at most", f"{records.RENDERED_A_SECOND}"),
    ("internals/inspector.md", "pauses for {} ms after each 2 ms", f"{recorder._TURN * 1000:g}"),
    ("internals/inspector.md", "hashed {} MB at a time", f"{media._AT_ONCE // MIB}"),
    ("internals/inspector.md", "gets more than {} KB", f"{media._WINDOW // 1024}"),
]


@pytest.mark.parametrize(("name", "sentence", "value"), LIMITS, ids=[f"{row[0]} {row[1]}" for row in LIMITS])
def test_a_limit_in_a_page_is_the_codes(name: str, sentence: str, value: str) -> None:
    assert value
    shown = sentence.format(value)
    assert shown in " ".join(page(name).split())


def test_no_number_of_seconds_in_operations_is_left_out() -> None:
    text = " ".join(page("operate/operations.md").split())
    shown = [sentence.format(value) for name, sentence, value in SECONDS if name == "operate/operations.md"]
    for known in [*shown, "within a second"]:
        text = text.replace(known, "")
    assert re.findall(r".{20}\b(?:[\d.]+|two|three|five|ten|half|quarter|a) (?:of a )?(?:s|seconds?)\b", text) == []


def test_within_a_second_is_twice_the_period_of_the_poll() -> None:
    assert 2 * lifecycle.PERIOD < 1


def test_the_page_of_the_architecture_has_the_layers_that_are_held() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    held = [
        re.findall(r"gateway\.(\w+)", line)
        for line in contracts["importlinter:contract:layers"]["layers"].strip().splitlines()
    ]
    (listed,) = re.findall(r"<!-- layers -->\n(.*?)<!-- /layers -->", page("internals/architecture.md"), re.DOTALL)
    assert [re.findall(r"`(\w+)`", line) for line in listed.strip().splitlines()] == held


def test_proxy_and_upstream_know_only_the_ports_of_the_use_cases() -> None:
    for folder in ("proxy", "upstream"):
        for file in (GATEWAY / folder).glob("*.py"):
            names = re.findall(r"^\s*(?:from|import) (gateway\.\w+(?:\.\w+)*)", file.read_text(), re.MULTILINE)
            cases = {name for name in names if name.split(".")[1] in ("execute", "register", "agents", "delivery")}
            assert cases <= {"gateway.ports"}, file


def test_the_page_of_dependencies_tells_what_aiohttp_is_used_for() -> None:
    users = {
        file.relative_to(GATEWAY).parts[0]
        for file in GATEWAY.rglob("*.py")
        if re.search(r"^\s*(from|import) aiohttp", file.read_text(), re.MULTILINE)
    }
    assert users == {"admin", "app", "cli", "inspector", "media", "policy", "proxy", "simulator"}
    (row,) = re.findall(r"^\| `aiohttp` \|.*$", page("internals/dependencies.md"), re.MULTILINE)
    assert all(word in row for word in ("admin port", "media by URL", "simulator", "embedded"))


@pytest.mark.parametrize(
    ("heading", "members", "only"),
    [
        (
            "## Chat completions: members of a request",
            openai_chat._READ | openai_chat._SAMPLING | openai_chat._IGNORED,
            openai_chat._ONLY,
        ),
        (
            "## Responses",
            openai_responses._READ | openai_responses._SAMPLING.keys() | openai_responses._IGNORED,
            openai_responses._ONLY,
        ),
    ],
)
def test_the_page_has_the_members_that_openais_api_takes(
    heading: str, members: frozenset[str], only: Mapping[str, Any]
) -> None:
    section = page("reference/openai.md").partition(heading)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.MULTILINE)
    fixed = {name for row, treatment in rows if "refused with any other" in treatment for name in _members(row)}
    assert fixed == only.keys()
    assert {name for row, _ in rows for name in _members(row)} == members | only.keys()


def _members(row: str) -> set[str]:
    """The members that the first column of a row names; `default` is another value of the one before it."""
    return set(re.findall(r"`(\w+)[^`]*`", row)) - {"default", "effort"}
