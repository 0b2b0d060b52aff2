"""Where an agent is met: its socket's name, and how a bridge to it says that it is through. Imports nothing, because a bridge
starts with every connection to a node."""

SOCKET = "agent.sock"
"""In the agent's work directory."""
BRIDGE_MAGIC = b"llmgw-agent bridge 1\n"
"""What the bridge prints first: all before it is noise of a login shell and skipped."""
