"""Cohere's chat API, version 2: ``{"messages": [{role, content: [{"type": …}]}]}``.

It looks like OpenAI's and differs in what an assistant's turn with tool calls holds (`tool_plan`), in tool results
(texts and `document` parts), and in the roles. Shapes from the cohere SDK's `ChatMessageV2`; the service's rules from
docs/evidence/providers.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.providers import recognition, responses
from gateway.providers.base import Claim, ConnectorHints, Evidence, LlmResponse, Provider
from gateway.providers.capabilities import (
    IMAGES,
    IMAGES_BY_URL,
    TEXT_DOCUMENTS,
    Capabilities,
    MediaTable,
    RequestLimits,
    Role,
)
from gateway.providers.connector import ConnectorTemplate, ModelSpec
from gateway.providers.openai_chat import ChatWriter, canonical_message, read_call, write_call
from gateway.providers.tools import Turn, role_runs
from gateway.providers.values import Findings
from gateway.unified.model import ClientTools, ToolSpec, ToolUse

# Not documents, response_format, tools or max_tokens: other APIs have those, too.
_OWN_MEMBERS = ("citation_options", "safety_mode", "strict_tools")
_STOP_REASONS = {
    "COMPLETE": "end_turn",
    "STOP_SEQUENCE": "stop_sequence",
    "MAX_TOKENS": "max_tokens",
    "TOOL_CALL": "tool_use",
}

_MEDIA: MediaTable = {
    "image": {"base64": IMAGES, "https": IMAGES_BY_URL},  # [D]
    "document": {"base64": TEXT_DOCUMENTS},
}

COHERE = Capabilities(
    label="Cohere chat",
    request=RequestLimits({"image": 20}, 20_000_000),  # [D]
    media=_MEDIA,
    tool_media=_MEDIA,  # images are moved to a user message after the tool messages
    text_documents=frozenset(TEXT_DOCUMENTS),
    hoists_system=False,
    assistant_last="no",  # [U]
    calls_apart=True,  # [M] `tool_calls` is a member of the message, not a part
    object_results=True,  # [M] a document's `data` is an object
    image_details=frozenset({"low", "high"}),  # [M]
)


class CohereConnector(ConnectorTemplate):
    """`cohere/v2/chat`."""

    url = "https://api.cohere.com/v2/chat"
    response_filter = "$.message.content[0].text"
    credentials = (("cohere_api_key",),)

    headers: ClassVar[Mapping[str, str]] = {"Authorization": "Bearer ${credential.cohere_api_key}"}
    lead: ClassVar[tuple[Mapping[str, Any], ...]] = ({"role": "system", "content": "${parameters.system_prompt}"},)
    user_turn: ClassVar[Mapping[str, Any]] = {"role": "user", "content": "${parameters.prompt}"}

    def template(self, conversation: str, spec: ModelSpec) -> str:
        """Return the body of a chat request."""
        p = ',"p":${parameters.top_p}' if "top_p" in spec.parameters else ""
        return (
            f'{{"model":"${{parameters.model}}","stream":false,"messages":{conversation},'
            f'"max_tokens":${{parameters.max_tokens}},"temperature":${{parameters.temperature}}{p}}}'
        )


class CohereChat(Provider):
    """Cohere's chat API, version 2. The body of version 1, which Bedrock's InvokeModel takes, is another."""

    name: ClassVar[str] = "cohere/v2/chat"
    messages_field: ClassVar[str] = "messages"
    content_field: ClassVar[str] = "content"
    tools_member: ClassVar[str] = "tools"
    connector: ClassVar[ConnectorTemplate] = CohereConnector()

    def __init__(self, capabilities: Capabilities = COHERE) -> None:
        self.capabilities: Capabilities = capabilities

    def write(self, turns: Sequence[Turn], findings: Findings) -> list[dict[str, Any]]:
        """Leave system turns among the messages; write each tool result as its own message (`Provider.write`)."""
        writer = _Writer(self.capabilities, findings)
        return [message for run in role_runs(turns) for message in writer.run(run)]

    def text_part(self, text: str, role: Role = "user") -> dict[str, Any]:
        """Return ``{"type": "text", "text": …}``."""
        return {"type": "text", "text": text}

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return {}: system text is a message."""
        return {}

    def declare(self, tools: Sequence[ToolSpec], choice: ClientTools | None) -> dict[str, Any]:
        """Return ``tools`` and ``tool_choice``, which can't name a tool [M]: the only one is declared alone then."""
        only = choice.only if choice is not None else ""
        functions = [{**tool.label, "parameters": tool.schema} for tool in tools if only in ("", tool.name)]
        body: dict[str, Any] = {"tools": [{"type": "function", "function": function} for function in functions]}
        return {**body, "tool_choice": "REQUIRED"} if choice is not None and choice.required else body

    def canonical(self, messages: Any) -> Any:
        """Write string content as one text part, and a call's arguments parsed; leave out content that is null."""
        if not isinstance(messages, list):
            return messages
        normal = [canonical_message(message) for message in messages]
        return [
            {name: value for name, value in message.items() if name != "content" or value is not None}
            if isinstance(message, dict)
            else message
            for message in normal
        ]

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """Claim a URL that ends in ``/v2/chat``, on any host, or messages with a member that only this API has."""
        if recognition.url_path(connector.url).endswith("/v2/chat"):
            return Claim(Evidence.URL, "its URL ends in /v2/chat")
        body = connector.request_body
        member = recognition.member_in(body, _OWN_MEMBERS)
        if member and recognition.member_in(body, ["messages"]) and not recognition.names_another_api(connector.url):
            return Claim(Evidence.TEMPLATE, f"its template has messages and {member}")
        return None

    def read_response(self, response: Any) -> LlmResponse | None:
        """Read ``message`` and ``usage.tokens``. The plan beside tool calls is the text of such a turn."""
        message = responses.member(response, "message")
        if not isinstance(message, dict):
            return None
        parts = responses.objects(message.get("content"))
        text = "".join(responses.text(part.get("text")) for part in parts if part.get("type") == "text")
        return LlmResponse(
            text or responses.text(message.get("tool_plan")),
            tuple(read_call(call) for call in responses.objects(message.get("tool_calls"))),
            responses.usage(responses.member(response, "usage", "tokens"), ("input_tokens",), ("output_tokens",)),
            responses.stop_reason(response.get("finish_reason"), _STOP_REASONS),
        )


class _Writer(ChatWriter):
    """Writes the messages of one request."""

    def role(self, role: Role) -> str:
        """Return the role; system for developer."""
        return "system" if role == "developer" else role  # [M] there is no role developer

    def assistant(self, parts: list[dict[str, Any]], turn: Turn) -> dict[str, Any]:
        """Return the assistant's message. Beside calls, its text is their plan, as the service writes it [D]."""
        calls = [write_call(block) for block in turn.content if isinstance(block, ToolUse)]
        if not calls:
            return {"role": "assistant", "content": parts}
        texts = [part["text"] for part in parts]
        if len(texts) > 1:
            self.findings.note("TEXT_JOINED", turn.at, "the texts beside the tool calls arrive as one, their plan")
        return {"role": "assistant", **({"tool_plan": "\n".join(texts)} if texts else {}), "tool_calls": calls}

    def json_part(self, value: Any, at: str) -> dict[str, Any]:
        """Return an object as a document's data, and any other value as text."""
        if isinstance(value, dict) and value and self.limits.object_results:
            return {"type": "document", "document": {"data": value}}
        return super().json_part(value, at)
