"""Any conversation ends in a body that the SDK accepts, with all of its content in order; or in a refusal that names
places in the input. There is no third outcome."""

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from gateway.providers.base import Inexpressible, MappingOptions, Provider
from gateway.providers.capabilities import NEUTRAL_DOCUMENT_TEXT, NEUTRAL_RESULT_TEXT, TOOL_ERROR_TEXT
from gateway.unified.model import AgentInput, Base64, ConverseBlock, Json, Media, Text, ToolResult, ToolUse
from tests.conftest import examples

from .conversations import conversations
from .mapping import fill
from .test_golden import PROVIDERS

NEUTRAL = {NEUTRAL_DOCUMENT_TEXT, NEUTRAL_RESULT_TEXT, TOOL_ERROR_TEXT}
STANDARD_ROLES = {role: role for role in ("system", "developer", "user", "assistant")} | {"tool": "user"}
CLAUDE = ("anthropic_messages", "bedrock_invoke")
CHAT = ("openai_chat", "cohere_chat")
CONVERSE = ("bedrock_converse", "bedrock_nova")
TEXT_FORMATS = {"txt", "md", "csv", "html"}


class Content:
    """The content of a conversation as streams; each stream has its own order."""

    def __init__(self) -> None:
        self.system: list[Any] = []
        self.plain: list[Any] = []
        self.calls: list[Any] = []
        self.results: list[Any] = []  # [id, failed, text and JSON]
        self.result_media: list[Any] = []


def present_items(name: str, blocks: Sequence[Any]) -> list[Any]:
    """The items of `blocks`; of blank ones, which are left out, there are none."""
    return [value for value in (item(name, block) for block in blocks) if value is not None]


def content_of_input(name: str, agent_input: AgentInput) -> Content:
    content_found = Content()
    for message in agent_input.messages:
        role = STANDARD_ROLES.get(message.role.lower())
        items: list[Any] = []
        for block in message.content:
            match block:
                case ToolUse():
                    content_found.calls.append([block.name, block.input])
                case ToolResult():
                    media = [part for part in block.content if isinstance(part, Media) and not as_text(name, part)]
                    rest = [part for part in block.content if part not in media]
                    content_found.result_media += present_items(name, media)
                    content_found.results.append([block.is_error, present_items(name, rest)])
                case _:
                    items.append((block, item(name, block)))
        present = [(block, value) for block, value in items if value is not None]
        values = [value for _, value in present]
        if role is None and (present or any(isinstance(block, ToolResult) for block in message.content)):
            starts_with_text = bool(present) and isinstance(values[0], str) and is_text(name, present[0][0])
            if starts_with_text and first_present(name, message.content) is present[0][0]:
                values[0] = f"[{message.role}]: {values[0]}"
            else:
                values.insert(0, f"[{message.role}]:")
        hoisted = role in ("system", "developer") and name not in CHAT
        (content_found.system if hoisted else content_found.plain).extend(values)
    return content_found


def first_present(name: str, content: Any) -> Any:
    return next(
        (block for block in content if isinstance(block, ToolUse | ToolResult) or item(name, block) is not None), None
    )


def is_text(name: str, block: Any) -> bool:
    return isinstance(block, Text) or (isinstance(block, Media) and as_text(name, block))


def as_text(name: str, block: Media) -> bool:
    inline = isinstance(block.source, Base64) and block.kind == "document"
    return inline and name not in ("bedrock_converse", *CLAUDE) and block.format in TEXT_FORMATS


def item(name: str, block: Any) -> Any:
    """A block as it is looked for: a text, a token or URL, a native block; None for blank text."""
    match block:
        case Text():
            return block.text if block.text.strip() else None
        case Media(source=Base64() as source):
            if as_text(name, block) or (name in CLAUDE and block.kind == "document" and block.format in TEXT_FORMATS):
                text = base64.b64decode(source.data).decode()
                return text if text.strip() else None
            return source.token
        case Media():
            return block.source.url
        case ConverseBlock():
            return {block.kind: block.value}
        case Json():
            objects_only = name in CONVERSE and not isinstance(block.value, dict)
            objects_only |= name == "cohere_chat" and not (isinstance(block.value, dict) and block.value)
            return (
                json.dumps(block.value, ensure_ascii=False)
                if objects_only or name in ("openai_chat", *CLAUDE)
                else block
            )
    raise AssertionError(block)


def content_of_request(name: str, fields: dict[str, Any], extracted: set[str]) -> Content:
    content_found = Content()
    match name:
        case "bedrock_converse" | "bedrock_nova":
            content_found.system = [part["text"] for part in fields.get("system", [])]
            for message in fields["messages"]:
                for part in message["content"]:
                    _bedrock(part, content_found)
        case "anthropic_messages" | "bedrock_invoke":
            content_found.system = [part["text"] for part in fields.get("system", [])]
            for message in fields["messages"]:
                for part in message["content"]:
                    _anthropic(part, content_found)
        case "openai_chat" | "cohere_chat":
            for message in fields["messages"]:
                _openai(message, content_found, extracted)
        case "gemini":
            content_found.system = [part["text"] for part in fields.get("systemInstruction", {}).get("parts", [])]
            for content in fields["contents"]:
                for part in content["parts"]:
                    _gemini(part, content_found)
    return content_found


def _bedrock(part: dict[str, Any], content_found: Content) -> None:
    [(kind, value)] = part.items()
    match kind:
        case "toolUse":
            content_found.calls.append([value["toolUseId"], value["name"], value["input"]])
        case "toolResult":
            texts = []
            for inner in value["content"]:
                [(inner_kind, inner_value)] = inner.items()
                if inner_kind in ("text", "json"):
                    texts += [] if inner_value in NEUTRAL_LIST else [inner_value]
                else:
                    content_found.result_media.append(_location(inner_value["source"]))
            content_found.results.append([value["toolUseId"], value.get("status") == "error", texts])
        case "text":
            content_found.plain += [] if value in NEUTRAL else [value]
        case "image" | "video" | "audio" | "document":
            content_found.plain.append(_location(value["source"]))
        case _:
            content_found.plain.append(part)


def _anthropic(part: dict[str, Any], content_found: Content) -> None:
    match part["type"]:
        case "tool_use":
            content_found.calls.append([part["id"], part["name"], part["input"]])
        case "tool_result":
            content = part.get("content", [])
            texts = [inner["text"] for inner in content if inner["type"] == "text"]
            content_found.result_media += [_source(inner["source"]) for inner in content if inner["type"] != "text"]
            failed = part.get("is_error", False) or TOOL_ERROR_TEXT in texts[:1]
            content_found.results.append([part["tool_use_id"], failed, [text for text in texts if text not in NEUTRAL]])
        case "text":
            content_found.plain.append(part["text"])
        case _:
            content_found.plain.append(_source(part["source"]))


def _source(source: dict[str, Any]) -> str:
    return str(source.get("data") or source["url"])


NEUTRAL_LIST = list(NEUTRAL)


def _location(source: dict[str, Any]) -> str:
    return str(source.get("bytes") or source["s3Location"]["uri"])


def _openai(message: dict[str, Any], content_found: Content, extracted: set[str]) -> None:
    values = []
    if message.get("tool_plan"):
        values.append(message["tool_plan"])
    for part in message.get("content") or []:
        match part["type"]:
            case "document":
                values.append(part["document"]["data"])
            case "text":
                values.append(part["text"])
            case "image_url":
                values.append(part["image_url"]["url"].rpartition("base64,")[2])
            case "file":
                values.append(part["file"]["file_data"].rpartition("base64,")[2])
            case "input_audio":
                values.append(part["input_audio"]["data"])
    if message["role"] == "tool":
        texts = [value for value in values if value not in NEUTRAL_LIST]
        content_found.results.append([message["tool_call_id"], TOOL_ERROR_TEXT in values[:1], texts])
    else:
        content_found.result_media += [value for value in values if value in extracted]
        content_found.plain += [value for value in values if value not in extracted]
    for call in message.get("tool_calls", []):
        content_found.calls.append([call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])])


def _gemini(part: dict[str, Any], content_found: Content) -> None:
    [(kind, value)] = part.items()
    match kind:
        case "text":
            content_found.plain.append(value)
        case "inlineData":
            content_found.plain.append(value["data"])
        case "fileData":
            content_found.plain.append(value["fileUri"])
        case "functionCall":
            content_found.calls.append([value["id"], value["name"], value["args"]])
        case "functionResponse":
            [(outcome, output)] = value["response"].items()
            content_found.results.append([value["id"], outcome == "error", output])
            content_found.result_media += [inner["inlineData"]["data"] for inner in value.get("parts", [])]


def results_as_sent(name: str, results: list[Any]) -> list[Any]:
    """The client's results in the shape `content_of_request` finds them."""
    sent = []
    for failed, parts in results:
        values = [part.value if isinstance(part, Json) else part for part in parts]
        whole: Any = values
        if name == "gemini":
            whole = values[0] if len(values) == 1 else values or ""
        sent.append([failed, whole])
    return sent


@pytest.mark.parametrize("name", PROVIDERS)
@given(agent_input=conversations(), allow_prefill=st.booleans())
@examples(150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_whole_or_refused(name: str, agent_input: AgentInput, allow_prefill: bool) -> None:
    provider, check = PROVIDERS[name]
    check_conversation(name, provider, check, agent_input, MappingOptions(allow_prefill=allow_prefill))


def check_conversation(
    name: str, provider: Provider, check: Any, agent_input: AgentInput, options: MappingOptions
) -> None:
    places = {"input"} | {message.at for message in agent_input.messages}
    for message in agent_input.messages:
        for block in message.content:
            places |= {block.at, *(part.at for part in block.content)} if isinstance(block, ToolResult) else {block.at}
    try:
        request = provider.map(agent_input, options)
    except Inexpressible as error:
        refusal = error
    else:
        refusal = None
    if refusal:
        event("refused")
        named = {problem.place for problem in refusal.problems}
        assert named
        assert named <= places
        return
    event("mapped")
    assert provider.map(agent_input, options) == request
    assert {notice.place for notice in request.notices} <= places
    fields = provider.fields(request)
    check(fill(fields, agent_input))
    client = content_of_input(name, agent_input)
    sent = content_of_request(name, fields, set(client.result_media))
    assert sent.system == client.system
    if name == "cohere_chat":  # the texts beside tool calls are one, their plan
        sent.plain, client.plain = ["\n".join(sent.plain)], ["\n".join(client.plain)]
    assert sent.plain == client.plain
    assert sent.result_media == client.result_media
    assert [call[1:] for call in sent.calls] == client.calls
    assert [result[1:] for result in sent.results] == results_as_sent(name, client.results)
    assert [result[0] for result in sent.results] == ids_of_answers(agent_input, [call[0] for call in sent.calls])


def ids_of_answers(agent_input: AgentInput, sent_ids: list[str]) -> list[str]:
    """The sent ids of the calls that the results answer: by the client's id, first come first served."""
    waiting: list[tuple[str, str]] = []
    ids = iter(sent_ids)
    answered = []
    for message in agent_input.messages:
        for block in message.content:
            if isinstance(block, ToolUse):
                waiting.append((block.id, next(ids)))
            elif isinstance(block, ToolResult):
                call = next(call for call in waiting if call[0] == block.id)
                waiting.remove(call)
                answered.append(call[1])
    return answered


@pytest.mark.parametrize("name", PROVIDERS)
@given(agent_input=conversations())
@examples(100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_text_is_carried_whatever_it_says(name: str, agent_input: AgentInput) -> None:
    """With a marker in place of each text, the result differs only in those texts. Delivery relies on it."""
    provider, _ = PROVIDERS[name]
    texts: dict[str, str] = {}

    def marked(block: Any) -> Any:
        if isinstance(block, ToolResult):
            return msgspec.structs.replace(block, content=tuple(marked(part) for part in block.content))
        if not isinstance(block, Text) or not block.text.strip():
            return block
        marker = f"marker{len(texts)}word"
        texts[marker] = block.text
        return Text(marker, block.at)

    messages = tuple(
        msgspec.structs.replace(m, content=tuple(marked(b) for b in m.content)) for m in agent_input.messages
    )
    outcomes = [
        outcome(provider, conversation) for conversation in (agent_input, AgentInput(agent_input.type, messages))
    ]
    assert outcomes[0] == unmarked(outcomes[1], texts)


def outcome(provider: Provider, agent_input: AgentInput) -> Any:
    try:
        request = provider.map(agent_input, MappingOptions())
    except Inexpressible as refusal:
        return [(problem.place, problem.code) for problem in refusal.problems]
    return [request.messages, request.system, [(notice.place, notice.code) for notice in request.notices]]


def unmarked(value: Any, texts: dict[str, str]) -> Any:
    if isinstance(value, str):
        return re.sub(r"marker\d+word", lambda match: texts[match[0]], value)
    if isinstance(value, dict):
        return {name: unmarked(inner, texts) for name, inner in value.items()}
    return type(value)(unmarked(inner, texts) for inner in value) if isinstance(value, list | tuple) else value
