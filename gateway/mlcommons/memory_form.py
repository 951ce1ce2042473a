"""The form of a question that memory stores, where plain text would not do.

``${parameters.gw_<turn id>:-READABLE}``: on its own turn the helper parameter `gw_<turn id>` replaces it. On a later
turn no caller sends that helper, because the turn's id is unique. The cluster then reads the default, READABLE
(docs/internals/facts.md, "What memory keeps from turn to turn").
"""

from __future__ import annotations

import re

from gateway.mlcommons.template import DEFAULT_DELIMITER, PREFIX, SUFFIX, UNFILLED

_EXPANDED = (UNFILLED, "${_chat_history.")
"""What the cluster would expand, or refuse, in a text that it replays."""

_BRACES = {"{": "\uff5b", "}": "\uff5d"}  # the full-width ones, as a brace would end or open a placeholder
_FORM = re.compile(r"\${1,3}\{parameters\.gw_[0-9A-Za-z]+:-([^{}]*)\}")
_FORM_MARK = "{parameters.gw_"
_FORM_IN_JSON = re.compile(rb'\${1,3}\{parameters\.gw_[0-9A-Za-z]+:-((?:[^{}"\\]|\\.)*)\}')


def is_storable(text: str) -> bool:
    """Return True if memory can hold `text` as it is."""
    return not any(sign in text for sign in _EXPANDED)


def memory_form(name: str, readable: str) -> str:
    """Return the form for the helper parameter `name`. Later turns read `as_default(readable)`."""
    return f"{PREFIX}{name}{DEFAULT_DELIMITER}{as_default(readable)}{SUFFIX}"


def as_default(text: str) -> str:
    """Return `text` without what a placeholder's default can't hold: braces become full-width ones."""
    for brace, wide in _BRACES.items():  # `translate` takes a hundred times as long, in which no other thread runs
        text = text.replace(brace, wide)
    return text


def show_readable(text: str) -> str:
    """Return a stored text as later turns read it: READABLE in place of each form."""
    return _FORM.sub(lambda form: form[1], text) if _FORM_MARK in text else text


def show_readable_json(document: bytes) -> bytes:
    """Return a JSON document with `show_readable` applied inside its strings; all other bytes are unchanged."""
    return _FORM_IN_JSON.sub(rb"\1", document) if _FORM_MARK.encode() in document else document
