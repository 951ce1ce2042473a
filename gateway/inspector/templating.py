"""Renders the pages. Every value is escaped; the templates are in `templates/`, what browsers load in `static/`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def _environment() -> Environment:
    loader = PackageLoader("gateway.inspector")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters.update(duration=duration, size=size, segment=segment)
    return made


def segment(text: str) -> str:
    """Return a text as one part of an address."""
    return quote(text, safe="")


def duration(seconds: float) -> str:
    """Return seconds as a person reads them: 840 µs, 12 ms, 1.24 s."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms" if seconds < 1 else f"{seconds:.2f} s"


def size(length: int) -> str:
    """Return a number of bytes as a person reads it: 512 B, 1.5 KB, 50.0 MB."""
    if length < 1000:
        return f"{length} B"
    return f"{length / 1e3:.1f} KB" if length < 1e6 else f"{length / 1e6:.1f} MB"


def render(template: str, **values: Any) -> str:
    """Return a page as HTML."""
    return _environment().get_template(template).render(values)


@cache
def static_files() -> dict[str, tuple[str, bytes]]:
    """Return media type and content of each file that browsers load, by its name."""
    found = {}
    for file in files("gateway.inspector").joinpath("static").iterdir():
        kind = _TYPES.get(file.name[file.name.rfind(".") :])
        if kind:
            found[file.name] = (kind, file.read_bytes())
    return found
