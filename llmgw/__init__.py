"""llmgw: run large language models on your own GPU machines from a Git repository."""

__version__ = "0.1.0"
