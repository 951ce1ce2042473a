"""Substitution within limits: expands placeholders, and reports what the cluster would refuse."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.template import ExpansionTooLarge, InfiniteLoop, Lookup, substitute

# How far placeholders may expand: characters in all, and for each character of the template and its values. A text
# beyond ASCII becomes six characters each, and may be in a template twice.
_LEAST_EXPANSION = 100_000
_EXPANSION = 16
_TOO_LARGE = Problem(
    "parameters",
    "the placeholders in the parameters and the connector's template contain each other so often that they expand to "
    "many times their length",
    "parameters that are not nested",
    code="AGENT_NOT_CALLABLE",
    help="use each placeholder once, or write the text itself in its place",
)


class RenderFailure(Exception):
    """The cluster would refuse the call, or its rendering can't be predicted; the text says why."""


def expand(template: str, values: Mapping[str, str], lookup: Lookup | None = None) -> str:
    """Return `template` with its placeholders filled in.

    lookup: what `values` become as they are inserted; None inserts them unchanged.

    Raises:
        RenderFailure: a placeholder leads back to itself, or placeholders are nested too deeply.
        UndeliverableContent: the placeholders expand to many times their length.
    """
    limit = _LEAST_EXPANSION + _EXPANSION * (len(template) + sum(map(len, values.values())))
    try:
        return substitute(template, lookup or values, limit=limit)
    except InfiniteLoop as loop:
        raise RenderFailure(f"placeholders lead back to themselves: {loop}") from None
    except RecursionError:
        raise RenderFailure("placeholders are nested too deeply to follow") from None
    except ExpansionTooLarge:
        raise UndeliverableContent.of([_TOO_LARGE]) from None
