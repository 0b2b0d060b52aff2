"""Break glass: what a person types on the node itself, over the agent's socket where one runs, past it where none does."""
