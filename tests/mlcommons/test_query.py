"""Which queries run an agent in the background."""

from __future__ import annotations

import pytest

from gateway.execute.body import read_async


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("", "false"),
        ("?", "false"),
        ("?async=false", "false"),
        ("?pretty&asynchronous=true", "false"),
        ("?a=;b=async", "false"),
        ("?a=1%3Basync=true", "false"),
        ("?async", ""),
        ("?async=", ""),
        ("?async=true", "true"),
        ("?%61sync=tru%65", "true"),
        ("?async=false&async=true", "true"),
        ("?async=true&async=false", "true"),
        ("?pretty;async=true", "true"),
        ("?async=true;pretty", "true"),
        ("?async=true#&async=false", "true"),
        ("?pretty#&async=true", "true"),
    ],
)
def test_the_value_of_async(query: str, value: str) -> None:
    assert read_async(f"/_plugins/_ml/agents/a/_execute{query}") == value
