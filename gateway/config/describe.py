"""The settings in words: what a type allows, the table of the documentation, the effective values.

``python -m gateway.config.describe docs/configuration.md`` writes the table between that page's markers; a
test asserts that nothing would change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from gateway.config.schema import Secret, Settings

START = "<!-- settings: written by `make docs` -->"
END = "<!-- /settings -->"

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def bare(kind: Any) -> Any:
    """The type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def allowed(kind: Any) -> str:
    """What a setting of this type may be, in words."""
    plain = bare(kind)
    if get_origin(plain) is Literal:
        return " or ".join(map(str, get_args(plain)))
    if plain is Secret:
        return "{env: NAME} or {file: PATH}"
    if get_origin(plain) in (Union, UnionType):
        return " or ".join(map(allowed, get_args(plain)))
    if get_origin(plain) is list:
        return "a list"
    if get_origin(plain) is dict:
        return f"a mapping to {allowed(get_args(plain)[1])}"
    if _is_section(plain):
        return "a section with keys"
    return _WORDS[plain] + _bounds([m for m in get_args(kind)[1:] if isinstance(m, msgspec.Meta)])


def _bounds(metas: list[msgspec.Meta]) -> str:
    words = ""
    for meta in metas:
        if meta.ge is not None and meta.le is not None:
            words += f" from {meta.ge} to {meta.le}"
        elif meta.ge is not None:
            words += f" of at least {meta.ge}"
        if meta.gt is not None:
            words += f" above {meta.gt}" + (f", at most {meta.le}" if meta.le is not None else "")
        if meta.pattern:
            words += f" like {meta.pattern}"
        if meta.min_length:
            words += ", not empty"
    return words


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Every setting: its path, what it may be, its default, its meaning. Items of a list are ``agents.rules[].…``."""
    yield from _rows(Settings, "")


def _rows(cls: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    types = get_type_hints(cls, include_extras=True)
    for field in msgspec.structs.fields(cls):
        kind, path = types[field.name], prefix + field.name
        plain = bare(kind)
        if _is_section(plain):
            yield from _rows(plain, f"{path}.")
            continue
        yield path, allowed(kind), _default(field), _meaning(kind)
        if get_origin(plain) is list and _is_section(get_args(plain)[0]):
            yield from _rows(get_args(plain)[0], f"{path}[].")


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _meaning(kind: Any) -> str:
    return next((m.description for m in get_args(kind)[1:] if isinstance(m, msgspec.Meta) and m.description), "")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, Secret):
        return ""
    return "true" if value is True else "false" if value is False else "" if value in ("", [], {}) else f"`{value}`"


def table() -> str:
    """The settings as a Markdown table."""
    lines = ["| setting | allowed | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{path}` | {what.replace('|', chr(92) + '|')} | {default} | {meaning} |"
        for path, what, default, meaning in rows()
    ]
    return "\n".join(lines)


def updated(page: str) -> str:
    """The documentation page with its table brought up to date."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table()}\n{END}{after}"


def effective(settings: Settings) -> str:
    """The settings as YAML, secrets as the reference they came by."""
    data = msgspec.to_builtins(settings, enc_hook=lambda secret: secret.source and f"<{secret.source}>")
    if settings.upstream.nodes:  # in place of the address
        del data["upstream"]["url"]
    text: str = yaml.safe_dump(data, sort_keys=False)
    return text


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(updated(target.read_text(encoding="utf-8")), encoding="utf-8")
