"""A simulated cluster with every kind of agent on it, and the gateway's rewrite before it, all in one process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.agents.documents import Rule, read_agents, read_profile, run
from gateway.errors import GatewayError
from gateway.execute import rewrite
from gateway.execute.rewrite import Rewrite, RewriteOptions
from gateway.execute.rewriter import new_turn_id
from gateway.mlcommons.profile import AgentProfile
from gateway.simulator.core import ClusterCore, Executed
from gateway.simulator.fixtures import CLASSIC, FLOW_PROMPT, Template, connector_body, seed_core, templates
from gateway.simulator.llm import LlmEndpoints, answer_any
from gateway.simulator.memory import Message
from gateway.unified.model import AgentInput
from gateway.unified.request import read_execute

Pairs = Sequence[tuple[str, str]]

OWN_PROMPT = (
    "You keep the library.\n${parameters.chat_history}\nTools: ${parameters.tool_names}\n"
    "Asked: ${parameters.question}\nThoughts: ${parameters.scratchpad}"
)
LISTER_PROMPT = "Indices:\n${parameters.lister.output}\nAsked: ${parameters.question}\nAnswer:"
SECOND_PROMPT = "Shorten: ${parameters.first.output}\nAsked was: ${parameters.question}"
LISTED = 'row "1", {x} $ \\ <end>\n[2]'
LLM_URL = "http://llm.invalid"

CONTENT = Template(
    CLASSIC["d"].url, '{"messages":[{"role":"user","content":${parameters.content}}]}', CLASSIC["d"].parameters
)


class Sent(msgspec.Struct, frozen=True):
    """What became of a client's request.

    input: the client's input, None if it could not be read. rewritten, error: the gateway's rewrite or its
    refusal. executed: the cluster's answer and what its models received. stored: the question memory now holds.
    """

    input: AgentInput | None
    rewritten: Rewrite | None
    error: GatewayError | None
    executed: Executed | None
    stored: str | None = None


class SimulatedCluster:
    """All agents of one version: the simulator's own fixtures and the special ones of `_special`.

    rules: the operator's; set them before an agent's profile is read, or clear `profile` after it.
    """

    rules: tuple[Rule, ...] = ()

    def __init__(self, version: str, core: ClusterCore | None = None) -> None:
        self.version = version
        self.core = core or ClusterCore(version)
        self.lister = "ListIndexTool" if self.core.modern else "CatIndexTool"
        self.core.tool_outputs[self.lister] = LISTED
        self.agents: dict[str, str] = {}
        self.templates: Mapping[str, Template] = {}
        self.seed()
        self.profile = cache(self._profile)
        self.numbers = tuple(int(part) for part in version.split("."))

    def seed(self) -> None:
        """Register templates and agents."""
        self.agents = seed_core(self.core, LLM_URL)
        self.templates = {**templates(self.version), "content": CONTENT}
        for body in _special(self, self.lister):
            self.register(body)

    def register(self, body: Mapping[str, Any]) -> None:
        """Register an agent under its name."""
        self.agents[body["name"]] = self.core.resources.register_agent(body)["agent_id"]

    def model(self, template: str) -> str:
        """Return the id of the model with a seeded template."""
        names = {doc["name"]: model_id for model_id, doc in self.core.resources.models.items()}
        if f"model-{template}" not in names:
            made = self.core.resources.create_connector(connector_body(template, self.templates[template], LLM_URL))
            self.core.resources.register_model({"name": f"model-{template}", "function_name": "remote", **made}, True)
            return self.model(template)
        return names[f"model-{template}"]

    def signed_model(self, template: str) -> str:
        """Return the id of a new model whose connector signs its requests, as AWS wants it."""
        body = connector_body(template, self.templates[template], LLM_URL)
        body["parameters"] |= {"region": "us-east-1", "service_name": "bedrock"}
        body |= {"protocol": "aws_sigv4", "credential": {"access_key": "a", "secret_key": "s"}}
        made = self.core.resources.create_connector(body)
        model = {"name": f"signed-{template}", "function_name": "remote", **made}
        return str(self.core.resources.register_model(model, True)["model_id"])

    def _profile(self, name: str) -> AgentProfile:
        """The agent as the gateway reads it, from the documents that GET shows."""
        resources, agent_id = self.core.resources, self.agents[name]
        shown = {"agents": resources.agent, "models": resources.model, "connectors": resources.connector}
        read = run(
            read_agents([agent_id], follow=True), lambda batch: {id_: shown[batch.kind](id_) for id_ in batch.ids}
        )
        document = read.agents[agent_id]
        return read_profile(
            agent_id, document, read.models, read.connectors, self.numbers, self.rules, False, read.others
        )

    def remembering(self, pairs: Pairs) -> str:
        """The id of a new memory that holds `pairs`."""
        memory = self.core.memory.create("a conversation")
        for question, answer in pairs:
            self.core.memory.add(memory, Message(memory.memory_id, question, answer))
        return memory.memory_id

    def ask(self, agent_id: str, parameters: Mapping[str, Any], pairs: Pairs = ()) -> Executed:
        """The cluster without the gateway; its models take anything."""
        self.core.llm = answer_any
        remembered = {"memory_id": self.remembering(pairs)} if pairs else {}
        return self.core.execute(agent_id, {"parameters": {**parameters, **remembered}})

    def send(
        self,
        name: str,
        body: Mapping[str, Any],
        pairs: Pairs = (),
        policy: RewriteOptions | None = None,
        memory_id: str | None = None,
        strict: bool = True,
        streaming: bool = False,
    ) -> Sent:
        """The same through the gateway. strict: the models check what they get as the providers do.

        streaming: to the stream endpoint; an event with an error counts as status 500, and what asks the LLM for a
        stream is left out of the bodies that it got.

        pairs: what the memory holds. memory_id: that memory; None makes one.
        """
        parameters = dict(body.get("parameters") or {})
        if pairs or memory_id:
            parameters["memory_id"] = memory_id or self.remembering(pairs)
        request = read_execute(json.dumps({**body, **({"parameters": parameters} if parameters else {})}).encode())
        assert request.input is not None
        profile = self.profile(name)
        try:
            made = rewrite.rewrite_input(
                profile,
                request,
                request.input,
                policy or RewriteOptions(),
                new_turn_id(),
                tuple(pairs) if profile.memory_type else (),
                streaming=streaming,
            )
        except GatewayError as error:
            return Sent(request.input, None, error, None)
        assert made.body is not None
        self.core.llm = LlmEndpoints() if strict else answer_any
        run = self._stream if streaming else self.core.execute
        executed = run(self.agents[name], b"".join(made.body))
        return Sent(request.input, made, None, executed, self.stored(profile, memory_id))

    def _stream(self, agent_id: str, body: bytes) -> Executed:
        executed = self.core.execute_streamed(agent_id, body)
        failed = any(sign in executed.body for sign in ('data: {"error"', "Error from remote", "Fail to execute"))
        llm_bodies = []
        for text in executed.llm_bodies:
            document = json.loads(text)
            assert document.pop("stream", "messages" in document) is True
            llm_bodies.append(json.dumps(document))
        return Executed(500 if failed else executed.status, executed.body, llm_bodies)

    def stored(self, profile: AgentProfile, memory_id: str | None) -> str | None:
        """Return the question that memory holds of the last turn. memory_id: None for any memory."""
        if not profile.memory_type:
            return None
        memories = self.core.memory.memories
        used = [memories[memory_id]] if memory_id else memories.values()
        newest = [message for memory in used for message in memory.messages.values()]
        return newest[-1].input if newest else None

    def forget(self) -> None:
        """Empties all memories, so that a long run does not grow."""
        self.core.memory.__init__(self.core.modern)  # type: ignore[misc]


def _special(cluster: SimulatedCluster, lister: str) -> Iterator[dict[str, Any]]:
    modern = cluster.core.modern
    memory = {"type": "conversation_index"}
    common = {"app_type": "rag", "memory": memory, "tools": [{"type": lister}]}

    def tool(template: str, name: str = "llm", **parameters: str) -> dict[str, Any]:
        asked = {"model_id": cluster.model(template), "response_filter": cluster.templates[template].response_filter}
        if cluster.templates[template].interface:
            asked["system_prompt"] = "Be brief."
        return {"type": "MLModelTool", "name": name, "parameters": {**asked, **parameters}}

    def flow(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "type": "flow", "tools": list(tools)}

    plain, whole, others = ("bedrock_tutorial", "bedrock_messages", ("openai_messages", "gemini_contents"))
    if not modern:
        plain, whole, others = ("d", "a", ("b", "e2"))
        yield flow("flow-content", tool("content", prompt=FLOW_PROMPT))
    own = json.dumps([{"role": "user", "content": [{"text": "Said: ${parameters.question} (end)"}]}])
    yield flow("own-messages", tool(whole, messages=own))
    for template in (whole, *others, *(["bedrock_upgraded", "openai_upgraded"] if modern else ["h"])):
        yield flow(f"bare-{template}", tool(template))
    for template in (plain, whole, *(["openai_tutorial", "bedrock_upgraded"] if modern else ["f", "h"])):
        seen = {"type": lister, "name": "lister"}
        yield flow(f"lister-{template}", seen, tool(template, prompt=LISTER_PROMPT))
        first = tool(template, "first", prompt=FLOW_PROMPT)
        yield flow(f"two-{template}", first, tool(template, "second", prompt=SECOND_PROMPT))
        llm = {"model_id": cluster.model(template), "parameters": {"max_iteration": "5", "prompt": OWN_PROMPT}}
        llm["parameters"] |= {"response_filter": cluster.templates[template].response_filter}  # type: ignore[operator]
        if cluster.templates[template].interface:
            llm["parameters"] |= {"system_prompt": "Be brief."}  # type: ignore[operator]
        yield {"name": f"conv_own-{template}", "type": "conversational", "llm": llm, **common}
    if modern:
        yield from _calling(cluster, common, tool)


def _calling(cluster: SimulatedCluster, common: dict[str, Any], tool: Any) -> Iterator[dict[str, Any]]:
    """Function calling with an LLM among its tools, and without a prompt of its own."""
    for template in ("bedrock_tutorial", "bedrock_upgraded"):
        prompt = {"max_iteration": "5", "system_prompt": "Be brief.", "prompt": "${parameters.question}"}
        calling = {"_llm_interface": cluster.templates[template].interface}
        agent = {"type": "conversational", "parameters": calling, **common}
        llm = {"model_id": cluster.model(template), "parameters": prompt}
        schema = {"attributes": {"input_schema": '{"type":"object"}', "strict": "false"}}
        tools = [{**tool(template, "helper", prompt="Help with ${parameters.question}"), **schema}]
        yield {**agent, "name": f"fc_llm-{template}", "llm": llm, "tools": tools}
        bare = {"model_id": cluster.model(template), "parameters": {"max_iteration": "5", "system_prompt": "Be brief."}}
        yield {**agent, "name": f"fc_noprompt-{template}", "llm": bare}
        signed = {"model_id": cluster.signed_model(template), "parameters": prompt}
        yield {**agent, "name": f"fc_signed-{template}", "llm": signed}


@cache
def cluster_of(version: str) -> SimulatedCluster:
    """Return the simulated cluster of a version, created once."""
    return SimulatedCluster(version)


__all__ = ["Pairs", "Sent", "SimulatedCluster", "cluster_of", "replace"]
