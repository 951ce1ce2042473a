"""Routes (`agents.routes`): which agent, on which cluster, answers for an agent's id."""
