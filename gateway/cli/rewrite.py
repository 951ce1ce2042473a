"""``mlc-gateway rewrite``: what the gateway would send for a request, without a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from gateway.agents.documents import needed, needed_connector, read_profile, read_version
from gateway.errors import GatewayError, InvalidInput, Problem
from gateway.execute.body import payloads_of
from gateway.execute.rewrite import Policy, Rewrite, is_native, rewrite_input, rewrite_native, rewrite_unproved
from gateway.mlcommons.profile import AgentProfile
from gateway.providers import registry
from gateway.unified.model import AgentInput
from gateway.unified.payloads import Payload, insert
from gateway.unified.request import ExecuteRequest, read_execute

NAME = "rewrite"
HELP = "Print what the gateway would send to the cluster for an execute body; exit 1 when it would refuse."
EXAMPLES = """  echo '{"input": "hello"}' | mlc-gateway rewrite --provider bedrock/converse
  mlc-gateway rewrite body.json --agent agent.json --model model.json --connector connector.json
  mlc-gateway rewrite body.json --agent flow.json --model ID1=m1.json --model ID2=m2.json --cluster-version 3.4.0
      (the documents are the answers of GET /_plugins/_ml/agents/ID, models/ID and connectors/ID)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("body", nargs="?", metavar="FILE", help="the execute body (standard input without it)")
    behind = parser.add_mutually_exclusive_group(required=True)
    behind.add_argument("--provider", metavar="NAME", help=f"only map: one of {', '.join(registry.names())}")
    behind.add_argument("--agent", type=Path, metavar="FILE", help="the agent's document")
    parser.add_argument("--model", action="append", default=[], metavar="[ID=]FILE", help="a model's document")
    parser.add_argument("--connector", action="append", default=[], metavar="[ID=]FILE", help="a connector's document")
    parser.add_argument("--cluster-version", default="2.19.0", metavar="V", help="the cluster's version (2.19.0)")


def run(args: argparse.Namespace) -> int:
    """Print one JSON object: the rewrite (0), the error body of a refusal (1); 2 when an option or a file is wrong."""
    try:
        body = Path(args.body).read_bytes() if args.body else sys.stdin.buffer.read()
        result = _result(body, args)
    except GatewayError as error:
        _print(error.body())
        return 1
    except (OSError, ValueError, registry.UnknownProvider, registry.BrokenProvider) as error:
        sys.stderr.write(f"mlc-gateway rewrite: {error}\n")
        return 2
    _print(result)
    return 0


def _result(body: bytes, args: argparse.Namespace) -> dict[str, Any]:
    request = read_execute(body)
    if request.input is None:
        missing = Problem("input", "there is no input; a legacy request is forwarded as it is", "input", "none")
        raise InvalidInput.of([missing])
    if args.provider:
        sent = rewrite_unproved(registry.provider(args.provider), request, request.input, Policy())
    else:
        sent = _for_agent(_profile(args), request, request.input)
    return _shown(sent, request.input, body)


def _for_agent(profile: AgentProfile, request: ExecuteRequest, agent_input: AgentInput) -> Rewrite:
    if is_native(profile, agent_input):
        return rewrite_native(profile, request, agent_input, streaming=False)
    return rewrite_input(profile, request, agent_input, Policy())


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


def _profile(args: argparse.Namespace) -> AgentProfile:
    version = read_version({"version": {"number": args.cluster_version, "distribution": "opensearch"}})
    if version is None:
        raise ValueError(f"--cluster-version {args.cluster_version!r} is no version such as 2.19.0")
    agent = _document(args.agent)
    models = _named(args.model, needed(agent), "--model")
    connector_ids = [found for model in models.values() if (found := needed_connector(model))]
    connectors = _named(args.connector, connector_ids, "--connector")
    return read_profile(agent.get("agent_id") or args.agent.stem, agent, models, connectors, version)


def _named(options: list[str], ids: Any, option: str) -> dict[str, dict[str, Any]]:
    """Documents by id: ``ID=FILE`` names one; a file alone is the document of every id that is not named."""
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
    raise ValueError(f"several documents for {option}: say which is which, as {option} {ids[0]}=FILE")


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
