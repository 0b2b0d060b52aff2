"""Pure adapters: how each engine is installed, launched and asked whether it is ready."""
