"""``mlc-gateway rewrite``: print what the gateway would send for a request. Needs no cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from msgspec.structs import replace

from gateway.agents.documents import needed, needed_connector, read_profile, tool_connectors
from gateway.agents.lookup import read_version
from gateway.cli.command import FILE, Command
from gateway.cli.output import fail
from gateway.errors import GatewayError, InvalidInput, Problem
from gateway.execute.body import payloads_of
from gateway.execute.rewrite import Rewrite, RewriteOptions, rewrite_for_agent, rewrite_unproved
from gateway.execute.rewriter import new_turn_id
from gateway.mlcommons.generations import version_notice
from gateway.mlcommons.profile import AgentProfile
from gateway.providers import registry
from gateway.unified.model import AgentInput
from gateway.unified.payloads import Payload, insert
from gateway.unified.request import read_execute

_EXAMPLES = """\
echo '{"input": "hello"}' | mlc-gateway rewrite --provider bedrock/converse
mlc-gateway rewrite body.json --agent agent.json --model model.json --connector connector.json
mlc-gateway rewrite body.json --agent flow.json --model ID1=m1.json --model ID2=m2.json --cluster-version 3.4.0
    (the documents are the answers of GET /_plugins/_ml/agents/ID, models/ID and connectors/ID)"""


class _Documents(msgspec.Struct, frozen=True):
    """The files that describe an agent. models, connectors: ``FILE`` or ``ID=FILE``."""

    agent: Path
    models: Sequence[str]
    connectors: Sequence[str]
    version: str


@click.command("rewrite", cls=Command, examples=_EXAMPLES)
@click.argument("body", required=False, metavar="[FILE]", help="Execute body (default: standard input).")
@click.option("--provider", metavar="NAME", help=f"Map to a provider, without an agent: {', '.join(registry.names())}.")
@click.option("--agent", type=FILE, metavar="FILE", help="The agent's document.")
@click.option("--model", multiple=True, metavar="[ID=]FILE", help="A model's document; may be repeated.")
@click.option("--connector", multiple=True, metavar="[ID=]FILE", help="A connector's document; may be repeated.")
@click.option("--cluster-version", default="2.19.0", metavar="V", help="The cluster's version (default: 2.19.0).")
@click.option("--stream", is_flag=True, help="For the endpoint _execute/stream.")
def command(
    body: str | None,
    provider: str | None,
    agent: Path | None,
    model: tuple[str, ...],
    connector: tuple[str, ...],
    cluster_version: str,
    stream: bool,
) -> int:
    """Print what the gateway would send to the cluster for an execute body, as one JSON object.

    Give --provider or --agent. If the gateway would refuse the request, print the error.
    """
    if (provider is None) == (agent is None):
        raise click.UsageError("Give either --provider or --agent.")
    documents = None if agent is None else _Documents(agent, model, connector, cluster_version)
    try:
        result = _result(_read_body(body), provider or "", documents, stream)
    except GatewayError as error:
        _print(error.body())
        return 1
    except OSError as error:
        return fail("rewrite", 2, f"{error.filename} can't be read: {error.strerror}")
    except (ValueError, registry.UnknownProvider, registry.BrokenProvider) as error:
        return fail("rewrite", 2, str(error))
    _print(result)
    return 0


def _read_body(file: str | None) -> bytes:
    if file:
        return Path(file).read_bytes()
    if sys.stdin.isatty():
        sys.stderr.write("Type the body of the request, and Ctrl-D at the end:\n")
    return sys.stdin.buffer.read()


def _result(body: bytes, provider: str, documents: _Documents | None, stream: bool) -> dict[str, Any]:
    request = read_execute(body)
    if request.input is None:
        missing = Problem("input", "there is no input; a legacy request is forwarded unchanged", "input", "none")
        raise InvalidInput.of([missing])
    if documents is None:
        sent = rewrite_unproved(
            registry.provider(provider), request, request.input, RewriteOptions(), new_turn_id(), stream
        )
    else:
        profile = _profile(documents)
        sent = rewrite_for_agent(profile, request, request.input, RewriteOptions(), new_turn_id(), streaming=stream)
        unknown = version_notice(profile.version)
        if unknown:
            sent = replace(sent, plan=replace(sent.plan, notices=(unknown, *sent.plan.notices)))
    return _shown(sent, request.input, body)


def _shown(sent: Rewrite, agent_input: AgentInput, body: bytes) -> dict[str, Any]:
    plan, payloads = sent.plan, payloads_of(agent_input)
    fields: dict[str, Any] = {}
    if plan.request is not None and plan.provider:
        fields = _with_payloads(registry.provider(plan.provider).fields(plan.request), payloads)
    return {
        "input_type": agent_input.type.value,
        "provider": plan.provider,
        "strategy": plan.strategy,
        "question": plan.question,
        "request": json.loads(b"".join(sent.body) if sent.body is not None else body),
        "provider_request": fields,
        "notices": [{"code": n.code, "place": n.place, "reason": n.reason} for n in plan.notices],
    }


def _with_payloads(fields: Mapping[str, Any], payloads: Mapping[str, Payload]) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(b"".join(insert(json.dumps(fields).encode(), payloads)))
    return whole


def _profile(documents: _Documents) -> AgentProfile:
    version = read_version({"version": {"number": documents.version, "distribution": "opensearch"}})
    if version is None:
        raise ValueError(f"--cluster-version {documents.version!r} is not a version such as 2.19.0")
    agent = _document(documents.agent)
    models = _named(documents.models, needed(agent), "--model")
    connector_ids = [found for model in models.values() if (found := needed_connector(model))]
    connectors = _named(documents.connectors, [*connector_ids, *tool_connectors(agent)], "--connector")
    return read_profile(agent.get("agent_id") or documents.agent.stem, agent, models, connectors, version)


def _named(options: Sequence[str], ids: Any, option: str) -> dict[str, dict[str, Any]]:
    """Read documents by id: ``ID=FILE`` names one; a file alone is the document of every id that is not named."""
    named: dict[str, dict[str, Any]] = {}
    alone: list[Path] = []
    for given in options:
        start, found, path = given.partition("=")
        if found and start in ids:
            named[start] = _document(Path(path))
        else:
            alone.append(Path(given))
    rest = [id_ for id_ in dict.fromkeys(ids) if id_ not in named]
    if len(alone) > 1 and len(rest) > 1:
        _unclear(option, rest)
    for index, id_ in enumerate(rest[: len(rest) if alone else 0]):
        named[id_] = _document(alone[min(index, len(alone) - 1)])
    return named


def _unclear(option: str, ids: list[str]) -> NoReturn:
    raise ValueError(f"several documents for {option}: give each its id, as in {option} {ids[0]}=FILE")


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: a document must be a JSON object")
    return document


def _print(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None) + "\n")
