"""What is wrong with a node, and what to do about it: looked at on the node itself, with and without its agent."""
