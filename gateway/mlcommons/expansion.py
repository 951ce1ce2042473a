"""Substitution within limits: expands placeholders, and reports what the cluster would refuse.

There are two limits. A single expansion is limited by the length of what it starts from. All the expansions of one plan
are limited together (`limited_work`), because a plan renders an agent's call again for each of its placeholders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.template import PREFIX, InfiniteLoop, Lookup, substitute

# How far placeholders may expand: characters in all, and for each character of the template and its values. A text
# beyond ASCII becomes six characters each, and may be in a template twice.
_LEAST_EXPANSION = 100_000
_EXPANSION = 16
_LEAST_VALUES = 2_000
_EACH = 2
"""How often each placeholder may be filled in, beyond the least number of values."""
_TOO_LARGE = Problem(
    "parameters",
    "the placeholders in the parameters and the connector's template contain each other so often that they expand to "
    "many times their length",
    "parameters that are not nested",
    code="AGENT_NOT_CALLABLE",
    help="use each placeholder once, or write the text itself in its place",
)

MOST_WORK = 100_000_000
"""Units of work for one plan, some four nanoseconds each: about a thousand times what a usual agent needs."""
_WORK_OF_VALUE = 1000
_WORK_OF_SEPARATOR = 100
_RENDERINGS = 300
"""How often a client's own texts may be rendered for a plan."""
_TOO_MUCH_WORK = Problem(
    "parameters",
    "the agent's templates, parameters and tools are too large together to prove what its LLM would get",
    "short templates with few placeholders",
    code="AGENT_TOO_LARGE",
    help="give the agent fewer tools, and its connector a shorter template with fewer placeholders",
)


class RenderFailure(Exception):
    """The cluster would refuse the call, or its rendering can't be predicted; the text says why."""


class UnknownRendering(RenderFailure):
    """What the cluster would make of the call can't be predicted."""


class Work:
    """The work that one plan may still cause."""

    def __init__(self, units: int) -> None:
        self.left = units

    def check(self) -> None:
        """Raise UndeliverableContent if something was not rendered because it would have been too much work."""
        if self.left < 0:
            raise UndeliverableContent.of([_TOO_MUCH_WORK])


_WORK: ContextVar[Work | None] = ContextVar("work", default=None)


@contextmanager
def limited_work(units: int = MOST_WORK) -> Iterator[Work]:
    """Limit the work of everything that is rendered in this block. Without one, only each expansion is limited."""
    work = Work(units)
    token = _WORK.set(work)
    try:
        yield work
    finally:
        _WORK.reset(token)


def spend(units: int) -> None:
    """Count work. Raise UndeliverableContent if it is more than the plan may cause."""
    work = _WORK.get()
    if work is not None:
        work.left -= units
        work.check()


def allow_for(texts: Mapping[str, str]) -> None:
    """Allow the work for a client's own texts, which its request's limits bound."""
    work = _WORK.get()
    if work is not None and work.left >= 0:
        work.left += _RENDERINGS * (sum(map(len, texts.values())) + _WORK_OF_VALUE * len(texts))


def spend_on_json(text: str) -> None:
    """Count the work of reading JSON."""
    if _WORK.get() is not None:
        spend(len(text) + _WORK_OF_SEPARATOR * sum(map(text.count, ',[{"')))


class _Meter:
    """Counts the values of one expansion. The class, and no function, because it is called for each of them."""

    def __init__(self, template: str, values: Mapping[str, str]) -> None:
        self._texts = (template, values)
        self._most_characters = _LEAST_EXPANSION + _EXPANSION * (len(template) + sum(map(len, values.values())))
        self._most_values = _LEAST_VALUES
        self.characters = self.values = 0

    def __call__(self, length: int) -> None:
        self.characters += length
        self.values += 1
        if self.characters > self._most_characters:
            raise UndeliverableContent.of([_TOO_LARGE])
        if self.values > self._most_values:
            template, values = self._texts
            placeholders = sum(text.count(PREFIX) for text in (template, *values.values()))
            self._most_values = _LEAST_VALUES + _EACH * placeholders
            if self.values > self._most_values:
                raise UndeliverableContent.of([_TOO_LARGE])


def expand(template: str, values: Mapping[str, str], lookup: Lookup | None = None) -> str:
    """Return `template` with its placeholders filled in.

    lookup: what `values` become as they are inserted; None inserts them unchanged.

    Raises:
        RenderFailure: a placeholder leads back to itself, or placeholders are nested too deeply.
        UndeliverableContent: the placeholders expand to many times their length, or the plan causes too much work.
    """
    meter = _Meter(template, values)
    try:
        return substitute(template, lookup or values, count=meter)
    except InfiniteLoop as loop:
        raise RenderFailure(f"placeholders lead back to themselves: {loop}") from None
    except RecursionError:
        raise RenderFailure("placeholders are nested too deeply to follow") from None
    finally:
        spend(len(template) + meter.characters + _WORK_OF_VALUE * meter.values + 20 * len(values))
