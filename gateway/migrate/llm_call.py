"""What an LLM is sent, in parts that can be compared, also with the request of another provider. Pure.

The differences have names, which `docs/operate/upgrade.md` explains: those of `Difference`, other members of the body
by their own names, and notices as ``+CODE`` (only the new agent's) and ``-CODE`` (only the old one's).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import msgspec

from gateway.migrate.references import texts_in
from gateway.providers import registry
from gateway.providers.base import Provider
from gateway.unified.payloads import TOKEN


class Difference(StrEnum):
    """Names of differences. The docs say what each means."""

    PROVIDER = "provider"
    SYSTEM = "system text"
    PROMPT = "prompt"
    MEDIA = "media"
    CALLS = "tool calls"
    ORDER = "order"
    TOOLS = "tools"


_SYSTEM_ROLES = ("system", "developer")
_TOOLS = frozenset({"tools", "toolConfig", "tool_choice", "parallel_tool_calls", "toolChoice", "tool_config"})
_PROMPTS = frozenset({"prompt", "inputs", "inputText", "input", "question", "text", "query"})
"""Members that hold the prompt in bodies of no known format."""
_PLAIN_TURNS = ("messages", "contents")
_CONTENT = ("content", "parts")
_MODEL_ROLES = {"model": "assistant", "function": "tool"}

_Kind = Literal["text", "media", "call", "result", "other"]


class Part(NamedTuple):
    """A part of a turn. meaning: what every provider's form has in common. form: all of it, as JSON text."""

    kind: _Kind
    meaning: str
    form: str


class Turn(NamedTuple):
    """A turn of the conversation, of a standard role. others: its members beside role and content, as JSON text."""

    role: str
    parts: tuple[Part, ...]
    others: str = ""


class LlmCall(msgspec.Struct, frozen=True):
    """The body of an LLM call. provider: its name, "" if unknown. system: all system texts, of turns, too.

    turns: the others. tools, members: of the body, as JSON text by name. notices: the codes that the client gets.
    body: all of it, with the messages in the provider's normal form.
    """

    provider: str
    body: Any
    system: tuple[str, ...]
    turns: tuple[Turn, ...]
    tools: Mapping[str, str]
    members: Mapping[str, str]
    notices: frozenset[str] = frozenset()

    @classmethod
    def read(cls, provider_name: str, body: Any, notices: frozenset[str] = frozenset()) -> LlmCall:
        """Return the parts of `body`, JSON data. provider_name: "" if unknown."""
        if not isinstance(body, dict):
            return cls(provider_name, body, (), (), {}, {"body": _json(body)}, notices)
        provider = registry.provider(provider_name) if provider_name else None
        field = provider.messages_field if provider else next((name for name in _PLAIN_TURNS if name in body), "")
        messages: Any = body.get(field)
        if provider is not None:
            messages = provider.canonical(messages)
        if not _are_turns(messages):
            field, messages = "", []
        turns, system = [], list(_system_members(provider, body))
        for turn in messages:
            role = _role(provider, turn)
            read = Turn(role, tuple(_parts(turn)), _others(turn))
            if role in _SYSTEM_ROLES:
                system += [part.meaning for part in read.parts]
            else:
                turns.append(read)
        apart = {field, *_system_names(provider)}
        rest = {name: _json(value) for name, value in body.items() if name not in apart}
        tools = {name: rest.pop(name) for name in list(rest) if name in _TOOLS}
        normal = {**body, field: messages} if field else body
        return cls(provider_name, normal, tuple(system), tuple(turns), tools, rest, notices)

    def texts(self) -> Iterator[str]:
        """Yield every text of the body."""
        return texts_in(self.body)


def differences(old: LlmCall, new: LlmCall) -> tuple[str, ...]:
    """Return the names of what differs, each once; () if the LLM gets the same, and the client the same notices."""
    return tuple(dict.fromkeys(map(str, [*_of_bodies(old, new), *_of_notices(old, new)])))


def _of_notices(old: LlmCall, new: LlmCall) -> Iterator[str]:
    yield from (f"+{code}" for code in sorted(new.notices - old.notices))
    yield from (f"-{code}" for code in sorted(old.notices - new.notices))


def _of_bodies(old: LlmCall, new: LlmCall) -> Iterator[str]:
    same_form = old.provider == new.provider
    if same_form and old.body == new.body:
        return
    if not same_form:
        yield Difference.PROVIDER
    if old.system != new.system:
        yield Difference.SYSTEM
    conversation = list(_of_turns(old.turns, new.turns, same_form))
    yield from conversation
    if old.tools != new.tools and (same_form or bool(old.tools) != bool(new.tools)):
        yield Difference.TOOLS
    names = [name for name in sorted({**old.members, **new.members}) if old.members.get(name) != new.members.get(name)]
    for name in names:
        yield Difference.PROMPT if name in _PROMPTS else name
    if same_form and not names and not conversation and (old.system, old.tools) == (new.system, new.tools):
        yield Difference.ORDER  # system turns are at other places


def _of_turns(old: Sequence[Turn], new: Sequence[Turn], same_form: bool) -> Iterator[str]:
    before, after = (_counted(turns, same_form) for turns in (old, new))
    names: Mapping[_Kind, Difference] = {
        "text": Difference.PROMPT,
        "media": Difference.MEDIA,
        "call": Difference.CALLS,
        "result": Difference.CALLS,
        "other": Difference.MEDIA,
    }
    found = [name for kind, name in names.items() if before[kind] != after[kind]]
    yield from dict.fromkeys(found)
    if not found and _compared(old, same_form) != _compared(new, same_form):
        yield Difference.ORDER


def _counted(turns: Sequence[Turn], same_form: bool) -> Mapping[_Kind, Counter[str]]:
    counts: dict[_Kind, Counter[str]] = {kind: Counter() for kind in ("text", "media", "call", "result", "other")}
    for turn in turns:
        for part in turn.parts:
            counts[part.kind][part.form if same_form else part.meaning] += 1
    return counts


def _compared(turns: Sequence[Turn], same_form: bool) -> Any:
    if same_form:
        return turns
    # Providers write the results of tools in turns of different roles, and join turns differently.
    parts = [("assistant" if turn.role == "assistant" else "user", part) for turn in turns for part in turn.parts]
    return [(role, part.kind, part.meaning) for role, part in parts]


def _are_turns(messages: Any) -> bool:
    return isinstance(messages, list) and all(isinstance(turn, dict) for turn in messages)


def _role(provider: Provider | None, turn: Mapping[str, Any]) -> str:
    role = provider.role_of(turn) if provider is not None else str(turn.get("role", ""))
    return _MODEL_ROLES.get(role, role)


def _system_names(provider: Provider | None) -> frozenset[str]:
    return frozenset(provider.system_fields(["x"])) if provider is not None else frozenset()


def _system_members(provider: Provider | None, body: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(_system_names(provider)):
        value = body.get(name)
        yield from [value] if isinstance(value, str) else _texts_of_parts(value)


def _texts_of_parts(value: Any) -> Iterator[str]:
    """Yield the texts of a member with system text; other parts as JSON."""
    parts = value.get("parts", [value]) if isinstance(value, dict) else value
    for part in parts if isinstance(parts, list) else []:
        text = part.get("text") if isinstance(part, dict) else part
        is_plain = isinstance(text, str) and (not isinstance(part, dict) or part.keys() <= {"text", "type"})
        yield str(text) if is_plain else _json(part)


def _others(turn: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in turn.items() if name not in ("role", "tool_calls", *_CONTENT)}
    return _json(rest) if rest else ""


def _parts(turn: Mapping[str, Any]) -> Iterator[Part]:
    content = next((turn[name] for name in _CONTENT if name in turn), None)
    if turn.get("role") == "tool":
        texts = [part.meaning for part in map(_part, _as_list(content))]
        yield Part("result", "".join(texts), _json([turn.get("tool_call_id"), content]))
    else:
        yield from map(_part, _as_list(content))
    calls = turn.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        yield _part(call.get("function", call) if isinstance(call, dict) else call)._replace(form=_json(call))


def _as_list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [] if content is None else [content]


_ARGUMENTS = ("input", "args", "arguments")
_CALLS = ("toolUse", "functionCall")
_RESULTS = ("toolResult", "functionResponse")


def _part(part: Any) -> Part:
    form = _json(part)
    match part:
        case str():
            return Part("text", part, _json({"text": part}))
        case {"text": str(text)} if part.keys() <= {"text", "type"}:
            return Part("text", text, _json({"text": text}))
        case {"type": "tool_result", "content": content} | {"toolResult": {"content": content}}:
            return Part("result", "".join(one.meaning for one in map(_part, _as_list(content))), form)
        case {"functionResponse": {"response": content}}:
            return Part("result", "".join(texts_in(content)), form)
        case {"name": str(name)} if not part.keys().isdisjoint(_ARGUMENTS):
            return Part("call", _call(name, part), form)
    for member in (*_CALLS, *_RESULTS):
        if isinstance(part, dict) and isinstance(part.get(member), dict):
            kind: _Kind = "call" if member in _CALLS else "result"
            return Part(kind, _call(str(part[member].get("name", "")), part[member]), form)
    if payloads := [token.decode() for token in TOKEN.findall(form.encode())]:
        return Part("media", ",".join(payloads), form)
    links = [text for text in texts_in(part) if "://" in text or len(text) >= 12]
    return Part("media" if links else "other", ",".join(links) or form, form)


def _call(name: str, call: Mapping[str, Any]) -> str:
    given: Any = next((call[member] for member in _ARGUMENTS if member in call), {})
    if isinstance(given, str):
        with suppress(ValueError, RecursionError):
            given = json.loads(given)
    return _json([name, given])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
