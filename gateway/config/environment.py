"""Settings in environment variables, named ``GATEWAY__SECTION__KEY`` (upper or lower case).

Keys of mappings, such as the ids in ``GATEWAY__AGENTS__ALIASES__ID``, keep their case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from gateway.config.describe import bare
from gateway.config.problems import ConfigProblem
from gateway.config.schema import Secret, Settings

PREFIX = "GATEWAY__"


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """The unparsed value of an environment variable."""

    text: str
    name: str


def read_environment(environ: Mapping[str, str], problems: list[ConfigProblem]) -> Iterator[dict[str, Any]]:
    """Yield the settings in the environment, one variable at a time, each nested like the file."""
    names: dict[tuple[str, ...], str] = {}
    for name, text in sorted(environ.items()):
        if not name.upper().startswith(PREFIX):
            continue
        keys = _read_keys(name)
        setting = _find_setting(keys)
        if setting in names:
            problems.append(ConfigProblem(".".join(keys), f"is also set by {names[setting]}", source=name))
        elif not setting:
            problems.append(ConfigProblem(".".join(keys), "names a key below a setting that has no keys", source=name))
        else:
            names[setting] = name
            layer: Any = FromEnvironment(text, name)
            for key in reversed(keys):
                layer = {key: layer}
            yield layer


def _read_keys(name: str) -> tuple[str, ...]:
    """Return the keys in a variable's name: those of mappings as they are written, others in lower case."""
    kind: Any = Settings
    keys: list[str] = []
    for written in name[len(PREFIX) :].split("__"):
        if get_origin(kind) is dict:
            keys.append(written)
            kind = bare(get_args(kind)[1])
        else:
            keys.append(written.lower())
            kind = bare(types_of(kind).get(keys[-1])) if is_section(kind) else None
    return tuple(keys)


def _find_setting(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of the setting that the variable sets; of a secret, without ``env`` or ``file``.

    (): it continues below a setting that has no keys. An unknown key is reported later.
    """
    kind: Any = Settings
    for depth, key in enumerate(keys):
        if is_section(kind):
            types = types_of(kind)
            if key not in types:
                return keys
            kind = bare(types[key])
        elif get_origin(kind) is dict:
            kind = bare(get_args(kind)[1])
        else:
            return keys[:depth] if kind is Secret else ()
    return keys


def is_section(kind: Any) -> bool:
    """Return True if the type is a section of the settings."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@cache
def types_of(section: type) -> Mapping[str, Any]:
    """Return the type of each key of a section."""
    return get_type_hints(section, include_extras=True)
