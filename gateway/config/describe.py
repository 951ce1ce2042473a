"""Describe the settings: allowed values, the table in the documentation, the settings in effect.

``python -m gateway.config.describe docs/reference/settings.md`` writes the table between that page's markers. A test
compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Struct

from gateway.config.schema import Secret, Settings, Upstream
from gateway.config.types import unit_of

START = "<!-- settings: written by `make docs` -->"
END = "<!-- /settings -->"

_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}
_WIDTH = 10_000  # of a line of YAML: values stay on theirs
_UNITS = {"seconds": "a duration in seconds", "bytes": "a size in bytes"}


def bare(kind: Any) -> Any:
    """Return the type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def allowed(kind: Any) -> str:
    """Describe the allowed values of a type."""
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
    if is_section(plain):
        return "a section with keys"
    unit = unit_of(kind)
    return (_UNITS[unit] if unit else _TYPES[plain]) + _bounds(
        [m for m in get_args(kind)[1:] if isinstance(m, msgspec.Meta)]
    )


def _bounds(metas: list[msgspec.Meta]) -> str:
    text = ""
    for meta in metas:
        if meta.ge is not None and meta.le is not None:
            text += f" from {meta.ge} to {meta.le}"
        elif meta.ge is not None:
            text += f" of at least {meta.ge}"
        if meta.gt is not None:
            text += f" above {meta.gt}" + (f", at most {meta.le}" if meta.le is not None else "")
        if meta.examples:
            text += f" such as {meta.examples[0]}"
        elif meta.pattern:
            text += f" like {meta.pattern}"
        if meta.min_length:
            text += ", not empty"
    return text


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield path, allowed values, default and meaning of every setting. Items of a list are ``agents.rules[].…``."""
    yield from _rows(Settings, "")


def _rows(cls: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    types = types_of(cls)
    for field in msgspec.structs.fields(cls):
        kind, path = types[field.name], prefix + field.name
        plain = bare(kind)
        if is_section(plain):
            yield from _rows(plain, f"{path}.")
            continue
        yield path, allowed(kind), _default(field), _meaning(kind)
        if get_origin(plain) is list and is_section(get_args(plain)[0]):
            yield from _rows(get_args(plain)[0], f"{path}[].")


def is_section(kind: Any) -> bool:
    """Return True if the type is a section of the settings."""
    return isinstance(kind, type) and issubclass(kind, Struct)


@cache
def types_of(section: type) -> Mapping[str, Any]:
    """Return the type of each key of a section."""
    return get_type_hints(section, include_extras=True)


def _meaning(kind: Any) -> str:
    return next((m.description for m in get_args(kind)[1:] if isinstance(m, msgspec.Meta) and m.description), "")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, Secret):
        return ""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "" if value in ("", [], {}) else f"`{value}`"


def table() -> str:
    """Return the settings as a Markdown table."""
    lines = ["| setting | allowed | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{path}` | {what.replace('|', chr(92) + '|')} | {default} | {meaning} |"
        for path, what, default, meaning in rows()
    ]
    return "\n".join(lines)


def updated(page: str) -> str:
    """Return the documentation page with the current table."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table()}\n{END}{after}"


def effective(settings: Settings, sources: Mapping[str, str] | None = None, changed: bool = False) -> str:
    """Return the settings as YAML; a secret is shown as its source.

    sources: setting → where it is set (`gateway.config.load.sources`), which a comment shows. changed: leave out those
    that are not among them, and defaults of `clusters`.
    """
    data = _builtins(settings)
    if settings.upstream.nodes:  # they replace the address
        del data["upstream"]["url"]
    if changed:
        defaults = _builtins(Upstream())
        data["clusters"] = {name: _differing(one, defaults) for name, one in data["clusters"].items()}
    return "".join(f"{line}\n" for line in _effective(data, Settings, "", sources or {}, changed))


def _builtins(part: Struct) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(part, enc_hook=lambda secret: secret.source and f"<{secret.source}>")
    return found


def _differing(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _differing(value, defaults[key]) if isinstance(value, dict) else value
        for key, value in data.items()
        if value != defaults[key]
    }


def _effective(
    data: Mapping[str, Any], cls: Any, path: str, sources: Mapping[str, str], changed: bool
) -> Iterator[str]:
    indent = "  " * path.count(".")
    types = types_of(cls)
    for key, value in data.items():
        setting = path + key
        if is_section(kind := bare(types[key])):
            inner = list(_effective(value, kind, f"{setting}.", sources, changed))
            if inner:
                yield f"{indent}{key}:"
                yield from inner
        elif setting in sources or not changed:
            lines = yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, width=_WIDTH).splitlines()
            if setting not in sources:
                comment = ""
            elif len(lines) == 1:
                comment = f"  # {sources[setting]}"
            else:
                comment = ""
                yield f"{indent}# {sources[setting]}"
            yield indent + lines[0] + comment
            yield from (indent + line for line in lines[1:])


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(updated(target.read_text(encoding="utf-8")), encoding="utf-8")
