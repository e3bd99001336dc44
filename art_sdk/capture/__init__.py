"""What the agent's process does: spans into a journal, nothing else."""
