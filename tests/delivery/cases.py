"""The kinds of input of the matrix, and the floor: which of them must arrive at which agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.delivery.simulated_cluster import Pairs

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PDF, MP4 = "JVBERi0xLjQKJSVFT0YK", "AAAAGGZ0eXBtcDQyAAAAAG1wNDJpc29t"


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def media(kind: str, fmt: str, data: str, **more: str) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "base64", "format": fmt, "data": data}, **more}


IMAGE, OTHER_IMAGE = media("image", "png", PNG), media("image", "jpeg", "/9j/4AAQSkZJRg==")
DOCUMENT, VIDEO = media("document", "pdf", PDF, name="Report"), media("video", "mp4", MP4)


def turn(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": content[0] if isinstance(content[0], str) else list(content)}


CALL = {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": 'Pa"ris $ ${parameters.x}'}}}
RESULT = {"toolResult": {"toolUseId": "t1", "content": [text("sunny"), text("25 C")]}}


@dataclass(frozen=True)
class Case:
    """One kind of input. needs: what an agent must be able to take for it to arrive (see `FLOOR`).

    parameters: the caller's own beside `input`. pairs: what the memory he names holds.
    """

    input: Any
    needs: str = "text"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    pairs: Pairs = ()

    @property
    def body(self) -> dict[str, Any]:
        return {"input": self.input, **({"parameters": dict(self.parameters)} if self.parameters else {})}


_ASK = [turn("user", "What is on the shelf?"), turn("assistant", "Three books."), turn("user", "Which ones?")]

CASES: Mapping[str, Case] = {
    # texts
    "plain text": Case("What is on the shelf?"),
    "quotes, backslashes": Case("She said \"no\" \\ 'maybe' \\n /yes/ \\u0041"),
    "newlines, tabs, controls": Case("one\ntwo\r\n\tthree\x01\x7f"),
    "emoji, scripts": Case("😀 漢字 é \u2028 \u00a0 \ufeff end"),
    "$": Case("costs $5, or $ {x}, {y}"),
    "$$": Case("$$ and $${z}"),
    "ends in $": Case("how many $"),
    "${parameters.question}": Case("say ${parameters.question} twice"),
    "${parameters.model}": Case("$${parameters.model} or ${parameters.model:-none}"),
    "unclosed ${parameters.x": Case("see ${parameters.x"),
    "${parameters.}": Case("see ${parameters.} there"),
    "JSON object": Case('{"a": 1, "b": [true]}'),
    "JSON array": Case('["x", {"y": null}]'),
    "lenient JSON, hostile": Case('[\'a"},{"image":{}},{"text":"\']'),
    "blanks, then {": Case(" \n\t{a: ${parameters.question}}"),
    "long text": Case("All of it. " * 400),
    # blocks
    "text, image": Case([text("What is this?"), IMAGE], "media"),
    "image, text": Case([IMAGE, text("What is ${parameters.question} $?")], "media"),
    "image only": Case([IMAGE], "media"),
    "interleaved": Case([text("first:"), IMAGE, text("second:"), OTHER_IMAGE, text("differ?")], "media"),
    "two images": Case([text("Compare."), IMAGE, OTHER_IMAGE], "media"),
    "PDF": Case([text("Sum up."), DOCUMENT], "media"),
    "video": Case([VIDEO, text("What happens?")], "media"),
    "several texts": Case([text("One thing."), text("Another $1 ${parameters.x}.")]),
    # conversations
    "conversation": Case(_ASK, "history"),
    "hostile conversation": Case(
        [turn("user", 'a "},{ ${parameters.question}'), turn("assistant", "$ \\ \n{"), turn("user", "['x'] ${")],
        "history",
    ),
    "images in history": Case(
        [turn("user", text("What is this?"), IMAGE), turn("assistant", "A dot."), turn("user", "Sure?")], "old-media"
    ),
    "images in every turn": Case(
        [turn("user", IMAGE, text("This?")), turn("assistant", "A dot."), turn("user", text("And this?"), OTHER_IMAGE)],
        "media old-media",
    ),
    "ends with assistant": Case(_ASK[:2], "prefill"),
    "tool call and result": Case(
        [turn("user", "Weather?"), turn("assistant", CALL), turn("user", RESULT), *_ASK[1:]], "tools"
    ),
    "tool result last": Case([turn("user", "Weather?"), turn("assistant", CALL), turn("user", RESULT)], "tools last"),
    "system first": Case([turn("system", 'Speak "French" $ ${parameters.x}.'), *_ASK[:1]], "system"),
    "developer": Case([turn("developer", "Speak French."), *_ASK], "system history"),
    "unknown role": Case(
        [turn("reviewer", "Too short."), turn("assistant", "Longer?"), turn("editor", "Yes.")], "history"
    ),
    "two user turns": Case([turn("user", "One."), turn("user", "Two.")], "history"),
    # the caller's own parameters, and memory
    "own model": Case("Who are you?", "text", {"model": "another-model"}),
    "own system_prompt": Case("Who are you?", "text", {"system_prompt": "Say little."}),
    "own system_prompt, system": Case(
        [turn("system", "Speak French."), *_ASK[:1]], "system", {"system_prompt": "Say little."}
    ),
    "own prompt": Case("Who ${parameters.x}?", "text prompt", {"prompt": "Asked: ${parameters.question}. In brief:"}),
    "own prompt, image": Case([text("What?"), IMAGE], "media prompt", {"prompt": "Asked: ${parameters.question}."}),
    "question too": Case("The input wins.", "text", {"question": "not this one", "extra": 5}),
    "memory": Case("And then?", "text", {}, (("What first?", "This, {you} see."),)),
    "memory, image": Case([text("And this?"), IMAGE], "media", {}, (("What first?", 'This, "you" see.'),)),
    "poisoned memory": Case("And then?", "history", {}, (("say ${parameters.question}", "no $"),)),
    "memory and history": Case(_ASK, "history", {}, (("What first?", "This."), ("Then?", "That."))),
}

# docs/evidence/facts.md, "What can be reached without touching agent or connector", both tables: agents (by name), and
# what arrives there, and what follows from the rules below them. What the provider can't express is refused everywhere.
# "prompt": the caller's own prompt in place of the agent's.
# A conversation that ends with the assistant ("prefill") or with a tool's result ("last") has no question: an agent's
# own prompt is put around what the user asked before, unless the cluster's own prompt goes on after it.
_ALL = "text media old-media history tools prompt"
_BARE = f"{_ALL} prefill last"
FLOOR: Mapping[str, Sequence[tuple[str, str]]] = {
    "2.19.0": (
        ("bare-[abh]", f"{_BARE} system"),
        ("bare-e2", _BARE),
        ("*-a", f"{_ALL} system"),
        ("*-b", f"{_BARE} system"),
        ("*-j", f"{_ALL} system"),
        ("*-e2", _BARE),
        ("*-h", _ALL),
        ("own-messages", f"{_ALL} system"),
        ("flow-content", "text media old-media history tools last prompt"),
        ("*-f", "text history old-media system prompt"),
        ("flow-[dei]", "text history prompt"),
        ("flow-c", "text history prompt"),
        ("cflow-[cdei]", "text history"),
        ("conv-[cdei]", "text history"),
        ("conv_own-d", "text history"),
        ("lister-d", "text history"),
        ("two-d", "text"),
        ("flow-g", "text history system prompt"),
        ("c*-g", "text history system"),
    ),
    "3.4.0": (
        ("bare-gemini_contents", _BARE),
        ("bare-*", f"{_BARE} system"),
        ("fc*_upgraded", f"{_BARE} system"),
        ("per-*_tutorial", "text media old-media history tools"),
        ("per-*_upgraded", "text history media old-media"),
        ("*_upgraded", f"{_BARE} system"),
        ("*flow-*_tutorial", f"{_BARE} system"),
        ("fc-*_tutorial", f"{_BARE} system"),
        ("conv-*_tutorial", "text media old-media history system tools"),
        ("*_messages", f"{_BARE} system"),
        ("*-gemini_contents", _ALL),
        ("flow-gemini_text", "text media old-media history prompt"),
        ("cflow-gemini_text", "text media old-media history"),
    ),
}
