"""The options that select recorded exchanges; those of the page (`gateway.inspector.store.Filter`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

_OPTIONS = {
    "path": "Part of the path.",
    "agent": "Agent's id or name.",
    "type": "Agent's type.",
    "provider": "Provider of its LLM.",
    "strategy": "How the input was delivered.",
    "status": "Status, a class such as 4xx, or error.",
    "notice": "Code of a notice or a problem.",
    "text": "Words in a recorded body.",
    "client": "Client's address.",
    "intent": "What it was for, such as execute; runs: all that run an agent.",
}


def filter_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the filters to a command; the function gets those that were given as one argument, `wanted`."""

    @functools.wraps(function)
    def collected(**values: Any) -> int:
        given = {name: values.pop(name) for name in _OPTIONS}
        return function(wanted={name: value for name, value in given.items() if value}, **values)

    for name, text in reversed(_OPTIONS.items()):
        collected = click.option(f"--{name}", default="", metavar=name.upper(), help=text)(collected)
    return collected
