"""Values to bytes and back: JSON, and the agent protocol's messages."""
