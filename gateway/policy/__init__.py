"""What may refuse or change a request, and what it cost: usage, prices, budgets and guardrails."""
