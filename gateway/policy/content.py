"""What a guardrail is shown of a request or an answer, and how its changes are written back. Pure.

A document has `messages`, each with `role` and `content`, and the client's `tools` as they were written. A block of
`content` has `type`, `place` and the rest by its type; docs/operate/guardrails.md lists them. Only blocks of type
``text`` can change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from gateway.unified.model import Base64, ContentBlock, ConverseBlock, Json, Media, Text, ToolResult, ToolUse
from gateway.unified.request import ExecuteRequest, parameters_as_strings

QUESTION = "parameters.question"
_Block = dict[str, Any]
_STEP = re.compile(r'\.?([A-Za-z_][A-Za-z0-9_-]*)|\[(?:(\d+)|("(?:[^"\\]|\\.)*"))\]')


class NoContent(Exception):
    """The content can't be shown. The message says why."""


class Content:
    """A document for guardrails, whose texts may change.

    document: the JSON that is shown. changes: the new texts by place.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.changes: dict[str, str] = {}
        self._texts = {block["place"]: block for block in _blocks(document) if block["type"] == "text"}

    def has_text(self, place: str) -> bool:
        """Return True if the block at `place` is a text."""
        return place in self._texts

    def change(self, place: str, text: str) -> None:
        """Replace the text at `place`."""
        block = self._texts[place]
        if block["text"] != text:
            block["text"] = text
            self.changes[place] = text


def _blocks(document: dict[str, Any]) -> Iterator[_Block]:
    for message in document["messages"]:
        for block in message["content"]:
            yield block
            if block["type"] == "tool_result":
                yield from block["content"]


def input_content(request: ExecuteRequest) -> Content:
    """Return the new input of a request: its `input`, or its `question` as a text.

    Raises:
        NoContent: it has neither, and no other parameter, or its body is not strict JSON.
    """
    if request.input is not None:
        messages = [
            {"role": message.role, "place": message.at, "content": [_block(block) for block in message.content]}
            for message in request.input.messages
        ]
        kind, others = request.input.type.value, _others(request)
        return Content({"type": kind, "messages": messages, "parameters": others, **request.offered})
    if not request.parameters:
        raise NoContent("the body has no `input` and no `parameters`, or is not strict JSON")
    content = []
    if request.has_question:
        question = parameters_as_strings(request.parameters)["question"]
        content = [{"type": "text", "text": question, "place": QUESTION}]
    messages = [{"role": "user", "place": QUESTION, "content": content}] if content else []
    return Content({"type": "question", "messages": messages, "parameters": _others(request)})


def _others(request: ExecuteRequest) -> dict[str, Any]:
    return {name: value for name, value in request.parameters.items() if name != "question"}


def _block(block: ContentBlock | Json) -> _Block:
    match block:
        case Text():
            return {"type": "text", "text": block.text, "place": block.at}
        case Media():
            source: dict[str, Any]
            if isinstance(block.source, Base64):
                source = {"type": "base64", "characters": len(block.source.data)}
            else:
                source = {"type": "url", "url": block.source.url}
            return {"type": block.kind, "format": block.format, "source": source, "place": block.at}
        case ToolUse():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input, "place": block.at}
        case ToolResult():
            content = [_block(part) for part in block.content]
            failed = {"is_error": block.is_error, "content": content, "place": block.at}
            return {"type": "tool_result", "id": block.id, **failed}
        case Json():
            return {"type": "json", "value": block.value, "place": block.at}
        case ConverseBlock():
            return {"type": block.kind, "value": block.value, "place": block.at}
    assert_never(block)


def answer_content(document: Any) -> Content:
    """Return the content of an agent's answer: the blocks of its message, or of its outputs except ids.

    document: the decoded JSON.

    Raises:
        NoContent: it is not an agent's answer, or has no content, such as the answer of a run in the background.
    """
    blocks = list(_answer_blocks(document)) if isinstance(document, dict) else []
    if not blocks:
        raise NoContent("the answer has no content in a known form")
    return Content({"type": "answer", "messages": [{"role": "assistant", "place": "", "content": blocks}]})


def _answer_blocks(document: dict[str, Any]) -> Iterator[_Block]:
    message = document.get("message")
    if isinstance(message, dict) and isinstance(message.get("content"), list):
        for index, block in enumerate(message["content"]):
            place = f"message.content[{index}]"
            if isinstance(block, dict) and isinstance(block.get("text"), str):
                yield {"type": "text", "text": block["text"], "place": place}
            else:
                yield {"type": "json", "value": block, "place": place}
    results = document.get("inference_results")
    for number, result in enumerate(results if isinstance(results, list) else ()):
        outputs = result.get("output") if isinstance(result, dict) else None
        for index, output in enumerate(outputs if isinstance(outputs, list) else ()):
            if isinstance(output, dict) and not str(output.get("name", "")).endswith("_id"):
                yield from _output_blocks(output, f"inference_results[{number}].output[{index}]")


def _output_blocks(output: Mapping[str, Any], place: str) -> Iterator[_Block]:
    if isinstance(output.get("result"), str):
        yield {"type": "text", "text": output["result"], "place": f"{place}.result"}
    data = output.get("dataAsMap")
    if isinstance(data, dict) and isinstance(data.get("response"), str):
        yield {"type": "text", "text": data["response"], "place": f"{place}.dataAsMap.response"}
    elif data is not None:
        yield {"type": "json", "value": data, "place": f"{place}.dataAsMap"}


def write_changes(document: Any, changes: Mapping[str, str]) -> Any:
    """Return the JSON value `document` with new texts at their places. The values on the way are copied."""
    for place, text in changes.items():
        document = _written(document, _path(place), text)
    return document


def _written(value: Any, path: list[str | int], text: str) -> Any:
    if not path:
        return {**value, "text": text} if isinstance(value, dict) and "text" in value else text
    step, *rest = path
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[step] = _written(value[step], rest, text)
    return copy


def _path(place: str) -> list[str | int]:
    """Return the member names and positions in a place such as ``input[1].content[0]``."""
    return [
        int(index) if index else json.loads(quoted) if quoted else name for name, index, quoted in _STEP.findall(place)
    ]
