"""Unified agents of the first generation (V1; 3.5 and later), registered with a `model` block instead of a model's id.

The cluster makes a model with a connector inside, and writes the user's turn and the history itself. Both are filled in
before the connector's template is: the turn once, each message of the history twice (docs/evidence/facts.md, "What
memory keeps from turn to turn").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.mlcommons.template import escape_json
from gateway.simulator.documents import refused
from gateway.simulator.errors import ExecuteFailure, Json, illegal_argument
from gateway.simulator.memory import Message
from gateway.simulator.render import Parameters, fill
from gateway.simulator.settings import UNIFIED_API

SYSTEM_PROMPT = "You are a helpful assistant."


@dataclass(frozen=True)
class Provider:
    """What the cluster makes for one `model_provider`.

    limits, limit_parameters: the end of the request body from 3.8 on, and its parameters. turn: the user's turn.
    text, message: one text of the history, and one message around it.
    """

    interface: str
    name: str
    api: str
    url: str
    headers: Mapping[str, str]
    body: str
    limits: str
    turn: str
    text: str
    message: str
    assistant: str = "assistant"
    protocol: str = "http"
    parameters: Mapping[str, str] | None = None
    limit_parameters: Mapping[str, str] | None = None

    def connector(self, model: Mapping[str, Any], limited: bool) -> Json:
        """Return the connector inside the model that is made for a `model` block. limited: from 3.8 on."""
        given = {"model": model["model_id"], **(model.get("model_parameters") or {})}
        action = {
            "action_type": "PREDICT",
            "method": "POST",
            "url": self.url,
            "headers": dict(self.headers),
            "request_body": self.body.replace("LIMITS", self.limits if limited else ""),
        }
        return {
            "name": f"Auto-generated {self.name} connector for Agent",
            "version": "1",
            "description": f"Auto-generated connector for {self.api} API",
            "protocol": self.protocol,
            "parameters": {**(self.parameters or {}), **given, **(self.limit_parameters or {} if limited else {})},
            "credential": model.get("credential"),
            "actions": [action],
            "client_config": dict(_CLIENT_CONFIG),
        }

    def history(self, turns: Iterable[Message], limit: int) -> str:
        """Return the last `limit` messages of `turns` (0: all of them) as `_chat_history`.

        A turn that failed has no answer, and its question is there alone.
        """
        messages = [
            self._message(role, text)
            for turn in turns
            for role, text in (("user", turn.input), (self.assistant, turn.response))
            if text
        ]
        return "".join(f"{message}, " for message in messages[-limit:])

    def _message(self, role: str, text: str) -> str:
        content = fill(self.text, {"content_text": escape_json(text)})
        return fill(self.message, {"msg_role": role, "msg_content_array": content})


_CLIENT_CONFIG: Mapping[str, Any] = {
    "max_connection": 30,
    "connection_timeout": 30,
    "read_timeout": 30,
    "retry_backoff_millis": 200,
    "retry_timeout_seconds": 30,
    "max_retry_times": 3,
    "retry_backoff_policy": "constant",
    "skip_ssl_verification": False,
}
_MESSAGES = "[${parameters._chat_history:-}${parameters.body}${parameters._interactions:-}]${parameters.tool_configs:-}"
_MESSAGE = '{"role":"${parameters.msg_role}","content":[${parameters.msg_content_array}]}'

PROVIDERS: Mapping[str, Provider] = {
    "bedrock/converse": Provider(
        interface="bedrock/converse/claude",
        name="Bedrock Converse",
        api="Bedrock Converse",
        protocol="aws_sigv4",
        parameters={"service_name": "bedrock", "region": "us-east-1"},
        url="https://bedrock-runtime.${parameters.region}.amazonaws.com/model/${parameters.model}/converse",
        headers={"content-type": "application/json"},
        body='{"system": [{"text": "${parameters.system_prompt}"}], "messages": ' + _MESSAGES + "LIMITS }",
        limits=', "inferenceConfig": {"maxTokens": ${parameters.max_tokens:-4096}${parameters.temperature_field:-}'
        "${parameters.top_p_field:-}}",
        limit_parameters={"temperature_field": ', "temperature": 1.0'},
        turn='{"role":"user","content":[{"text":"${parameters.user_text}"}]}',
        text='{"text":"${parameters.content_text}"}',
        message=_MESSAGE,
    ),
    "openai/v1/chat/completions": Provider(
        interface="openai/v1/chat/completions",
        name="OpenAI",
        api="OpenAI Chat Completions",
        url="https://api.openai.com/v1/chat/completions",
        headers={"Authorization": "Bearer ${credential.openai_api_key}", "Content-Type": "application/json"},
        body='{"model":"${parameters.model}","messages":' + _MESSAGES + "LIMITS}",
        limits=',"max_completion_tokens":${parameters.max_tokens:-4096},"temperature":${parameters.temperature:-1.0}'
        "${parameters.top_p_field:-}",
        turn='{"role":"user","content":"${parameters.user_text}"}',
        text='{"type":"text","text":"${parameters.content_text}"}',
        message=_MESSAGE,
    ),
    "gemini/v1beta/generatecontent": Provider(
        interface="gemini/v1beta/generatecontent",
        name="Gemini",
        api="Gemini generateContent",
        url="https://generativelanguage.googleapis.com/v1beta/models/${parameters.model}:generateContent",
        headers={"x-goog-api-key": "${credential.gemini_api_key}", "Content-Type": "application/json"},
        body='{"systemInstruction":{"parts":[{"text":"${parameters.system_prompt:-' + SYSTEM_PROMPT + '}"}]},'
        '"contents":' + _MESSAGES + "LIMITS}",
        limits=',"generationConfig":{"maxOutputTokens":${parameters.max_tokens:-4096},'
        '"temperature":${parameters.temperature:-1.0}${parameters.top_p_field:-}}',
        turn='{"role":"user","parts":[{"text":"${parameters.user_text}"}]}',
        text='{"text":"${parameters.content_text}"}',
        message='{"role":"${parameters.msg_role}","parts":[${parameters.msg_content_array}]}',
        assistant="model",
    ),
}


def provider_of(agent: Mapping[str, Any]) -> Provider | None:
    """Return the provider of a V1 agent; None for any other agent."""
    model = agent.get("model")
    return PROVIDERS[model["model_provider"]] if model and agent["type"].lower() != "conversational_v2" else None


# Registering


def check_model(body: Mapping[str, Any], api_on: bool) -> None:
    """Check the `model` block of ``agents/_register``.

    Raises:
        RestFailure: 400 while the unified API is off, for an unknown provider, or without credential.
    """
    if not api_on:
        raise refused(f"Unified agent API is not enabled. To enable, please update the setting {UNIFIED_API}")
    model = body["model"]
    if model.get("model_provider") not in PROVIDERS:
        raise refused(f"Unknown model provider: {model.get('model_provider')}")
    if not model.get("credential"):
        raise refused("Missing credential")


def model_body(model: Mapping[str, Any], limited: bool) -> Json:
    """Return the registration of the model that the cluster makes for a `model` block."""
    connector = PROVIDERS[model["model_provider"]].connector(model, limited)
    name = f"Auto-generated model for {model['model_id']}"
    return {
        "name": name,
        "function_name": "remote",
        "description": "Auto-generated model for agent",
        "connector": connector,
    }


def agent_body(body: Mapping[str, Any], model_id: str) -> Json:
    """Return the agent's registration with the model that was made for it."""
    model = body["model"]
    llm: Json = {"model_id": model_id}
    if model.get("model_parameters"):
        llm["parameters"] = model["model_parameters"]
    interface = {"_llm_interface": PROVIDERS[model["model_provider"]].interface}
    shown = {name: model[name] for name in ("model_id", "model_provider")}
    return {**body, "llm": llm, "model": shown, "parameters": {**(body.get("parameters") or {}), **interface}}


# Running


def with_turn(agent: Mapping[str, Any], parameters: Parameters | None, given: str | list[Any] | None) -> Parameters:
    """Return the parameters of a run: of a V1 agent, with the user's turn as `question` and `body`.

    parameters, given: of the request; None if it has none.

    Raises:
        ExecuteFailure: 400 or 500 for an `input` that the agent does not take.
    """
    provider = provider_of(agent)
    if provider is None:
        if parameters is None:
            raise ExecuteFailure(500, "NullPointerException", _NO_DATA_SET)
        return parameters
    result = dict(parameters or {})
    text = result.get("question") if given is None else given
    if text is None:
        raise illegal_argument("AgentInput and its input field cannot be null")
    if not isinstance(text, str):
        raise _only_text(text)
    if not text.strip():
        raise illegal_argument("Text input cannot be null or empty")
    result["question"] = text
    planner = agent["type"].lower() == "plan_execute_and_reflect"
    result["body"] = provider.turn.replace("user_text", "prompt") if planner else _turn(provider, text)
    return result


def _turn(provider: Provider, text: str) -> str:
    try:
        return fill(provider.turn, {"user_text": escape_json(text)})
    except ExecuteFailure as failure:
        raise ExecuteFailure(400, failure.kind, failure.details) from None


def _only_text(given: list[Any]) -> ExecuteFailure:
    if not given:
        return illegal_argument("Input type not supported. Expected String, List<ContentBlock>, or List<Message>")
    kind = "MESSAGES" if "role" in given[0] else "CONTENT_BLOCKS"
    return illegal_argument(
        f"V1 agents with unified agent interface only support TEXT input type. Found input type: {kind}. Please use "
        'TEXT input (e.g., {"input": "your text here"}), or upgrade to CONVERSATIONAL_V2 agent type for multi-modal '
        "support (CONTENT_BLOCKS, MESSAGES)."
    )


_NO_DATA_SET = (
    'Cannot invoke "org.opensearch.ml.common.dataset.remote.RemoteInferenceInputDataSet.getParameters()" because '
    '"inputDataSet" is null'
)
