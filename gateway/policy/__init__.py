"""What may refuse or change a request: budgets and guardrails; and what it cost."""
