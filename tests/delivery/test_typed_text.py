"""Converse templates with ``"type": "text"`` beside a text, as AWS's and ML Commons' blueprints have it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from gateway.delivery.template_change import with_upgrades
from gateway.errors import UndeliverableContent
from gateway.execute.rewrite import RewriteOptions, rewrite_input
from gateway.mlcommons.profile import AgentProfile
from gateway.providers import registry
from gateway.unified.request import read_execute
from tests.delivery.cases import IMAGE, text, turn
from tests.delivery.simulated_cluster import cluster_of

TEMPLATE = (
    '{"system":[{"type":"text","text":"Be brief."}],'
    '"messages":[{"role":"user","content":[{"type":"text","text":"${parameters.prompt}"}]}]}'
)
TALK = [turn("user", text("look"), IMAGE), turn("assistant", text("ok")), turn("user", text("and now?"))]


def typed(version: str) -> AgentProfile:
    """A flow with that template."""
    profile = cluster_of(version).profile("flow-d")
    (tool,) = profile.tools
    assert tool.model is not None
    model = replace(tool.model, connector=replace(tool.model.connector, request_body=TEMPLATE))
    return replace(profile, tools=(replace(tool, model=model),), provider="bedrock/converse")


def test_an_upgrade_lets_a_conversation_through_on_2_x() -> None:
    request = read_execute(json.dumps({"input": TALK}).encode())
    assert request.input is not None
    profile = typed("2.19.0")
    with pytest.raises(UndeliverableContent) as refused:
        rewrite_input(profile, request, request.input, RewriteOptions(), "t")
    assert "mlc-gateway upgrade" in refused.value.problems[0].help
    upgraded = with_upgrades(profile, registry.provider("bedrock/converse"))
    plan = rewrite_input(upgraded, request, request.input, RewriteOptions(), "t").plan
    assert plan.strategy == "wrap"
    assert plan.parameters["messages"].count('"image"') == 1
