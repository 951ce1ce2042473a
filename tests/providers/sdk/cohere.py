"""Chat messages against the cohere SDK's models, rebuilt closed.

As they are, they accept any member and value (`UncheckedBaseModel`). Here every model forbids extra members, and its
values are checked as they are annotated.
"""

import base64
import binascii
import json
import re
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from . import Rejected

_DATA_URL = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,(.*)", re.DOTALL)


@cache
def _adapter() -> TypeAdapter[Any]:
    # Here, as its import takes a second, which every process that collects the tests would spend.
    from cohere.types import ChatMessageV2

    return TypeAdapter(Annotated[list[_closed(ChatMessageV2)], MinLen(1)])  # type: ignore[misc]


def check(fields: dict[str, Any]) -> None:
    if set(fields) != {"messages"}:
        raise Rejected(f"members {sorted(fields)}")
    try:
        _adapter().validate_json(json.dumps(fields["messages"]), strict=True)
    except ValidationError as error:
        raise Rejected(str(error)) from None
    for message in fields["messages"]:
        _check_message(message)


@cache
def _closed(hint: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _closed(args[0])
    if origin in (Union, UnionType):
        # `ImageUrlDetail` and others are open: Literal[…] | Any.
        return Union[tuple(_closed(arg) for arg in args if arg is not Any)]  # noqa: UP007
    if origin is list:
        return Annotated[list[_closed(args[0])], MinLen(1)]  # type: ignore[misc]
    if origin is dict:
        return dict[args[0], args[1]]  # type: ignore[valid-type]
    if origin is Literal or hint in (str, int, float, bool, NoneType):
        return hint
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        members: dict[str, Any] = {
            name: (_closed(field.annotation), ... if field.is_required() or name in ("role", "type") else field.default)
            for name, field in hint.model_fields.items()
        }
        return create_model(hint.__name__, __config__=ConfigDict(extra="forbid"), **members)
    raise TypeError(f"a type this checker does not know: {hint!r}")


def _check_message(message: dict[str, Any]) -> None:
    """What the types leave open: payloads, arguments, and that an assistant message has text or a call."""
    if message["role"] == "assistant" and message.get("content") is None and not message.get("tool_calls"):
        raise Rejected("an assistant message without content and tool_calls")
    if "tool_plan" in message and not message.get("tool_calls"):
        raise Rejected("a plan without tool_calls")
    for call in message.get("tool_calls", ()):
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError as error:
            raise Rejected(f"arguments: {error}") from None
        if not isinstance(arguments, dict):
            raise Rejected("arguments that are no object")
    for part in message["content"] if isinstance(message.get("content"), list) else ():
        if part["type"] == "image_url" and not part["image_url"]["url"].startswith("https://"):
            _check_data_url(part["image_url"]["url"])


def _check_data_url(url: str) -> None:
    match = _DATA_URL.fullmatch(url)
    if not match:
        raise Rejected(f"not a data URL of an image: {url[:60]}")
    try:
        base64.b64decode(match[1], validate=True)
    except binascii.Error as error:
        raise Rejected(f"base64: {error}") from None
