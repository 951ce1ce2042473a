"""Chat messages against the openai SDK's TypedDicts, rebuilt closed.

As they are, pydantic takes unknown keys (TypedDicts are open) and does not look into `Iterable` members; here
every TypedDict forbids extra keys and every Iterable is a list of at least one item (the API's minItems).
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from annotated_types import MinLen
from openai.types.chat import ChatCompletionMessageParam
from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypeAliasType, TypedDict, get_type_hints, is_typeddict

from . import Rejected

_DATA_URL = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,(.*)", re.DOTALL)


def check(fields: dict[str, Any]) -> None:
    if set(fields) != {"messages"}:
        raise Rejected(f"members {sorted(fields)}")
    try:
        adapter().validate_json(json.dumps(fields["messages"]), strict=True)
    except ValidationError as error:
        raise Rejected(str(error)) from None
    for message in fields["messages"]:
        _check_message(message)


def _check_message(message: dict[str, Any]) -> None:
    """What the types leave open: payloads, arguments, and that an assistant says or calls something."""
    if message["role"] == "assistant" and message.get("content") is None and not message.get("tool_calls"):
        raise Rejected("an assistant message without content and tool_calls")
    for call in message.get("tool_calls", ()):
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError as error:
            raise Rejected(f"arguments: {error}") from None
        if not isinstance(arguments, dict):
            raise Rejected("arguments that are no object")
    for part in message["content"] if isinstance(message.get("content"), list) else ():
        match part["type"]:
            case "image_url" if not part["image_url"]["url"].startswith("https://"):
                _check_data_url(part["image_url"]["url"], r"image/(png|jpeg|webp|gif)")
            case "file":
                _check_data_url(part["file"]["file_data"], r"application/pdf")
            case "input_audio":
                _check_base64(part["input_audio"]["data"])


def _check_data_url(url: str, mime_type: str) -> None:
    match = _DATA_URL.fullmatch(url)
    if not match or not re.fullmatch(mime_type, match[1]):
        raise Rejected(f"not a data URL of {mime_type}: {url[:60]}")
    _check_base64(match[2])


def _check_base64(data: str) -> None:
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise Rejected(f"base64: {error}") from None


@cache
def adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[list[_closed(ChatCompletionMessageParam)], MinLen(1)])  # type: ignore[misc]


@cache
def _closed(hint: Any) -> Any:
    """`hint` with every TypedDict in it closed and every Iterable a list of at least one."""
    if isinstance(hint, TypeAliasType):
        return _closed(hint.__value__)
    if is_typeddict(hint):
        return _closed_dict(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired):
        return origin[_closed(args[0])]
    if origin is Iterable or origin is list:
        return Annotated[list[_closed(args[0])], MinLen(1)]  # type: ignore[misc]
    if origin in (Union, UnionType):
        return reduce(or_, (_closed(arg) for arg in args))
    if origin is dict:
        return dict[args[0], _closed(args[1])]  # type: ignore[misc]
    if origin is Literal or hint in (str, int, float, bool, object, NoneType, None):
        return hint
    raise TypeError(f"a type this checker does not know: {hint!r}")


def _closed_dict(hint: Any) -> Any:
    # `Required` is read from the hints: `__required_keys__` does not see it in postponed annotations.
    hints = get_type_hints(hint, include_extras=True)
    members = {name: _closed(kind) for name, kind in hints.items()}
    closed = TypedDict(hint.__name__, members, total=hint.__total__)  # type: ignore[operator]
    closed.__pydantic_config__ = ConfigDict(extra="forbid")
    return closed
