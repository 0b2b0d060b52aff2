"""Whether an engine knows the flags that it would be started with, by its own help."""
