"""What an error of the gateway says: the reason, which is all that clients' exceptions show, and links to the docs."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from opensearchpy import OpenSearch
from opensearchpy.exceptions import RequestError

from gateway.codes import CODES
from gateway.errors import GatewayError, InvalidInput, Problem, SessionBusy, UndeliverableContent, first_remedy, link
from gateway.unified.request import read_execute
from tests.delivery.cases import IMAGE
from tests.docs.pages import GATEWAY, page
from tests.execute.conftest import StartDeployment, start_deployment

__all__ = ["start_deployment"]

DOCS = "https://git.example.org/mlc/blob/main/docs"


def _raised(error: GatewayError) -> str:
    return str(error.body()["error"]["reason"])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            UndeliverableContent.of([Problem("input[1]", "it is lost", code="A_CODE", help="run `a; b`; then see")]),
            "[input[1]] it is lost [A_CODE]. Run `a; b`.",
        ),
        (UndeliverableContent.of([Problem("input", "it is lost", code="A_CODE")]), "[input] it is lost [A_CODE]"),
        (
            InvalidInput.of([Problem("input[0]", "Missing", "one of a, b", "nothing"), Problem("b", "No", help="x")]),
            "[input[0]] Missing (and 1 more). Expected one of a, b.",
        ),
        (SessionBusy("It is in use."), f"It is in use. {SessionBusy.help}"),
        (InvalidInput("No."), "No."),
    ],
    ids=["code and remedy", "code", "expected", "the type's remedy", "neither"],
)  # fmt: skip
def test_the_reason_has_the_code_and_the_first_remedy(error: GatewayError, reason: str) -> None:
    body = error.body()["error"]
    assert (body["reason"], body["root_cause"][0]["reason"]) == (reason, reason)
    assert body["message"] == error.reason


def test_the_first_remedy_ends_at_a_semicolon() -> None:
    assert first_remedy("do this; or that") == "do this"
    assert first_remedy('send `{"a";"b"}` first; then wait') == 'send `{"a";"b"}` first'
    assert first_remedy("") == ""


async def test_a_clients_exception_shows_both(start_deployment: StartDeployment) -> None:
    deployment = await start_deployment()

    def run() -> str:
        path = f"/_plugins/_ml/agents/{deployment.agents['flow-d']}/_execute"
        with OpenSearch(deployment.url) as client, pytest.raises(RequestError) as raised:
            client.transport.perform_request("POST", path, body={"input": [IMAGE]})
        return str(raised.value)

    shown = await asyncio.to_thread(run)
    assert "MEDIA_NEEDS_UPGRADE" in shown
    assert f"mlc-gateway upgrade {deployment.agents['flow-d']}" in shown


@pytest.mark.parametrize(
    ("docs_url", "address"),
    [
        ("", None),
        (DOCS, f"{DOCS}/reference/limitations.md#media_needs_upgrade"),
        ("https://docs.example.org/{page}/", "https://docs.example.org/reference/limitations/#media_needs_upgrade"),
    ],
)
async def test_links_are_absolute_addresses_by_the_setting(
    start_deployment: StartDeployment, docs_url: str, address: str | None
) -> None:
    deployment = await start_deployment(over={"answers": {"docs_url": docs_url}})
    error = (await (await deployment.execute("flow-d", {"input": [IMAGE]})).json())["error"]
    assert (error.get("docs"), error["problems"][0].get("docs")) == (address, address)
    other = (await (await deployment.execute("flow-d", {"input": {}})).json())["error"]
    assert other.get("docs") == (None if not docs_url else link(docs_url, "reference/errors", "types"))
    assert "docs" not in other["problems"][0]


def test_the_anchors_are_those_of_the_pages() -> None:
    headings = {heading.lower() for heading in re.findall(r"^#+ (.+)$", page("reference/limitations.md"), re.MULTILINE)}
    assert {code.lower() for code in CODES} <= headings
    assert re.search("^## Types$", page("reference/errors.md"), re.MULTILINE)


def test_no_text_for_users_names_a_file_of_the_repository() -> None:
    found = {path.name: re.findall(r"\(?see docs/\S+\.md", path.read_text()) for path in GATEWAY.rglob("*.py")}
    found["pages"] = re.findall(r"See docs/", (GATEWAY / "inspector/pages.py").read_text())
    assert {name for name, texts in found.items() if texts} == set()


@pytest.mark.parametrize(
    ("sent", "near"),
    [
        ([{"type": "imge", "source": {}}], "image"),
        ([{"type": "Text", "text": "a"}], "text"),
        ([{"imge": {}}], "image"),
        ([{**IMAGE, "source": {**IMAGE["source"], "type": "base46"}}], "base64"),
        ([{"role": "user", "contnet": "a"}], "content"),
    ],
)
def test_a_word_that_is_nearly_known_is_named(sent: object, near: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_execute(json.dumps({"input": sent}).encode())
    assert f'Did you mean "{near}"?' in [problem.help for problem in raised.value.problems]
    if len(raised.value.problems) == 1:
        assert _raised(raised.value).endswith(f'. Did you mean "{near}"?')


def test_a_word_that_is_like_no_other_has_no_guess() -> None:
    with pytest.raises(InvalidInput) as raised:
        read_execute(b'{"input":[{"type":"hologram"}]}')
    assert raised.value.problems[0].help == ""
