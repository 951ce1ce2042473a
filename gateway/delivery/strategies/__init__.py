"""The strategies in order of preference. The first one whose candidate can be proved wins.

A new strategy is a file in this folder and a row here. What a plan is called may differ: `messages` yields `wrap`, too;
`flattened` and `as_one_text` yield `text`, and `as_one_turn` what the strategy that it asks is called.
"""

from __future__ import annotations

from gateway.delivery.candidate import Strategy
from gateway.delivery.strategies.messages import messages
from gateway.delivery.strategies.one_turn import as_one_turn
from gateway.delivery.strategies.splice import splice
from gateway.delivery.strategies.text import as_one_text, flattened, text

STRATEGIES: tuple[Strategy, ...] = (messages, text, splice, flattened, as_one_text, as_one_turn)

TURN_STRATEGIES: tuple[Strategy, ...] = (messages, text, splice)
"""Those that keep turns apart."""
