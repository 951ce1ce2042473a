"""The form of a question that memory stores, where plain text would not do.

``${parameters.gw_<turn id>:-READABLE}``: on its own turn the helper parameter `gw_<turn id>` replaces it. On a later
turn no caller sends that helper, because the turn's id is unique. The cluster then reads the default, READABLE
(docs/evidence/facts.md, "What memory keeps from turn to turn").

A default can hold no braces: one would end or open a placeholder. READABLE has full-width ones in their place. Each
full-width brace and each `_MARK` of the user's own has a `_MARK` before it, so that the text can be restored.
"""

from __future__ import annotations

import re

from gateway.mlcommons.template import DEFAULT_DELIMITER, PREFIX, SUFFIX, UNFILLED

_EXPANDED = (UNFILLED, "${_chat_history.")
"""What the cluster would expand, or refuse, in a text that it replays."""

_OPEN, _CLOSE = "\uff5b", "\uff5d"
_MARK = "\u2060"
"""A character without a width."""
_OWN = re.compile(f"((?:{_MARK}[{_MARK}{_OPEN}{_CLOSE}])+)")
_FORM = re.compile(r"\${1,3}\{parameters\.gw_[0-9A-Za-z]+:-([^{}]*+)\}")
_FORM_MARK = "{parameters.gw_"
MOST_FORMS = 1_000
"""Most forms in a JSON document that are changed: more would hold up other clients."""
_ANY = "surrogateescape"
_FORM_IN_JSON = re.compile(rb"\${1,3}\{parameters\.gw_[0-9A-Za-z]+:-([^{}]*+)\}")


def is_storable(text: str) -> bool:
    """Return True if memory can hold `text` as it is."""
    return not any(sign in text for sign in _EXPANDED)


def memory_form(name: str, readable: str) -> str:
    """Return the form for the helper parameter `name`. Later turns read `as_default(readable)`."""
    return f"{PREFIX}{name}{DEFAULT_DELIMITER}{as_default(readable)}{SUFFIX}"


def as_default(text: str) -> str:
    """Return `text` in the form that a placeholder's default can hold: braces become full-width ones."""
    for own in (_MARK, _OPEN, _CLOSE):
        text = text.replace(own, _MARK + own)
    return text.replace("{", _OPEN).replace("}", _CLOSE)  # `translate` takes much longer, in which no other thread runs


def _from_default(default: str) -> str:
    """Return the text of which `as_default` made `default`."""
    parts = _OWN.split(default)
    parts[::2] = [part.replace(_OPEN, "{").replace(_CLOSE, "}") for part in parts[::2]]
    parts[1::2] = [part[1::2] for part in parts[1::2]]
    return "".join(parts)


def show_readable(text: str) -> str:
    """Return a stored text as the cluster shows it to later turns: READABLE in place of each form."""
    return _FORM.sub(lambda form: form[1], text) if _FORM_MARK in text else text


def show_original(text: str) -> str:
    """Return a stored text as it was before it got its form."""
    return _FORM.sub(lambda form: _from_default(form[1]), text) if _FORM_MARK in text else text


def show_original_json(document: bytes) -> bytes:
    """Return a JSON document with `show_original` applied inside its strings; all other bytes are unchanged.

    A document with more than `MOST_FORMS` is returned as it is.
    """
    if not 0 < document.count(_FORM_MARK.encode()) <= MOST_FORMS:
        return document
    return _FORM_IN_JSON.sub(_original_json, document)


def _original_json(form: re.Match[bytes]) -> bytes:
    default = form[1]
    if b'"' in default.replace(rb"\\", b"").replace(rb"\"", b""):
        return form[0]  # it goes on beyond its string, so it is none
    return default if default.isascii() else _from_default(default.decode(errors=_ANY)).encode(errors=_ANY)
