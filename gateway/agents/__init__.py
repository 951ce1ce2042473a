"""What the agent behind can take: its profile, how it is read and what its generation means."""
