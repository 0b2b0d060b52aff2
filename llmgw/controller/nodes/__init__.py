"""Ways to reach a node's agent."""
