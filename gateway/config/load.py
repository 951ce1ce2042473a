"""Load the settings from a YAML or TOML file and the environment. Every problem is reported with its key's path.

The value of an environment variable (`gateway.config.variables`) is read as YAML, unless the setting is text. Secrets
are written as ``{env: NAME}`` or ``{file: PATH}``, never in clear.

A `Source` remembers where the settings are from, so that they can be read again while the gateway runs.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import os
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import yaml

from gateway.config.consistency import check, url_fault
from gateway.config.describe import allowed, bare, is_section, types_of
from gateway.config.problems import ConfigError, ConfigProblem, depends_on, shown
from gateway.config.schema import Secret, Settings
from gateway.config.types import examples, without_unit
from gateway.config.variables import FromEnvironment, read_environment
from gateway.config.yaml_text import Misread, parse_yaml

__all__ = ["ConfigError", "ConfigProblem", "load", "merge", "read_file", "sources"]

_LARGEST = 2**63
_SECRET_FORMS = "{env: NAME} or {file: PATH}"


class _SecretSource(msgspec.Struct, frozen=True):
    """Where a secret is, as it is written. A later source replaces it; mappings would be merged."""

    written: Any


def load(
    path: Path | None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    secrets_of: str = "",
    content: bytes | None = None,
) -> Settings:
    """Load the file at `path` (None: defaults), overridden by `environ` and then by `overrides`.

    overrides: nested like the file, from command-line options. secrets_of: the only section whose secrets are read;
    "" for all. content: of the file, if it has been read already.

    Raises:
        ConfigError: with every unknown key and bad value, and the settings that could be read.
    """
    environ = os.environ if environ is None else environ
    problems: list[ConfigProblem] = []
    reader = _Reader(environ, problems, secrets_of)
    layers = [read_file(path, content) if path else {}, *read_environment(environ, problems), overrides or {}]
    data: dict[str, Any] = {}
    for layer in layers:  # check each by itself: the next one could hide a section of the wrong type
        data = merge(data, reader.sections(layer, Settings, ""))
    settings: Settings = reader.struct(data, Settings, "")
    wrong = [*(problem.path for problem in problems), *reader.unread]
    problems += check(settings, _urls_given(data), wrong=wrong)
    if problems:
        raise ConfigError(problems, settings, wrong)
    return settings


def _urls_given(data: Mapping[str, Any]) -> set[str]:
    """Return the sections of clusters whose `url` is set: `upstream`, `clusters.NAME`."""
    named = {f"clusters.{name}": part for name, part in data.get("clusters", {}).items()}
    return {section for section, part in {"upstream": data.get("upstream", {}), **named}.items() if "url" in part}


def sources(path: Path | None, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return where each setting that is not left to its default is set: the file, or the name of a variable.

    A mapping whose keys are set in several places has all of them, with commas.

    Raises:
        ConfigError: the file can't be read.
    """
    environ = os.environ if environ is None else environ
    layers = [read_file(path) if path else {}, *read_environment(environ, [])]
    found: dict[str, str] = {}
    for layer in layers:
        for setting, source, adds in _set_by(layer, Settings, "", str(path)):
            found[setting] = f"{found[setting]}, {source}" if adds and setting in found else source
    return found


def _set_by(layer: Mapping[str, Any], cls: Any, path: str, source: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the settings in `layer`: each with its source, and whether that adds keys to those of earlier layers."""
    types = types_of(cls)
    for key, value in layer.items():
        kind, place = bare(types.get(key)), source
        if isinstance(value, FromEnvironment):
            place = value.name
            value = parse_yaml(value.text) if is_section(kind) else value
        elif isinstance(value, Mapping):  # a secret, or a mapping with keys of its own
            place = ", ".join(one.name for one in value.values() if isinstance(one, FromEnvironment)) or place
        if is_section(kind) and isinstance(value, Mapping):
            yield from _set_by(value, kind, _join(path, key), place)
        elif value is not None or not is_section(kind):
            yield _join(path, key), place, isinstance(value, Mapping) and kind is not Secret


def read_content(path: Path) -> bytes:
    """Return the bytes of a settings file.

    Raises:
        ConfigError: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError([ConfigProblem("", f"{path} can't be read: {exc.strerror}")]) from exc


def read_file(path: Path, content: bytes | None = None) -> dict[str, Any]:
    """Read a file as nested mappings: TOML if its name ends in ``.toml``, else YAML. content: if it has been read.

    Raises:
        ConfigError: the file can't be read or parsed, or is not a mapping.
    """
    try:
        content = read_content(path) if content is None else content
        text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
        data = tomllib.loads(text) if path.suffix == ".toml" else parse_yaml(text)
    except (yaml.YAMLError, tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError([ConfigProblem("", f"{path} can't be parsed: {' '.join(str(exc).split())}")]) from exc
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError([ConfigProblem("", f"{path} must hold a mapping of sections", received=shown(data))])
    return data


def merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` overridden by `over`, section by section. Neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        inner = merged.get(key)
        merged[key] = merge(inner if isinstance(inner, dict) else {}, value) if isinstance(value, Mapping) else value
    return merged


class _Reader:
    """Converts data to the schema's types and collects every problem.

    unread: paths of settings for which an unknown key was probably meant, and of secrets of other sections.
    """

    def __init__(self, environ: Mapping[str, str], problems: list[ConfigProblem], secrets_of: str) -> None:
        self.environ = environ
        self.problems = problems
        self.secrets_of = secrets_of
        self.unread: list[str] = []

    def problem(self, path: str, reason: str, value: Any = "", kind: Any = None, hidden: bool = False) -> None:
        """Record a problem. hidden: the value may be a secret."""
        source = _variable(value)
        received = shown(value.text if source else value) if value != "" and not hidden else ""
        permitted = ", ".join(filter(None, (allowed(kind), examples(kind)))) if kind else ""
        self.problems.append(ConfigProblem(path, reason, received, permitted, source))

    def misread(self, path: str, value: Misread, source: Any) -> None:
        """Record that YAML reads a value, or the key at the end of `path`, as something else."""
        self.problems.append(ConfigProblem(path, value.reason, str(value), value.remedy, _variable(source)))

    def address(self, path: str, value: Any, kind: Any) -> bool:
        """Return True for a URL with a part that is known to be wrong, and record which one it is."""
        pattern = next((m.pattern for m in get_args(kind)[1:] if isinstance(m, msgspec.Meta) and m.pattern), "")
        text = value.text if isinstance(value, FromEnvironment) else value
        if "https?" not in pattern or not isinstance(text, str):
            return False
        fault = url_fault(path, text, is_base="/?$" in pattern or "/?)?$" in pattern) if text else None
        if fault is not None:
            self.problems.append(ConfigProblem(path, fault.reason, shown(text), fault.allowed, _variable(value)))
        return fault is not None

    def sections(self, layer: Mapping[str, Any], cls: Any, path: str) -> dict[str, Any]:
        """Return `layer` without empty (`null`) sections and sections of the wrong type; record the latter."""
        types = types_of(cls)
        checked: dict[str, Any] = {}
        for key, value in layer.items():
            kind = bare(types.get(key))
            part = self.parse(value)
            if is_section(kind):
                if isinstance(part, Mapping):
                    checked[key] = self.sections(part, kind, _join(path, key))
                elif part is not None:
                    self.not_a_section(_join(path, key), value, kind)
            elif kind is Secret:
                checked[key] = _SecretSource(value)
            elif get_origin(kind) is dict and part is not None and not isinstance(part, Mapping):
                self.problem(_join(path, key), "is not allowed here", value, types[key])
            elif get_origin(kind) is dict and is_section(get_args(kind)[1]) and isinstance(part, Mapping):
                checked[key] = self.named_sections(part, get_args(kind)[1], _join(path, key))
            else:
                checked[key] = value
        return checked

    def named_sections(self, layer: Mapping[str, Any], cls: Any, path: str) -> dict[str, Any]:
        """Return the sections of a mapping, each as `sections` does. An empty one has the defaults."""
        checked: dict[str, Any] = {}
        for name, value in layer.items():
            part = self.parse(value)
            if part is None or isinstance(part, Mapping):
                checked[name] = self.sections(part or {}, cls, _join(path, str(name)))
            else:
                self.not_a_section(_join(path, str(name)), value, cls)
        return checked

    def not_a_section(self, path: str, value: Any, cls: Any) -> None:
        self.problem(path, "must be a section with keys", value, hidden=_holds_secret(cls))

    def struct(self, value: Any, cls: Any, path: str) -> Any:
        """Return an instance of `cls`, with the default for each wrong part; None if a required one is missing."""
        value = self.parse(value)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.not_a_section(path, value, cls)
            return None
        types = types_of(cls)
        for key in value:
            if isinstance(key, Misread):
                self.misread(_join(path, key), key, value[key])
            elif key not in types:
                self.unknown(path, str(key), list(types), value[key])
        known = {name: value[name] for name in types if name in value}
        required = _required_in(cls)
        for name in required:
            if name not in known:
                self.problem(_join(path, name), "is missing", kind=types[name])
        parts = {}
        for name, part in known.items():
            count = len(self.problems)
            made = self.value(part, types[name], _join(path, name))
            if isinstance(made, msgspec.Struct) or len(self.problems) == count:
                parts[name] = made
        return cls(**parts) if all(name in parts for name in required) else None

    def unknown(self, path: str, key: str, names: list[str], value: Any) -> None:
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        self.unread += [_join(path, name) for name in near]
        known = ", ".join(names)
        self.problems.append(ConfigProblem(_join(path, key), f"unknown key{hint}", "", known, _variable(value)))

    def value(self, value: Any, kind: Any, path: str) -> Any:
        plain = bare(kind)
        if plain is Secret:
            return self.secret(value, path)
        if is_section(plain):
            return self.struct(value, plain, path)
        raw = value
        is_text = plain is str or get_origin(plain) is Literal
        value = value.text if is_text and isinstance(value, FromEnvironment) else self.parse(value)
        if isinstance(value, Misread):
            self.misread(path, value, raw)
            return None
        if plain is str and self.address(path, raw, kind):
            return None
        if get_origin(plain) is list and isinstance(value, list):
            return [self.value(item, get_args(plain)[0], f"{path}[{i}]") for i, item in enumerate(value)]
        if get_origin(plain) is dict and isinstance(value, dict):
            for key in (key for key in value if isinstance(key, Misread)):
                self.misread(_join(path, key), key, raw)
            kinds = get_args(plain)
            return {
                self.value(str(k), kinds[0], path): self.value(item, kinds[1], _join(path, str(k)))
                for k, item in value.items()
            }
        if isinstance(value, int | float) and not -_LARGEST < value < _LARGEST:  # infinite and NaN, too
            self.problem(path, "is not a finite number" if isinstance(value, float) else "is too large", raw, kind)
            return None
        if get_origin(plain) is Literal:
            value = _word(value, get_args(plain))
        value = without_unit(value, kind)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            self.problem(path, "is not allowed here", raw, kind)
            return None

    def parse(self, value: Any) -> Any:
        """Return a value; that of an environment variable is read as YAML."""
        if not isinstance(value, FromEnvironment):
            return value
        try:
            return parse_yaml(value.text)
        except yaml.YAMLError:
            return value.text

    def secret(self, value: Any, path: str) -> Secret:
        if isinstance(value, _SecretSource):
            value = value.written
        if isinstance(value, FromEnvironment):
            self.problem(path, f"is a secret: name its source in {value.name}__ENV or {value.name}__FILE")
            return Secret()
        if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in ("env", "file"):
            self.problem(path, f"is a secret: give {_SECRET_FORMS}, not the secret itself")
            return Secret()
        if self.secrets_of and not path.startswith(f"{self.secrets_of}."):
            self.unread.append(path)
            return Secret()
        [(form, where)] = value.items()
        where = where.text if isinstance(where, FromEnvironment) else str(where)
        source = f"{form}: {where}"
        if form == "env":
            if not self.environ.get(where):
                fault = "empty" if where in self.environ else "not set"
                self.problem(path, f"the environment variable {where} is {fault}")
            return Secret(self.environ.get(where, ""), source)
        try:
            text = Path(where).read_text(encoding="utf-8").rstrip("\r\n")
            if not text:
                self.problem(path, f"the file {where} is empty")
            return Secret(text, source)
        except (OSError, UnicodeDecodeError) as exc:
            self.problem(path, f"the file {where} can't be read: {getattr(exc, 'strerror', None) or 'not UTF-8'}")
            return Secret()


def _variable(value: Any) -> str:
    """Return the name of the environment variable that a value is from; "" for any other value."""
    return value.name if isinstance(value, FromEnvironment) else ""


def _word(value: Any, words: Sequence[str]) -> Any:
    """Return the one of `words` that YAML 1.1 reads as `value`, such as `off` for False and `1.2` for a number.

    Return `value` if it is one of them, or if none is meant.
    """
    if value in words:
        return value
    if isinstance(value, str):
        try:
            value = parse_yaml(value)
        except yaml.YAMLError:
            return value
    meant = [word for word in words if type(read := parse_yaml(word)) is type(value) and read == value]
    return meant[0] if len(meant) == 1 else value


def _holds_secret(kind: Any) -> bool:
    """Return True if the section has a secret, so that a wrong value in its place may be one."""
    plain = bare(kind)
    if is_section(plain):
        return any(map(_holds_secret, types_of(plain).values()))
    return plain is Secret


@cache
def _required_in(section: type) -> tuple[str, ...]:
    """Return the keys of a section that have no default."""
    return tuple(field.encode_name for field in msgspec.structs.fields(section) if field.required)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


class Source(msgspec.Struct, frozen=True):
    """A settings file (None: no file), and options that override it and the environment, nested like the file."""

    path: Path | None = None
    overrides: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def load(self, content: bytes | None = None) -> Settings:
        """Load the current settings. content: of the file, as `read_content` returned it.

        Raises:
            ConfigError: they are wrong.
        """
        return load(self.path, overrides=self.overrides, content=content)

    def read_content(self) -> bytes | None:
        """Return what the file holds; None if there is no file.

        Raises:
            ConfigError: it can't be read.
        """
        return read_content(self.path) if self.path is not None else None

    def with_overrides(self, overrides: Mapping[str, Any]) -> Source:
        """Return a copy with more options, which override the present ones."""
        return Source(self.path, merge(dict(self.overrides), overrides))

    def dump(self) -> str:
        """Return text from which another process can `read` the source."""
        return msgspec.json.encode({"path": self.path and str(self.path), "overrides": self.overrides}).decode()

    @classmethod
    def read(cls, text: str) -> Source:
        """Read what `dump` wrote."""
        data = msgspec.json.decode(text)
        return cls(data["path"] and Path(data["path"]), data["overrides"])


def digest_of(content: bytes | None) -> str:
    """Return what tells two contents of a settings file apart: their SHA-256; "" without a file."""
    return "" if content is None else hashlib.sha256(content).hexdigest()


_FIXED = (
    "data_host", "data_port", "admin_host", "admin_port", "adapters_host", "adapters_port", "workers", "http",
)  # fmt: skip
"""Settings of `listen` that need a restart, as sockets and processes exist already."""


def check_reload(old: Settings, new: Settings, wrong: Collection[str] = ()) -> None:
    """Compare the settings that need a restart, except those that could not be read (`wrong`).

    Raises:
        ConfigError: some differ. Each is a problem.
    """
    problems = [ConfigProblem(path, "can't change without a restart") for path in _changed(old, new)]
    problems = [problem for problem in problems if not depends_on([problem.path], wrong)]
    if problems:
        raise ConfigError(problems)


def _changed(old: Settings, new: Settings) -> Iterator[str]:
    for name in _FIXED:
        if getattr(old.listen, name) != getattr(new.listen, name):
            yield f"listen.{name}"
    if old.listen.adapters_port is not None:
        for name in ("ag_ui", "openai"):
            if getattr(old.adapters, name) != getattr(new.adapters, name):
                yield f"adapters.{name}"
        if bool(old.adapters.mcp) != bool(new.adapters.mcp):
            yield "adapters.mcp"
    if bool(old.listen.tls.cert_file) != bool(new.listen.tls.cert_file):
        yield "listen.tls.cert_file"
