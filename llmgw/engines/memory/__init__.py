"""Does it fit: what weights are, what a token takes, and the sum for each engine, as lines that a person can check."""
