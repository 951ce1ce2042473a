"""SDK TypedDicts rebuilt closed, so that pydantic refuses what they leave open.

As they are, pydantic takes unknown keys (TypedDicts are open) and does not look into `Iterable` members; here
every TypedDict forbids extra keys and every Iterable is a list of at least `least` items (the APIs' minItems).
"""

from collections.abc import Iterable, Sequence
from functools import cache
from os import PathLike
from types import NoneType, UnionType
from typing import IO, Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, TypeAdapter
from typing_extensions import TypeAliasType, TypedDict, get_type_hints, is_typeddict


@cache
def adapter(hint: Any, least: int = 1) -> TypeAdapter[Any]:
    """An adapter of lists of `hint`, closed."""
    return TypeAdapter(Annotated[list[closed(hint, least)], MinLen(1)])  # type: ignore[misc]


@cache
def closed(hint: Any, least: int = 1) -> Any:
    """`hint` with every TypedDict in it closed and every Iterable a list of at least `least` items."""
    if isinstance(hint, TypeAliasType):
        return closed(hint.__value__, least)
    if is_typeddict(hint):
        return _closed_dict(hint, least)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired):
        return origin[closed(args[0], least)]
    if origin is Annotated:
        return closed(args[0], least)
    if origin in (Iterable, Sequence, list):
        return Annotated[list[closed(args[0], least)], MinLen(least)]  # type: ignore[misc]
    if origin in (Union, UnionType):
        return Union[tuple(closed(arg, least) for arg in args if _is_json(arg))]  # noqa: UP007
    if origin is dict:
        return dict[args[0], closed(args[1], least)]  # type: ignore[misc]
    if origin is Literal or hint in (str, int, float, bool, object, NoneType, None):
        return hint
    raise TypeError(f"a type this checker does not know: {hint!r}")


def _is_json(hint: Any) -> bool:
    """Whether JSON data can be of this type: not an open file, a path, or an object of the SDK."""
    origin = get_origin(hint) or hint
    if origin is Annotated or origin in (Union, UnionType):
        return any(map(_is_json, get_args(hint)[:1] if origin is Annotated else get_args(hint)))
    return not (isinstance(origin, type) and issubclass(origin, IO | PathLike | BaseModel | bytes))


def _closed_dict(hint: Any, least: int) -> Any:
    # `Required` is read from the hints: `__required_keys__` does not see it in postponed annotations.
    hints = get_type_hints(hint, include_extras=True)
    members = {name: closed(kind, least) for name, kind in hints.items()}
    made = TypedDict(hint.__name__, members, total=hint.__total__)  # type: ignore[operator]
    made.__pydantic_config__ = ConfigDict(extra="forbid")
    return made
