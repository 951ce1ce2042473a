"""Environment variables: the settings in them, and those that look as if the gateway read them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args, get_origin

import msgspec

from gateway.config.describe import bare, is_section, rows, types_of
from gateway.config.problems import ConfigProblem
from gateway.config.schema import Secret, Settings

PREFIX = "GATEWAY__"


class FromEnvironment(msgspec.Struct, frozen=True):
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


READ = {
    "MLC_PASSWORD": "the password of `--user`",
    "MLC_TO_PASSWORD": "the password of `move --to-user`",
    "MLC_ADMIN_TOKEN": "the token of the admin port, for `tail` and `--gateway`",
    "MLC_GATEWAYS": "the addresses for `--gateway`, with spaces between them",
    "MLC_AUTHORIZATION": "the credentials of `mlc-gateway mcp`, a value of `Authorization`",
    "MLC_URL": "the address that a script of the inspector sends its request to",
}
"""The variables that are read besides the settings, and what each holds."""
_OTHERS = re.compile(r"MLC_REQUIRE_\w+|MLC_GATEWAY_DEMO_TOKEN")
"""Of the project's own tests, and of the demo within its process."""
_KUBERNETES = re.compile(r"\w+_(?:SERVICE_(?:HOST|PORT(?:_\w+)?)|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)")
"""What Kubernetes sets in each pod for a service that is called `gateway` or `mlc-gateway`."""
_SIMILAR = 0.8


def suspicious_variables(names: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each variable of the environment that probably was meant for the gateway.

    These are unknown ones that begin with ``MLC_``, and those that would name a setting if they began with
    ``GATEWAY__`` and had two underscores between its keys. What begins with ``GATEWAY__`` is checked where it is read.
    """
    settings = {re.sub(r"[.\[\]]+", "_", path).upper(): path for path, *_ in rows() if "[]" not in path}
    sections = {path.partition(".")[0].upper() for path in settings.values()}
    for name in sorted(names):
        upper = name.upper()
        ours = upper.startswith("MLC_")
        if upper in READ or upper.startswith(PREFIX) or _OTHERS.fullmatch(upper) or _KUBERNETES.fullmatch(upper):
            continue
        rest = re.sub(r"^(MLC_)?(GATEWAY_+)?", "", upper)
        if not ours and (rest == upper or rest.partition("_")[0] not in sections):
            continue
        meant = _meant(re.sub("_+", "_", rest), settings) or _similar(upper, READ)
        if ours or meant:
            yield f"{name} is not a variable of the gateway's" + (f"; did you mean {meant}?" if meant else "")


def _meant(rest: str, settings: dict[str, str]) -> str:
    """Return the variable of the setting that `rest` is similar to, or ""."""
    secret, _, form = rest.rpartition("_")  # LISTEN_ADMIN_TOKEN_FILE
    if rest in settings or form not in ("ENV", "FILE") or secret not in settings:
        secret, form = _similar(rest, settings), ""
    return "__".join(filter(None, (PREFIX + settings[secret].upper().replace(".", "__"), form))) if secret else ""


def _similar(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, known, 1, _SIMILAR)), "")
