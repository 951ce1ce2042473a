"""Bedrock Converse: ``{"messages": [{role, content: [{<kind>: …}]}], "system": [{"text": …}]}``.

Shapes from botocore's `bedrock-runtime` model, operation `Converse`; the service's rules from
docs/evidence/providers.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, assert_never
from urllib.parse import unquote

from msgspec.structs import replace

from gateway.providers import recognition, responses
from gateway.providers.base import Claim, ClusterSupport, ConnectorHints, Evidence, LlmResponse, Provider
from gateway.providers.capabilities import (
    IMAGES,
    NEUTRAL_DOCUMENT_TEXT,
    NEUTRAL_RESULT_TEXT,
    V2_LABEL,
    Capabilities,
    MediaTable,
    RequestLimits,
    Role,
)
from gateway.providers.connector import SYSTEM_PROMPT, ConnectorTemplate, ModelSpec
from gateway.providers.tools import Turn, role_runs, run_content
from gateway.providers.values import Findings
from gateway.unified.formats import ALIASES, FORMATS
from gateway.unified.model import (
    Base64,
    ClientTools,
    ContentBlock,
    ConverseBlock,
    Json,
    Media,
    Text,
    ToolResult,
    ToolSpec,
    ToolUse,
)

MAX_LENGTH = 200
_EXTENSION = re.compile(rf"\.(?:{'|'.join([*FORMATS['document'], *ALIASES])})\Z", re.IGNORECASE)
_DISALLOWED = re.compile(r"[^a-zA-Z0-9()\[\]-]+")


class DocumentNames:
    """Names the documents of one request, in their order."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._taken: set[str] = set()
        self._copies: dict[str, int] = {}
        self._count = 0

    def name(self, block: Media) -> str:
        """Return the name of the next document; note a given name that had to change."""
        self._count += 1
        given = _EXTENSION.sub("", block.name or "")
        wanted = _DISALLOWED.sub(" ", given).strip()[:MAX_LENGTH].rstrip() or f"document-{self._count}"
        name = self._unique(wanted)
        self._taken.add(name)
        if block.name and name != given:
            self._findings.note("DOCUMENT_RENAMED", block.at, f"The document {block.name!r} is sent as {name!r}")
        return name

    def _unique(self, wanted: str) -> str:
        name = wanted
        while name in self._taken:
            copy = self._copies[wanted] = self._copies.get(wanted, 1) + 1
            suffix = f"-{copy}"
            name = wanted[: MAX_LENGTH - len(suffix)] + suffix
        return name


_URL = re.compile(r"/converse(-stream)?\Z")
_MODEL = re.compile(r"/model/([^/]+)/converse(-stream)?\Z")
_TEXT_PART = re.compile(r'"content"\s*:\s*\[\s*\{\s*"text"\s*:')
_OTHER_MEMBERS = ("anthropic_version", "schemaVersion")  # Claude's and Nova's own bodies, for /invoke

_CACHED = (
    ("cacheReadInputTokens", "cacheReadInputTokenCount"),
    ("cacheWriteInputTokens", "cacheWriteInputTokenCount"),
)
"""Counts of cached input tokens: Converse's names [M], and those of Nova on InvokeModel [D]."""

_DOCUMENTS = ("pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md")
_VIDEO = ("mkv", "mov", "mp4", "webm", "flv", "mpeg", "mpg", "wmv", "three_gp")
_AUDIO = (
    *("mp3", "opus", "wav", "aac", "flac", "mp4", "ogg", "mkv"),
    *("mka", "x-aac", "m4a", "mpeg", "mpga", "pcm", "webm"),
)
_MEDIA: MediaTable = {  # [M]
    "image": {"base64": IMAGES, "s3": IMAGES},
    "document": {"base64": _DOCUMENTS, "s3": _DOCUMENTS},
    "video": {"base64": _VIDEO, "s3": _VIDEO},
    "audio": {"base64": _AUDIO, "s3": _AUDIO},
}

BEDROCK = Capabilities(
    label="Bedrock Converse",
    # [D]: 20 images and 5 documents of any model; 1 video and 25 MB in all of Nova
    request=RequestLimits({"image": 20, "document": 5, "video": 1}, 25_000_000),
    media=_MEDIA,
    tool_media={kind: forms for kind, forms in _MEDIA.items() if kind != "audio"},  # [M]
    media_roles=frozenset({"user"}),  # [I]
    native={  # [U] which role may hold which
        "reasoningContent": frozenset({"assistant"}),
        "citationsContent": frozenset({"assistant"}),
        "guardContent": frozenset({"user"}),
        "searchResult": frozenset({"user"}),
        "cachePoint": frozenset({"user", "assistant"}),
    },
    url_patterns={"s3": r"(?=.{1,1024}\Z)s3://[a-z0-9][\.\-a-z0-9]{1,61}[a-z0-9](/.*)?"},  # [M]
    tool_id_characters="a-zA-Z0-9_.:-",  # [M]
    unique_tool_ids=True,  # [I]
    assistant_first=False,  # [I]
    assistant_last="prefill",  # [I]
    merges_turns=True,  # [I]
    calls_apart=True,  # [I]
    document_needs_text=True,  # [I]
    object_results=True,  # [I]
)

_INLINE: MediaTable = {kind: {"base64": _MEDIA[kind]["base64"]} for kind in ("image", "document", "video")}
BEDROCK_V2 = replace(BEDROCK, label=V2_LABEL, media=_INLINE, tool_media=_INLINE, native={})
"""Addresses in S3 arrive as a string in place of an object, and audio and Converse's own blocks not at all
(docs/evidence/facts.md, "conversational_v2")."""


class BedrockConnector(ConnectorTemplate):
    """`bedrock/converse`. `top_p` is sent instead of `temperature`: models refuse both together (3.8.0.0 source)."""

    url = "https://bedrock-runtime.${parameters.region}.amazonaws.com/model/${parameters.model}/converse"
    protocol = "aws_sigv4"
    response_filter = "$.output.message.content[0].text"
    credentials = (("access_key", "secret_key"), ("roleArn",))
    optional_credentials = ("session_token",)

    fixed: ClassVar[Mapping[str, str]] = {"region": "us-east-1", "service_name": "bedrock"}
    user_turn: ClassVar[Mapping[str, Any]] = {"role": "user", "content": [{"text": "${parameters.prompt}"}]}

    def sampling(self, spec: ModelSpec) -> dict[str, str]:
        """Return a temperature, unless `top_p` was given."""
        return {} if "top_p" in spec.parameters else {"temperature": "1.0"}

    def left_out(self, spec: ModelSpec) -> tuple[str, ...]:
        """Leave out a temperature beside `top_p`."""
        return ("temperature",) if {"top_p", "temperature"} <= spec.parameters.keys() else ()

    def model_name(self, spec: ModelSpec) -> str:
        """Return the id, or an ARN with its slashes escaped so that they don't end the path segment."""
        return spec.model_id.replace("/", "%2F")

    def template(self, conversation: str, spec: ModelSpec) -> str:
        """Return the body of a Converse request."""
        name, member = ("top_p", "topP") if "top_p" in spec.parameters else ("temperature", "temperature")
        return (
            f'{{"system":[{{"text":"${{parameters.system_prompt}}"}}],"messages":{conversation},'
            f'"inferenceConfig":{{"maxTokens":${{parameters.max_tokens}},"{member}":${{parameters.{name}}}}}}}'
        )


class ConverseMessages(Provider):
    """The messages of Converse, which Amazon Nova takes on InvokeModel too."""

    messages_field: ClassVar[str] = "messages"
    content_field: ClassVar[str] = "content"
    tools_member: ClassVar[str] = "toolConfig"
    needs_declarations: ClassVar[bool] = True  # [I]

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities: Capabilities = capabilities

    def write(self, turns: Sequence[Turn], findings: Findings) -> list[dict[str, Any]]:
        """Join turns of one role in a row into one message (`Provider.write`)."""
        writer = _Writer(self.capabilities, findings)
        groups = role_runs(turns) if self.capabilities.merges_turns else [[turn] for turn in turns]
        return [writer.message(group) for group in groups]

    def text_part(self, text: str, role: Role = "user") -> dict[str, Any]:
        """Return ``{"text": …}``."""
        return {"text": text}

    def is_tool_result(self, part: Any) -> bool:
        """Return True for ``{"toolResult": …}``."""
        return isinstance(part, dict) and "toolResult" in part

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return ``{"system": [{"text": …}, …]}``."""
        return {"system": [{"text": text} for text in texts]} if texts else {}

    def canonical(self, messages: Any) -> Any:
        """Leave out the member ``"type": "text"`` that templates have beside a text (AWS's own blueprints).

        The service ignores it: its model of a content block has no such member [D].
        """
        return [_canonical(message) for message in messages] if isinstance(messages, list) else messages

    def read_response(self, response: Any) -> LlmResponse | None:
        """Read ``output.message.content`` and ``usage``; ``inputTokens`` does not count cached tokens."""
        parts = responses.member(response, "output", "message", "content")
        if not isinstance(parts, list):
            return None
        text = "".join(responses.text(part.get("text")) for part in responses.objects(parts))
        calls = responses.objects([part.get("toolUse") for part in responses.objects(parts)])
        usage = responses.member(response, "usage")
        cached = [name if responses.member(usage, name) is not None else other for name, other in _CACHED]
        return LlmResponse(
            text,
            tuple(responses.tool_call(c.get("toolUseId"), c.get("name"), c.get("input")) for c in calls),
            responses.usage(usage, ("inputTokens", *cached), ("outputTokens",)),
            responses.text(response.get("stopReason")),
        )

    def called_tools(self, messages: Sequence[Any]) -> list[str]:
        """Return the names in ``toolUse``."""
        calls = (part["toolUse"] for message in messages for part in message["content"] if "toolUse" in part)
        return list(dict.fromkeys(call["name"] for call in calls))

    def declare(self, tools: Sequence[ToolSpec], choice: ClientTools | None) -> dict[str, Any]:
        """Return a ``toolConfig``."""
        specs = [{"toolSpec": {**tool.label, "inputSchema": {"json": tool.schema}}} for tool in tools]
        config: dict[str, Any] = {"tools": specs}
        if choice is not None and choice.required:
            config["toolChoice"] = {"tool": {"name": choice.only}} if choice.only else {"any": {}}
        return {"toolConfig": config}


class BedrockConverse(ConverseMessages):
    """Amazon Bedrock's Converse API."""

    name: ClassVar[str] = "bedrock/converse"
    connector: ClassVar[ConnectorTemplate] = BedrockConnector()
    cluster: ClassVar[ClusterSupport] = ClusterSupport(
        llm_interface="bedrock/converse/claude",
        since=(3, 0),
        tool_config=', "toolConfig": {"tools": [${parameters._tools:-}]}',
        user_turn='{"role":"user","content":[{"text":"TEXT"}]}',
        body_members=frozenset({"system", "messages", "toolConfig"}),
        parameters={"system_prompt": SYSTEM_PROMPT},  # the template of 3.5 and 3.6 has no default
        v2=BEDROCK_V2,
    )

    def __init__(self, capabilities: Capabilities = BEDROCK) -> None:
        super().__init__(capabilities)

    def continues_assistant(self, url: str, body: Mapping[str, Any]) -> bool:
        """Return True for a Claude or Nova model that does, unless these fields may make it think first [D]."""
        model = _MODEL.search(recognition.url_path(url))
        if model is None or "additionalModelRequestFields" in body:
            return False
        name = unquote(model[1])
        return recognition.continues_assistant(name) or recognition.takes_messages(name)

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """Claim a URL that ends in ``/converse``, or content parts without a ``type``. ``/invoke`` is another API."""
        if _URL.search(recognition.url_path(connector.url)):
            return Claim(Evidence.URL, "its URL ends in /converse")
        body = connector.request_body
        is_other = recognition.names_another_api(connector.url) or recognition.member_in(body, _OTHER_MEMBERS)
        if not is_other and recognition.member_in(body, ["messages"]) and _TEXT_PART.search(body):
            return Claim(Evidence.TEMPLATE, 'the content parts of its messages are {"text": …} without a type')
        return None


class _Writer:
    """Writes the messages of one request; document names are unique over all of it."""

    def __init__(self, limits: Capabilities, findings: Findings) -> None:
        self._limits = limits
        self._findings = findings
        self._names = DocumentNames(findings)

    def message(self, turns: Sequence[Turn]) -> dict[str, Any]:
        blocks = run_content(turns)
        content = [self._part(block) for block in blocks]
        document = next((b for b in blocks if isinstance(b, Media) and b.kind == "document"), None)
        if document and self._limits.document_needs_text and not any(isinstance(block, Text) for block in blocks):
            content.append({"text": NEUTRAL_DOCUMENT_TEXT})
            self._findings.note(
                "NEUTRAL_TEXT_ADDED", document.at, "A text is added: the message of a document must have one"
            )
        return {"role": turns[0].role, "content": content}

    def _part(self, block: ContentBlock) -> dict[str, Any]:
        match block:
            case Text(text=text):
                return {"text": text}
            case Media():
                return self._media(block)
            case ToolUse(id=id, name=name, input=input):
                return {"toolUse": {"toolUseId": id, "name": name, "input": input}}
            case ToolResult():
                return self._result(block)
            case ConverseBlock(kind=kind, value=value):
                return {kind: value}
            case _:
                assert_never(block)

    def _media(self, block: Media) -> dict[str, Any]:
        name = {"name": self._names.name(block)} if block.kind == "document" else {}
        return {block.kind: {"format": block.format, **name, "source": _source(block)}}

    def _result(self, block: ToolResult) -> dict[str, Any]:
        content = [self._result_part(part) for part in block.content]
        if not content:
            content = [{"text": NEUTRAL_RESULT_TEXT}]
            self._findings.note("NEUTRAL_TEXT_ADDED", block.at, "A text is added: the tool result is empty")
        result: dict[str, Any] = {"toolUseId": block.id, "content": content}
        if block.is_error:
            result["status"] = "error"
        elif self._limits.success_status:
            result["status"] = "success"
        return {"toolResult": result}

    def _result_part(self, part: Text | Json | Media) -> dict[str, Any]:
        match part:
            case Text(text=text):
                return {"text": text}
            case Json(value=value, at=at):
                if isinstance(value, dict) or not self._limits.object_results:
                    return {"json": value}
                self._findings.note("TOOL_RESULT_STRINGIFIED", at, "The JSON value is sent as text: it is no object")
                return {"text": json.dumps(value, ensure_ascii=False)}
            case Media():
                return self._media(part)
            case _:
                assert_never(part)


def _canonical(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    return {**message, "content": list(map(_canonical_part, content))} if isinstance(content, list) else message


def _canonical_part(part: Any) -> Any:
    is_typed = isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"
    return {"text": part["text"]} if is_typed else part


def _source(block: Media) -> dict[str, Any]:
    if isinstance(block.source, Base64):
        return {"bytes": block.source.token}
    owner = {"bucketOwner": block.source.bucket_owner} if block.source.bucket_owner else {}
    return {"s3Location": {"uri": block.source.url, **owner}}
