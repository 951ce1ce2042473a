"""Bedrock Converse and InvokeModel: what the service accepts, and how it answers.

The rules are those of docs/evidence/providers.md, "Bedrock Converse".
"""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.simulator.llm import anthropic
from gateway.simulator.llm.checks import Refused, a_list, a_text, an_object, base64_bytes, need, one_of

IMAGE_FORMATS = frozenset({"png", "jpeg", "gif", "webp"})
DOCUMENT_FORMATS = frozenset({"pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md"})
VIDEO_FORMATS = frozenset({"mkv", "mov", "mp4", "webm", "flv", "mpeg", "mpg", "wmv", "three_gp"})
AUDIO_FORMATS = frozenset(
    "mp3 opus wav aac flac mp4 ogg mkv mka x-aac m4a mpeg mpga pcm webm".split()  # noqa: SIM905
)
_FORMATS = {"image": IMAGE_FORMATS, "video": VIDEO_FORMATS, "audio": AUDIO_FORMATS}
_PLAIN = frozenset({"guardContent", "cachePoint", "reasoningContent", "citationsContent", "searchResult"})
_BLOCKS = frozenset({"text", "image", "document", "video", "audio", "toolUse", "toolResult"}) | _PLAIN
_RESULT_BLOCKS = frozenset({"json", "text", "image", "document", "video", "searchResult"})
_FIELDS = frozenset(
    {"messages", "system", "inferenceConfig", "toolConfig", "guardrailConfig", "additionalModelRequestFields"}
    | {"promptVariables", "additionalModelResponseFieldPaths", "requestMetadata", "performanceConfig", "outputConfig"}
)
_NOVA_FIELDS = frozenset({"schemaVersion", "messages", "system", "inferenceConfig", "toolConfig"})
_NOVA = re.compile(r"\bamazon\.nova-(lite|micro|pro|premier|2-)")
_NAME = re.compile(r"(?!.*\s\s)[A-Za-z0-9\s\-()\[\]]{1,200}")
_TOOL_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_COMPLETED = frozenset({"prompt", "inputText"})  # of Claude 2 and others, of Titan
_MAX_IMAGES, _MAX_IMAGE_BYTES = 20, int(3.75 * 1024 * 1024)
_MAX_DOCUMENTS, _MAX_DOCUMENT_BYTES = 5, int(4.5 * 1024 * 1024)


def check(body: Any, model: str = "") -> None:
    """Raise `Refused` for a Converse body that the service would not take for `model`."""
    _check(an_object(body, "body", _FIELDS, ("messages",)), model)


def check_nova(body: Any, model: str = "") -> None:
    """Raise `Refused` for a body that InvokeModel would not take for one of Amazon's Nova models."""
    request = an_object(body, "body", _NOVA_FIELDS, ("messages",))
    need(request.get("schemaVersion") in (None, "messages-v1"), "schemaVersion: is not supported")
    conversation = _check(request, model)
    need(not conversation.documents, "documents are only supported by the Converse API")


def _known(block: Any) -> Any:
    """Return a block without ``"type": "text"``, which AWS's own blueprint has beside a text: no member of the API."""
    if isinstance(block, dict) and block.get("type") == "text" and "text" in block:
        return {name: value for name, value in block.items() if name != "type"}
    return block


def is_nova(model: str) -> bool:
    """Return True for one of Amazon's models that take messages."""
    return _NOVA.search(model) is not None


def _check(request: dict[str, Any], model: str) -> _Conversation:
    for position, block in enumerate(request.get("system") or ()):
        kind, text = one_of(block, f"system.{position}", {"text", "guardContent", "cachePoint"})
        if kind == "text":
            a_text(text, f"system.{position}.text")
    messages = a_list(request["messages"], "messages")
    conversation = _Conversation(messages)
    conversation.check()
    last, is_thinking = messages[-1], "additionalModelRequestFields" in request
    if not is_nova(model):
        anthropic.check_end(model, last["role"], last["content"][-1].get("text"), is_thinking)
    if "toolConfig" in request:
        config = an_object(request["toolConfig"], "toolConfig", {"tools", "toolChoice"}, ("tools",))
        a_list(config["tools"], "toolConfig.tools")
    elif any(
        kind in block for message in messages for block in message["content"] for kind in ("toolUse", "toolResult")
    ):
        raise Refused("The toolConfig field must be defined when using toolUse and toolResult content blocks.")
    return conversation


class _Conversation:
    """The rules that hold across messages: turns, tool calls, document names, counts."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages
        self.names: set[str] = set()
        self.images = self.documents = 0

    def check(self) -> None:
        former = "assistant"
        open_calls: list[str] = []
        for position, message in enumerate(self.messages):
            place = f"messages.{position}"
            an_object(message, place, {"role", "content"}, ("role", "content"))
            role = message["role"]
            need(role in ("user", "assistant"), f"{place}.role: must be user or assistant")
            need(position or role == "user", "A conversation must start with a user message.")
            need(role != former, f"{place}: roles must alternate between user and assistant")
            blocks = [_known(block) for block in a_list(message["content"], f"{place}.content")]
            for index, block in enumerate(blocks):
                self._block(block, f"{place}.content.{index}", role)
            open_calls = self._tools(blocks, role, open_calls, place)
            former = role
        need(self.images <= _MAX_IMAGES, f"at most {_MAX_IMAGES} images are allowed")
        need(self.documents <= _MAX_DOCUMENTS, f"at most {_MAX_DOCUMENTS} documents are allowed")

    def _tools(self, blocks: list[Any], role: str, open_calls: list[str], place: str) -> list[str]:
        results = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
        if role == "user":
            need(sorted(results) == sorted(open_calls), f"{place}: every toolUse needs its toolResult, and no other")
            if any("document" in block for block in blocks):
                need(any("text" in block for block in blocks), f"{place}: a document needs a text block beside it")
        kinds = [next(iter(block)) for block in blocks]
        calls = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
        if calls:
            need("text" not in kinds[kinds.index("toolUse") :], f"{place}: text must come before toolUse")
        return calls

    def _block(self, block: Any, place: str, role: str, kinds: frozenset[str] = _BLOCKS) -> None:
        kind, inner = one_of(block, place, kinds)
        place = f"{place}.{kind}"
        if kind == "text":
            a_text(inner, place)
        elif kind in ("image", "document", "video", "audio"):
            need(role == "user", f"{place}: only a user message may hold it")
            self._media(kind, inner, place)
        elif kind == "toolUse":
            need(role == "assistant", f"{place}: only an assistant message may hold it")
            an_object(inner, place, {"toolUseId", "name", "input", "type"}, ("toolUseId", "name", "input"))
            need(_matches(_TOOL_ID, inner["toolUseId"]), f"{place}.toolUseId: does not match the pattern")
            need(_matches(_TOOL_NAME, inner["name"]), f"{place}.name: does not match the pattern")
            need(isinstance(inner["input"], dict), f"{place}.input: must be an object")
        elif kind == "toolResult":
            need(role == "user", f"{place}: only a user message may hold it")
            an_object(inner, place, {"toolUseId", "content", "status", "type"}, ("toolUseId", "content"))
            need(_matches(_TOOL_ID, inner["toolUseId"]), f"{place}.toolUseId: does not match the pattern")
            need(inner.get("status") in (None, "success", "error"), f"{place}.status: unknown")
            for index, part in enumerate(a_list(inner["content"], f"{place}.content")):
                self._block(part, f"{place}.content.{index}", role, _RESULT_BLOCKS)

    def _media(self, kind: str, inner: Any, place: str) -> None:
        if kind == "document":
            self._document(inner, place)
            return
        an_object(inner, place, {"format", "source"}, ("format", "source"))
        need(inner["format"] in _FORMATS[kind], f"{place}.format: {inner['format']} is not supported")
        size = _source(inner["source"], f"{place}.source", {"bytes", "s3Location"})
        if kind == "image":
            self.images += 1
            need(size <= _MAX_IMAGE_BYTES, f"{place}: the image is too large")

    def _document(self, inner: Any, place: str) -> None:
        an_object(inner, place, {"format", "name", "source", "context", "citations"}, ("name", "source"))
        self.documents += 1
        need(inner.get("format", "pdf") in DOCUMENT_FORMATS, f"{place}.format: {inner.get('format')} is not supported")
        need(_matches(_NAME, inner["name"]), f"{place}.name: holds characters that are not allowed")
        need(inner["name"] not in self.names, f"{place}.name: duplicate document name {inner['name']}")
        self.names.add(inner["name"])
        size = _source(inner["source"], f"{place}.source", {"bytes", "s3Location", "text", "content"})
        need(size <= _MAX_DOCUMENT_BYTES, f"{place}: the document is too large")


def _source(source: Any, place: str, kinds: set[str]) -> int:
    kind, inner = one_of(source, place, kinds)
    if kind == "bytes":
        return base64_bytes(inner, f"{place}.bytes")
    if kind == "s3Location":
        an_object(inner, f"{place}.s3Location", {"uri", "bucketOwner"}, ("uri",))
        need(str(inner["uri"]).startswith("s3://"), f"{place}.s3Location.uri: must be an s3:// address")
    return 0


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def check_invoke(body: Any, model: str = "") -> None:
    """Raise `Refused` for an InvokeModel body that is neither Claude's messages nor a text to complete."""
    need(isinstance(body, dict), "body: must be an object")
    if text := _COMPLETED & body.keys():
        a_text(body[min(text)], min(text))
    else:
        anthropic.check_invoke(body, model)


def answer(text: str) -> dict[str, Any]:
    """Return a Converse completion."""
    return _completion([{"text": text}], "end_turn")


def tool_call(text: str, name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
    """Return a Converse completion that calls a tool."""
    return _completion(
        [{"text": text}, {"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}}], "tool_use"
    )


def _completion(content: list[dict[str, Any]], reason: str) -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": reason,
        "usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18},
        "metrics": {"latencyMs": 5},
    }


def invoke_answer(text: str, body: Any) -> dict[str, Any]:
    """Return an InvokeModel completion in the shape of its request."""
    if isinstance(body, dict) and "inputText" in body:
        return {"results": [{"outputText": text, "completionReason": "FINISH"}]}
    if isinstance(body, dict) and "prompt" in body:
        return {"type": "completion", "completion": text, "stop_reason": "stop_sequence", "stop": "\n\nHuman:"}
    return anthropic.answer(text)


def error(status: int, message: str) -> str:
    """Return the body of a failure; only the HTTP status has `status`."""
    return json.dumps({"message": message})
