"""The tokens that an agent's answer reports. Pure."""

from __future__ import annotations

from dataclasses import replace

from gateway.execute.answer_stream import StreamReader
from gateway.execute.answers import read_answer
from gateway.memory.model import Usage
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.record import Delivery
from gateway.observe.record import Usage as RecordedUsage
from gateway.policy.usage import Prices

_PIECE = 64 * 1024
"""Bytes of a stream that are searched for the end of an event at a time: the search blocks all other threads."""
NOT_READ = AgentProfile("", "", "", (), Generation.TEXT)
"""Stands for an agent that can't be read."""


def read_usage(profile: AgentProfile | None, body: bytes, streaming: bool) -> Usage | None:
    """Return the tokens of all LLM calls of a run; None if its answer does not report them.

    profile: None if the agent can't be read. body: decoded; of an event stream, all of it. streaming: the answer may be
    an event stream.
    """
    profile = profile or NOT_READ
    if streaming and not body.lstrip().startswith(b"{"):
        reader = StreamReader(profile)
        for start in range(0, len(body), _PIECE):
            reader.feed(body[start : start + _PIECE])
        return reader.answer().usage
    return read_answer(profile, body).usage


def recorded_usage(delivery: Delivery, body: bytes, streaming: bool, prices: Prices) -> RecordedUsage | None:
    """Return what a run used and cost, for its record; None if that is not known. See `read_usage`."""
    profile = replace(NOT_READ, type=delivery.type, provider=delivery.provider)
    tokens = read_usage(profile, body, streaming)
    if tokens is None or tokens.input is None or tokens.output is None:
        return None
    cost = prices.cost(delivery.provider, delivery.model, tokens.input, tokens.output)
    return RecordedUsage(tokens.input, tokens.output, *(cost or ()))
