"""Agents made from registrations on a simulated cluster, and their profiles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gateway.agents.documents import read_profile
from gateway.mlcommons.profile import AgentProfile
from gateway.register.documents import agent_body, model_body
from gateway.register.registration import Registration, read_registration
from gateway.register.target import Target, check
from tests.delivery.simulated_cluster import LLM_URL, SimulatedCluster

BEDROCK, OPENAI, GEMINI = "bedrock/converse", "openai/v1/chat/completions", "gemini/v1beta/generatecontent"
ANTHROPIC, INVOKE, COHERE = "anthropic/v1/messages", "bedrock-invoke/anthropic", "cohere/v2/chat"
PROVIDERS = {
    "bedrock": BEDROCK,
    "openai": OPENAI,
    "gemini": GEMINI,
    "anthropic": ANTHROPIC,
    "invoke": INVOKE,
    "cohere": COHERE,
}
TYPES = ("conversational", "flow", "conversational_flow", "plan_execute_and_reflect")
TARGETS = {
    "2.19.0": Target((2, 19, 0)),
    "3.4.0": Target((3, 4, 0)),
    "3.6.0": Target((3, 6, 0), unified_api=False),
}
TAG = "0123456789abcdef0123456789abcdef"
CREDENTIALS: Mapping[str, Mapping[str, str]] = {
    BEDROCK: {"access_key": "the-access-key", "secret_key": "the-secret-key"},
    OPENAI: {"openai_api_key": "the-openai-key"},
    GEMINI: {"gemini_api_key": "the-gemini-key"},
    ANTHROPIC: {"anthropic_api_key": "the-anthropic-key"},
    COHERE: {"cohere_api_key": "the-cohere-key"},
    INVOKE: {"access_key": "the-access-key", "secret_key": "the-secret-key"},
}
MODELS = {
    BEDROCK: "us.anthropic.claude-3-7-sonnet-20250219-v1:0",
    OPENAI: "gpt-4o",
    GEMINI: "gemini-2.5-pro",
    ANTHROPIC: "claude-sonnet-4-5",
    COHERE: "command-a-vision-07-2025",
    INVOKE: "anthropic.claude-sonnet-4-5-20250929-v1:0",
}
URLS = {
    BEDROCK: f"{LLM_URL}/bedrock/model/${{parameters.model}}/converse",
    OPENAI: f"{LLM_URL}/openai/v1/chat/completions",
    GEMINI: f"{LLM_URL}/gemini/v1beta/models/${{parameters.model}}:generateContent",
    ANTHROPIC: f"{LLM_URL}/anthropic/v1/messages",
    COHERE: f"{LLM_URL}/cohere/v2/chat",
    INVOKE: f"{LLM_URL}/bedrock/model/${{parameters.model}}/invoke",
}
AGENTS = {
    version: [
        f"{short}-{type_}"
        for short in PROVIDERS
        for type_ in TYPES
        if target.since((3, 0)) or type_ != "plan_execute_and_reflect"
    ]
    for version, target in TARGETS.items()
}
"""The agents made on each version, `<provider>-<type>`."""


def block(provider: str, **more: Any) -> dict[str, Any]:
    """Return a `model` block for a provider."""
    credential = dict(CREDENTIALS[provider])
    return {"model_id": MODELS[provider], "model_provider": provider, "credential": credential, **more}


def read(document: Mapping[str, Any]) -> Registration:
    registration = read_registration(json.dumps(document).encode())
    assert registration is not None
    return registration


def registration_of(name: str, members: Mapping[str, Any] = {}, **more: Any) -> Registration:
    """Return the registration of one of `AGENTS`. members: added to it; more: added to its `model`."""
    short, _, type_ = name.partition("-")
    return read({"name": name, "type": type_, "model": block(PROVIDERS[short], **more), **members})


class RegisteredCluster(SimulatedCluster):
    """A simulated cluster with all `AGENTS` of a version, with models at the simulator's endpoints.

    `MODEL_PARAMETERS` has the agent's own system text.
    """

    MODEL_PARAMETERS: Mapping[str, str] = {"system_prompt": "Be brief."}

    def __init__(self, version: str) -> None:
        super().__init__(version)
        for name in AGENTS[version]:
            self.make(version, name)

    def make(self, version: str, name: str, **more: Any) -> None:
        """Make an agent called `name`, `<provider>-<type>`. more: members of the registration, such as its tools."""
        target, resources = TARGETS[version], self.core.resources
        url = URLS[PROVIDERS[name.partition("-")[0]]]
        registration = registration_of(name, more, url=url, model_parameters=dict(self.MODEL_PARAMETERS))
        check(registration, target)
        made = resources.register_model(model_body(registration, target, TAG), deploy=True)
        body = agent_body(registration, target, TAG, made["model_id"])
        self.agents[name] = resources.register_agent(body)["agent_id"]


def profile_of(name: str, version: str) -> AgentProfile:
    """Return the profile of one of `AGENTS`, read from its documents without a cluster."""
    registration, target = registration_of(name), TARGETS[version]
    model = {**model_body(registration, target, TAG), "algorithm": "REMOTE"}
    agent = agent_body(registration, target, TAG, "made")
    return read_profile("agent", agent, {"made": model}, {}, target.version, unified_api=target.unified_api)


@cache
def registered_cluster(version: str) -> RegisteredCluster:
    """Return the simulated cluster of a version, made once."""
    return RegisteredCluster(version)


def golden(file: str, version: str, name: str = "") -> Any:
    """Return what a golden file expects on a version; versions with the same expectation share one entry.

    name: of the agent, if the file holds several.
    """
    content = json.loads((Path(__file__).parent / "golden" / file).read_text())
    (expected,) = [one for versions, one in (content[name] if name else content).items() if version in versions.split()]
    return expected
